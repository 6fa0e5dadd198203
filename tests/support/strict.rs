//! A strict checker of text 0.0.4 that shares no code with `src/`.
//!
//! Two verdicts on a page: what Prometheus refuses (then the whole scrape is lost), and what only a stricter
//! reader minds (the Go text parser, promtool, Telegraf), families in two places and series in two samples
//! included, which none of them notice.

use std::collections::{BTreeMap, BTreeSet};

use super::reader::{self, Entry, Remark, Sample};

/// A sample's labels, decoded and in order.
pub type Labels = Vec<(String, String)>;

/// HELP and TYPE of a family, the first of each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Type, if a TYPE line says it.
    pub kind: Option<String>,
    /// HELP as written, if there is a HELP line.
    pub help: Option<String>,
}

/// Everything that can be said of a page.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// Why Prometheus refuses the page.
    pub refusal: Option<Remark>,
    /// What a stricter reader minds.
    pub findings: Vec<Remark>,
    /// Samples, in order.
    pub samples: Vec<Sample>,
    /// HELP and TYPE by family name.
    pub families: BTreeMap<String, Meta>,
}

impl Verdict {
    /// Whether Prometheus takes the page.
    pub fn accepted(&self) -> bool {
        self.refusal.is_none()
    }

    /// Whether even a strict reader has nothing to say.
    pub fn spotless(&self) -> bool {
        self.accepted() && self.findings.is_empty()
    }

    /// The first sample of that name whose labels include all of these.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has =
            |sample: &Sample, (key, value): (&str, &str)| sample.labels.iter().any(|(k, v)| k == key && v == value);
        let found = self.samples.iter().find(|s| s.name == name && labels.iter().all(|pair| has(s, *pair)))?;
        Some(found.value)
    }

    /// Whether some finding says this.
    pub fn finds(&self, words: &str) -> bool {
        self.findings.iter().any(|finding| finding.what.contains(words))
    }
}

/// Judges a page.
pub fn check(body: &[u8]) -> Verdict {
    let reading = reader::read(body);
    let mut verdict = Verdict { refusal: reading.refusal, findings: reading.oddities, ..Verdict::default() };
    if !body.is_empty() && !body.ends_with(b"\n") {
        verdict.find(line_count(body), "no final line end");
    }
    verdict.note_metadata(&reading.entries);
    verdict.note_order(&reading.entries);
    verdict.samples = reading.entries.into_iter().filter_map(into_sample).collect();
    verdict.note_duplicates();
    verdict.note_counters();
    verdict.note_histograms();
    verdict
}

fn line_count(body: &[u8]) -> usize {
    body.split(|byte| *byte == b'\n').count()
}

fn into_sample(entry: Entry) -> Option<Sample> {
    match entry {
        Entry::Sample(sample) => Some(sample),
        Entry::Help { .. } | Entry::Type { .. } => None,
    }
}

impl Verdict {
    fn find(&mut self, line: usize, what: impl Into<String>) {
        self.findings.push(Remark { line, what: what.into() });
    }

    fn note_metadata(&mut self, entries: &[Entry]) {
        for entry in entries {
            let (name, line, word) = match entry {
                Entry::Help { name, text, line } => {
                    let slot = &mut self.families.entry(name.clone()).or_default().help;
                    let first = slot.is_none();
                    slot.get_or_insert_with(|| text.clone());
                    (name, *line, (!first).then_some("HELP"))
                }
                Entry::Type { name, kind, line } => {
                    let slot = &mut self.families.entry(name.clone()).or_default().kind;
                    let first = slot.is_none();
                    slot.get_or_insert_with(|| kind.clone());
                    (name, *line, (!first).then_some("TYPE"))
                }
                Entry::Sample(_) => continue,
            };
            if let Some(word) = word {
                self.find(line, format!("{word} twice for {name}"));
            }
        }
    }

    /// The family that a sample belongs to, by the types on the page.
    fn family_of(&self, sample: &str) -> String {
        if self.kind(sample).is_some() {
            return sample.to_owned();
        }
        for (suffix, kinds) in [
            ("_bucket", &["histogram"][..]),
            ("_sum", &["histogram", "summary"]),
            ("_count", &["histogram", "summary"]),
        ] {
            if let Some(base) = sample.strip_suffix(suffix)
                && self.kind(base).is_some_and(|kind| kinds.contains(&kind))
            {
                return base.to_owned();
            }
        }
        sample.to_owned()
    }

    fn kind(&self, family: &str) -> Option<&str> {
        self.families.get(family)?.kind.as_deref()
    }

