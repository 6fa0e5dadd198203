//! One mapping of the web configuration, whose keys are taken out one by one. What is left at its end was not
//! known, so that no key can be accepted and ignored.

use super::yaml::{Entry, Fault, Node, Value, shown};

/// Keys that the toolkit knows and we do not, each with what to do instead.
const UNSUPPORTED: [(&str, &str); 5] = [
    ("tls_server_config.cert", "is not supported; put the certificate into a file and name it with cert_file"),
    ("tls_server_config.key", "is not supported; put the key into a file and name it with key_file"),
    ("tls_server_config.client_ca", "is not supported; put the authority into a file and name it with client_ca_file"),
    (
        "tls_server_config.client_allowed_sans",
        "is not supported; give the clients certificates of an authority of their own, and name it with client_ca_file",
    ),
    ("rate_limit", "is not supported; --web.max-requests bounds the requests at a time"),
];

/// A value, the key that it stands behind and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// The whole key, `section.key`.
    pub key: String,
    /// Line of the file, from 1.
    pub line: usize,
}

impl<T> Located<T> {
    /// The same place with another value.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: change(self.value), key: self.key, line: self.line }
    }

    /// What is wrong with it.
    pub fn fault(&self, what: &str) -> Fault {
        Fault { line: self.line, what: format!("{}: {what}", self.key) }
    }
}

/// A mapping that is being read.
pub(super) struct Section {
    name: String,
    line: usize,
    entries: Vec<Entry>,
    known: Vec<&'static str>,
}

impl Section {
    /// The whole file.
    pub(super) fn root(node: Node) -> Result<Section, Fault> {
        let line = node.line;
        Section::open(String::new(), line, node)
    }

    fn open(name: String, line: usize, node: Node) -> Result<Section, Fault> {
        let entries = match node.value {
            Value::Null => Vec::new(),
            Value::Map(entries) => entries,
            _ if name.is_empty() => return Err(Fault { line, what: "the file must be a mapping of keys".to_owned() }),
            _ => return Err(Fault { line, what: format!("{name}: must be a mapping of keys") }),
        };
        Ok(Section { name, line, entries, known: Vec::new() })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Where it begins.
    pub(super) fn line(&self) -> usize {
        self.line
    }

    fn key(&self, key: &str) -> String {
        if self.name.is_empty() { shown(key) } else { format!("{}.{}", self.name, shown(key)) }
    }

    fn take(&mut self, key: &'static str) -> Option<Located<Value>> {
        self.known.push(key);
        let entry = self.entries.remove(self.entries.iter().position(|entry| entry.key == key)?);
        Some(Located { value: entry.node.value, key: self.key(key), line: entry.line })
    }

    /// A mapping inside this one.
    pub(super) fn section(&mut self, key: &'static str) -> Result<Option<Section>, Fault> {
        let Some(found) = self.take(key) else { return Ok(None) };
        let node = Node { line: found.line, value: found.value };
        Section::open(found.key, found.line, node).map(Some)
    }

    /// Text; none where it is empty.
    pub(super) fn text(&mut self, key: &'static str) -> Result<Option<Located<String>>, Fault> {
        let Some(found) = self.take(key) else { return Ok(None) };
        let text = text(found)?;
        Ok(Some(text).filter(|text| !text.value.is_empty()))
    }

    /// `true` or `false`.
    pub(super) fn flag(&mut self, key: &'static str) -> Result<Option<Located<bool>>, Fault> {
        let Some(found) = self.take(key) else { return Ok(None) };
        let value = match &found.value {
            Value::Null => return Ok(None),
            Value::Text { text, plain: true } if text == "true" => true,
            Value::Text { text, plain: true } if text == "false" => false,
            _ => return Err(found.fault("must be true or false, without quotes")),
        };
        Ok(Some(found.map(|_| value)))
    }

    /// What stands for one of these names.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        choices: &[(&str, T)],
    ) -> Result<Option<Located<T>>, Fault> {
        let Some(found) = self.text(key)? else { return Ok(None) };
        match choices.iter().find(|(name, _)| *name == found.value) {
            Some((_, chosen)) => Ok(Some(found.map(|_| *chosen))),
            None => {
                let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
                Err(found.fault(&format!("must be one of {}", names.join(", "))))
            }
        }
    }

    /// A list of texts, each on its own line.
    pub(super) fn list(&mut self, key: &'static str) -> Result<Vec<Located<String>>, Fault> {
        let Some(found) = self.take(key) else { return Ok(Vec::new()) };
        let nodes = match found.value {
            Value::Null => return Ok(Vec::new()),
            Value::List(nodes) => nodes,
            _ => return Err(found.fault("must be a list")),
        };
        let located = |node: Node| text(Located { value: node.value, key: found.key.clone(), line: node.line });
        nodes.into_iter().map(located).collect()
    }

    /// All that is left, where the keys are names of the operator's own.
    pub(super) fn texts(self) -> Result<Vec<(String, Located<String>)>, Fault> {
        let read = |entry: &Entry| {
            let located = Located { value: entry.node.value.clone(), key: self.key(&entry.key), line: entry.line };
            Ok((entry.key.clone(), text(located)?))
        };
        self.entries.iter().map(read).collect()
    }

    /// Refuses what was not taken.
    pub(super) fn close(self) -> Result<(), Fault> {
        let Some(left) = self.entries.first() else { return Ok(()) };
        let key = self.key(&left.key);
        let why = match UNSUPPORTED.iter().find(|(name, _)| *name == key) {
            Some((_, why)) => (*why).to_owned(),
            None => format!("is not known here; known are {}", self.known.join(", ")),
        };
        Err(Fault { line: left.line, what: format!("{key}: {why}") })
    }
}

fn text(found: Located<Value>) -> Result<Located<String>, Fault> {
    match &found.value {
        Value::Null => Ok(found.map(|_| String::new())),
        Value::Text { text, .. } => {
            let text = text.clone();
            Ok(found.map(|_| text))
        }
        _ => Err(found.fault("must be one text")),
    }
}
