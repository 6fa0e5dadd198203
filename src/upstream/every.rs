//! One of each failure, for tests of what is said about them.

use std::time::Duration;

use super::{TlsFault, Unreached, UpstreamError};
use crate::race::Unresolved;
use crate::x509;

/// One of each.
pub(crate) fn failure() -> Vec<UpstreamError> {
    let tls = [
        TlsFault::Untrusted,
        TlsFault::Expired(None),
        TlsFault::NotYetValid(None),
        TlsFault::WrongName { wanted: "a".into(), presented: vec!["b".into()] },
        TlsFault::Nameless,
        TlsFault::NoSuchName("a b".into()),
        TlsFault::Unusable("x"),
        TlsFault::Key("x".into()),
        TlsFault::Earlier(x509::earlier(&[0x30, 0x05, 0x30, 0x03, 0x02, 0x01, 0x01]).unwrap()),
        TlsFault::WantsCertificate,
        TlsFault::RefusesCertificate,
        TlsFault::Version,
        TlsFault::Refused,
        TlsFault::Closed,
        TlsFault::Broke("x".into()),
        TlsFault::Protocol,
        TlsFault::Plain,
    ];
    let statuses = [400, 404, 429, 500, 503].map(|code| UpstreamError::Status { code, excerpt: String::new() });
    let connects = [
        Unreached::Name(Unresolved::Unknown("x".into())),
        Unreached::Name(Unresolved::NoAnswer("x".into())),
        Unreached::Refused,
        Unreached::NoRoute("x".into()),
        Unreached::TimedOut,
        Unreached::Forbidden,
        Unreached::NoSocket,
        Unreached::IdleSocket,
        Unreached::ForbiddenSocket,
        Unreached::Other("x".into()),
    ];
    let others = [
        UpstreamError::Reset("x".into()),
        UpstreamError::SpeaksTls,
        UpstreamError::Timeout(Duration::from_secs(1)),
        UpstreamError::Unfinished { limit: Duration::from_secs(1), bytes: 1 },
        UpstreamError::Unworked(Duration::from_secs(1)),
        UpstreamError::Chunks(1),
        UpstreamError::Redirect("x".into()),
        UpstreamError::TooLarge { part: "body", limit: 1 },
        UpstreamError::HeadTooLarge,
        UpstreamError::Unended { bytes: 1, lacks: "an end" },
        UpstreamError::Truncated(1),
        UpstreamError::Encoding("x".into()),
        UpstreamError::PackedUnsaid("gzip"),
        UpstreamError::Content("HTML".into()),
        UpstreamError::Protobuf,
        UpstreamError::Binary,
        UpstreamError::NotHttp,
        UpstreamError::Empty,
        UpstreamError::Auth { code: 401, excerpt: String::new() },
        UpstreamError::Auth { code: 403, excerpt: String::new() },
        UpstreamError::Secret("x".into()),
        UpstreamError::Broke,
    ];
    let connects = connects.map(UpstreamError::Connect);
    tls.map(UpstreamError::Tls).into_iter().chain(statuses).chain(connects).chain(others).collect()
}
