//! A reader of the demo's page for its tests.

use std::collections::{BTreeMap, BTreeSet};

/// A page, checked line by line and taken apart. It shares no code with the rest of the program.
pub(super) struct Read {
    pub(super) kinds: BTreeMap<String, String>,
    pub(super) samples: BTreeMap<String, f64>,
}

impl Read {
    pub(super) fn new(page: &str) -> Read {
        let (mut kinds, mut samples) = (BTreeMap::new(), BTreeMap::new());
        let (mut helped, mut family) = (String::new(), String::new());
        assert!(page.ends_with('\n') && !page.contains("\n\n"));
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect("HELP has a text");
                assert!(!help.trim().is_empty() && !kinds.contains_key(name), "{line}");
                helped = name.to_owned();
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect("TYPE has a kind");
                assert_eq!(name, helped, "TYPE follows its HELP");
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "one TYPE a family: {line}");
                family = name.to_owned();
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
                let name = series.split('{').next().expect("a sample has a name");
                assert!(Read::belongs(name, &family, &kinds[&family]), "{line} stands under {family}");
                Read::check_labels(series);
                let value: f64 = value.parse().expect("a sample's value is a number");
                assert!(value.is_finite() && value >= 0.0, "{line}");
                assert!(samples.insert(series.to_owned(), value).is_none(), "twice: {series}");
            }
        }
        Read { kinds, samples }.histograms_hold()
    }

    fn belongs(name: &str, family: &str, kind: &str) -> bool {
        match (kind, name.strip_prefix(family)) {
            ("gauge", Some("")) => true,
            ("counter", Some("")) => name.ends_with("_total"),
            ("histogram", Some("_bucket" | "_count" | "_sum")) | ("summary", Some("_count" | "_sum")) => true,
            _ => false,
        }
    }

    fn check_labels(series: &str) {
        let Some((_, labels)) = series.split_once('{') else { return };
        let labels = labels.strip_suffix('}').expect("labels end in a brace");
        let mut names = Vec::new();
        let mut rest = labels;
        while !rest.is_empty() {
            let (name, after) = rest.split_once("=\"").expect("a label is quoted");
            let (mut end, bytes) = (0, after.as_bytes());
            while bytes[end] != b'"' {
                end += if bytes[end] == b'\\' { 2 } else { 1 };
            }
            names.push(name);
            rest = after[end + 1..].strip_prefix(',').unwrap_or_default();
        }
        assert!(names.is_sorted() && names.iter().collect::<BTreeSet<_>>().len() == names.len(), "{series}");
    }

    /// Buckets only rise, and the last one is the count.
    fn histograms_hold(self) -> Read {
        let mut histograms: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
        for (series, value) in self.samples.iter().filter(|(series, _)| series.contains("_bucket{")) {
            let (before, rest) = series.split_once("le=\"").expect("a bucket has a bound");
            let (bound, after) = rest.split_once('"').expect("a bound ends");
            let key = format!("{before}{}", after.strip_prefix(',').unwrap_or(after));
            histograms.entry(key).or_default().push((bound.parse().expect("a bound is a number"), *value));
        }
        assert!(!histograms.is_empty());
        for (key, mut buckets) in histograms {
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(buckets.is_sorted_by(|a, b| a.1 <= b.1), "{key}: {buckets:?}");
            let last = buckets.last().expect("a histogram has buckets");
            let count = key.replacen("_bucket", "_count", 1);
            let count = count.strip_suffix(",}").map_or(count.clone(), |start| format!("{start}}}"));
            assert_eq!((last.0, Some(&last.1)), (f64::INFINITY, self.samples.get(&count)), "{count}");
        }
        self
    }

    /// Sum over the samples of one engine whose series begins with `name{` and contains `label`; `None` if there are none.
    pub(super) fn find(&self, name: &str, engine: &str, label: &str) -> Option<f64> {
        let (start, engine) = (format!("{name}{{"), format!("engine=\"{engine}\""));
        let found = self
            .samples
            .iter()
            .filter(|(series, _)| series.starts_with(&start) && series.contains(&engine) && series.contains(label));
        found.map(|(_, value)| *value).reduce(|sum, value| sum + value)
    }

    pub(super) fn get(&self, name: &str, engine: &str) -> f64 {
        self.labelled(name, engine, "")
    }

    pub(super) fn labelled(&self, name: &str, engine: &str, label: &str) -> f64 {
        self.find(&format!("vllm:{name}"), engine, label).unwrap_or(0.0)
    }

    /// A label of the engine's info series; of the first tier where there are two.
    pub(super) fn told(&self, name: &str, engine: &str, label: &str) -> String {
        let (start, own) = (format!("{name}{{"), format!("engine=\"{engine}\""));
        let series = self
            .samples
            .keys()
            .find(|series| series.starts_with(&start) && series.contains(&own) && !series.contains("tier=\"1:fs\""));
        let (_, rest) = series.expect("info series").split_once(&format!("{label}=\"")).expect("label");
        rest.split('"').next().expect("label value").to_owned()
    }
}
