//! Tests of the web configuration as text. Whether promtool agrees is tested through the program.

use std::path::Path;

use proptest::prelude::*;

use super::*;

/// "fakepassword", as the toolkit's sources say of it.
const HASH: &str = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";

fn accepted(text: &str) -> Config {
    Config::read(text, Path::new("/etc/web")).unwrap_or_else(|fault| panic!("{text}: {fault}"))
}

fn refused(text: &str) -> String {
    match Config::read(text, Path::new("/etc/web")) {
        Ok(config) => panic!("{text} was accepted: {config:?}"),
        Err(fault) => fault.to_string(),
    }
}

fn tls(more: &str) -> String {
    format!("tls_server_config:\n  cert_file: server.crt\n  key_file: /run/server.key\n{more}")
}

#[test]
fn an_empty_file_protects_nothing_and_says_so() {
    for text in ["", "---\n", "tls_server_config:\n", "tls_server_config: {}\nbasic_auth_users: {}\n"] {
        let config = accepted(text);
        assert!(config.tls.is_none() && config.users.is_empty() && config.headers.is_empty());
        assert!(config.remarks[0].contains("everybody"), "{:?}", config.remarks);
    }
}

#[test]
fn files_are_meant_from_where_the_configuration_lies() {
    let tls = accepted(&tls("")).tls.unwrap();
    assert_eq!((tls.cert_file.value.as_path(), tls.cert_file.line), (Path::new("/etc/web/server.crt"), 2));
    assert_eq!((tls.key_file.value.as_path(), tls.key_file.line), (Path::new("/run/server.key"), 3));
    assert_eq!(tls.client_auth, ClientAuth::None);
    assert_eq!(tls.versions, [&rustls::version::TLS13, &rustls::version::TLS12]);
    assert!(tls.prefer_server && tls.cipher_suites.is_empty() && tls.curves.is_empty());
}

#[test]
fn what_is_asked_of_clients() {
    let asked = |more: &str| accepted(&tls(more)).tls.unwrap().client_auth;
    let authority = Located {
        value: PathBuf::from("/etc/web/ca.crt"),
        key: "tls_server_config.client_ca_file".to_owned(),
        line: 4,
    };
    assert_eq!(asked("  client_auth_type: NoClientCert\n"), ClientAuth::None);
    assert_eq!(asked("  client_auth_type: \"\"\n"), ClientAuth::None);
    assert_eq!(asked("  client_auth_type: RequestClientCert\n"), ClientAuth::Request);
    assert_eq!(asked("  client_auth_type: RequireClientCert\n"), ClientAuth::RequireAny);
    assert_eq!(asked("  client_auth_type: RequireAnyClientCert\n"), ClientAuth::RequireAny);
    assert_eq!(
        asked("  client_ca_file: ca.crt\n  client_auth_type: VerifyClientCertIfGiven\n"),
        ClientAuth::VerifyIfGiven(authority.clone())
    );
    assert_eq!(
        asked("  client_ca_file: ca.crt\n  client_auth_type: RequireAndVerifyClientCert\n"),
        ClientAuth::RequireAndVerify(authority)
    );
}

#[test]
fn versions_are_a_range_of_what_is_spoken() {
    let spoken = |more: &str| accepted(&tls(more)).tls.unwrap().versions;
    assert_eq!(spoken("  min_version: TLS13\n"), [&rustls::version::TLS13]);
    assert_eq!(spoken("  max_version: TLS12\n"), [&rustls::version::TLS12]);
    let old = accepted(&tls("  min_version: TLS10\n"));
    assert_eq!(old.tls.unwrap().versions.len(), 2);
    assert_eq!(old.remarks, ["line 4: tls_server_config.min_version: TLS 1.2 is the oldest version that is spoken"]);
}

