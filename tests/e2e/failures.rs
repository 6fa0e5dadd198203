//! Everything that can be wrong with an upstream. Each time the answer is 200 with our own families, the reason
//! stands in the metric, the log and `/debug`, and not one line of the upstream is in it.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use crate::PAGE;
use crate::support::exporter::{Exporter, field};
use crate::support::until;
use crate::support::upstream::{Reply, Step, Upstream, ok, raw, response};

/// Two scrapes and a look at `/debug`, all of which must give this reason.
fn assert_fails(exporter: &Exporter, reason: &str) {
    for _ in 0..2 {
        let answer = exporter.metrics();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        assert!(answer.has("kvtier_upstream_up{upstream=\"main\"} 0"), "{reason}: {}", answer.body);
        let info = format!("kvtier_upstream_error_info{{upstream=\"main\",reason=\"{reason}\"}} 1");
        assert!(answer.has(&info), "{reason}: {}", answer.body);
        assert!(answer.body.contains("\nkvtier_exporter_build_info{"));
        assert!(!answer.body.contains("x_total"), "{reason}: {}", answer.body);
    }
    let debug = exporter.get("/debug").body;
    assert!(debug.contains(&format!("reason   {reason}\n")), "{debug}");
    until("the log says so", || down(exporter).len() == 1);
    assert_eq!(field(&down(exporter)[0], "reason"), Some(reason));
}

fn down(exporter: &Exporter) -> Vec<String> {
    exporter.log().into_iter().filter(|line| line.contains("level=warn")).collect()
}

fn fails(reason: &str, flags: &[&str], reply: impl Fn() -> Reply + Send + Sync + 'static) -> (Exporter, Upstream) {
    let upstream = Upstream::start(move |_| reply());
    let exporter = Exporter::start(&upstream.url(), flags);
    assert_fails(&exporter, reason);
    (exporter, upstream)
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn connection_refused() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    assert_fails(&Exporter::start(&format!("127.0.0.1:{port}"), &[]), "connect");
}

#[test]
fn an_unknown_name() {
    assert_fails(&Exporter::start("no-such-host.invalid:8000", &[]), "connect");
}

#[test]
fn reset_after_the_request() {
    let upstream = Upstream::start_resetting();
    assert_fails(&Exporter::start(&upstream.url(), &[]), "reset");
}

#[test]
fn closed_without_an_answer() {
    fails("reset", &[], || vec![Step::Close]);
}

#[test]
fn closed_within_the_head() {
    fails("reset", &[], || vec![raw("HTTP/1.1 200 OK\r\nContent-Le"), Step::Close]);
}

#[test]
fn no_answer() {
    fails("timeout", &["--upstream.timeout=200ms"], || vec![Step::Hang]);
}

#[test]
fn a_body_that_stops() {
    fails("timeout", &["--upstream.timeout=200ms"], || {
        vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nx_total 1\n"), Step::Hang]
    });
}

#[test]
fn a_byte_every_100_ms() {
    fails("timeout", &["--upstream.timeout=350ms"], || {
        let whole = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{PAGE}", PAGE.len());
        vec![Step::Trickle(whole.into_bytes(), Duration::from_millis(100))]
    });
}

#[test]
fn a_body_that_trickles_behind_a_whole_head() {
    fails("timeout", &["--upstream.timeout=350ms"], || {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PAGE.len());
        vec![raw(head), Step::Trickle(PAGE.into(), Duration::from_millis(100))]
    });
}

#[test]
fn statuses() {
    for status in [
        "204 No Content",
        "404 Not Found",
        "500 Internal Server Error",
        "503 Service Unavailable",
        "206 Partial Content",
    ] {
        fails("status", &[], move || vec![response(status, &[], if status.starts_with("204") { "" } else { PAGE })]);
    }
    for status in ["401 Unauthorized", "403 Forbidden"] {
        fails("auth", &[], move || vec![response(status, &[], "who are you?")]);
    }
}

#[test]
fn an_error_that_never_ends_is_still_told_by_its_status() {
    fails("status", &[], || vec![raw("HTTP/1.1 500 Oops\r\nContent-Length: 999\r\n\r\nTraceback"), Step::Hang]);
}

