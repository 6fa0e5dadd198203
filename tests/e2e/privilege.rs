//! The program as its systemd unit runs it, where no systemd runs: a user without rights, no capabilities and no way to
//! any, nothing that can be written, and the unit's own filter of system calls, as systemd lists it.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::nvml::Stub;
use crate::support::client::{Answer, get, get_with};
use crate::support::exporter::{Exporter, command};
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

/// "prom" and "open sesame".
const USERS: &str = "basic_auth_users:\n  prom: $2b$04$vxDDxHrXz9byy.74oVvWp.i2fKO7vGIlP7U95f76VAH4ypa6qJ3t6\n";
const CREDENTIALS: &str = "Authorization: Basic cHJvbTpvcGVuIHNlc2FtZQ==";
const GPU: &str = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-a\ngpu0.name NVIDIA L4\ngpu0.memory 1000 300 600 100\n";
const NOBODY: u32 = 65534;

/// Everything below is closed, then rights are given up, then the rest of the words run.
const CLOSE: &str = "\
while read -r _ at _; do mount -o remount,bind,ro \"$at\" 2>/dev/null || true; done < /proc/self/mounts
exec setpriv \"$@\"";

fn unit() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/systemd/kvtier-exporter.service");
    fs::read_to_string(file).unwrap()
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The system calls of a set such as `@system-service`, and of the sets in it.
fn calls(set: &str, all: &mut BTreeSet<String>) {
    let listed = said(Command::new("systemd-analyze").args(["--no-pager", "syscall-filter", set]));
    for name in listed.lines().skip(1).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if name.starts_with('@') {
            calls(name, all);
        } else {
            all.insert(name.to_owned());
        }
    }
}

/// Builds the program that starts others behind the unit's filter.
fn confine(folder: &Path) -> PathBuf {
    let unit = unit();
    let set = unit.lines().find_map(|line| line.strip_prefix("SystemCallFilter=")).expect("a filter in the unit");
    let mut allowed = BTreeSet::new();
    // What systemd allows in any case.
    calls("@default", &mut allowed);
    calls(set, &mut allowed);
    assert!(allowed.len() > 200 && !allowed.contains("reboot"), "{allowed:?}");
    // Names of other architectures are unknown to the compiler here.
    let lines: String =
        allowed.iter().map(|name| format!("#ifdef __NR_{name}\nALLOW(__NR_{name})\n#endif\n")).collect();
    fs::write(folder.join("allowed.h"), lines).unwrap();
    let (source, built) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/confine/confine.c"), folder.join("confine"));
    said(Command::new("cc").args(["-Wall", "-Werror", "-I"]).arg(folder).arg(source).arg("-o").arg(&built));
    built
}

/// A folder that everybody may read, with the program in it: the one that it was built in may be somebody's own.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_kvtier-exporter"), folder.path().join("kvtier-exporter")).unwrap();
    folder
}

/// The words that run what follows them closed in. As root it becomes nobody; who has no rights has none to give up but
/// those over a user namespace.
fn closed() -> Command {
    let is_root = rustix::process::geteuid().is_root();
    let mut command = Command::new("unshare");
    command.args(if is_root { &["--mount"][..] } else { &["--user", "--map-root-user", "--mount"] });
    command.args(["sh", "-e", "-c", CLOSE, "sh", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all"]);
    command.args(["--no-new-privs"]);
    if is_root {
        command.args([format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()]);
    } else {
        command.arg("--securebits=+noroot");
    }
    command
}

fn proc_file(exporter: &Exporter, name: &str) -> String {
    fs::read_to_string(format!("/proc/{}/{name}", exporter.pid())).unwrap()
}

fn asked(exporter: &Exporter, path: &str) -> Answer {
    let answer = get_with(exporter.address, path, &[CREDENTIALS]);
    assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    answer
}

#[test]
fn it_does_all_its_work_behind_what_the_unit_closes() {
    let folder = open_folder();
    let (at, stub) = (|name: &str| folder.path().join(name), Stub::build(folder.path(), &[], GPU));
    fs::write(at("web.yml"), USERS).unwrap();
    fs::write(at("token"), "s3cret\n").unwrap();
    fs::create_dir(at("tier")).unwrap();
    fs::write(at("tier/chunk"), [7; 4096]).unwrap();
    // Large enough to be worked on by another thread.
    let page = format!("x_total{{k=\"{}\"}} 5\n", "y".repeat(300 << 10));
    let upstream = Upstream::start(move |_| vec![ok(&page)]);
    let extra = Upstream::start(|_| vec![ok("lmcache:num_requests_total 1\n")]);
    let named = format!("http://localhost:{}/metrics", upstream.address.port());
    let mut program = closed();
    program.arg(confine(folder.path())).arg(at("kvtier-exporter")).stdin(Stdio::null());
    program.args(command(&["--upstream", &named, "--web.listen-address=127.0.0.1:0"]).get_args());
    program.args(["--collector.shm", "--collector.memory", "--collector.gpu", "--collector.disk"]);
    program.arg(format!("--upstream.extra=cache={}", extra.url())).arg("--events=tcp://127.0.0.1:9");
    for (flag, file) in [("--web.config.file", "web.yml"), ("--upstream.bearer-token-file", "token")] {
        program.arg(flag).arg(at(file));
    }
    program.arg("--path.disk-tier").arg(at("tier")).arg("--nvml.library").arg(stub.library());
    let mut exporter = Exporter::spawn(&mut program);

    let status = proc_file(&exporter, "status");
    let has = |field: &str, value: &str| status.lines().any(|line| line.split_whitespace().eq([field, value]));
    assert!(has("CapEff:", "0000000000000000") && has("CapBnd:", "0000000000000000"), "{status}");
    assert!(has("NoNewPrivs:", "1") && has("Seccomp:", "2"), "{status}");
    let root = proc_file(&exporter, "mountinfo").lines().any(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        fields[4] == "/" && fields[5].split(',').any(|option| option == "ro")
    });
    assert!(root, "the root can be written");
    if rustix::process::geteuid().is_root() {
        assert!(status.lines().any(|line| line == format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}")), "{status}");
    }

    for collector in ["shm", "memory", "disk", "gpu"] {
        let works = format!("kvtier_collector_success{{collector=\"{collector}\"}} 1");
        until(&works, || asked(&exporter, "/metrics").has(&works));
    }
    let answer = asked(&exporter, "/metrics");
    assert!(
        answer.has("kvtier_upstream_up{upstream=\"main\"} 1") && answer.has("kvtier_upstream_up{upstream=\"cache\"} 1")
    );
    assert!(answer.has(&format!("kvtier_disk_tier_files{{path=\"{}\"}} 1", at("tier").display())), "{}", answer.body);
    for path in ["/", "/debug", "/api/status"] {
        asked(&exporter, path);
    }
    assert_eq!(get(exporter.address, "/metrics").status, 401);
    // The web configuration is read again.
    fs::write(at("web.yml"), format!("{USERS}# changed\n")).unwrap();
    asked(&exporter, "/-/healthy");
    exporter.terminate();
    assert!(exporter.wait().0.success());
}

#[test]
fn the_filter_ends_who_does_anything_else() {
    use std::os::unix::process::ExitStatusExt;
    let folder = open_folder();
    let confine = confine(folder.path());
    let run = |words: &[&str]| Command::new(&confine).arg("/usr/bin/env").args(words).status().unwrap();
    assert!(run(&["true"]).success());
    // chroot(2) is no call of a service; 31 is SIGSYS.
    assert_eq!(run(&["chroot", "/", "true"]).signal(), Some(31));
}
