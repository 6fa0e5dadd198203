//! A histogram of the page, and what can be told from it.

use super::ratio;

/// A histogram: how many observations were at most so large, by bound.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Upper bound and cumulative count of each bucket, by bound; the last bound is infinite.
    buckets: Vec<(f64, f64)>,
    /// Sum of all observations.
    pub sum: f64,
    /// Number of all observations.
    pub count: f64,
}

impl Histogram {
    /// Adds to the bucket with this `le` label; one that is no number says nothing.
    pub fn add_bucket(&mut self, le: &str, count: f64) {
        let Ok(bound) = le.parse::<f64>() else { return };
        match self.buckets.binary_search_by(|(known, _)| known.total_cmp(&bound)) {
            Ok(at) => self.buckets[at].1 += count,
            Err(at) => self.buckets.insert(at, (bound, count)),
        }
    }

    /// What was observed since `earlier`, or `None` where a count fell in between.
    pub fn since(&self, earlier: &Histogram) -> Option<Histogram> {
        let before = |bound: f64| earlier.buckets.iter().find(|(b, _)| *b == bound).map_or(0.0, |(_, count)| *count);
        let buckets: Vec<_> = self.buckets.iter().map(|(bound, count)| (*bound, count - before(*bound))).collect();
        let delta = Histogram { buckets, sum: self.sum - earlier.sum, count: self.count - earlier.count };
        (delta.count >= 0.0 && delta.buckets.iter().all(|(_, count)| *count >= 0.0)).then_some(delta)
    }

    /// Adds another's observations.
    pub fn merge(&mut self, other: &Histogram) {
        for (bound, count) in &other.buckets {
            self.add_bucket(&bound.to_string(), *count);
        }
        self.sum += other.sum;
        self.count += other.count;
    }

    /// The value that the share `q` of all observations does not exceed, as PromQL's `histogram_quantile` reckons it:
    /// a straight line within the bucket, from 0 in the first one, and the last finite bound where it lies beyond.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let (last, all) = *self.buckets.last()?;
        if last.is_finite() || all <= 0.0 || self.buckets.len() < 2 {
            return None;
        }
        let rank = q * all;
        let at = self.buckets.iter().position(|(_, count)| *count >= rank)?;
        let (bound, count) = self.buckets[at];
        let (below, before) = if at == 0 { (0.0, 0.0) } else { self.buckets[at - 1] };
        if bound.is_infinite() {
            return Some(below);
        }
        // Counts are cumulative, so only an empty first bucket can have none of its own here.
        Some(ratio(rank - before, count - before).map_or(bound, |share| below + (bound - below) * share))
    }

    /// The upper bound of the first bucket: what lies below it cannot be told apart.
    pub fn resolution(&self) -> Option<f64> {
        self.buckets.first().map(|(bound, _)| *bound)
    }

    /// The mean of all observations.
    pub fn mean(&self) -> Option<f64> {
        ratio(self.sum, self.count)
    }
}
