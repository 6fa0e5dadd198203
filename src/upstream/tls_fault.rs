//! What can be wrong with TLS, told apart by what to do about it, in words of our own: the library's errors are written for
//! those who read its code.

use std::io;
use std::time::{Duration, UNIX_EPOCH};

use tokio_rustls::rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::demand::Demand;
use super::key::Unverifiable;
use super::verify::{is_an_authoritys, refused_version};
use crate::plain;
use crate::x509::Earlier;

/// Why there is no TLS connection. Its text follows "failed the TLS handshake: ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsFault {
    /// The certificate does not lead to one that is trusted.
    #[error("its certificate is signed by nobody whom this side trusts")]
    Untrusted,
    /// The certificate was good until then.
    #[error("its certificate expired{}", on(.0))]
    Expired(Option<String>),
    /// The certificate will be good from then on.
    #[error("its certificate is not valid yet{}", from(.0))]
    NotYetValid(Option<String>),
    /// The certificate is another host's.
    #[error("its certificate is for {}, and not for {wanted}", presented.join(", "))]
    WrongName {
        /// The name that it was to have.
        wanted: String,
        /// The names that it has. Foreign text.
        presented: Vec<String>,
    },
    /// The certificate has no name that counts.
    #[error("its certificate names no host: it has no subjectAltName, and the CN of its subject does not count")]
    Nameless,
    /// The host of the address can stand in no certificate.
    #[error("no certificate can have the name {0:?}")]
    NoSuchName(String),
    /// The certificate cannot be read, or is not meant for a server.
    #[error("its certificate is no certificate of a server: {0}")]
    Unusable(&'static str),
    /// A key that the TLS library does not know: of the certificate, or of one that signed it.
    #[error("its certificate, or one that signed it, has a key that this program cannot verify with ({0})")]
    Key(String),
    /// The certificate is of an earlier version than can be used.
    #[error("its certificate is {0}")]
    Earlier(Earlier),
    /// The server wants a certificate of ours.
    #[error("it asks for a client certificate")]
    WantsCertificate,
    /// The server does not accept the one that it was shown.
    #[error("it refuses the client certificate that it was shown")]
    RefusesCertificate,
    /// No common version.
    #[error("it speaks no version of TLS that this side speaks (1.2 and 1.3)")]
    Version,
    /// No common cipher, or whatever else the server means by its general refusal.
    #[error("it refuses: no cipher, or no kind of certificate key, is common to both sides")]
    Refused,
    /// What came is no TLS.
    #[error("it answers, but not in TLS")]
    Plain,
    /// The end of the connection.
    #[error("it closed the connection amid the handshake")]
    Closed,
    /// The network failed amid the handshake, in words.
    #[error("the connection broke amid the handshake: {0}")]
    Broke(String),
    /// Whatever else.
    #[error("one side does not follow the protocol")]
    Protocol,
}

fn on(date: &Option<String>) -> String {
    date.as_ref().map(|date| format!(" on {date}")).unwrap_or_default()
}

fn from(date: &Option<String>) -> String {
    date.as_ref().map(|date| format!(", only from {date} on")).unwrap_or_default()
}

impl TlsFault {
    /// What an error of a stream means: `None` where TLS has no part in it.
    pub(super) fn within(error: &io::Error) -> Option<TlsFault> {
        Some(TlsFault::of(error.get_ref()?.downcast_ref::<Error>()?))
    }

