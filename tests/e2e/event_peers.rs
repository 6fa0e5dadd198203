//! Peers of `--events` that send what no engine does: whatever it is, memory stays within `--events.max-bytes` and 32 MiB more, the
//! exporter answers, nothing is left behind, and a signal ends it.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::PAGE;
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

/// `--events.max-bytes`, of which a quarter is for what is on its way.
const BUDGET: u64 = 16 << 20;
const HEADROOM: u64 = 32 << 20;
/// Bytes after which a peer that nobody stops has shown what it wanted to.
const PLENTY: u64 = 300 << 20;

/// Greeting and handshake of a socket of this type, by hand from RFC 23.
fn hello(kind: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    let body = [&b"\x05READY\x0bSocket-Type\0\0\0"[..], &[kind.len() as u8], kind].concat();
    bytes.extend([&[4, body.len() as u8][..], &body].concat());
    bytes
}

/// The head of a long frame: its flags, and a length that is announced.
fn head(flags: u8, length: u64) -> Vec<u8> {
    [&[flags | 2][..], &length.to_be_bytes()].concat()
}

/// A batch's message: topic, number, payload.
fn message(seq: u64, payload: &[u8]) -> Vec<u8> {
    [&[1, 0, 1, 8][..], &seq.to_be_bytes(), &head(0, payload.len() as u64), payload].concat()
}

/// `[1.5, [[tag, [1, 1, …], medium]], 0]`: so many hashes of one byte each, as arrays up to vLLM 0.23.
fn one_byte_hashes(count: u32) -> Vec<u8> {
    let mut payload = b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x93\xacBlockRemoved\xdd".to_vec();
    payload.extend(count.to_be_bytes());
    payload.resize(payload.len() + count as usize, 1);
    payload.extend(b"\xa3CPU\0");
    payload
}

