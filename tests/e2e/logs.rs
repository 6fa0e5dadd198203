//! The log: a line an event and never a line a scrape, in both notations, fit for a terminal.

use crate::PAGE;
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Upstream, ok, response};

/// Quotes, line ends, and everything that moves a terminal: escape, bell, delete, and CSI as one character.
const NASTY: &str = "say \"hi\"\r\n\u{1b}[2J\u{7}\u{7f}\u{9b}31m=\\end";

fn warnings(exporter: &Exporter) -> Vec<String> {
    exporter.log().into_iter().filter(|line| line.to_lowercase().contains("warn")).collect()
}

fn is_plain(line: &str) -> bool {
    !line.chars().any(char::is_control)
}

#[test]
fn a_dead_upstream_is_one_line_however_often_it_is_scraped() {
    let exporter = Exporter::start("127.0.0.1:1", &[]);
    for _ in 0..300 {
        exporter.metrics();
    }
    until("it is told", || !warnings(&exporter).is_empty());
    // starting, scraping, listening, and that one.
    assert_eq!((warnings(&exporter).len(), exporter.log().len()), (1, 4), "{:?}", exporter.log());
}

#[test]
fn repeated_failures_are_a_number_at_their_end() {
    let upstream = Upstream::start(|request| {
        vec![if request.number <= 300 { response("503 Loading", &[], "") } else { ok(PAGE) }]
    });
    let exporter = Exporter::start(&upstream.url(), &["--log.format=json"]);
    for _ in 0..301 {
        exporter.metrics();
    }
    // The page is of no engine, which is said too.
    let log = || exporter.log().into_iter().filter(|line| !line.contains("\"notice\"")).collect::<Vec<_>>();
    let last = || serde_json::from_str::<serde_json::Value>(log().last().unwrap()).unwrap();
    until("it is told", || last()["message"] == "the upstream answers");
    assert_eq!((&last()["failed"], &last()["upstream"]), (&300.into(), &"main".into()));
    assert_eq!(log().len(), 5);
}

#[test]
fn json_lines_are_json_and_hold_what_was_said() {
    let upstream = Upstream::start(|_| vec![response("500 Oops", &[], NASTY)]);
    let exporter = Exporter::start(&upstream.url(), &["--log.format=json", "--log.level=debug"]);
    exporter.metrics();
    until("it is told", || !warnings(&exporter).is_empty());
    for line in exporter.log() {
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert!(event["level"].is_string() && event["message"].is_string() && event["timestamp"].is_string(), "{line}");
        assert!(is_plain(&line), "{line:?}");
    }
    let event: serde_json::Value = serde_json::from_str(&warnings(&exporter)[0]).unwrap();
    assert_eq!((&event["body"], &event["reason"]), (&NASTY.into(), &"status".into()));
    assert_eq!(event["url"], upstream.url());
}

#[test]
fn logfmt_lines_are_plain_text() {
    let upstream = Upstream::start(|_| vec![response("500 Oops", &[], NASTY)]);
    let exporter = Exporter::start(&upstream.url(), &["--log.level=debug"]);
    exporter.metrics();
    until("it is told", || !warnings(&exporter).is_empty());
    assert!(exporter.log().iter().all(|line| is_plain(line)), "{:?}", exporter.log());
    let shown = r#"body="say \"hi\"\r\n\u{1b}[2J\u{7}\u{7f}\u{9b}31m=\\end""#;
    assert!(warnings(&exporter)[0].contains(shown), "{}", warnings(&exporter)[0]);
}

#[test]
fn the_level_is_kept() {
    let exporter = Exporter::start("127.0.0.1:1", &["--log.level=info"]);
    exporter.metrics();
    until("it is told", || !warnings(&exporter).is_empty());
    assert!(!exporter.log().iter().any(|line| line.contains("level=debug")));
}
