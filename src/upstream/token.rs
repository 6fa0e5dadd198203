//! The bearer token: read from its file for each fetch, so that a rotated one works at once, and never shown.

use std::fmt;
use std::path::Path;

use hyper::header::HeaderValue;

use super::UpstreamError;

/// A secret. Its Debug form does not show it.
pub(super) struct Token(String);

impl Token {
    /// The secret itself.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Value of the Authorization header.
    pub(super) fn header(&self) -> HeaderValue {
        // `checked` let through only what a header may carry, so the empty value is never sent.
        let mut value = HeaderValue::try_from(format!("Bearer {}", self.0)).unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

/// Reads the token. Blanks and line ends around it are no part of it.
pub(super) fn read(path: &Path) -> Result<Token, UpstreamError> {
    let refuse = |why: &str| UpstreamError::Auth {
        why: format!("the token file {} {why}", path.display()),
        excerpt: String::new(),
    };
    let text = std::fs::read_to_string(path).map_err(|error| refuse(&format!("cannot be read, {error}")))?;
    checked(text.trim()).map_err(refuse)
}

fn checked(text: &str) -> Result<Token, &'static str> {
    match text {
        "" => Err("is empty"),
        text if text.bytes().all(|byte| byte.is_ascii_graphic()) => Ok(Token(text.to_owned())),
        _ => Err("holds more than one word of plain letters"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_is_not_shown() {
        assert_eq!(checked("s3cret").unwrap().header(), "Bearer s3cret");
        assert!(checked("s3cret").unwrap().header().is_sensitive());
        assert_eq!(format!("{:?}", checked("s3cret")), "Ok(Token(***))");
        for text in ["", "two words", "a\nb", "sécret", "a\0"] {
            assert!(checked(text).is_err(), "{text:?}");
        }
    }
}
