//! The pen: families, samples, and numbers in the spelling of `prometheus_client`.

use std::fmt::Write;

use super::super::engine::Engine;
use super::super::simulation::State;
use super::super::tally::Histogram;
use super::Dates;

/// Labels beyond `engine` and `model_name`.
pub(super) type Labels = &'static [(&'static str, &'static str)];

/// One family of per-engine series.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) read: Read,
}

/// How a family's values are read off an engine. No entries: no sample of that engine yet.
pub(super) enum Read {
    /// Written as `<name>_total` and `<name>_created`.
    Counter(fn(&Engine) -> Vec<(Labels, f64)>),
    Gauge(fn(&Engine) -> Vec<(Labels, f64)>),
    Histogram(fn(&Engine) -> Vec<(Labels, &Histogram)>),
}

/// A page while it is written.
pub(super) struct Sheet<'a> {
    pub(super) state: &'a State,
    pub(super) dates: Dates,
    text: String,
}

impl<'a> Sheet<'a> {
    pub(super) fn new(state: &'a State, dates: Dates) -> Sheet<'a> {
        Sheet { state, dates, text: String::with_capacity(128 << 10) }
    }

    pub(super) fn text(self) -> String {
        self.text
    }

    /// HELP and TYPE. They are written even while a family has no sample.
    pub(super) fn head(&mut self, name: &str, kind: &str, help: &str) {
        _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample; its labels are sorted by name.
    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        let mut labels = labels.to_vec();
        labels.sort_unstable();
        for (index, (label, value)) in labels.iter().enumerate() {
            let opening = if index == 0 { '{' } else { ',' };
            _ = write!(self.text, "{opening}{label}=\"{}\"", escaped(value));
        }
        let closing = if labels.is_empty() { "" } else { "}" };
        _ = writeln!(self.text, "{closing} {}", number(value));
    }

    /// A counter without engine labels, with its creation time.
    pub(super) fn server_counter(&mut self, name: &str, help: &str, samples: &[(Labels, f64)]) {
        let total = format!("{name}_total");
        self.head(&total, "counter", help);
        for (labels, value) in samples {
            self.sample(&total, labels, *value);
        }
        self.created(name, help, samples.iter().map(|(labels, _)| (labels.to_vec(), 0.0)).collect());
    }

    /// The gauge of creation times beside a family; it exists once the family has samples.
    pub(super) fn created(&mut self, name: &str, help: &str, series: Vec<(Vec<(&str, &str)>, f64)>) {
        if series.is_empty() {
            return;
        }
        let name = format!("{name}_created");
        self.head(&name, "gauge", help);
        for (labels, seconds) in series {
            self.sample(&name, &labels, self.dates.unix(seconds));
        }
    }

    pub(super) fn rows(&mut self, rows: &[Row]) {
        for row in rows {
            match row.read {
                Read::Gauge(read) => self.gauge(row, read),
                Read::Counter(read) => self.counter(row, read),
                Read::Histogram(read) => self.histogram(row, read),
            }
        }
    }

    fn gauge(&mut self, row: &Row, read: fn(&Engine) -> Vec<(Labels, f64)>) {
        self.head(row.name, "gauge", row.help);
        let state = self.state;
        for engine in &state.engines {
            for (labels, value) in read(engine) {
                self.sample(row.name, &self.of(engine, labels), value);
            }
        }
    }

    fn counter(&mut self, row: &Row, read: fn(&Engine) -> Vec<(Labels, f64)>) {
        let total = format!("{}_total", row.name);
        self.head(&total, "counter", row.help);
        let mut created = Vec::new();
        let state = self.state;
        for engine in &state.engines {
            for (labels, value) in read(engine) {
                let labels = self.of(engine, labels);
                self.sample(&total, &labels, value);
                created.push((labels, engine.started));
            }
        }
        self.created(row.name, row.help, created);
    }

    fn histogram(&mut self, row: &Row, read: fn(&Engine) -> Vec<(Labels, &Histogram)>) {
        self.head(row.name, "histogram", row.help);
        let mut created = Vec::new();
        let state = self.state;
        for engine in &state.engines {
            for (labels, histogram) in read(engine) {
                let labels = self.of(engine, labels);
                self.observations(row.name, &labels, histogram);
                created.push((labels, engine.started));
            }
        }
        self.created(row.name, row.help, created);
    }

    /// Buckets, count and sum of one histogram.
    pub(super) fn observations(&mut self, name: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        for (bound, count) in histogram.cumulated() {
            let bound = number(bound);
            let labels: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &labels, count as f64);
        }
        self.sample(&format!("{name}_count"), labels, histogram.count() as f64);
        self.sample(&format!("{name}_sum"), labels, histogram.sum());
    }

    fn of(&self, engine: &Engine, labels: Labels) -> Vec<(&'a str, &'a str)> {
        let own = [("engine", engine.name), ("model_name", self.state.model_name())];
        own.into_iter().chain(labels.iter().copied()).collect()
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// A number as `prometheus_client` spells it: Python's `repr`, but with Go's exponent from a million on.
fn number(value: f64) -> String {
    if value == f64::INFINITY {
        return "+Inf".to_owned();
    }
    let plain = format!("{value:?}");
    if let Some((digits, exponent)) = plain.split_once("e-") {
        return format!("{digits}e-{exponent:0>2}");
    }
    match plain.find('.') {
        Some(dot) if value > 0.0 && dot > 6 => {
            let mantissa = format!("{}.{}{}", &plain[..1], &plain[1..dot], &plain[dot + 1..]);
            format!("{}e+{:02}", mantissa.trim_end_matches(['0', '.']), dot - 1)
        }
        _ => plain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_as_on_a_captured_page() {
        let spelled = [
            (0.0, "0.0"),
            (228_800.0, "228800.0"),
            (17_000_000.0, "1.7e+07"),
            (98_400_000_000.0, "9.84e+10"),
            (501_437_431_808.0, "5.01437431808e+11"),
            (1e6, "1e+06"),
            (0.00390625, "0.00390625"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (0.01999999999999952, "0.01999999999999952"),
            (1_795_987_851.4352348, "1.7959878514352348e+09"),
            (f64::INFINITY, "+Inf"),
        ];
        for (value, text) in spelled {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn label_values_are_escaped() {
        assert_eq!(escaped("a\\b\"c\nd"), "a\\\\b\\\"c\\nd");
    }
}
