//! The log: a line an event and never a line a scrape, in both notations, fit for a terminal.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::PAGE;
use crate::support::client::get;
use crate::support::exporter::{Exporter, command};
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
fn an_upstream_that_never_failed_answers_after_no_failures() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    exporter.metrics();
    let told = || exporter.log().into_iter().find(|line| line.contains("the upstream answers"));
    until("it is told", || told().is_some());
    assert!(!told().unwrap().contains("failed"), "{told:?}", told = told());
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

/// The program with a log that nobody reads: its pipe holds 64 KiB.
struct Unread {
    child: Child,
    address: SocketAddr,
}

impl Unread {
    fn start(flags: &[&str]) -> Unread {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let listen = format!("--web.listen-address={address}");
        let all = [&["--upstream=127.0.0.1:1", "--log.level=debug", &listen], flags].concat();
        let child = command(&all).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        until("it listens", || TcpStream::connect(address).is_ok());
        Unread { child, address }
    }

    fn dropped(&self) -> u64 {
        let page = get(self.address, "/metrics").body;
        page.lines().find_map(|line| line.strip_prefix("kvtier_log_dropped_lines_total ")).unwrap().parse().unwrap()
    }

    /// Says what is logged at length until lines are dropped.
    fn stall(&self) {
        until("lines are dropped", || {
            for _ in 0..200 {
                TcpStream::connect(self.address).unwrap().write_all(b"nonsense\r\n\r\n").unwrap();
            }
            self.dropped() > 100
        });
    }

    /// Reads on, for as long as the program lives.
    fn read(&mut self) -> Arc<Mutex<Vec<String>>> {
        let (lines, stderr) = (Arc::<Mutex<Vec<String>>>::default(), BufReader::new(self.child.stderr.take().unwrap()));
        let read = Arc::clone(&lines);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                read.lock().unwrap().push(line);
            }
        });
        lines
    }

    /// How long it lives on after SIGTERM.
    fn end(&mut self) -> Duration {
        let pid = rustix::process::Pid::from_child(&self.child);
        let began = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        until("it ends", || self.child.try_wait().unwrap().is_some());
        began.elapsed()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_reader_that_stalls_stops_nothing() {
    let mut exporter = Unread::start(&[]);
    exporter.stall();
    let began = Instant::now();
    assert_eq!(get(exporter.address, "/-/healthy").status, 200);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    let ended = exporter.end();
    assert!(ended < Duration::from_secs(3), "{ended:?}");
}

#[test]
fn a_reader_that_returns_is_told_how_many_lines_are_missing_and_where() {
    for (format, is_notice) in [("logfmt", "level=error"), ("json", "\"level\":\"ERROR\"")] {
        let mut exporter = Unread::start(&[&format!("--log.format={format}")]);
        exporter.stall();
        let lines = exporter.read();
        let read = || lines.lock().unwrap().clone();
        let notice = || read().iter().position(|line| line.contains(is_notice));
        until("the number is told", || notice().is_some());
        let (missing, at, all) = (exporter.dropped(), notice().unwrap(), read());
        let number = if format == "json" { format!("\"lines\":{missing},") } else { format!("lines={missing}") };
        let told = &all[at];
        assert!(told.contains("lines are missing here") && told.contains(&number), "{told} {missing}");
        // Before it the lines that were kept: a pipe and a queue of them. Behind it the log goes on.
        let before: usize = all[..at].iter().map(|line| line.len() + 1).sum();
        assert!((256 << 10..2 * (256 << 10) + (64 << 10)).contains(&before), "{before}");
        TcpStream::connect(exporter.address).unwrap().write_all(b"nonsense\r\n\r\n").unwrap();
        until("the log goes on", || read().len() > at + 1);
        exporter.end();
        until("the last line is there", || read().last().unwrap().contains("ending"));
        assert_eq!(read().iter().filter(|line| line.contains(is_notice)).count(), 1);
    }
}
