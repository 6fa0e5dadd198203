//! Pages that are odd, damaged or huge and yet come through, wholly or in part: what exactly is left of each.

use std::net::TcpListener;

use crate::PAGE;
use crate::support::client::{Answer, get_patiently};
use crate::support::exporter::Exporter;
use crate::support::upstream::{Reply, Step, Upstream, ok, raw, response};

/// The upstream's part of an answer.
fn page_of(answer: &Answer) -> &str {
    answer.body.split_once("# HELP kvtier_").expect("our own families").0
}

fn count(answer: &Answer, family: &str) -> u64 {
    let series = format!("kvtier_upstream_{family}{{upstream=\"main\"}} ");
    answer.body.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok()).expect(family)
}

/// What is left of a page, with samples passed on and lines left out.
fn left_of(page: impl AsRef<[u8]> + Send + Sync + 'static) -> (String, u64, u64) {
    let upstream = Upstream::start(move |_| vec![ok(&page)]);
    let answer = Exporter::start(&upstream.url(), &[]).metrics();
    assert!(answer.has("kvtier_upstream_up{upstream=\"main\"} 1"), "{}", answer.body);
    (page_of(&answer).to_owned(), count(&answer, "samples"), count(&answer, "dropped_lines"))
}

fn fails(exporter: &Exporter, reason: &str) {
    let answer = exporter.metrics();
    let info = format!("kvtier_upstream_error_info{{upstream=\"main\",reason=\"{reason}\"}} 1");
    assert!(answer.has(&info) && answer.has("kvtier_upstream_up{upstream=\"main\"} 0"), "{}", answer.body);
    assert_eq!(page_of(&answer), "", "nothing of the upstream, least of all of an earlier scrape");
}

#[test]
fn a_body_cut_inside_a_label_with_a_fitting_length_loses_the_cut_line() {
    let (page, samples, dropped) = left_of("a{k=\"1\"} 1\na{k=\"2\"} 2\na{k=\"3");
    assert_eq!((page.as_str(), samples, dropped), ("a{k=\"1\"} 1\na{k=\"2\"} 2\n", 2, 1));
}

#[test]
fn invalid_utf_8_costs_its_line() {
    let (page, samples, dropped) = left_of(b"a{k=\"\xc3\xa9\"} 1\na{k=\"\xe9\"} 2\nb\xff 1\nc 3\n");
    assert_eq!((page.as_str(), samples, dropped), ("a{k=\"é\"} 1\nc 3\n", 2, 2));
}

#[test]
fn a_nul_byte_in_a_name_or_a_value_costs_its_line() {
    let (page, samples, dropped) = left_of(b"a 1\nb\0 2\nc 3\0\nd 4\n");
    assert_eq!((page.as_str(), samples, dropped), ("a 1\nd 4\n", 2, 2));
}

#[test]
fn two_million_series_pass() {
    const SERIES: usize = 2_000_000;
    let page: String = (0..SERIES).map(|number| format!("s{{i=\"{number:07}\"}} 1\n")).collect();
    let upstream = Upstream::start({
        let page = page.clone();
        move |_| vec![ok(&page)]
    });
    let exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=2m"]);
    let before = exporter.resident();
    let answer = get_patiently(exporter.address, "/metrics");
    assert!(page_of(&answer) == page, "byte for byte");
    assert_eq!((count(&answer, "samples"), count(&answer, "body_bytes")), (SERIES as u64, page.len() as u64));
    // The body once and what the connections buffer, but no second copy.
    let peak = exporter.peak() - before;
    assert!(peak < page.len() as u64 * 3 / 2, "{peak} for {}", page.len());
}

