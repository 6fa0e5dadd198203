//! A text as it reads once its escapes are undone: percent signs of URLs, backslashes of JSON, Rust and others, and entities of
//! HTML. Each of its bytes knows where it comes from.

use std::ops::Range;

/// Bytes with their places in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// What the text reads.
    pub(super) bytes: Vec<u8>,
    /// Where each of them starts and ends in the text.
    places: Vec<(usize, usize)>,
}

/// How often escapes are undone: a URL within a URL, quoted in JSON.
const LAYERS: usize = 3;

impl View {
    fn plain(text: &str) -> View {
        View { bytes: text.bytes().collect(), places: (0..text.len()).map(|at| (at, at + 1)).collect() }
    }

    /// The text as it is, and as it reads under each layer of escapes.
    pub(super) fn all(text: &str) -> Vec<View> {
        let mut views = vec![View::plain(text)];
        while let Some(under) = views.last().filter(|_| views.len() <= LAYERS).and_then(View::under) {
            views.push(under);
        }
        views
    }

    /// The part of the text that reads as these bytes.
    pub(super) fn part(&self, bytes: Range<usize>) -> Range<usize> {
        let (start, _) = self.places.get(bytes.start).copied().unwrap_or_default();
        let (_, end) =
            bytes.end.checked_sub(1).and_then(|last| self.places.get(last)).copied().unwrap_or((start, start));
        start..end
    }

    /// The view with one layer of escapes undone; `None` where there are none.
    fn under(&self) -> Option<View> {
        if !self.bytes.iter().any(|byte| matches!(byte, b'%' | b'\\' | b'&')) {
            return None;
        }
        let mut view =
            View { bytes: Vec::with_capacity(self.bytes.len()), places: Vec::with_capacity(self.bytes.len()) };
        let (mut at, mut is_changed) = (0, false);
        while let Some(&byte) = self.bytes.get(at) {
            let (meant, length) = unescaped(&self.bytes[at..]).unwrap_or((Meant::Byte(byte), 1));
            is_changed |= length > 1;
            let part = self.part(at..at + length);
            let mut room = [0; 4];
            for byte in meant.bytes(&mut room) {
                view.bytes.push(*byte);
                view.places.push((part.start, part.end));
            }
            at += length;
        }
        is_changed.then_some(view)
    }
}

/// What an escape stands for.
enum Meant {
    Byte(u8),
    Char(char),
}

impl Meant {
    fn bytes<'a>(&self, room: &'a mut [u8; 4]) -> &'a [u8] {
        match self {
            Meant::Byte(byte) => {
                room[0] = *byte;
                &room[..1]
            }
            Meant::Char(c) => c.encode_utf8(room).as_bytes(),
        }
    }
}

/// The escape that the text starts with, and its length.
fn unescaped(text: &[u8]) -> Option<(Meant, usize)> {
    match *text {
        [b'%', high, low, ..] | [b'\\', b'x', high, low, ..] => {
            let length = if text[0] == b'%' { 3 } else { 4 };
            Some((Meant::Byte(u8::try_from(number(&[high, low], 16)?).ok()?), length))
        }
        [b'\\', b'u', b'{', ..] => {
            let end = text.iter().take(10).position(|byte| *byte == b'}')?;
            Some((Meant::Char(char::from_u32(number(&text[3..end], 16)?)?), end + 1))
        }
        [b'\\', b'u', a, b, c, d, ..] => Some((Meant::Char(char::from_u32(number(&[a, b, c, d], 16)?)?), 6)),
        [b'\\', sign @ (b'"' | b'\'' | b'\\' | b'/'), ..] => Some((Meant::Byte(sign), 2)),
        [b'&', ..] => entity(text),
        _ => None,
    }
}

/// The entities that every library writes, and numbers.
fn entity(text: &[u8]) -> Option<(Meant, usize)> {
    let end = text.iter().take(10).position(|byte| *byte == b';')?;
    let meant = match &text[1..end] {
        b"amp" => '&',
        b"lt" => '<',
        b"gt" => '>',
        b"quot" => '"',
        b"apos" => '\'',
        [b'#', b'x' | b'X', digits @ ..] => char::from_u32(number(digits, 16)?)?,
        [b'#', digits @ ..] => char::from_u32(number(digits, 10)?)?,
        _ => return None,
    };
    Some((Meant::Char(meant), end + 1))
}

fn number(digits: &[u8], base: u32) -> Option<u32> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_alphanumeric) {
        return None;
    }
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, base).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(text: &str) -> String {
        View::all(text).pop().map(|view| String::from_utf8_lossy(&view.bytes).into_owned()).unwrap_or_default()
    }

    #[test]
    fn escapes_of_urls_json_rust_and_html_are_undone() {
        for (text, reads) in [
            ("a%2fb%2Fc", "a/b/c"),
            ("100%, %zz %4", "100%, %zz %4"),
            (r#"\"a\\b\/\u00e9\x41\u{1b}\n"#, "\"a\\b/éA\u{1b}\\n"),
            ("&lt;a&amp;b&gt;&quot;&#39;&#x2F;&nbsp;", "<a&b>\"'/&nbsp;"),
            // Twice and three times over.
            ("a%253Db", "a=b"),
            (r"a\u0025253Db", "a=b"),
        ] {
            assert_eq!(last(text), reads, "{text}");
        }
        assert_eq!(View::all("plain").len(), 1);
        assert!(View::all(&"%25".repeat(100)).len() <= LAYERS + 1);
    }

    #[test]
    fn a_part_is_that_of_the_text() {
        let views = View::all("x%253Dyé");
        let under = views.last().unwrap();
        assert_eq!(under.bytes, "x=yé".as_bytes());
        // x, %253D, y, and é in two bytes.
        assert_eq!((under.part(1..2), under.part(2..5), under.part(0..1)), (1..6, 6..9, 0..1));
        assert_eq!(views[0].part(0..9), 0..9);
    }
}
