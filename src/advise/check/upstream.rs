//! Pages that do not come: one finding a cause, with that cause's remedy. The main upstream and the extras are judged alike.

use super::Facts;
use crate::advise::Finding;
use crate::upstream::{TlsFault, UpstreamError};

/// A further upstream that was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Extra {
    /// Its name.
    pub name: String,
    /// Its address, fit for people.
    pub address: String,
    /// Why there is no page of it.
    pub error: Option<UpstreamError>,
}

/// No page, or something that is none.
pub(super) fn unreadable(facts: &Facts<'_>) -> Vec<Finding> {
    let main = facts.page.as_ref().err().map(|error| {
        let why =
            "Without the engine's page nothing is known of its tier: no fill, no speeds, no share of prefill saved.";
        Finding::new(id(error), seen(facts.upstream, error), why, remedy(error))
    });
    main.into_iter().chain(facts.extras.iter().filter_map(extra)).collect()
}

fn extra(extra: &Extra) -> Option<Finding> {
    let error = extra.error.as_ref()?;
    let address = format!("The extra {} at {}", extra.name, extra.address);
    let why = "Its families are missing behind the engine's page, and what they tell of a tier with them.";
    let action = match error {
        UpstreamError::Auth { .. } => "Extras are sent no credentials: let this one serve its metrics without.".to_owned(),
        UpstreamError::Tls(TlsFault::WantsCertificate | TlsFault::RefusesCertificate) => {
            "Extras are shown no client certificate: let this one serve its metrics without.".to_owned()
        }
        UpstreamError::Tls(TlsFault::WrongName { .. }) => {
            "Give an address with one of its names after --upstream.extra: --upstream.server-name is the main upstream's alone."
                .to_owned()
        }
        UpstreamError::Connect(_) => "Is it up, and is this its address? Or leave --upstream.extra out.".to_owned(),
        _ => remedy(error).replace("after --upstream", "after --upstream.extra"),
    };
    Some(Finding::new(id(error), seen(&address, error), why, action))
}

fn seen(address: &str, error: &UpstreamError) -> String {
    let wrote = error.excerpt().map(|text| format!(" It wrote {text:?}.")).unwrap_or_default();
    format!("{address} {}.{wrote}", error.seen())
}

fn remedy(error: &UpstreamError) -> String {
    let elsewhere = match error {
        UpstreamError::Connect(_) => {
            " If it serves elsewhere, give its own metrics page with --upstream, such as http://127.0.0.1:8000/metrics."
        }
        UpstreamError::Content(_) => {
            " Give the engine's own metrics page with --upstream, such as http://127.0.0.1:8000/metrics. vLLM serves it on \
             its API port; SGLang only with --enable-metrics."
        }
        _ => "",
    };
    let remedy = error.remedy();
    let stop = if remedy.ends_with(['?', '.', '…']) { "" } else { "." };
    format!("{remedy}{stop}{elsewhere}")
}

fn id(error: &UpstreamError) -> &'static str {
    match error {
        error if error.speaks_tls() => "upstream-wrong-scheme",
        UpstreamError::SpeaksTls | UpstreamError::Tls(TlsFault::Plain) => "upstream-wrong-scheme",
        UpstreamError::Tls(fault) => of_tls(fault),
        UpstreamError::Connect(_) => "upstream-unreachable",
        UpstreamError::Reset(_) => "upstream-closes-connection",
        UpstreamError::Timeout(_) => "upstream-timeout",
        UpstreamError::Unfinished(_) => "upstream-page-too-slow",
        UpstreamError::Status { code, .. } => of_status(*code),
        UpstreamError::Auth { code: 403, .. } => "upstream-forbidden",
        UpstreamError::Auth { .. } => "upstream-unauthorized",
        UpstreamError::Secret(_) => "upstream-secret-unreadable",
        UpstreamError::Redirect(_) => "upstream-redirects",
        UpstreamError::TooLarge { .. } | UpstreamError::HeadTooLarge => "upstream-too-large",
        UpstreamError::Truncated(_) | UpstreamError::Unended { .. } => "upstream-truncated",
        UpstreamError::Encoding(_) => "upstream-encoding",
        UpstreamError::PackedUnsaid(_) => "upstream-packed-unsaid",
        UpstreamError::Content(_) | UpstreamError::Empty => "upstream-wrong-endpoint",
        UpstreamError::Broke => "upstream-page-breaks-exporter",
    }
}

