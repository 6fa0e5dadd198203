//! One line of OpenMetrics, and the same in text 0.0.4.

use std::borrow::Cow;

use super::quoted::Taken;

pub(super) type Bytes<'a> = Cow<'a, [u8]>;

/// Lines without their ends, be they LF or CR LF.
pub(super) fn lines(body: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    body.split_inclusive(|byte| *byte == b'\n').map(without_end)
}

pub(super) fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

pub(super) fn is_end_mark(line: &[u8]) -> bool {
    line.trim_ascii_end() == b"# EOF"
}

/// A line, as far as it is understood.
pub(super) enum Line<'a> {
    Metadata(Metadata<'a>),
    Sample(Sample<'a>),
    Other(&'a [u8]),
}

impl<'a> Line<'a> {
    pub(super) fn read(line: &'a [u8]) -> Line<'a> {
        match line.first() {
            Some(b'#') => Metadata::read(line).map_or(Line::Other(line), Line::Metadata),
            _ => Sample::read(line).map_or(Line::Other(line), Line::Sample),
        }
    }

    /// The same, where a name in quotes that would take another's is not understood.
    pub(super) fn read_beside(line: &'a [u8], taken: &Taken<'_>) -> Line<'a> {
        match Line::read(line) {
            Line::Metadata(metadata) if taken.is_of_another(&metadata.name, metadata.inside) => Line::Other(line),
            Line::Sample(sample) if taken.is_of_another(&sample.name, sample.inside) => Line::Other(line),
            read => read,
        }
    }
}

/// A HELP, TYPE or UNIT line.
pub(super) struct Metadata<'a> {
    pub(super) word: &'a [u8],
    pub(super) name: Bytes<'a>,
    /// As the name stands in quotes, if it does.
    pub(super) inside: Option<&'a [u8]>,
    pub(super) text: &'a [u8],
}

impl<'a> Metadata<'a> {
    pub(super) fn read(line: &'a [u8]) -> Option<Metadata<'a>> {
        let rest = line.strip_prefix(b"# ")?;
        let (word, rest) = split_at_blank(rest);
        if ![&b"HELP"[..], b"TYPE", b"UNIT"].contains(&word) {
            return None;
        }
        let (name, inside, rest) = match quoted(rest) {
            Some((inside, rest)) => (escape(inside, b':')?, Some(inside), rest),
            None => {
                let (name, _) = split_at_blank(rest);
                (Cow::Borrowed(name), None, &rest[name.len()..])
            }
        };
        let text = rest.strip_prefix(b" ").unwrap_or(rest);
        let says_nothing = name.is_empty() || (word == b"TYPE" && text.is_empty());
        (!says_nothing).then_some(Metadata { word, name, inside, text })
    }
}

/// A sample.
pub(super) struct Sample<'a> {
    pub(super) name: Bytes<'a>,
    /// As the name stands in quotes, if it does.
    pub(super) inside: Option<&'a [u8]>,
    line: &'a [u8],
    labels: Labels<'a>,
    /// What is behind name and labels.
    rest: &'a [u8],
    value: &'a [u8],
    time: Option<&'a [u8]>,
    /// Text 0.0.4 writes it the same way.
    as_is: bool,
}

impl<'a> Sample<'a> {
    pub(super) fn read(line: &'a [u8]) -> Option<Sample<'a>> {
        let length = line.iter().take_while(|byte| is_name_byte(**byte)).count();
        let (bare, rest) = line.split_at(length);
        let (labels, rest) = match rest.trim_ascii_start() {
            braces if braces.starts_with(b"{") => Labels::read(braces)?,
            _ => (Labels::default(), rest),
        };
        let name = match (bare, labels.name) {
            (b"", Some(name)) => escape(name, b':')?,
            (b"", None) | (_, Some(_)) => return None,
            (bare, None) => Cow::Borrowed(bare),
        };
        let without_exemplar = rest.split(|byte| *byte == b'#').next()?;
        let mut words = without_exemplar.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let (value, time, more) = (words.next()?, words.next(), words.next());
        if more.is_some() || name.is_empty() || number(value).is_none() || labels.became_one() {
            return None;
        }
        let as_is = time.is_none() && without_exemplar.len() == rest.len() && !labels.quoted;
        Some(Sample { name, inside: labels.name, line, labels, rest, value, time, as_is })
    }

    /// Whether some name in it stands in quotes.
    pub(super) fn is_quoted(&self) -> bool {
        self.labels.quoted
    }

    /// The line with no name in quotes, and otherwise as it is.
    pub(super) fn unquoted(&self) -> Vec<u8> {
        // A value may stand right behind the brace, and not behind a name.
        let blank: &[u8] = if self.rest.starts_with(b" ") { b"" } else { b" " };
        [&self.labels.write_behind(&self.name), blank, self.rest].concat()
    }

    /// The line as text 0.0.4 wants it.
    pub(super) fn written(&self) -> Bytes<'a> {
        match self.as_is {
            true => Cow::Borrowed(self.line),
            false => Cow::Owned(self.in_full()),
        }
    }

    fn in_full(&self) -> Vec<u8> {
        let mut out = [&self.labels.write_behind(&self.name), &b" "[..], self.value].concat();
        if let Some(time) = self.time {
            out.extend([b" ", &milliseconds(time)[..]].concat());
        }
        out
    }
}

/// What stands between the braces.
#[derive(Default)]
struct Labels<'a> {
    /// A metric name in quotes.
    name: Option<&'a [u8]>,
    /// Label names, and their values still escaped.
    pairs: Vec<(Bytes<'a>, &'a [u8])>,
    /// Some name was in quotes, which text 0.0.4 does not know.
    quoted: bool,
}

