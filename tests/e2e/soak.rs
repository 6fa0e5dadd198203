//! Eight scrapers at one second each, for minutes, in front of a demo engine that restarts again and again: no scrape
//! fails, and memory, descriptors and threads stay what they were.
//!
//! `KVTIER_TEST_SOAK_MINUTES` sets the length; 10 is what the README's figures are for. The engine restarts twenty times
//! in it, however long it is: every 30 s in 10 minutes.

use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvtier_exporter::demo::{Demo, Options};

use crate::strict;
use crate::support::client::{Answer, get, get_with};
use crate::support::exporter::Exporter;
use crate::support::until;

const DEFAULT_MINUTES: f64 = 1.0;
const RESTARTS: u32 = 20;
const SCRAPERS: usize = 8;
const PACE: Duration = Duration::from_secs(1);
/// What each scraper waits, in the header and by the clock. Longer than the pace, so that a loaded machine fails nothing.
const TIMEOUT: &str = "X-Prometheus-Scrape-Timeout-Seconds: 5";
const DEADLINE: Duration = Duration::from_secs(5);
const GROWTH: u64 = 1 << 20;

fn length() -> Duration {
    let set = std::env::var("KVTIER_TEST_SOAK_MINUTES").ok();
    let minutes = set.map_or(DEFAULT_MINUTES, |minutes| minutes.parse().expect("a number of minutes"));
    Duration::from_secs_f64(minutes * 60.0)
}

/// A demo engine at one address through all its lives.
struct Engine {
    address: SocketAddr,
    /// Odd while it is down, and another number in each life.
    life: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Engine {
    fn start(period: Duration) -> Engine {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (life, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (lives, end) = (Arc::clone(&life), Arc::clone(&over));
        let thread = thread::spawn(move || {
            let mut listener = listener;
            while !end.load(Ordering::SeqCst) {
                live(listener, period, &lives);
                // Nobody listens for a while, as while weights are loaded.
                thread::sleep(period.min(Duration::from_secs(6)) / 6);
                listener = TcpListener::bind(address).unwrap();
                lives.fetch_add(1, Ordering::SeqCst);
            }
        });
        Engine { address, life, over, thread: Some(thread) }
    }

    /// `Some` while it is up.
    fn life(&self) -> Option<u64> {
        Some(self.life.load(Ordering::SeqCst)).filter(|life| life % 2 == 0)
    }
}

/// One life, with counters that begin at 0. It ends with all its connections.
fn live(listener: TcpListener, period: Duration, lives: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        listener.set_nonblocking(true).unwrap();
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let mut serving = pin!(Demo::new(Options::default()).serve(listener));
        tokio::select! { () = serving.as_mut() => {}, () = tokio::time::sleep(period) => {} }
        // Before the connections go, so that a scrape which they take with them knows.
        lives.fetch_add(1, Ordering::SeqCst);
    });
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

#[derive(Default)]
struct Tally {
    scrapes: AtomicU64,
    without_engine: AtomicU64,
    slowest_ms: AtomicU64,
}

impl Tally {
    /// One scrape, which must be right for what the engine was while it ran.
    fn scrape(&self, engine: &Engine, exporter: SocketAddr) {
        let (before, began) = (engine.life(), Instant::now());
        let answer = get_with(exporter, "/metrics", &[TIMEOUT]);
        let took = began.elapsed();
        assert!(took < DEADLINE, "{took:?}");
        assert_eq!(answer.status, 200);
        let verdict = strict::check(answer.body.as_bytes());
        assert!(verdict.accepted(), "{verdict:?}");
        let up = answer.has("kvtier_upstream_up{upstream=\"main\"} 1");
        if up {
            assert!(answer.body.contains("\nvllm:num_requests_running{"), "{}", answer.body);
        } else {
            let through = before.is_some() && before == engine.life();
            assert!(!through, "the engine was up all the time: {}", reason(&answer));
            self.without_engine.fetch_add(1, Ordering::SeqCst);
        }
        self.scrapes.fetch_add(1, Ordering::SeqCst);
        self.slowest_ms.fetch_max(u64::try_from(took.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

fn reason(answer: &Answer) -> &str {
    let told = |line: &&str| line.starts_with("kvtier_upstream_error_info{");
    answer.body.lines().find(told).unwrap_or("no reason told")
}

/// The middle one of what is measured in some moments, since memory goes up and down with each scrape.
fn resident(exporter: &Exporter) -> u64 {
    let mut measured: Vec<u64> = (0..21)
        .map(|_| {
            thread::sleep(PACE / 10);
            exporter.resident()
        })
        .collect();
    measured.sort_unstable();
    measured[10]
}

#[test]
fn eight_scrapers_and_an_engine_that_restarts() {
    let length = length();
    let engine = Engine::start(length / RESTARTS);
    let exporter = Exporter::start(&format!("http://{}/metrics", engine.address), &["--tier.size=32GiB"]);
    until("the engine is up", || get(exporter.address, "/metrics").has("kvtier_upstream_up{upstream=\"main\"} 1"));
    let (descriptors, threads) = (exporter.descriptors(), exporter.threads());
    let (tally, end) = (Tally::default(), Instant::now() + length);
    let (half, last) = thread::scope(|scope| {
        for number in 0..SCRAPERS {
            let (tally, engine, address) = (&tally, &engine, exporter.address);
            scope.spawn(move || {
                // Spread over the second, as Prometheus spreads its targets.
                let mut next = Instant::now() + PACE * u32::try_from(number).unwrap() / 8;
                while next < end {
                    thread::sleep(next.saturating_duration_since(Instant::now()));
                    tally.scrape(engine, address);
                    next += PACE;
                }
            });
        }
        thread::sleep(length / 2);
        let half = resident(&exporter);
        thread::sleep(end.saturating_duration_since(Instant::now()).saturating_sub(Duration::from_secs(3)));
        (half, resident(&exporter))
    });
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    println!(
        "{length:?}: {} scrapes, {} of them while the engine was down, the slowest {} ms; {} restarts; memory {half} at half \
         and {last} at the end, {descriptors} descriptors, {threads} threads",
        count(&tally.scrapes),
        count(&tally.without_engine),
        count(&tally.slowest_ms),
        count(&engine.life) / 2,
    );
    let due = length.as_secs() * SCRAPERS as u64;
    assert!(count(&tally.scrapes) >= due * 9 / 10, "{} of {due}: somebody waited", count(&tally.scrapes));
    assert!(count(&tally.without_engine) > 0, "the engine was never seen down");
    assert!(last <= half + GROWTH, "memory grew from {half} to {last}");
    until("descriptors and threads are back", || {
        exporter.descriptors() <= descriptors && exporter.threads() <= threads
    });
}
