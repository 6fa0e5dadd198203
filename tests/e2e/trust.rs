//! An https upstream: who is believed and who is not, and what we show of ourselves.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::PAGE;
use crate::support::exporter::{Exporter, command, run};
use crate::support::until;
use crate::support::upstream::{Step, Upstream, ok};

/// A certificate authority of the test's own, with its certificate in a file.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, folder }
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    pub fn server(&self, name: &str) -> ServerConfig {
        self.server_for(name, None)
    }

    /// A server that lets only clients with a certificate of `clients` in.
    pub fn server_for(&self, name: &str, clients: Option<&Authority>) -> ServerConfig {
        let provider = Arc::new(ring::default_provider());
        let (certificate, key) = self.sign(name);
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let mut roots = RootCertStore::empty();
                roots.add(clients.issuer.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        builder.with_single_cert(vec![certificate.der().clone()], key).unwrap()
    }

    pub fn sign(&self, name: &str) -> (Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        (certificate, key)
    }

    /// Writes a client's certificate and key to `cert.pem` and `key.pem` in a folder.
    pub fn write_client(&self, folder: &Path) {
        let (certificate, key) = self.sign("exporter");
        fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    }
}

/// The flags that trust an authority and show the certificate in a folder.
pub fn flags(authority: &Authority, client: &Path) -> Vec<String> {
    [("ca", authority.file()), ("cert", client.join("cert.pem")), ("key", client.join("key.pem"))]
        .map(|(flag, file)| format!("--upstream.{flag}-file={}", file.display()))
        .into()
}

pub fn start(upstream: &Upstream, flags: &[String]) -> Exporter {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Exporter::start(&format!("https://{}", upstream.address), &flags)
}

/// What `/debug` and the log say of an upstream that is not believed; nothing is asked of it.
pub fn meaning(upstream: &Upstream, flags: &[String]) -> String {
    let exporter = start(upstream, flags);
    let meaning = meaning_of(&exporter);
    assert_eq!(upstream.requests().len(), 0, "nothing was asked");
    meaning
}

fn meaning_of(exporter: &Exporter) -> String {
    let answer = exporter.metrics();
    assert!(answer.has("kvtier_upstream_error_info{upstream=\"main\",reason=\"tls\"} 1"), "{}", answer.body);
    let debug = exporter.get("/debug").body;
    let meaning = debug.lines().find_map(|line| line.strip_prefix("  meaning  the upstream ")).unwrap().to_owned();
    until("the log says it too", || exporter.log().iter().any(|line| line.contains(&meaning)));
    meaning
}

fn reason_of(upstream: &Upstream, authority: &Authority) -> Option<String> {
    let exporter = Exporter::start(
        &format!("https://{}/metrics", upstream.address),
        &["--upstream.ca-file", authority.file().to_str().unwrap()],
    );
    let body = exporter.metrics().body;
    let info =
        body.lines().find_map(|line| line.strip_prefix("kvtier_upstream_error_info{upstream=\"main\",reason=\""));
    info.map(|rest| rest.trim_end_matches("\"} 1").to_owned())
}

#[test]
fn a_server_of_our_own_authority_is_believed() {
    let authority = Authority::new();
    let upstream = Upstream::start_tls(authority.server("127.0.0.1"), |_| vec![ok(PAGE)]);
    let url = format!("https://{}", upstream.address);
    let exporter = Exporter::start(&url, &["--upstream.ca-file", authority.file().to_str().unwrap()]);
    for _ in 0..3 {
        assert!(exporter.metrics().body.starts_with(PAGE));
    }
    assert_eq!((upstream.requests().len(), upstream.connections()), (3, 1));
}

/// The file that the libraries of others call the system's roots.
#[test]
fn without_an_authority_of_our_own_the_systems_roots_are_believed_and_no_others() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let upstream = Upstream::start_tls(authority.server("127.0.0.1"), |_| vec![ok(PAGE)]);
    for (roots, up) in [(&authority, true), (&stranger, false)] {
        let url = format!("https://{}/metrics", upstream.address);
        let mut program = command(&["--upstream", &url, "--web.listen-address=127.0.0.1:0"]);
        let answer = Exporter::spawn(program.env("SSL_CERT_FILE", roots.file()).env_remove("SSL_CERT_DIR")).metrics();
        assert_eq!(answer.body.starts_with(PAGE), up, "{}", answer.body);
        let refused = answer.has("kvtier_upstream_error_info{upstream=\"main\",reason=\"tls\"} 1");
        assert_eq!(refused, !up, "{}", answer.body);
    }
}

