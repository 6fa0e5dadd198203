//! A real Prometheus in front of the program, with a name and a password.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Between two scrapes; each may take ten seconds.
const INTERVAL: u64 = 15;

pub struct Prometheus {
    child: Child,
    api: SocketAddr,
    _folder: TempDir,
}

impl Prometheus {
    pub fn scraping(target: SocketAddr, user: &str, password: &str) -> Prometheus {
        let folder = tempfile::tempdir().unwrap();
        let api = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = format!(
            "scrape_configs:\n- job_name: kvtier\n  scrape_interval: {INTERVAL}s\n  scrape_timeout: 10s\n  basic_auth: {{username: {user}, password: '{password}'}}\n  static_configs: [{{targets: ['{target}']}}]\n"
        );
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={api}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus must be installed: tests/run does that when it runs as root");
        Prometheus { child, api, _folder: folder }
    }

    /// Whether it was up, at each scrape until it was or until there were so many.
    pub fn until_up(&self, most: usize) -> Vec<bool> {
        let end = Instant::now() + Duration::from_secs(INTERVAL * 5 + 30);
        loop {
            let ups = self.ups().unwrap_or_default();
            if ups.last() == Some(&true) || ups.len() >= most {
                return ups;
            }
            assert!(Instant::now() < end, "Prometheus should scrape: {ups:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn ups(&self) -> Option<Vec<bool>> {
        let mut stream = TcpStream::connect(self.api).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
        write!(stream, "GET /api/v1/query?query=up%5B10m%5D HTTP/1.0\r\nHost: x\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        let values = answer["data"]["result"][0]["values"].as_array()?;
        Some(values.iter().map(|pair| pair[1] == "1").collect())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