#[test]
fn the_beginning_of_an_errors_body_goes_to_the_log_escaped() {
    let body = format!("\u{1b}[31mTraceback\n{}", "x".repeat(1000));
    let (exporter, _upstream) = fails("status", &[], move || vec![response("500 Oops", &[], &body)]);
    // 200 bytes: 5 of the escape sequence, 9 of the word, the line end, and 185 of the rest.
    let shown = format!("\\u{{1b}}[31mTraceback\\n{}\"", "x".repeat(185));
    assert!(down(&exporter)[0].contains(&shown), "{}", down(&exporter)[0]);
    let debug = exporter.get("/debug").body;
    assert!(debug.contains(&shown), "{debug}");
}

#[test]
fn redirects_that_go_nowhere() {
    fails("redirect", &[], || vec![response("307 Temporary Redirect", &[], "")]);
    fails("redirect", &[], || vec![response("302 Found", &["Location: http://[broken"], "")]);
    fails("redirect", &[], || vec![response("307 Temporary Redirect", &["Location: /metrics"], "")]);
}

#[test]
fn too_large() {
    let cap = &["--upstream.max-bytes=1KiB"];
    fails("too_large", cap, || vec![ok("x_total 1\n".repeat(103))]);
    fails("too_large", cap, || {
        let chunk = format!("200\r\n{}\r\n", "x".repeat(0x200));
        vec![raw(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(3))), Step::Hang]
    });
    let bomb = gzip(&vec![b'x'; 32 << 20]);
    let cap = &["--upstream.max-bytes=1MiB"];
    assert!(bomb.len() < 1 << 20, "small enough to come through packed");
    fails("too_large", cap, move || vec![response("200 OK", &["Content-Encoding: gzip"], &bomb)]);
    fails("too_large", &[], || {
        vec![
            raw(format!("HTTP/1.1 200 OK\r\nX-Long: {}\r\nContent-Length: 2\r\n\r\na ", "x".repeat(1 << 20))),
            Step::Hang,
        ]
    });
}

#[test]
fn a_body_of_exactly_the_limit_passes() {
    let page = format!("x_total {:0>1015}\n", 1);
    assert_eq!(page.len(), 1024);
    let upstream = Upstream::start(move |_| vec![ok(&page)]);
    assert!(
        Exporter::start(&upstream.url(), &["--upstream.max-bytes=1KiB"])
            .metrics()
            .body
            .contains("upstream_up{upstream=\"main\"} 1")
    );
}

#[test]
fn cut_bodies() {
    for cut in [
        "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nx_total 1\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nx_total 1\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nx_total 1\n",
        "HTTP/1.1 200 OK\r\n\r\nx_total 1\nx_total{k=\"2\"",
    ] {
        fails("truncated", &[], move || vec![raw(cut), Step::Close]);
    }
}

/// Heads of bodies that end with their connection and with nothing else.
const UNTIL_CLOSE: [&str; 7] = [
    "HTTP/1.1 200 OK\r\n\r\n",
    "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Encoding:\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Encoding: Identity\r\nContent-Type: application/octet-stream\r\n\r\n",
];

