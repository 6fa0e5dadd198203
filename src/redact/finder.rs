//! Where in a text there is a secret: in one of its spellings, whole, or cut at either end.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use super::spellings::{Kind, Spelling};
use super::view::View;

/// What stands in the place of a secret.
const BLANK: &str = "***";

/// The shortest beginning or end of a spelling that gives it away.
const CUT: usize = 6;

/// The shortest piece that is cut at both ends. There are as many of them as a long token has characters, so they are longer
/// than the words of a text that might be the same by chance.
const MIDDLE: usize = 12;

/// Finds these spellings in one walk along a text, however many there are. It has no Debug form: that would show them.
#[derive(Default)]
pub(super) struct Finder {
    spellings: Vec<Spelling>,
    /// Which of them begin or end like this.
    heads: HashMap<[u8; CUT], Vec<usize>>,
    tails: HashMap<[u8; CUT], Vec<usize>>,
    /// Pieces from amid them.
    middles: HashSet<[u8; MIDDLE]>,
}

impl Finder {
    pub(super) fn new(spellings: Vec<Spelling>) -> Finder {
        let mut finder = Finder::default();
        for (at, Spelling { text, kind }) in spellings.iter().enumerate() {
            let (Some(head), Some(tail)) = (text.first_chunk(), text.last_chunk()) else { continue };
            finder.heads.entry(*head).or_default().push(at);
            if *kind != Kind::Whole {
                finder.tails.entry(*tail).or_default().push(at);
                finder.middles.extend(text.windows(MIDDLE).filter_map(|piece| <[u8; MIDDLE]>::try_from(piece).ok()));
            }
        }
        Finder { spellings, ..finder }
    }

    /// The text without any of them, and without the credentials of URLs.
    pub(super) fn blanked<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut parts = userinfo(text);
        if !self.spellings.is_empty() {
            for view in View::all(text) {
                let bytes = view.bytes.to_ascii_lowercase();
                parts.extend(self.found(&bytes).into_iter().map(|found| view.part(found)));
            }
        }
        if parts.is_empty() { Cow::Borrowed(text) } else { Cow::Owned(without(text, parts)) }
    }

    fn found(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for (at, window) in bytes.windows(CUT).enumerate() {
            for spelling in of(&self.heads, window).map(|id| &self.spellings[id]) {
                let length = bytes[at..].iter().zip(&spelling.text).take_while(|(a, b)| a == b).count();
                if spelling.kind != Kind::Whole || length == spelling.text.len() {
                    found.push(spelling.with_neighbours(bytes, at..at + length));
                }
            }
            let end = at + CUT;
            for spelling in of(&self.tails, window).map(|id| &self.spellings[id]) {
                let before = bytes[..end].iter().rev().zip(spelling.text.iter().rev());
                let length = before.take_while(|(a, b)| a == b).count();
                found.push(spelling.with_neighbours(bytes, end - length..end));
            }
            if bytes[at..].first_chunk().is_some_and(|piece| self.middles.contains::<[u8; MIDDLE]>(piece)) {
                found.push(at..at + MIDDLE);
            }
        }
        found
    }
}

fn of<'a>(ids: &'a HashMap<[u8; CUT], Vec<usize>>, window: &[u8]) -> impl Iterator<Item = usize> + 'a {
    let key = <[u8; CUT]>::try_from(window).ok();
    key.and_then(|key| ids.get(&key)).into_iter().flatten().copied()
}

impl Spelling {
    /// In base64 the characters on both sides hold some of the secret's bits, and `=` tells its length.
    fn with_neighbours(&self, bytes: &[u8], Range { mut start, mut end }: Range<usize>) -> Range<usize> {
        let is_packed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_');
        if self.kind == Kind::Base64 {
            start -= usize::from(start > 0 && is_packed(&bytes[start - 1]));
            end += usize::from(bytes.get(end).is_some_and(is_packed));
            end += bytes[end..].iter().take_while(|byte| **byte == b'=').count();
        }
        start..end
    }
}

/// What stands between `://` and `@` in URLs.
fn userinfo(text: &str) -> Vec<Range<usize>> {
    let authority = |(at, sign): (usize, &str)| {
        let start = at + sign.len();
        let is_end = |c: char| matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | '`') || c.is_whitespace();
        let end = text[start..].find(is_end).map_or(text.len(), |length| start + length);
        text[start..end].rfind('@').map(|length| start..start + length)
    };
    text.match_indices("://").filter_map(authority).collect()
}