/// `[1.5, [["BlockStored", hashes, nil, [], 16, nil, "GPU"]], 0]`: so many blocks that nobody has heard of before.
fn new_blocks(batch: u64, count: u32) -> Vec<u8> {
    let mut payload = b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x91\x97\xabBlockStored\xdd".to_vec();
    payload.extend(count.to_be_bytes());
    for block in 0..u64::from(count) {
        // Odd, so that no two products are the same.
        let hash = (batch << 32 | block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        payload.extend([&b"\xcf"[..], &hash.to_be_bytes()].concat());
    }
    payload.extend(b"\xc0\x90\x10\xc0\xa3GPU\0");
    payload
}

/// One connection to the exporter, from the peer's side.
struct Line {
    stream: TcpStream,
    peer: Arc<State>,
}

#[derive(Default)]
struct State {
    stopped: AtomicBool,
    connections: AtomicUsize,
    sent: AtomicU64,
}

impl Line {
    /// Sends all of it, unless the peer is stopped or the exporter hangs up.
    fn send(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.peer.stopped.load(Ordering::SeqCst) {
                return Err(ErrorKind::Interrupted.into());
            }
            match self.stream.write(bytes) {
                Ok(sent) => {
                    self.peer.sent.fetch_add(sent as u64, Ordering::SeqCst);
                    bytes = &bytes[sent..];
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_for_ever(&mut self, bytes: &[u8]) -> io::Result<()> {
        loop {
            self.send(bytes)?;
        }
    }

    /// Says nothing until the peer is stopped or the exporter hangs up.
    fn stay(&mut self) -> io::Result<()> {
        self.stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        while !self.peer.stopped.load(Ordering::SeqCst) {
            match io::Read::read(&mut self.stream, &mut [0; 512]) {
                Ok(0) => break,
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => break,
                _ => {}
            }
        }
        Ok(())
    }
}

type Script = Arc<dyn Fn(&mut Line) -> io::Result<()> + Send + Sync>;

/// A socket that greets as it should, and then does what it is told to.
struct Peer {
    state: Arc<State>,
    port: u16,
    accepting: Option<JoinHandle<()>>,
}

impl Peer {
    fn listen(port: u16, kind: &'static [u8], script: Script) -> Peer {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let (state, port) = (Arc::<State>::default(), listener.local_addr().unwrap().port());
        let peer = Arc::clone(&state);
        let accepting = thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if peer.stopped.load(Ordering::SeqCst) {
                    return;
                }
                peer.connections.fetch_add(1, Ordering::SeqCst);
                stream.set_write_timeout(Some(Duration::from_millis(20))).unwrap();
                let (mut line, script) = (Line { stream, peer: Arc::clone(&peer) }, Arc::clone(&script));
                // How it ends is the exporter's affair.
                thread::spawn(move || line.send(&hello(kind)).and_then(|()| script(&mut line)));
            }
        });
        Peer { state, port, accepting: Some(accepting) }
    }

    fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }

    fn sent(&self) -> u64 {
        self.state.sent.load(Ordering::SeqCst)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then lets go of the port.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        self.accepting.take().unwrap().join().unwrap();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn healthy_at_once(exporter: &Exporter) {
    let asked = Instant::now();
    assert_eq!(exporter.get("/-/healthy").status, 200);
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}

/// CPU time of the exporter so far, in seconds: both kinds stand behind the name, in hundredths.
fn cpu(exporter: &Exporter) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", exporter.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// An exporter as it is while nobody is at its endpoints.
struct Subject {
    _upstream: Upstream,
    exporter: Exporter,
    peak: u64,
    descriptors: usize,
    threads: usize,
}

impl Subject {
    fn start(flags: &[&str]) -> Subject {
        let upstream = Upstream::start(|_| vec![ok(PAGE)]);
        let exporter = Exporter::start(&upstream.url(), &[&["--events.max-bytes=16MiB"][..], flags].concat());
        exporter.metrics();
        exporter.get("/-/healthy");
        thread::sleep(Duration::from_millis(300));
        let (peak, descriptors, threads) = (exporter.peak(), exporter.descriptors(), exporter.threads());
        Subject { _upstream: upstream, exporter, peak, descriptors, threads }
    }

    fn is_within_bounds(&self, what: &str) {
        let (peak, most) = (self.exporter.peak(), self.peak + BUDGET + HEADROOM);
        println!("{what}: {} KiB idle, {} KiB at most", self.peak >> 10, peak >> 10);
        assert!(peak < most, "{what}: {peak} bytes, {} when idle", self.peak);
    }

    fn is_as_before(&self) {
        // A look at it needs a connection of its own, and those of before may linger.
        until("descriptors and threads are as before", || {
            self.exporter.descriptors() <= self.descriptors && self.exporter.threads() <= self.threads
        });
    }

    fn ends_by_a_signal(mut self) {
        let asked = Instant::now();
        self.exporter.terminate();
        let (status, ended) = self.exporter.wait();
        assert!(status.success(), "{status}");
        assert!(ended - asked < Duration::from_secs(3), "{:?}", ended - asked);
    }

    fn says(&self, words: &str) -> bool {
        self.exporter.log().iter().any(|line| line.contains(words))
    }
}

/// The exporter in front of a publisher that does this: `words` are told of it, and nothing else comes of it.
fn endures(what: &str, words: &str, script: impl Fn(&mut Line) -> io::Result<()> + Send + Sync + 'static) {
    let (port, script) = (free_port(), Arc::new(script) as Script);
    let subject = Subject::start(&[&format!("--events=tcp://127.0.0.1:{port}")]);
    let peer = Peer::listen(port, b"PUB", Arc::clone(&script));
    until("it is told, or has sent plenty", || {
        healthy_at_once(&subject.exporter);
        subject.says(words) || peer.sent() > PLENTY
    });
    subject.is_within_bounds(what);
    assert!(subject.says(words), "{what}: {:?}", subject.exporter.log());
    let before = cpu(&subject.exporter);
    thread::sleep(Duration::from_secs(1));
    let used = cpu(&subject.exporter) - before;
    assert!(used < 0.3, "{what}: {used} of a core");
    drop(peer);
    subject.is_as_before();
    let peer = Peer::listen(port, b"PUB", script);
    until("it has connected again", || peer.connections() > 0);
    healthy_at_once(&subject.exporter);
    subject.is_within_bounds(what);
    assert!(subject.exporter.log().len() < 30, "{:?}", subject.exporter.log());
    subject.ends_by_a_signal();
}

#[test]
fn commands_without_end_cost_the_connection() {
    endures("commands", "commands without end: more than 100 in 10 seconds", |line| {
        line.send_for_ever(&[&[4, 206][..], b"\x05HELLO", &[b'x'; 200]].concat().repeat(5000))
    });
}

#[test]
fn a_command_of_any_length_costs_the_connection() {
    endures("a command", "a command is larger than any that there is", |line| {
        line.send(&head(4, 1 << 40))?;
        line.send_for_ever(&[b'x'; 1 << 16])
    });
}

#[test]
fn a_frame_that_is_announced_as_huge_costs_the_connection() {
    endures("a huge frame", "is larger than the", |line| {
        line.send(&head(0, 1 << 62))?;
        line.send_for_ever(&[b'x'; 1 << 16])
    });
}

#[test]
fn a_message_of_huge_frames_costs_the_connection() {
    // Each of them is within the 4 MiB for a message, and the second is not any more.
    endures("huge frames", "is larger than the", |line| {
        line.send_for_ever(&[head(1, 3 << 20), vec![b'x'; 3 << 20]].concat())
    });
}

#[test]
fn frames_without_end_cost_the_connection() {
    endures("frames", "a message of more frames than any of its", |line| line.send_for_ever(&[1, 0].repeat(30_000)));
}

#[test]
fn messages_of_nothing_cost_the_connection() {
    endures("messages", "a message without a sequence number", |line| line.send_for_ever(&[0, 0].repeat(30_000)));
}

#[test]
fn a_batch_of_31_mb_of_one_byte_hashes_costs_the_connection() {
    endures("31 MB", "is larger than the", |line| line.send_for_ever(&message(0, &one_byte_hashes(31_000_000))));
}

#[test]
fn a_batch_that_says_more_than_is_held_for_one_costs_the_connection() {
    // Three MB on the wire are eight times as many once they are hashes of eight bytes.
    endures("3 MB", "is larger than what is held for one", |line| {
        line.send_for_ever(&message(0, &one_byte_hashes(3_000_000)))
    });
}

#[test]
fn a_message_that_is_announced_and_does_not_come_takes_nothing() {
    let port = free_port();
    let subject = Subject::start(&[&format!("--events=tcp://127.0.0.1:{port}")]);
    let script = |line: &mut Line| {
        line.send(&head(0, 3 << 20))?;
        loop {
            line.send(&[0])?;
            thread::sleep(Duration::from_millis(1));
        }
    };
    let peer = Peer::listen(port, b"PUB", Arc::new(script));
    until("a thousand bytes have come", || peer.sent() > 1000);
    healthy_at_once(&subject.exporter);
    // Not a third of what was announced.
    assert!(subject.exporter.peak() < subject.peak + (1 << 20), "{} then {}", subject.peak, subject.exporter.peak());
    subject.ends_by_a_signal();
}

/// The exporter in front of a publisher of so many batches, each made by its number; its page at the end.
pub(crate) fn follows(what: &str, batches: u64, payload: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static) -> String {
    let port = free_port();
    let subject = Subject::start(&[&format!("--events=tcp://127.0.0.1:{port}")]);
    let script = move |line: &mut Line| {
        (0..batches).try_for_each(|seq| line.send(&message(seq, &payload(seq))))?;
        line.stay()
    };
    let peer = Peer::listen(port, b"PUB", Arc::new(script));
    let last = format!("kvtier_events_last_seq{{endpoint=\"tcp://127.0.0.1:{port}\"}} {}", batches - 1);
    until("they are taken in", || {
        healthy_at_once(&subject.exporter);
        subject.exporter.metrics().has(&last)
    });
    subject.is_within_bounds(what);
    let page = subject.exporter.metrics().body;
    drop(peer);
    subject.is_as_before();
    subject.ends_by_a_signal();
    page
}

#[test]
fn a_stream_of_large_batches_is_followed_within_the_bound() {
    // 300,000 hashes take 2.4 MB, beside 0.3 MB on the wire.
    follows("many hashes", 10, |_| one_byte_hashes(300_000));
}

#[test]
fn a_stream_of_ever_new_blocks_is_followed_within_the_bound() {
    // 100,000 hashes take 0.9 MB on the wire, and more than the budget if all of them were followed.
    follows("new blocks", 10, |seq| new_blocks(seq, 100_000));
}

/// A publisher whose stream begins with number 10 and goes on.
fn from_ten(line: &mut Line) -> io::Result<()> {
    for seq in 10.. {
        line.send(&message(seq, b"\x93\xcb\x3f\xf8\0\0\0\0\0\0\x90\0"))?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The exporter with a replay that does this: `words` are told of it, and the stream is followed all the same.
fn endures_a_replay(
    what: &str,
    words: &str,
    script: impl Fn(&mut Line) -> io::Result<()> + Send + Sync + 'static,
) -> Vec<String> {
    let (port, replay) = (free_port(), free_port());
    let (events, replays) =
        (format!("--events=tcp://127.0.0.1:{port}"), format!("--events.replay=tcp://127.0.0.1:{replay}"));
    let subject = Subject::start(&[&events, &replays]);
    let answering = Peer::listen(replay, b"ROUTER", Arc::new(script));
    let publishing = Peer::listen(port, b"PUB", Arc::new(from_ten));
    let seq = |body: &str| {
        let line = body.lines().find(|line| line.starts_with("kvtier_events_last_seq"))?;
        line.rsplit(' ').next()?.parse::<u64>().ok()
    };
    until("the stream is followed", || {
        healthy_at_once(&subject.exporter);
        seq(&subject.exporter.metrics().body).is_some_and(|seq| seq > 20) && subject.says(words)
    });
    let debug = subject.exporter.get("/debug").body;
    assert!(debug.contains("replay    failed: "), "{debug}");
    subject.is_within_bounds(what);
    let log = subject.exporter.log();
    drop((answering, publishing));
    subject.is_as_before();
    subject.ends_by_a_signal();
    log
}

#[test]
fn a_replay_that_repeats_a_batch_for_ever_is_left_and_the_stream_followed() {
    endures_a_replay("a repeated batch", "a replay that goes back", |line| line.send_for_ever(&message(0, b"\xc1")));
}

#[test]
fn a_replay_of_messages_that_are_none_is_left() {
    endures_a_replay("a replay of frames", "a message of more frames than any of its", |line| {
        line.send_for_ever(&[1, 0].repeat(30_000))
    });
}

#[test]
fn a_replay_of_unreadable_batches_is_a_line_and_a_count() {
    let all: Vec<u8> = (0..20_000).flat_map(|seq| message(seq, b"\xc1")).collect();
    let log = endures_a_replay("unreadable batches", "a replayed batch is left out", move |line| {
        line.send(&all)?;
        line.send(&message(u64::MAX, b""))?;
        line.stay()
    });
    assert!(log.len() < 15, "{log:#?}");
    assert_eq!(log.iter().filter(|line| line.contains("a replayed batch is left out")).count(), 1);
}

#[test]
fn a_replay_without_an_end_does_not_keep_a_signal_waiting() {
    let (port, replay) = (free_port(), free_port());
    let (events, replays) =
        (format!("--events=tcp://127.0.0.1:{port}"), format!("--events.replay=tcp://127.0.0.1:{replay}"));
    let subject = Subject::start(&[&events, &replays]);
    let endless = |line: &mut Line| {
        let payload = one_byte_hashes(1000);
        (0..).try_for_each(|seq| line.send(&message(seq, &payload)))
    };
    let answering = Peer::listen(replay, b"ROUTER", Arc::new(endless));
    let _publishing = Peer::listen(port, b"PUB", Arc::new(from_ten));
    until("it is being read", || {
        healthy_at_once(&subject.exporter);
        subject.exporter.get("/debug").body.contains("replay    is being read")
    });
    until("much has come", || answering.sent() > 2 << 20);
    healthy_at_once(&subject.exporter);
    subject.is_within_bounds("an endless replay");
    subject.ends_by_a_signal();
}

#[test]
fn many_connections_to_a_port_are_bounded_and_leave_nothing_behind() {
    let port = free_port();
    let subject = Subject::start(&[&format!("--events.bind=tcp://127.0.0.1:{port}")]);
    let connect = || TcpStream::connect(("127.0.0.1", port));
    let crowd: Vec<TcpStream> = (0..500)
        .filter_map(|at| {
            let mut stream = connect().ok()?;
            // Some speak: nonsense, or half a greeting.
            let _ = stream.write_all([&b""[..], &[b'x'; 100], &hello(b"PUB")[..30]][at % 3]);
            Some(stream)
        })
        .collect();
    until("they are turned away", || {
        healthy_at_once(&subject.exporter);
        subject.says("a connection to the port was no publisher")
    });
    assert!(subject.exporter.descriptors() <= subject.descriptors + 20, "{}", subject.exporter.descriptors());
    subject.is_within_bounds("many connections");
    assert!(subject.exporter.log().len() < 15, "{:?}", subject.exporter.log());
    drop(crowd);
    subject.is_as_before();
    let _crowd: Vec<TcpStream> = (0..50).filter_map(|_| connect().ok()).collect();
    subject.ends_by_a_signal();
}