#[test]
fn a_body_that_ends_amid_a_line_with_its_connection_is_cut() {
    for head in UNTIL_CLOSE {
        // Of 12345 three digits came: a number that nobody wrote.
        let cut = format!("{head}# TYPE x_total counter\nx_total{{k=\"1\"}} 5\nx_total{{k=\"2\"}} 123");
        fails("truncated", &[], move || vec![raw(&cut), Step::Close]);
        let whole = format!("{head}{PAGE}");
        passes(move || vec![raw(&whole), Step::Close], PAGE);
    }
    // Each part of a packed body has a checksum, and a cut between two of them breaks none.
    let first_of_two =
        [b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n", &gzip(b"x_total 1\ny_total 12")[..]].concat();
    fails("truncated", &[], move || vec![raw(&first_of_two), Step::Close]);
}

#[test]
fn a_body_whose_framing_says_that_it_is_whole_needs_no_last_line_end() {
    const LINE: &str = "x_total 12";
    passes(|| vec![ok(LINE)], LINE);
    passes(|| vec![raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nx_total 12\r\n0\r\n\r\n")], LINE);
    passes(|| vec![response("200 OK", &["Content-Encoding: gzip"], gzip(LINE.as_bytes()))], LINE);
}

#[test]
fn openmetrics_ends_with_its_mark() {
    const TYPE: &str = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";
    for page in ["x_total 5\n", "x_total 5\n# EO", "# EOF\nx_total 5\n"] {
        fails("truncated", &[], move || vec![response("200 OK", &[TYPE], page)]);
        fails("truncated", &[], move || vec![raw(format!("HTTP/1.1 200 OK\r\n{TYPE}\r\n\r\n{page}")), Step::Close]);
    }
    for page in ["x_total 5\n# EOF", "x_total 5\n# EOF\n", "x_total 5\r\n# EOF\r\n\n"] {
        passes(move || vec![response("200 OK", &[TYPE], page)], "x_total 5\n");
        passes(move || vec![raw(format!("HTTP/1.1 200 OK\r\n{TYPE}\r\n\r\n{page}")), Step::Close], "x_total 5\n");
    }
    // The mark ends a page that does not say what it is, too.
    passes(|| vec![raw("HTTP/1.0 200 OK\r\n\r\nx_total 5\n# EOF"), Step::Close], "x_total 5\n");
}

/// What comes through of an upstream that answers so, up to the end of the last line.
fn passes(reply: impl Fn() -> Reply + Send + Sync + 'static, page: &str) {
    let upstream = Upstream::start(move |_| reply());
    let answer = Exporter::start(&upstream.url(), &[]).metrics();
    assert!(answer.has("kvtier_upstream_up{upstream=\"main\"} 1"), "{}", answer.body);
    let came = answer.body.split_once("# HELP kvtier_").unwrap().0;
    assert_eq!(came.replace('\r', "").trim_end(), page.trim_end());
}

/// What is done to an upstream, the reason that has to stand in the metric, and words that have to stand behind "meaning" on `/debug`.
type Cause = (fn() -> Reply, &'static str, &'static str);

/// One of each way in which an answer goes wrong.
const CAUSES: [Cause; 30] = [
    (|| vec![Step::Close], "reset", "closed the connection without an answer"),
    (|| vec![raw("HTTP/1.1 200 OK\r\nContent-"), Step::Close], "reset", "it ended before the head of a response"),
    (|| vec![Step::Hang], "timeout", "did not answer within 2s"),
    (|| vec![raw("HTTP/1.1 200"), Step::Hang], "timeout", "did not answer within 2s"),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx_total 1\n"), Step::Hang],
        "timeout",
        "answered, but 2s passed before its page had come, after 10 bytes",
    ),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nx_total 1\n\r\n"), Step::Hang],
        "timeout",
        "answered, but 2s passed before its page had come, after 10 bytes",
    ),
    (|| vec![response("404 Not Found", &[], "no")], "status", "answered with status 404"),
    (
        || vec![raw("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n")],
        "status",
        "answered with status 101",
    ),
    (|| vec![response("401 Unauthorized", &[], "")], "auth", "needs credentials: it answered with status 401"),
    (|| vec![response("302 Found", &["Location: http://127.0.0.2/m"], "")], "redirect", "redirects to another server"),
    (|| vec![response("302 Found", &[], "")], "redirect", "redirects without saying where to"),
    (|| vec![response("302 Found", &["Location: /metrics"], "")], "redirect", "redirects more than 3 times"),
    (
        || vec![raw(format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: a\r\n".repeat(101)))],
        "too_large",
        "sent a response head of more than 100 lines or 256 KiB",
    ),
    (
        || vec![raw(format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(1 << 20))), Step::Hang],
        "too_large",
        "sent a response head of more than 100 lines or 256 KiB",
    ),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n"), Step::Hang],
        "too_large",
        "answers with more than 1024 bytes of body",
    ),
    (|| vec![ok("x_total 1\n".repeat(103))], "too_large", "answers with more than 1024 bytes of body"),
    (
        || vec![response("200 OK", &["Content-Encoding: gzip"], gzip(&[b'x'; 2000]))],
        "too_large",
        "answers with more than 1024 bytes of unpacked body",
    ),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nx_total 1\n"), Step::Close],
        "truncated",
        "broke off after 10 bytes of the body",
    ),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nx_total 1\n"), Step::Close],
        "truncated",
        "broke off after 10 bytes of the body",
    ),
    (
        || vec![raw("HTTP/1.0 200 OK\r\n\r\nx_total 1"), Step::Close],
        "truncated",
        "ended its page after 9 bytes without an end of its last line",
    ),
    (
        || vec![response("200 OK", &["Content-Type: application/openmetrics-text"], "x_total 1\n")],
        "truncated",
        "without the # EOF that ends OpenMetrics",
    ),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx_total 1\n")],
        "encoding",
        "sent a body in chunks that cannot be read, after 0 bytes",
    ),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\nx_total 1\nmore")],
        "encoding",
        "sent a body in chunks that cannot be read, after 10 bytes",
    ),
    (
        || vec![response("200 OK", &["Content-Encoding: zstd"], PAGE)],
        "encoding",
        "packed the body in a way that cannot be read: content-encoding",
    ),
    (
        || vec![response("200 OK", &["Content-Encoding: identity", "Content-Encoding: br"], PAGE)],
        "encoding",
        "packed the body in a way that cannot be read: content-encoding",
    ),
    (|| vec![ok(gzip(PAGE.as_bytes()))], "encoding", "sent a page packed with gzip and no Content-Encoding header"),
    (|| vec![raw("PONG\r\n\r\n")], "content", "sent what is no HTTP response. Is this the engine's own port?"),
    (
        || vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n")],
        "content",
        "sent what is no HTTP response. Is this the engine's own port?",
    ),
    (|| vec![ok("<html></html>")], "content", "sent HTML instead of metrics"),
    (|| vec![ok(" ")], "empty", "sent an empty page"),
];

