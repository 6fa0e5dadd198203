//! Which chunks are in the tier: a fold over its events, with all that they leave open. Pure; no clock of its own.
//!
//! Stored and removed are said; a reset is not. The GPU pool says when it is cleared, and the tier may have been
//! cleared with it or not; the tier alone may be cleared without a word. What happened is told by what follows,
//! since a chunk in the tier is never stored again and only a chunk in the tier can be removed.
//!
//! The history is cut into **eras** by what is not known at their borders ([`Border`]). A chunk belongs to the era
//! in which it was stored; it is surely there while every border since is closed. Two numbers bound the truth: the
//! chunks that are surely there, and those that may be.

use super::identity::{Key, Map, Sampling, map_bytes};

/// What may have happened between two eras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Border {
    /// The GPU pool was cleared, the tier perhaps with it.
    Cleared,
    /// The era before it is the batch of a clear: whether its stores came before or after is not known.
    Fog,
    /// Batches were lost.
    Gap,
    /// Nothing: the tier was left alone.
    Closed,
}

/// What became of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reset {
    /// The GPU pool alone was cleared.
    Gpu,
    /// The tier was cleared too, as a clear of the GPU pool announced.
    Tier,
    /// The tier was cleared without any word.
    Silent,
    /// Nothing that followed told.
    Unknown,
}

impl Reset {
    /// All kinds with their names.
    pub const NAMED: [(Reset, &str); 4] =
        [(Reset::Gpu, "gpu"), (Reset::Tier, "tier"), (Reset::Silent, "silent"), (Reset::Unknown, "unknown")];
}

/// What a store or a removal did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Effect {
    /// The tier was emptied before: with the last clear, or silently just before this batch.
    pub(super) emptied: Option<Reset>,
    /// Seconds since the store of the chunk that was removed, where that is known.
    pub(super) age: Option<f64>,
}

/// The bounds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Chunks that are surely in the tier.
    pub sure: u64,
    /// These, and the ones that may or may not be.
    pub possible: u64,
    /// There may be chunks that were never announced to us.
    pub strangers: bool,
    /// A chunk was evicted, and nothing may have emptied the tier since: it is full but for stores under way.
    pub full: bool,
}

impl Bounds {
    /// Whether the number of chunks is known to the last one.
    pub fn is_exact(&self) -> bool {
        self.sure == self.possible && !self.strangers
    }
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    era: u32,
    /// Ticks since the fold began.
    stored: u32,
}

/// Ages are kept in steps of 1/64 second, which lasts for two years.
const TICKS: f64 = 64.0;

/// The chunks of one engine's tier.
#[derive(Debug)]
pub(super) struct Residency {
    chunks: Map<Chunk>,
    /// Chunks of each era, the present one last; also those that are not in `chunks` because of sampling.
    counts: Vec<u64>,
    /// `borders[i]` lies between era i and era i + 1.
    borders: Vec<Border>,
    strangers: bool,
    /// A chunk was removed that we did not know.
    strangers_left: bool,
    full: bool,
    /// In the batch at hand: what it stored, and whether it holds a clear.
    fresh: Vec<Key>,
    stored_now: u64,
    clearing: bool,
    at: f64,
    origin: Option<f64>,
    sampling: Sampling,
    resets: Vec<Reset>,
}

impl Residency {
    /// An empty tier; or, where `strangers`, one of which nothing is known yet.
    pub(super) fn new(strangers: bool) -> Residency {
        Residency {
            chunks: Map::default(),
            counts: vec![0],
            borders: Vec::new(),
            strangers,
            strangers_left: false,
            full: false,
            fresh: Vec::new(),
            stored_now: 0,
            clearing: false,
            at: 0.0,
            origin: None,
            sampling: Sampling::default(),
            resets: Vec::new(),
        }
    }

    /// A batch of that time begins.
    pub(super) fn begin(&mut self, at: f64) {
        self.at = at;
        self.origin.get_or_insert(at);
        self.fresh.clear();
        self.stored_now = 0;
        if std::mem::take(&mut self.clearing) {
            self.cut(Border::Fog);
        }
        self.forget_empty_eras();
    }

