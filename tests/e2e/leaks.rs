//! Good and faulty scrapes in turn, for each kind of fault: the answers are right to the end, and descriptors,
//! threads and memory return to where they were.
//!
//! `KVTIER_TEST_SCRAPES` sets the number of scrapes of each kind. The default is short enough for every run of the
//! tests, and shorter for kinds that wait for a time limit; 10000 is the number that the README's figures are for.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::failures::gzip;
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Reply, Step, Upstream, ok, raw, response};

const DEFAULT: u64 = 150;
const DEFAULT_OF_SLOW: u64 = 20;
/// For kinds that wait for it. Short, and long enough for the good scrapes in between on a loaded machine.
const LIMIT: &str = "--upstream.timeout=200ms";

/// What memory may differ by in the end. A page of these tests has a hundred bytes and a response head up to 1 MiB;
/// glibc keeps freed memory in its arena up to twice the largest piece that it ever mapped (256 KiB to 1 MiB here),
/// and pages of the program itself become resident when a path is taken for the first time (about 1 MiB).
const ALLOWANCE: u64 = 4 << 20;
/// What it may grow by in the second half, where everything was seen before: with 10,000 scrapes a leak of 420 bytes
/// for each fault is more.
const GROWTH: u64 = 1 << 20;

fn scrapes(default: u64) -> u64 {
    let set = std::env::var("KVTIER_TEST_SCRAPES").ok();
    set.map_or(default, |number| number.parse().expect("a number in KVTIER_TEST_SCRAPES"))
}

/// An upstream that is good or faulty as the test wishes.
struct Fickle {
    upstream: Upstream,
    faulty: Arc<AtomicBool>,
    scrape: Arc<AtomicU64>,
}

impl Fickle {
    fn start(fault: impl Fn() -> Reply + Send + Sync + 'static) -> Fickle {
        let (faulty, scrape) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (is_faulty, number) = (Arc::clone(&faulty), Arc::clone(&scrape));
        let upstream = Upstream::start(move |_| {
            if is_faulty.load(Ordering::SeqCst) {
                return fault();
            }
            vec![ok(format!("good_total {}\n", number.load(Ordering::SeqCst)))]
        });
        Fickle { upstream, faulty, scrape }
    }

    /// A scrape of a page that no scrape before has had. Where the limit is short, a loaded machine may miss it: then
    /// the answer says so, and another one is right.
    fn good(&self, exporter: &Exporter) {
        self.faulty.store(false, Ordering::SeqCst);
        let number = self.scrape.fetch_add(1, Ordering::SeqCst) + 1;
        until("the upstream is in time", || {
            let body = exporter.metrics().body;
            let late = body.starts_with("# HELP kvtier_") && body.contains("reason=\"timeout\"} 1\n");
            assert!(late || body.starts_with(&format!("good_total {number}\n")), "{body}");
            !late
        });
    }

    fn faulty(&self, exporter: &Exporter, reason: &str) {
        self.faulty.store(true, Ordering::SeqCst);
        let answer = exporter.metrics();
        let info = format!("kvtier_upstream_error_info{{upstream=\"main\",reason=\"{reason}\"}} 1");
        assert!(answer.has(&info), "{reason}: {}", answer.body);
        assert!(answer.body.starts_with("# HELP kvtier_"), "{}", answer.body);
    }
}

/// Alternates good scrapes and ones with this fault.
fn alternate(reason: &str, fault: impl Fn() -> Reply + Send + Sync + 'static) {
    alternate_with(&["--upstream.timeout=10s"], reason, fault);
}

