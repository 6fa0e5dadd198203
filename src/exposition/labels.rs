//! The labels of one sample: borrowed text, read on demand.

use std::borrow::Cow;

use super::window::first_of;
use super::words::skip_blanks;

/// The text between a sample's braces, already checked by the line grammar. Reading it cannot fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Labels<'a>(&'a str);

impl<'a> Labels<'a> {
    /// Wraps text that the line grammar has accepted.
    pub(super) fn new(checked: &'a str) -> Labels<'a> {
        Labels(checked)
    }

    /// Name and value of each label, the value as it is written (escapes included).
    pub fn iter(self) -> Iter<'a> {
        Iter(self.0)
    }

    /// The value of a label as it is written, or `None`.
    pub fn raw(self, name: &str) -> Option<&'a str> {
        self.iter().find_map(|(n, value)| (n == name).then_some(value))
    }

    /// Whether these are the same labels as written, in whatever order. Where they begin alike and differ within a value that
    /// is told at once.
    pub fn are(self, other: Labels<'_>) -> bool {
        let (one, two) = (self.0.as_bytes(), other.0.as_bytes());
        if one.len() != two.len() {
            return false;
        }
        let Some(at) = first_difference(one, two) else { return true };
        // Mostly it is the first sign of a value.
        let begun = &one[..at];
        !begun.ends_with(b"=\"") && !is_within_a_value(begun) && self.sorted() == other.sorted()
    }

    /// The labels by name.
    pub fn sorted(self) -> Vec<(&'a str, &'a str)> {
        let mut labels: Vec<_> = self.iter().collect();
        labels.sort_unstable();
        labels
    }

    /// Whether a name stands twice or is `reserved`, which Prometheus refuses. A name that has an empty value
    /// somewhere does not count: Prometheus takes it out, with all its values.
    pub(super) fn repeat_a_name(self, reserved: &[u8]) -> bool {
        // An empty value comes first of those with its name.
        let labels = self.sorted();
        let repeats = |same: &[(&str, &str)]| same.len() > 1 && !same[0].1.is_empty();
        labels.iter().any(|(name, _)| name.as_bytes() == reserved) || labels.chunk_by(|a, b| a.0 == b.0).any(repeats)
    }

    /// The values of several labels as they are written, in one look: what tells owners of samples apart is asked for
    /// each wanted sample, and a configuration is a line of many labels.
    pub fn raws<const N: usize>(self, names: [&str; N]) -> [Option<&'a str>; N] {
        let (mut values, mut missing) = ([None; N], N);
        for (name, value) in self.iter() {
            if let Some(at) = names.iter().position(|wanted| *wanted == name)
                && values[at].is_none()
            {
                values[at] = Some(value);
                missing -= 1;
                if missing == 0 {
                    break;
                }
            }
        }
        values
    }

    /// The value of a label as it is meant; empty where there is no such label, which is the same to Prometheus.
    pub fn value(self, name: &str) -> Cow<'a, str> {
        self.raw(name).map_or(Cow::Borrowed(""), unescape)
    }
}

/// Where two texts of one length differ first. By eight bytes at once: this is asked of each two samples of a family.
fn first_difference(one: &[u8], two: &[u8]) -> Option<usize> {
    const STEP: usize = 8;
    let alike = one.chunks_exact(STEP).zip(two.chunks_exact(STEP)).take_while(|(one, two)| one == two).count() * STEP;
    let rest = one[alike..].iter().zip(&two[alike..]);
    rest.enumerate().find_map(|(at, (one, two))| (one != two).then_some(alike + at))
}

/// Whether a text of labels ends within a value.
fn is_within_a_value(text: &[u8]) -> bool {
    let (mut within, mut escaped) = (false, false);
    for byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = within,
            b'"' => within = !within,
            _ => {}
        }
    }
    within
}

/// See [`Labels::iter`].
#[derive(Clone, Debug)]
pub struct Iter<'a>(&'a str);

impl<'a> Iterator for Iter<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        // By bytes: names and values are short, and this runs for each label that a dialect asks for.
        let bytes = self.0.as_bytes();
        let mut start = 0;
        while matches!(bytes.get(start)?, b',' | b' ' | b'\t') {
            start += 1;
        }
        let equals = start + first_of(&bytes[start..], b'=', b'=')?;
        let mut name_end = equals;
        while matches!(bytes[..name_end].last()?, b' ' | b'\t') {
            name_end -= 1;
        }
        let quote = skip_blanks(bytes, equals + 1) + 1;
        let end = quote + closing_quote(bytes.get(quote..)?)?;
        let item = (&self.0[start..name_end], &self.0[quote..end]);
        self.0 = &self.0[end + 1..];
        Some(item)
    }
}