#[test]
fn suites_and_curves_keep_their_order() {
    let tls = accepted(&tls(
        "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n  \
         curve_preferences: [CurveP384, X25519]\n  prefer_server_cipher_suites: false\n",
    ))
    .tls
    .unwrap();
    let names: Vec<_> = tls.cipher_suites.iter().map(go_name).collect();
    assert_eq!(names, ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"]);
    let curves: Vec<_> = tls.curves.iter().map(|curve| curve.name()).collect();
    assert_eq!(curves, [rustls::NamedGroup::secp384r1, rustls::NamedGroup::X25519]);
    assert!(!tls.prefer_server);
}

#[test]
fn headers_and_users() {
    let config = accepted(&format!(
        "http_server_config:\n  http2: true\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: \"\"\n\
         basic_auth_users:\n  prom: {HASH}\n  \"\\u00fc b\": '{HASH}'\n"
    ));
    assert_eq!(config.headers, [(X_FRAME_OPTIONS, HeaderValue::from_static("deny"))]);
    let names: Vec<_> = config.users.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["prom", "\u{fc} b"]);
    assert_eq!(config.remarks, ["line 2: http_server_config.http2: only HTTP/1.1 is spoken, which every client takes"]);
}

#[test]
fn what_is_refused_names_line_and_key() {
    for (text, said) in [
        ("- a\n".to_owned(), "line 1: the file must be a mapping"),
        ("hello\n".to_owned(), "line 1: the file must be a mapping"),
        (
            "tls_server_confg: {}\n".to_owned(),
            "line 1: tls_server_confg: is not known here; known are tls_server_config",
        ),
        ("\nrate_limit: {burst: 1}\n".to_owned(), "line 2: rate_limit: is not supported; --web.max-requests"),
        ("tls_server_config: yes\n".to_owned(), "line 1: tls_server_config: must be a mapping"),
        ("tls_server_config:\n  min_version: TLS12\n".to_owned(), "line 1: tls_server_config.cert_file: is missing"),
        ("tls_server_config:\n  cert_file: a\n".to_owned(), "line 1: tls_server_config.key_file: is missing"),
        (tls("  cert: x\n"), "line 4: tls_server_config.cert: is not supported; put the certificate into a file"),
        (tls("  client_allowed_sans: [a]\n"), "line 4: tls_server_config.client_allowed_sans: is not supported"),
        (tls("  cert_files: x\n"), "line 4: tls_server_config.cert_files: is not known here; known are cert_file"),
        (tls("  client_ca_file: a\n"), "line 4: tls_server_config.client_ca_file: does nothing without"),
        (
            tls("  client_ca_file: a\n  client_auth_type: RequireAnyClientCert\n"),
            "line 4: tls_server_config.client_ca_file: is looked at by",
        ),
        (
            tls("  client_ca_file: a\n  client_auth_type: NoClientCert\n"),
            "line 4: tls_server_config.client_ca_file: is looked at by",
        ),
        (
            tls("  client_auth_type: RequireAndVerifyClientCert\n"),
            "line 4: tls_server_config.client_auth_type: needs client_ca_file",
        ),
        (
            tls("  client_auth_type: VerifyClientCertIfGiven\n"),
            "line 4: tls_server_config.client_auth_type: needs client_ca_file",
        ),
        (
            tls("  client_auth_type: Always\n"),
            "line 4: tls_server_config.client_auth_type: must be one of NoClientCert",
        ),
        (tls("  min_version: TLS14\n"), "line 4: tls_server_config.min_version: must be one of TLS10"),
        (tls("  max_version: TLS11\n"), "line 4: tls_server_config.max_version: TLS 1.2 is the oldest"),
        (
            tls("  min_version: TLS13\n  max_version: TLS12\n"),
            "line 5: tls_server_config.max_version: is below min_version",
        ),
        (
            tls("  cipher_suites:\n    - TLS_AES_128_GCM_SHA256\n    - TLS_RSA_WITH_AES_128_CBC_SHA\n"),
            "line 6: tls_server_config.cipher_suites: must be one of",
        ),
        (tls("  cipher_suites: TLS_AES_128_GCM_SHA256\n"), "line 4: tls_server_config.cipher_suites: must be a list"),
        (
            tls("  curve_preferences: [CurveP521]\n"),
            "line 4: tls_server_config.curve_preferences: must be one of X25519",
        ),
        (
            tls("  prefer_server_cipher_suites: \"true\"\n"),
            "line 4: tls_server_config.prefer_server_cipher_suites: must be true or false",
        ),
        ("http_server_config:\n  http2: 1\n".to_owned(), "line 2: http_server_config.http2: must be true or false"),
        (
            "http_server_config:\n  headers:\n    Server: x\n".to_owned(),
            "line 3: http_server_config.headers.Server: is not known here; known are Strict-Transport-Security",
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: DENY\n".to_owned(),
            "line 3: http_server_config.headers.X-Frame-Options: must be deny or sameorigin",
        ),
        (
            "http_server_config:\n  headers:\n    X-Content-Type-Options: none\n".to_owned(),
            "line 3: http_server_config.headers.X-Content-Type-Options: must be nosniff",
        ),
        (
            "http_server_config:\n  headers:\n    X-XSS-Protection: \"a\\nb\"\n".to_owned(),
            "line 3: http_server_config.headers.X-XSS-Protection: holds bytes",
        ),
        (
            "basic_auth_users:\n  a: x\n".to_owned(),
            "line 2: basic_auth_users: the password of user \"a\" is not a bcrypt hash",
        ),
        (
            "basic_auth_users:\n  a:\n".to_owned(),
            "line 2: basic_auth_users: the password of user \"a\" is not a bcrypt hash",
        ),
        ("basic_auth_users: {a: [b]}\n".to_owned(), "line 1: basic_auth_users.a: must be one text"),
        (
            format!("basic_auth_users:\n  a:b: {HASH}\n"),
            "line 2: basic_auth_users: the name of user \"a:b\" holds a colon",
        ),
        (
            format!("basic_auth_users:\n  a: {}\n", HASH.replace("$10$", "$31$")),
            "line 2: basic_auth_users: the bcrypt hash of user \"a\" has a cost above 16",
        ),
        (format!("basic_auth_users:\n  a: {HASH}\n  a: {HASH}\n"), "line 3: a: is given twice"),
    ] {
        let fault = refused(&text);
        assert!(fault.starts_with(said), "{text}\n{fault}");
    }
}