#[test]
fn each_cause_is_told_by_its_own_words() {
    let (late, others): (Vec<Cause>, Vec<Cause>) = CAUSES.into_iter().partition(|(_, reason, _)| *reason == "timeout");
    std::thread::scope(|scope| {
        // Only these wait for the deadline. The others have far more time than they need on a busy box.
        for cause in late {
            scope.spawn(move || is_told(cause, "--upstream.timeout=2s"));
        }
        for cause in others {
            is_told(cause, "--upstream.timeout=20s");
        }
    });
}

fn is_told((reply, reason, words): Cause, timeout: &str) {
    let (exporter, _upstream) = fails(reason, &[timeout, "--upstream.max-bytes=1KiB"], reply);
    let debug = exporter.get("/debug").body;
    let meaning = debug.lines().find(|line| line.starts_with("  meaning  the upstream ")).unwrap();
    assert!(meaning.contains(words), "{words}: {meaning}");
}

#[test]
fn all_headers_that_name_a_coding_count() {
    let packed =
        || vec![response("200 OK", &["Content-Encoding: identity", "Content-Encoding: gzip"], gzip(PAGE.as_bytes()))];
    passes(packed, PAGE);
    passes(|| vec![response("200 OK", &["Content-Encoding: identity, gzip"], gzip(PAGE.as_bytes()))], PAGE);
}

#[test]
fn a_head_of_many_lines_is_told_as_that() {
    let head = |lines: usize| -> String { (1..=lines).map(|line| format!("X-{line}: a\r\n")).collect() };
    // With Content-Length they are 100 and 101.
    for (lines, reason) in [(99, None), (100, Some("too_large"))] {
        let whole = format!("HTTP/1.1 200 OK\r\n{}Content-Length: 10\r\n\r\nx_total 1\n", head(lines));
        let upstream = Upstream::start(move |_| vec![raw(&whole)]);
        let exporter = Exporter::start(&upstream.url(), &[]);
        let body = exporter.metrics().body;
        let told =
            reason.map(|reason| format!("kvtier_upstream_error_info{{upstream=\"main\",reason=\"{reason}\"}} 1"));
        assert!(body.contains(told.as_deref().unwrap_or("kvtier_upstream_up{upstream=\"main\"} 1")), "{body}");
        let debug = exporter.get("/debug").body;
        assert_eq!(
            debug.contains("sent a response head of more than 100 lines or 256 KiB"),
            reason.is_some(),
            "{debug}"
        );
    }
}

