//! Everything that can be wrong with an answer, as one enum: a short reason for the metric, what was seen and what to do
//! for people. What it does to our own answer is decided at the edge, not here.
//!
//! No text of a library gets in here as it is: each is put into words where its error is turned into one of these.

use std::io;
use std::time::Duration;

use super::tls_fault::TlsFault;
use super::unreached::Unreached;
use crate::plain;

/// Why there is no page. Its text is a sentence after "the upstream", and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpstreamError {
    /// No connection came about.
    Connect(Unreached),
    /// The connection ended before a whole response head was there.
    Reset(String),
    /// The TLS handshake failed.
    Tls(TlsFault),
    /// The address is http, and the port speaks TLS.
    SpeaksTls,
    /// The deadline passed before there was an answer.
    Timeout(Duration),
    /// The deadline passed amid the answer.
    Unfinished {
        /// How long the whole fetch might take.
        limit: Duration,
        /// Bytes of the body that came.
        bytes: usize,
    },
    /// The page came, but the work on it, or on the one before it, did not end in time.
    Unworked(Duration),
    /// Some other status than 200.
    Status {
        /// HTTP status code.
        code: u16,
        /// Beginning of the body. Foreign text.
        excerpt: String,
    },
    /// A redirect that is not followed.
    Redirect(String),
    /// The head has more bytes or more lines than are taken.
    HeadTooLarge,
    /// The body, packed or unpacked, is larger than allowed.
    TooLarge {
        /// `body` or `unpacked body`.
        part: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// The body ended before its announced end.
    Truncated(usize),
    /// The page ended amid a line, or without its end mark, and nothing around it says that this is its end.
    Unended {
        /// Bytes that came, unpacked.
        bytes: usize,
        /// What is missing.
        lacks: &'static str,
    },
    /// The body came in chunks that do not follow HTTP. After so many bytes.
    Chunks(usize),
    /// A coding that is not understood, or damaged.
    Encoding(String),
    /// Packed in this way, and no header says so.
    PackedUnsaid(&'static str),
    /// What came does not begin as an answer of HTTP does.
    NotHttp,
    /// A page in Protobuf.
    Protobuf,
    /// Something that is no text.
    Binary,
    /// Something that is no metrics page.
    Content(String),
    /// Status 200 and nothing in it.
    Empty,
    /// The upstream refuses us.
    Auth {
        /// HTTP status code: 401 or 403.
        code: u16,
        /// Beginning of the body. Foreign text.
        excerpt: String,
    },
    /// The secret that would open the upstream cannot be read: why.
    Secret(String),
    /// Our own code panicked over the page.
    Broke,
}

impl UpstreamError {
    /// The value of the `reason` label.
    pub fn reason(&self) -> &'static str {
        match self {
            UpstreamError::Connect(_) => "connect",
            UpstreamError::Reset(_) => "reset",
            UpstreamError::Tls(_) => "tls",
            UpstreamError::Timeout(_) | UpstreamError::Unfinished { .. } | UpstreamError::Unworked(_) => "timeout",
            UpstreamError::Status { .. } => "status",
            UpstreamError::Redirect(_) => "redirect",
            UpstreamError::TooLarge { .. } | UpstreamError::HeadTooLarge => "too_large",
            UpstreamError::Truncated(_) | UpstreamError::Unended { .. } => "truncated",
            UpstreamError::Encoding(_)
            | UpstreamError::PackedUnsaid(_)
            | UpstreamError::Chunks(_)
            | UpstreamError::Protobuf => "encoding",
            UpstreamError::Content(_)
            | UpstreamError::Binary
            | UpstreamError::NotHttp
            | UpstreamError::SpeaksTls
            | UpstreamError::Broke => "content",
            UpstreamError::Empty => "empty",
            UpstreamError::Auth { .. } | UpstreamError::Secret(_) => "auth",
        }
    }

    /// What the upstream wrote about it. Foreign text.
    pub fn excerpt(&self) -> Option<&str> {
        match self {
            UpstreamError::Status { excerpt, .. } | UpstreamError::Auth { excerpt, .. } => {
                Some(excerpt.as_str()).filter(|excerpt| !excerpt.is_empty())
            }
            _ => None,
        }
    }

    /// Whether the port speaks TLS while the address is http. Some servers say so in an answer with status 400.
    pub fn speaks_tls(&self) -> bool {
        match self {
            UpstreamError::SpeaksTls => true,
            UpstreamError::Status { code: 400, excerpt } => says(
                excerpt,
                &["to an https server", "sent to https port", "to an ssl-enabled", "https is spoken here"],
            ),
            // Of nginx, where it is told to pass its own numbers on.
            UpstreamError::Status { code: 497, .. } => true,
            _ => false,
        }
    }

    /// What is wrong with our certificate, if that is what is wrong. nginx says it in an answer: by its words, or by numbers
    /// of its own.
    pub fn client_certificate(&self) -> Option<TlsFault> {
        match self {
            UpstreamError::Tls(fault @ (TlsFault::WantsCertificate | TlsFault::RefusesCertificate)) => {
                Some(fault.clone())
            }
            UpstreamError::Status { code: 496, .. } => Some(TlsFault::WantsCertificate),
            UpstreamError::Status { code: 495, .. } => Some(TlsFault::RefusesCertificate),
            UpstreamError::Status { code: 400, excerpt }
                if says(excerpt, &["no required ssl certificate was sent"]) =>
            {
                Some(TlsFault::WantsCertificate)
            }
            UpstreamError::Status { code: 400, excerpt } if says(excerpt, &["the ssl certificate error"]) => {
                Some(TlsFault::RefusesCertificate)
            }
            _ => None,
        }
    }

    /// What a failure before the body means.
    pub(super) fn from_exchange(error: &hyper::Error) -> UpstreamError {
        if error.is_parse_too_large() {
            return UpstreamError::HeadTooLarge;
        }
        if error.is_parse() {
            return UpstreamError::NotHttp;
        }
        match io_cause(error) {
            Some(io) => TlsFault::within(io).map_or_else(|| UpstreamError::Reset(plain::io(io)), UpstreamError::Tls),
            None => UpstreamError::Reset("it ended before the head of a response".to_owned()),
        }
    }
}

