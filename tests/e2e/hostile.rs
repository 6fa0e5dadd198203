//! Pages that are made to cost time: whoever does not ask for them does not notice, and whoever does gets an answer within
//! the deadline that says what happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::PAGE;
use crate::support::client::{Answer, get_aside, get_patiently, get_with, receive, send};
use crate::support::exporter::Exporter;
use crate::support::upstream::{Reply, Upstream, ok, response};
use crate::support::{PATIENCE, until};

const TIMEOUT: Duration = Duration::from_secs(2);
pub const FLAGS: [&str; 2] = ["--upstream.timeout=2s", "--upstream.max-bytes=256MiB"];
/// What a loaded machine may take for a thing of milliseconds. Far less than a page below costs.
const PROMPT: Duration = Duration::from_secs(2);
/// What a hostile page costs at least, by the speed of this machine and this build: far more than the deadline.
const COST: Duration = Duration::from_secs(12);
const SENTENCE: &str = "sent more than could be worked through within 2s";

/// An OpenMetrics page of nothing but line ends.
fn page(bytes: usize) -> Reply {
    let body = "\n".repeat(bytes) + "x 1\n# EOF\n";
    vec![response("200 OK", &["Content-Type: application/openmetrics-text; version=1.0.0"], body)]
}

/// A page that takes [`COST`].
pub fn hostile() -> Reply {
    const SAMPLE: usize = 1 << 20;
    let upstream = Upstream::start(|_| page(SAMPLE));
    let exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=2m"]);
    let scrape = || {
        let began = Instant::now();
        assert!(get_patiently(exporter.address, "/metrics").has("kvtier_upstream_up{upstream=\"main\"} 1"));
        began.elapsed()
    };
    // The best of some: whatever else the machine does only makes it look dearer than it is.
    let times = COST.div_duration_f64((0..3).map(|_| scrape()).min().unwrap()).ceil();
    page((times as usize).clamp(4, 200) * SAMPLE)
}

fn timed_out(answer: &Answer, upstream: &str) -> bool {
    answer.has(&format!("kvtier_upstream_up{{upstream=\"{upstream}\"}} 0"))
        && answer.has(&format!("kvtier_upstream_error_info{{upstream=\"{upstream}\",reason=\"timeout\"}} 1"))
}

fn prompt<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    assert!(began.elapsed() < PROMPT, "{what} took {:?}", began.elapsed());
    done
}

#[test]
fn a_page_that_costs_seconds_keeps_nobody_waiting() {
    let (hostile, good) = (hostile(), Arc::<AtomicBool>::default());
    let is_good = Arc::clone(&good);
    let upstream =
        Upstream::start(move |_| if is_good.load(Ordering::SeqCst) { vec![ok(PAGE)] } else { hostile.clone() });
    let exporter = Exporter::start(&upstream.url(), &FLAGS);
    let threads = exporter.threads();
    let (began, scrape) = (Instant::now(), get_aside(exporter.address, "/metrics", &[]));
    until("the page is worked on", || exporter.threads() > threads);

    for _ in 0..20 {
        assert_eq!(prompt("a probe", || exporter.get("/-/healthy")).status, 200);
    }
    let impatient = || get_with(exporter.address, "/metrics", &["X-Prometheus-Scrape-Timeout-Seconds: 0.7"]);
    for _ in 0..5 {
        let answer = prompt("a client that waits for 0.2 s", impatient);
        assert!(timed_out(&answer, "main"), "{}", answer.body);
    }
    let answer = scrape.join().unwrap();
    assert!(began.elapsed() < TIMEOUT + PROMPT, "{:?}", began.elapsed());
    assert!(answer.status == 200 && answer.body.starts_with("# HELP kvtier_"), "{}", answer.body);
    assert!(timed_out(&answer, "main"), "{}", answer.body);

    let debug = exporter.get("/debug").body;
    assert!(debug.contains("reason   timeout") && debug.contains(SENTENCE), "{debug}");
    assert!(
        exporter.log().iter().any(|line| line.contains("sent more than could be worked through")),
        "{:?}",
        exporter.log()
    );
    let status = exporter.get("/api/status").body;
    assert!(status.contains("\"timeout\"") && status.contains("\"engines\":[]"), "{status}");
    assert!(exporter.threads() <= threads + 1, "work that nobody waits for any more piles up");
    assert!(exporter.log().len() < 12, "{:?}", exporter.log());

    // A small page needs no turn.
    good.store(true, Ordering::SeqCst);
    assert!(prompt("a good page", || exporter.metrics()).body.starts_with(PAGE));
    let end = Instant::now() + 6 * PATIENCE;
    while exporter.threads() > threads {
        assert!(Instant::now() < end, "the thread does not go");
        std::thread::sleep(PROMPT / 10);
    }
}

