//! The certificate that we show to an upstream which asks for one. Its files are looked at for each handshake, so
//! that a renewed pair works at once; while the new pair is unusable (half written, say) the last good one is shown.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys, SignatureScheme};

use super::TrustError;
use super::tls::pem_words;

/// Where a client certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

/// A pair of files and the last good pair that was in them.
#[derive(Debug)]
pub(super) struct Identity {
    files: IdentityFiles,
    last: Mutex<Last>,
}

#[derive(Debug)]
struct Last {
    good: Arc<CertifiedKey>,
    /// What was last said about files that cannot be used.
    complaint: Option<String>,
}

impl Identity {
    /// The pair that is in the files now.
    pub(super) fn read(files: &IdentityFiles) -> Result<Identity, TrustError> {
        let last = Last { good: Arc::new(load(files)?), complaint: None };
        Ok(Identity { files: files.clone(), last: Mutex::new(last) })
    }

    fn current(&self) -> Arc<CertifiedKey> {
        let read = load(&self.files);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok(pair) => *last = Last { good: Arc::new(pair), complaint: None },
            Err(error) => last.complain(error.to_string()),
        }
        Arc::clone(&last.good)
    }
}

impl Last {
    /// Says what is wrong, once: there is a handshake for each scrape where the upstream closes connections.
    fn complain(&mut self, error: String) {
        if self.complaint.as_ref() != Some(&error) {
            tracing::warn!("{error}; the certificate read before stays in use");
            self.complaint = Some(error);
        }
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let pair = self.current();
        pair.key.choose_scheme(schemes).is_some().then_some(pair)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn load(files: &IdentityFiles) -> Result<CertifiedKey, TrustError> {
    let IdentityFiles { certificate, key } = files;
    let chain = refused("--upstream.cert-file", certificate, chain)?;
    let signer = refused("--upstream.key-file", key, |path| {
        let key = PrivateKeyDer::from_pem_file(path).map_err(|error| pem_words(&error, "key"))?;
        ring::sign::any_supported_type(&key)
            .map_err(|_| "holds a key that is none of RSA, ECDSA and Ed25519".to_owned())
    })?;
    let pair = CertifiedKey::new(chain, signer);
    refused("--upstream.key-file", key, |_| match pair.keys_match() {
        // A key that cannot tell its public half is tried.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(_) => Err("is not the key of the certificate in --upstream.cert-file".to_owned()),
    })?;
    Ok(pair)
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let words = |error| pem_words(&error, "certificate");
    let chain = CertificateDer::pem_file_iter(path).map_err(words)?.collect::<Result<Vec<_>, _>>().map_err(words)?;
    if chain.is_empty() { Err("holds no certificate in PEM form".to_owned()) } else { Ok(chain) }
}

fn refused<T>(flag: &'static str, path: &Path, read: impl FnOnce(&Path) -> Result<T, String>) -> Result<T, TrustError> {
    read(path).map_err(|why| TrustError::File { flag, path: path.to_owned(), why })
}
