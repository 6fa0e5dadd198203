//! A program under load: ours, a reference, or somebody else's.

use std::any::Any;
use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{Place, free_address};

const PATIENCE: Duration = Duration::from_secs(20);

/// A running program; killed when dropped.
pub struct Program {
    child: Child,
    pub place: Place,
    /// From the start of the process to the first connection that it took.
    pub listened_after: Duration,
    /// What it stands on, and what has to go after it.
    kept: Vec<Box<dyn Any>>,
}

impl Program {
    /// Starts it and waits until it listens at this address.
    pub fn start(command: &mut Command, place: Place) -> Program {
        let began = Instant::now();
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        while TcpStream::connect(place.address).is_err() {
            assert!(child.try_wait().unwrap().is_none(), "{command:?} ended");
            assert!(began.elapsed() < PATIENCE, "{command:?} does not listen");
            sleep(Duration::from_micros(200));
        }
        Program { child, place, listened_after: began.elapsed(), kept: Vec::new() }
    }

    /// The same, with something that it needs for as long as it runs.
    pub fn keeping(mut self, thing: impl Any) -> Program {
        self.kept.push(Box::new(thing));
        self
    }

    /// CPU seconds so far, in user and kernel mode.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = self.proc("stat");
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
        let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
        ticks / rustix::param::clock_ticks_per_second() as f64
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> f64 {
        self.kilobytes("VmRSS:") * 1024.0
    }

    /// The most memory that was ever resident, in bytes.
    pub fn peak(&self) -> f64 {
        self.kilobytes("VmHWM:") * 1024.0
    }

    fn kilobytes(&self, field: &str) -> f64 {
        let status = self.proc("status");
        let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        value.trim().trim_end_matches(" kB").parse().unwrap()
    }

    fn proc(&self, file: &str) -> String {
        fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).unwrap()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The exporter in front of an upstream.
pub fn exporter(upstream: &Place, flags: &[&str]) -> Program {
    let address = free_address();
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier-exporter"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KVTIER_")) {
        command.env_remove(name);
    }
    command.args(["--upstream", &upstream.url(), "--web.listen-address", &address.to_string()]).args(flags);
    Program::start(&mut command, Place::new(address, "/metrics"))
}

/// One of [`super::reference`]: this very program under another name.
pub fn reference(kind: &str, upstream: &Place) -> Program {
    let address = free_address();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["reference", kind, &address.to_string(), &upstream.address.to_string()]);
    Program::start(&mut command, Place::new(address, &upstream.path))
}

/// Serves a body from a file: nginx where there is one, else [`super::reference`].
pub fn upstream(body: &[u8]) -> Program {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("page"), body).unwrap();
    let page = dir.path().join("page").display().to_string();
    if is_there("nginx") {
        return nginx(dir, |dir| format!("location / {{ root {dir}; }}"), Place::new(free_address(), "/page"));
    }
    let address = free_address();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["reference", "static", &address.to_string(), &page]);
    Program::start(&mut command, Place::new(address, "/page")).keeping(dir)
}

/// nginx as a proxy that passes everything on, with further directives for its location.
pub fn nginx_proxy(upstream: &Place, directives: &str) -> Program {
    let to = upstream.address;
    let location = |_: &str| {
        format!(
            "location / {{ proxy_pass http://{to}; proxy_http_version 1.1; proxy_set_header Connection ''; {directives} }}"
        )
    };
    let place = Place::new(free_address(), &upstream.path);
    nginx(tempfile::tempdir().unwrap(), location, place)
}

/// One process of nginx, which keeps its connections. It needs no rights and no directory but its own.
fn nginx(dir: TempDir, location: impl Fn(&str) -> String, place: Place) -> Program {
    let path = dir.path().display().to_string();
    let temp =
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path {path}/{name};"));
    let config = format!(
        "daemon off; master_process off; worker_processes 1; pid {path}/pid; error_log stderr;
        events {{}}
        http {{
            access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;
            default_type 'text/plain; version=0.0.4; charset=utf-8'; {temp}
            server {{ listen {address}; {location} }}
        }}",
        temp = temp.concat(),
        address = place.address,
        location = location(&path),
    );
    fs::write(dir.path().join("nginx.conf"), config).unwrap();
    let conf = dir.path().join("nginx.conf");
    let mut command = Command::new("nginx");
    command.arg("-e").arg("stderr").arg("-p").arg(dir.path()).arg("-c").arg(conf);
    Program::start(&mut command, place).keeping(dir)
}

/// Debian's exporter-exporter, which parses a page before it lets it through.
pub fn exporter_exporter(upstream: &Place) -> Program {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.yml");
    let (port, path) = (upstream.address.port(), &upstream.path);
    let config = format!(
        "modules:\n  page:\n    method: http\n    http:\n      verify: true\n      address: 127.0.0.1\n      port: {port}\n      path: {path}\n"
    );
    fs::write(&file, config).unwrap();
    let address = free_address();
    let mut command = Command::new("prometheus-exporter-exporter");
    command.arg("-config.file").arg(&file).arg(format!("-web.listen-address={address}"));
    Program::start(&mut command, Place::new(address, "/proxy?module=page")).keeping(dir)
}

/// Whether a program is installed.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|dir| Path::new(&dir).join(program).exists())
}