/// Whether one of these stands in it, in small letters or large.
fn says(excerpt: &str, texts: &[&str]) -> bool {
    let said = excerpt.to_ascii_lowercase();
    texts.iter().any(|text| said.contains(text))
}

/// The innermost I/O error: hyper's own sentence says only which step failed.
pub(super) fn io_cause(error: &hyper::Error) -> Option<&io::Error> {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        if let Some(io) = source.downcast_ref() {
            return Some(io);
        }
        innermost = source;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_answers_in_http_that_it_wants_tls_is_believed() {
        let says = |code, text: &str| UpstreamError::Status { code, excerpt: text.to_owned() }.speaks_tls();
        // Go's net/http, nginx and Apache.
        assert!(says(400, "Client sent an HTTP request to an HTTPS server."));
        assert!(says(400, "<center>The plain HTTP request was sent to HTTPS port</center>"));
        assert!(says(400, "You're speaking plain HTTP to an SSL-enabled server port."));
        assert!(says(497, ""));
        assert!(!says(400, "Bad Request") && !says(500, "Client sent an HTTP request to an HTTPS server."));
    }

    #[test]
    fn a_server_that_answers_in_http_that_it_wants_a_certificate_is_believed() {
        let wants = |code, text: &str| UpstreamError::Status { code, excerpt: text.to_owned() }.client_certificate();
        // nginx 1.26.
        let page = |title: &str| format!("<html>\r\n<head><title>400 {title}</title></head>\r\n<body>\r\n");
        assert_eq!(wants(400, &page("No required SSL certificate was sent")), Some(TlsFault::WantsCertificate));
        assert_eq!(wants(400, &page("The SSL certificate error")), Some(TlsFault::RefusesCertificate));
        assert_eq!(
            (wants(496, ""), wants(495, "")),
            (Some(TlsFault::WantsCertificate), Some(TlsFault::RefusesCertificate))
        );
        assert_eq!((wants(400, &page("Bad Request")), wants(404, "")), (None, None));
    }
}
