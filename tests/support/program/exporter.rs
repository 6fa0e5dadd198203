//! The program under test, as a process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::client::{self, Answer};
use super::until;

/// A running exporter; killed when dropped.
pub struct Exporter {
    pub address: SocketAddr,
    started: Instant,
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
}

/// The program with these flags, in an environment that has none of its variables. It looks at no real host,
/// unless a flag turns a collector on again.
pub fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier-exporter"));
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KVTIER_")) {
        command.env_remove(name);
    }
    for collector in ["shm", "memory", "gpu", "disk"] {
        command.arg(format!("--no-collector.{collector}"));
    }
    command.args(flags).stdin(Stdio::null());
    command
}

/// What runs a command in a mount namespace of its own: as root, or in a user namespace where there are such.
pub fn unshared() -> Command {
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let works =
        |way: &&&[&str]| Command::new("unshare").args(**way).arg("true").status().is_ok_and(|done| done.success());
    let way = ways.iter().find(works).expect("tests that mount need util-linux, and root or user namespaces");
    let mut unshared = Command::new("unshare");
    unshared.args(*way);
    unshared
}

/// Runs the program to its end.
pub fn run(flags: &[&str]) -> Output {
    command(flags).output().unwrap()
}

impl Exporter {
    /// Starts it in front of `upstream`, on a port of its own choice.
    pub fn start(upstream: &str, flags: &[&str]) -> Exporter {
        let mut all = vec!["--upstream", upstream, "--web.listen-address", "127.0.0.1:0"];
        all.extend(flags);
        Exporter::spawn(&mut command(&all))
    }

    /// Starts a prepared command and waits until it listens.
    pub fn spawn(command: &mut Command) -> Exporter {
        Exporter::spawn_with(command, Stdio::null())
    }

    /// The same, with a place for its standard output.
    pub fn spawn_with(command: &mut Command, stdout: impl Into<Stdio>) -> Exporter {
        let mut child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::<Mutex<Vec<String>>>::default();
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let mut address = None;
        until("the exporter listens", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the exporter ended with {status}: {:?}", log.lock().unwrap());
            }
            address = log.lock().unwrap().iter().find_map(|line| listening(line));
            address.is_some()
        });
        Exporter { address: address.unwrap(), started: Instant::now(), child, log }
    }

    pub fn get(&self, path: &str) -> Answer {
        client::get(self.address, path)
    }

    pub fn metrics(&self) -> Answer {
        self.get("/metrics")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Time since it began to listen.
    pub fn age(&self) -> Duration {
        self.started.elapsed()
    }

    /// Resident memory in bytes.
    pub fn resident(&self) -> u64 {
        self.kilobytes("VmRSS:") << 10
    }

    /// The most memory that was ever resident, in bytes.
    pub fn peak(&self) -> u64 {
        self.kilobytes("VmHWM:") << 10
    }

    fn kilobytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
        value.trim().trim_end_matches(" kB").parse().unwrap()
    }

    /// Open descriptors.
    pub fn descriptors(&self) -> usize {
        self.entries("fd")
    }

    /// Threads.
    pub fn threads(&self) -> usize {
        self.entries("task")
    }

    fn entries(&self, folder: &str) -> usize {
        std::fs::read_dir(format!("/proc/{}/{folder}", self.pid())).unwrap().count()
    }

    /// All log lines so far.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> (ExitStatus, Instant) {
        until("the exporter ends", || self.child.try_wait().unwrap().is_some());
        (self.child.wait().unwrap(), Instant::now())
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the line that tells of it, in either notation.
fn listening(line: &str) -> Option<SocketAddr> {
    let in_json = || line.split_once("\"address\":\"")?.1.split('"').next();
    field(line, "address").or_else(in_json)?.parse().ok()
}

/// Value of a field in a logfmt line, as long as it needs no quotes.
pub fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.split(' ').find_map(|part| part.strip_prefix(name)?.strip_prefix('='))
}
