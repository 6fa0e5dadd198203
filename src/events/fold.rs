//! All that one engine's events tell, folded batch by batch: residency, evictions, and what other sizes would do.
//! Pure: its clock is the batches' own time, so a recorded stream can be folded at any speed.
//!
//! Every table that a peer can make grow is an identity's: chunks, ghosts, the pool's blocks, the list of last uses. They share
//! a budget of bytes really allocated. Before each few identities there has to be room for them; where there is none, what is of no
//! use goes first, then every other identity. Media, groups, ranks and names of adapters make no tables: a group is part of the
//! identity, and of the others one value is kept, or none.
//!
//! Once there is room again, more identities are kept. Of those that were not kept before nothing is known but their number.
//! So counts stay exact all the while, and the list of last uses, from which other sizes are told, begins anew: nothing is
//! predicted until it looks back over a whole tier, and what had been evicted before is not seen to come again.

use super::chains::Chains;
use super::ghosts::Ghosts;
use super::identity::{Sampling, draw, key};
use super::residency::{Bounds, Emptied, Reset, Residency, Slots};
use super::sizing::Gauge;
use super::wire::{Batch, Event, Medium};

/// Upper edges of the age histogram, in seconds.
pub const AGES: [f64; 12] = [1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 21_600.0, 86_400.0, 604_800.0];

/// How far beyond the fullest that the tier was seen anything is of use: the largest size that is told of.
const REACH: u64 = 4;
/// Identities for which room is made at a time.
const AT_ONCE: usize = 256;
/// More are kept again once they would take so small a part of the budget: then it takes a while until fewer are kept again.
const ROOMY: usize = 4;
/// Bytes of an identity in all tables together, as far as it goes.
const EACH: usize = 256;
/// A sample of so few says nothing of how many there are.
const TOO_FEW: u64 = 16;
/// Budgets beyond this are of no use: places in tables are counted with 32 bits.
const LARGEST: usize = 16 << 30;
/// Below this many chunks nothing is forgotten for want of use.
const SMALL: u64 = 4096;

/// Ages at eviction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ages {
    /// Chunks below each edge of [`AGES`] and not below the one before it.
    pub below: [f64; AGES.len()],
    /// All of them.
    pub count: f64,
    /// Sum of their ages, in seconds.
    pub sum: f64,
}

impl Ages {
    fn observe(&mut self, seconds: f64, weight: f64) {
        if let Some(at) = AGES.iter().position(|edge| seconds <= *edge) {
            self.below[at] += weight;
        }
        self.count += weight;
        self.sum += seconds * weight;
    }
}

/// What is known after a batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Chunks in the tier.
    pub bounds: Bounds,
    /// Chunks stored since the fold began.
    pub stored: u64,
    /// Chunks evicted.
    pub evicted: u64,
    /// Chunks stored again after their eviction; a sample's estimate where identities are sampled.
    pub restored: u64,
    /// Ages at eviction.
    pub ages: Ages,
    /// Resets by kind, in the order of [`Reset::NAMED`].
    pub resets: [u64; Reset::NAMED.len()],
    /// What the sizes are told from.
    pub gauge: Gauge,
    /// Identities kept: one in so many.
    pub one_in: u64,
    /// Time of the last batch, in seconds since 1970.
    pub at: f64,
    /// Rank that published it.
    pub rank: u32,
    /// The fold begins with the engine, and has lost nothing.
    pub from_start: bool,
    /// Times that batches were lost.
    pub losses: u64,
    /// Which fold this is of those of its endpoint: another one tells of another engine.
    pub fold: u64,
    /// Time of its first batch.
    pub began: Option<f64>,
    /// Batches that announced a clear, and resets of the tier that nobody announced and that showed all the same.
    pub clears: u64,
    /// Doubts of the page that were taken in.
    pub doubts: u64,
    /// Most chunks that were surely in the tier at once, since the last reset or gap.
    pub most: u64,
}

/// The page counted a reset of the tier that the stream has not announced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Doubt {
    /// Doubts are numbered from 1.
    pub number: u64,
    /// The reset took place then or later, by the stream's time.
    pub since: f64,
    /// [`View::clears`] when the page came.
    pub clears: u64,
}

