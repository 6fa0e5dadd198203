//! Resets of the tier that a page counts, held against those that its stream announced. Pure.
//!
//! The page counts a call once it is answered, the stream announces it with the engine's next step: whichever comes
//! first is remembered until the other one is there. A clear is remembered for some seconds only, since clears that no
//! page counts must not stand for a reset that nobody announced.

/// How long after a clear was seen the page may count its reset, in seconds.
const ANSWERED: f64 = 5.0;

/// The account of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Resets {
    /// Resets of the page, and clears of the stream, at the last scrape.
    counted: f64,
    clears: u64,
    /// Clears that no reset belongs to so far, and when the last of them was seen.
    spare: u64,
    seen: f64,
    /// The page has counted a reset of which no clear has come.
    owed: bool,
}

impl Resets {
    /// So many resets a page may count when the stream has shown so many clears, at this time.
    pub(super) fn announced(&self, clears: u64, now: f64) -> f64 {
        self.counted + self.unclaimed(clears, now) as f64
    }

    /// Resets of the page at the last scrape.
    pub(super) fn counted(&self) -> f64 {
        self.counted
    }

    /// Takes in what page and stream have counted by now. Whether the page has counted more than was announced.
    pub(super) fn note(&mut self, counted: f64, clears: u64, now: f64) -> bool {
        // Counters that begin anew do not tell which of the resets that they count now are known.
        let anew = counted > 0.0 && counted < self.counted;
        let doubt = anew || counted > self.announced(clears, now);
        let risen = (counted - self.counted).max(0.0) as u64;
        let spare = self.unclaimed(clears, now).saturating_sub(risen);
        let seen = if clears == self.clears { self.seen } else { now };
        let owed = doubt || self.owed && clears == self.clears;
        *self = Resets { counted, clears, spare, seen, owed };
        doubt
    }

    fn unclaimed(&self, clears: u64, now: f64) -> u64 {
        let before = if now - self.seen > ANSWERED { 0 } else { self.spare };
        before + self.come(clears)
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

    /// Whether each scrape, a second after the one before, of so many resets and so many clears, is in doubt.
    fn doubts(scrapes: &[(u32, u64)]) -> Vec<bool> {
        let mut resets = Resets::default();
        let at = |(at, (counted, clears)): (usize, &(u32, u64))| resets.note(f64::from(*counted), *clears, at as f64);
        scrapes.iter().enumerate().map(at).collect()
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
        let after = |seconds: usize| doubts(&[&[(0, 0), (0, 1)][..], &vec![(0, 1); seconds - 1], &[(1, 1)]].concat());
        assert!(after(5).iter().all(|doubt| !doubt));
        assert_eq!(after(6).last(), Some(&true));
    }

    #[test]
    fn a_stream_from_the_start_has_to_have_announced_all() {
        assert_eq!(doubts(&[(1, 1)]), [false]);
        assert_eq!(doubts(&[(1, 0)]), [true]);
        // The page begins anew.
        assert_eq!(doubts(&[(3, 3), (0, 3), (1, 3)]), [false, false, true]);
        // It has, and one was counted before the next scrape: nobody announced that one.
        assert_eq!(doubts(&[(3, 3), (1, 3), (1, 3)]), [false, true, false]);
    }
}
