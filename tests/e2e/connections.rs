//! How the upstream is reached: keep-alive and its end, redirects, IPv6, socket files, the bearer token.

use std::fs;
use std::net::TcpListener;

use crate::PAGE;
use crate::support::client::get_with;
use crate::support::exporter::{Exporter, command};
use crate::support::until;
use crate::support::upstream::{Step, Upstream, ok, response, serve_socket};

fn paths(upstream: &Upstream) -> Vec<String> {
    upstream.requests().into_iter().map(|request| request.path).collect()
}

#[test]
fn a_connection_that_stays_open_serves_the_next_scrape() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for _ in 0..3 {
        assert!(exporter.metrics().body.starts_with(PAGE));
    }
    assert_eq!((upstream.requests().len(), upstream.connections()), (3, 1));
}

#[test]
fn a_connection_closed_between_scrapes_costs_nothing() {
    let upstream = Upstream::start(|_| vec![ok(PAGE), Step::Close]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for _ in 0..20 {
        assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
    }
    assert_eq!((upstream.requests().len(), upstream.connections()), (20, 20));
}

#[test]
fn a_reused_connection_that_dies_is_tried_again_once() {
    let upstream =
        Upstream::start(|request| if request.on_connection == 1 { vec![ok(PAGE)] } else { vec![Step::Close] });
    let exporter = Exporter::start(&upstream.url(), &[]);
    for scrape in 1..=3 {
        assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
        assert_eq!(upstream.connections(), scrape);
    }
    assert_eq!(upstream.requests().len(), 5, "one, then twice one that dies and one that works");
}

#[test]
fn the_second_try_is_the_last() {
    let upstream = Upstream::start(|request| vec![if request.number == 1 { ok(PAGE) } else { Step::Close }]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    exporter.metrics();
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"reset\"} 1"));
    assert_eq!(upstream.requests().len(), 3);
}

#[test]
fn a_new_connection_is_tried_once() {
    let upstream = Upstream::start(|_| vec![Step::Close]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    exporter.metrics();
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn redirects_on_the_same_server_are_followed() {
    let upstream = Upstream::start(|request| match request.path.as_str() {
        "/metrics" => vec![response("307 Temporary Redirect", &["Location: /engine/metrics"], "see there")],
        "/engine/metrics" => {
            let host = request.head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
            let location = format!("Location: http://{host}/v2/metrics?a=b");
            vec![response("308 Permanent Redirect", &[&location], "")]
        }
        "/v2/metrics?a=b" => vec![response("302 Found", &["Location: end"], "")],
        _ => vec![ok(PAGE)],
    });
    let exporter = Exporter::start(&upstream.url(), &[]);
    assert!(exporter.metrics().body.starts_with(PAGE));
    assert_eq!(paths(&upstream), ["/metrics", "/engine/metrics", "/v2/metrics?a=b", "/v2/end"]);
    assert_eq!(upstream.connections(), 1);
}

#[test]
fn a_loop_ends_after_three_redirects() {
    let upstream = Upstream::start(|_| vec![response("307 Temporary Redirect", &["Location: /metrics/"], "")]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"redirect\"} 1"));
    assert_eq!(paths(&upstream), ["/metrics", "/metrics/", "/metrics/", "/metrics/"]);
}

#[test]
fn another_server_gets_neither_a_request_nor_the_token() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("token");
    fs::write(&token, "s3cret\n").unwrap();
    let other = Upstream::start(|_| vec![ok(PAGE)]);
    let location = format!("Location: http://{}/metrics?key=s3cret", other.address);
    let upstream = Upstream::start(move |_| vec![response("307 Temporary Redirect", &[&location], "")]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.bearer-token-file", token.to_str().unwrap()]);
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"redirect\"} 1"));
    assert_eq!(other.connections(), 0);
    let debug = exporter.get("/debug").body;
    assert!(debug.contains(&other.address.to_string()) && !debug.contains("s3cret"), "{debug}");
}

#[test]
fn the_token_is_read_for_each_scrape_and_shown_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "first-s3cret\n").unwrap();
    let upstream = Upstream::start(|request| {
        let token = request.head.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap();
        if token == "Bearer second-s3cret" { vec![ok(PAGE)] } else { vec![response("401 Unauthorized", &[], token)] }
    });
    let exporter = Exporter::start(
        &upstream.url(),
        &["--log.level=trace", "--upstream.bearer-token-file", file.to_str().unwrap()],
    );
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"auth\"} 1"));
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("it wrote \"Bearer ***\""), "{debug}");
    fs::write(&file, "second-s3cret").unwrap();
    assert!(exporter.metrics().body.starts_with(PAGE));
    fs::remove_file(&file).unwrap();
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"auth\"} 1"));
    assert_eq!(upstream.requests().len(), 3, "without the token nothing is asked");
    until("the log tells of all three", || {
        exporter.log().iter().filter(|line| line.contains("msg=\"the upstream")).count() >= 3
    });
    assert!(!exporter.log().concat().contains("s3cret"), "{:?}", exporter.log());
}

