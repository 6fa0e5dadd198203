//! The failures of an upstream in words: what was seen, and what to do about it, one remedy a cause.

use std::borrow::Cow;

use super::connection::{HEAD_LIMIT, HEAD_LINES};
use super::{Role, Unreached, UpstreamError};

impl UpstreamError {
    /// What was seen: a sentence after "the upstream", without its full stop.
    pub fn seen(&self) -> String {
        match self {
            UpstreamError::Connect(why) => format!("cannot be reached: {why}"),
            UpstreamError::Reset(why) => format!("closed the connection without an answer: {why}"),
            UpstreamError::Tls(fault) => format!("failed the TLS handshake: {fault}"),
            UpstreamError::SpeaksTls => "speaks TLS, and was asked in plain HTTP".to_owned(),
            UpstreamError::Timeout(limit) => format!("did not answer within {}", humantime::format_duration(*limit)),
            UpstreamError::Unfinished { limit, bytes } => format!(
                "answered, but {} passed before its page had come, after {bytes} bytes; the part that came was not used",
                humantime::format_duration(*limit)
            ),
            UpstreamError::Unworked(limit) => {
                format!("sent more than could be worked through within {}", humantime::format_duration(*limit))
            }
            UpstreamError::Status { code, .. } => {
                let what = self.client_certificate().map(|fault| format!("{fault}: it ")).unwrap_or_default();
                format!("{}answered with status {code}", what.trim_start_matches("it "))
            }
            UpstreamError::Redirect(how) => format!("redirects {how}"),
            UpstreamError::HeadTooLarge => {
                format!("sent a response head of more than {HEAD_LINES} lines or {} KiB", HEAD_LIMIT >> 10)
            }
            UpstreamError::TooLarge { part, limit } => format!("answers with more than {limit} bytes of {part}"),
            UpstreamError::Truncated(bytes) => {
                format!("broke off after {bytes} bytes of the body; the part that came was not used")
            }
            UpstreamError::Unended { bytes, lacks } => {
                format!("ended its page after {bytes} bytes without {lacks}; the part that came was not used")
            }
            UpstreamError::Chunks(bytes) => {
                format!(
                    "sent a body in chunks that cannot be read, after {bytes} bytes; the part that came was not used"
                )
            }
            UpstreamError::Encoding(how) => format!("packed the body in a way that cannot be read: {how}"),
            UpstreamError::PackedUnsaid(how) => format!("sent a page packed with {how} and no Content-Encoding header"),
            UpstreamError::Protobuf => "sent a page in Protobuf, and was asked for text".to_owned(),
            UpstreamError::Binary => "sent binary data instead of metrics".to_owned(),
            UpstreamError::NotHttp => "sent what is no HTTP response".to_owned(),
            UpstreamError::Content(what) => format!("sent {what} instead of metrics"),
            UpstreamError::Empty => "sent an empty page".to_owned(),
            UpstreamError::Auth { code: 403, .. } => "forbids it: it answered with status 403".to_owned(),
            UpstreamError::Auth { code, .. } => format!("needs credentials: it answered with status {code}"),
            UpstreamError::Secret(why) => format!("was not asked, since {why}"),
            UpstreamError::Broke => "sent a page that this exporter broke on".to_owned(),
        }
    }

