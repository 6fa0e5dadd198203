//! Pages that do not come: one finding a cause, with that cause's remedy. The main upstream and the extras are judged alike.

use super::Facts;
use crate::advise::Finding;
use crate::advise::words::many;
use crate::upstream::{TlsFault, Unreached, UpstreamError};

/// A further upstream that was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Extra {
    /// Its name.
    pub name: String,
    /// Its address, fit for people.
    pub address: String,
    /// What its page adds to the main one, or why there is none.
    pub page: Result<Added, UpstreamError>,
}

/// What the page of an extra adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Added {
    /// Metric names on it.
    pub names: usize,
    /// Families of it that are left out.
    pub left_out: usize,
    /// Samples that stay.
    pub samples: u64,
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
    let error = extra.page.as_ref().err()?;
    let why = "Its families are missing behind the engine's page, and what they tell of a tier with them.";
    Some(Finding::new(id(error), seen(&extra.shown(), error), why, remedy_of_extra(error)))
}

/// An extra of which every family is left out.
pub(super) fn adds_nothing(facts: &Facts<'_>) -> Vec<Finding> {
    let pages = facts.extras.iter().filter_map(|extra| Some((extra, extra.page.as_ref().ok()?)));
    let idle = pages.filter(|(_, page)| page.samples == 0);
    let finding = |(extra, page): (&Extra, &Added)| {
        let seen =
            format!("{} serves {}, and none of them is passed on.", extra.shown(), many(page.names, "metric name"));
        let why = "What the main page has is taken from there, and what every server has about its own process (python_, process_, \
                   http_) is left out, since nothing says whose it is. So this page adds nothing.";
        let action = "Give the address of the page that was meant after --upstream.extra; LMCache shows its own only with \
                      internal_api_server_enabled: true. Or leave this extra out.";
        Finding::new("upstream-extra-adds-nothing", seen, why, action).as_remark()
    };
    idle.map(finding).collect()
}

impl Extra {
    fn shown(&self) -> String {
        format!("The extra {} at {}", self.name, self.address)
    }
}

/// An extra may be any server, has an address of its own and is shown no credentials.
fn remedy_of_extra(error: &UpstreamError) -> String {
    let own = match error {
        UpstreamError::Auth { .. } => "Extras are sent no credentials: let this one serve its metrics without.",
        UpstreamError::Tls(TlsFault::WantsCertificate | TlsFault::RefusesCertificate) => {
            "Extras are shown no client certificate: let this one serve its metrics without."
        }
        UpstreamError::Tls(TlsFault::Refused) => {
            "Look into the server's log. It may want a client certificate, which extras are not shown, or allow only ciphers \
             without forward secrecy."
        }
        UpstreamError::Tls(TlsFault::WrongName { .. } | TlsFault::NoSuchName(_)) => {
            "Give an address with one of its names after --upstream.extra: --upstream.server-name is the main upstream's alone."
        }
        UpstreamError::Connect(Unreached::Refused) => {
            "Is it up, and is this its address? Or leave --upstream.extra out."
        }
        UpstreamError::Content(_)
        | UpstreamError::Empty
        | UpstreamError::Status { code: 400..=428 | 430..=499, .. }
            if !error.speaks_tls() =>
        {
            "Give the address of its metrics after --upstream.extra, with its port and path, such as \
             lmcache=127.0.0.1:6999/metrics. Or leave this extra out."
        }
        UpstreamError::Status { code: 502..=504, .. } => {
            "What stands before it has nothing behind it that serves, or it is still starting: look there first."
        }
        _ => "",
    };
    if !own.is_empty() {
        return own.to_owned();
    }
    let names = [
        ("after --upstream", "after --upstream.extra"),
        ("before the engine", "before it"),
        ("the engine", "the server"),
    ];
    names
        .iter()
        .fold(remedy(error), |text, (of_main, of_extra)| text.replace(of_main, of_extra))
        .replace("An engine", "A server")
}

fn seen(address: &str, error: &UpstreamError) -> String {
    let wrote = error.excerpt().map(|text| format!(" It wrote {text:?}.")).unwrap_or_default();
    format!("{address} {}.{wrote}", error.seen())
}

