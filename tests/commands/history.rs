//! A real Prometheus with a made-up history.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A Prometheus that scrapes nothing and knows what it was given.
pub struct History {
    /// Where it listens.
    pub url: String,
    child: Child,
    _data: TempDir,
}

impl History {
    /// Loads an OpenMetrics text and serves it. Retried, since another program may take the free port in between.
    pub fn of(openmetrics: &str) -> History {
        let data = tempfile::tempdir().unwrap();
        let (text, blocks) = (data.path().join("history.txt"), data.path().join("blocks"));
        std::fs::write(&text, openmetrics).unwrap();
        load(&text, &blocks);
        std::fs::write(data.path().join("prometheus.yml"), "{}").unwrap();
        for _ in 0..3 {
            let api = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let mut child = start(data.path(), api);
            if answers(&mut child, api) {
                return History { url: format!("http://{api}"), child, _data: data };
            }
            child.kill().ok();
            child.wait().ok();
        }
        panic!("Prometheus was started three times and never answered");
    }
}

impl Drop for History {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn load(text: &Path, blocks: &Path) {
    let made = Command::new("promtool")
        .args(["tsdb", "create-blocks-from", "openmetrics"])
        .args([text, blocks])
        .output()
        .expect("promtool must be installed: tests/run does that when it runs as root");
    assert!(made.status.success(), "promtool: {}", String::from_utf8_lossy(&made.stderr));
}

fn start(data: &Path, api: SocketAddr) -> Child {
    Command::new("prometheus")
        .arg(format!("--config.file={}", data.join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", data.join("blocks").display()))
        .arg("--storage.tsdb.retention.time=100y")
        .arg(format!("--web.listen-address={api}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("prometheus must be installed: tests/run does that when it runs as root")
}

fn answers(child: &mut Child, api: SocketAddr) -> bool {
    use std::io::{Read, Write};
    let deadline = Instant::now() + Duration::from_secs(60);
    while Instant::now() < deadline && child.try_wait().unwrap().is_none() {
        let ready = TcpStream::connect(api).and_then(|mut stream| {
            write!(stream, "GET /-/ready HTTP/1.0\r\nHost: {api}\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer.starts_with("HTTP/1.0 200"))
        });
        if ready.unwrap_or(false) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    false
}
