//! TLS: who gets a connection, and certificates that change.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tokio_rustls::rustls::NamedGroup;
use tokio_rustls::rustls::crypto::ring;

use crate::PAGE;
use crate::authority::{Authority, TLS12, TLS13};
use crate::home::{Home, TLS};
use crate::support::until;

#[test]
fn scrapes_come_over_tls() {
    let home = Home::new();
    let running = home.start(TLS, &[]);
    let answer = home.authority.client().get(running.exporter.address, "/metrics").unwrap();
    assert!(answer.status == 200 && answer.body.starts_with(PAGE), "{answer:?}");
}

#[test]
fn plain_http_is_told_to_use_https() {
    let home = Home::new();
    let running = home.start(TLS, &[]);
    let mut stream = TcpStream::connect(running.exporter.address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // The request was not read, so the end may be a reset.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.0 400") && answer.contains("set the scheme to https"), "{answer}");
}

/// As many connections as there is room for, each amid a message of the handshake that is as long as one may be.
#[test]
fn handshakes_that_never_end_hold_little_and_keep_nobody_out() {
    const CONNECTIONS: u64 = 512;
    let home = Home::new();
    let running = home.start(TLS, &[]);
    let (address, before) = (running.exporter.address, running.exporter.resident());
    // A ClientHello (1) that announces 65,000 bytes, of which 60,000 come in records (22, TLS 1.0) of 15,000.
    let hello = [&[1, 0, 0xfd, 0xe8][..], &[0; 59_996]].concat();
    let records = hello.chunks(15_000).map(|part| [&[22, 3, 1, 0x3a, 0x98][..], part].concat());
    let records = records.collect::<Vec<_>>().concat();
    let client = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        // It may be refused before all of it is written.
        let _ = stream.write_all(&records);
        stream
    };
    let _crowd: Vec<_> = (0..CONNECTIONS).map(client).collect();
    let began = Instant::now();
    let answer = home.authority.client().get(address, "/metrics").unwrap();
    assert!(answer.body.starts_with(PAGE) && began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let grown = running.exporter.peak() - before;
    println!("{CONNECTIONS} handshakes: {} KiB each", (grown / CONNECTIONS) >> 10);
    assert!(grown < CONNECTIONS * (96 << 10), "{grown} bytes");
}

#[test]
fn client_certificates() {
    let home = Home::new();
    let stranger = Authority::new();
    let (known, unknown) = (home.authority.identity("prometheus"), stranger.identity("prometheus"));
    for (kind, without, with_known, with_unknown) in [
        ("NoClientCert", true, true, true),
        ("RequestClientCert", true, true, true),
        ("RequireClientCert", false, true, true),
        ("RequireAnyClientCert", false, true, true),
        ("VerifyClientCertIfGiven\n  client_ca_file: ca.pem", true, true, false),
        ("RequireAndVerifyClientCert\n  client_ca_file: ca.pem", false, true, false),
    ] {
        let running = home.start(&format!("{TLS}  client_auth_type: {kind}\n"), &[]);
        for versions in [TLS13, TLS12] {
            for (identity, expected) in [(None, without), (Some(&known), with_known), (Some(&unknown), with_unknown)] {
                let mut client = home.authority.client();
                (client.identity, client.versions) = (identity, versions);
                let answer = client.get(running.exporter.address, "/metrics");
                let who = identity.map(|identity| std::ptr::eq(identity, &raw const known));
                assert_eq!(answer.is_ok_and(|answer| answer.status == 200), expected, "{kind} {versions:?} {who:?}");
            }
        }
    }
}

#[test]
fn versions_suites_and_curves_are_kept() {
    let home = Home::new();
    let connects = |config: &str, versions| {
        let running = home.start(&format!("{TLS}{config}"), &[]);
        let mut client = home.authority.client();
        client.versions = versions;
        client.connect(running.exporter.address).ok().map(|stream| {
            let suite = stream.conn.negotiated_cipher_suite().unwrap().suite().as_str().unwrap();
            (suite, stream.conn.negotiated_key_exchange_group().unwrap().name())
        })
    };
    assert_eq!(connects("  min_version: TLS13\n", TLS12), None);
    assert!(connects("  min_version: TLS13\n", TLS13).is_some());
    assert_eq!(connects("  max_version: TLS12\n", TLS13), None);
    assert!(connects("  min_version: TLS10\n", TLS12).is_some());
    assert_eq!(
        connects("  cipher_suites: [TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n", TLS12).unwrap().0,
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"
    );
    assert_eq!(connects("  curve_preferences: [CurveP384]\n", TLS13).unwrap().1, NamedGroup::secp384r1);
    // A curve that the client has not.
    let running = home.start(&format!("{TLS}  curve_preferences: [CurveP384]\n"), &[]);
    let mut client = home.authority.client();
    client.provider.kx_groups = vec![ring::kx_group::X25519];
    assert!(client.connect(running.exporter.address).is_err());
}

#[test]
fn our_order_of_suites_counts_unless_told_otherwise() {
    let home = Home::new();
    let ours = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    let theirs = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    for (flag, expected) in [("true", ours), ("false", theirs)] {
        let config = format!("{TLS}  cipher_suites: [{ours}, {theirs}]\n  prefer_server_cipher_suites: {flag}\n");
        let running = home.start(&config, &[]);
        let mut client = home.authority.client();
        client.versions = TLS12;
        client.provider.cipher_suites = vec![
            ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            ring::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        ];
        let stream = client.connect(running.exporter.address).unwrap();
        assert_eq!(stream.conn.negotiated_cipher_suite().unwrap().suite().as_str(), Some(expected));
    }
}

#[test]
fn a_new_certificate_is_shown_without_a_restart_and_a_bad_one_never() {
    let home = Home::new();
    let running = home.start(TLS, &[]);
    let (client, address) = (home.authority.client(), running.exporter.address);
    let second = home.authority.identity("127.0.0.1");
    home.install(&second);
    until("the second certificate is shown", || client.shown(address) == second.der());

    home.write("server.pem", "-----BEGIN CERTIFICATE-----\nrubbish");
    until("the log tells of the bad file", || running.logged("stays in force") > 0);
    assert_eq!(client.shown(address), second.der());
    let debug = client.get(address, "/debug").unwrap().body;
    assert!(debug.contains("line 2: tls_server_config.cert_file: ") && debug.contains("stays in force"), "{debug}");

    let third = home.authority.identity("127.0.0.1");
    home.install(&third);
    until("the third certificate is shown", || client.shown(address) == third.der());
    let debug = client.get(address, "/debug").unwrap().body;
    assert!(debug.contains("TLS      on") && !debug.contains("trouble"), "{debug}");
    assert_eq!(
        running.logged("server.pem: holds no certificate") + running.logged("server.pem: is not in PEM form"),
        1
    );
}

#[test]
fn a_new_authority_for_clients_is_taken_too() {
    let home = Home::new();
    let running =
        home.start(&format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"), &[]);
    let (old, new) = (home.authority.identity("prometheus"), Authority::new());
    let newer = new.identity("prometheus");
    let asks = |identity| {
        let mut client = home.authority.client();
        client.identity = Some(identity);
        client.get(running.exporter.address, "/metrics").is_ok_and(|answer| answer.status == 200)
    };
    assert!(asks(&old) && !asks(&newer));
    home.write("ca.pem", &new.pem());
    until("clients of the new authority come in", || asks(&newer));
    assert!(!asks(&old));
}

#[test]
fn tls_is_not_switched_off_by_an_emptied_file() {
    let home = Home::new();
    let running = home.start(TLS, &[]);
    home.write("web.yml", "");
    until("the log tells of it", || running.logged("would take TLS away; that needs a restart") > 0);
    assert!(home.authority.client().get(running.exporter.address, "/metrics").is_ok());
}

#[test]
fn handshakes_that_fail_or_never_end_cost_nobody_else() {
    let home = Home::new();
    let running = home.start(TLS, &[]);
    let address = running.exporter.address;
    let _silent: Vec<_> = (0..100).map(|_| TcpStream::connect(address).unwrap()).collect();
    let _half: Vec<_> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[0x16, 3, 1, 2]).unwrap();
            stream
        })
        .collect();
    for _ in 0..100 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&[0x16, 3, 1, 0, 1, 0]).unwrap();
    }
    assert!(home.authority.client().get(address, "/metrics").unwrap().body.starts_with(PAGE));
}
