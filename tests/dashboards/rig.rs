//! The program under test with everything that it can look at: the demo engine, a stub of the driver, a disk tier.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use kvtier_exporter::demo::simulation::Truth;
use kvtier_exporter::demo::{Demo, Options};
use kvtier_exporter::events::Endpoint;
use tempfile::TempDir;

use crate::nvml::Stub;
use crate::program::exporter::Exporter;

/// One GPU as on the reference box: 674 MiB free, and a PCIe link of generation 5 with 16 lanes.
const GPU: &str = "\
driver 580.95.05
count 1
gpu0.uuid GPU-aaaa
gpu0.name NVIDIA GeForce RTX 5090
gpu0.memory 34190917632 32505856000 706740224 978321408
gpu0.link 5 5 16 16
";

/// Free bytes of that GPU.
pub const GPU_FREE: f64 = 706_740_224.0;

/// A demo engine on a port of its own; it goes on until the test's process ends.
pub struct Engine {
    demo: Demo,
    address: SocketAddr,
    events: Vec<Endpoint>,
}

impl Engine {
    /// Starts one at so many simulated seconds a second.
    pub fn start(speed: f64) -> Engine {
        let demo = Demo::new(Options { speed, ..Options::default() });
        let events = demo.publish().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (served, address) = (demo.clone(), listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { served.serve(tokio::net::TcpListener::from_std(listener).unwrap()).await });
        });
        Engine { demo, address, events }
    }

    /// Address of its page.
    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    /// What was so when its last page was written.
    pub fn truth(&self) -> Vec<Truth> {
        self.demo.truth()
    }
}

/// An exporter on a box of its own: GPU, shared memory, host memory, a disk tier with one file.
pub struct Rig {
    /// The program.
    pub exporter: Exporter,
    _stub: Stub,
    _root: TempDir,
}

impl Rig {
    /// Starts one in front of a demo engine, whose events it follows. Whether a prediction may be shown is judged
    /// elsewhere: here it must only be there.
    pub fn following(engine: &Engine) -> Rig {
        let list = |of: fn(&Endpoint) -> String| engine.events.iter().map(of).collect::<Vec<_>>().join(",");
        let events = list(|endpoint| endpoint.link.to_string());
        let replay = list(|endpoint| endpoint.replay.as_ref().unwrap().to_string());
        Rig::with(&engine.url(), &["--events", &events, "--events.replay", &replay, "--events.max-error", "20"])
    }

    /// Starts one in front of an upstream.
    pub fn start(upstream: &str) -> Rig {
        Rig::with(upstream, &[])
    }

    fn with(upstream: &str, more: &[&str]) -> Rig {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| {
            let path = root.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let (shm, disk, driver) = (dir("shm"), dir("disk"), dir("driver"));
        fs::write(disk.join("chunk"), [7; 5000]).unwrap();
        let web = root.path().join("web.yml");
        fs::write(&web, "").unwrap();
        let stub = Stub::build(&driver, &[], GPU);
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let (shm, disk, library, web) = (text(&shm), text(&disk), text(stub.library()), text(&web));
        let flags = [
            "--collector.shm",
            "--path.shm",
            &shm,
            "--collector.memory",
            "--collector.disk",
            "--path.disk-tier",
            &disk,
            "--collector.gpu",
            "--nvml.library",
            &library,
            "--tier.size",
            "32GiB",
            // No engine has such a tier, which is a notice.
            "--tier.size",
            "nowhere=1GiB",
            "--web.config.file",
            &web,
            "--engine.ranks",
            "1",
        ];
        let flags = [&flags[..], more].concat();
        Rig { exporter: Exporter::start(upstream, &flags), _stub: stub, _root: root }
    }
}