/// The fold over one engine's stream.
#[derive(Debug)]
pub struct Fold {
    residency: Residency,
    ghosts: Ghosts,
    chains: Chains,
    view: View,
    sampling: Sampling,
    /// Halvings that are wanted, however much room there is.
    finest: u32,
    budget: usize,
    group: Option<u32>,
    /// Hashes of one chunk, where events describe their chunks.
    chunk_hashes: usize,
    /// Greatest number that divides the depth of every chunk: the blocks of one.
    chunk_blocks: u32,
    block_tokens: u32,
    clear_batch: u64,
    peak: u64,
}

impl Fold {
    /// A fold that begins with the engine, or (`late`) in the middle of its life. Its identities take `budget` bytes
    /// at most.
    pub fn new(late: bool, budget: usize) -> Fold {
        let mut view = View { from_start: !late, one_in: 1, ..View::default() };
        view.gauge.whole = !late;
        let fold = Fold {
            residency: Residency::new(late),
            ghosts: Ghosts::default(),
            chains: Chains::default(),
            view,
            sampling: Sampling::default(),
            finest: 0,
            budget: budget.min(LARGEST),
            group: None,
            chunk_hashes: 1,
            chunk_blocks: 0,
            block_tokens: 0,
            clear_batch: 0,
            peak: 0,
        };
        fold.drawn(draw())
    }

    /// The same, with samples of this draw: to be repeated.
    #[must_use]
    pub fn drawn(mut self, draw: u64) -> Fold {
        self.set_sampling(Sampling::drawn(draw));
        self
    }

    /// Which fold this is of those of its endpoint.
    pub fn number(&self) -> u64 {
        self.view.fold
    }

    /// Keeps one in 2^`halvings` identities from now on, or fewer where there is no room.
    pub fn sample(&mut self, halvings: u32) {
        self.finest = halvings;
        if halvings < self.sampling.halvings() {
            self.keep_more(self.sampling.one_in(halvings));
        }
        while self.sampling.halvings() < halvings {
            let Some(coarser) = self.sampling.halved() else { return };
            self.set_sampling(coarser);
        }
    }

    /// What is known now.
    pub fn view(&self) -> View {
        let mut view = self.view.clone();
        view.bounds = self.residency.bounds();
        view.gauge.entered = self.chains.entered as f64;
        view.gauge.entered_sampled = self.chains.entered_sampled as f64;
        view.gauge.reach = self.chains.reach() as f64;
        let blocks = self.chunk_blocks.saturating_mul(self.block_tokens);
        view.gauge.chunk_tokens = (blocks > 0).then_some(f64::from(blocks));
        view.one_in = self.sampling.weight();
        view.most = self.residency.most();
        view
    }

    /// Batches were lost before the next one.
    pub fn lost(&mut self) {
        self.residency.lost();
        self.view.from_start = false;
        self.view.losses += 1;
        self.view.gauge.whole = false;
        self.chains.cleared();
    }

    /// The tier has so many slots, as the engine says (`stated`) or the operator. Where the engine does, that may complete
    /// what is known. Whether it did.
    pub fn fits(&mut self, count: u64, stated: bool) -> bool {
        let exact = self.residency.bounds().is_exact();
        self.view.gauge.whole |= self.residency.fits(Slots { count, stated });
        !exact && self.residency.bounds().is_exact()
    }

    /// Takes in what the page counted, unless it was or a clear has come meanwhile. Whether it was new.
    pub fn doubt(&mut self, doubt: Doubt) -> bool {
        if doubt.number <= self.view.doubts {
            return false;
        }
        self.view.doubts = doubt.number;
        if doubt.clears == self.view.clears {
            self.residency.doubt(doubt.since);
            self.clear_batch = self.chains.batch();
        }
        true
    }

    /// Batches that come from now on were made after the resets that the page told of.
    pub fn settle(&mut self) {
        self.residency.settle();
    }

    /// Batches that were missed come now, made before or after those resets. Whether one of them is not placed yet.
    pub fn unsettle(&mut self) -> bool {
        self.residency.unsettle()
    }

    /// The same, as that fold of its endpoint.
    #[must_use]
    pub fn numbered(mut self, number: u64) -> Fold {
        self.view.fold = number;
        self
    }

