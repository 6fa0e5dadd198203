//! What a tier of another size would have reloaded: distances gathered in a [`Curve`], and a window over it. Pure.
//!
//! A curve only grows; what happened in a window is the difference of two [`Mark`]s, each taken at a scrape together
//! with what the engine's page said then. Stream and page need no common clock for that.

use std::collections::VecDeque;

use crate::model::ratio;

/// Sizes that are told of, as multiples of the present one, with their label.
pub const MULTIPLES: [(f64, &str); 5] = [(0.5, "0.5"), (1.0, "1"), (1.5, "1.5"), (2.0, "2"), (4.0, "4")];

/// Distances below this have a bucket each; above, each doubling has [`STEPS`] of them.
const SINGLE: u64 = 64;
const STEPS: u64 = 32;
const BUCKETS: usize = (SINGLE + STEPS * 27) as usize;

const NOT_FAR_ENOUGH: &str = "the stream has not been followed for long enough to look back over a whole tier";

/// Marks in a window: more would only cost memory.
const MARKS: usize = 128;

/// Bytes of a full window: two curves for each mark.
pub const WINDOW_BYTES: usize = MARKS * 2 * BUCKETS * size_of::<f64>();

/// How often each distance was seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    buckets: Vec<f64>,
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { buckets: vec![0.0; BUCKETS] }
    }
}

impl Curve {
    /// Counts one use `weight` times, `distance` chunks after the last one.
    pub fn count(&mut self, distance: u64, weight: f64) {
        self.buckets[bucket(distance)] += weight;
    }

    /// Uses at a distance below `chunks`: the hits of a tier of that size.
    pub fn below(&self, chunks: f64) -> f64 {
        let last = bucket(chunks.max(0.0) as u64);
        let (start, end) = (start_of(last) as f64, start_of(last + 1) as f64);
        let part = ((chunks - start) / (end - start)).clamp(0.0, 1.0);
        self.buckets[..last].iter().sum::<f64>() + self.buckets[last] * part
    }
}

fn bucket(distance: u64) -> usize {
    if distance < SINGLE {
        return distance as usize;
    }
    let doublings = u64::from(distance.ilog2() - SINGLE.ilog2());
    let step = (distance >> (doublings + u64::from((SINGLE / STEPS).ilog2()))) - STEPS;
    ((SINGLE + doublings * STEPS + step) as usize).min(BUCKETS - 1)
}

fn start_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SINGLE {
        return bucket;
    }
    let (doublings, step) = ((bucket - SINGLE) / STEPS, (bucket - SINGLE) % STEPS);
    (STEPS + step) << (doublings + u64::from((SINGLE / STEPS).ilog2()))
}

/// Everything that the stream told about sizes since the fold began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gauge {
    /// Distances of what was asked of the tier.
    pub uses: Curve,
    /// Depths of the evicted chunks that were asked for again.
    pub returns: Curve,
    /// Blocks that entered the GPU pool, all of them.
    pub entered: f64,
    /// The same number as the sample makes it.
    pub entered_sampled: f64,
    /// Chunks that the replay can look back upon.
    pub reach: f64,
    /// Nothing before the fold's begin matters: the tier was empty then.
    pub whole: bool,
    /// Times that the replay has begun anew: what it counted before and after is not of one list.
    pub begun: u64,
    /// Tokens of one chunk, where known.
    pub chunk_tokens: Option<f64>,
    /// The engine has several KV cache groups.
    pub several_groups: bool,
}

/// Stream and page at one scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Mark {
    /// The stream's time, in seconds.
    pub at: f64,
    /// Tokens asked of the connector since engine start.
    pub asked: f64,
    /// Tokens that it supplied.
    pub supplied: f64,
    /// What the stream had told.
    pub gauge: Gauge,
}

