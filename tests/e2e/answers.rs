//! What a client gets: routes, headers, and the upstream's page in the midst of ours.

use crate::PAGE;
use crate::support::client::{get_with, request};
use crate::support::exporter::Exporter;
use crate::support::upstream::{Upstream, ok, raw, response};

const METRICS_TYPE: Option<&str> = Some("text/plain; version=0.0.4; charset=utf-8");

#[test]
fn the_page_comes_first_and_our_families_after_it() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let answer = exporter.metrics();
    assert_eq!((answer.status, answer.header("content-type")), (200, METRICS_TYPE));
    assert!(answer.body.starts_with(PAGE), "{}", answer.body);
    assert!(answer.has("kvtier_upstream_up{upstream=\"main\"} 1"));
    assert!(answer.has(&format!("kvtier_upstream_body_bytes{{upstream=\"main\"}} {}", PAGE.len())));
    assert!(!answer.body.contains("kvtier_upstream_error_info{"));
    assert!(answer.body.contains("\nkvtier_exporter_build_info{version=\"0.1.0\",revision=\""));
    for family in ["start_time_seconds", "cpu_seconds_total", "resident_memory_bytes", "open_fds", "threads"] {
        assert!(answer.body.contains(&format!("\nkvtier_process_{family} ")), "{family}");
    }
    assert!(answer.body.ends_with('\n'));
}

#[test]
fn every_client_gets_text_and_upstream_is_asked_for_text() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let accept = "Accept: application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.3";
    let answer = get_with(exporter.address, "/metrics", &[accept, "Accept-Encoding: gzip", "X-Secret: 1"]);
    assert_eq!((answer.header("content-type"), answer.header("content-encoding")), (METRICS_TYPE, None));
    assert!(!answer.body.contains("# EOF"));
    let head = upstream.requests()[0].head.to_ascii_lowercase();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        head.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>(),
        [
            "get /metrics http/1.1",
            &format!("host: {}", upstream.address),
            "accept: text/plain;version=0.0.4",
            "accept-encoding: identity",
            &format!("user-agent: kvtier-exporter/{version}"),
        ]
    );
}

#[test]
fn routes() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    assert!(exporter.get("/metrics/").body.starts_with(PAGE));
    assert!(exporter.get("/metrics?name[]=x").body.starts_with(PAGE));
    let home = exporter.get("/");
    assert_eq!((home.status, home.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(home.body.contains("href=\"./metrics\"") && home.body.contains("href=\"./debug\""));
    assert_eq!((exporter.get("/-/healthy").status, exporter.get("/-/ready").status), (200, 200));
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("state    up") && debug.contains(&upstream.url()), "{debug}");
    assert_eq!((exporter.get("/nope").status, exporter.get("/metrics/x").status), (404, 404));
    let post = request(exporter.address, "POST", "/metrics");
    assert_eq!((post.status, post.header("allow")), (405, Some("GET, HEAD")));
}

#[test]
fn head_has_the_headers_of_get_and_no_body() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let head = request(exporter.address, "HEAD", "/metrics");
    assert_eq!((head.status, head.header("content-type"), head.body.as_str()), (200, METRICS_TYPE, ""));
    assert!(head.header("content-length").unwrap().parse::<usize>().unwrap() > PAGE.len());
}

#[test]
fn another_telemetry_path_is_written_into_the_home_page_escaped() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &["--web.telemetry-path", "/a&b"]);
    assert_eq!((exporter.get("/a&b").status, exporter.get("/metrics").status), (200, 404));
    assert!(exporter.get("/").body.contains("href=\"./a&amp;b\""));
}

#[test]
fn a_wrong_or_missing_content_type_does_not_cost_the_page() {
    for headers in
        [&[][..], &["Content-Type: text/html; charset=utf-8"], &["Content-Type: Text/Plain;Version=\"0.0.4\""]]
    {
        let upstream = Upstream::start(move |_| vec![response("200 OK", headers, PAGE)]);
        let exporter = Exporter::start(&upstream.url(), &[]);
        let answer = exporter.metrics();
        assert!(answer.body.starts_with(PAGE), "{headers:?}: {}", answer.body);
        assert_eq!(answer.header("content-type"), METRICS_TYPE);
    }
}

#[test]
fn chunked_and_close_delimited_pages_are_whole_pages() {
    let chunked =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{PAGE}\r\n0\r\n\r\n", PAGE.len());
    let closed = format!("HTTP/1.0 200 OK\r\n\r\n{PAGE}");
    for bytes in [chunked, closed] {
        let upstream = Upstream::start(move |_| vec![raw(&bytes), crate::support::upstream::Step::Close]);
        assert!(Exporter::start(&upstream.url(), &[]).metrics().body.starts_with(PAGE));
    }
}

#[test]
fn an_openmetrics_page_is_turned_into_text() {
    const OPENMETRICS: &str =
        "# TYPE y unknown\ny 1\n# TYPE x counter\nx_total{k=\"1\"} 5 # {trace_id=\"t\"} 1.0\n# EOF\n";
    let content_type = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    let upstream = Upstream::start(move |_| vec![response("200 OK", &[content_type], OPENMETRICS)]);
    let answer = Exporter::start(&upstream.url(), &[]).metrics();
    assert_eq!(answer.header("content-type"), METRICS_TYPE);
    assert!(answer.has("y 1") && answer.has("x_total{k=\"1\"} 5"), "{}", answer.body);
    for construct in ["# EOF", "unknown\n", "trace_id"] {
        assert!(!answer.body.contains(construct), "{construct}: {}", answer.body);
    }
}

#[test]
fn gzip_that_nobody_asked_for_is_undone() {
    let upstream = Upstream::start(|_| {
        vec![response("200 OK", &["Content-Encoding: gzip"], crate::failures::gzip(PAGE.as_bytes()))]
    });
    let answer = Exporter::start(&upstream.url(), &[]).metrics();
    assert!(answer.body.starts_with(PAGE));
    assert_eq!(answer.header("content-encoding"), None);
}

#[test]
fn a_restart_of_the_engine_shows_as_it_is() {
    let upstream =
        Upstream::start(|request| vec![ok(if request.number == 1 { "x_total 100\n" } else { "x_total 0\n" })]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    assert!(exporter.metrics().has("x_total 100"));
    assert!(exporter.metrics().has("x_total 0"));
}
