//! The process: flags, variables, start, log, end.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::PAGE;
use crate::support::client::{get, get_aside, send};
use crate::support::exporter::{Exporter, command, field, run};
use crate::support::until;
use crate::support::upstream::{Gate, Step, Upstream, ok};

fn stderr_line(flags: &[&str], code: i32) -> String {
    let output = run(flags);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn a_wrong_flag_is_one_line_and_status_2() {
    assert!(stderr_line(&["--tier.size=32"], 2).contains("32GiB"));
    assert!(stderr_line(&["--upstrem=x"], 2).contains("--upstream"));
    assert!(stderr_line(&["--upstream=ftp://h/"], 2).contains("unix:/path/to.sock"));
    assert!(!stderr_line(&["--upstream=http://u:s3cret@h:1"], 2).contains("s3cret"));
}

#[test]
fn an_address_in_use_is_one_line_and_status_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let line = stderr_line(&["--web.listen-address", &address], 1);
    assert!(line.contains(&address) && line.contains("in use") && line.contains("--web.listen-address"), "{line}");
}

#[test]
fn flags_come_from_the_environment_too() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let mut exporter = command(&[]);
    exporter.env("KVTIER_UPSTREAM", upstream.url());
    exporter.env("KVTIER_WEB_LISTEN_ADDRESS", "127.0.0.1:0,[::ffff:127.0.0.1]:0");
    exporter.env("KVTIER_WEB_TELEMETRY_PATH", "/m");
    let exporter = Exporter::spawn(&mut exporter);
    assert!(exporter.get("/m").body.starts_with(PAGE));
    let listening = || exporter.log().iter().filter(|line| line.contains("msg=listening")).count();
    until("both addresses are served", || listening() == 2);
}

#[test]
fn a_bad_variable_is_refused_like_a_bad_flag() {
    let output = command(&[]).env("KVTIER_TIER_SIZE", "32").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
    assert!(stderr.contains("--tier.size"), "{stderr}");
}

#[test]
fn help_names_the_variables_and_not_their_values() {
    let output = command(&["--help"]).env("KVTIER_UPSTREAM_BEARER_TOKEN_FILE", "/run/s3cret").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(help.contains("[env: KVTIER_UPSTREAM_BEARER_TOKEN_FILE]") && !help.contains("s3cret"), "{help}");
}

#[test]
fn the_version_names_revision_and_compiler() {
    let output = String::from_utf8(run(&["--version"]).stdout).unwrap();
    let expected = concat!("kvtier-exporter ", env!("CARGO_PKG_VERSION"), " (revision ");
    assert!(output.starts_with(expected) && output.contains(", rustc "), "{output}");
}

#[test]
fn log_lines_can_be_json() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut child = command(&["--log.format=json", "--upstream", &upstream.url(), "--web.listen-address", &address]);
    let mut child = child.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stderr.take().unwrap()), &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&line["level"], &line["message"]), (&"INFO".into(), &"starting".into()));
}

#[test]
fn sigterm_lets_a_running_answer_finish() {
    let gate = Gate::default();
    let shut = gate.clone();
    let upstream = Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(PAGE)]);
    let mut exporter = Exporter::start(&upstream.url(), &[]);
    let scrape = get_aside(exporter.address, "/metrics", &[]);
    until("the fetch is under way", || upstream.requests().len() == 1);
    exporter.terminate();
    until("no new connection is taken", || std::net::TcpStream::connect(exporter.address).is_err());
    gate.open();
    assert!(scrape.join().unwrap().body.starts_with(PAGE));
    assert!(exporter.wait().0.success());
}

#[test]
fn sigterm_ends_within_3_s_whatever_hangs() {
    let upstream = Upstream::start(|_| vec![Step::Hang]);
    let mut exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=1m"]);
    let _idle = std::net::TcpStream::connect(exporter.address).unwrap();
    let _scrape = send(exporter.address, "GET", "/metrics", &[]);
    until("the fetch is under way", || upstream.requests().len() == 1);
    let began = Instant::now();
    exporter.terminate();
    let (status, ended) = exporter.wait();
    assert!(status.success());
    assert!(ended - began < Duration::from_secs(3), "{:?}", ended - began);
}

#[test]
fn sigterm_ends_at_once_when_nothing_runs() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let mut exporter = Exporter::start(&upstream.url(), &[]);
    get(exporter.address, "/metrics");
    let began = Instant::now();
    exporter.terminate();
    let (status, ended) = exporter.wait();
    assert!(status.success() && ended - began < Duration::from_secs(1), "{status} after {:?}", ended - began);
}

#[test]
fn a_client_that_says_nothing_does_not_keep_others_waiting() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let _silent: Vec<_> = (0..50).map(|_| std::net::TcpStream::connect(exporter.address).unwrap()).collect();
    assert!(exporter.metrics().body.starts_with(PAGE));
}

#[test]
fn a_log_that_nobody_reads_any_more_costs_no_scrape() {
    use std::io::{BufRead, BufReader};
    let upstream = Upstream::start_resetting();
    let mut child = command(&["--upstream", &upstream.url(), "--web.listen-address", "127.0.0.1:0"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The reader goes once the address is read; from then on every line of the log is a broken pipe.
    let log = BufReader::new(child.stderr.take().unwrap());
    let listening = log.lines().map(Result::unwrap).find(|line| line.contains("msg=listening")).unwrap();
    let address = field(&listening, "address").unwrap().parse().unwrap();
    assert!(get(address, "/metrics").has("kvtier_upstream_error_info{upstream=\"main\",reason=\"reset\"} 1"));
    child.kill().unwrap();
    child.wait().unwrap();
}
