//! A web configuration that is read again: at once on SIGHUP, and never for less than was asked for.

use std::fs;
use std::io::{ErrorKind, Read, Write};

use crate::authority::{Authority, Identity};
use crate::home::{Home, TLS, hang_up};
use crate::support::client::{Answer, get_with};
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Upstream, ok};
use crate::users::authorization;
use crate::{PAGE, SECOND, SESAME};

const MUTUAL: &str = "  client_ca_file: ca.pem\n  client_auth_type: RequireAndVerifyClientCert\n";

fn user(hash: &str) -> String {
    format!("basic_auth_users:\n  prom: {hash}\n")
}

fn value(answer: &Answer, name: &str) -> f64 {
    let line = answer.body.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}: {}", answer.body)).parse().unwrap()
}

/// The notice of a refused file.
const NOTICE: &str = "kvtier_notice_active{id=\"config-reload-refused\"} 1";

/// Whether what is there now is in force, and when what is in force was read.
fn state(answer: &Answer) -> (f64, f64) {
    let name = "kvtier_config_reload_success";
    (value(answer, name), value(answer, &format!("{name}_timestamp_seconds")))
}

/// Of each pair: before, after, and what is said of it.
fn weaker() -> Vec<(String, String, &'static str)> {
    let kind = |kind: &str| format!("{TLS}  client_auth_type: {kind}\n");
    let verified = |kind: &str| format!("{TLS}  client_ca_file: ca.pem\n  client_auth_type: {kind}\n");
    let mutual = format!("{TLS}{MUTUAL}");
    vec![
        (mutual.clone(), TLS.to_owned(), "would ask clients for no certificate any more"),
        (mutual.clone(), verified("VerifyClientCertIfGiven"), "would let clients in that show no certificate"),
        (mutual.clone(), kind("RequireAnyClientCert"), "would no longer look who signed the certificates of clients"),
        (mutual.clone(), kind("RequestClientCert"), "would let clients in that show no certificate"),
        (mutual, String::new(), "would take TLS away"),
        (kind("RequireAnyClientCert"), kind("RequestClientCert"), "would let clients in that show no certificate"),
        (kind("RequestClientCert"), kind("NoClientCert"), "would ask clients for no certificate any more"),
        (format!("{TLS}  min_version: TLS13\n"), TLS.to_owned(), "would speak an older version of TLS"),
    ]
}

#[test]
fn what_would_ask_for_less_of_a_connection_is_refused_and_told() {
    let home = Home::new();
    let mut client = home.authority.client();
    let identity = home.authority.identity("prometheus");
    client.identity = Some(&identity);
    for (before, after, said) in weaker() {
        let running = home.start(&before, &[]);
        let (address, metrics) =
            (running.exporter.address, || client.get(running.exporter.address, "/metrics").unwrap());
        let (success, read) = state(&metrics());
        assert!((success, read > 1e9) == (1.0, true), "{before}");
        home.write("web.yml", &after);
        hang_up(&running.exporter);
        until("it is refused", || running.logged(&format!("{said}; that needs a restart")) > 0);
        assert_eq!(state(&metrics()), (0.0, read), "{before} to {after}");
        let page = metrics();
        assert!(page.has(NOTICE), "{before} to {after}: {}", page.body);
        let debug = client.get(address, "/debug").unwrap().body;
        assert!(debug.contains(said), "{debug}");
        if before.contains("Require") {
            assert!(home.authority.client().get(address, "/metrics").is_err(), "{before} to {after}");
        }
        home.write("web.yml", &before);
        hang_up(&running.exporter);
        until("all is well again", || state(&metrics()).0 == 1.0);
        assert!(!metrics().has(NOTICE));
        assert!(state(&metrics()).1 > read && !client.get(address, "/debug").unwrap().body.contains("trouble"));
    }
}

/// An editor writes in place, and is caught behind each line.
#[test]
fn a_file_that_is_being_written_opens_nothing() {
    let home = Home::new();
    let whole = format!("{TLS}{MUTUAL}{}", user(SESAME));
    let running = home.start(&whole, &[]);
    let (identity, address) = (home.authority.identity("prometheus"), running.exporter.address);
    let status = |identity: Option<&Identity>| {
        let mut client = home.authority.client();
        client.identity = identity;
        client.get(address, "/metrics").map(|answer| answer.status).ok()
    };
    for (number, (end, _)) in whole.match_indices('\n').enumerate() {
        fs::write(home.path("web.yml"), &whole[..end]).unwrap();
        hang_up(&running.exporter);
        let seen = || running.logged("stays in force") + running.logged("was read again and is in force");
        until("it was read", || seen() > number);
        assert_eq!((status(None), status(Some(&identity))), (None, Some(401)), "{:?}", &whole[..end]);
    }
}

#[test]
fn a_file_without_users_is_refused_and_single_users_are_revoked_at_once() {
    let home = Home::new();
    let running = home.start(&(user(SESAME) + &format!("  other: {SECOND}\n")), &[]);
    let get = |name, password| get_with(running.exporter.address, "/metrics", &[&authorization(name, password)]);
    let (success, read) = state(&get("prom", "open sesame"));
    assert!(success == 1.0 && get("other", "second").status == 200);
    for empty in ["", "basic_auth_users: {}\n", "http_server_config: {http2: false}\n", TLS] {
        home.write("web.yml", empty);
        let before = running.logged("would take the users away; that needs a restart");
        hang_up(&running.exporter);
        until("it is refused", || running.logged("would take the users away; that needs a restart") > before);
        assert_eq!(running.exporter.metrics().status, 401);
        assert_eq!(state(&get("prom", "open sesame")), (0.0, read), "{empty}");
    }
    assert_eq!(running.logged("everything is served to everybody"), 0, "it is not");
    home.write("web.yml", &user(SESAME));
    hang_up(&running.exporter);
    until("one is gone", || get("other", "second").status == 401);
    assert_eq!(state(&get("prom", "open sesame")).0, 1.0);
}

#[test]
fn without_a_file_there_is_nothing_to_tell_and_a_hangup_ends_nothing() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for _ in 0..3 {
        hang_up(&exporter);
    }
    until("it is told", || exporter.log().iter().any(|line| line.contains("there is no --web.config.file")));
    let answer = exporter.metrics();
    assert!(answer.status == 200 && !answer.body.contains("kvtier_config_reload"), "{}", answer.body);
}

#[test]
fn a_hangup_reads_the_files_again_though_none_has_changed() {
    let home = Home::new();
    let running = home.start(&user(SESAME), &[]);
    for hangups in 1..4 {
        hang_up(&running.exporter);
        until("it was read again", || running.logged("was read again and is in force") == hangups);
    }
}

/// A client that was let in by an authority of yesterday does not stay for ever.
#[test]
fn connections_of_before_end_when_other_tls_is_asked_for() {
    let home = Home::new();
    let running = home.start(&format!("{TLS}{MUTUAL}"), &[]);
    let identity = home.authority.identity("prometheus");
    let mut client = home.authority.client();
    client.identity = Some(&identity);
    let mut old = client.connect(running.exporter.address).unwrap();
    old.write_all(b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(old.read(&mut [0; 4096]).unwrap() > 0);
    home.write("ca.pem", &Authority::new().pem());
    let mut some = [0; 4096];
    let end = loop {
        match old.read(&mut some) {
            Ok(1..) => {}
            Ok(0) => break None,
            Err(error) => break Some(error.kind()),
        }
    };
    // Without a timeout of the test's own.
    assert!(matches!(end, None | Some(ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof)), "{end:?}");
    until("it was read again", || running.logged("was read again and is in force") == 1);
}