    /// The GPU pool was cleared.
    pub(super) fn cleared(&mut self) {
        self.full = false;
        if !self.clearing {
            self.clearing = true;
            self.cut(Border::Cleared);
        }
    }

    /// Batches were lost: anything may have happened to what was there, and anything may have come.
    pub(super) fn lost(&mut self) {
        self.cut(Border::Gap);
        self.strangers = true;
        self.strangers_left = true;
        self.full = false;
    }

    /// So many chunks fit: where all of them are known, there are no strangers. Whether this shows that there never
    /// were any: none was removed either.
    pub(super) fn fits(&mut self, slots: u64) -> bool {
        let complete = self.strangers && self.bounds().sure >= slots;
        self.strangers &= !complete;
        complete && !self.strangers_left
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.chunks.contains_key(&key)
    }

    /// The chunk is in the tier from now on.
    pub(super) fn stored(&mut self, key: Key) -> Effect {
        let known = self.chunks.get(&key).filter(|_| !self.fresh.contains(&key)).map(|chunk| chunk.era as usize);
        let emptied = known.and_then(|era| self.judge_store(era));
        self.insert(key);
        Effect { emptied, age: None }
    }

    /// The chunk has left the tier.
    pub(super) fn removed(&mut self, key: Key) -> Effect {
        self.full = !self.clearing;
        if let Some(chunk) = self.chunks.remove(&key) {
            self.uncount(chunk.era as usize);
            if !self.clearing {
                self.judge_removal(chunk.era as usize);
            }
            let age = f64::from(self.ticks().saturating_sub(chunk.stored)) / TICKS;
            return Effect { emptied: None, age: Some(age) };
        }
        if self.sampling.takes(key) {
            self.strangers_left = true;
        } else {
            self.remove_unseen();
        }
        Effect::default()
    }

    pub(super) fn bounds(&self) -> Bounds {
        let possible = self.counts.iter().sum();
        let sure = self.counts[self.sure_from()..].iter().sum();
        Bounds { sure, possible, strangers: self.strangers, full: self.full }
    }

    /// Resets that were judged since the last call.
    pub(super) fn take_resets(&mut self) -> Vec<Reset> {
        std::mem::take(&mut self.resets)
    }

    /// Keeps only the chunks of this sampling as such; the others are counted on.
    pub(super) fn sample(&mut self, sampling: Sampling) {
        self.sampling = sampling;
        self.chunks.retain(|key, _| sampling.takes(*key));
    }

    pub(super) fn bytes(&self, more: usize) -> usize {
        map_bytes(&self.chunks, more)
    }

    fn insert(&mut self, key: Key) {
        let era = self.counts.len() - 1;
        if self.sampling.takes(key) {
            let stored = self.ticks();
            if let Some(before) = self.chunks.insert(key, Chunk { era: era as u32, stored }) {
                self.uncount(before.era as usize);
            }
            self.fresh.push(key);
        }
        self.counts[era] += 1;
        self.stored_now += 1;
    }

    fn ticks(&self) -> u32 {
        ((self.at - self.origin.unwrap_or(self.at)) * TICKS) as u32
    }

    fn uncount(&mut self, era: usize) {
        self.counts[era] = self.counts[era].saturating_sub(1);
    }

    /// A removed chunk that is not kept as such: of the present era if that has any, else of the last one that has.
    fn remove_unseen(&mut self) {
        if let Some(era) = self.counts.iter().rposition(|count| *count > 0) {
            self.uncount(era);
        }
    }

    fn cut(&mut self, border: Border) {
        self.borders.push(border);
        self.counts.push(0);
    }

    /// The first era of which every later border is closed.
    fn sure_from(&self) -> usize {
        self.borders.iter().rposition(|border| *border != Border::Closed).map_or(0, |border| border + 1)
    }