    /// What an error of a handshake means.
    pub(super) fn of_handshake(error: &io::Error) -> TlsFault {
        TlsFault::within(error).unwrap_or_else(|| match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => TlsFault::Closed,
            _ => TlsFault::Broke(plain::io(error)),
        })
    }

    /// What it means where the server asked for that.
    pub(super) fn after(self, demand: Demand) -> TlsFault {
        match (self, demand) {
            (TlsFault::Refused | TlsFault::RefusesCertificate | TlsFault::Closed, Demand::Unmet) => {
                TlsFault::WantsCertificate
            }
            (TlsFault::Refused, Demand::Met) => TlsFault::RefusesCertificate,
            (fault, _) => fault,
        }
    }

    fn of(error: &Error) -> TlsFault {
        match error {
            Error::InvalidCertificate(error) => TlsFault::of_certificate(error),
            Error::NoCertificatesPresented => TlsFault::Unusable("it shows none"),
            Error::AlertReceived(alert) => TlsFault::of_alert(*alert),
            Error::InvalidMessage(InvalidMessage::InvalidContentType) => TlsFault::Plain,
            Error::PeerIncompatible(
                PeerIncompatible::ServerDoesNotSupportTls12Or13
                | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
                | PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled,
            ) => TlsFault::Version,
            Error::PeerIncompatible(_) => TlsFault::Refused,
            _ => TlsFault::Protocol,
        }
    }

    fn of_certificate(error: &CertificateError) -> TlsFault {
        if let Some(earlier) = refused_version(error) {
            return TlsFault::Earlier(earlier);
        }
        match error {
            CertificateError::ExpiredContext { not_after, .. } => TlsFault::Expired(Some(date(not_after.as_secs()))),
            CertificateError::Expired => TlsFault::Expired(None),
            CertificateError::NotValidYetContext { not_before, .. } => {
                TlsFault::NotYetValid(Some(date(not_before.as_secs())))
            }
            CertificateError::NotValidYet => TlsFault::NotYetValid(None),
            CertificateError::NotValidForNameContext { presented, .. } if presented.is_empty() => TlsFault::Nameless,
            CertificateError::NotValidForNameContext { expected, presented } => {
                TlsFault::WrongName { wanted: expected.to_str().into_owned(), presented: names(presented) }
            }
            CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
                TlsFault::Unusable("its extended key usage leaves servers out")
            }
            CertificateError::BadEncoding | CertificateError::UnhandledCriticalExtension => {
                TlsFault::Unusable("it cannot be read")
            }
            // A certificate that is not what it was signed as is signed by nobody.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsFault::Untrusted,
            CertificateError::UnsupportedSignatureAlgorithmContext { .. }
            | CertificateError::UnsupportedSignatureAlgorithmForPublicKeyContext { .. } => TlsFault::Unusable(
                "it, or one that it leads to, is signed in a way that this program does not accept (SHA-1?)",
            ),
            why if let Some(Unverifiable(kind)) = Unverifiable::within(why) => TlsFault::Key(kind.clone()),
            // Self-signed, as people make them: it would be believed if it were named.
            why if is_an_authoritys(why) => TlsFault::Untrusted,
            _ => TlsFault::Unusable("it, or one that it leads to, breaks a rule for certificates of servers"),
        }
    }

    fn of_alert(alert: AlertDescription) -> TlsFault {
        use AlertDescription as Alert;
        match alert {
            Alert::CertificateRequired | Alert::NoCertificate => TlsFault::WantsCertificate,
            Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
            | Alert::DecryptError => TlsFault::RefusesCertificate,
            Alert::ProtocolVersion => TlsFault::Version,
            Alert::HandshakeFailure | Alert::InsufficientSecurity => TlsFault::Refused,
            Alert::UnrecognisedName => TlsFault::WrongName {
                wanted: "the name that was asked for".to_owned(),
                presented: vec!["others".to_owned()],
            },
            _ => TlsFault::Protocol,
        }
    }

    /// What to do about it, in a sentence without its full stop.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            TlsFault::Untrusted => {
                "Name the authority that signed it, or the certificate itself if nobody else did, with --upstream.ca-file. Where \
                 that is done, the server may leave out a certificate between the two: let it send its whole chain, or put that \
                 one into the file, too"
            }
            TlsFault::Expired(_) => "Renew the server's certificate, and restart the server if it reads it only then",
            TlsFault::NotYetValid(_) => "Set the clocks of both boxes, or wait",
            TlsFault::WrongName { .. } => {
                "Give an address with one of its names after --upstream, or say which to expect with --upstream.server-name"
            }
            TlsFault::Nameless => {
                "Make it anew with names in it, such as openssl req -x509 -addext subjectAltName=DNS:gpu-1,IP:10.0.0.7 …"
            }
            TlsFault::NoSuchName(_) => "Say which name the certificate has with --upstream.server-name",
            TlsFault::Unusable(_) => "Give the server a certificate that is made for servers",
            TlsFault::Key(_) => {
                "Give it, and the authority that signs it, a key of RSA with 2048 to 8192 bits, of ECDSA on P-256 or P-384, or of \
                 Ed25519"
            }
            TlsFault::Earlier(_) => "Give the server a certificate of version 3 that names it in its subjectAltName",
            TlsFault::WantsCertificate => "Give it one with --upstream.cert-file and --upstream.key-file",
            TlsFault::RefusesCertificate => {
                "Look into the server's log, and compare --upstream.cert-file with the authorities that the server takes"
            }
            TlsFault::Version => "Let the server speak TLS 1.2 or 1.3",
            TlsFault::Refused => {
                "Look into the server's log. It may allow only ciphers without forward secrecy, or have no certificate whose key \
                 is of RSA, of ECDSA on P-256 or P-384, or of Ed25519"
            }
            TlsFault::Plain => "If the port speaks plain HTTP, write http:// in place of https:// after --upstream",
            TlsFault::Closed => {
                "If the port speaks plain HTTP, write http:// in place of https:// after --upstream; else look into the \
                 server's log"
            }
            TlsFault::Broke(_) => "Look at the network between the two boxes",
            TlsFault::Protocol => "Look whether the port speaks TLS, and into the server's log",
        }
    }
}

