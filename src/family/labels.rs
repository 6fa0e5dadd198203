//! Names and values of a sample's labels.

use std::borrow::Cow;
use std::sync::Arc;

/// Labels in the order in which they are written. Names are ours, or taken over from upstream. A copy is cheap: the
/// labels of an engine or a tier stand in many families.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels(Arc<Vec<(Cow<'static, str>, String)>>);

impl Labels {
    /// Name and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, text)| (name.as_ref(), text.as_str()))
    }

    /// The value of a label, or `None`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find_map(|(other, text)| (other == name).then_some(text))
    }

    /// Adds one at the end.
    pub fn push(&mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) {
        Arc::make_mut(&mut self.0).push((name.into(), value.into()));
    }

    /// The same with one more at the end.
    #[must_use]
    pub fn with(&self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Labels {
        let mut all = Vec::with_capacity(self.0.len() + 1);
        all.extend_from_slice(&self.0);
        all.push((name.into(), value.into()));
        Labels(all.into())
    }

    /// The same with others behind.
    #[must_use]
    pub fn and(&self, others: &Labels) -> Labels {
        Labels(self.0.iter().chain(&*others.0).cloned().collect::<Vec<_>>().into())
    }

    /// Takes out those without a value, which are the same as no label.
    pub(super) fn drop_empty(&mut self) {
        if self.0.iter().any(|(_, text)| text.is_empty()) {
            Arc::make_mut(&mut self.0).retain(|(_, text)| !text.is_empty());
        }
    }
}

impl From<Vec<(&'static str, String)>> for Labels {
    fn from(labels: Vec<(&'static str, String)>) -> Labels {
        labels.into_iter().collect()
    }
}

impl<const N: usize> From<[(&'static str, String); N]> for Labels {
    fn from(labels: [(&'static str, String); N]) -> Labels {
        labels.into_iter().collect()
    }
}

impl FromIterator<(&'static str, String)> for Labels {
    fn from_iter<I: IntoIterator<Item = (&'static str, String)>>(labels: I) -> Labels {
        Labels(labels.into_iter().map(|(name, text)| (Cow::Borrowed(name), text)).collect::<Vec<_>>().into())
    }
}
