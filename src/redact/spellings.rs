//! The texts that give a secret away. Percent signs and other escapes are undone before they are looked for, and capitals do not
//! count, so neither adds a spelling. A secret that has escapes in it is looked for as it reads without them, too.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

use super::view::View;

/// The fewest characters of a secret that is blanked. A shorter one could not be told from other text.
pub const SHORTEST: usize = 8;

/// One secret. Its Debug form does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Blanked where they stand, and in pieces.
    parts: Vec<String>,
    /// Blanked where the whole of them stands: a piece of them may be a plain word.
    wholes: Vec<String>,
    /// The same, where the whole of them stands in base64.
    packed: Vec<String>,
}

/// A text to be looked for, in small letters.
pub(super) struct Spelling {
    pub(super) text: Vec<u8>,
    pub(super) kind: Kind,
}

/// How much of it has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// All of it.
    Whole,
    /// A piece.
    Piece,
    /// A piece, in base64: the characters beside it hold some of its bits.
    Base64,
}

impl Secret {
    /// A bearer token, or whatever else is a secret by itself.
    pub fn token(text: &str) -> Secret {
        Secret { parts: vec![text.to_owned()], wholes: Vec::new(), packed: Vec::new() }
    }

    /// A user and a password, which are sent together in base64. The name is no secret. With a short password the two together
    /// are one.
    pub fn password(user: &str, password: &str) -> Secret {
        let pair = vec![format!("{user}:{password}")];
        let wholes = if is_long(password) { Vec::new() } else { pair.clone() };
        Secret { parts: vec![password.to_owned()], wholes, packed: pair }
    }

    /// The query of an address, where some put a key: all of it, and the value of each parameter whose name says so.
    pub fn query(query: &str) -> Secret {
        let is_key = |name: &str| {
            let name = name.to_ascii_lowercase();
            ["key", "token", "secret", "pass", "auth", "sig"].iter().any(|word| name.contains(word))
        };
        let values = form_urlencoded::parse(query.as_bytes()).filter(|(name, _)| is_key(name));
        Secret {
            parts: values.map(|(_, value)| value.into_owned()).collect(),
            wholes: vec![query.to_owned()],
            packed: Vec::new(),
        }
    }

    /// Whether it is too short to be blanked.
    pub(super) fn is_short(&self) -> bool {
        self.parts.iter().any(|part| !is_long(part))
    }

    pub(super) fn spellings(&self) -> Vec<Spelling> {
        let long = |texts: &[String]| -> Vec<String> { texts.iter().filter(|text| is_long(text)).cloned().collect() };
        let (parts, wholes, packed) = (long(&self.parts), long(&self.wholes), long(&self.packed));
        let both = |text: &String| [STANDARD_NO_PAD.encode(text), URL_SAFE_NO_PAD.encode(text)].map(String::into_bytes);
        let pieces = parts.iter().flat_map(|part| raw(part)).map(|text| (text, Kind::Piece));
        let in_base64 = parts.iter().flat_map(|part| in_base64(part.as_bytes()));
        let in_base64 = in_base64.map(|text| (text.into_bytes(), Kind::Base64));
        let whole = wholes.iter().flat_map(|whole| raw(whole)).chain(packed.iter().flat_map(both));
        let all = pieces.chain(in_base64).chain(whole.map(|text| (text, Kind::Whole)));
        all.map(|(text, kind)| Spelling { text: text.to_ascii_lowercase(), kind }).collect()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

fn is_long(text: &str) -> bool {
    text.chars().count() >= SHORTEST
}

/// As it is, as forms write blanks, and as it reads once the escapes in it are undone: where those that somebody put around it are
/// undone, so are its own.
fn raw(text: &str) -> Vec<Vec<u8>> {
    let in_form = text.contains(' ').then(|| text.replace(' ', "+").into_bytes());
    View::all(text).into_iter().map(|view| view.bytes).chain(in_form).collect()
}

/// What base64 makes of a text that has these bytes in it, in both alphabets: it depends on how many bytes stand before them, in
/// threes. Only what follows from these bytes alone.
fn in_base64(bytes: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    for before in 0..3 {
        let text = [&[0; 2][..before], bytes].concat();
        // Six bits a character; those that hold bits of other bytes are left out.
        let (start, end) = ((before * 8).div_ceil(6), text.len() * 8 / 6);
        for packed in [STANDARD_NO_PAD.encode(&text), URL_SAFE_NO_PAD.encode(&text)] {
            let packed = packed[start..end].to_owned();
            if !texts.contains(&packed) {
                texts.push(packed);
            }
        }
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_a_secret_within_another_text_is_known() {
        // coreutils: printf 'sk_live_42>?' | base64 is c2tfbGl2ZV80Mj4/, with one byte before it eHNrX2xpdmVfNDI+Pw==, with two
        // eXhza19saXZlXzQyPj8=. Without what holds bits of other bytes:
        assert_eq!(
            in_base64(b"sk_live_42>?"),
            ["c2tfbGl2ZV80Mj4/", "c2tfbGl2ZV80Mj4_", "NrX2xpdmVfNDI+P", "NrX2xpdmVfNDI-P", "za19saXZlXzQyPj",]
        );
    }

    #[test]
    fn a_query_is_a_secret_where_its_names_say_so() {
        let query = Secret::query("format=prometheus&api_key=0123456%2B89&x=1");
        assert_eq!(query.parts, ["0123456+89"]);
        assert_eq!(query.wholes, ["format=prometheus&api_key=0123456%2B89&x=1"]);
    }

    #[test]
    fn a_short_secret_has_no_spelling_but_the_pair_of_user_and_password_does() {
        assert!(Secret::token("7 chars").is_short() && Secret::token("7 chars").spellings().is_empty());
        let pair = Secret::password("exporter", "abc");
        assert!(pair.is_short());
        assert!(pair.spellings().iter().all(|spelling| spelling.kind == Kind::Whole));
        assert!(!Secret::password("u", "12345678").is_short());
        assert_eq!(format!("{pair:?}"), "Secret(***)");
    }
}