    /// What to do: a sentence or two without the last full stop. It fits that upstream.
    pub fn remedy(&self, role: Role) -> Cow<'static, str> {
        match role {
            Role::Main => self.remedy_of_main().into(),
            Role::Extra => self.remedy_of_extra(),
        }
    }

    /// The whole of it: a sentence after "the upstream", and what to do about it, without the last full stop.
    pub fn told(&self, role: Role) -> String {
        format!("{}. {}", self.seen(), self.remedy(role))
    }

    /// It speaks of an engine, and names the flags of the main upstream.
    pub(super) fn remedy_of_main(&self) -> &'static str {
        if let Some(fault) = self.client_certificate() {
            return fault.remedy();
        }
        match self {
            UpstreamError::SpeaksTls => TO_HTTPS,
            UpstreamError::Status { .. } if self.speaks_tls() => TO_HTTPS,
            UpstreamError::Tls(fault) => fault.remedy(),
            UpstreamError::Connect(why) => why.remedy(),
            UpstreamError::Reset(_) => "Look whether the engine is still up, and what stands before it and may close",
            UpstreamError::Timeout(_) => {
                "Look whether the engine hangs or its box is overloaded, and whether a firewall drops packets. An engine \
                 that is only slow gets more time with --upstream.timeout"
            }
            UpstreamError::Unfinished { .. } => {
                "Look whether the engine hangs amid its answer, or the way to it is slow. More time is given with \
                 --upstream.timeout, and by a longer scrape timeout"
            }
            UpstreamError::Unworked(_) => "A smaller --upstream.max-bytes refuses such pages",
            UpstreamError::Status { code, .. } => of_status(*code),
            UpstreamError::Redirect(_) => "Write the final address after --upstream",
            UpstreamError::HeadTooLarge => "Look what stands before the engine and sends such a head",
            UpstreamError::TooLarge { .. } => {
                "A larger body is allowed with --upstream.max-bytes, of which each extra has its part"
            }
            UpstreamError::Unended { .. } => {
                "Look what ends the answer early. A server whose whole pages look like this has to end the last line, or announce \
                 the length of the page, and to end OpenMetrics with # EOF"
            }
            UpstreamError::Truncated(_) => {
                "Look whether the engine, or a proxy before it, dies or times out amid its answer"
            }
            UpstreamError::Chunks(_) => "Look what stands before the engine and breaks the HTTP of its answers",
            UpstreamError::Encoding(_) => {
                "Let what stands before the engine send the page unpacked, or whole and packed with gzip"
            }
            UpstreamError::PackedUnsaid(_) => {
                "Let what stands before the engine pass the Content-Encoding header on, or not pack the page at all; \
                 Prometheus cannot read such a page either"
            }
            UpstreamError::Protobuf => {
                "Let the server, or what stands before the engine, heed the Accept header: it asks for the text format of \
                 Prometheus"
            }
            UpstreamError::Binary => {
                "Does the address name the metrics path? If it does, what stands before the engine may have packed the page and \
                 taken its Content-Encoding header away"
            }
            UpstreamError::NotHttp => "Is this the engine's own port? Something else than HTTP is spoken there",
            UpstreamError::Content(_) => "Does the address name the metrics path?",
            UpstreamError::Empty => {
                "Give the engine's own metrics page after --upstream. SGLang fills it only with --enable-metrics"
            }
            UpstreamError::Auth { code: 403, .. } => {
                "Allow this client to read the page (a network policy, a gateway's rule, a role). Where that depends on who \
                 asks, give the credentials of a user who may with --upstream.bearer-token-file or --upstream.basic-auth-file"
            }
            UpstreamError::Auth { .. } => {
                "Name a file that has them with --upstream.bearer-token-file or --upstream.basic-auth-file; where one is \
                 named, what is in it is wrong or has expired"
            }
            UpstreamError::Secret(_) => "Mend the file, or let this program's user read it",
            UpstreamError::Broke => "This is a bug: please report it together with the page",
        }
    }
}

/// Another server than the engine, asked by the same means.
pub struct Other<'a> {
    /// What it is, such as `the exporter`.
    pub who: &'a str,
    /// The flag that names its address.
    pub flag: &'a str,
}

impl UpstreamError {
    /// The whole of it, in words that fit another server than the engine.
    pub fn of_other(&self, Other { who, flag }: &Other<'_>) -> String {
        let remedy = match self {
            UpstreamError::Connect(Unreached::Refused) => {
                format!("Does {who} run, and does it listen there? {flag} names another place")
            }
            UpstreamError::Connect(_) | UpstreamError::Tls(_) | UpstreamError::SpeaksTls => {
                let remedy = self.remedy_of_main().replace("after --upstream", &format!("after {flag}"));
                remedy.replace("the engine", who)
            }
            _ => return self.seen(),
        };
        format!("{}. {remedy}", self.seen())
    }
}

const TO_HTTPS: &str = "Write https:// in place of http:// after --upstream";

fn of_status(code: u16) -> &'static str {
    match code {
        404 | 405 | 410 => {
            "Give the path of the engine's metrics with --upstream, such as http://127.0.0.1:8000/metrics. vLLM serves it on \
             its API port, SGLang only with --enable-metrics, Ollama not at all"
        }
        429 => {
            "Something limits how often it may be asked: ask less often (a longer scrape interval, \
                --upstream.min-interval), or take the metrics path out of that limit"
        }
        502..=504 => "A proxy has no engine behind it that serves, or the engine is still loading: look there first",
        500..=599 => {
            "The server failed over the page: its own log says at what. Where PROMETHEUS_MULTIPROC_DIR is set, the \
                      directory must be there, writable and empty at each start"
        }
        400 => "Is this the engine's own port? Something there does not understand a plain request for a page",
        _ => "Give the engine's own metrics page with --upstream, such as http://127.0.0.1:8000/metrics",
    }
}