impl<'a> Labels<'a> {
    /// Labels and what follows the closing brace.
    fn read(text: &'a [u8]) -> Option<(Labels<'a>, &'a [u8])> {
        let mut labels = Labels::default();
        let mut rest = text.strip_prefix(b"{")?.trim_ascii_start();
        loop {
            if let Some(behind) = rest.strip_prefix(b"}") {
                return Some((labels, behind));
            }
            rest = labels.item(rest)?.trim_ascii_start();
            match rest.strip_prefix(b",") {
                Some(next) => rest = next.trim_ascii_start(),
                None if rest.starts_with(b"}") => {}
                None => return None,
            }
        }
    }

    /// Takes one label, or the name of the metric, and gives what is behind it.
    fn item(&mut self, text: &'a [u8]) -> Option<&'a [u8]> {
        let (name, rest) = match quoted(text) {
            Some((name, rest)) => {
                self.quoted = true;
                let rest = rest.trim_ascii_start();
                if !rest.starts_with(b"=") {
                    return self.name.replace(name).is_none().then_some(rest);
                }
                (escape(name, b'_')?, rest)
            }
            None => {
                let length = text.iter().take_while(|byte| is_name_byte(**byte) && **byte != b':').count();
                (Cow::Borrowed(&text[..length]), text[length..].trim_ascii_start())
            }
        };
        let (value, rest) = quoted(rest.strip_prefix(b"=")?.trim_ascii_start())?;
        self.pairs.push((name, value));
        Some(rest)
    }

    /// Whether two names became the same without their quotes. Names that were the same are the scanner's affair.
    fn became_one(&self) -> bool {
        let mut names: Vec<&[u8]> = self.pairs.iter().map(|(name, _)| &**name).filter(|_| self.quoted).collect();
        names.sort_unstable();
        names.windows(2).any(|pair| pair[0] == pair[1])
    }

    /// The name, and the labels behind it.
    fn write_behind(&self, name: &[u8]) -> Vec<u8> {
        let pairs: Vec<Vec<u8>> =
            self.pairs.iter().map(|(name, value)| [name, &b"=\""[..], value, b"\""].concat()).collect();
        let mut out = name.to_vec();
        if !pairs.is_empty() {
            out.extend([b"{", &pairs.join(&b',')[..], b"}"].concat());
        }
        out
    }
}

/// Seconds as whole milliseconds. What is no such time stays, and the scanner refuses the line.
fn milliseconds(seconds: &[u8]) -> Bytes<'_> {
    match number(seconds).map(|seconds| (seconds * 1000.0).round()) {
        // A float of that size still counts single milliseconds.
        Some(time) if time.abs() < 9e15 => Cow::Owned(format!("{time:.0}").into_bytes()),
        _ => Cow::Borrowed(seconds),
    }
}

fn number(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A string in quotes, still escaped, and what is behind it.
pub(super) fn quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let inner = text.strip_prefix(b"\"")?;
    let mut escaped = false;
    let end = inner.iter().position(|byte| {
        let closes = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        closes
    })?;
    Some((&inner[..end], &inner[end + 1..]))
}

/// A name in quotes as an old name: every character that was not allowed becomes an underscore.
/// `colon` is what a colon becomes: metric names may hold one, label names may not. `None` where it is no UTF-8, which is
/// allowed nowhere.
pub(super) fn escape(name: &[u8], colon: u8) -> Option<Bytes<'static>> {
    let mut out = Vec::with_capacity(name.len());
    let mut chars = std::str::from_utf8(name).ok()?.chars();
    while let Some(char) = chars.next() {
        out.push(match char {
            ':' => colon,
            'a'..='z' | 'A'..='Z' | '_' => char as u8,
            '0'..='9' if !out.is_empty() => char as u8,
            // An escape stands for one character, and never for one that a name may hold.
            '\\' => {
                chars.next();
                b'_'
            }
            _ => b'_',
        });
    }
    Some(Cow::Owned(out))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

fn split_at_blank(text: &[u8]) -> (&[u8], &[u8]) {
    let at = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    (&text[..at], text.get(at + 1..).unwrap_or_default())
}
