//! Series that stand on a page several times. Prometheus keeps one sample of each, and which of them is chance.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::exposition::Sample;

/// Samples of a family whose series stood there before, by their places.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::dialect) struct Repeats {
    /// They say the same again.
    pub again: Vec<usize>,
    /// They say something else.
    pub otherwise: Vec<usize>,
}

impl Repeats {
    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.again.is_empty() && self.otherwise.is_empty()
    }

    /// Those of the samples of one family.
    pub(in crate::dialect) fn of(samples: &[Sample<'_>]) -> Repeats {
        if samples.len() > FEW { Repeats::of_many(samples) } else { Repeats::of_few(samples) }
    }

    fn of_few(samples: &[Sample<'_>]) -> Repeats {
        let mut repeats = Repeats::default();
        for (at, sample) in samples.iter().enumerate().skip(1) {
            if let Some(first) = samples[..at].iter().find(|one| one.labels.are(sample.labels)) {
                repeats.add(at, first, sample);
            }
        }
        repeats
    }

    fn of_many(samples: &[Sample<'_>]) -> Repeats {
        let mut repeats = Repeats::default();
        let mut series: HashMap<_, &Sample<'_>> = HashMap::new();
        for (at, sample) in samples.iter().enumerate() {
            match series.entry(sample.labels.sorted()) {
                Entry::Occupied(first) => repeats.add(at, first.get(), sample),
                Entry::Vacant(place) => _ = place.insert(sample),
            }
        }
        repeats
    }

    fn add(&mut self, at: usize, first: &Sample<'_>, sample: &Sample<'_>) {
        // NaN is the same as NaN.
        let same = first.value == sample.value || (first.value.is_nan() && sample.value.is_nan());
        if same { self.again.push(at) } else { self.otherwise.push(at) }
    }
}

/// So many samples are compared each with each: nearly all differ in their length or in their first label.
const FEW: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::NAMES;
    use crate::exposition::Exposition;

    const NAME: &str = "vllm:num_requests_running";

    /// Of samples with these labels and values.
    fn of(samples: &[(&str, &str)]) -> (Vec<usize>, Vec<usize>) {
        let page: String = samples.iter().map(|(labels, value)| format!("{NAME}{{{labels}}} {value}\n")).collect();
        let page = Exposition::scan(page.as_bytes(), &NAMES);
        let few = Repeats::of_few(page.samples(NAME));
        assert_eq!(few, Repeats::of_many(page.samples(NAME)));
        (few.again, few.otherwise)
    }

    #[test]
    fn a_series_is_its_labels_in_any_order() {
        let ones = |labels: &[&'static str]| of(&labels.iter().map(|labels| (*labels, "1")).collect::<Vec<_>>()).0;
        assert_eq!(ones(&[r#"a="1",b="2""#, r#"a="1",b="3""#, r#"a="2",b="2""#, r#"a="1""#, ""]), [0; 0]);
        assert_eq!(ones(&[r#"a="1",b="2""#, r#"b="2",a="1""#, r#"a="1",b="2""#]), [1, 2]);
        assert_eq!(ones(&[r#"a="1",c="2",b="3""#, r#"a="1",b="3",c="2""#, r#"a="1",b="2",c="3""#]), [1]);
    }

    #[test]
    fn whether_they_say_the_same_is_told_by_their_values() {
        let labels = r#"engine="0""#;
        assert_eq!(of(&[(labels, "1"), (labels, "1.0"), (labels, "2"), (labels, "1e0")]), (vec![1, 3], vec![2]));
        assert_eq!(of(&[(labels, "NaN"), (labels, "NaN"), (labels, "0")]), (vec![1], vec![2]));
        assert_eq!(of(&[(labels, "+Inf"), (labels, "Inf"), (labels, "-Inf")]), (vec![1], vec![2]));
    }
}
