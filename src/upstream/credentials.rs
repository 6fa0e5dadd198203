//! What the upstream is shown so that it lets us in: a bearer token, or a name and a password. Read from its file
//! for each fetch, so that a rotated one works at once, and made known to [`crate::redact`], so that it is never shown.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hyper::header::HeaderValue;

use tokio::time::timeout;

use super::{Flight, UpstreamError};
use crate::aside::aside;
use crate::{files, plain, redact};

/// Far more than any token or password.
const LARGEST: u64 = 64 << 10;

/// A file with a secret, and what kind of secret it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretFile {
    /// A bearer token.
    Bearer(PathBuf),
    /// `user:password`.
    Basic(PathBuf),
}

/// A secret. Its Debug form does not show it.
pub(super) struct Secret {
    scheme: &'static str,
    /// Behind the scheme in the header.
    shown: String,
    /// The same for the exit that blanks it.
    telling: redact::Secret,
}

/// The secret of one upstream. While a file hangs no more than one thread waits for it.
pub(super) struct Credentials {
    file: SecretFile,
    reading: Flight<Result<Arc<Secret>, UpstreamError>>,
}

impl Credentials {
    pub(super) fn of(file: SecretFile) -> Credentials {
        Credentials { file, reading: Flight::keeping(Duration::ZERO) }
    }

    /// The secret as it is now, within `patience`.
    pub(super) async fn read(&self, patience: Duration) -> Result<Arc<Secret>, UpstreamError> {
        let file = self.file.clone();
        let read = self.reading.join(|| async move {
            let unread = file.refusal("could not be read");
            aside(move || file.read().map(Arc::new)).await.unwrap_or(Err(unread))
        });
        match timeout(patience, read.landed()).await {
            Ok(Some(read)) => (*read).clone(),
            Ok(None) => Err(self.file.refusal("could not be read")),
            Err(_) => {
                let patience = humantime::format_duration(patience);
                Err(self.file.refusal(&format!("could not be read within {patience}: its file system hangs")))
            }
        }
    }
}

impl SecretFile {
    /// Reads the secret. Blanks and line ends around it are no part of it.
    fn read(&self) -> Result<Secret, UpstreamError> {
        let (_, path, understand) = self.parts();
        let unreadable = |error| self.refusal(&format!("cannot be read: {}", plain::io(&error)));
        let text = String::from_utf8(files::read(path, LARGEST).map_err(unreadable)?);
        let text = text.map_err(|_| self.refusal("is not UTF-8 text"))?;
        let secret = understand(text.trim()).map_err(|why| self.refusal(why))?;
        redact::learn(&self.named(), secret.telling.clone());
        Ok(secret)
    }

    /// What kind of secret is in it, where it is, and how it is understood.
    fn parts(&self) -> (&'static str, &Path, Understand) {
        match self {
            SecretFile::Bearer(path) => ("token", path, bearer),
            SecretFile::Basic(path) => ("password", path, basic),
        }
    }

    /// The file, for people.
    fn named(&self) -> String {
        let (kind, path, _) = self.parts();
        format!("the {kind} file {}", path.display())
    }

    fn refusal(&self, why: &str) -> UpstreamError {
        UpstreamError::Secret(format!("{} {why}", self.named()))
    }
}

type Understand = fn(&str) -> Result<Secret, &'static str>;

impl Secret {
    /// Value of the Authorization header.
    pub(super) fn header(&self) -> HeaderValue {
        // Only what a header may carry was let through, so the empty value is never sent.
        let value = HeaderValue::try_from(format!("{} {}", self.scheme, self.shown));
        let mut value = value.unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

fn bearer(text: &str) -> Result<Secret, &'static str> {
    match text {
        "" => Err("is empty"),
        text if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
            Ok(Secret { scheme: "Bearer", shown: text.to_owned(), telling: redact::Secret::token(text) })
        }
        text if text.lines().nth(1).is_some() => Err("holds more than one line, and a token is one word"),
        text if text.contains(char::is_whitespace) => Err("holds more than one word, and a token is one"),
        _ => Err("holds a character that no token can have: they are letters, digits and signs of ASCII"),
    }
}

fn basic(text: &str) -> Result<Secret, &'static str> {
    match text.split_once(':') {
        None | Some(("", _) | (_, "")) => Err("does not hold user:password"),
        Some(_) if text.contains(char::is_control) => Err("holds more than one line"),
        Some((user, password)) => Ok(Secret {
            scheme: "Basic",
            shown: BASE64.encode(text),
            telling: redact::Secret::password(user, password),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_word_and_is_not_shown() {
        let token = bearer("s3cret").unwrap();
        assert_eq!(token.header(), "Bearer s3cret");
        assert!(token.header().is_sensitive());
        assert_eq!(format!("{token:?}"), "Secret(***)");
        for (text, why) in [
            ("", "is empty"),
            ("two words", "more than one word"),
            ("a\nb", "more than one line"),
            ("a\r\nb", "more than one line"),
            ("sécret", "no token can have"),
            ("a\0", "no token can have"),
        ] {
            assert!(bearer(text).err().is_some_and(|said| said.contains(why)), "{text:?}");
        }
    }

    #[test]
    fn a_password_is_sent_as_rfc_7617_has_it() {
        // The RFC's own example.
        let secret = basic("Aladdin:open sesame").unwrap();
        assert_eq!(secret.header(), "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
        assert_eq!(
            basic("u:a:b").unwrap().telling,
            redact::Secret::password("u", "a:b"),
            "only the first colon divides"
        );
        for text in ["", "user", ":password", "user:", "u:p\nv:q"] {
            assert!(basic(text).is_err(), "{text:?}");
        }
    }
}
