//! Whether the certificate of an https upstream is believed.
//!
//! The library builds a path from it to a trusted one, and refuses two certificates that curl and Prometheus take:
//! one that is itself named as trusted and may sign others (what `openssl req -x509` makes), and one that is named as
//! trusted while its signer is not. Whoever names exactly this certificate has vouched for it, so both are taken as the
//! anchors that they are. Everything else is still asked for: its dates, its name, and a handshake that is signed with
//! its key.

use std::sync::Arc;

use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::client::{WebPkiServerVerifier, verify_server_name};
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};
use webpki::EndEntityCert;

use super::key::Unverifiable;
use crate::x509;

/// Believes what leads to a trusted certificate, and the trusted certificates themselves.
#[derive(Debug)]
pub(super) struct Verified {
    pub(super) by_path: Arc<WebPkiServerVerifier>,
    /// The certificates that the operator named; none where the system's are trusted.
    pub(super) named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.by_path.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            Err(Error::InvalidCertificate(why)) if is_of_the_path(&why) && self.named.contains(certificate) => {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            Err(Error::InvalidCertificate(why)) => {
                if let Some(version) = by_version(certificate) {
                    return Err(Error::InvalidCertificate(version));
                }
                let key = is_of_a_signature(&why).then(|| self.unverifiable(certificate, intermediates)).flatten();
                Err(key.map_or(Error::InvalidCertificate(why), Unverifiable::error))
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_path
            .verify_tls12_signature(message, certificate, signature)
            .map_err(|error| by_its_key(error, certificate))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_path
            .verify_tls13_signature(message, certificate, signature)
            .map_err(|error| by_its_key(error, certificate))
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_path.supported_verify_schemes()
    }
}

impl Verified {
    /// The key that the signature of one of these cannot be verified with.
    fn unverifiable(&self, certificate: &CertificateDer<'_>, between: &[CertificateDer<'_>]) -> Option<Unverifiable> {
        let signed = std::iter::once(certificate).chain(between);
        let signed: Vec<_> = signed.filter_map(|signed| EndEntityCert::try_from(signed).ok()).collect();
        let signs = |signer: &CertificateDer<'_>| {
            let signer = EndEntityCert::try_from(signer);
            signer.is_ok_and(|signer| signed.iter().any(|signed| signed.issuer() == signer.subject()))
        };
        between.iter().chain(&self.named).filter(|signer| signs(signer)).find_map(Unverifiable::of)
    }
}

/// An error of a signature in the handshake, by its cause where that is the key.
fn by_its_key(error: Error, certificate: &CertificateDer<'_>) -> Error {
    Unverifiable::of(certificate).map_or(error, Unverifiable::error)
}

fn is_of_a_signature(why: &CertificateError) -> bool {
    matches!(
        why,
        CertificateError::BadSignature
            | CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. }
    )
}

/// Whether the path alone is what is wrong. The library looks at the dates of the certificate first, so they are right
/// where this is what it says.
fn is_of_the_path(why: &CertificateError) -> bool {
    match why {
        CertificateError::UnknownIssuer => true,
        _ => is_of_a_signature(why) || is_an_authoritys(why),
    }
}

/// Whether the certificate was refused because it may sign others.
pub(super) fn is_an_authoritys(why: &CertificateError) -> bool {
    let CertificateError::Other(other) = why else { return false };
    matches!(other.0.downcast_ref::<webpki::Error>(), Some(webpki::Error::CaUsedAsEndEntity))
}

/// The library refuses all but version 3 and does not say so.
fn by_version(certificate: &CertificateDer<'_>) -> Option<CertificateError> {
    x509::earlier(certificate).map(|earlier| CertificateError::Other(OtherError(Arc::new(earlier))))
}

/// The version, where it is what was refused.
pub(super) fn refused_version(why: &CertificateError) -> Option<x509::Earlier> {
    let CertificateError::Other(other) = why else { return None };
    other.0.downcast_ref::<x509::Earlier>().copied()
}

/// Believes anybody: `--upstream.insecure-skip-verify`.
#[derive(Debug)]
pub(super) struct Unverified(CryptoProvider);

impl Unverified {
    pub(super) fn new() -> Unverified {
        Unverified(ring::default_provider())
    }
}

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    // Of a certificate that may be anybody's, a signature says nothing.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let verifiable = self.0.signature_verification_algorithms.supported_schemes();
        // What is not verified may be signed in any way.
        verifiable.into_iter().chain([SignatureScheme::ECDSA_NISTP521_SHA512, SignatureScheme::ED448]).collect()
    }
}
