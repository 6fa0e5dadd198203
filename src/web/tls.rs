//! TLS as the configuration wants it: the files are read here, and everything that can be wrong with them is an
//! error of reading the configuration and not of the first handshake.

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::crypto::{self, CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, ServerConfig, SignatureScheme,
};

use super::config::{ClientAuth, Tls};
use super::files::Files;
use super::section::Located;
use super::yaml::Fault;
use crate::{plain, x509};

/// Reads certificate, key and authority.
pub(super) fn server(tls: &Tls, files: &mut Files) -> Result<Arc<ServerConfig>, Fault> {
    let provider = Arc::new(provider(tls));
    let (cert, key) = (&tls.cert_file, &tls.key_file);
    let chain = certificates(cert, files)?;
    if let Some(earlier) = chain.first().and_then(|certificate| x509::earlier(certificate)) {
        return Err(refuse(cert, &format!("holds a certificate of {earlier}")));
    }
    // What the PEM reader says of a key could hold a piece of it.
    let pem = files.read(&key.value).map_err(|error| refuse(key, &plain::io(&error)))?;
    let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| refuse(key, &"holds no private key in PEM form"))?;
    let verifier = verifier(&tls.client_auth, &provider, files)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&tls.versions)
        .map_err(|_| refuse(cert, &"TLS cannot be set up with these versions, cipher suites and curves"))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, private)
        .map_err(|error| misfit(&error, cert, key))?;
    config.ignore_client_order = tls.prefer_server;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

const NO_CERTIFICATE: &str = "holds something that is no certificate of an authority";

/// Which of key and certificate cannot be used, and why.
fn misfit(error: &Error, cert: &Located<PathBuf>, key: &Located<PathBuf>) -> Fault {
    match error {
        Error::InconsistentKeys(_) => refuse(key, &"is not the key of the certificate in cert_file"),
        Error::InvalidCertificate(_) => refuse(cert, &"holds something that is no certificate"),
        _ => refuse(key, &"holds a key that is none of RSA, ECDSA and Ed25519"),
    }
}

fn refuse(file: &Located<PathBuf>, why: &dyn Display) -> Fault {
    file.fault(&format!("{}: {why}", file.value.display()))
}

fn provider(tls: &Tls) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if !tls.cipher_suites.is_empty() {
        // The list is about TLS 1.2; the suites of TLS 1.3 are all good.
        provider.cipher_suites.retain(|suite| suite.tls13().is_some());
        provider.cipher_suites.extend(tls.cipher_suites.iter().filter(|suite| suite.tls13().is_none()));
    }
    if !tls.curves.is_empty() {
        provider.kx_groups.clone_from(&tls.curves);
    }
    provider
}

fn certificates(file: &Located<PathBuf>, files: &mut Files) -> Result<Vec<CertificateDer<'static>>, Fault> {
    let pem = files.read(&file.value).map_err(|error| refuse(file, &plain::io(&error)))?;
    let chain: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|_| refuse(file, &"is not in PEM form"))?;
    if chain.is_empty() { Err(refuse(file, &"holds no certificate in PEM form")) } else { Ok(chain) }
}

fn verifier(
    wanted: &ClientAuth,
    provider: &Arc<CryptoProvider>,
    files: &mut Files,
) -> Result<Arc<dyn ClientCertVerifier>, Fault> {
    let anybody = |mandatory| Arc::new(Unverified { mandatory, provider: Arc::clone(provider) });
    let (file, optional) = match wanted {
        ClientAuth::None => return Ok(WebPkiClientVerifier::no_client_auth()),
        ClientAuth::Request => return Ok(anybody(false)),
        ClientAuth::RequireAny => return Ok(anybody(true)),
        ClientAuth::VerifyIfGiven(file) => (file, true),
        ClientAuth::RequireAndVerify(file) => (file, false),
    };
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file, files)? {
        roots.add(certificate).map_err(|_| refuse(file, &NO_CERTIFICATE))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    // As a trait object it is what every kind gives.
    builder.build().map(|verifier| verifier as _).map_err(|_| refuse(file, &NO_CERTIFICATE))
}

/// Takes any certificate whose key the client really has, whoever signed it.
#[derive(Debug)]
struct Unverified {
    mandatory: bool,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for Unverified {
    fn client_auth_mandatory(&self) -> bool {
        self.mandatory
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
