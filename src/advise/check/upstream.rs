//! Pages that do not come: one finding a cause, with that cause's remedy. The main upstream and the extras are judged alike.

use super::Facts;
use crate::advise::Finding;
use crate::advise::words::many;
use crate::upstream::{Role, TlsFault, Unreached, UpstreamError};

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
        Finding::new(id(error), seen(facts.upstream, error), why, of_main(error))
    });
    main.into_iter().chain(facts.extras.iter().filter_map(extra)).collect()
}

fn extra(extra: &Extra) -> Option<Finding> {
    let error = extra.page.as_ref().err()?;
    let why = "Its families are missing behind the engine's page, and what they tell of a tier with them.";
    Some(Finding::new(id(error), seen(&extra.shown(), error), why, of_extra(error)))
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

fn seen(address: &str, error: &UpstreamError) -> String {
    let wrote = error.excerpt().map(|text| format!(" It wrote {text:?}.")).unwrap_or_default();
    format!("{address} {}.{wrote}", error.seen())
}

fn of_extra(error: &UpstreamError) -> String {
    ended(&error.remedy(Role::Extra))
}

fn of_main(error: &UpstreamError) -> String {
    let elsewhere = match error {
        UpstreamError::Connect(Unreached::Refused) => {
            " If it serves elsewhere, give its own metrics page with --upstream, such as http://127.0.0.1:8000/metrics."
        }
        UpstreamError::Content(_) | UpstreamError::NotHttp => {
            " Give the engine's own metrics page with --upstream, such as http://127.0.0.1:8000/metrics. vLLM serves it on \
             its API port; SGLang only with --enable-metrics."
        }
        _ => "",
    };
    ended(&error.remedy(Role::Main)) + elsewhere
}

/// With a full stop, unless it ends without.
fn ended(remedy: &str) -> String {
    let stop = if remedy.ends_with(['?', '…']) { "" } else { "." };
    format!("{remedy}{stop}")
}

fn id(error: &UpstreamError) -> &'static str {
    match error {
        error if error.speaks_tls() => "upstream-wrong-scheme",
        error if error.client_certificate().is_some() => "upstream-client-certificate",
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
        UpstreamError::Encoding(_) | UpstreamError::Chunks(_) | UpstreamError::Protobuf => "upstream-encoding",
        UpstreamError::PackedUnsaid(_) => "upstream-packed-unsaid",
        UpstreamError::Content(_) | UpstreamError::Binary | UpstreamError::NotHttp | UpstreamError::Empty => {
            "upstream-wrong-endpoint"
        }
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
        TlsFault::Unusable(_) | TlsFault::Key(_) | TlsFault::Earlier(_) => "upstream-certificate-unusable",
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
    use crate::upstream::every;

    /// No two causes are told to do the same, but for the two sides of one (a port that speaks plain HTTP and tells or closes).
    #[test]
    fn each_cause_has_a_remedy_of_its_own() {
        let mut remedies: Vec<String> = every::failure().iter().map(of_main).collect();
        let before = remedies.len();
        remedies.sort();
        remedies.dedup();
        assert_eq!(remedies.len(), before);
    }

    #[test]
    fn a_sentence_ends_once_and_is_no_debug_text() {
        for error in every::failure() {
            for remedy in [of_main(&error), of_extra(&error)] {
                let text = format!("{} {remedy}", seen("http://h", &error));
                assert!(!text.contains("..") && !text.contains("?.") && !text.contains("  "), "{text}");
                assert!(!text.contains("Err") && !text.contains('{') && !text.contains("Invalid"), "{text}");
                assert!(text.ends_with(['.', '?', '…']), "{text}");
            }
        }
    }
}