    fn note_order(&mut self, entries: &[Entry]) {
        let mut left = BTreeSet::new();
        let mut sampled = BTreeSet::new();
        let mut current = String::new();
        for entry in entries {
            let (family, line) = match entry {
                Entry::Help { name, line, .. } | Entry::Type { name, line, .. } => (name.clone(), *line),
                Entry::Sample(sample) => (self.family_of(&sample.name), sample.line),
            };
            if family != current {
                left.insert(std::mem::replace(&mut current, family.clone()));
                if left.contains(&family) {
                    self.find(line, format!("{family} in two places"));
                }
            }
            if matches!(entry, Entry::Sample(_)) {
                sampled.insert(family);
            } else if sampled.contains(&family) {
                self.find(line, format!("HELP or TYPE of {family} after its samples"));
            }
        }
    }

    fn note_duplicates(&mut self) {
        let mut seen = BTreeSet::new();
        let again: Vec<Remark> = self
            .samples
            .iter()
            .filter(|sample| !seen.insert((sample.name.clone(), sample.labels.clone(), sample.timestamp)))
            .map(|sample| Remark { line: sample.line, what: format!("series twice: {}", sample.name) })
            .collect();
        self.findings.extend(again);
    }

    fn note_counters(&mut self) {
        let mut found = Vec::new();
        for sample in self.samples.iter().filter(|sample| self.kind(&sample.name) == Some("counter")) {
            if sample.value.is_nan() || sample.value < 0.0 {
                found.push((sample.line, format!("counter {} is {}", sample.name, sample.value)));
            }
            if !sample.name.ends_with("_total") {
                found.push((sample.line, format!("counter {} without _total", sample.name)));
            }
        }
        found.into_iter().for_each(|(line, what)| self.find(line, what));
    }

    fn note_histograms(&mut self) {
        let names = self.families.iter().filter(|(_, meta)| meta.kind.as_deref() == Some("histogram"));
        let found: Vec<Remark> = names.flat_map(|(name, _)| histogram_remarks(name, &self.samples)).collect();
        self.findings.extend(found);
    }
}

/// One histogram: the bucket bounds in order with their counts, sum and count.
#[derive(Default)]
struct Histogram {
    line: usize,
    buckets: Vec<(f64, f64)>,
    sum: Option<f64>,
    count: Option<f64>,
}

fn histogram_remarks(family: &str, samples: &[Sample]) -> Vec<Remark> {
    let mut remarks = Vec::new();
    let mut histograms: BTreeMap<Labels, Histogram> = BTreeMap::new();
    for sample in samples {
        let Some(part) = sample.name.strip_prefix(family) else { continue };
        let others = sample.labels.iter().filter(|(name, _)| name != "le").cloned().collect();
        let bound = sample.labels.iter().find(|(name, _)| name == "le").map(|(_, value)| value.parse::<f64>());
        match (part, bound) {
            ("_bucket", Some(Ok(bound))) => {
                let histogram = histograms.entry(others).or_default();
                histogram.line = sample.line;
                histogram.buckets.push((bound, sample.value));
            }
            ("_bucket", _) => {
                remarks.push(Remark { line: sample.line, what: format!("bucket of {family} without a number in le") });
            }
            ("_sum", _) => histograms.entry(others).or_default().sum = Some(sample.value),
            ("_count", _) => histograms.entry(others).or_default().count = Some(sample.value),
            ("", _) => remarks.push(Remark { line: sample.line, what: format!("plain sample in histogram {family}") }),
            _ => {}
        }
    }
    for histogram in histograms.values() {
        let what = histogram_faults(histogram).into_iter();
        remarks.extend(what.map(|what| Remark { line: histogram.line, what: format!("histogram {family} {what}") }));
    }
    remarks
}

fn histogram_faults(histogram: &Histogram) -> Vec<&'static str> {
    let mut faults = Vec::new();
    let top = histogram.buckets.iter().find(|(bound, _)| *bound == f64::INFINITY);
    if top.is_none() {
        faults.push("without +Inf");
    }
    if histogram.buckets.windows(2).any(|pair| pair[0].0 >= pair[1].0 || pair[0].1 > pair[1].1) {
        faults.push("whose buckets fall");
    }
    if histogram.sum.is_none() || histogram.count.is_none() {
        faults.push("without _sum or _count");
    }
    if top.is_some_and(|(_, all)| histogram.count.is_some_and(|count| count != *all)) {
        faults.push("whose count is not its +Inf bucket");
    }
    faults
}