/// What a window tells.
#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    /// Share of the tokens asked that a tier of each of [`MULTIPLES`] would reload; `None` where the replay cannot
    /// look back far enough.
    pub shares: [Option<f64>; MULTIPLES.len()],
    /// The same from the evicted chunks and what was measured: for larger sizes only.
    pub by_returns: [Option<f64>; MULTIPLES.len()],
    /// Share that was reloaded.
    pub measured: f64,
    /// Share predicted at the present size, less what was measured.
    pub error: f64,
    /// Tokens asked in the window.
    pub asked: f64,
    /// Length of the window in the stream's time, in seconds.
    pub seconds: f64,
}

impl Prediction {
    /// Whether the curve may be shown: at the present size it says what was measured.
    pub fn holds(&self, most: f64) -> bool {
        self.error.abs() <= most
    }

    /// Says nothing of sizes below the present one.
    pub fn leave_out_smaller(&mut self) {
        for ((multiple, _), share) in MULTIPLES.iter().zip(&mut self.shares) {
            *share = share.filter(|_| *multiple >= 1.0);
        }
    }

    /// Tokens an hour that each size would reload more than the present one, at the window's pace.
    pub fn worth(&self) -> [Option<f64>; MULTIPLES.len()] {
        let present = MULTIPLES.iter().position(|(multiple, _)| *multiple == 1.0).and_then(|at| self.shares[at]);
        let pace = ratio(self.asked, self.seconds);
        self.shares.map(|share| Some((share? - present?) * pace? * 3600.0))
    }

    /// Predicts for a tier of so many chunks at present.
    ///
    /// # Errors
    /// Why nothing can be said.
    pub fn between(old: &Mark, new: &Mark, slots: f64) -> Result<Prediction, &'static str> {
        let asked = new.asked - old.asked;
        let measured = ratio(new.supplied - old.supplied, asked).filter(|_| asked > 0.0);
        let measured = measured.ok_or("the connector was asked for nothing in the window")?;
        let tokens = new.gauge.chunk_tokens.ok_or("no chunk was seen yet whose tokens are known")?;
        if new.gauge.several_groups {
            return Err("the model has several KV cache groups, which share the slots");
        }
        let share = |chunks: f64| chunks * tokens / asked;
        // A sample that holds too many of the blocks holds too many hits.
        let scale = ratio(new.gauge.entered - old.gauge.entered, new.gauge.entered_sampled - old.gauge.entered_sampled);
        let scale = scale.unwrap_or(1.0);
        let hits = |chunks: f64| (new.gauge.uses.below(chunks) - old.gauge.uses.below(chunks)) * scale;
        let returned = |chunks: f64| (new.gauge.returns.below(chunks) - old.gauge.returns.below(chunks)) * scale;
        let sees = |chunks: f64| new.gauge.whole || old.gauge.reach >= chunks;
        let at = |multiple: f64| sees(multiple * slots).then(|| share(hits(multiple * slots)));
        let beyond = |multiple: f64| {
            // Depths count from 1: the last one evicted is a hit with one chunk more.
            let more = (multiple - 1.0) * slots;
            (more > 0.0 && sees(multiple * slots)).then(|| measured + share(returned(more + 1.0)))
        };
        Ok(Prediction {
            shares: MULTIPLES.map(|(multiple, _)| at(multiple)),
            by_returns: MULTIPLES.map(|(multiple, _)| beyond(multiple)),
            measured,
            error: at(1.0).ok_or(NOT_FAR_ENOUGH)? - measured,
            asked,
            seconds: new.at - old.at,
        })
    }
}

/// The marks of a sliding window.
#[derive(Debug, Default)]
pub struct Window {
    marks: VecDeque<Mark>,
}

