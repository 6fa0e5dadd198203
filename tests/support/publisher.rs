//! A publisher of KV cache events on the real ZeroMQ library: `publisher.py`, as a process.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};

use super::program::until;
use super::stream::Message;

/// A running publisher; killed when dropped.
pub struct Publisher {
    pub port: u16,
    pub replay_port: u16,
    child: Child,
    stdin: ChildStdin,
    said: Arc<Mutex<Vec<String>>>,
    sent: usize,
}

/// Frames of a replayed batch: 2 up to vLLM 0.25, 3 after.
#[derive(Clone, Copy)]
pub enum Replay {
    Old = 2,
    New = 3,
}

/// A Python that has the library. A test that cannot run fails.
fn python() -> String {
    let candidates = ["python3", "/usr/bin/python3"];
    let has_zmq = |python: &&str| {
        Command::new(python)
            .args(["-c", "import zmq"])
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let found = candidates.iter().find(|python| has_zmq(python));
    (*found.expect("no Python has ZeroMQ: apt-get install python3-zmq, or run tests/run as root")).to_owned()
}

impl Publisher {
    /// One that binds a port: this one, or a free one if it is 0.
    pub fn bind(port: u16, replay: Replay) -> Publisher {
        Publisher::start("bind", port, replay, 0)
    }

    /// Another one where this one was, with nothing to replay: the engine has restarted.
    pub fn again(&mut self) -> Publisher {
        self.kill();
        Publisher::start("bind", self.port, Replay::New, self.replay_port)
    }

    /// One that connects to a port, as vLLM does where its endpoint names a host.
    pub fn connect(port: u16) -> Publisher {
        Publisher::start("connect", port, Replay::New, 0)
    }

    fn start(side: &str, port: u16, replay: Replay, replay_port: u16) -> Publisher {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/publisher.py");
        let (address, frames) = (format!("tcp://127.0.0.1:{port}"), (replay as u8).to_string());
        let arguments = [script, side, &address, &frames, &replay_port.to_string()];
        let mut child =
            Command::new(python()).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = Arc::<Mutex<Vec<String>>>::default();
        let (stdout, lines) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&said));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let stdin = child.stdin.take().unwrap();
        let mut publisher = Publisher { port: 0, replay_port: 0, child, stdin, said, sent: 0 };
        until("the publisher is there", || publisher.number("replay").is_some());
        publisher.port = publisher.number("pub").unwrap();
        publisher.replay_port = publisher.number("replay").unwrap();
        publisher
    }

    fn number(&self, word: &str) -> Option<u16> {
        self.said.lock().unwrap().iter().find_map(|line| line.strip_prefix(word)?.trim().parse().ok())
    }

    fn count(&self, word: &str) -> usize {
        self.said.lock().unwrap().iter().filter(|line| line.split(' ').next() == Some(word)).count()
    }

    pub fn address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    pub fn replay_address(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.replay_port)
    }

    /// Waits until somebody has subscribed so many times.
    pub fn subscribed(&self, times: usize) {
        until("the exporter has subscribed", || self.count("subscribed") >= times);
    }

    /// From which numbers a replay was asked.
    pub fn asked(&self) -> Vec<u64> {
        let said = self.said.lock().unwrap();
        said.iter().filter_map(|line| line.strip_prefix("asked ")?.parse().ok()).collect()
    }

    /// Publishes and keeps for replay.
    pub fn publish<'m>(&mut self, messages: impl IntoIterator<Item = &'m Message>) {
        self.command("batch", messages);
    }

    /// Keeps for replay only.
    pub fn hide<'m>(&mut self, messages: impl IntoIterator<Item = &'m Message>) {
        self.command("hide", messages);
    }

    /// Publishes only.
    pub fn publish_once<'m>(&mut self, messages: impl IntoIterator<Item = &'m Message>) {
        self.command("skip", messages);
    }

    /// Publishes frames as they are.
    pub fn raw(&mut self, frames: &[&[u8]]) {
        let words: Vec<String> = frames.iter().map(|frame| hex(frame)).collect();
        self.tell(&format!("raw {}", words.join(" ")));
        self.finish();
    }

    /// Leaves a batch out of the next replay.
    pub fn lose(&mut self, seq: u64) {
        self.tell(&format!("lose {seq}"));
        self.finish();
    }

    fn command<'m>(&mut self, command: &str, messages: impl IntoIterator<Item = &'m Message>) {
        for message in messages {
            self.tell(&format!("{command} {} {}", message.seq(), hex(message.payload())));
        }
        self.finish();
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
        self.sent += 1;
    }

    fn finish(&self) {
        until("the publisher has done it", || self.count("done") == self.sent);
    }

    /// Ends it as a crash would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