/// As RFC 3339 has it: `2026-11-02T08:00:00Z`.
fn date(seconds: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
    time.map_or_else(|| "a day out of reach".to_owned(), |time| humantime::format_rfc3339_seconds(time).to_string())
}

/// The first names, without what the library writes around them: `DnsName("a")` is `a`.
fn names(presented: &[String]) -> Vec<String> {
    const ENOUGH: usize = 5;
    let bare = |text: &String| {
        let inner = text.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or(text);
        inner.trim_matches('"').to_owned()
    };
    let more = presented.len().saturating_sub(ENOUGH);
    let more = (more > 0).then(|| format!("{more} more"));
    presented.iter().take(ENOUGH).map(bare).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_rustls::rustls::pki_types::{ServerName, UnixTime};

    #[test]
    fn dates_and_names_are_told_as_people_write_them() {
        let not_after = UnixTime::since_unix_epoch(Duration::from_secs(1_775_088_000));
        let expired = CertificateError::ExpiredContext { time: not_after, not_after };
        // 1,775,088,000 s are 20,545 days: 2026-04-02.
        let text = TlsFault::of_certificate(&expired).to_string();
        assert_eq!(text, "its certificate expired on 2026-04-02T00:00:00Z");
        let expected = ServerName::try_from("gpu-2").unwrap();
        let presented = vec!["DnsName(\"gpu-1\")".to_owned(), "IpAddress(10.0.0.7)".to_owned()];
        let misnamed = CertificateError::NotValidForNameContext { expected, presented };
        let text = TlsFault::of_certificate(&misnamed).to_string();
        assert_eq!(text, "its certificate is for gpu-1, 10.0.0.7, and not for gpu-2");
    }

    #[test]
    fn a_certificate_of_many_names_is_not_told_in_full() {
        let many: Vec<String> = (0..9).map(|number| format!("DnsName(\"h{number}\")")).collect();
        assert_eq!(names(&many), ["h0", "h1", "h2", "h3", "h4", "4 more"]);
    }

    #[test]
    fn an_alert_is_told_by_what_the_server_wants() {
        for (alert, fault) in [
            (AlertDescription::CertificateRequired, TlsFault::WantsCertificate),
            (AlertDescription::UnknownCA, TlsFault::RefusesCertificate),
            (AlertDescription::ProtocolVersion, TlsFault::Version),
            (AlertDescription::HandshakeFailure, TlsFault::Refused),
        ] {
            assert_eq!(TlsFault::of(&Error::AlertReceived(alert)), fault);
        }
    }
}
