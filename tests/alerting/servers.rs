//! A Prometheus and an Alertmanager with the shipped files, which say other addresses and nothing else.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Both servers; ended when dropped.
pub struct Servers(Vec<Child>);

impl Servers {
    pub fn start(folder: &Path, exporters: &[SocketAddr], receiver: SocketAddr) -> Servers {
        let alertmanager = free_address();
        let routes = shipped("deploy/alertmanager/alertmanager.yml");
        let routes = replaced(&routes, "http://127.0.0.1:5001/", &format!("http://{receiver}/"));
        let scrapes = shipped("deploy/prometheus/prometheus.yml");
        let scrapes = replaced(&scrapes, "alertmanager:9093", &alertmanager.to_string());
        write(folder, "deploy/alertmanager/alertmanager.yml", &routes);
        let config = write(folder, "deploy/prometheus/prometheus.yml", &scrapes);
        let targets: String = exporters.iter().map(|exporter| format!("- targets: [\"{exporter}\"]\n")).collect();
        write(folder, "deploy/prometheus/targets/exporters.yml", &targets);
        for rules in ["alerts/kvtier.rules.yml", "alerts/kvtier.alerts.yml"] {
            write(folder, rules, &shipped(rules));
        }
        let prometheus = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", folder.join("tsdb").display()))
            .arg(format!("--web.listen-address={}", free_address()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus must be installed: tests/run does that when it runs as root");
        let alertmanager = Command::new(alertmanager_program())
            .arg(format!("--config.file={}", folder.join("deploy/alertmanager/alertmanager.yml").display()))
            .arg(format!("--storage.path={}", folder.join("alertmanager").display()))
            .arg(format!("--web.listen-address={alertmanager}"))
            .arg("--cluster.listen-address=")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("alertmanager must be installed: tests/run does that when it runs as root");
        Servers(vec![prometheus, alertmanager])
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for server in &mut self.0 {
            server.kill().ok();
            server.wait().ok();
        }
    }
}

/// Debian gives it a longer name.
fn alertmanager_program() -> &'static str {
    let debian = "prometheus-alertmanager";
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|path| path.join(debian).exists()) { debian } else { "alertmanager" }
}

fn shipped(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

fn replaced(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "the shipped file has another address than {from}");
    text.replace(from, to)
}

fn write(folder: &Path, path: &str, text: &str) -> PathBuf {
    let path = folder.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