    /// A chunk of this era that was held for resident is stored again, so it was not there: the reset that this
    /// tells of, if it tells of one.
    fn judge_store(&mut self, era: usize) -> Option<Reset> {
        let since = &self.borders[era..];
        let first = since.iter().find(|border| **border != Border::Closed);
        let reset = match first {
            // What came beside a clear proves nothing.
            _ if self.clearing => return None,
            // Its own store may lie beside the clear, or its removal among what was lost.
            Some(Border::Fog | Border::Gap) => return None,
            Some(_) if since.contains(&Border::Gap) => return None,
            Some(_) => Reset::Tier,
            None => Reset::Silent,
        };
        match reset {
            Reset::Tier => self.empty_since(era),
            _ => self.empty_silently(),
        }
        self.resets.push(reset);
        Some(reset)
    }

    /// No chunk from before the first open border since this era is there.
    fn empty_since(&mut self, era: usize) {
        let open = self.borders[era..].iter().position(|border| *border != Border::Closed);
        let last = era + open.unwrap_or(0);
        self.chunks.retain(|_, chunk| chunk.era as usize > last);
        self.counts[..=last].fill(0);
        self.borders[..=last].fill(Border::Closed);
        self.strangers = false;
    }

    /// Nothing is there but what this batch stored.
    fn empty_silently(&mut self) {
        let fresh: Vec<(Key, Chunk)> =
            self.fresh.iter().filter_map(|key| Some((*key, *self.chunks.get(key)?))).collect();
        self.chunks.clear();
        self.borders.clear();
        self.counts = vec![self.stored_now];
        self.chunks.extend(fresh.into_iter().map(|(key, chunk)| (key, Chunk { era: 0, ..chunk })));
        self.strangers = false;
        self.full = false;
    }

    /// A chunk of this era is removed, so it was there: the tier was left alone since.
    fn judge_removal(&mut self, era: usize) {
        let since = &mut self.borders[era..];
        // A chunk out of the fog may have been stored after the reset.
        if since.iter().find(|border| **border != Border::Closed) == Some(&Border::Fog) {
            return;
        }
        for border in since.iter_mut().filter(|border| matches!(border, Border::Cleared | Border::Fog)) {
            if *border == Border::Cleared {
                self.resets.push(Reset::Gpu);
            }
            *border = Border::Closed;
        }
    }

