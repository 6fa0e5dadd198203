//! Certificates that are trusted by themselves, and none at all: self-signed ones as people make them.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::{CertifiedKey, SingleCertAndKey};

use crate::PAGE;
use crate::support::exporter::{command, field, run};
use crate::support::upstream::{Upstream, ok};
use crate::trust::{Authority, meaning, start};

/// Certificates as `openssl req -x509` makes them, by the program itself: each with its key, in a folder.
struct SelfSigned {
    folder: TempDir,
}

const LOOPBACK: &str = "subjectAltName=IP:127.0.0.1,DNS:localhost";

impl SelfSigned {
    /// What `openssl req -x509` makes with these further words.
    fn new(words: &[&str]) -> SelfSigned {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=127.0.0.1"])
            .args(["-keyout", &at("key.pem"), "-out", &at("cert.pem")])
            .args(words)
            .output()
            .expect("openssl can be started");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        SelfSigned { folder }
    }

    /// One that may sign others, valid from the first day of one year to that of another.
    fn valid(from: i32, until: i32) -> SelfSigned {
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        (params.not_before, params.not_after) = (date_time_ymd(from, 1, 1), date_time_ymd(until, 1, 1));
        let (key, folder) = (KeyPair::generate().unwrap(), tempfile::tempdir().unwrap());
        let certificate = params.self_signed(&key).unwrap();
        fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        SelfSigned { folder }
    }

    fn flag(&self) -> String {
        format!("--upstream.ca-file={}", self.folder.path().join("cert.pem").display())
    }

    fn server(&self) -> ServerConfig {
        let read = |name: &str| self.folder.path().join(name);
        let certificate = CertificateDer::from_pem_file(read("cert.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(read("key.pem")).unwrap();
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        builder.with_single_cert(vec![certificate], key).unwrap()
    }

    fn serve(&self) -> Upstream {
        Upstream::start_tls(self.server(), |_| vec![ok(PAGE)])
    }
}

#[test]
fn a_self_signed_certificate_that_is_named_is_the_anchor_that_it_is() {
    for words in [
        // What most people type. It may sign others: CA:TRUE is openssl's own default here.
        &["-addext", LOOPBACK][..],
        &["-addext", LOOPBACK, "-addext", "keyUsage=keyCertSign,cRLSign"],
        &["-addext", LOOPBACK, "-addext", "keyUsage=digitalSignature", "-addext", "extendedKeyUsage=serverAuth"],
        &["-addext", LOOPBACK, "-addext", "basicConstraints=critical,CA:FALSE"],
        &["-addext", LOOPBACK, "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"],
    ] {
        let one = SelfSigned::new(words);
        let upstream = one.serve();
        let exporter = start(&upstream, &[one.flag()]);
        assert!(exporter.metrics().body.starts_with(PAGE), "{words:?}: {:?}", exporter.log());
        let url = format!("https://{}", upstream.address);
        assert!(run(&[&one.flag(), "healthcheck", "--url", &url]).status.success(), "{words:?}");
    }
}

#[test]
fn a_certificate_that_is_named_is_believed_without_its_signer() {
    let (authority, folder) = (Authority::new(), tempfile::tempdir().unwrap());
    let (certificate, key) = authority.sign("127.0.0.1");
    fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
    let one = SelfSigned { folder };
    assert!(start(&one.serve(), &[one.flag()]).metrics().body.starts_with(PAGE));
}

#[test]
fn an_anchor_has_its_dates_and_its_name_all_the_same() {
    let expired = SelfSigned::valid(2019, 2020);
    let said = meaning(&expired.serve(), &[expired.flag()]);
    assert!(
        said.contains("its certificate expired on 2020-01-01T00:00:00Z")
            && said.contains("Renew the server's certificate"),
        "{said}"
    );
    let early = SelfSigned::valid(2100, 2101);
    let said = meaning(&early.serve(), &[early.flag()]);
    assert!(said.contains("not valid yet, only from 2100-01-01T00:00:00Z on") && said.contains("clocks"), "{said}");
    let other = SelfSigned::new(&["-addext", "subjectAltName=DNS:gpu-1,IP:10.0.0.7"]);
    let said = meaning(&other.serve(), &[other.flag()]);
    assert!(
        said.contains("for gpu-1, 10.0.0.7, and not for 127.0.0.1") && said.contains("--upstream.server-name"),
        "{said}"
    );
    assert!(
        start(&other.serve(), &[other.flag(), "--upstream.server-name=gpu-1".to_owned()])
            .metrics()
            .body
            .starts_with(PAGE)
    );
    let nameless = SelfSigned::new(&[]);
    let said = meaning(&nameless.serve(), &[nameless.flag()]);
    assert!(said.contains("no subjectAltName") && said.contains("-addext subjectAltName="), "{said}");
}

#[test]
fn an_anchor_stands_for_nobody_else() {
    let (named, twin) = (SelfSigned::new(&["-addext", LOOPBACK]), SelfSigned::new(&["-addext", LOOPBACK]));
    // The same names in it, another key.
    let said = meaning(&twin.serve(), &[named.flag()]);
    assert!(said.contains("signed by nobody whom this side trusts") && said.contains("--upstream.ca-file"), "{said}");
    // Not named, it is believed by nobody.
    meaning(&named.serve(), &[]);
    // The named certificate, shown by one who has not its key.
    fs::copy(named.folder.path().join("cert.pem"), twin.folder.path().join("cert.pem")).unwrap();
    let read = |name: &str| twin.folder.path().join(name);
    let key = ring::sign::any_supported_type(&PrivateKeyDer::from_pem_file(read("key.pem")).unwrap()).unwrap();
    let stolen = CertifiedKey::new(vec![CertificateDer::from_pem_file(read("cert.pem")).unwrap()], key);
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let thief = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(stolen)));
    let upstream = Upstream::start_tls(thief, |_| vec![ok(PAGE)]);
    let answer = start(&upstream, &[named.flag()]).metrics();
    assert!(answer.has("kvtier_upstream_error_info{upstream=\"main\",reason=\"tls\"} 1"), "{}", answer.body);
    assert_eq!(upstream.requests().len(), 0);
}

