//! A box to run commands on. It is fine as it is made; each test breaks one thing.
//!
//! The program runs in a mount namespace of its own, where tmpfs of any size can be had, under `unshare`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::nvml::Stub;
use crate::program::upstream::{Reply, Request, Upstream, ok};

pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;

/// An RTX 5090 with this much memory free, link and all.
pub fn gpu(free: u64) -> String {
    format!(
        "driver 580.95.05\ncount 1\ngpu0.uuid GPU-aaaa\ngpu0.name NVIDIA GeForce RTX 5090\n\
         gpu0.memory 34190917632 {} {free} 0\ngpu0.link 5 5 16 16\n",
        34_190_917_632 - free
    )
}

/// A captured page.
pub fn capture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name).join("page.prom");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The page of a full tier: 32 GiB, vLLM 0.33, three requests running.
pub fn full() -> String {
    capture("vllm-0.33.0-offload-cpu-full")
}

/// With one piece of text replaced, which must be there.
pub fn replaced(page: &str, from: &str, to: &str) -> String {
    assert!(page.contains(from), "{from} is not on the page");
    page.replace(from, to)
}

/// How to get a mount namespace here: in a user namespace, or, where those are switched off, as root.
static NAMESPACE: LazyLock<&[&str]> = LazyLock::new(|| {
    let ways: [&[&str]; 2] = [&["--user", "--map-root-user", "--mount"], &["--mount"]];
    let works =
        |way: &&&[&str]| Command::new("unshare").args(**way).arg("true").status().is_ok_and(|done| done.success());
    let found = ways.iter().find(works);
    found.copied().expect("these tests mount a tmpfs: they need util-linux, and user namespaces or root")
});

/// The box.
pub struct Bench {
    root: TempDir,
    driver: Stub,
    /// Mount points and their options.
    mounts: Vec<(PathBuf, String)>,
    /// Shell lines that run after the mounts.
    prepare: Vec<String>,
    upstream: Option<Upstream>,
    /// Runs the program as nobody.
    unprivileged: bool,
}

/// What the program said.
#[derive(Debug)]
pub struct Said {
    pub status: i32,
    pub out: String,
    pub err: String,
}

