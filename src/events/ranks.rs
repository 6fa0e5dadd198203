//! Things in the order of their last use, and how many are newer than one of them.
//!
//! Places are handed out in rising order and never reused until [`Ranks::settle`] moves all that is left together.
//! A bit says whether a place is taken; a count for each 4096 places makes asking cheap and keeps moving at a few
//! instructions, since things move far more often than they are asked about.

use super::identity::{fit, vec_bytes};

const WORDS: usize = 64;
const BLOCK: usize = WORDS * 64;

/// Things of one order.
#[derive(Debug)]
pub(super) struct Ranks<T> {
    things: Vec<T>,
    taken: Vec<u64>,
    counts: Vec<u32>,
    live: usize,
    /// No place before this one is taken.
    oldest: usize,
}

impl<T> Default for Ranks<T> {
    fn default() -> Ranks<T> {
        Ranks { things: Vec::new(), taken: Vec::new(), counts: Vec::new(), live: 0, oldest: 0 }
    }
}

impl<T: Copy> Ranks<T> {
    /// Puts a thing before all others; its place.
    pub(super) fn push(&mut self, thing: T) -> u32 {
        let place = self.things.len();
        if place.is_multiple_of(BLOCK) {
            self.taken.resize(self.taken.len() + WORDS, 0);
            self.counts.push(0);
        }
        self.things.push(thing);
        self.taken[place / 64] |= 1 << (place % 64);
        self.counts[place / BLOCK] += 1;
        self.live += 1;
        place as u32
    }

    /// Frees a place that is taken.
    pub(super) fn remove(&mut self, place: u32) {
        let place = place as usize;
        self.taken[place / 64] &= !(1 << (place % 64));
        self.counts[place / BLOCK] -= 1;
        self.live -= 1;
    }

    /// How many stand before this place.
    pub(super) fn newer(&self, place: u32) -> usize {
        let next = place as usize + 1;
        let (word, block) = (next / 64, next / BLOCK);
        let end = ((block + 1) * WORDS).min(self.taken.len());
        let Some((first, rest)) = self.taken[word.min(end)..end].split_first() else { return 0 };
        let first = (first >> (next % 64)).count_ones() as usize;
        let rest: usize = rest.iter().map(|bits| bits.count_ones() as usize).sum();
        let blocks: usize = self.counts[block + 1..].iter().map(|count| *count as usize).sum();
        first + rest + blocks
    }

    /// Takes out the thing that stands last.
    pub(super) fn pop_oldest(&mut self) -> Option<T> {
        let oldest = self.oldest()?;
        self.remove(self.oldest as u32);
        Some(oldest)
    }

    /// The thing that stands last.
    pub(super) fn oldest(&mut self) -> Option<T> {
        while self.oldest < self.things.len() {
            let place = self.oldest;
            if self.counts[place / BLOCK] == 0 {
                self.oldest = (place / BLOCK + 1) * BLOCK;
            } else if self.taken[place / 64] >> (place % 64) & 1 == 0 {
                self.oldest += 1;
            } else {
                return Some(self.things[place]);
            }
        }
        None
    }

    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Takes all out, and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = Ranks::default();
    }

    /// Closes the gaps once they are more than what is left, telling each thing its new place. What is told names it anew.
    pub(super) fn settle(&mut self, moved: impl FnMut(T, u32) -> T) {
        if self.things.len() > 2 * self.live + BLOCK {
            self.compact(moved);
        }
    }

    /// Closes all gaps.
    pub(super) fn compact(&mut self, mut moved: impl FnMut(T, u32) -> T) {
        let mut kept = 0;
        for place in 0..self.things.len() {
            if self.taken[place / 64] >> (place % 64) & 1 == 1 {
                self.things[kept] = moved(self.things[place], kept as u32);
                kept += 1;
            }
        }
        self.things.truncate(kept);
        fit(&mut self.things);
        let blocks = kept.div_ceil(BLOCK);
        self.taken.clear();
        self.taken.resize(blocks * WORDS, 0);
        fit(&mut self.taken);
        (0..kept).for_each(|place| self.taken[place / 64] |= 1 << (place % 64));
        self.counts = (0..blocks).map(|block| (kept - block * BLOCK).min(BLOCK) as u32).collect();
        self.oldest = 0;
    }

    /// Bytes once `more` places have been handed out.
    pub(super) fn bytes(&self, more: usize) -> usize {
        vec_bytes(&self.things, more)
            + vec_bytes(&self.taken, more / 64 + 1)
            + vec_bytes(&self.counts, more / BLOCK + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Against a list that is searched from end to end.
        #[test]
        fn it_counts_as_a_list_does(moves in proptest::collection::vec(0_u32..9000, 1..400), blocks in 0_usize..3) {
            let (mut ranks, mut list, mut places) = (Ranks::default(), Vec::new(), std::collections::HashMap::new());
            for thing in (10_000..10_000 + (blocks * BLOCK) as u32).chain(moves) {
                if let Some(place) = places.get(&thing) {
                    let newer = list.iter().rev().take_while(|other| **other != thing).count();
                    prop_assert_eq!(ranks.newer(*place), newer);
                    ranks.remove(*place);
                    list.retain(|other| *other != thing);
                }
                places.insert(thing, ranks.push(thing));
                list.push(thing);
                ranks.settle(|thing, place| { places.insert(thing, place); thing });
            }
            prop_assert_eq!(ranks.len(), list.len());
            prop_assert_eq!(ranks.pop_oldest(), list.first().copied());
        }
    }

    #[test]
    fn settling_keeps_the_order() {
        let mut ranks = Ranks::default();
        let places: Vec<u32> = (0..20_000).map(|thing| ranks.push(thing)).collect();
        places.iter().filter(|place| *place % 10 != 0).for_each(|place| ranks.remove(*place));
        let mut moved = Vec::new();
        ranks.settle(|thing, place| {
            moved.push((thing, place));
            thing
        });
        assert_eq!(moved.len(), 2000);
        assert!(
            moved.iter().all(|(thing, place)| thing / 10 == *place && ranks.newer(*place) == 1999 - *place as usize)
        );
        assert_eq!(ranks.pop_oldest(), Some(0));
    }
}
