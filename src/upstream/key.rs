//! Which keys of certificates the TLS library can verify with: RSA of 2048 to 8192 bits, ECDSA on P-256 and P-384, and Ed25519.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{CertificateError, Error, OtherError};
use webpki::EndEntityCert;

/// A key that nothing can be verified with, in words such as `RSA of 1024 bits`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unverifiable(pub(super) String);

impl Unverifiable {
    /// The key of a certificate, if it is such a one.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Unverifiable> {
        let certificate = EndEntityCert::try_from(certificate).ok()?;
        unverifiable(&certificate.subject_public_key_info()).map(Unverifiable)
    }

    /// As an error of a handshake, which [`Unverifiable::within`] knows again.
    pub(super) fn error(self) -> Error {
        Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(self))))
    }

    pub(super) fn within(error: &CertificateError) -> Option<&Unverifiable> {
        let CertificateError::Other(other) = error else { return None };
        other.0.downcast_ref()
    }
}

impl fmt::Display for Unverifiable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for Unverifiable {}

/// Object identifiers of RFC 3279, 5480 and 8410, as they are encoded.
const RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01";
const EC: &[u8] = b"\x2a\x86\x48\xce\x3d\x02\x01";
const P256: &[u8] = b"\x2a\x86\x48\xce\x3d\x03\x01\x07";
const P384: &[u8] = b"\x2b\x81\x04\x00\x22";
const P521: &[u8] = b"\x2b\x81\x04\x00\x23";
const ED25519: &[u8] = b"\x2b\x65\x70";
const ED448: &[u8] = b"\x2b\x65\x71";

/// Looks at a SubjectPublicKeyInfo (RFC 5280, 4.1): the algorithm with its parameters, then the key as a bit string.
fn unverifiable(info: &[u8]) -> Option<String> {
    let (info, _) = element(info)?;
    let (algorithm, key) = element(info)?;
    let (algorithm, parameters) = element(algorithm)?;
    match algorithm {
        RSA => {
            let bits = rsa_bits(element(key)?.0)?;
            (!(2048..=8192).contains(&bits)).then(|| format!("RSA of {bits} bits"))
        }
        EC => match element(parameters)?.0 {
            P256 | P384 => None,
            P521 => Some("ECDSA on P-521".to_owned()),
            _ => Some("ECDSA on a curve other than P-256 and P-384".to_owned()),
        },
        ED25519 => None,
        ED448 => Some("Ed448".to_owned()),
        _ => Some("of another kind than RSA, ECDSA and Ed25519".to_owned()),
    }
}

/// The length of the modulus, in whole bytes. The bit string begins with how many bits of its last byte count for nothing.
fn rsa_bits(bit_string: &[u8]) -> Option<usize> {
    let (key, _) = element(bit_string.get(1..)?)?;
    let (modulus, _) = element(key)?;
    Some(8 * modulus.iter().skip_while(|byte| **byte == 0).count())
}

/// The contents of the first DER element, and what follows it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[_, length], rest) = der.split_first_chunk::<2>()?;
    if length < 0x80 {
        return rest.split_at_checked(length.into());
    }
    let (length, rest) = rest.split_at_checked((length & 0x7f).into())?;
    let length = length.iter().try_fold(0_usize, |sum, byte| sum.checked_mul(256)?.checked_add((*byte).into()))?;
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD as BASE64;

    /// What `openssl genpkey` and `openssl pkey -pubout` made of each kind.
    #[test]
    fn a_key_is_known_by_its_kind_and_length() {
        for (kind, key) in [
            (
                Some("RSA of 1024 bits"),
                "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQC4N5J194qkBxNreyfzs/ahcThE3udMV2Kfeyqm6QVZb6dsiZXKr62PG8HXU2VS\
                 g/WY4CHjSeTeVBzlaKGP7sIah5myqRnhvgLwx4xhlTHTihjuMzdr6MtgPX5BvGwGlssH8ZUaRO69YZovqrNab0Edr/9oIz//IjSj\
                 3oGdH46Z2QIDAQAB",
            ),
            (
                None,
                "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAnbixwFs6sJMD+vgiXBRpLYNiCOWqeGAcGROB4w73uGvRvONyXSxpDG42\
                 h9XoRLuUaS2cvUee0XGOc39js+rldpIOH/JGqc7883SgdgC5L2sMUFXWRhDsmmD4cgOi/tk8hfWD/b1wUYRRqH3VwmWo2G1oJrcd\
                 rmzHgMKhlCTKyF07hrQPblSjp3eFJP/AbmfprPf6o6dmGlqy5xVcpnYhetrG+JZ9Q/AJOGBptedF+fXNlNDY2AO0Wx8sGGZfR6iJ\
                 XFkaRyIPwaqAWo7vBEb62w1nSKn1Pb2kBEyWFnFCYMUb/dw9Zs/wTG3TTY31MJB3sOJtjlW+Sztb7OKxX6ZjYwIDAQAB",
            ),
            (
                None,
                "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEb+4mQm+HCp/FONceB4qwU3xC3wdyGDnPO49u7jL1N1tgkWgYY90r07/QD0gReWn4\
                 AIX7xQwaukbGxXQUwWZNOQ==",
            ),
            (
                None,
                "MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAESS/5NaPR3LwExglUtz9njPvvg9H/KDY6mQhoaYNCZ52jN7oSdAYOQiDKd5dpNpdY8d9K\
                 gwsh9LQUyhN1DEeKSKvkAIuyTuBvV+cJPo2INGsKrjd8h8cqEMMyLamOTGks",
            ),
            (
                Some("ECDSA on P-521"),
                "MIGbMBAGByqGSM49AgEGBSuBBAAjA4GGAAQBlDXm3F3vUy6r35/QEm/kkwMX9bowhuClFZJqtaf+/kgVLyjBbx0e/LEvAWq72EFW\
                 8TUn3FUViUME0MolR4Xisb4BZ4ICuqF5Adx5J26tBC7rNGTcw6U04OewNskZQgg2f9VAtNkFI4sCvsmtN/e3Ipzte7qUlk+VeqlE\
                 EHIsikvwgyI=",
            ),
            (
                Some("ECDSA on a curve other than P-256 and P-384"),
                "MFYwEAYHKoZIzj0CAQYFK4EEAAoDQgAE/JkbqcFJUIZP3n9nYpxxz2t1lVK84UWMpV7dIqOaNN+wbT0r1aIRYm+mcZN/ronDylka\
                 RaMZBABeWzNBgtky6g==",
            ),
            (None, "MCowBQYDK2VwAyEA57sNQ16806JD5KdS1bmFchWji1hteEJ4DVPilgvGXhY="),
            (
                Some("Ed448"),
                "MEMwBQYDK2VxAzoA5BH6jOZV9VTDjm9Yp344ZRy8/EUFxSxSjzctZ1B2108DoeVxQsGgKMQYxz4uN9mcuwJ5sBuFwjuA",
            ),
        ] {
            assert_eq!(unverifiable(&BASE64.decode(key).unwrap()).as_deref(), kind);
        }
    }

    #[test]
    fn what_is_no_key_is_none_that_is_known() {
        for bytes in [&b""[..], b"\x30", b"\x30\x85\x01\x01\x01\x01\x01", b"\x30\x8f", b"\x30\x02\x30\x00", &[0xff; 40]]
        {
            assert_eq!(unverifiable(bytes), None);
        }
    }
}
