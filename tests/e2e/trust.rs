//! An https upstream: who is believed, and who is not.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::PAGE;
use crate::support::exporter::{Exporter, run};
use crate::support::upstream::{Upstream, ok};

/// A certificate authority of the test's own, with its certificate in a file.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Authority { issuer, folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    fn server(&self, name: &str) -> ServerConfig {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap()
    }
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
    for (name, said) in [(file.clone(), "no certificate"), (folder.path().join("missing.pem"), "No such file")] {
        let name = name.to_str().unwrap();
        let output =
            run(&["--upstream", "https://127.0.0.1:1", "--upstream.ca-file", name, "--web.listen-address=127.0.0.1:0"]);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
        assert!(stderr.contains(name) && stderr.contains(said), "{stderr}");
    }
}