    /// Takes in the next batch.
    pub fn apply(&mut self, batch: &Batch) {
        self.use_room();
        (self.view.at, self.view.rank) = (batch.at, batch.rank);
        self.view.began.get_or_insert(batch.at);
        let clears = batch.events.contains(&Event::Cleared);
        self.view.clears += u64::from(clears);
        self.residency.begin(batch.at);
        self.chains.begin();
        for event in &batch.events {
            self.event(batch, event);
        }
        self.chains.end();
        self.residency.end();
        for reset in self.residency.take_resets() {
            self.view.clears += u64::from(reset == Reset::Silent);
            if let Some(at) = Reset::NAMED.iter().position(|(kind, _)| *kind == reset) {
                self.view.resets[at] += 1;
            }
        }
        self.peak = self.peak.max(self.residency.bounds().possible);
    }

    fn event(&mut self, batch: &Batch, event: &Event) {
        match event {
            Event::Cleared => {
                self.residency.cleared();
                self.chains.cleared();
                self.clear_batch = self.chains.batch();
            }
            Event::Stored { medium: Medium::Gpu, group, hashes, parent, block_tokens } => {
                self.note_group(*group);
                self.block_tokens = self.block_tokens.max(*block_tokens);
                let mut parent = parent.map(|hash| key(*group, hash));
                for hashes in batch.hashes(hashes).chunks(AT_ONCE) {
                    self.make_room(hashes.len());
                    self.entered(parent, hashes.iter().map(|hash| key(*group, *hash)));
                    parent = hashes.last().map(|hash| key(*group, *hash));
                }
            }
            Event::Removed { medium: Medium::Gpu, group, hashes } => {
                batch.hashes(hashes).iter().for_each(|hash| self.chains.left(key(*group, *hash)));
            }
            Event::Stored { medium: Medium::Ram, group, hashes, block_tokens, .. } => {
                let hashes = batch.hashes(hashes);
                // An event that describes its blocks is one chunk, known by its last block.
                self.chunk_hashes = if *block_tokens > 0 { hashes.len().max(1) } else { 1 };
                self.chunks(*group, hashes, Fold::stored);
            }
            Event::Removed { medium: Medium::Ram, group, hashes } => {
                self.chunks(*group, batch.hashes(hashes), Fold::removed);
            }
            Event::Stored { medium: Medium::Other, .. } | Event::Removed { medium: Medium::Other, .. } => {}
        }
    }

    /// Tells of each chunk of these hashes.
    fn chunks(&mut self, group: u32, hashes: &[u64], tell: impl Fn(&mut Fold, u64)) {
        for hashes in hashes.chunks(self.chunk_hashes.saturating_mul(AT_ONCE)) {
            self.make_room(hashes.len().div_ceil(self.chunk_hashes));
            let last = hashes.chunks(self.chunk_hashes).filter_map(<[u64]>::last);
            last.for_each(|hash| tell(self, key(group, *hash)));
        }
    }

    /// Several groups share the slots, and a prompt needs all of them: one list cannot tell what it would find.
    fn note_group(&mut self, group: u32) {
        self.view.gauge.several_groups |= *self.group.get_or_insert(group) != group;
    }

    fn entered(&mut self, parent: Option<u64>, keys: impl Iterator<Item = u64>) {
        let (residency, uses, blocks) = (&self.residency, &mut self.view.gauge.uses, &mut self.chunk_blocks);
        let weight = self.sampling.weight() as f64;
        self.chains.entered(
            parent,
            keys,
            |key| residency.contains(key),
            |found| {
                *blocks = found.depth.map_or(*blocks, |depth| common_divisor(*blocks, depth));
                if let Some(distance) = found.distance {
                    uses.count(distance, weight);
                }
            },
        );
    }

    fn stored(&mut self, key: u64) {
        self.view.stored += 1;
        let effect = self.residency.stored(key);
        if let Some(when) = effect.emptied {
            self.emptied(when);
        }
        let weight = self.sampling.weight();
        let depth = self.ghosts.returned(key);
        self.view.restored += depth.map_or(0, |_| weight);
        let Some(found) = self.chains.stored(key) else { return };
        self.chunk_blocks = found.depth.map_or(self.chunk_blocks, |depth| common_divisor(self.chunk_blocks, depth));
        // Only what a prompt missed would have been a reload; the pool may have had it.
        if let Some(depth) = depth {
            self.view.gauge.returns.count(depth, weight as f64);
        }
        if let Some(distance) = found.distance {
            self.view.gauge.uses.count(distance, weight as f64);
        }
    }