#[test]
fn a_name_and_a_password_are_read_for_each_scrape_and_shown_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("login");
    fs::write(&file, "prom:first-s3cret\n").unwrap();
    // base64 of prom:second-s3cret and of prom:first-s3cret, by coreutils.
    const SECOND: &str = "Basic cHJvbTpzZWNvbmQtczNjcmV0";
    const FIRST: &str = "cHJvbTpmaXJzdC1zM2NyZXQ=";
    let upstream = Upstream::start(|request| {
        let sent = request.head.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap();
        let echo = format!("{sent} is prom:first-s3cret");
        if sent == SECOND { vec![ok(PAGE)] } else { vec![response("401 Unauthorized", &[], echo)] }
    });
    let flags = ["--log.level=trace", "--upstream.basic-auth-file", file.to_str().unwrap()];
    let exporter = Exporter::start(&upstream.url(), &flags);
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"auth\"} 1"));
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("it wrote \"Basic *** is prom:***\""), "{debug}");
    fs::write(&file, "prom:second-s3cret").unwrap();
    assert!(exporter.metrics().body.starts_with(PAGE));
    fs::write(&file, "no colon").unwrap();
    let answer = exporter.metrics();
    assert!(answer.has("kvtier_upstream_error_info{upstream=\"main\",reason=\"auth\"} 1"));
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("does not hold user:password"), "{debug}");
    until("the log tells of it", || exporter.log().iter().any(|line| line.contains("reason=auth")));
    let log = exporter.log().concat();
    assert!(!log.contains("s3cret") && !log.contains(FIRST) && !log.contains("no colon"), "{log}");
}

#[test]
fn a_proxy_in_the_environment_is_ignored() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let mut exporter = command(&["--upstream", &upstream.url(), "--web.listen-address=127.0.0.1:0"]);
    for name in ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"] {
        exporter.env(name, format!("http://{dead}"));
    }
    let exporter = Exporter::spawn(exporter.env_remove("NO_PROXY").env_remove("no_proxy"));
    assert!(exporter.metrics().body.starts_with(PAGE));
}

#[test]
fn an_address_in_a_request_is_not_fetched() {
    let (upstream, other) = (Upstream::start(|_| vec![ok(PAGE)]), Upstream::start(|_| vec![ok("other 1\n")]));
    let exporter = Exporter::start(&upstream.url(), &[]);
    let target = format!("/metrics?target={}", other.url());
    let headers = [format!("X-Forwarded-Host: {}", other.address), format!("Referer: {}", other.url())];
    let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
    assert!(get_with(exporter.address, &target, &headers).body.starts_with(PAGE));
    // A proxy's form of request names a whole address; only its path counts.
    assert!(get_with(exporter.address, &other.url(), &[]).body.starts_with(PAGE));
    assert_eq!(other.connections(), 0);
}

#[test]
fn ipv6() {
    // Containers often have no IPv6. The address must be understood there too: as one that cannot be reached.
    let (address, expected, _upstream) = match TcpListener::bind("[::1]:0") {
        Ok(listener) => {
            let upstream = Upstream::on_listener(listener, |_| vec![ok(PAGE)]);
            (upstream.url(), "kvtier_upstream_up{upstream=\"main\"} 1", Some(upstream))
        }
        Err(_) => (
            "http://[::1]:9/metrics".to_owned(),
            "kvtier_upstream_error_info{upstream=\"main\",reason=\"connect\"} 1",
            None,
        ),
    };
    assert!(address.starts_with("http://[::1]:"));
    assert!(Exporter::start(&address, &[]).metrics().has(expected));
}

#[test]
fn a_socket_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vllm.sock");
    let url = format!("unix:{}", path.display());
    let exporter = Exporter::start(&url, &[]);
    assert!(exporter.metrics().has("kvtier_upstream_error_info{upstream=\"main\",reason=\"connect\"} 1"));
    serve_socket(&path, |request| {
        assert!(request.head.contains("host: localhost\r\n"), "{}", request.head);
        vec![ok(PAGE)]
    });
    assert!(exporter.metrics().body.starts_with(PAGE));
}

#[test]
fn an_address_without_a_path_means_metrics() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    for address in
        [upstream.address.to_string(), format!("http://{}", upstream.address), format!("http://{}/", upstream.address)]
    {
        Exporter::start(&address, &[]).metrics();
    }
    assert_eq!(paths(&upstream), ["/metrics", "/metrics", "/metrics"]);
}