impl Window {
    /// Whether there is no mark.
    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Adds a mark; forgets those that are older than `seconds` before it, and all of them where a counter fell, since then
    /// the engine has restarted, where its clock was set back, or where the replay began anew.
    pub fn push(&mut self, mark: Mark, seconds: f64) {
        let fell = |old: &Mark| {
            mark.at < old.at
                || mark.asked < old.asked
                || mark.supplied < old.supplied
                || mark.gauge.entered < old.gauge.entered
                || mark.gauge.begun != old.gauge.begun
        };
        if self.marks.back().is_some_and(fell) {
            self.marks.clear();
        }
        while self.marks.get(1).is_some_and(|second| second.at < mark.at - seconds) {
            self.marks.pop_front();
        }
        // The newest always gives way to a newer one until it stands far enough from the one before it.
        let close = seconds / (MARKS as f64 - 2.0);
        if self.marks.len() >= 2 && mark.at - self.marks[self.marks.len() - 2].at < close {
            self.marks.pop_back();
        }
        self.marks.push_back(mark);
    }

    /// What the window tells for a tier of so many chunks.
    ///
    /// # Errors
    /// Why it tells nothing.
    pub fn predict(&self, slots: f64) -> Result<Prediction, &'static str> {
        let last = self.marks.back().ok_or("no scrape has met the stream yet")?;
        // It begins where the replay could look back far enough for the present size.
        let sees = |mark: &&Mark| last.gauge.whole || mark.gauge.reach >= slots;
        let first = self.marks.iter().position(|mark| sees(&mark)).filter(|at| *at == 0 || *at + 1 < self.marks.len());
        let first = first.and_then(|at| self.marks.get(at)).ok_or(NOT_FAR_ENOUGH)?;
        Prediction::between(first, last, slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_hole() {
        let mut last = 0;
        for distance in 0..100_000 {
            let at = bucket(distance);
            assert!(at == last || at == last + 1, "{distance}");
            assert!(start_of(at) <= distance && distance < start_of(at + 1), "{distance}");
            last = at;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_window_does_not_reach_back_over_a_clock_that_was_set_back() {
        let mark =
            |at: f64, asked: f64| Mark { at, asked, supplied: 0.0, gauge: Gauge { whole: true, ..Gauge::default() } };
        let mut window = Window::default();
        for mark in [mark(1000.0, 0.0), mark(1010.0, 100.0), mark(40.0, 200.0)] {
            window.push(mark, 3600.0);
        }
        assert!(window.predict(4.0).is_err(), "a window of -960 seconds");
        window.push(
            Mark { gauge: Gauge { chunk_tokens: Some(16.0), ..mark(0.0, 0.0).gauge }, ..mark(140.0, 300.0) },
            3600.0,
        );
        assert_eq!(window.predict(4.0).map(|told| (told.asked, told.seconds)), Ok((100.0, 100.0)));
    }

    #[test]
    fn a_window_does_not_reach_back_over_a_replay_that_began_anew() {
        let gauge = |begun| Gauge { begun, chunk_tokens: Some(16.0), reach: 100.0, ..Gauge::default() };
        let mark = |at: f64, begun| Mark { at, asked: at, supplied: 0.0, gauge: gauge(begun) };
        let mut window = Window::default();
        for mark in [mark(0.0, 0), mark(100.0, 0), mark(200.0, 1)] {
            window.push(mark, 3600.0);
        }
        assert!(window.predict(4.0).is_err(), "what was used before is not in the list");
        window.push(mark(300.0, 1), 3600.0);
        assert_eq!(window.predict(4.0).map(|told| told.seconds), Ok(100.0));
    }

    #[test]
    fn a_curve_counts_what_lies_below_a_size() {
        let mut curve = Curve::default();
        // Buckets at 1000 are 16 wide: 992 to 1007.
        for (distance, weight) in [(0, 1.0), (63, 2.0), (1000, 4.0), (5000, 8.0)] {
            curve.count(distance, weight);
        }
        assert_eq!([0.0, 1.0, 63.0, 64.0].map(|size| curve.below(size)), [0.0, 1.0, 1.0, 3.0]);
        assert_eq!([992.0, 1000.0, 1008.0, 1e9].map(|size| curve.below(size)), [3.0, 5.0, 7.0, 15.0]);
    }
}
