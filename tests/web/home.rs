//! A folder with a web configuration, the files it names, and the program in front of an upstream.

use std::fs;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::PAGE;
use crate::authority::{Authority, Identity};
use crate::support::exporter::Exporter;
use crate::support::upstream::{Upstream, ok};

/// The folder. It holds `ca.pem`, and `server.pem` with `server.key` of that authority.
pub struct Home {
    pub folder: TempDir,
    pub authority: Authority,
}

/// TLS and nothing else.
pub const TLS: &str = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";

impl Home {
    pub fn new() -> Home {
        let home = Home { folder: tempfile::tempdir().unwrap(), authority: Authority::new() };
        home.write("ca.pem", &home.authority.pem());
        home.install(&home.authority.identity("127.0.0.1"));
        home
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces a file as one step, as those who renew certificates do.
    pub fn write(&self, name: &str, text: &str) {
        let new = self.path(&format!("{name}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.path(name)).unwrap();
    }

    pub fn install(&self, identity: &Identity) {
        self.write("server.key", &identity.key);
        self.write("server.pem", &identity.cert);
    }

    /// The program with this configuration.
    pub fn start(&self, config: &str, flags: &[&str]) -> Running {
        self.in_front_of(Upstream::start(|_| vec![ok(PAGE)]), config, flags)
    }

    pub fn in_front_of(&self, upstream: Upstream, config: &str, flags: &[&str]) -> Running {
        self.write("web.yml", config);
        let file = self.path("web.yml");
        let mut all = vec!["--log.level=trace", "--web.config.file", file.to_str().unwrap()];
        all.extend(flags);
        Running { exporter: Exporter::start(&upstream.url(), &all), _upstream: upstream }
    }
}

/// The program and its upstream.
pub struct Running {
    pub exporter: Exporter,
    _upstream: Upstream,
}

impl Running {
    /// How many log lines hold this.
    pub fn logged(&self, text: &str) -> usize {
        self.exporter.log().iter().filter(|line| line.contains(text)).count()
    }
}

/// Sends SIGHUP.
pub fn hang_up(exporter: &Exporter) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(exporter.pid()).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
}

/// CPU time that a program has used, in seconds.
pub fn cpu_seconds(exporter: &Exporter) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", exporter.pid())).unwrap();
    // Behind the name in parentheses come the fields from the third on; the 14th and 15th are ticks.
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = fields[11..13].iter().map(|ticks| ticks.parse::<f64>().unwrap()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}
