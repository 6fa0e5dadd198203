//! YAML as the web configuration needs it: mappings, lists and scalars, each with the line it begins on.
//!
//! Not a general reader. Anchors, aliases, tags and further documents are refused: nobody needs them in this file,
//! and a file that grows while it is read cannot come in by them. No error repeats a value, which may be a secret.

use granit_parser::{Event, Options, Parser, ScalarStyle, Span, StrInput};

/// The configuration is three levels deep.
const DEEPEST: usize = 8;
/// A longer key is not shown: it may be most of a hash, which has 60 characters.
const LONGEST: usize = 40;

/// What is wrong, and where. Display is the sentence of an error that still lacks the file's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct Fault {
    /// Line of the file, from 1.
    pub line: usize,
    /// What is wrong: the key or user, and a sentence. Never a value.
    pub what: String,
}

/// A value and the line it begins on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

/// What YAML can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Nothing, or a plain `null` or `~`.
    Null,
    /// `plain` is text without quotes.
    Text {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) node: Node,
}

/// The one document of a text. A text without any is [`Value::Null`].
pub(super) fn read(text: &str) -> Result<Node, Fault> {
    let mut strict = Options::default();
    strict.strict_indentation = true;
    let mut reader = Reader(Parser::new_from_str_with_options(text, strict));
    let mut root = Node { line: 1, value: Value::Null };
    let mut documents = 0;
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(root),
            (Event::StreamStart | Event::DocumentEnd, _) => {}
            (Event::DocumentStart(..), at) => {
                documents += 1;
                if documents > 1 {
                    return Err(fault(at, "a second document begins here; only one is read"));
                }
            }
            (event, at) => root = reader.node(event, at, 0)?,
        }
    }
}

fn line(at: Span) -> usize {
    at.start.line().max(1)
}

fn fault(at: Span, what: &str) -> Fault {
    Fault { line: line(at), what: what.to_owned() }
}

struct Reader<'a>(Parser<'a, StrInput<'a>>);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Fault> {
        match self.0.next_event() {
            Some(Ok(next)) => Ok(next),
            Some(Err(error)) => Err(fault(
                Span::empty(*error.marker()),
                "this is not YAML; look here and above for a wrong indent or a missing quote or colon",
            )),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, at: Span, depth: usize) -> Result<Node, Fault> {
        if depth > DEEPEST {
            return Err(fault(at, "is nested too deeply"));
        }
        let value = match event {
            Event::Scalar(text, style, 0, None) => scalar(&text, style),
            Event::SequenceStart(_, 0, None) => Value::List(self.list(depth)?),
            Event::MappingStart(_, 0, None) => Value::Map(self.map(depth)?),
            _ => return Err(fault(at, "anchors (&), aliases (*) and tags (!) are not read here; write the value out")),
        };
        Ok(Node { line: line(at), value })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Fault> {
        let mut nodes = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(nodes),
                (event, at) => nodes.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Fault> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let (key, at) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(entries),
                (Event::Scalar(text, _, 0, None), at) => (text.into_owned(), at),
                (_, at) => return Err(fault(at, "a key must be plain text")),
            };
            if entries.iter().any(|entry| entry.key == key) {
                return Err(fault(at, &format!("{}: is given twice", shown(&key))));
            }
            let (event, value_at) = self.next()?;
            let node = self.node(event, value_at, depth + 1)?;
            entries.push(Entry { key, line: line(at), node });
        }
    }
}

fn scalar(text: &str, style: ScalarStyle) -> Value {
    let plain = style == ScalarStyle::Plain;
    match text {
        "" | "~" | "null" | "Null" | "NULL" if plain => Value::Null,
        _ => Value::Text { text: text.to_owned(), plain },
    }
}

/// A key as it may be shown: whoever swaps user and hash, or forgets the blank between them, has a secret in the
/// key's place.
pub(super) fn shown(key: &str) -> String {
    match key {
        _ if key.contains("$2") => "(a hash where a name belongs)".to_owned(),
        _ if key.len() > LONGEST => "(too long for a name)".to_owned(),
        _ => key.escape_debug().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str, line: usize, plain: bool) -> Node {
        Node { line, value: Value::Text { text: text.to_owned(), plain } }
    }

    fn entries(source: &str) -> Vec<Entry> {
        match read(source).unwrap().value {
            Value::Map(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_value_knows_its_line() {
        let read = entries("# comment\na: 1\nb:\n  - x\n  - 'y'\nc: {d: ~, e: null}\n");
        assert_eq!((read[0].line, &read[0].node), (2, &text("1", 2, true)));
        assert_eq!((read[1].key.as_str(), read[1].line), ("b", 3));
        assert_eq!(read[1].node.value, Value::List(vec![text("x", 4, true), text("y", 5, false)]));
        let Value::Map(inner) = &read[2].node.value else { panic!("{read:?}") };
        assert_eq!((inner[0].line, &inner[0].node.value), (6, &Value::Null));
        assert_eq!(inner[1].node.value, Value::Null);
    }

    #[test]
    fn no_document_is_null() {
        for source in ["", "\n", "# only a comment\n", "---\n", "null\n"] {
            assert_eq!(read(source).unwrap().value, Value::Null, "{source:?}");
        }
    }

    #[test]
    fn what_is_refused_names_its_line() {
        for (source, line, said) in [
            ("a: 1\na: 2\n", 2, "a: is given twice"),
            ("a: &x 1\nb: *x\n", 1, "aliases"),
            ("a: !!str 1\n", 1, "tags"),
            ("a: 1\n---\nb: 2\n", 2, "second document"),
            ("a: 1\n b: 2\n", 2, "not YAML"),
            ("a: \"x\n", 2, "not YAML"),
            ("? [a]\n: 1\n", 1, "plain text"),
            ("a:\n\tb: 1\n", 2, "not YAML"),
            (&("[".repeat(20) + &"]".repeat(20)), 1, "nested"),
            (&"a: {".repeat(100), 1, "nested"),
            (&"[".repeat(100_000), 1, "not YAML"),
            (&"a: {".repeat(100_000), 1, "nested"),
        ] {
            let fault = read(source).unwrap_err();
            assert!(fault.what.contains(said), "{:.40}: {fault}", source);
            assert_eq!(fault.line, line, "{:.40}: {fault}", source);
        }
    }

    #[test]
    fn a_hash_is_never_shown_as_a_key() {
        let fault = read("$2y$10$abc: 1\n$2y$10$abc: 2\n").unwrap_err();
        assert!(!fault.what.contains("2y"), "{fault}");
    }
}