#[test]
fn a_line_of_100_mib_is_more_than_is_taken() {
    let announced = "HTTP/1.1 200 OK\r\nContent-Length: 104857610\r\n\r\na{k=\"";
    let upstream = Upstream::start(move |_| vec![raw(announced), Step::Hang]);
    fails(&Exporter::start(&upstream.url(), &[]), "too_large");

    let line = format!("a{{k=\"{}\"}} 1\n", "x".repeat(100 << 20));
    let chunks =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{line}\r\n0\r\n\r\n", line.len());
    let upstream = Upstream::start(move |_| vec![raw(&chunks)]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=1m"]);
    let before = exporter.resident();
    fails(&exporter, "too_large");
    let peak = exporter.peak() - before;
    assert!(peak < (64 << 20) + (8 << 20), "{peak}: the limit, and what a connection buffers");
}

#[test]
fn a_line_as_long_as_is_taken_passes() {
    let line = format!("a{{k=\"{}\"}} 1\n", "x".repeat(32 << 20));
    let (page, samples, dropped) = left_of(line.clone());
    assert!(page == line && (samples, dropped) == (1, 0));
}

#[test]
fn what_follows_an_answer_is_not_taken_for_the_next_one() {
    // Length too short: what is beyond it looks like a whole further answer.
    let smuggled = "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nsmuggled 1\n";
    let upstream = Upstream::start(move |request| {
        let page = format!("number {}\n", request.number);
        vec![raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}{smuggled}", page.len()))]
    });
    let exporter = Exporter::start(&upstream.url(), &[]);
    for number in 1..=5 {
        assert_eq!(page_of(&exporter.metrics()), format!("number {number}\n"));
    }
}

#[test]
fn a_length_that_is_too_short_gives_the_lines_within_it() {
    let upstream = Upstream::start(|_| vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na 1\nb{k=\"1\"} 2\n")]);
    let answer = Exporter::start(&upstream.url(), &[]).metrics();
    assert_eq!((page_of(&answer), count(&answer, "samples"), count(&answer, "dropped_lines")), ("a 1\n", 1, 1));
}

#[test]
fn a_status_503_with_metrics_is_a_failure_also_after_a_good_scrape() {
    let upstream = Upstream::start(|request| match request.number {
        2 => vec![response("503 Service Unavailable", &["Content-Type: text/plain; version=0.0.4"], PAGE)],
        _ => vec![ok(PAGE)],
    });
    let exporter = Exporter::start(&upstream.url(), &[]);
    assert_eq!(page_of(&exporter.metrics()), PAGE);
    fails(&exporter, "status");
    assert_eq!(page_of(&exporter.metrics()), PAGE);
}

#[test]
fn an_engine_that_restarts_in_mid_scrape_is_down_and_then_begins_anew() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let half = "HTTP/1.1 200 OK\r\nContent-Length: 24\r\n\r\nx_total 101\n";
    let life = |before: Option<&'static str>, after: &'static str| {
        move |request: &crate::support::upstream::Request| -> Reply {
            match (request.number, before) {
                (1, Some(before)) => vec![ok(before)],
                (_, Some(_)) => vec![raw(half), Step::Close],
                (_, None) => vec![ok(after)],
            }
        }
    };
    let first = Upstream::on_listener(listener, life(Some("x_total 100\n"), ""));
    let exporter = Exporter::start(&format!("http://{address}/metrics"), &[]);
    assert_eq!(page_of(&exporter.metrics()), "x_total 100\n");
    fails(&exporter, "truncated");
    drop(first);
    // While it loads nobody listens. The port may take a moment to be free.
    crate::support::until("nobody listens", || std::net::TcpStream::connect(address).is_err());
    fails(&exporter, "connect");
    let _second = Upstream::on_listener(TcpListener::bind(address).unwrap(), life(None, "x_total 1\n"));
    assert_eq!(page_of(&exporter.metrics()), "x_total 1\n");
}

#[test]
fn an_upstream_may_change_its_format_from_scrape_to_scrape() {
    const TEXT: &str = "# HELP x_total Things.\n# TYPE x_total counter\nx_total 1.0\n";
    const OPENMETRICS: &str = "# HELP x Things.\n# TYPE x counter\nx_total 2.0 # {id=\"t\"} 1.0\n# EOF\n";
    let upstream = Upstream::start(|request| match request.number {
        2 => vec![response("200 OK", &["Content-Type: application/openmetrics-text; version=1.0.0"], OPENMETRICS)],
        4 => vec![response("200 OK", &[], OPENMETRICS)],
        _ => vec![ok(TEXT)],
    });
    let exporter = Exporter::start(&upstream.url(), &[]);
    for scrape in 1..=5 {
        let expected = if scrape % 2 == 1 { TEXT.to_owned() } else { TEXT.replace("x_total 1.0", "x_total 2.0") };
        let answer = exporter.metrics();
        assert_eq!(page_of(&answer), expected, "scrape {scrape}");
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    }
}

#[test]
fn engines_without_end_pass_and_nothing_is_derived_for_most_of_them() {
    let page: String = (0..20_000)
        .map(|number| format!("vllm:num_requests_running{{engine=\"{number}\",model_name=\"m\"}} 1\n"))
        .collect();
    let upstream = Upstream::start({
        let page = page.clone();
        move |_| vec![ok(&page)]
    });
    let exporter = Exporter::start(&upstream.url(), &[]);
    let answer = exporter.metrics();
    assert!(page_of(&answer) == page);
    assert_eq!(count(&answer, "samples"), 20_000);
    assert!(exporter.get("/debug").body.contains("more than 1024 engines"));
}