fn of_status(code: u16) -> &'static str {
    match code {
        429 => "upstream-rate-limited",
        502..=504 => "upstream-not-ready",
        500..=599 => "upstream-failing",
        _ => "upstream-wrong-endpoint",
    }
}

fn of_tls(fault: &TlsFault) -> &'static str {
    match fault {
        TlsFault::Untrusted => "upstream-certificate-untrusted",
        TlsFault::Expired(_) => "upstream-certificate-expired",
        TlsFault::NotYetValid(_) => "upstream-certificate-not-yet-valid",
        TlsFault::WrongName { .. } | TlsFault::Nameless | TlsFault::NoSuchName(_) => "upstream-certificate-name",
        TlsFault::Unusable(_) => "upstream-certificate-unusable",
        TlsFault::WantsCertificate | TlsFault::RefusesCertificate => "upstream-client-certificate",
        TlsFault::Version => "upstream-tls-version",
        _ => "upstream-tls-failed",
    }
}

/// Anybody may answer in the upstream's place.
pub(super) fn unverified(facts: &Facts<'_>) -> Vec<Finding> {
    let remark = |address: &String| {
        Finding::new(
            "upstream-insecure-skip-verify",
            format!("The certificate of {address} is not verified: --upstream.insecure-skip-verify."),
            "Whoever stands between can read the page and change every figure on it.",
            "Name the certificate, or the authority that signed it, with --upstream.ca-file and leave that flag out. A \
             self-signed certificate can be named itself.",
        )
        .as_remark()
    };
    facts.unverified.iter().map(remark).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn all() -> Vec<UpstreamError> {
        let tls = [
            TlsFault::Untrusted,
            TlsFault::Expired(None),
            TlsFault::NotYetValid(None),
            TlsFault::WrongName { wanted: "a".into(), presented: vec!["b".into()] },
            TlsFault::Nameless,
            TlsFault::NoSuchName("a b".into()),
            TlsFault::Unusable("x"),
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
        let others = [
            UpstreamError::Connect("x".into()),
            UpstreamError::Reset("x".into()),
            UpstreamError::SpeaksTls,
            UpstreamError::Timeout(Duration::from_secs(1)),
            UpstreamError::Unfinished(Duration::from_secs(1)),
            UpstreamError::Redirect("x".into()),
            UpstreamError::TooLarge { part: "body", limit: 1 },
            UpstreamError::HeadTooLarge,
            UpstreamError::Unended { bytes: 1, lacks: "an end" },
            UpstreamError::Truncated(1),
            UpstreamError::Encoding("x".into()),
            UpstreamError::PackedUnsaid("gzip"),
            UpstreamError::Content("HTML".into()),
            UpstreamError::Empty,
            UpstreamError::Auth { code: 401, excerpt: String::new() },
            UpstreamError::Auth { code: 403, excerpt: String::new() },
            UpstreamError::Secret("x".into()),
            UpstreamError::Broke,
        ];
        tls.map(UpstreamError::Tls).into_iter().chain(statuses).chain(others).collect()
    }

    /// No two causes are told to do the same, but for the two sides of one (a port that speaks plain HTTP and tells or closes).
    #[test]
    fn each_cause_has_a_remedy_of_its_own() {
        let mut remedies: Vec<String> = all().iter().map(remedy).collect();
        let before = remedies.len();
        remedies.sort();
        remedies.dedup();
        assert_eq!(remedies.len(), before);
    }

    #[test]
    fn a_sentence_ends_once_and_is_no_debug_text() {
        for error in all() {
            let text = format!("{} {}", seen("http://h", &error), remedy(&error));
            assert!(!text.contains("..") && !text.contains("?.") && !text.contains("  "), "{text}");
            assert!(!text.contains("Err") && !text.contains('{') && !text.contains("Invalid"), "{text}");
        }
    }
}
