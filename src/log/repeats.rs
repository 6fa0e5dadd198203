//! Lines that whoever is on the other side can cause as often as it likes: the first is written, those after it are counted, and the
//! count is written once an [`INTERVAL`]. Pure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The least time between two lines of a kind.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// What was written of each kind, and what was not.
#[derive(Debug, Default)]
pub struct Repeats {
    kinds: BTreeMap<&'static str, Kind>,
}

#[derive(Debug, Default)]
struct Kind {
    written: Option<Instant>,
    left_out: u64,
}

impl Kind {
    fn may_write(&self, now: Instant) -> bool {
        self.written.is_none_or(|written| now.duration_since(written) >= INTERVAL)
    }
}

impl Repeats {
    /// Whether a line of this kind is to be written now, and how many were left out before it.
    pub fn write(&mut self, kind: &'static str, now: Instant) -> Option<u64> {
        let known = self.kinds.entry(kind).or_default();
        if !known.may_write(now) {
            known.left_out += 1;
            return None;
        }
        known.written = Some(now);
        Some(std::mem::take(&mut known.left_out))
    }

    /// The kinds of which lines were left out for an interval and none has come since to say so, with how many.
    pub fn unsaid(&mut self, now: Instant) -> Vec<(&'static str, u64)> {
        let kinds = self.kinds.iter_mut().filter(|(_, known)| known.left_out > 0 && known.may_write(now));
        kinds
            .map(|(kind, known)| {
                known.written = Some(now);
                (*kind, std::mem::take(&mut known.left_out))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_lines_in_a_minute_are_one_and_a_count() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(repeats.write("a", at(0)), Some(0));
        for _ in 0..1_000_000 {
            assert_eq!(repeats.write("a", at(59)), None);
        }
        assert_eq!(repeats.write("b", at(59)), Some(0), "another kind is no repetition");
        assert_eq!(repeats.unsaid(at(59)), []);
        assert_eq!(repeats.write("a", at(60)), Some(1_000_000));
        assert_eq!(repeats.write("a", at(61)), None);
        assert_eq!(repeats.unsaid(at(119)), []);
        assert_eq!(repeats.unsaid(at(120)), [("a", 1)]);
        assert_eq!(repeats.unsaid(at(900)), [], "once");
        assert_eq!(repeats.write("a", at(900)), Some(0));
    }
}