#[test]
fn without_verification_anybody_is_believed_and_it_is_said() {
    let stranger = SelfSigned::valid(2019, 2020);
    let upstream = stranger.serve();
    let exporter = start(&upstream, &["--upstream.insecure-skip-verify".to_owned()]);
    assert!(exporter.metrics().body.starts_with(PAGE));
    let said = exporter.log().into_iter().filter(|line| line.contains("--upstream.insecure-skip-verify"));
    let said: Vec<String> = said.collect();
    assert!(said.len() == 1 && said[0].to_ascii_lowercase().contains("warn"), "{said:?}");
    assert_eq!(field(&said[0], "notice"), Some("upstream-insecure-skip-verify"));
    assert!(said[0].contains("upstream=main") && said[0].contains(&upstream.address.to_string()), "{said:?}");
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("\n  trust    none: its certificate is not verified"), "{debug}");
    let notice = r#"kvtier_notice_active{id="upstream-insecure-skip-verify",upstream="main"} 1"#;
    assert!(exporter.metrics().body.contains(notice) && debug.contains("notice upstream-insecure-skip-verify"));
    let url = format!("https://{}", upstream.address);
    assert!(run(&["--upstream.insecure-skip-verify", "healthcheck", "--url", &url]).status.success());
    let verified = start(&upstream, &[stranger.flag()]);
    assert!(!verified.get("/debug").body.contains("insecure-skip-verify"));
    assert!(!verified.log().concat().contains("insecure-skip-verify"));
}

#[test]
fn without_verification_no_secret_is_sent() {
    let start = ["--upstream=https://127.0.0.1:1", "--web.listen-address=127.0.0.1:0"];
    for secret in [
        &["--upstream.bearer-token-file=t"][..],
        &["--upstream.basic-auth-file=t"],
        &["--upstream.cert-file=c", "--upstream.key-file=k"],
    ] {
        let output = run(&[&start[..], secret, &["--upstream.insecure-skip-verify"]].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        let flag = secret[0].split('=').next().unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(2), 1), "{stderr}");
        assert!(stderr.contains(&format!("--upstream.insecure-skip-verify cannot be used with {flag}")), "{stderr}");
    }
    let history = ["report", "--prometheus=https://127.0.0.1:1", "--before=-2h..-1h", "--after=-1h..now"];
    let token = ["--prometheus.bearer-token-file=t", "--upstream.insecure-skip-verify"];
    let output = run(&[&history[..], &token].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot be used with --prometheus.bearer-token-file"));
    // By its variable, and switched off by it.
    let mut both = command(&[&start[..], &["--upstream.bearer-token-file=t"]].concat());
    assert_eq!(both.env("KVTIER_UPSTREAM_INSECURE_SKIP_VERIFY", "true").output().unwrap().status.code(), Some(2));
    let mut off = command(&["--upstream.bearer-token-file=t", "healthcheck", "--url=127.0.0.1:1"]);
    assert_eq!(off.env("KVTIER_UPSTREAM_INSECURE_SKIP_VERIFY", "false").output().unwrap().status.code(), Some(1));
}
