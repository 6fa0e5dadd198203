//! Files that hang, never come, or are far too large: credentials, client certificates, authorities, the web configuration.
//! Whatever is wrong with them, we answer who asks and end when we are told to.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::PAGE;
use crate::support::client::get_aside;
use crate::support::exporter::{Exporter, command, run};
use crate::support::until;
use crate::support::upstream::{Step, Upstream, ok};
use crate::trust::{self, Authority};

/// A file that hangs whoever opens it, as one on a dead mount does: this process holds a lease on it, which the kernel
/// breaks only after 45 s (`/proc/sys/fs/lease-break-time`).
pub struct Held(Child);

impl Held {
    pub fn take(path: &Path) -> Held {
        const LEASE: &str = "import fcntl, os, signal, sys, time\n\
            signal.signal(signal.SIGIO, signal.SIG_IGN)\n\
            file = os.open(sys.argv[1], os.O_RDWR)\n\
            while True:\n    \
                try: fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK); break\n    \
                except BlockingIOError: time.sleep(0.01)\n\
            print('held', flush=True)\n\
            time.sleep(60)\n";
        let mut python = Command::new("python3");
        let mut child = python.args(["-c", LEASE]).arg(path).stdout(Stdio::piped()).spawn().expect("python3");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n", "no lease on a file here");
        Held(child)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// What becomes of a file while we run.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// A pipe that nobody writes to.
    Pipe,
    /// A gigabyte.
    Large,
    /// Its file system hangs.
    Hangs,
}

const FATES: [Fate; 3] = [Fate::Pipe, Fate::Large, Fate::Hangs];

impl Fate {
    /// It happens to this file. What comes back keeps it so.
    fn befalls(self, path: &Path) -> Option<Held> {
        match self {
            Fate::Pipe => {
                let _ = fs::remove_file(path);
                assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
                None
            }
            Fate::Large => {
                fs::File::create(path).unwrap().set_len(1 << 30).unwrap();
                None
            }
            Fate::Hangs => {
                fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
                Some(Held::take(path))
            }
        }
    }
}

/// Everybody is answered while a scrape waits, no threads gather, and SIGTERM is obeyed while another scrape waits.
fn stays_well(mut exporter: Exporter, up: bool, fate: Fate) {
    let before = exporter.peak();
    for _ in 0..4 {
        let scrape = get_aside(exporter.address, "/metrics", &[]);
        let began = Instant::now();
        assert_eq!(exporter.get("/-/healthy").status, 200);
        assert!(began.elapsed() < Duration::from_secs(1), "{fate:?}: healthy after {:?}", began.elapsed());
        let answer = scrape.join().unwrap();
        assert!(began.elapsed() < Duration::from_secs(3), "{fate:?}: a scrape took {:?}", began.elapsed());
        assert!(answer.has(&format!("kvtier_upstream_up{{upstream=\"main\"}} {}", u8::from(up))), "{}", answer.body);
        let blamed = answer.has("kvtier_upstream_error_info{upstream=\"main\",reason=\"auth\"} 1");
        assert_eq!(blamed, !up, "{fate:?}: {}", answer.body);
    }
    let grown = exporter.peak().saturating_sub(before);
    assert!(grown < 16 << 20, "{fate:?}: {grown} bytes");
    assert!(exporter.threads() < 12, "{fate:?}: {} threads", exporter.threads());
    let _waits = get_aside(exporter.address, "/metrics", &[]);
    ends(&mut exporter, &format!("{fate:?}"));
}

pub fn ends(exporter: &mut Exporter, state: &str) {
    let began = Instant::now();
    exporter.terminate();
    let (status, ended) = exporter.wait();
    assert!(status.success() && ended - began < Duration::from_secs(3), "{state}: {status} after {:?}", ended - began);
}

#[test]
fn a_token_that_cannot_be_read_costs_its_scrape_alone() {
    for fate in FATES {
        let folder = tempfile::tempdir().unwrap();
        let token = folder.path().join("token");
        fs::write(&token, "s3cret").unwrap();
        let upstream = Upstream::start(|_| vec![ok(PAGE)]);
        let exporter = Exporter::start(&upstream.url(), &["--upstream.bearer-token-file", token.to_str().unwrap()]);
        assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
        let _held = fate.befalls(&token);
        exporter.metrics();
        let debug = exporter.get("/debug").body;
        let why = match fate {
            Fate::Pipe => "is no regular file",
            Fate::Large => "is larger than 64 KiB",
            Fate::Hangs => "could not be read within 2s: its file system hangs",
        };
        let told = format!("was not asked, since the token file {} ", token.display());
        assert!(debug.contains(&told) && debug.contains(why), "{debug}");
        assert_eq!(upstream.requests().len(), 1, "nothing is asked without it");
        stays_well(exporter, false, fate);
    }
}

#[test]
fn a_token_that_can_be_read_again_opens_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let login = folder.path().join("login");
    fs::write(&login, "prom:s3cret").unwrap();
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.basic-auth-file", login.to_str().unwrap()]);
    let held = Held::take(&login);
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"auth\"} 1"));
    drop(held);
    assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
}

