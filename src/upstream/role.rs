//! The main upstream and the extras: what can be done about a failure differs.

use std::borrow::Cow;

use super::{TlsFault, Unreached, UpstreamError};

/// Whose failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The engine, after `--upstream`.
    Main,
    /// Any server, after `--upstream.extra`. It has an address of its own and is shown no credentials.
    Extra,
}

/// What the remedies of the main upstream say, and what an extra's say in its place.
const IN_WORDS_OF_AN_EXTRA: [(&str, &str); 4] = [
    ("after --upstream", "after --upstream.extra"),
    ("before the engine", "before it"),
    ("the engine", "the server"),
    ("An engine", "A server"),
];

impl UpstreamError {
    pub(super) fn remedy_of_extra(&self) -> Cow<'static, str> {
        match self.own_remedy_of_extra() {
            Some(own) => own.into(),
            None => {
                let words = IN_WORDS_OF_AN_EXTRA.iter();
                words.fold(self.remedy_of_main().into(), |text, (main, extra)| text.replace(main, extra).into())
            }
        }
    }

    /// Where more differs than words.
    fn own_remedy_of_extra(&self) -> Option<&'static str> {
        Some(match self {
            UpstreamError::Auth { .. } => "Extras are sent no credentials: let this one serve its metrics without",
            _ if self.client_certificate().is_some() => {
                "Extras are shown no client certificate: let this one serve its metrics without"
            }
            UpstreamError::Tls(TlsFault::WrongName { .. } | TlsFault::NoSuchName(_)) => {
                "Give an address with one of its names after --upstream.extra: --upstream.server-name is the main upstream's \
                 alone"
            }
            UpstreamError::Connect(Unreached::Refused) => {
                "Is it up, and is this its address? Or leave --upstream.extra out"
            }
            UpstreamError::Content(_)
            | UpstreamError::NotHttp
            | UpstreamError::Empty
            | UpstreamError::Status { code: 400..=428 | 430..=499, .. }
                if !self.speaks_tls() =>
            {
                "Give the address of its metrics after --upstream.extra, with its port and path, such as \
                 lmcache=127.0.0.1:6999/metrics. Or leave this extra out"
            }
            UpstreamError::Status { code: 502..=504, .. } => {
                "What stands before it has nothing behind it that serves, or it is still starting: look there first"
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::every;

    #[test]
    fn the_remedy_of_an_extra_speaks_of_no_engine_and_of_no_flag_of_the_main_upstream() {
        let flags =
            ["--upstream ", "--upstream,", "--upstream.", "bearer-token", "basic-auth", "cert-file", "--enable-"];
        let allowed = [
            "--upstream.extra",
            "--upstream.ca-file",
            "--upstream.timeout",
            "--upstream.max-bytes",
            "--upstream.min-interval",
        ];
        let own = "--upstream.server-name is the main upstream's alone";
        for error in every::failure().iter().filter(|error| !matches!(error, UpstreamError::Secret(_))) {
            let text = error.remedy(Role::Extra);
            let rest = allowed.iter().chain([&own]).fold(text.to_string(), |text, flag| text.replace(flag, ""));
            assert!(!rest.contains("engine") && !flags.iter().any(|flag| rest.contains(flag)), "{error:?}: {text}");
            assert!(!text.ends_with('.') && !text.contains(".."), "{error:?}: {text}");
        }
    }
}