#[test]
fn an_extra_that_costs_seconds_does_not_cost_the_main_page() {
    let hostile = hostile();
    let (main, extra) = (Upstream::start(|_| vec![ok(PAGE)]), Upstream::start(move |_| hostile.clone()));
    let named = format!("cache={}", extra.url());
    let exporter = Exporter::start(&main.url(), &[&FLAGS[..], &["--upstream.extra", &named]].concat());
    // In the second, the page of the first is still worked on.
    for _ in 0..2 {
        let began = Instant::now();
        let answer = exporter.metrics();
        assert!(began.elapsed() < TIMEOUT + PROMPT, "{:?}", began.elapsed());
        assert!(answer.body.starts_with(PAGE) && timed_out(&answer, "cache"), "{}", answer.body);
        assert!(answer.has("kvtier_upstream_up{upstream=\"main\"} 1"), "{}", answer.body);
    }
    assert!(exporter.get("/debug").body.contains(SENTENCE));
}

#[test]
fn an_extra_that_costs_seconds_does_not_cost_pages_that_are_large_together() {
    // 300 KB each, and cheap.
    let lines = |name: &str| format!("{name}_total{{k=\"{}\"}} 1\n", "y".repeat(1000)).repeat(300);
    let (hostile, main_page, good_page) = (hostile(), lines("main"), lines("good"));
    let (main, good) = (Upstream::start(move |_| vec![ok(&main_page)]), Upstream::start(move |_| vec![ok(&good_page)]));
    let bad = Upstream::start(move |_| hostile.clone());
    let named = [format!("--upstream.extra=good={}", good.url()), format!("--upstream.extra=bad={}", bad.url())];
    let flags: Vec<&str> = FLAGS.into_iter().chain(named.iter().map(String::as_str)).collect();
    let exporter = Exporter::start(&main.url(), &flags);
    for _ in 0..2 {
        let began = Instant::now();
        let answer = exporter.metrics();
        assert!(began.elapsed() < TIMEOUT + PROMPT, "{:?}", began.elapsed());
        assert!(answer.body.starts_with("main_total{k=") && answer.body.contains("\ngood_total{k="));
        assert!(timed_out(&answer, "bad") && answer.has("kvtier_upstream_up{upstream=\"good\"} 1"));
    }
}

/// Extras of as many bytes as a page may have that is worked on at once, each costly in its own way.
fn costly_extras(page: impl Fn(usize) -> Reply) -> (Vec<Upstream>, Vec<String>) {
    let start = |number| {
        let page = page(number);
        Upstream::start(move |_| page.clone())
    };
    let extras: Vec<_> = (0..6).map(start).collect();
    let flags = extras.iter().enumerate().map(|(at, extra)| format!("--upstream.extra=e{at}={}", extra.url()));
    let flags = flags.collect();
    (extras, flags)
}

#[test]
fn many_small_pages_that_are_large_together_keep_nobody_waiting() {
    const BYTES: usize = 511 << 10;
    // 430 to 480 KB.
    let families = |number: usize| vec![ok((0..40_000).map(|at| format!("e{number}_{at} 1\n")).collect::<String>())];
    let pages: [&dyn Fn(usize) -> Reply; 2] = [&families, &|_| page(BYTES)];
    for costly in pages {
        let (main, (_extras, named)) = (Upstream::start(|_| vec![ok(PAGE)]), costly_extras(costly));
        // Long enough for all of it: what is left of a round that was not done in time is worked on at once.
        let flags: Vec<&str> = ["--upstream.timeout=2m"].into_iter().chain(named.iter().map(String::as_str)).collect();
        let exporter = Exporter::start(&main.url(), &flags);
        for path in ["/debug", "/metrics"] {
            let stream = send(exporter.address, "GET", path, &[]);
            stream.set_read_timeout(Some(6 * PATIENCE)).unwrap();
            let scrape = std::thread::spawn(move || receive(stream));
            while !scrape.is_finished() {
                let began = Instant::now();
                assert_eq!(exporter.get("/-/healthy").status, 200);
                assert!(began.elapsed() < Duration::from_secs(1), "healthy after {:?} of {path}", began.elapsed());
            }
            let answer = scrape.join().unwrap();
            assert!(path == "/debug" || answer.has("kvtier_upstream_up{upstream=\"e5\"} 1"), "{}", answer.head);
        }
    }
}

#[test]
fn a_large_page_that_is_done_with_in_time_is_shared_by_all_who_wait() {
    let line = format!("x_total{{k=\"{}\"}} 1\n", "y".repeat(1000));
    let page = line.repeat(2000);
    let upstream = Upstream::start({
        let page = page.clone();
        move |_| vec![ok(&page)]
    });
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=1m"]);
    let scrapes: Vec<_> = (0..8).map(|_| get_aside(exporter.address, "/metrics", &[])).collect();
    for scrape in scrapes {
        let answer = scrape.join().unwrap();
        assert!(answer.body.starts_with(&page) && answer.has("kvtier_upstream_samples{upstream=\"main\"} 2000"));
    }
    assert!(exporter.get("/debug").body.contains("2000 samples"));
    assert_eq!(upstream.requests().len(), 1);
}