    /// Borders with nothing before them matter no more.
    fn forget_empty_eras(&mut self) {
        let present = self.counts.len() - 1;
        let empty = self.counts[..present].iter().take_while(|count| **count == 0).count();
        if empty == 0 {
            return;
        }
        let gone = self.borders.drain(..empty).filter(|border| *border == Border::Cleared).count();
        self.resets.extend(std::iter::repeat_n(Reset::Unknown, gone));
        self.counts.drain(..empty);
        self.chunks.values_mut().for_each(|chunk| chunk.era = chunk.era.saturating_sub(empty as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches, each a text of events: `+a` stored, `-a` removed, `!` GPU pool cleared; `?` batches lost before it.
    fn told(residency: &mut Residency, batches: &[&str]) {
        for batch in batches {
            if batch.starts_with('?') {
                residency.lost();
            }
            residency.begin(0.0);
            for event in batch.split(' ') {
                let key = event.bytes().last().map_or(0, u64::from);
                match event.as_bytes().first() {
                    Some(b'+') => drop(residency.stored(key)),
                    Some(b'-') => drop(residency.removed(key)),
                    Some(b'!') => residency.cleared(),
                    _ => {}
                }
            }
        }
    }

    /// Sure and possible chunks, and whether there may be strangers, after these batches.
    fn after(batches: &[&str]) -> (u64, u64, bool) {
        let mut residency = Residency::new(false);
        told(&mut residency, batches);
        let Bounds { sure, possible, strangers, .. } = residency.bounds();
        (sure, possible, strangers)
    }

    fn resets(batches: &[&str]) -> Vec<Reset> {
        let mut residency = Residency::new(false);
        told(&mut residency, batches);
        residency.take_resets()
    }

    #[test]
    fn stores_and_removals_count() {
        assert_eq!(after(&["+a +b", "-a", "+c"]), (2, 2, false));
    }

    #[test]
    fn a_clear_leaves_open_what_was_there_until_something_tells() {
        assert_eq!(after(&["+a +b", "!", "+c"]), (1, 3, false));
        // A chunk from before comes again: the tier was emptied. One is removed: it was not.
        assert_eq!(after(&["+a +b", "!", "+c", "+a"]), (2, 2, false));
        assert_eq!(after(&["+a +b", "!", "+c", "-a"]), (2, 2, false));
        assert_eq!(resets(&["+a +b", "!", "+a"]), [Reset::Tier]);
        assert_eq!(resets(&["+a +b", "!", "-a"]), [Reset::Gpu]);
    }

    #[test]
    fn what_comes_in_the_batch_of_a_clear_proves_nothing() {
        // c may have been stored before the reset or after it; a and b are as open as before.
        assert_eq!(after(&["+a +b", "! -a +c", "+d"]), (1, 3, false));
        assert_eq!(after(&["+a +b", "! -a +c", "+b"]), (1, 2, false));
        assert_eq!(after(&["+a +b", "! -a +c", "-b"]), (1, 1, false));
        assert_eq!(resets(&["+a", "! -a"]), []);
    }

    #[test]
    fn of_two_clears_the_evidence_decides_what_it_can() {
        // a was there before both, b between them.
        let open = ["+a", "!", "+b", "!", "+c"];
        assert_eq!(after(&open), (1, 3, false));
        let then = |last| after(&[&open[..], &[last]].concat());
        // a comes again: one of the two emptied the tier, so b is still open.
        assert_eq!(then("+a"), (2, 3, false));
        // b comes again: the second one did, and a is gone with it.
        assert_eq!(then("+b"), (2, 2, false));
        // b is removed: the second one did not; a is still open. a is removed: neither did.
        assert_eq!(then("-b"), (1, 2, false));
        assert_eq!(then("-a"), (2, 2, false));
    }

    #[test]
    fn a_clear_of_an_empty_tier_is_never_judged() {
        assert_eq!(resets(&["!", "+a"]), [Reset::Unknown]);
        assert_eq!(after(&["!", "+a"]), (1, 1, false));
    }

    #[test]
    fn a_chunk_that_comes_again_without_a_clear_tells_of_a_silent_reset() {
        assert_eq!(after(&["+a +b +c", "+d +a +e"]), (3, 3, false));
        assert_eq!(resets(&["+a", "+a"]), [Reset::Silent]);
        // The same chunk twice in one batch is one chunk, and no reset.
        assert_eq!((after(&["+a +a"]), resets(&["+a +a"])), ((1, 1, false), vec![]));
    }

    #[test]
    fn after_a_gap_each_chunk_speaks_for_itself() {
        assert_eq!(after(&["+a +b", "? +c"]), (1, 3, true));
        assert_eq!(after(&["+a +b", "? +c", "+a"]), (2, 3, true));
        assert_eq!(after(&["+a +b", "? +c", "-a"]), (1, 2, true));
        assert_eq!(resets(&["+a +b", "? +c", "+a", "-b"]), []);
        // A reset after the gap that is judged empties the tier of strangers too.
        assert_eq!(after(&["+a", "? +c", "!", "+d", "+c"]), (2, 2, false));
    }

    #[test]
    fn strangers_are_gone_once_every_slot_is_known() {
        let mut residency = Residency::new(true);
        told(&mut residency, &["+a +b"]);
        assert!(!residency.fits(3) && residency.bounds().strangers);
        told(&mut residency, &["+c"]);
        assert!(residency.fits(3), "none was ever removed, so there were none");
        assert!(residency.bounds().is_exact());
        let mut residency = Residency::new(true);
        told(&mut residency, &["+a -x +b"]);
        assert!(!residency.fits(2), "there was one, and it has left");
        assert!(residency.bounds().is_exact());
    }
}
