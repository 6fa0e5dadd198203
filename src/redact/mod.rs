//! The one exit for foreign text: everything that came from outside (pages, headers, redirects, certificates, names of files and
//! processes, answers of a Prometheus, the command line) passes [`blanked`] on its way out.
//!
//! | way out | notation that is put around it |
//! |---|---|
//! | the log | logfmt or JSON ([`crate::log`]) |
//! | `/debug`, what `check`, `plan` and `report` print, the last words | [`line()`], one a line ([`Lines`]) |
//! | `/api/status`, JSON of the commands | [`json`] |
//!
//! Each exit is passed as late as possible: by whoever writes a line or a JSON text, not by whoever says something. So nobody
//! who says something has to think of it. Values of labels on `/metrics` are the upstream's own, and pass as they came.
//!
//! | room | what it is |
//! |---|---|
//! | `secrets` | which secrets are known, the former values of rotated ones among them |
//! | `spellings` | the texts that give a secret away |
//! | `view` | a text as it reads once its escapes are undone |
//! | `finder` | where in a text there is a secret |
//! | `hidden` | characters that are not seen, or move what is seen |
//! | [`mod@json`] | texts within JSON |
//!
//! All of it is pure but this file: it holds the secrets of this process.

mod finder;
mod hidden;
pub mod json;
mod secrets;
mod spellings;
mod view;

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

pub use self::hidden::is_hidden;
use self::secrets::{News, Secrets};
pub use self::spellings::{SHORTEST, Secret};

/// The longest text that is shown, in bytes. What is longer is cut, and ends in `…`.
pub const LONGEST: usize = 4096;

/// As much of a text is looked at: what is blanked grows shorter.
const LOOKED_AT: usize = 4 * LONGEST;

/// The secrets of this process.
static SECRETS: Mutex<Secrets> = Mutex::new(Secrets::new());

/// Takes note of a secret. `source` is where it comes from, fit for people: another secret from there is a rotation.
pub fn learn(source: &str, secret: Secret) {
    let news = SECRETS.lock().unwrap_or_else(PoisonError::into_inner).learn(source, secret, Instant::now());
    // Not under the lock: what is logged passes here too.
    if news == News::Short {
        tracing::warn!(
            source,
            "this secret has fewer than {SHORTEST} characters, too few to be told from other text: it is not blanked where \
             an upstream repeats it; take a longer one"
        );
    }
}

/// The text without secrets, and no longer than [`LONGEST`].
pub fn blanked(text: &str) -> Cow<'_, str> {
    let finder = SECRETS.lock().unwrap_or_else(PoisonError::into_inner).finder(Instant::now());
    // The first cut leaves a multiple of what is shown, so none of its end, where a secret may be cut, is shown but where
    // most of the text was blanked; and there the pieces of a cut secret are blanked too.
    bounded(finder.blanked(&text[..boundary(text, LOOKED_AT)]), text.len() > LOOKED_AT)
}

/// The text as a part of a line of its own: without secrets, and with every hidden character escaped, line ends among them.
pub fn line(text: &str) -> Cow<'_, str> {
    match blanked(text) {
        Cow::Borrowed(text) => hidden::escaped(text, |_| false),
        Cow::Owned(text) => Cow::Owned(hidden::escaped(&text, |_| false).into_owned()),
    }
}

fn bounded(text: Cow<'_, str>, was_cut: bool) -> Cow<'_, str> {
    if text.len() <= LONGEST && !was_cut {
        return text;
    }
    Cow::Owned(format!("{}…", &text[..boundary(&text, LONGEST)]))
}

/// The last boundary between characters that is not behind `limit`.
fn boundary(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0)
}

/// A text of lines, each of which has passed the exit: a line end within one is foreign, and escaped.
#[derive(Debug, Default)]
pub struct Lines(String);

impl Lines {
    /// Adds a line.
    pub fn line(&mut self, text: fmt::Arguments<'_>) {
        self.0.push_str(&line(&text.to_string()));
        self.gap();
    }

    /// Adds an empty line.
    pub fn gap(&mut self) {
        self.0.push('\n');
    }

    /// Adds a text whose line ends are ours. What has passed before passes unchanged.
    pub fn append(&mut self, text: &str) {
        text.lines().for_each(|text| self.line(format_args!("{text}")));
    }

    /// The text.
    pub fn text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_where_characters_end_and_says_so() {
        assert_eq!(bounded("äb".into(), false), "äb");
        assert_eq!(bounded("äb".into(), true), "äb…");
        // Two bytes each, and an odd one before them: the last one would end a byte behind the limit.
        let long = format!("a{}", "ä".repeat(LONGEST / 2));
        let cut = bounded(long.as_str().into(), false);
        assert_eq!((cut.chars().count(), cut.ends_with("ä…")), (1 + LONGEST / 2 - 1 + 1, true));
        let endless = "x".repeat(100 * LONGEST);
        assert_eq!(blanked(&endless), format!("{}…", "x".repeat(LONGEST)));
    }

    #[test]
    fn a_line_stays_a_line() {
        let mut lines = Lines::default();
        lines.line(format_args!("file {}", "a\nstate up\u{1b}[2J\u{202e}"));
        lines.gap();
        lines.line(format_args!("  end"));
        assert_eq!(lines.text(), "file a\\nstate up\\u{1b}[2J\\u{202e}\n\n  end\n");
    }

    #[test]
    fn what_was_learned_is_blanked_everywhere_and_by_whoever_asks() {
        learn("a file of this test", Secret::token("0f1e2d3c-of-one-test"));
        assert_eq!(blanked("Bearer 0f1e2d3c-of-one-test"), "Bearer ***");
        assert_eq!(line("0f1e2d3c-of-one-test\n"), "***\\n");
    }
}