impl Bench {
    /// A box with 128 GiB of memory, a shared memory of 40 GiB, an empty disk of 400 GiB at `kv`, a GPU with 2 GiB free and no
    /// engine.
    pub fn new() -> Bench {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        for name in ["proc/self", "sys", "shm", "driver", "kv"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        let driver = Stub::build(&at("driver"), &[], &gpu(2 * GIB));
        // Of the machine's own file system nothing is known: it may be full.
        let mounts = vec![(at("shm"), "size=40g".to_owned()), (at("kv"), "size=400g".to_owned())];
        let bench = Bench { root, driver, mounts, prepare: Vec::new(), upstream: None, unprivileged: false };
        bench.memory(128 * GIB, 100 * GIB);
        // Where process 2 is seen, all processes are.
        bench.write("proc/2/comm", "kthreadd\n");
        bench.write("proc/2/maps", "");
        bench.write("proc/self/mountinfo", "27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n");
        bench
    }

    /// The same with an engine that serves this page.
    pub fn serving(page: impl Into<String>) -> Bench {
        let page = page.into();
        Bench::new().upstream(move |_| vec![ok(&page)])
    }

    /// The same with an upstream that does as scripted.
    pub fn upstream(mut self, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Bench {
        self.upstream = Some(Upstream::start(script));
        self
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub fn memory(&self, total: u64, available: u64) {
        let text = format!(
            "MemTotal: {} kB\nMemFree: {1} kB\nMemAvailable: {1} kB\nShmem: 0 kB\n",
            total >> 10,
            available >> 10
        );
        self.write("proc/meminfo", &text);
    }

    pub fn driver(self, script: &str) -> Bench {
        self.driver.script(script);
        self
    }

    /// Another size of the shared memory, as `size=` of a tmpfs.
    pub fn shm(mut self, size: &str) -> Bench {
        self.mounts[0].1 = format!("size={size}");
        self
    }

    /// A tmpfs with these options over a directory of the box.
    pub fn mount(mut self, name: &str, options: &str) -> Bench {
        let at = self.at(name);
        self.mounts.retain(|(known, _)| *known != at);
        self.mounts.push((at, options.to_owned()));
        self
    }

    pub fn prepare(mut self, line: String) -> Bench {
        self.prepare.push(line);
        self
    }

    pub fn unprivileged(mut self) -> Bench {
        self.unprivileged = true;
        self
    }

    pub fn url(&self) -> String {
        self.upstream.as_ref().map_or_else(|| "http://127.0.0.1:1/metrics".to_owned(), Upstream::url)
    }

    /// Runs a command with these words, on this box.
    pub fn run(&self, words: &[&str]) -> Said {
        self.run_at(&self.url(), words)
    }

    fn run_at(&self, url: &str, words: &[&str]) -> Said {
        let mounts =
            self.mounts.iter().map(|(at, options)| format!("mount -t tmpfs -o {options} tmpfs {}", at.display()));
        let lines: Vec<String> = mounts.chain(self.prepare.iter().cloned()).chain(["exec \"$@\"".to_owned()]).collect();
        let mut command = Command::new("unshare");
        command.args(*NAMESPACE).args(["sh", "-e", "-c", &lines.join("\n"), "sh"]);
        if self.unprivileged {
            // In a namespace without rights of its own there is nothing to mount, and root's power ends at its files.
            // The program goes with it: the checkout may lie where only its owner may look.
            let program = self.at("kvtier-exporter");
            if !program.exists() {
                fs::copy(env!("CARGO_BIN_EXE_kvtier-exporter"), &program).unwrap();
            }
            command = Command::new(program);
            command.current_dir(self.at(""));
            if rustix::process::geteuid().is_root() {
                command.uid(65534).gid(65534);
            }
        } else {
            command.arg(env!("CARGO_BIN_EXE_kvtier-exporter"));
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("KVTIER_")) {
            command.env_remove(name);
        }
        command.args(words).args(["--upstream", url]);
        for (flag, name) in [("--path.procfs", "proc"), ("--path.sysfs", "sys"), ("--path.shm", "shm")] {
            command.arg(flag).arg(self.at(name));
        }
        command.arg("--nvml.library").arg(self.driver.library());
        let output = command.stdin(Stdio::null()).output().expect("unshare and the program can be started");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let said = Said { status: output.status.code().unwrap(), out: text(&output.stdout), err: text(&output.stderr) };
        let unshared = !said.err.contains("unshare:") && !said.err.contains("mount:");
        assert!(unshared, "these tests need user namespaces and tmpfs in them: {}", said.err);
        said
    }

    /// Runs `check` of another upstream than the box's own.
    pub fn at_upstream(&self, url: &str, words: &[&str]) -> Said {
        self.run_at(url, &[&["check"], words].concat())
    }

    /// Runs `check` with these further words.
    pub fn check(&self, words: &[&str]) -> Said {
        self.run(&[&["check"], words].concat())
    }
}

impl Said {
    /// Asserts the exit status and that the output holds each of these pieces, wherever its lines break.
    pub fn says(&self, status: i32, pieces: &[&str]) -> &Said {
        let flat = self.flat();
        for piece in pieces {
            assert!(flat.contains(piece), "{piece:?} is not in\n{}\n{}", self.out, self.err);
        }
        assert_eq!(self.status, status, "{}\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }

    /// Asserts that the output holds none of these pieces.
    pub fn is_silent_about(&self, pieces: &[&str]) -> &Said {
        for piece in pieces {
            assert!(!self.flat().contains(piece), "{piece:?} is in\n{}", self.out);
        }
        self
    }

    /// The output with single blanks between words.
    pub fn flat(&self) -> String {
        self.out.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The output as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}\n{}", self.out, self.err))
    }
}

/// Keys and kinds of a JSON value, to be compared with what is documented: `{"a": "text", "b": ["number"]}`.
pub fn shape(value: &Value) -> Value {
    match value {
        Value::Null => "null".into(),
        Value::Bool(_) => "truth".into(),
        Value::Number(_) => "number".into(),
        Value::String(_) => "text".into(),
        Value::Array(items) => {
            let mut shapes: Vec<Value> = items.iter().map(shape).collect();
            shapes.dedup();
            shapes.into()
        }
        Value::Object(map) => Value::Object(map.iter().map(|(key, value)| (key.clone(), shape(value))).collect()),
    }
}
