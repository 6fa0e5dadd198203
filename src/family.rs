//! The families that this program adds: what one is, and how it is written.
//!
//! A [`Desc`] spells name, kind and HELP of a family exactly once, as a constant beside the code that
//! fills it. A [`Family`] is built anew for each scrape, so a sample that is not known is simply not
//! there. It is written anew for each scrape too, and the format is plain: an encoder that first wants every name and
//! value in messages of its own took a quarter of the instructions of a small scrape.

mod labels;

use std::fmt::{self, Write as _};

pub use labels::Labels;

/// Whether a family may only rise (until its engine restarts).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only goes up; falls to 0 with the engine's restart.
    Counter,
    /// Observations by size: its samples are in [`Family::histograms`].
    Histogram,
}

impl Kind {
    /// The word for it in a TYPE line.
    fn word(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Name, kind and HELP of one of our families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Desc {
    /// Name on the wire, with its unit (`_bytes`, `_seconds`, `_ratio`).
    pub name: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// One sentence of plain English: what it means, and what it does not.
    pub help: &'static str,
}

impl Desc {
    /// A gauge.
    pub const fn gauge(name: &'static str, help: &'static str) -> Desc {
        Desc { name, kind: Kind::Gauge, help }
    }

    /// A histogram.
    pub const fn histogram(name: &'static str, help: &'static str) -> Desc {
        Desc { name, kind: Kind::Histogram, help }
    }

    /// A counter.
    pub const fn counter(name: &'static str, help: &'static str) -> Desc {
        Desc { name, kind: Kind::Counter, help }
    }
}

/// One family with the samples of this scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// What it is.
    pub desc: Desc,
    /// What is known of it now.
    pub samples: Vec<(Labels, f64)>,
    /// The same for a histogram.
    pub histograms: Vec<(Labels, Histogram)>,
}

/// Observations by size.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// Upper edge of each bucket, and observations up to it.
    pub up_to: Vec<(f64, u64)>,
    /// All observations.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

impl Family {
    /// A family without samples yet.
    pub fn new(desc: Desc) -> Family {
        Family { desc, samples: Vec::new(), histograms: Vec::new() }
    }

    /// A family of one sample without labels; without samples where the value is not known.
    pub fn single(desc: Desc, value: impl Into<Option<f64>>) -> Family {
        let mut family = Family::new(desc);
        family.push(Labels::default(), value);
        family
    }

    /// Adds a sample; a label with an empty value is no label. Unknown (`None`) and non-finite values add nothing: unknown is an absent sample.
    pub fn push(&mut self, labels: impl Into<Labels>, value: impl Into<Option<f64>>) {
        let Some(value) = value.into().filter(|value| value.is_finite()) else { return };
        let mut labels = labels.into();
        labels.drop_empty();
        self.samples.push((labels, value));
    }
}

/// Writes families in text 0.0.4, in the order given. A family without samples is not written.
pub fn encode(families: &[Family]) -> String {
    let known = families.iter().filter(|family| !family.samples.is_empty() || !family.histograms.is_empty());
    let room = known.clone().map(|family| USUAL + family.desc.help.len() + USUAL * family.samples.len()).sum();
    let mut page = Text(String::with_capacity(room));
    known.for_each(|family| page.family(family));
    page.0
}

/// About how many bytes a line of ours has, without its HELP text.
const USUAL: usize = 128;

/// The value, where it is a whole number that reads the same as one: beyond 2^53 a double has zeros for the last digits.
fn whole(value: f64) -> Option<u64> {
    let whole = value as u64;
    // The sign of a zero is a part of it.
    (whole < 1 << 53 && (whole as f64).to_bits() == value.to_bits()).then_some(whole)
}

/// Text 0.0.4 as far as it is written.
struct Text(String);

impl Text {
    fn family(&mut self, family: &Family) {
        let Desc { name, kind, help } = family.desc;
        self.push(&["# HELP ", name, " "]);
        self.help(help);
        self.push(&["\n# TYPE ", name, " ", kind.word(), "\n"]);
        for (labels, value) in &family.samples {
            self.sample(name, "", labels, None, *value);
        }
        for (labels, histogram) in &family.histograms {
            self.histogram(name, labels, histogram);
        }
    }

    fn histogram(&mut self, name: &str, labels: &Labels, histogram: &Histogram) {
        for (edge, count) in &histogram.up_to {
            self.sample(name, "_bucket", labels, Some(&edge.to_string()), *count as f64);
        }
        self.sample(name, "_bucket", labels, Some("+Inf"), histogram.count as f64);
        self.sample(name, "_sum", labels, None, histogram.sum);
        self.sample(name, "_count", labels, None, histogram.count as f64);
    }

