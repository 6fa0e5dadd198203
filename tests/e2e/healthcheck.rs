//! `healthcheck`: one word for a container runtime.

use std::net::TcpListener;
use std::process::Output;
use std::time::{Duration, Instant};

use crate::support::exporter::{Exporter, command, run};
use crate::support::upstream::{Step, Upstream, ok, raw, response};

fn ask(place: &str) -> Output {
    run(&["healthcheck", "--url", place])
}

fn complaint(output: &Output) -> &str {
    let stderr = std::str::from_utf8(&output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(output.stdout.is_empty());
    stderr
}

#[test]
fn a_running_exporter_is_healthy_whatever_its_upstream_does() {
    let exporter = Exporter::start("127.0.0.1:1", &["--strict"]);
    let address = exporter.address.to_string();
    for output in [
        ask(&address),
        ask(&format!("http://{address}/")),
        ask(&format!("http://{address}/-/healthy")),
        run(&["healthcheck", "--web.listen-address", &address]),
        run(&["--web.listen-address", &address, "healthcheck"]),
        command(&["healthcheck"]).env("KVTIER_WEB_LISTEN_ADDRESS", &address).output().unwrap(),
    ] {
        let said = (output.status.code(), output.stdout.len(), output.stderr.len());
        assert_eq!(said, (Some(0), 0, 0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn it_asks_for_liveness_and_nothing_else() {
    let other = Upstream::start(|_| vec![ok("healthy\n")]);
    assert!(ask(&other.address.to_string()).status.success());
    let requests = other.requests();
    assert_eq!((requests.len(), requests[0].path.as_str()), (1, "/-/healthy"));
    assert!(!requests[0].head.to_ascii_lowercase().contains("authorization"));
}

#[test]
fn one_that_asks_for_a_password_serves() {
    let other = Upstream::start(|_| vec![response("401 Unauthorized", &["WWW-Authenticate: Basic"], "")]);
    assert!(ask(&other.address.to_string()).status.success());
}

#[test]
fn what_does_not_serve_is_one_line_and_status_1() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let nobody = format!("127.0.0.1:{port}");
    let refused = ask(&nobody);
    let said = format!(
        "kvtier-exporter: http://{nobody}/-/healthy cannot be reached: connection refused. Does the exporter run"
    );
    assert!(complaint(&refused).starts_with(&said), "{refused:?}");
    let failing = Upstream::start(|_| vec![response("503 Oops", &[], "")]);
    assert!(complaint(&ask(&failing.address.to_string())).ends_with("answered with status 503\n"));
    let garbage = Upstream::start(|_| vec![raw("220 smtp ready\r\n"), Step::Close]);
    assert!(complaint(&ask(&garbage.address.to_string())).contains("https://"));
    assert!(complaint(&run(&["healthcheck", "--web.listen-address=127.0.0.1:0"])).contains("--url"));
}

/// A page of metrics in place of the one that is meant: 300 lines of 20 bytes and more are beyond 4096.
#[test]
fn a_page_that_is_not_of_its_health_is_told_with_the_path_that_is() {
    let page = "some_family{a=\"b\"} 123\n".repeat(300);
    let other = Upstream::start(move |_| vec![ok(&page)]);
    let said = ask(&format!("http://{}/metrics", other.address));
    assert!(complaint(&said).ends_with("says of its health: ask for /-/healthy, or give --url no path\n"), "{said:?}");
}

#[test]
fn it_does_not_wait_for_long() {
    let silent = Upstream::start(|_| vec![Step::Hang]);
    let began = Instant::now();
    assert!(complaint(&ask(&silent.address.to_string())).ends_with("did not answer within 2s\n"));
    assert!(began.elapsed() < Duration::from_secs(10));
}
