//! Users: who comes in, and users that change.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::home::{Home, TLS};
use crate::support::client::{Answer, get_with, send};
use crate::support::until;
use crate::{COLON, PAGE, SECOND, SESAME, SLOW};

pub fn authorization(user: &str, password: &str) -> String {
    format!("Authorization: Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

fn get_as(address: SocketAddr, path: &str, user: &str, password: &str) -> Answer {
    get_with(address, path, &[&authorization(user, password)])
}

#[test]
fn every_page_needs_a_user() {
    let running = Home::new().start(&format!("basic_auth_users:\n  prom: {SESAME}\n"), &[]);
    let address = running.exporter.address;
    for path in ["/metrics", "/", "/debug", "/-/healthy", "/-/ready", "/nothing"] {
        let answer = running.exporter.get(path);
        assert_eq!(answer.status, 401, "{path}");
        assert_eq!(
            answer.header("www-authenticate"),
            Some("Basic realm=\"kvtier-exporter\", charset=\"UTF-8\""),
            "{path}"
        );
        assert!(!answer.body.contains("x_total"));
        assert_ne!(get_as(address, path, "prom", "open sesame").status, 401, "{path}");
    }
    assert!(get_as(address, "/metrics", "prom", "open sesame").body.starts_with(PAGE));
}

#[test]
fn only_the_right_password_of_the_right_user() {
    let config = format!("basic_auth_users:\n  prom: {SESAME}\n  other: '{COLON}'\n");
    let running = Home::new().start(&config, &[]);
    let status = |user, password| get_as(running.exporter.address, "/metrics", user, password).status;
    for _ in 0..2 {
        assert_eq!(status("prom", "open sesame"), 200);
        assert_eq!(status("other", "tr:ee \u{fc}"), 200, "a colon in a password");
        for (user, password) in
            [("prom", "open sesam"), ("prom", ""), ("", ""), ("prom", "tr:ee \u{fc}"), ("nobody", "open sesame")]
        {
            assert_eq!(status(user, password), 401, "{user} {password}");
        }
    }
}

#[test]
fn users_change_without_a_restart_and_a_bad_file_changes_nothing() {
    let home = Home::new();
    let running = home.start(&format!("basic_auth_users:\n  prom: {SESAME}\n"), &[]);
    let status = |password| get_as(running.exporter.address, "/metrics", "prom", password).status;
    assert_eq!((status("open sesame"), status("second")), (200, 401));
    home.write("web.yml", &format!("basic_auth_users:\n  prom: {SECOND}\n"));
    until("the second password is taken", || status("second") == 200);
    assert_eq!(status("open sesame"), 401);

    home.write("web.yml", &format!("basic_auth_users:\n  prom: {SESAME}x\n"));
    until("the log tells of the bad hash", || running.logged("stays in force") > 0);
    assert_eq!((status("open sesame"), status("second")), (401, 200));
    let debug = get_as(running.exporter.address, "/debug", "prom", "second").body;
    assert!(debug.contains("users    1") && debug.contains("user \"prom\" is not a bcrypt hash"), "{debug}");

    home.write("web.yml", "basic_auth_users: {}\n");
    until("the log tells of the missing users", || running.logged("would take the users away") > 0);
    assert_eq!((running.exporter.metrics().status, status("second")), (401, 200));
    assert_eq!(running.logged("is not a bcrypt hash"), 1, "said once");

    let said = running.exporter.log().concat() + &debug;
    for secret in ["open sesame", "second", "vxDDxHrXz9byy", "7jRDF5IJVFh8D8w", &STANDARD.encode("prom:second")] {
        assert!(!said.contains(secret), "{secret}: {said}");
    }
}

#[test]
fn tls_and_users_together_and_headers_on_every_answer() {
    let home = Home::new();
    let headers =
        "http_server_config:\n  headers:\n    X-Frame-Options: deny\n    Strict-Transport-Security: max-age=9\n";
    let running = home.start(&format!("{TLS}{headers}basic_auth_users:\n  prom: {SESAME}\n"), &[]);
    let answer = home.authority.client().get(running.exporter.address, "/metrics").unwrap();
    assert_eq!(answer.status, 401);
    assert_eq!(
        (answer.header("x-frame-options"), answer.header("strict-transport-security")),
        (Some("deny"), Some("max-age=9"))
    );
}

#[test]
fn a_slow_hash_keeps_neither_others_nor_the_end_waiting() {
    let config = format!("basic_auth_users:\n  prom: {SESAME}\n  slow: {SLOW}\n");
    let mut running = Home::new().start(&config, &[]);
    let address = running.exporter.address;
    assert_eq!(get_as(address, "/metrics", "prom", "open sesame").status, 200);
    let _slow: Vec<_> = (0..5).map(|_| send(address, "GET", "/metrics", &[&authorization("slow", "wrong")])).collect();
    let began = Instant::now();
    assert_eq!(get_as(address, "/metrics", "prom", "open sesame").status, 200);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let began = Instant::now();
    running.exporter.terminate();
    let (status, ended) = running.exporter.wait();
    assert!(status.success() && ended - began < Duration::from_secs(3), "{status} after {:?}", ended - began);
}
