//! Trust towards an https upstream. Built once at the start, so that a certificate file which cannot be read is
//! an error of the start and not of the first scrape.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Why nothing can be trusted.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The file of `--upstream.ca-file`.
    #[error("--upstream.ca-file {}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The box has no certificate store.
    #[error("this box has no certificate store to verify an https upstream with; name one with --upstream.ca-file")]
    NoRoots,
    /// The TLS library refuses its own defaults.
    #[error("TLS cannot be set up: {0}")]
    Library(#[from] rustls::Error),
}

/// Trusts the certificates of `ca_file` and nothing else, or the system's where there is none.
pub(super) fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, TrustError> {
    let roots = match ca_file {
        Some(path) => own_roots(path)?,
        None => system_roots()?,
    };
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn own_roots(path: &Path) -> Result<RootCertStore, TrustError> {
    let refuse = |why: String| TrustError::File { path: path.to_owned(), why };
    let pem = std::fs::read(path).map_err(|error| refuse(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| refuse(error.to_string()))?;
        roots.add(certificate).map_err(|error| refuse(error.to_string()))?;
    }
    if roots.is_empty() { Err(refuse("holds no certificate in PEM form".to_owned())) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, TrustError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() { Err(TrustError::NoRoots) } else { Ok(roots) }
}
