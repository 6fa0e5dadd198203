//! Our own families as someone else's parser reads them.

use std::collections::BTreeMap;

use prometheus_parse::{Scrape, Value};

/// Samples of our families: name, labels in order, value.
pub struct Own(Vec<(String, BTreeMap<String, String>, f64)>);

impl Own {
    /// Reads text; every sample line must come out again, since that parser drops in silence what it cannot read.
    pub fn read(text: &str) -> Own {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let scrape = Scrape::parse(text.lines().map(|line| Ok(line.to_owned()))).unwrap();
        let samples: Vec<_> =
            scrape.samples.into_iter().map(|s| (s.metric, pairs(&s.labels), number(&s.value))).collect();
        assert_eq!(samples.len(), lines.count(), "prometheus-parse should read every sample of\n{text}");
        Own(samples)
    }

    /// The value of the one sample of that name whose labels include all of these.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let found = self.all(name, labels);
        assert!(found.len() <= 1, "{name} {labels:?} is there {} times", found.len());
        found.first().copied()
    }

    /// Values of all samples of that name whose labels include all of these.
    pub fn all(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let fits =
            |own: &BTreeMap<String, String>| labels.iter().all(|(k, v)| own.get(*k).map(String::as_str) == Some(v));
        self.0.iter().filter(|(other, own, _)| other == name && fits(own)).map(|(_, _, value)| *value).collect()
    }

    /// Names that begin so.
    pub fn names(&self, start: &str) -> Vec<&str> {
        self.0.iter().map(|(name, _, _)| name.as_str()).filter(|name| name.starts_with(start)).collect()
    }
}

fn pairs(labels: &prometheus_parse::Labels) -> BTreeMap<String, String> {
    labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn number(value: &Value) -> f64 {
    match value {
        Value::Counter(value) | Value::Gauge(value) | Value::Untyped(value) => *value,
        other => panic!("our families are gauges and counters, not {other:?}"),
    }
}