fn alternate_with(flags: &[&str], reason: &str, fault: impl Fn() -> Reply + Send + Sync + 'static) {
    let fickle = Fickle::start(fault);
    let exporter = Exporter::start(&fickle.upstream.url(), flags);
    for _ in 0..20 {
        fickle.good(&exporter);
    }
    let before = Held::of(&exporter);
    let default = if flags == [LIMIT] { DEFAULT_OF_SLOW } else { DEFAULT };
    let pairs = scrapes(default).div_ceil(2);
    let mut half = 0;
    for pair in 0..pairs {
        fickle.faulty(&exporter, reason);
        fickle.good(&exporter);
        if pair == pairs / 2 {
            half = exporter.resident();
        }
    }
    before.assert_is_back(&exporter);
    let end = exporter.resident();
    assert!(end < half + GROWTH, "{half} grew to {end}");
    // The upstream comes and goes with every scrape; two lines a minute are enough for that.
    let minutes = usize::try_from(exporter.age().as_secs() / 60).unwrap();
    assert!(exporter.log().len() <= 12 + 2 * minutes, "{:?}", exporter.log());
    println!("{reason}: {} scrapes, memory {} then {half} then {end} bytes", 2 * pairs, before.memory);
}

/// What a process holds.
struct Held {
    descriptors: usize,
    threads: usize,
    memory: u64,
}

impl Held {
    fn of(exporter: &Exporter) -> Held {
        Held { descriptors: exporter.descriptors(), threads: exporter.threads(), memory: exporter.resident() }
    }

    fn assert_is_back(&self, exporter: &Exporter) {
        until("descriptors and threads are back", || {
            exporter.descriptors() <= self.descriptors && exporter.threads() <= self.threads
        });
        let now = exporter.resident();
        assert!(now < self.memory + ALLOWANCE, "memory was {} and is {now}", self.memory);
    }
}

#[test]
fn closed_without_an_answer() {
    alternate("reset", || vec![Step::Close]);
}

#[test]
fn closed_within_the_head() {
    alternate("reset", || vec![raw("HTTP/1.1 200 OK\r\nContent-Le"), Step::Close]);
}

#[test]
fn a_head_of_a_mebibyte() {
    alternate("too_large", || vec![raw(format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(1 << 20))), Step::Close]);
}

#[test]
fn cut_within_the_announced_length() {
    alternate("truncated", || vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nx_total 1\n"), Step::Close]);
}

#[test]
fn cut_within_a_chunk() {
    alternate("truncated", || {
        vec![raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nx_total 1\n"), Step::Close]
    });
}

#[test]
fn chunks_without_an_end() {
    let chunk = format!("200\r\n{}\r\n", "x".repeat(0x200)).repeat(4);
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    alternate_with(&["--upstream.max-bytes=1KiB"], "too_large", move || {
        vec![raw(format!("{head}{chunk}")), Step::Hang]
    });
}

#[test]
fn no_answer() {
    alternate_with(&[LIMIT], "timeout", || vec![Step::Hang]);
}

#[test]
fn a_byte_every_100_ms() {
    let answer = || Step::Trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".into(), Duration::from_millis(100));
    alternate_with(&[LIMIT], "timeout", move || vec![answer()]);
}

#[test]
fn a_body_that_stops() {
    let begun = "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nx_total 1\n";
    alternate_with(&[LIMIT], "timeout", move || vec![raw(begun), Step::Hang]);
}

#[test]
fn a_wrong_checksum() {
    let mut packed = gzip(b"x_total 1\n");
    let checksum = packed.len() - 8;
    packed[checksum] ^= 1;
    alternate("encoding", move || vec![response("200 OK", &["Content-Encoding: gzip"], &packed)]);
}

#[test]
fn a_packed_bomb() {
    let bomb = gzip(&vec![b'x'; 4 << 20]);
    let flags = ["--upstream.max-bytes=64KiB"];
    alternate_with(&flags, "too_large", move || vec![response("200 OK", &["Content-Encoding: gzip"], &bomb)]);
}

#[test]
fn an_unknown_coding() {
    alternate("encoding", || vec![response("200 OK", &["Content-Encoding: br"], "x_total 1\n")]);
}

#[test]
fn statuses() {
    alternate("status", || vec![raw("HTTP/1.1 204 No Content\r\n\r\n")]);
    alternate("status", || vec![response("500 Oops", &[], format!("Traceback\n{}", "x".repeat(100_000)))]);
    alternate("status", || vec![response("503 Loading", &[], "x_total 1\n")]);
    alternate("auth", || vec![response("401 Unauthorized", &[], "who are you?")]);
}

#[test]
fn an_endless_error() {
    let endless = "HTTP/1.1 500 Oops\r\nContent-Length: 999999999\r\n\r\n";
    alternate_with(&["--upstream.timeout=10s"], "status", move || {
        vec![raw(format!("{endless}{}", "x".repeat(8192))), Step::Hang]
    });
}

#[test]
fn other_content() {
    alternate("content", || vec![response("200 OK", &["Content-Type: text/html"], "<html>x_total 1</html>")]);
    alternate("content", || vec![response("200 OK", &["Content-Type: application/json"], "{\"error\":1}")]);
    alternate("content", || vec![ok([0, 159, 146, 150])]);
    alternate("empty", || vec![ok("")]);
}

#[test]
fn redirects() {
    alternate("redirect", || vec![response("307 Temporary Redirect", &["Location: /metrics/"], "")]);
    alternate("redirect", || vec![response("302 Found", &["Location: http://127.0.0.2:9/metrics"], "")]);
}

#[test]
fn nobody_listens() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let exporter = Exporter::start(&format!("127.0.0.1:{port}"), &[]);
    for _ in 0..20 {
        exporter.metrics();
    }
    let before = Held::of(&exporter);
    for _ in 0..scrapes(DEFAULT) {
        assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"connect\"} 1"));
    }
    before.assert_is_back(&exporter);
    assert_eq!(exporter.log().iter().filter(|line| line.contains("msg=\"the upstream")).count(), 1);
}