    fn removed(&mut self, key: u64) {
        self.view.evicted += 1;
        if let Some(age) = self.residency.removed(key).age {
            self.view.ages.observe(age, self.sampling.weight() as f64);
        }
        self.ghosts.evicted(key);
    }

    fn emptied(&mut self, when: Emptied) {
        self.ghosts.clear();
        self.chains.emptied(if when == Emptied::AtBorder { self.clear_batch } else { self.chains.batch() });
        self.view.gauge.whole = true;
        self.peak = 0;
    }

    /// Room for so many more identities: what is of no use goes first, then every other one.
    fn make_room(&mut self, more: usize) {
        if self.bytes_with(more) <= self.budget {
            return;
        }
        let most = (self.peak * REACH).max(SMALL);
        self.ghosts.trim(most);
        self.chains.trim(most);
        // More blocks than any pool has: the engine does not say which ones leave it.
        if self.chains.pool_bytes(more) > self.budget / 2 {
            self.chains.cleared();
        }
        while self.bytes_with(more) > self.budget
            && let Some(coarser) = self.sampling.halved()
        {
            self.set_sampling(coarser);
        }
    }

    /// Keeps more identities again where they take a small part of the budget only.
    fn use_room(&mut self) {
        if self.sampling.halvings() <= self.finest {
            return;
        }
        let finer = (self.finest..self.sampling.halvings()).map(|halvings| self.sampling.one_in(halvings));
        if let Some(finer) = finer.into_iter().find(|finer| self.would_take(*finer) <= self.budget / ROOMY) {
            self.keep_more(finer);
        }
    }

    /// Bytes of all identities with that sampling, by what the present one shows.
    fn would_take(&self, finer: Sampling) -> usize {
        let scaled = |kept: usize| (kept as u64 + TOO_FEW).saturating_mul(self.sampling.weight() / finer.weight());
        let all =
            (self.residency.bounds().possible / finer.weight()).max(scaled(self.ghosts.len() + self.chains.len()));
        self.chains.pool_bytes(0).saturating_add(usize::try_from(all).unwrap_or(usize::MAX).saturating_mul(EACH))
    }

    fn keep_more(&mut self, finer: Sampling) {
        self.sampling = finer;
        self.residency.sample(finer);
        self.ghosts.begin_anew(finer);
        self.chains.begin_anew(finer);
        self.view.gauge.whole = false;
        self.view.gauge.begun += 1;
    }

    fn set_sampling(&mut self, sampling: Sampling) {
        self.sampling = sampling;
        self.residency.sample(sampling);
        self.ghosts.sample(sampling);
        self.chains.sample(sampling);
    }

    /// Bytes of all identities.
    pub fn bytes(&self) -> usize {
        self.bytes_with(0)
    }

    fn bytes_with(&self, more: usize) -> usize {
        self.residency.bytes(more) + self.ghosts.bytes(more) + self.chains.bytes(more)
    }
}

fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod sampling;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Batch(Vec<(u8, u64, u64)>),
        Lost,
        Fits(u64),
        Doubt(f64),
        Sample(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        let events = proptest::collection::vec((0_u8..6, 0_u64..40, 0_u64..40), 0..12);
        prop_oneof![
            12 => events.prop_map(Step::Batch),
            1 => Just(Step::Lost),
            1 => (1_u64..30).prop_map(Step::Fits),
            1 => (-1.0..60.0).prop_map(Step::Doubt),
            1 => (0_u32..3).prop_map(Step::Sample),
        ]
    }

    fn batch(at: f64, events: &[(u8, u64, u64)]) -> Batch {
        let hashes: Vec<u64> = events.iter().map(|(_, hash, _)| hash.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        let events = events.iter().enumerate().map(|(index, (kind, _, parent))| {
            let (hashes, parent) = (index..index + 1, Some(parent.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
            let medium = if kind % 2 == 0 { Medium::Gpu } else { Medium::Ram };
            match kind {
                0 | 1 | 4 => Event::Stored { medium, group: 0, hashes, parent, block_tokens: 16 },
                2 | 3 => Event::Removed { medium, group: 0, hashes },
                _ => Event::Cleared,
            }
        });
        Batch::made(at, events.collect(), hashes)
    }

    proptest! {
        /// An engine that says nonsense, in any order, with losses and changes of sampling: bounds stay bounds, and
        /// memory stays within its own.
        #[test]
        fn any_events_in_any_order_leave_bounds(steps in proptest::collection::vec(step(), 1..60)) {
            const BUDGET: usize = 4000;
            let mut fold = Fold::new(true, BUDGET);
            for (at, step) in steps.iter().enumerate() {
                match step {
                    Step::Batch(events) => fold.apply(&batch(at as f64, events)),
                    Step::Lost => fold.lost(),
                    Step::Fits(slots) => drop(fold.fits(*slots, slots % 2 == 0)),
                    Step::Doubt(since) => {
                        let View { doubts, clears, .. } = fold.view();
                        fold.doubt(Doubt { number: doubts + 1, since: *since, clears });
                    }
                    Step::Sample(halvings) => fold.sample(*halvings),
                }
                let view = fold.view();
                prop_assert!(view.bounds.sure <= view.bounds.possible);
                prop_assert!(view.gauge.uses.below(1e9) <= view.gauge.entered.max(view.gauge.entered_sampled) * 8.0);
            }
        }
    }

    #[test]
    fn a_chunk_of_several_blocks_is_known_by_its_last_one() {
        let stored =
            |range, medium, block_tokens| Event::Stored { medium, group: 0, hashes: range, parent: None, block_tokens };
        let removed = |range| Event::Removed { medium: Medium::Ram, group: 0, hashes: range };
        let mut fold = Fold::new(false, 1 << 20);
        // Four blocks of 16 tokens in the pool; the tier stores them as two chunks of two, which describe themselves.
        let hashes = vec![1, 2, 3, 4];
        fold.apply(&Batch::made(0.0, vec![stored(0..4, Medium::Gpu, 16)], hashes.clone()));
        let chunks = vec![stored(0..2, Medium::Ram, 16), stored(2..4, Medium::Ram, 16)];
        fold.apply(&Batch::made(1.0, chunks, hashes.clone()));
        assert_eq!((fold.view().stored, fold.view().bounds.sure), (2, 2));
        assert_eq!(fold.view().gauge.chunk_tokens, Some(32.0));
        fold.apply(&Batch::made(2.0, vec![removed(0..4)], hashes));
        assert_eq!((fold.view().evicted, fold.view().bounds.sure), (2, 0));
    }

    #[test]
    fn a_placeholder_names_a_chunk_and_no_blocks() {
        let event = Event::Stored { medium: Medium::Ram, group: 0, hashes: 0..2, parent: None, block_tokens: 0 };
        let mut fold = Fold::new(false, 1 << 20);
        fold.apply(&Batch::made(0.0, vec![event], vec![1, 2]));
        assert_eq!(fold.view().bounds.sure, 2);
    }

    #[test]
    fn several_groups_are_counted_apart_and_predict_nothing() {
        let entered =
            |group| Event::Stored { medium: Medium::Gpu, group, hashes: 0..1, parent: None, block_tokens: 16 };
        let stored = |group| Event::Stored { medium: Medium::Ram, group, hashes: 0..1, parent: None, block_tokens: 0 };
        let mut fold = Fold::new(false, 1 << 20);
        fold.apply(&Batch::made(0.0, vec![entered(0), entered(1), stored(0), stored(1)], vec![7]));
        assert_eq!(fold.view().bounds.sure, 2);
        assert!(fold.view().gauge.several_groups);
    }

    #[test]
    fn ages_are_told_by_the_batches_own_time() {
        let stored = Event::Stored { medium: Medium::Ram, group: 0, hashes: 0..1, parent: None, block_tokens: 0 };
        let removed = Event::Removed { medium: Medium::Ram, group: 0, hashes: 0..1 };
        let mut fold = Fold::new(false, 1 << 20);
        fold.apply(&Batch::made(1e9, vec![stored], vec![7]));
        fold.apply(&Batch::made(1e9 + 20.0, vec![removed], vec![7]));
        let ages = fold.view().ages;
        // 20 s lie above the edge at 15 s and not above the one at 60 s.
        assert_eq!((ages.count, ages.sum, ages.below[3]), (1.0, 20.0, 1.0));
    }
}
