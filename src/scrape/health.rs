//! What of an upstream's state is worth a log line, and when: each change, and never a line for each scrape, not even where
//! the state changes with each.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

/// A reason that was told is not told again for this long, however often the upstream comes and goes meanwhile.
const QUIET: Duration = Duration::from_secs(60);

/// What was seen of an upstream so far.
#[derive(Debug, Default)]
pub(super) struct Health {
    answered: bool,
    failed: u64,
    /// Reasons told since it last answered.
    told: BTreeSet<&'static str>,
    /// When each reason was last told.
    last: BTreeMap<&'static str, Instant>,
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It answers, after this many failed fetches.
    Up {
        /// Failed fetches since it was last told that it answers.
        failed: u64,
    },
    /// It fails, or fails for a reason that this outage has not seen before.
    Down,
}

impl Health {
    /// Takes note of one fetch, `Err` with the reason of its failure.
    pub(super) fn note(&mut self, result: Result<(), &'static str>, now: Instant) -> Option<Change> {
        match result {
            Ok(()) => {
                let untold = !std::mem::replace(&mut self.answered, true);
                let failing = !std::mem::take(&mut self.told).is_empty();
                (untold || failing).then(|| Change::Up { failed: std::mem::take(&mut self.failed) })
            }
            Err(reason) => {
                self.failed += 1;
                let lately = self.last.get(reason).is_some_and(|at| now.duration_since(*at) < QUIET);
                if lately || !self.told.insert(reason) {
                    return None;
                }
                self.last.insert(reason, now);
                Some(Change::Down)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(
        health: &mut Health,
        seconds: u64,
        result: impl Fn(u64) -> Result<(), &'static str>,
    ) -> Vec<(u64, Change)> {
        let began = Instant::now();
        let at = |second| began + Duration::from_secs(second);
        (0..seconds).filter_map(|second| Some((second, health.note(result(second), at(second))?))).collect()
    }

    #[test]
    fn an_outage_is_one_line_a_reason_and_one_at_its_end() {
        let now = Instant::now();
        let mut health = Health::default();
        assert_eq!(health.note(Ok(()), now), Some(Change::Up { failed: 0 }));
        assert_eq!(health.note(Ok(()), now), None);
        assert_eq!(health.note(Err("connect"), now), Some(Change::Down));
        assert_eq!(health.note(Err("connect"), now), None);
        assert_eq!(health.note(Err("status"), now), Some(Change::Down));
        assert_eq!(health.note(Err("connect"), now), None);
        assert_eq!(health.note(Ok(()), now), Some(Change::Up { failed: 4 }));
        assert_eq!(health.note(Err("connect"), now + QUIET), Some(Change::Down));
    }

    #[test]
    fn a_dead_upstream_scraped_each_second_for_a_day_is_one_line() {
        assert_eq!(lines(&mut Health::default(), 86_400, |_| Err("connect")), [(0, Change::Down)]);
    }

    #[test]
    fn an_upstream_that_comes_and_goes_each_second_is_told_once_a_minute() {
        let mut health = Health::default();
        let told = lines(&mut health, 600, |second| if second % 2 == 0 { Err("reset") } else { Ok(()) });
        let first =
            [(0, Change::Down), (1, Change::Up { failed: 1 }), (60, Change::Down), (61, Change::Up { failed: 30 })];
        assert_eq!(told[..4], first);
        assert_eq!(told.len(), 20);
    }
}