#[test]
fn large_pages() {
    // One within the limit, which fits where freed memory might be kept, and one beyond it.
    let large = format!("x{{k=\"{}\"}} 1\n", "y".repeat(1014)).repeat(20 << 10);
    let larger = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let larger = format!("{larger}{:x}\r\n{}\r\n0\r\n\r\n", 40 << 20, "x 1\n".repeat(10 << 20));
    let upstream = Upstream::start(move |request| match request.number % 3 {
        0 => vec![ok(&large)],
        1 => vec![ok("x 1\n")],
        _ => vec![raw(&larger)],
    });
    let exporter = Exporter::start(&upstream.url(), &["--upstream.max-bytes=20MiB"]);
    exporter.metrics();
    let before = Held::of(&exporter);
    for _ in 0..scrapes(DEFAULT).div_ceil(50) {
        assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"too_large\"} 1"));
        assert!(exporter.metrics().has("kvtier_upstream_samples{upstream=\"main\"} 20480"));
        assert!(exporter.metrics().body.starts_with("x 1\n#"));
    }
    before.assert_is_back(&exporter);
    // A page is held once, and for one connection's buffers beside it.
    let peak = exporter.peak() - before.memory;
    assert!(peak < (20 << 20) + (6 << 20), "{peak}");
}

/// Pages that cost much memory and are worked on by another thread, good ones between them. Such a page costs up to twenty
/// times its size, and glibc keeps that for the next one, once for each of the two threads; after many it is no more.
#[test]
fn pages_made_to_cost_memory() {
    const PAGE: usize = 512 << 10;
    const KEPT: u64 = 40 * PAGE as u64;
    let hostile = b"a 1\n\xff\n".repeat(PAGE / 6);
    let upstream = Upstream::start(move |request| match request.number % 2 {
        0 => vec![ok(&hostile)],
        _ => vec![ok("x 1\n")],
    });
    let exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=1m"]);
    let pair = || {
        assert!(exporter.metrics().body.starts_with("x 1\n#"));
        assert!(exporter.metrics().has(&format!("kvtier_upstream_dropped_lines{{upstream=\"main\"}} {}", PAGE / 6)));
    };
    let before = Held::of(&exporter);
    let pairs = scrapes(3 * DEFAULT_OF_SLOW).div_ceil(4);
    (0..pairs).for_each(|_| pair());
    let half = exporter.resident();
    (0..pairs).for_each(|_| pair());
    let end = exporter.resident();
    println!("pages that cost memory: {} scrapes, memory {} then {half} then {end} bytes", 4 * pairs, before.memory);
    assert!(end < before.memory + KEPT, "{} grew to {end}", before.memory);
    until("descriptors and threads are back", || {
        // One for the connection to the upstream, which stays.
        exporter.descriptors() <= before.descriptors + 1 && exporter.threads() <= before.threads
    });
}
