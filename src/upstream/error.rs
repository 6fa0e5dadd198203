//! Everything that can be wrong with an answer, as one enum: a short reason for the metric and a sentence for
//! people. What it does to our own answer is decided at the edge, not here.

use std::io;
use std::time::Duration;

/// Why there is no page. Its text is a sentence after "the upstream".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// No connection came about.
    #[error("cannot be reached: {0}. Is the engine up? Loading a model can take many minutes")]
    Connect(String),
    /// The connection ended before a whole response head was there.
    #[error("closed the connection without an answer: {0}")]
    Reset(String),
    /// The TLS handshake failed.
    #[error("failed the TLS handshake: {0}. A private certificate authority is named with --upstream.ca-file")]
    Tls(String),
    /// The deadline passed.
    #[error("did not answer within {}", humantime::format_duration(*.0))]
    Timeout(Duration),
    /// The page came, but the work on it, or on the one before it, did not end in time.
    #[error(
        "sent more than could be worked through within {}. A smaller --upstream.max-bytes refuses such pages",
        humantime::format_duration(*.0)
    )]
    Unfinished(Duration),
    /// Some other status than 200.
    #[error("answered with status {code}")]
    Status {
        /// HTTP status code.
        code: u16,
        /// Beginning of the body; not escaped.
        excerpt: String,
    },
    /// A redirect that is not followed.
    #[error("redirects {0}. Write the final address after --upstream")]
    Redirect(String),
    /// The body, packed or unpacked, or the head is larger than allowed.
    #[error("sent more than {limit} bytes of {part}. A larger body is allowed with --upstream.max-bytes")]
    TooLarge {
        /// `body`, `unpacked body` or `headers`.
        part: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// The body ended before its announced end.
    #[error("broke off after {0} bytes of the body; the part that came was not used")]
    Truncated(usize),
    /// A coding that is not understood, or damaged.
    #[error("packed the body in a way that cannot be read: {0}")]
    Encoding(String),
    /// Something that is no metrics page.
    #[error("sent {0} instead of metrics. Does the address name the metrics path?")]
    Content(String),
    /// Status 200 and nothing in it.
    #[error("sent an empty page")]
    Empty,
    /// The upstream refuses us, or the secret that would open it cannot be read.
    #[error("needs credentials: {why}. They are read from --upstream.bearer-token-file or --upstream.basic-auth-file")]
    Auth {
        /// What was seen.
        why: String,
        /// Beginning of the body; not escaped.
        excerpt: String,
    },
    /// Our own code panicked over the page.
    #[error("sent a page that this exporter broke on. This is a bug: please report it together with the page")]
    Broke,
}

impl UpstreamError {
    /// The value of the `reason` label.
    pub fn reason(&self) -> &'static str {
        match self {
            UpstreamError::Connect(_) => "connect",
            UpstreamError::Reset(_) => "reset",
            UpstreamError::Tls(_) => "tls",
            UpstreamError::Timeout(_) | UpstreamError::Unfinished(_) => "timeout",
            UpstreamError::Status { .. } => "status",
            UpstreamError::Redirect(_) => "redirect",
            UpstreamError::TooLarge { .. } => "too_large",
            UpstreamError::Truncated(_) => "truncated",
            UpstreamError::Encoding(_) => "encoding",
            UpstreamError::Content(_) | UpstreamError::Broke => "content",
            UpstreamError::Empty => "empty",
            UpstreamError::Auth { .. } => "auth",
        }
    }

    /// What the upstream wrote about it. Foreign text: escape it where it is shown.
    pub fn excerpt(&self) -> Option<&str> {
        match self {
            UpstreamError::Status { excerpt, .. } | UpstreamError::Auth { excerpt, .. } => {
                Some(excerpt.as_str()).filter(|excerpt| !excerpt.is_empty())
            }
            _ => None,
        }
    }

    /// What a failure before the body means.
    pub(super) fn from_exchange(error: &hyper::Error, head_limit: usize) -> UpstreamError {
        if error.is_parse_too_large() {
            UpstreamError::TooLarge { part: "headers", limit: head_limit }
        } else if error.is_parse() {
            UpstreamError::Content(format!("what is no HTTP response ({error})"))
        } else {
            UpstreamError::Reset(cause(error))
        }
    }
}

/// The innermost cause: hyper's own sentence says only which step failed.
fn cause(error: &hyper::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    match innermost.downcast_ref::<io::Error>() {
        Some(io) => plain(io),
        None => innermost.to_string(),
    }
}

/// An I/O error in words, without the number of the platform's error.
pub(super) fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_are_plain_words() {
        assert_eq!(plain(&io::Error::from_raw_os_error(111)), "connection refused");
        assert_eq!(plain(&io::Error::other("Odd")), "odd");
    }
}
