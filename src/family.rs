//! The families that this program adds: what one is, and how it is written.
//!
//! A [`Desc`] spells name, kind and HELP of a family exactly once, as a constant beside the code that
//! fills it. A [`Family`] is built anew for each scrape, so a sample that is not known is simply not
//! there. Writing is left to the `prometheus` crate: it escapes label values the way every client does.

use std::fmt;

use prometheus::TextEncoder;
use prometheus::proto;

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

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        })
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

/// Names and values of a sample's labels; an empty value is the same as no label and is left out.
pub type Labels = Vec<(&'static str, String)>;

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
        family.push(Vec::new(), value);
        family
    }

    /// Adds a sample. Unknown (`None`) and non-finite values add nothing: unknown is an absent sample.
    pub fn push(&mut self, mut labels: Labels, value: impl Into<Option<f64>>) {
        match value.into() {
            Some(value) if value.is_finite() => {
                labels.retain(|(_, text)| !text.is_empty());
                self.samples.push((labels, value));
            }
            _ => {}
        }
    }
}

/// Writes families in text 0.0.4, in the order given. A family without samples is not written.
pub fn encode(families: &[Family]) -> String {
    let known: Vec<proto::MetricFamily> =
        families.iter().filter(|f| !f.samples.is_empty() || !f.histograms.is_empty()).map(proto_family).collect();
    let mut text = String::new();
    // The encoder refuses only an empty family or name; neither gets here.
    if let Err(error) = TextEncoder::new().encode_utf8(&known, &mut text) {
        tracing::error!(%error, "own families could not be encoded");
        return String::new();
    }
    text
}

fn proto_family(family: &Family) -> proto::MetricFamily {
    let mut out = proto::MetricFamily::default();
    out.set_name(family.desc.name.to_owned());
    out.set_help(family.desc.help.to_owned());
    out.set_field_type(match family.desc.kind {
        Kind::Gauge => proto::MetricType::GAUGE,
        Kind::Counter => proto::MetricType::COUNTER,
        Kind::Histogram => proto::MetricType::HISTOGRAM,
    });
    let samples = family.samples.iter().map(|(labels, value)| proto_metric(family.desc.kind, labels, *value));
    let histograms = family.histograms.iter().map(|(labels, histogram)| proto_histogram(labels, histogram));
    out.set_metric(samples.chain(histograms).collect());
    out
}

fn proto_metric(kind: Kind, labels: &Labels, value: f64) -> proto::Metric {
    let mut metric = labelled(labels);
    match kind {
        Kind::Gauge => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        Kind::Counter => {
            let mut counter = proto::Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        }
        // A histogram has no single values.
        Kind::Histogram => {}
    }
    metric
}

fn proto_histogram(labels: &Labels, histogram: &Histogram) -> proto::Metric {
    let mut out = proto::Histogram::default();
    out.set_sample_count(histogram.count);
    out.set_sample_sum(histogram.sum);
    let bucket = |(edge, count): &(f64, u64)| {
        let mut bucket = proto::Bucket::default();
        bucket.set_upper_bound(*edge);
        bucket.set_cumulative_count(*count);
        bucket
    };
    out.set_bucket(histogram.up_to.iter().map(bucket).collect());
    let mut metric = labelled(labels);
    metric.set_histogram(out);
    metric
}

fn labelled(labels: &Labels) -> proto::Metric {
    proto::Metric::from_label(labels.iter().map(|(name, text)| proto_label(name, text)).collect())
}

fn proto_label(name: &str, value: &str) -> proto::LabelPair {
    let mut pair = proto::LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: Desc = Desc::gauge("kvtier_x_bytes", "Help with a \\ in it.");

    #[test]
    fn unknown_is_an_absent_sample_and_an_empty_family_is_not_written() {
        let mut family = Family::new(D);
        family.push(vec![], None);
        family.push(vec![], f64::NAN);
        family.push(vec![], f64::INFINITY);
        assert_eq!(encode(&[family]), "");
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
