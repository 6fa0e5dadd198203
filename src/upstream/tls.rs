//! Trust towards an https upstream, and what we show of ourselves. Built once at the start, so that a certificate
//! file which cannot be read is an error of the start and not of the first scrape.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::ServerCertVerifier;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::demand::{Demand, Demands};
use super::identity::{Identity, IdentityFiles};
use super::key::Unverifiable;
use super::tls_fault::TlsFault;
use super::verify::{Unverified, Verified};
use crate::aside::within;
use crate::{files, plain};

/// More than any bundle of authorities.
const LARGEST_BUNDLE: u64 = 16 << 20;

/// Whom to trust, and who we are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// `--upstream.insecure-skip-verify`: whoever answers is believed.
    pub skip_verify: bool,
    /// Shown to an upstream that asks for it.
    pub identity: Option<IdentityFiles>,
    /// The name that the upstream's certificate must have, where it is not the host of the address.
    pub server_name: Option<ServerName<'static>>,
}

/// Why TLS cannot be spoken.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A file with certificates or a key.
    #[error("{flag} {}: {why}", path.display())]
    File {
        /// The flag that names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The files, or the box's certificate store, hang.
    #[error(
        "{files} could not be read within {}: a file system hangs",
        humantime::format_duration(files::PATIENCE_AT_START)
    )]
    Late {
        /// Their flags and paths.
        files: String,
    },
    /// The box has no certificate store.
    #[error("this box has no certificate store to verify an https upstream with; name one with --upstream.ca-file")]
    NoRoots,
    /// The TLS library refuses its own defaults.
    #[error("TLS cannot be set up: this is a bug, please report it")]
    Library,
}

/// Speaks TLS by these options.
pub(super) struct Tls {
    pub(super) connector: TlsConnector,
    pub(super) server_name: Option<ServerName<'static>>,
    identity: Option<Arc<Identity>>,
    demands: Arc<Demands>,
    /// The key of the certificates that the operator named, where none of them can be used.
    unverifiable: Option<Unverifiable>,
}

impl Tls {
    /// Reads what the options name.
    pub(super) async fn open(options: &TlsOptions) -> Result<Tls, TrustError> {
        let named = options.clone();
        let tls = within(files::PATIENCE_AT_START, move || Tls::new(&named)).await;
        tls.unwrap_or_else(|| Err(TrustError::Late { files: options.files() }))
    }

    /// Looks at the client certificate again: to be done before each handshake.
    pub(super) async fn refresh(&self, patience: Duration) {
        if let Some(identity) = &self.identity {
            identity.refresh(patience).await;
        }
    }

    /// To be said before each handshake.
    pub(super) fn begin(&self) {
        self.demands.begin();
    }

    /// What the server of the last handshake wanted.
    pub(super) fn demand(&self) -> Demand {
        self.demands.last()
    }

    /// What it means that the last handshake failed. A server whose only key we cannot verify with refuses before it shows its
    /// certificate; where the operator named that certificate, its key is known all the same.
    pub(super) fn fault(&self, error: &io::Error) -> TlsFault {
        match (TlsFault::of_handshake(error).after(self.demand()), &self.unverifiable) {
            (TlsFault::Refused, Some(Unverifiable(kind))) => TlsFault::Key(kind.clone()),
            (fault, _) => fault,
        }
    }

    fn new(options: &TlsOptions) -> Result<Tls, TrustError> {
        let (verifier, named) = verifier(options)?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|_| TrustError::Library)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let identity = options.identity.as_ref().map(Identity::read).transpose()?.map(Arc::new);
        let demands = Arc::new(Demands::met_with(identity.clone()));
        let mut config = config.with_client_cert_resolver(Arc::clone(&demands) as Arc<_>);
        if identity.is_some() {
            // A resumed session would go on with the certificate that it began with.
            config.resumption = Resumption::disabled();
        }
        let keys: Vec<_> = named.iter().map(Unverifiable::of).collect();
        let unverifiable = keys.into_iter().collect::<Option<Vec<_>>>().and_then(|keys| keys.into_iter().next());
        let (connector, server_name) = (TlsConnector::from(Arc::new(config)), options.server_name.clone());
        Ok(Tls { connector, server_name, identity, demands, unverifiable })
    }
}

impl TlsOptions {
    /// What is read at the start, for people.
    fn files(&self) -> String {
        let shown = |flag: &str, path: &PathBuf| format!("{flag} {}", path.display());
        let trusted = match &self.ca_file {
            Some(path) => shown("--upstream.ca-file", path),
            None => "the certificates that this box trusts".to_owned(),
        };
        let identity = self.identity.iter().flat_map(|IdentityFiles { certificate, key }| {
            [shown("--upstream.cert-file", certificate), shown("--upstream.key-file", key)]
        });
        std::iter::once(trusted).chain(identity).collect::<Vec<_>>().join(", ")
    }
}

type Named = Vec<CertificateDer<'static>>;

/// Whom to believe, and the certificates that the operator named.
fn verifier(options: &TlsOptions) -> Result<(Arc<dyn ServerCertVerifier>, Named), TrustError> {
    if options.skip_verify {
        return Ok((Arc::new(Unverified::new()), Named::new()));
    }
    let (roots, named) = match &options.ca_file {
        Some(path) => own_roots(path)?,
        None => (system_roots()?, Named::new()),
    };
    let provider = Arc::new(ring::default_provider());
    let by_path = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    let by_path = by_path.map_err(|_| TrustError::Library)?;
    Ok((Arc::new(Verified { by_path, named: named.clone() }), named))
}

/// What the file names: as the ends of paths, and as they are.
fn own_roots(path: &Path) -> Result<(RootCertStore, Named), TrustError> {
    let refuse = |why: String| TrustError::File { flag: "--upstream.ca-file", path: path.to_owned(), why };
    let pem = files::read_once(path, LARGEST_BUNDLE).map_err(|error| refuse(plain::io(&error)))?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let certificates = certificates.map_err(|error| refuse(pem_words(&error, "certificate")))?;
    let mut roots = RootCertStore::empty();
    for (at, certificate) in certificates.iter().enumerate() {
        let unusable = |_| refuse(format!("what stands in it as certificate {} is none", at + 1));
        roots.add(certificate.clone()).map_err(unusable)?;
    }
    if roots.is_empty() {
        Err(refuse("holds no certificate in PEM form".to_owned()))
    } else {
        Ok((roots, certificates))
    }
}

/// Why a PEM file gives nothing, in words.
pub(super) fn pem_words(error: &pem::Error, what: &str) -> String {
    match error {
        pem::Error::Io(error) => plain::io(error),
        pem::Error::NoItemsFound => format!("holds no {what} in PEM form"),
        _ => "is no whole PEM file: a part of it cannot be read".to_owned(),
    }
}

fn system_roots() -> Result<RootCertStore, TrustError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() { Err(TrustError::NoRoots) } else { Ok(roots) }
}