/// The text with a blank for each part. Parts that touch are one.
fn without(text: &str, mut parts: Vec<Range<usize>>) -> String {
    parts.sort_by_key(|part| part.start);
    let (mut out, mut done) = (String::with_capacity(text.len()), 0);
    let mut blank_until = None;
    for part in parts {
        let start = (0..=part.start).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let end = (part.end..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        if blank_until.is_none_or(|until| start > until) {
            out.push_str(&text[done..start]);
            out.push_str(BLANK);
        }
        done = done.max(end);
        blank_until = Some(done);
    }
    out.push_str(&text[done..]);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::spellings::Secret;
    use super::*;

    fn blanked(secret: &Secret, text: &str) -> String {
        Finder::new(secret.spellings()).blanked(text).into_owned()
    }

    /// With everything in it that has to be escaped somewhere.
    const TOKEN: &str = "Zk3/t+9=wQ\"p\\x&c7";

    #[test]
    fn each_spelling_of_a_token_is_blanked() {
        let token = Secret::token(TOKEN);
        for (text, left) in [
            ("no: Zk3/t+9=wQ\"p\\x&c7!", "no: ***!"),
            // Lower-cased, as hosts of URLs are; and in capitals.
            ("at zk3/t+9=wq\"p\\x&c7:80", "at ***:80"),
            ("ZK3/T+9=WQ\"P\\X&C7", "***"),
            // As URLs have it, with small and large digits, and twice over.
            ("/login?next=Zk3%2Ft%2B9%3DwQ%22p%5Cx%26c7&a", "/login?next=***&a"),
            ("/login?next=Zk3%2ft+9%3dwQ%22p%5cx%26c7", "/login?next=***"),
            ("Zk3%252Ft%252B9%253DwQ%2522p%255Cx%2526c7", "***"),
            ("%5A%6B%33%2F%74%2B%39%3D%77%51%22%70%5C%78%26%63%37", "***"),
            // As JSON, Rust and HTML have it.
            (r#"{"token":"Zk3\/t+9=wQ\"p\\x&c7"}"#, r#"{"token":"***"}"#),
            (r#"Zk3/t\u002b9\u003dwQ\u0022p\u005cx\u0026c7"#, "***"),
            ("<b>Zk3/t&#43;9=wQ&quot;p\\x&amp;c7</b>", "<b>***</b>"),
        ] {
            assert_eq!(blanked(&token, text), left, "{text}");
        }
    }

    #[test]
    fn a_secret_with_escapes_of_its_own_is_blanked_in_json_too() {
        // JSON doubles its backslash; where that is undone %41 reads A.
        assert_eq!(blanked(&Secret::token(r"ab\%41cdefgh"), r#"{"token":"ab\\%41cdefgh"}"#), r#"{"token":"***"}"#);
        assert_eq!(blanked(&Secret::token("ab\"%41cdefgh"), r#"{"token":"ab\"%41cdefgh"}"#), r#"{"token":"***"}"#);
    }

    #[test]
    fn base64_of_it_alone_and_within_another_text_is_blanked() {
        // coreutils' base64 of `s3cr3t-t0ken!`, of `u:s3cr3t-t0ken!`, of `ab:s3cr3t-t0ken!`, of `xyzzy s3cr3t-t0ken!.`
        let secret = Secret::token("s3cr3t-t0ken!");
        for text in [
            "czNjcjN0LXQwa2VuIQ==",
            "czNjcjN0LXQwa2VuIQ",
            "dTpzM2NyM3QtdDBrZW4h",
            "YWI6czNjcjN0LXQwa2VuIQ==",
            "eHl6enkgczNjcjN0LXQwa2VuIS4=",
        ] {
            let left = blanked(&secret, &format!("sent {text}."));
            let begin = left.strip_prefix("sent ").and_then(|rest| rest.split_once("***"));
            let (before, after) = begin.unwrap_or_else(|| panic!("{text}: {left}"));
            // What is left in front is of the other text alone.
            assert!(text.starts_with(before) && before.len() <= 7 && after.len() <= 4, "{text}: {left}");
        }
    }

    #[test]
    fn a_secret_that_is_cut_is_blanked_down_to_six_characters() {
        let secret = Secret::token("abcdefgh-ijklmnop-qrstuvwx");
        for length in 6..26 {
            let cut = &"abcdefgh-ijklmnop-qrstuvwx"[..length];
            assert_eq!(blanked(&secret, &format!("it was {cut}… so")), "it was ***… so");
            let rest = &"abcdefgh-ijklmnop-qrstuvwx"[26 - length..];
            assert_eq!(blanked(&secret, &format!("…{rest} it was")), "…*** it was");
        }
        assert_eq!(blanked(&secret, "abcde tuvwx"), "abcde tuvwx", "five tell nothing");
        assert_eq!(blanked(&secret, "…fgh-ijklmnop-qr…"), "…***…", "at both ends");
    }

    #[test]
    fn a_password_is_blanked_and_its_user_is_not() {
        // coreutils: printf 'exporter:correct horse' | base64
        let pair = Secret::password("exporter", "correct horse");
        let text = "ZXhwb3J0ZXI6Y29ycmVjdCBob3JzZQ== is exporter:correct horse, or exporter:correct+horse; exporter";
        assert_eq!(blanked(&pair, text), "*** is exporter:***, or exporter:***; exporter");
        assert_eq!(blanked(&pair, "exporter exporter: correct"), "exporter exporter: ***");
        // Too short to be told from other text, but for the pair.
        let short = Secret::password("exporter", "abc");
        assert_eq!(blanked(&short, "abc exporter:abc ZXhwb3J0ZXI6YWJj"), "abc *** ***");
    }

    #[test]
    fn two_secrets_side_by_side_and_one_of_other_letters() {
        let secret = Secret::token("pässwörter");
        assert_eq!(blanked(&secret, "pässwörterpässwörter p%C3%A4sswörter"), "*** ***");
        assert_eq!(blanked(&secret, "ässwört"), "ässwört", "a piece from amid it of fewer than twelve bytes");
    }

    #[test]
    fn credentials_of_any_url_are_blanked_whether_they_are_known_or_not() {
        let none = Finder::default();
        for (text, left) in [
            ("value 'tcp://user:pw@h:1' for", "value 'tcp://***@h:1' for"),
            ("redis://:pw@h:1/0 and http://a@b@h/x", "redis://***@h:1/0 and http://***@h/x"),
            ("http://h/path@version mail@h", "http://h/path@version mail@h"),
        ] {
            assert_eq!(none.blanked(text), left, "{text}");
        }
    }

    #[test]
    fn text_without_a_secret_is_not_copied() {
        assert!(matches!(Finder::default().blanked("a %20 b"), Cow::Borrowed(_)));
        let finder = Finder::new(Secret::token(TOKEN).spellings());
        assert!(matches!(finder.blanked("a %20 b"), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn any_secret_in_any_text_is_blanked_and_the_rest_stays(
            secret in "[!-~]{8,40}", before in "[äöü€ ]{0,20}", behind in "[äöü€ ]{0,20}", how in 0..4_usize,
        ) {
            let percent = |text: &str| text.bytes().map(|byte| format!("%{byte:02x}")).collect::<String>();
            let spelled = match how {
                0 => secret.clone(),
                1 => percent(&secret),
                2 => percent(&percent(&secret)),
                _ => {
                    let quoted = serde_json::to_string(&secret).unwrap();
                    quoted[1..quoted.len() - 1].to_owned()
                }
            };
            // One that is nothing but escapes is too short to be told from other text once they are undone.
            prop_assume!(View::all(&secret).iter().all(|view| view.bytes.len() >= CUT));
            let left = blanked(&Secret::token(&secret), &format!("{before}{spelled}{behind}"));
            prop_assert_eq!(left, format!("{before}***{behind}"));
        }

        #[test]
        fn whatever_stands_in_a_text_it_comes_out_and_a_second_time_unchanged(text in any::<String>(), secret in any::<String>()) {
            let finder = Finder::new(Secret::password("u", &secret).spellings());
            let once = finder.blanked(&format!("{text}{secret}%{text}\\")).into_owned();
            prop_assert_eq!(finder.blanked(&once).into_owned(), once);
        }
    }

    #[test]
    fn a_long_token_and_its_former_ones_cost_a_walk_along_the_text() {
        let long = |seed: u32| -> String {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                char::from(b'a' + u8::try_from(state >> 27).unwrap_or(0) % 26)
            };
            (0..4000).map(|_| next()).collect()
        };
        let spellings = (0..5).flat_map(|seed| Secret::token(&long(seed)).spellings()).collect();
        let finder = Finder::new(spellings);
        let text = format!("{} {}", "nothing secret in here, ".repeat(1000), &long(3)[100..3000]);
        let began = std::time::Instant::now();
        assert!(finder.blanked(&text).ends_with(" ***"));
        assert!(began.elapsed() < std::time::Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
