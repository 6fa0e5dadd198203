//! The certificate that we show to an upstream which asks for one. Its files are looked at before each handshake, so
//! that a renewed pair works at once; while the new pair is unusable (half written, say) the last good one is shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys, SignatureScheme};

use super::tls::pem_words;
use super::{Flight, TrustError};
use crate::aside::aside;
use crate::{files, plain, x509};

/// Far more than any chain or key.
const LARGEST: u64 = 1 << 20;

/// Where a client certificate and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// Certificate chain, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

/// A pair of files and the last good pair that was in them.
pub(super) struct Identity {
    files: IdentityFiles,
    last: Mutex<Last>,
    /// While the files hang no more than one thread waits for them.
    reading: Flight<Option<()>>,
}

struct Last {
    good: Arc<CertifiedKey>,
    /// What was last said about files that cannot be used.
    complaint: Option<String>,
}

impl Identity {
    /// The pair that is in the files now.
    pub(super) fn read(files: &IdentityFiles) -> Result<Identity, TrustError> {
        let last = Last { good: Arc::new(load(files)?), complaint: None };
        Ok(Identity { files: files.clone(), last: Mutex::new(last), reading: Flight::keeping(Duration::ZERO) })
    }

    /// Looks at the files again, for as long as `patience`.
    pub(super) async fn refresh(self: &Arc<Identity>, patience: Duration) {
        let identity = Arc::clone(self);
        let read = self.reading.join(|| async move {
            // Where this is late, the pair is taken in all the same.
            aside(move || identity.take_in(load(&identity.files))).await
        });
        if timeout(patience, read.landed()).await.is_err() {
            let (IdentityFiles { certificate, key }, patience) = (&self.files, humantime::format_duration(patience));
            self.last().complain(format!(
                "--upstream.cert-file {} and --upstream.key-file {} could not be read within {patience}: their file system hangs",
                certificate.display(),
                key.display()
            ));
        }
    }

    fn take_in(&self, read: Result<CertifiedKey, TrustError>) {
        let mut last = self.last();
        match read {
            Ok(pair) => *last = Last { good: Arc::new(pair), complaint: None },
            Err(error) => last.complain(error.to_string()),
        }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("files", &self.files).finish_non_exhaustive()
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
        let pair = Arc::clone(&self.last().good);
        pair.key.choose_scheme(schemes).is_some().then_some(pair)
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn load(files: &IdentityFiles) -> Result<CertifiedKey, TrustError> {
    let IdentityFiles { certificate, key } = files;
    let chain = refused("--upstream.cert-file", certificate, chain)?;
    if let Some(earlier) = chain.first().and_then(|certificate| x509::earlier(certificate)) {
        return refused("--upstream.cert-file", certificate, |_| Err(format!("holds a certificate of {earlier}")));
    }
    let signer = refused("--upstream.key-file", key, |path| {
        let pem = files::read(path, LARGEST).map_err(|error| plain::io(&error))?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| pem_words(&error, "key"))?;
        ring::sign::any_supported_type(&key)
            .map_err(|_| "holds a key that is none of RSA, ECDSA and Ed25519".to_owned())
    })?;
    let pair = CertifiedKey::new(chain, signer);
    refused("--upstream.key-file", key, |_| match pair.keys_match() {
        // A key that cannot tell its public half is tried.
        Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(()),
        Err(Error::InconsistentKeys(_)) => Err("is not the key of the certificate in --upstream.cert-file".to_owned()),
        Err(_) => Err("cannot be used: what stands in --upstream.cert-file is no certificate".to_owned()),
    })?;
    Ok(pair)
}

fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = files::read(path, LARGEST).map_err(|error| plain::io(&error))?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|error| pem_words(&error, "certificate"))?;
    if chain.is_empty() { Err("holds no certificate in PEM form".to_owned()) } else { Ok(chain) }
}

fn refused<T>(flag: &'static str, path: &Path, read: impl FnOnce(&Path) -> Result<T, String>) -> Result<T, TrustError> {
    read(path).map_err(|why| TrustError::File { flag, path: path.to_owned(), why })
}