#[test]
fn others_are_not() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let unknown = Upstream::start_tls(stranger.server("127.0.0.1"), |_| vec![ok(PAGE)]);
    assert_eq!(reason_of(&unknown, &authority).as_deref(), Some("tls"));
    let misnamed = Upstream::start_tls(authority.server("gpu-1"), |_| vec![ok(PAGE)]);
    assert_eq!(reason_of(&misnamed, &authority).as_deref(), Some("tls"));
    assert_eq!(unknown.requests().len() + misnamed.requests().len(), 0);
}

#[test]
fn a_certificate_file_that_is_none_ends_the_start_with_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("empty.pem");
    fs::write(&file, "nothing").unwrap();
    for (name, said) in [(file.clone(), "no certificate"), (folder.path().join("missing.pem"), "no such file")] {
        let name = name.to_str().unwrap();
        let output =
            run(&["--upstream", "https://127.0.0.1:1", "--upstream.ca-file", name, "--web.listen-address=127.0.0.1:0"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
        assert!(stderr.contains(name) && stderr.contains(said), "{stderr}");
    }
}

#[test]
fn a_server_that_asks_for_our_certificate_gets_it() {
    let (authority, clients, folder) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    clients.write_client(folder.path());
    let upstream = Upstream::start_tls(authority.server_for("127.0.0.1", Some(&clients)), |_| vec![ok(PAGE)]);
    assert!(start(&upstream, &flags(&authority, folder.path())).metrics().body.starts_with(PAGE));
    let without = start(&upstream, &flags(&authority, folder.path())[..1]).metrics();
    let reasons = ["tls", "reset"].map(|reason| format!("reason=\"{reason}\"}} 1"));
    assert!(reasons.iter().any(|reason| without.body.contains(reason)), "{}", without.body);
    assert_eq!(upstream.requests().len(), 1);
}

#[test]
fn a_renewed_certificate_works_at_once_and_a_broken_one_does_not_cost_the_last() {
    let (authority, clients, other) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    other.write_client(folder.path());
    let server = authority.server_for("127.0.0.1", Some(&clients));
    // Each answer is the last on its connection, so each scrape is a handshake.
    let upstream = Upstream::start_tls(server, |_| vec![ok(PAGE), Step::Close]);
    let exporter = start(&upstream, &flags(&authority, folder.path()));
    assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 0"), "signed by somebody else");
    clients.write_client(folder.path());
    assert!(exporter.metrics().body.starts_with(PAGE));
    let good = fs::read(folder.path().join("key.pem")).unwrap();
    for broken in [b"half a ke".to_vec(), KeyPair::generate().unwrap().serialize_pem().into_bytes()] {
        fs::write(folder.path().join("key.pem"), broken).unwrap();
        for _ in 0..3 {
            assert!(exporter.metrics().body.starts_with(PAGE));
        }
    }
    let said = || exporter.log().iter().filter(|line| line.contains("stays in use")).count();
    until("the log says so once for each", || said() == 2);
    fs::write(folder.path().join("key.pem"), good).unwrap();
    assert!(exporter.metrics().body.starts_with(PAGE));
    assert_eq!(said(), 2);
    assert!(!exporter.log().concat().contains("PRIVATE"));
}

#[test]
fn a_client_certificate_that_cannot_be_used_ends_the_start_with_one_line() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.write_client(folder.path());
    let key = folder.path().join("key.pem");
    let flags = flags(&authority, folder.path());
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let start = ["--upstream=https://127.0.0.1:1", "--web.listen-address=127.0.0.1:0"];
    fs::write(&key, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    for said in ["is not the key of the certificate", "no such file"] {
        let output = run(&[&start[..], &flags].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
        assert!(stderr.contains("--upstream.key-file") && stderr.contains(said), "{stderr}");
        let _ = fs::remove_file(&key);
    }
}

#[test]
fn flags_about_tls_that_do_nothing_are_told_at_the_start() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let idle = |flags: &[&str]| {
        let exporter = Exporter::start(&upstream.url(), flags);
        exporter.metrics();
        exporter.log().iter().filter(|line| line.contains("does nothing")).count()
    };
    for flag in ["--upstream.ca-file=/nonexistent", "--upstream.insecure-skip-verify", "--upstream.server-name=gpu-1"] {
        assert_eq!(idle(&[flag]), 1, "{flag}");
    }
    assert_eq!(idle(&["--upstream.cert-file=/nonexistent", "--upstream.key-file=/nonexistent"]), 1);
    // An extra is asked with TLS, and whom to believe is for it too.
    let skipped = ["--upstream.insecure-skip-verify", "--upstream.extra=x=https://127.0.0.1:1"];
    assert_eq!((idle(&[]), idle(&skipped)), (0, 0));
}

#[test]
fn credentials_that_cannot_be_read_are_told_at_the_start() {
    let flag = "--upstream.bearer-token-file=/nonexistent";
    let exporter = Exporter::start("127.0.0.1:1", &[flag]);
    until("it is told", || exporter.log().iter().any(|line| line.contains("everything else is served")));
    assert!(exporter.log().concat().contains("the token file /nonexistent cannot be read: no such file or directory"));
    assert!(exporter.metrics().body.contains("kvtier_upstream_up{upstream=\"main\"} 0"));
}

#[test]
fn the_name_in_the_certificate_can_be_another_than_that_of_the_address() {
    let authority = Authority::new();
    let upstream = Upstream::start_tls(authority.server("gpu-1.internal"), |_| vec![ok(PAGE)]);
    let ca = format!("--upstream.ca-file={}", authority.file().display());
    for (name, up) in [("gpu-1.internal", true), ("gpu-2.internal", false)] {
        let exporter = start(&upstream, &[ca.clone(), format!("--upstream.server-name={name}")]);
        assert_eq!(exporter.metrics().body.starts_with(PAGE), up, "{name}");
    }
}

#[test]
fn an_extra_is_believed_by_the_same_authority_and_shown_no_certificate() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    authority.write_client(folder.path());
    let page = |name: &'static str| Upstream::start_tls(authority.server("127.0.0.1"), move |_| vec![ok(name)]);
    let closed = authority.server_for("127.0.0.1", Some(&authority));
    let (main, open) = (page("main_x 1\n"), page("open_x 1\n"));
    let closed = Upstream::start_tls(closed, |_| vec![ok("closed_x 1\n")]);
    let mut flags = flags(&authority, folder.path());
    flags.push(format!("--upstream.extra=open=https://{},closed=https://{}", open.address, closed.address));
    let answer = start(&main, &flags).metrics();
    assert!(answer.has("main_x 1") && answer.has("open_x 1") && !answer.has("closed_x 1"), "{}", answer.body);
}

