//! `--upstream.min-interval`: scrapes within it share a fetch, and say how old it is.

use std::time::Instant;

use crate::PAGE;
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Upstream, ok, response};

/// A page that says which request it answers.
fn numbered() -> Upstream {
    Upstream::start(|request| vec![ok(format!("request_number {}\n", request.number))])
}

fn age(body: &str) -> Option<f64> {
    body.lines().find_map(|line| line.strip_prefix("kvtier_upstream_age_seconds{upstream=\"main\"} ")?.parse().ok())
}

#[test]
fn a_hundred_scrapes_within_the_interval_are_one_request() {
    let upstream = numbered();
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=1m"]);
    let bodies: Vec<String> = (0..100).map(|_| exporter.metrics().body).collect();
    assert_eq!(upstream.requests().len(), 1);
    let ages: Vec<f64> = bodies.iter().map(|body| age(body).unwrap()).collect();
    assert!(ages.windows(2).all(|pair| pair[0] < pair[1]), "{ages:?}");
    assert!(bodies.iter().all(|body| body.starts_with("request_number 1\n")));
    assert!(exporter.get("/debug").body.contains("state    up"));
    assert_eq!(upstream.requests().len(), 1, "the debug page shows what the scrapes got");
}

#[test]
fn with_one_second_there_is_at_most_a_request_a_second() {
    let upstream = numbered();
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=1s"]);
    let began = Instant::now();
    for _ in 0..100 {
        assert!(age(&exporter.metrics().body).unwrap() <= 1.1, "no answer is older than the interval");
    }
    let seconds = began.elapsed().as_secs_f64();
    assert!((upstream.requests().len() as f64) <= 1.0 + seconds, "{} in {seconds} s", upstream.requests().len());
}

#[test]
fn after_the_interval_comes_a_new_page() {
    let upstream = numbered();
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=300ms"]);
    assert!(exporter.metrics().has("request_number 1"));
    until("the page is a new one", || exporter.metrics().has("request_number 2"));
}

#[test]
fn a_failure_is_shared_like_a_page() {
    let upstream = Upstream::start(|_| vec![response("503 Loading", &[], PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=1m"]);
    for _ in 0..10 {
        let answer = exporter.metrics();
        assert!(answer.has("kvtier_upstream_error_info{upstream=\"main\",reason=\"status\"} 1"), "{}", answer.body);
        assert_eq!(age(&answer.body), None);
    }
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn no_older_page_stands_in_for_a_failure() {
    let upstream = Upstream::start(|request| match request.number {
        1 => vec![ok(PAGE)],
        2 => vec![response("503 Loading", &[], PAGE)],
        _ => vec![ok("later 1\n")],
    });
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=300ms"]);
    assert!(exporter.metrics().body.starts_with(PAGE));
    let mut body = String::new();
    until("the upstream is asked again", || {
        body = exporter.metrics().body;
        body.contains("kvtier_upstream_up{upstream=\"main\"} 0\n")
    });
    assert!(!body.contains("x_total"), "{body}");
    until("it is asked once more", || exporter.metrics().has("later 1"));
    assert_eq!(upstream.requests().len(), 3);
}

/// 32 MiB in lines of a kilobyte.
fn large() -> String {
    format!("x{{k=\"{}\"}} 1\n", "y".repeat(1014)).repeat(32 << 10)
}

#[test]
fn without_an_interval_nothing_is_kept() {
    let upstream = Upstream::start(|_| vec![ok(large())]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let before = exporter.resident();
    for number in 1..4 {
        assert!(exporter.metrics().body.len() > 32 << 20);
        assert_eq!(upstream.requests().len(), number);
        until("the page is let go", || exporter.resident() < before + (16 << 20));
    }
}

#[test]
fn a_page_is_kept_once_for_its_interval() {
    let upstream = Upstream::start(|_| vec![ok(large())]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=1m"]);
    let before = exporter.resident();
    for _ in 0..3 {
        assert!(exporter.metrics().body.len() > 32 << 20);
    }
    let held = || exporter.resident() - before;
    until("only the page is left", || held() < 48 << 20);
    assert!(held() > 30 << 20, "{}", held());
}

#[test]
fn a_page_is_let_go_when_its_interval_is_over_though_nobody_asks() {
    let upstream = Upstream::start(|_| vec![ok(large())]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.min-interval=1s"]);
    let before = exporter.resident();
    assert!(exporter.metrics().body.len() > 32 << 20);
    until("the page is let go", || exporter.resident() < before + (16 << 20));
    assert_eq!(upstream.requests().len(), 1);
}