#[test]
fn no_secret_comes_out_again_wherever_it_was_put() {
    for text in [
        format!("basic_auth_users: {HASH}\n"),
        format!("basic_auth_users:\n  {HASH}: prom\n"),
        format!("{HASH}: prom\n"),
        format!("basic_auth_users: {{prom:{HASH}, other: {HASH}}}\n"),
        format!("basic_auth_users:\n  prom:{HASH}:\n"),
        format!("basic_auth_users:\n  {}: prom\n", &HASH[3..]),
        format!("prom:\n  {HASH}: x\n"),
        format!("basic_auth_users:\n  prom: {HASH}x\n"),
        format!("basic_auth_users:\n  prom: [{HASH}]\n"),
        format!("basic_auth_users:\n  prom: '{HASH}\n"),
        format!("basic_auth_users:\n  prom: &{HASH} x\n"),
        format!("basic_auth_users:\n  prom: !{HASH} x\n"),
        format!("basic_auth_users:\n  prom: \"{HASH}\" x\n"),
        format!("http_server_config: {{http2: \"{HASH}\"}}\n"),
        format!("http_server_config: {{headers: {{X-Frame-Options: \"{HASH}\"}}}}\n"),
        tls(&format!("  min_version: {HASH}\n")),
        tls(&format!("  curve_preferences: [{HASH}]\n")),
        tls("").replace("/run/server.key", "\"-----BEGIN QOauhQNbBCuQDKes6eFzPe\""),
        tls("").replace("/run/server.key", "|\n    -----BEGIN\n    QOauhQNbBCuQDKes6eFzPe\n"),
    ] {
        let fault = refused(&text);
        assert!(!fault.contains("QOauhQNbBCuQDKes6eFzPe"), "{text}\n{fault}");
    }
}

proptest! {
    /// Any text, and any text near a good one: an answer without a panic, and never the hash.
    #[test]
    fn any_text_is_read_or_refused(text in ".*", at in 0usize..300, cut in 0usize..40) {
        let good = tls(&format!("  client_auth_type: RequestClientCert\nbasic_auth_users:\n  prom: {HASH}\n"));
        let at = at.min(good.len());
        let near = format!("{}{text}{}", &good[..at], &good[(at + cut).min(good.len())..]);
        for text in [&text, &near] {
            if let Err(fault) = Config::read(text, Path::new("/etc/web")) {
                prop_assert!(!fault.to_string().contains(HASH), "{}", fault);
let lines = text.split(['\n', '\r']).count();
                prop_assert!((1..=lines + 1).contains(&fault.line), "{} of {}", fault.line, lines);
            }
        }
    }
}