fn remedy(error: &UpstreamError) -> String {
    let elsewhere = match error {
        UpstreamError::Connect(Unreached::Refused) => {
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
        UpstreamError::Connect(why) => of_connect(why),
        UpstreamError::Reset(_) => "upstream-closes-connection",
        UpstreamError::Timeout(_) | UpstreamError::Unfinished { .. } => "upstream-timeout",
        UpstreamError::Unworked(_) => "upstream-page-too-slow",
        UpstreamError::Status { code, .. } => of_status(*code),
        UpstreamError::Auth { code: 403, .. } => "upstream-forbidden",
        UpstreamError::Auth { .. } => "upstream-unauthorized",
        UpstreamError::Secret(_) => "upstream-secret-unreadable",
        UpstreamError::Redirect(_) => "upstream-redirects",
        UpstreamError::TooLarge { .. } | UpstreamError::HeadTooLarge => "upstream-too-large",
        UpstreamError::Truncated(_) | UpstreamError::Unended { .. } => "upstream-truncated",
        UpstreamError::Encoding(_) | UpstreamError::Chunks(_) => "upstream-encoding",
        UpstreamError::PackedUnsaid(_) => "upstream-packed-unsaid",
        UpstreamError::Content(_) | UpstreamError::Empty => "upstream-wrong-endpoint",
        UpstreamError::Broke => "upstream-page-breaks-exporter",
    }
}

fn of_connect(why: &Unreached) -> &'static str {
    match why {
        Unreached::Name(_) => "upstream-name-unknown",
        Unreached::NoRoute(_) | Unreached::TimedOut => "upstream-no-route",
        Unreached::Forbidden => "upstream-connect-forbidden",
        Unreached::NoSocket | Unreached::IdleSocket | Unreached::ForbiddenSocket => "upstream-socket-unusable",
        Unreached::Refused | Unreached::Other(_) => "upstream-unreachable",
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
        TlsFault::Unusable(_) | TlsFault::Earlier(_) => "upstream-certificate-unusable",
        TlsFault::WantsCertificate | TlsFault::RefusesCertificate => "upstream-client-certificate",
        TlsFault::Version => "upstream-tls-version",
        _ => "upstream-tls-failed",
    }
}

/// The flag that believes anybody, where nobody is asked for a certificate.
pub(super) fn idle_skip_verify(facts: &Facts<'_>) -> Vec<Finding> {
    let finding = || {
        Finding::new(
            "insecure-skip-verify-unused",
            "--upstream.insecure-skip-verify is given, and no upstream has an https address.",
            "It does nothing now, and would let anybody answer in the place of an upstream that is given with https:// later.",
            "Leave the flag out.",
        )
        .as_remark()
    };
    facts.idle_skip_verify.then(finding).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::race::Unresolved;
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
            TlsFault::Earlier(crate::x509::earlier(&[0x30, 0x05, 0x30, 0x03, 0x02, 0x01, 0x01]).unwrap()),
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
            UpstreamError::Empty,
            UpstreamError::Auth { code: 401, excerpt: String::new() },
            UpstreamError::Auth { code: 403, excerpt: String::new() },
            UpstreamError::Secret("x".into()),
            UpstreamError::Broke,
        ];
        let connects = connects.map(UpstreamError::Connect);
        tls.map(UpstreamError::Tls).into_iter().chain(statuses).chain(connects).chain(others).collect()
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
    fn the_remedy_of_an_extra_speaks_of_no_engine_and_of_no_flag_of_the_main_upstream() {
        let flags = ["--upstream ", "--upstream,", "--upstream.", "bearer-token", "basic-auth", "cert-file"];
        let allowed = [
            "--upstream.extra",
            "--upstream.ca-file",
            "--upstream.timeout",
            "--upstream.max-bytes",
            "--upstream.min-interval",
        ];
        let own = "--upstream.server-name is the main upstream's alone";
        for error in all().iter().filter(|error| !matches!(error, UpstreamError::Secret(_))) {
            let text = remedy_of_extra(error);
            let rest = allowed.iter().chain([&own]).fold(text.clone(), |text, flag| text.replace(flag, ""));
            assert!(!rest.contains("engine") && !flags.iter().any(|flag| rest.contains(flag)), "{error:?}: {text}");
            assert!(text.ends_with(['.', '?', '…']) && !text.contains(".."), "{error:?}: {text}");
        }
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