/// A server that asks for a certificate at each request, and the files of one.
fn mutual() -> (Upstream, Vec<String>, [PathBuf; 2], (Authority, TempDir)) {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.write_client(folder.path());
    let server = authority.server_for("127.0.0.1", Some(&authority));
    let upstream = Upstream::start_tls(server, |_| vec![ok(PAGE), Step::Close]);
    let flags = trust::flags(&authority, folder.path());
    let files = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    (upstream, flags, files, (authority, folder))
}

#[test]
fn a_client_certificate_that_cannot_be_read_stays_the_one_read_before() {
    for (fate, which) in [(Fate::Pipe, 0), (Fate::Large, 1), (Fate::Large, 0), (Fate::Hangs, 1)] {
        let (upstream, flags, files, _guards) = mutual();
        let exporter = trust::start(&upstream, &flags);
        assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
        let _held = fate.befalls(&files[which]);
        assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"), "{fate:?}");
        until("the log tells of it", || {
            let told = |line: &String| {
                line.contains("the certificate read before stays in use")
                    && line.contains(files[which].to_str().unwrap())
            };
            exporter.log().iter().any(told)
        });
        stays_well(exporter, true, fate);
    }
}

#[test]
fn the_start_waits_for_no_file_for_long_and_names_it() {
    let (_upstream, flags, _, (_, folder)) = mutual();
    for fate in FATES {
        let bundle = folder.path().join(format!("{fate:?}.pem"));
        let _held = fate.befalls(&bundle);
        let flag = format!("--upstream.ca-file={}", bundle.display());
        let began = Instant::now();
        let output =
            run(&[&flag, "--upstream=https://127.0.0.1:9", "--web.listen-address=127.0.0.1:0", &flags[1], &flags[2]]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("--upstream.ca-file ") && said.contains(bundle.to_str().unwrap()), "{said}");
        // Five seconds, and what a loaded machine needs.
        assert!(began.elapsed() < Duration::from_secs(9), "{fate:?} took {:?}", began.elapsed());
    }
}

#[test]
fn a_signal_ends_a_start_that_waits_for_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for flag in ["--upstream.ca-file", "--web.config.file"] {
        let file = folder.path().join("file");
        let _held = Fate::Hangs.befalls(&file);
        let mut child = command(&[flag, file.to_str().unwrap(), "--upstream=https://127.0.0.1:9"])
            .args(["--web.listen-address=127.0.0.1:0"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It has begun to wait once it has a second thread that does so.
        let threads = format!("/proc/{}/task", child.id());
        until("it reads the file", || {
            fs::read_dir(&threads).is_ok_and(|threads| threads.flatten().any(|thread| waits_aside(&thread)))
        });
        let began = Instant::now();
        let pid = rustix::process::Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() && began.elapsed() < Duration::from_secs(3), "{flag}: {status}");
    }
}

fn waits_aside(thread: &fs::DirEntry) -> bool {
    fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name == "aside\n")
}

#[test]
fn a_web_configuration_that_cannot_be_read_stays_in_force_and_stops_nobody() {
    for fate in FATES {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("web.yml");
        fs::write(&config, "http_server_config:\n  headers:\n    X-Frame-Options: deny\n").unwrap();
        let upstream = Upstream::start(|_| vec![ok(PAGE)]);
        let exporter = Exporter::start(&upstream.url(), &["--web.config.file", config.to_str().unwrap()]);
        let _held = fate.befalls(&config);
        let hangup = rustix::process::Pid::from_raw(i32::try_from(exporter.pid()).unwrap()).unwrap();
        rustix::process::kill_process(hangup, rustix::process::Signal::HUP).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(exporter.metrics().header("x-frame-options"), Some("deny"));
        stays_well(exporter, true, fate);
    }
}