#[test]
fn the_healthcheck_verifies_an_exporter_behind_tls() {
    let authority = Authority::new();
    let front = Upstream::start_tls(authority.server("127.0.0.1"), |_| vec![ok("healthy\n")]);
    let (ca, url) = (authority.file().display().to_string(), format!("https://{}", front.address));
    assert!(run(&["--upstream.ca-file", &ca, "healthcheck", "--url", &url]).status.success());
    let stranger = Authority::new().file().display().to_string();
    assert_eq!(run(&["--upstream.ca-file", &stranger, "healthcheck", "--url", &url]).status.code(), Some(1));
    let plain = run(&["healthcheck", "--url", &front.address.to_string()]);
    let stderr = String::from_utf8(plain.stderr).unwrap();
    assert!(plain.status.code() == Some(1) && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn a_server_that_asks_for_a_certificate_says_so_in_plain_words() {
    let (authority, clients, strangers) = (Authority::new(), Authority::new(), tempfile::tempdir().unwrap());
    Authority::new().write_client(strangers.path());
    let upstream = Upstream::start_tls(authority.server_for("127.0.0.1", Some(&clients)), |_| vec![ok(PAGE)]);
    let without = meaning(&upstream, &flags(&authority, strangers.path())[..1]);
    assert!(without.contains("it asks for a client certificate. Give it one with --upstream.cert-file"), "{without}");
    let refused = meaning(&upstream, &flags(&authority, strangers.path()));
    assert!(refused.contains("it refuses the client certificate that it was shown"), "{refused}");
}

#[test]
fn tls_and_plain_http_are_told_apart_on_the_wrong_port() {
    let authority = Authority::new();
    let secure = Upstream::start_tls(authority.server("127.0.0.1"), |_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&format!("http://{}/metrics", secure.address), &[]);
    assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 0"));
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("speaks TLS, and was asked in plain HTTP. Write https://"), "{debug}");
    let authority = format!("--upstream.ca-file={}", authority.file().display());
    for (answer, said) in [
        // As uvicorn does with what is no request.
        ("HTTP/1.1 400 Bad Request\r\n\r\nInvalid HTTP request received.", "it answers, but not in TLS"),
        ("", "it closed the connection amid the handshake"),
    ] {
        let exporter = Exporter::start(&format!("https://{}/metrics", who_says(answer)), &[&authority]);
        let meaning = meaning_of(&exporter);
        let remedy = "If the port speaks plain HTTP, write http:// in place of https://";
        assert!(meaning.contains(&format!("failed the TLS handshake: {said}. {remedy}")), "{meaning}");
    }
}

/// A server that gives this answer to whatever comes, and closes.
fn who_says(answer: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}
