//! Many clients and one fetch; clients that wait for different times.

use std::time::{Duration, Instant};

use crate::PAGE;
use crate::support::client::{get, get_aside, get_with};
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Gate, Step, Upstream, ok, raw};

const TIMEOUT: &str = "kvtier_upstream_error_info{upstream=\"main\",reason=\"timeout\"} 1";

/// An upstream that answers once the gate is open.
fn gated() -> (Upstream, Gate) {
    let gate = Gate::default();
    let shut = gate.clone();
    (Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(PAGE)]), gate)
}

/// The program has one thread: when it answers these, it has seen what came before.
fn has_seen_all(exporter: &Exporter) {
    for _ in 0..2 {
        assert_eq!(exporter.get("/-/healthy").status, 200);
    }
}

#[test]
fn twenty_scrapes_at_once_are_one_fetch() {
    let (upstream, gate) = gated();
    let exporter = Exporter::start(&upstream.url(), &[]);
    let scrapes: Vec<_> = (0..20).map(|_| get_aside(exporter.address, "/metrics", &[])).collect();
    has_seen_all(&exporter);
    until("the fetch is under way", || upstream.requests().len() == 1);
    gate.open();
    for scrape in scrapes {
        assert!(scrape.join().unwrap().body.starts_with(PAGE));
    }
    assert_eq!((upstream.requests().len(), upstream.connections()), (1, 1));
    get(exporter.address, "/metrics");
    assert_eq!(upstream.requests().len(), 2, "a later scrape is a new fetch");
}

#[test]
fn a_client_that_gives_up_takes_nothing_from_the_others() {
    let (upstream, gate) = gated();
    let exporter = Exporter::start(&upstream.url(), &[]);
    let impatient = get_aside(exporter.address, "/metrics", &["X-Prometheus-Scrape-Timeout-Seconds: 0.2"]);
    until("the fetch is under way", || upstream.requests().len() == 1);
    let patient = get_aside(exporter.address, "/metrics", &[]);
    has_seen_all(&exporter);
    assert!(impatient.join().unwrap().has(TIMEOUT));
    gate.open();
    assert!(patient.join().unwrap().body.starts_with(PAGE));
    assert_eq!(upstream.requests().len(), 1);
    until("the log tells of it", || {
        exporter.log().iter().any(|line| line.contains("did not wait") && line.contains("100ms"))
    });
}

#[test]
fn the_clients_own_timeout_bounds_its_wait() {
    let upstream = Upstream::start(|_| vec![Step::Hang]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for (header, at_least) in [("0.2", 0.1), ("0.9", 0.4)] {
        let began = Instant::now();
        let answer =
            get_with(exporter.address, "/metrics", &[&format!("X-Prometheus-Scrape-Timeout-Seconds: {header}")]);
        let took = began.elapsed().as_secs_f64();
        assert!(answer.has(TIMEOUT));
        // Ten seconds is what it would take by the configured timeout.
        assert!(took >= at_least && took < 5.0, "{header}: {took}");
    }
}

#[test]
fn a_garbage_timeout_is_ignored() {
    let upstream = Upstream::start(|_| vec![Step::Hang]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=250ms"]);
    for header in ["nan", "-1", "inf", "abc", "", "1e9"] {
        let began = Instant::now();
        assert!(
            get_with(exporter.address, "/metrics", &[&format!("X-Prometheus-Scrape-Timeout-Seconds: {header}")])
                .has(TIMEOUT)
        );
        assert!(began.elapsed() >= Duration::from_millis(240), "{header}");
    }
}

#[test]
fn many_scrapers_cost_no_more_fetches_than_the_upstream_has_time_for() {
    const TAKES: Duration = Duration::from_millis(100);
    let upstream = Upstream::start(|_| {
        let rest = format!("TTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{PAGE}", PAGE.len());
        vec![Step::Trickle(b"H".into(), TAKES), raw(rest)]
    });
    let exporter = Exporter::start(&upstream.url(), &[]);
    let (began, address) = (Instant::now(), exporter.address);
    let scrapers =
        (0..20).map(|_| std::thread::spawn(move || (0..10).all(|_| get(address, "/metrics").body.starts_with(PAGE))));
    let scrapers: Vec<_> = scrapers.collect();
    assert!(scrapers.into_iter().all(|scraper| scraper.join().unwrap()));
    let room = began.elapsed().as_secs_f64() / TAKES.as_secs_f64();
    // 200 scrapes, one fetch after the other.
    assert!((upstream.requests().len() as f64) <= room, "{} in {room}", upstream.requests().len());
}
