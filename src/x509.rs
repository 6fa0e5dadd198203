//! What the TLS library does not tell of a certificate that it refuses: of which version of X.509 it is.
//!
//! Version 1, which OpenSSL 3.0 makes with `x509 -req` where it is given no extensions, has no place for the names of a
//! server. The library takes version 3 alone.

/// Why a certificate of an earlier version cannot be used, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("X.509 version {0}, and only version 3 can be used; make it version 3 (openssl x509 -req … -extfile FILE)")]
pub struct Earlier(u8);

/// What is said of a certificate in DER that is of version 1 or 2; of any other, and of what is no certificate, nothing.
pub fn earlier(der: &[u8]) -> Option<Earlier> {
    version(der).filter(|version| *version < 3).map(Earlier)
}

/// RFC 5280, 4.1: `Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { version [0] EXPLICIT INTEGER DEFAULT v1, serialNumber
/// INTEGER, … } … }`, where v1 is 0. So what stands first in tbsCertificate is the version in its tag, or the serial number of
/// one that is of version 1.
fn version(der: &[u8]) -> Option<u8> {
    match inside(SEQUENCE, inside(SEQUENCE, der)?)? {
        [INTEGER, ..] => Some(1),
        [VERSION, 3, INTEGER, 1, number, ..] => number.checked_add(1),
        _ => None,
    }
}

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;

/// What begins inside a value of this tag. Its length is one byte up to 127, or as many bytes as the lower bits of the first
/// one say.
fn inside(tag: u8, der: &[u8]) -> Option<&[u8]> {
    let (length, rest) = der.strip_prefix(&[tag])?.split_first()?;
    if *length < 0x80 { Some(rest) } else { rest.get(usize::from(length & 0x7f)..) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand, as far as it is looked at: a certificate of 600 bytes (82 02 54) with a tbsCertificate of 450 (82 01 c2).
    #[test]
    fn the_version_stands_first_or_is_1() {
        let with = |first: &[u8]| [&[0x30, 0x82, 0x02, 0x54, 0x30, 0x82, 0x01, 0xc2], first].concat();
        // A serial number of two bytes; version 2 is written 1, version 3 is written 2.
        assert_eq!(version(&with(&[0x02, 0x02, 0x12, 0x34])), Some(1));
        assert_eq!(version(&with(&[0xa0, 0x03, 0x02, 0x01, 0x01])), Some(2));
        assert_eq!(version(&with(&[0xa0, 0x03, 0x02, 0x01, 0x02])), Some(3));
        // Lengths of one byte.
        assert_eq!(version(&[0x30, 0x10, 0x30, 0x0a, 0x02, 0x01, 0x01]), Some(1));
        assert_eq!(earlier(&with(&[0xa0, 0x03, 0x02, 0x01, 0x02])), None);
        for no_certificate in [&[][..], &[0x30], &[0x30, 0x82], &[0x30, 0xff, 0x30], &[0x04, 0x02, 0x30, 0x00]] {
            assert_eq!(earlier(no_certificate), None, "{no_certificate:?}");
        }
    }
}