/// Where the quote that ends a label value stands, in text that starts after the opening one.
#[inline]
pub(super) fn closing_quote(text: &[u8]) -> Option<usize> {
    let end = first_of(text, b'"', b'\\')?;
    if text[end] == b'"' { Some(end) } else { closing_quote_behind(text, end) }
}

/// The same, where the first backslash stands at `at`.
fn closing_quote_behind(text: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match (text[at], text.get(at + 1)) {
            (b'"', _) => return Some(at),
            // A backslash escapes any byte but a line end; which byte one before a NUL escapes is nobody's business.
            (_, Some(b'\n' | 0)) => return None,
            _ => at += 2,
        }
        at += first_of(text.get(at..)?, b'"', b'\\')?;
    }
}

/// A label value as it is meant: `\\`, `\"` and `\n` decoded. Any other backslash stands for itself, as in Prometheus.
pub fn unescape(raw: &str) -> Cow<'_, str> {
    if !raw.as_bytes().contains(&b'\\') {
        return Cow::Borrowed(raw);
    }
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match (c, c == '\\') {
            (_, false) => out.push(c),
            (_, true) => match chars.next() {
                Some('n') => out.push('\n'),
                Some(quoted @ ('\\' | '"')) => out.push(quoted),
                Some(other) => out.extend(['\\', other]),
                None => out.push('\\'),
            },
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_the_same_in_any_order_and_in_no_other_value() {
        let are = |one, other| {
            let are = Labels::new(one).are(Labels::new(other));
            assert_eq!(are, Labels::new(other).are(Labels::new(one)));
            are
        };
        for (one, other) in [
            ("", ""),
            (r#"a="1",b="2""#, r#"a="1",b="2""#),
            (r#"a="1",b="2""#, r#"b="2",a="1""#),
            (r#"a="1",c="2",b="3""#, r#"a="1",b="3",c="2""#),
            (r#"a="\\",b="x""#, r#"b="x",a="\\""#),
        ] {
            assert!(are(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("", r#"a="1""#),
            (r#"a="1",b="2""#, r#"a="1",b="3""#),
            (r#"a="1",b="2""#, r#"a="2",b="1""#),
            (r#"a="1",b="2""#, r#"b="1",a="2""#),
            (r#"a="1",b="2""#, r#"a="1",c="2""#),
            (r#"a="\"x",b="x""#, r#"a="\"y",b="x""#),
        ] {
            assert!(!are(one, other), "{one} {other}");
        }
    }

    #[test]
    fn values_hold_commas_braces_equal_signs_hashes_and_escaped_quotes() {
        let labels = Labels::new(r#"engine="0",model_name="acme/q \"27b\" C:\\w, {x} # y = z", pid = "7","#);
        let all: Vec<_> = labels.iter().collect();
        assert_eq!(all.len(), 3);
        assert_eq!(all[1], ("model_name", r#"acme/q \"27b\" C:\\w, {x} # y = z"#));
        assert_eq!(labels.value("model_name"), r#"acme/q "27b" C:\w, {x} # y = z"#);
        assert_eq!(labels.raw("pid"), Some("7"));
        assert_eq!(labels.value("engine_x"), "");
        assert_eq!(labels.raws(["pid", "engine_x", "engine"]), [Some("7"), None, Some("0")]);
    }

    #[test]
    fn a_name_may_stand_twice_only_where_a_value_of_it_is_empty() {
        let repeats = |text: &str| Labels::new(text).repeat_a_name(b"__name__");
        assert!(repeats(r#"a="1",b="2",a="3""#));
        assert!(!repeats(r#"a="1",b="2",a="""#) && !repeats(r#"a="",b="2",a="1",a="3""#));
        assert!(repeats(r#"a="1",__name__="b""#));
        // Comparing each with each would take hours.
        let mut many: String = (0..1_000_000).map(|at| format!("l{at}=\"\",")).collect();
        assert!(!repeats(&many));
        many.push_str(r#"x="1",x="2""#);
        assert!(repeats(&many));
    }

    #[test]
    fn only_the_three_escapes_of_the_format_are_decoded() {
        assert_eq!(unescape(r"line1\nline2"), "line1\nline2");
        assert_eq!(unescape(r"a\\nb"), r"a\nb");
        assert_eq!(unescape(r"tab\t"), r"tab\t");
    }
}
