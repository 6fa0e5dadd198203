//! Resets of the tier that a page counts, held against those that its stream announced. Pure.
//!
//! The page counts a call once it is answered, the stream announces it with the engine's next step: whichever comes
//! first is remembered until the other one is there. A clear is remembered for two scrapes only, since clears that no
//! page counts must not stand for a reset that nobody announced.

/// The account of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Resets {
    /// Resets of the page, and clears of the stream, at the last scrape.
    counted: f64,
    clears: u64,
    /// Clears that no reset belongs to so far: those that came since the scrape before, and earlier ones.
    fresh: u64,
    stale: u64,
    /// The page has counted a reset of which no clear has come.
    owed: bool,
}

impl Resets {
    /// So many resets a page may count when the stream has shown so many clears.
    pub(super) fn announced(&self, clears: u64) -> f64 {
        self.counted + (self.fresh + self.stale + self.come(clears)) as f64
    }

    /// Takes in what page and stream have counted. Whether the page has counted more than was announced.
    pub(super) fn note(&mut self, counted: f64, clears: u64) -> bool {
        let come = self.come(clears);
        // The counters of an engine that restarts begin anew.
        let mut risen = (counted - self.counted).max(0.0) as u64;
        let doubt = counted > self.announced(clears);
        let Resets { fresh, stale, .. } = *self;
        let mut take = |have: u64| {
            let taken = have.min(risen);
            risen -= taken;
            have - taken
        };
        let (_, stale, fresh) = (take(stale), take(fresh), take(come));
        let owed = doubt || self.owed && clears == self.clears;
        *self = Resets { counted, clears, fresh, stale, owed };
        doubt
    }

    /// No clear is to come for what was counted: it may have come long before.
    pub(super) fn settle(&mut self) {
        self.owed = false;
    }

    /// Clears since the last scrape, but for the one that a reset was waiting for: it settles all that the page counted
    /// before.
    fn come(&self, clears: u64) -> u64 {
        let come = clears.saturating_sub(self.clears);
        if self.owed { come.saturating_sub(1) } else { come }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each scrape, of so many resets and so many clears, is in doubt.
    fn doubts(scrapes: &[(u32, u64)]) -> Vec<bool> {
        let mut resets = Resets::default();
        scrapes.iter().map(|(counted, clears)| resets.note(f64::from(*counted), *clears)).collect()
    }

    #[test]
    fn a_reset_is_announced_before_it_is_counted_or_after() {
        // The clear comes with the step that is under way, the answer to the call a moment later.
        assert_eq!(doubts(&[(0, 0), (0, 1), (1, 1)]), [false; 3]);
        assert_eq!(doubts(&[(0, 0), (1, 1)]), [false; 2]);
        // An idle engine announces it with its next step. That clear is used up then.
        assert_eq!(doubts(&[(0, 0), (1, 0), (1, 0), (1, 1), (2, 1)]), [false, true, false, false, true]);
    }

    #[test]
    fn one_clear_settles_all_resets_that_were_counted_before_it() {
        assert_eq!(doubts(&[(0, 0), (2, 0), (3, 0), (3, 1), (4, 2)]), [false, true, true, false, false]);
    }

    #[test]
    fn clears_that_nobody_counted_do_not_stand_for_a_reset_long_after() {
        assert_eq!(doubts(&[(0, 0), (0, 1), (0, 1), (1, 1)]), [false; 4]);
        assert_eq!(doubts(&[(0, 0), (0, 1), (0, 1), (0, 1), (1, 1)]), [false, false, false, false, true]);
    }

    #[test]
    fn a_stream_from_the_start_has_to_have_announced_all() {
        assert_eq!(doubts(&[(1, 1)]), [false]);
        assert_eq!(doubts(&[(1, 0)]), [true]);
        // The page begins anew.
        assert_eq!(doubts(&[(3, 3), (0, 3), (1, 3)]), [false, false, true]);
    }
}