    /// One line. `le` is the edge of a bucket.
    fn sample(&mut self, name: &str, suffix: &str, labels: &Labels, le: Option<&str>, value: f64) {
        self.push(&[name, suffix]);
        let mut before = "{";
        for (name, text) in labels.iter().chain(le.map(|edge| ("le", edge))) {
            self.push(&[before, name, "=\""]);
            self.quoted(text);
            self.push(&["\""]);
            before = ",";
        }
        self.push(&[if before == "{" { " " } else { "} " }]);
        // Most values are whole numbers, which are written several times as fast when they are known to be. Writing into a
        // String cannot fail.
        let _ = match whole(value) {
            Some(value) => writeln!(self.0, "{value}"),
            None => writeln!(self.0, "{value}"),
        };
    }

    fn push(&mut self, parts: &[&str]) {
        parts.iter().for_each(|part| self.0.push_str(part));
    }

    /// HELP text.
    fn help(&mut self, text: &str) {
        match memchr::memchr2(b'\\', b'\n', text.as_bytes()) {
            None => self.0.push_str(text),
            Some(_) => self.escaped(text, &['\\', '\n']),
        }
    }

    /// The value of a label.
    fn quoted(&mut self, text: &str) {
        match memchr::memchr3(b'\\', b'\n', b'"', text.as_bytes()) {
            None => self.0.push_str(text),
            Some(_) => self.escaped(text, &['\\', '\n', '"']),
        }
    }

    /// The text with a backslash before each of these characters, a line end as `\n`.
    fn escaped(&mut self, text: &str, special: &[char]) {
        for part in text.split_inclusive(special) {
            match part.char_indices().next_back() {
                Some((at, last)) if special.contains(&last) => {
                    let last = if last == '\n' { "n" } else { &part[at..] };
                    self.push(&[&part[..at], "\\", last]);
                }
                _ => self.push(&[part]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Desc = Desc::gauge("kvtier_x_bytes", "Help with a \\ in it.");

    #[test]
    fn a_whole_number_is_written_as_any_other() {
        let two_53 = 9_007_199_254_740_992.0_f64;
        for value in [0.0, -0.0, 1.0, -1.0, 0.5, 1e6, two_53 - 1.0, two_53, two_53 + 2.0, 1.8446744073709552e19, 1e22] {
            assert_eq!(
                encode(&[Family::single(D, value)]).lines().last(),
                Some(format!("{} {value}", D.name).as_str())
            );
        }
    }

    #[test]
    fn unknown_is_an_absent_sample_and_an_empty_family_is_not_written() {
        let mut family = Family::new(D);
        family.push(vec![], None);
        family.push(vec![], f64::NAN);
        family.push(vec![], f64::INFINITY);
        assert_eq!(encode(&[family]), "");
    }

    #[test]
    fn a_histogram_is_its_buckets_the_rest_the_sum_and_the_count() {
        let mut family = Family::new(Desc::histogram("kvtier_x_seconds", "How long."));
        let observed = Histogram { up_to: vec![(0.5, 1), (10.0, 3)], count: 4, sum: 31.25 };
        family.histograms = vec![([("tier", "ram".into())].into(), observed.clone()), (Labels::default(), observed)];
        let labelled = "kvtier_x_seconds_bucket{tier=\"ram\",le=\"0.5\"} 1\n\
             kvtier_x_seconds_bucket{tier=\"ram\",le=\"10\"} 3\nkvtier_x_seconds_bucket{tier=\"ram\",le=\"+Inf\"} 4\n\
             kvtier_x_seconds_sum{tier=\"ram\"} 31.25\nkvtier_x_seconds_count{tier=\"ram\"} 4\n";
        let plain = labelled.replace("tier=\"ram\",", "").replace("{tier=\"ram\"}", "");
        let head = "# HELP kvtier_x_seconds How long.\n# TYPE kvtier_x_seconds histogram\n";
        assert_eq!(encode(&[family]), format!("{head}{labelled}{plain}"));
    }

    #[test]
    fn label_values_are_escaped_and_empty_ones_left_out() {
        let mut family = Family::new(D);
        family.push(vec![("model_name", "a\"b\\c\nd".into()), ("engine", String::new())], 34_359_738_368.0);
        assert_eq!(
            encode(&[family]),
            "# HELP kvtier_x_bytes Help with a \\\\ in it.\n# TYPE kvtier_x_bytes gauge\n\
             kvtier_x_bytes{model_name=\"a\\\"b\\\\c\\nd\"} 34359738368\n"
        );
    }
}