#[test]
fn codings_that_cannot_be_undone() {
    fails("encoding", &[], || vec![response("200 OK", &["Content-Encoding: br"], PAGE)]);
    fails("encoding", &[], || vec![response("200 OK", &["Content-Encoding: gzip"], PAGE)]);
    fails("encoding", &[], || {
        let mut packed = gzip(PAGE.as_bytes());
        let checksum = packed.len() - 8;
        packed[checksum] ^= 1;
        vec![response("200 OK", &["Content-Encoding: gzip"], packed)]
    });
}

#[test]
fn what_is_no_metrics_page() {
    fails("content", &[], || vec![response("200 OK", &["Content-Type: text/html"], "<html>x_total</html>")]);
    fails("content", &[], || vec![response("200 OK", &["Content-Type: application/json"], "{\"error\":\"loading\"}")]);
    fails("content", &[], || vec![ok("  <!DOCTYPE html>\n")]);
    fails("content", &[], || vec![ok("Internal Server Error: x_total\n")]);
    fails("content", &[], || vec![ok([0, 159, 146, 150])]);
    fails("content", &[], || vec![raw("220 smtp ready\r\n"), Step::Close]);
}

#[test]
fn empty() {
    fails("empty", &[], || vec![ok("")]);
    fails("empty", &[], || vec![raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")]);
    fails("empty", &[], || vec![raw("HTTP/1.1 200 OK\r\n\r\n"), Step::Close]);
}

#[test]
fn strict_answers_502_with_our_families() {
    let upstream =
        Upstream::start(|request| vec![if request.number == 1 { response("500 Oops", &[], "") } else { ok(PAGE) }]);
    let exporter = Exporter::start(&upstream.url(), &["--strict"]);
    let answer = exporter.metrics();
    assert_eq!((answer.status, answer.has("kvtier_upstream_up{upstream=\"main\"} 0")), (502, true));
    assert_eq!(exporter.metrics().status, 200);
}

#[test]
fn an_outage_is_two_log_lines_and_ready_stays_ready() {
    let upstream =
        Upstream::start(|request| vec![if request.number <= 5 { response("503 Loading", &[], "") } else { ok(PAGE) }]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for _ in 0..5 {
        exporter.metrics();
        assert_eq!(exporter.get("/-/ready").status, 200);
    }
    for _ in 0..5 {
        assert!(exporter.metrics().has("x_total{k=\"1\"} 5"));
    }
    let upstream_lines =
        || exporter.log().into_iter().filter(|line| line.contains("msg=\"the upstream")).collect::<Vec<_>>();
    until("the log has both lines", || upstream_lines().len() >= 2);
    let lines = upstream_lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(field(&lines[0], "reason"), Some("status"));
    assert_eq!(field(&lines[1], "failed"), Some("5"));
}

#[test]
fn good_and_bad_answers_in_turn_leak_neither_descriptors_nor_threads() {
    let upstream = Upstream::start(|request| match request.number % 5 {
        0 => vec![Step::Close],
        1 => vec![response("500 Oops", &[], "x".repeat(100_000))],
        2 => vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nx"), Step::Close],
        3 => vec![Step::Hang],
        _ => vec![ok(PAGE)],
    });
    let exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=50ms"]);
    let count = |folder: &str| std::fs::read_dir(format!("/proc/{}/{folder}", exporter.pid())).unwrap().count();
    for _ in 0..10 {
        exporter.metrics();
    }
    let before = (count("fd"), count("task"));
    for _ in 0..100 {
        exporter.metrics();
    }
    until("all descriptors are back", || (count("fd"), count("task")) <= before);
}
