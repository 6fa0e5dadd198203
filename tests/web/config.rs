//! What is accepted, and what is refused with file, line and key. promtool judges the same files.

use std::fs;
use std::process::Command;

use crate::SESAME;
use crate::home::{Home, TLS};
use crate::support::exporter::run;

/// promtool's exit status and words.
fn promtool(home: &Home) -> (bool, String) {
    let output = Command::new("promtool")
        .args(["check", "web-config"])
        .arg(home.path("web.yml"))
        .output()
        .expect("promtool must be installed: tests/run does that when it runs as root");
    (output.status.success(), format!("{output:?}"))
}

/// The one line that the program ends with.
fn refusal(home: &Home) -> String {
    let file = home.path("web.yml");
    let output = run(&["--web.listen-address=127.0.0.1:0", "--web.config.file", file.to_str().unwrap()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    stderr
}

#[test]
fn what_we_accept_promtool_accepts() {
    let home = Home::new();
    for config in [
        String::new(),
        "# nothing yet\n".to_owned(),
        "tls_server_config: {}\nbasic_auth_users:\n".to_owned(),
        TLS.to_owned(),
        format!("{TLS}  client_auth_type: NoClientCert\n"),
        format!("{TLS}  client_auth_type: RequestClientCert\n"),
        format!("{TLS}  client_auth_type: RequireClientCert\n"),
        format!("{TLS}  client_auth_type: RequireAnyClientCert\n"),
        format!("{TLS}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: ca.pem\n"),
        format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"),
        format!("{TLS}  min_version: TLS10\n  max_version: TLS13\n"),
        format!("{TLS}  min_version: TLS13\n  prefer_server_cipher_suites: false\n"),
        format!("{TLS}  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n"),
        format!("{TLS}  curve_preferences: [CurveP256, X25519, CurveP384]\n"),
        format!("{TLS}http_server_config:\n  http2: false\n"),
        "http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: sameorigin\n    X-Content-Type-Options: nosniff\n    \
         Strict-Transport-Security: max-age=31536000\n    Content-Security-Policy: default-src 'self'\n    X-XSS-Protection: \"0\"\n"
            .to_owned(),
        format!("basic_auth_users:\n  prom: {SESAME}\n  \"an other\": '{SESAME}'\n"),
        format!("basic_auth_users: {{prom: {}}}\n", SESAME.replace("$2b", "$2y")),
        format!("basic_auth_users: {{prom: {}}}\n", SESAME.replace("$2b", "$2a")),
    ] {
        home.start(&config, &[]);
        let (accepted, said) = promtool(&home);
        assert!(accepted, "{config}\n{said}");
    }
}

/// Configuration, line, what is said of it.
fn bad() -> Vec<(String, usize, &'static str)> {
    vec![
        ("tls_server_confg: {}\n".to_owned(), 1, "tls_server_confg: is not known here"),
        (format!("{TLS}  certificate: x\n"), 4, "tls_server_config.certificate: is not known here"),
        (format!("{TLS}  key: x\n"), 4, "tls_server_config.key: is not supported"),
        (format!("{TLS}  client_ca_file: ca.pem\n"), 4, "tls_server_config.client_ca_file: does nothing"),
        (format!("{TLS}  client_auth_type: Yes\n"), 4, "tls_server_config.client_auth_type: must be one of"),
        (format!("{TLS}  min_version: SSL3\n"), 4, "tls_server_config.min_version: must be one of"),
        (format!("{TLS}  cipher_suites:\n  - NULL_SUITE\n"), 5, "tls_server_config.cipher_suites: must be one of"),
        (format!("{TLS}  curve_preferences:\n  - P1\n"), 5, "tls_server_config.curve_preferences: must be one of"),
        ("tls_server_config:\n  key_file: server.key\n".to_owned(), 1, "tls_server_config.cert_file: is missing"),
        ("tls_server_config:\n  cert_file: server.pem\n".to_owned(), 1, "tls_server_config.key_file: is missing"),
        (TLS.replace("server.pem", "none.pem"), 2, "tls_server_config.cert_file: "),
        (TLS.replace("server.key", "none.key"), 3, "tls_server_config.key_file: "),
        (TLS.replace("server.pem", "server.key"), 2, "holds no certificate"),
        (TLS.replace("server.key", "server.pem"), 3, "holds no private key"),
        (TLS.replace("server.key", "other.key"), 3, "is not the key of the certificate in cert_file"),
        (
            "http_server_config:\n  headers:\n    Server: x\n".to_owned(),
            3,
            "http_server_config.headers.Server: is not known",
        ),
        (
            "http_server_config: {headers: {X-Frame-Options: DENY}}\n".to_owned(),
            1,
            "X-Frame-Options: must be deny or sameorigin",
        ),
        (
            "basic_auth_users:\n  prom: \"$2y$10$wZ9.dummy.hash.that.is.invalid\"\n".to_owned(),
            2,
            "user \"prom\" is not a bcrypt hash",
        ),
        (format!("basic_auth_users:\n  a: {SESAME}\n  prom: plain-dummy\n"), 3, "user \"prom\" is not a bcrypt hash"),
        (format!("basic_auth_users:\n  a: {SESAME}\n  a: {SESAME}\n"), 3, "a: is given twice"),
        ("basic_auth_users: [prom]\n".to_owned(), 1, "basic_auth_users: must be a mapping"),
        (format!("basic_auth_users:\n  prom: {SESAME}\n foo: 1\n"), 3, "this is not YAML"),
    ]
}

#[test]
fn what_promtool_refuses_we_refuse_with_file_line_and_key() {
    let home = Home::new();
    home.write("other.key", &home.authority.identity("127.0.0.1").key);
    let file = home.path("web.yml").to_str().unwrap().to_owned();
    for (config, line, said) in bad() {
        home.write("web.yml", &config);
        let refusal = refusal(&home);
        assert!(refusal.contains(&format!("--web.config.file {file} line {line}: ")), "{config}\n{refusal}");
        assert!(refusal.contains(said), "{config}\n{refusal}");
        assert!(!refusal.contains("dummy") && !refusal.contains("vxDDxHrXz9byy"), "{refusal}");
        assert!(!promtool(&home).0, "promtool accepts {config}");
    }
}

#[test]
fn where_promtool_would_not_do_what_a_line_says_we_refuse_it() {
    let home = Home::new();
    for (config, said) in [
        (
            format!("{TLS}  client_auth_type: RequireAndVerifyClientCert\n"),
            "line 4: tls_server_config.client_auth_type: needs client_ca_file",
        ),
        (
            format!("{TLS}  client_ca_file: ca.pem\n  client_auth_type: RequireAnyClientCert\n"),
            "line 4: tls_server_config.client_ca_file: is looked at by",
        ),
        (format!("{TLS}  max_version: TLS11\n"), "line 4: tls_server_config.max_version: TLS 1.2 is the oldest"),
        (
            format!("{TLS}  min_version: TLS13\n  max_version: TLS12\n"),
            "line 5: tls_server_config.max_version: is below",
        ),
        ("tls_server_config:\n  min_version: TLS13\n".to_owned(), "line 1: tls_server_config.cert_file: is missing"),
        (
            format!("basic_auth_users:\n  \"a:b\": {SESAME}\n"),
            "line 2: basic_auth_users: the name of user \"a:b\" holds a colon",
        ),
        (
            format!("basic_auth_users:\n  a: {}\n", SESAME.replace("$04$", "$20$")),
            "line 2: basic_auth_users: the bcrypt hash of user \"a\" has a cost above 16",
        ),
    ] {
        home.write("web.yml", &config);
        let refusal = refusal(&home);
        assert!(refusal.contains(said), "{config}\n{refusal}");
        assert!(promtool(&home).0, "promtool refuses {config} too: it belongs to the others");
    }
}

#[test]
fn a_file_that_is_no_text_is_named() {
    let home = Home::new();
    assert!(refusal(&home).contains("cannot be read: no such file"));
    fs::create_dir(home.path("web.yml")).unwrap();
    assert!(refusal(&home).contains("cannot be read: it is no regular file"));
    fs::remove_dir(home.path("web.yml")).unwrap();
    fs::write(home.path("web.yml"), b"basic_auth_users:\n  \xff: x\n").unwrap();
    assert!(refusal(&home).contains("is not UTF-8 text"));
}

#[test]
fn a_file_that_protects_nothing_is_remarked_upon() {
    let running = Home::new().start("http_server_config: {http2: false}\n", &[]);
    assert_eq!(running.logged("everything is served to everybody"), 1);
    assert_eq!(running.exporter.metrics().status, 200);
}
