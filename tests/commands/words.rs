//! What goes wrong is told in words for people: no text of a library, no number of the system's.

use std::net::TcpListener;
use std::process::Command;

use crate::bench::{Bench, Said, full};
use crate::check_upstream::LIBRARY;
use crate::program::upstream::{Step, Upstream, ok, raw, response};

/// Asserts that what is said has these words, and none of a library.
fn plain(said: &Said, words: &[&str]) {
    let all = format!("{} {}", said.flat(), said.err);
    for piece in words {
        assert!(all.contains(piece), "{piece:?} is not in {all}");
    }
    for piece in LIBRARY {
        assert!(!all.contains(piece), "{piece:?} is in {all}");
    }
    assert!(said.status != 0 && !all.contains("panicked"), "{all}");
}

#[test]
fn the_command_line() {
    let bench = Bench::new();
    for (words, says) in [
        (&["plan"][..], "the following required arguments were not provided: --engine <vllm|sglang> (--help"),
        (
            &["report", "--prometheus=h:1", "--before=-2h..-1h"],
            "required arguments were not provided: --after <FROM..TO>",
        ),
        (&["check", "--engines=0"], "must be 1 or more"),
        (&["check", "--engines=x"], "must be a whole number"),
        (&["check", "--engine.ranks=0"], "must be 1 or more"),
        (&["plan", "--engine=vllm", "--gpu-pool-tokens=-1"], "must be a whole number"),
        (&["--web.max-requests=x"], "must be a whole number"),
        (&["--upstream.timeout=10"], "has a number without a unit of time; write for example 10s"),
        (&["--upstream.timeout=10lightyears"], "no unit of time in \"lightyears\""),
        (&["--upstream.min-interval=soon"], "\"soon\" is no length of time"),
        (&["report", "--prometheus=h:1", "--window=-1..now"], "-1: has a number without a unit of time"),
        (&["report", "--prometheus=h:1", "--window=-2h"], "is no window; write FROM..TO"),
    ] {
        let said = bench.run(words);
        plain(&said, &[says]);
        assert!(
            !said.err.contains("invalid digit") && !said.err.contains("..=") && !said.err.contains("expected number")
        );
    }
}

/// As a compose file sets it that names a variable which nobody has filled in.
#[test]
fn an_empty_variable_is_as_none() {
    let plan = |variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtier-exporter"));
        command.args(["plan", "--engine=vllm"]).env_clear();
        let said = command.envs(variable.map(|name| (name, ""))).output().unwrap();
        (said.status, String::from_utf8(said.stderr).unwrap())
    };
    let without = plan(None);
    for name in ["KVTIER_TIER_SIZE", "KVTIER_UPSTREAM_TIMEOUT", "KVTIER_GPU_UNIFIED", "KVTIER_EVENTS"] {
        assert_eq!(plan(Some(name)), without, "{name}");
    }
}

#[test]
fn files() {
    let bench = Bench::new();
    let at = |name: &str| bench.at(name).display().to_string();
    bench.write("open.yaml", "local_cpu: [\n");
    std::fs::write(at("bytes"), b"\xff\xfe").unwrap();
    let config = |path: String| bench.check(&["--lmcache.config", &path]);
    plain(&config(at("none")), &["cannot read --lmcache.config", "none: no such file or directory"]);
    plain(&config(at("")), &["is a directory"]);
    plain(&config(at("bytes")), &["it is no UTF-8 text"]);
    plain(&config(at("open.yaml")), &["open.yaml, line ", "this is not YAML"]);
    let missing = &["no such file or directory"];
    plain(&bench.at_upstream("https://127.0.0.1:1", &["--upstream.ca-file", &at("none")]), missing);
    plain(&bench.run(&["--web.config.file", &at("none"), "--web.listen-address=127.0.0.1:0"]), missing);
    plain(&bench.check(&["--upstream.bearer-token-file", &at("none")]), &["cannot be read: no such file or directory"]);
    plain(&bench.check(&["--path.disk-tier", &at("none")]), &["none"]);
    plain(&bench.check(&["--path.cgroup", &at("none")]), &["cgroup"]);
}

#[test]
fn places_where_nobody_listens() {
    let bench = Bench::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let used = format!("--web.listen-address={}", taken.local_addr().unwrap());
    plain(&bench.run(&[&used]), &["the address is in use"]);
    plain(&bench.run(&["--web.listen-address=192.0.2.1:10477"]), &["this box has no such address"]);
    plain(&bench.run(&["--web.listen-address=no-such-host.invalid:1"]), &["the name has no address"]);
    let name = "no-such-host.invalid";
    plain(
        &bench.run(&["healthcheck", "--url", &format!("http://{name}:1")]),
        &["the name no-such-host.invalid", "the exporter"],
    );
    plain(&bench.run(&["report"]), &["cannot be reached: connection refused", "Is the engine up?"]);
    let window = ["--window=-2h..-1h"];
    let prometheus = |address: &str| bench.run(&[&["report", "--prometheus", address], &window[..]].concat());
    plain(
        &prometheus("http://127.0.0.1:1"),
        &["connection refused. Does the Prometheus run", "--prometheus names another place"],
    );
    plain(&prometheus(&format!("http://{name}:1")), &["the name no-such-host.invalid", "after --prometheus"]);
    plain(&bench.check(&[&format!("--events=tcp://{name}:5557")]), &["the name no-such-host.invalid"]);
    plain(&bench.check(&["--events=tcp://127.0.0.1:1"]), &["connection refused"]);
    plain(&bench.check(&["--lmcache.url=127.0.0.1:1"]), &["connection refused"]);
}

/// What answers, and is no Prometheus, no LMCache, no page.
#[test]
fn answers_of_something_else() {
    let bench = Bench::new();
    let prometheus = |server: &Upstream| {
        bench.run(&["report", "--prometheus", &server.url().replace("/metrics", ""), "--window=-2h..-1h"])
    };
    let cache = |server: &Upstream| bench.check(&["--lmcache.url", &server.url().replace("/metrics", "/conf")]);
    for (body, says) in [
        ("<html></html>", "sent a page for browsers (HTML) in place of JSON"),
        ("", "sent an empty answer in place of JSON"),
        ("{\"status\": \"suc", "broke off amid its JSON"),
        ("up 1\n", "sent something else than JSON"),
    ] {
        let server = Upstream::start(move |_| vec![ok(body)]);
        plain(&prometheus(&server), &[says, "--prometheus wants the address of a Prometheus"]);
        plain(&cache(&server), &[says]);
    }
    let elsewhere = Upstream::start(|_| vec![response("404 Not Found", &[], "404 page not found")]);
    plain(
        &prometheus(&elsewhere),
        &["answered with status 404: 404 page not found", "wants the address of a Prometheus"],
    );
    let damaged = Upstream::start(|_| vec![response("200 OK", &["Content-Encoding: gzip"], "no gzip")]);
    plain(
        &bench.at_upstream(&damaged.url(), &[]),
        &["gzip that is damaged, or breaks off", "whole and packed with gzip"],
    );
    let short =
        Upstream::start(|_| vec![raw("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\nvllm:up 1\n"), Step::Close]);
    plain(&bench.at_upstream(&short.url(), &[]), &["broke off after 10 bytes"]);
    let closing = Upstream::start(|_| vec![Step::Close]);
    plain(&prometheus(&closing), &["closed the connection without an answer"]);
    let peer = Upstream::start(|_| vec![ok(full())]);
    plain(&bench.check(&[&format!("--events=tcp://{}", peer.address)]), &["events"]);
}
