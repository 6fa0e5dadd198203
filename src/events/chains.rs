//! Which tier size would have had what the GPU pool lacked: an LRU of any size, replayed from the GPU's events. Pure.
//!
//! What the pool stores is what a request missed there, in the order of its prompt; that is what the tier was asked
//! for. The LRU of every size has the same order, so one list serves all sizes: a chunk that was last used `d` chunks
//! ago is a hit in every tier of more than `d` chunks. A use of a chunk is a use of all chunks before it in its
//! prompt, the first one last, so that the head of a prompt outlives its tail; hence no prefix rule is needed: a
//! chunk never stands before one that precedes it.
//!
//! Blocks that never enter the tier (those of an answer, say) are no use of it. So a block counts once it is known to
//! be a chunk: it is in the tier, or it is stored there while the pool still has it.
//!
//! A sample of the chunks, chosen by their hash, is as good as all of them: each block in the pool knows the nearest
//! sampled chunk before it.

use super::identity::{Key, Map, Sampling, fit, vec_bytes};
use super::ranks::Ranks;

/// No such place in the list, or in the table of nodes.
const NOWHERE: u32 = u32::MAX;

/// A node by its number. Numbers are used again, so a few bits of its key tell whether it is still the same.
#[derive(Clone, Copy, Debug)]
struct Link {
    node: u32,
    check: u32,
}

/// Chunks that are passed over in search of one that is kept.
const LONGEST_WAY: usize = 64;

/// With fewer nodes than this none are given back.
const FEWEST_NODES: usize = 1024;

const NO_LINK: Link = Link { node: NOWHERE, check: 0 };

/// A sampled chunk.
#[derive(Clone, Copy, Debug)]
struct Node {
    key: Key,
    before: Link,
    place: u32,
    /// Batch of its last use.
    used: u64,
}

/// A block in the GPU pool.
#[derive(Clone, Copy, Debug)]
struct Block {
    /// The nearest sampled chunk of its prompt, itself included.
    nearest: Link,
    /// Blocks from the beginning of the prompt, itself included; 0 where not known.
    depth: u32,
    asked: Asked,
}

/// What became of the question whether the tier has a block.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    /// It counts if the tier is seen to store the block; the distance at the time of asking.
    Pending(Option<u32>),
    /// Counted, or of no interest.
    Done,
}

/// What one chunk asked of the tier would have found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    /// Chunks used since its last use; `None` at its first.
    pub(super) distance: Option<u64>,
    /// Blocks of its prompt up to it, where known.
    pub(super) depth: Option<u32>,
}

/// Prompts in the GPU pool, and the list of chunks by their last use.
#[derive(Debug, Default)]
pub(super) struct Chains {
    pool: Map<Block>,
    nodes: Vec<Node>,
    free: Vec<u32>,
    numbers: Map<u32>,
    order: Ranks<u32>,
    used: Vec<u32>,
    batch: u64,
    sampling: Sampling,
    /// Blocks that entered the pool, and the same number as the sample makes it.
    pub(super) entered: u64,
    pub(super) entered_sampled: u64,
}

impl Chains {
    /// Blocks of one prompt entered the pool after `parent`. `in_tier` tells whether the tier has one; `count` is
    /// told of each use.
    pub(super) fn entered(
        &mut self,
        parent: Option<Key>,
        keys: impl Iterator<Item = Key>,
        in_tier: impl Fn(Key) -> bool,
        mut count: impl FnMut(Use),
    ) {
        let before = parent.map(|parent| self.pool.get(parent).map(|block| (block.nearest, block.depth)));
        let (mut nearest, mut depth) = before.map_or((NO_LINK, 0), |known| known.unwrap_or((NO_LINK, NOWHERE)));
        for key in keys {
            // Announced again though it is there: no miss.
            if let Some(block) = self.pool.get(key) {
                (nearest, depth) = (block.nearest, if block.depth == 0 { NOWHERE } else { block.depth });
                continue;
            }
            depth = depth.saturating_add(1);
            let known_depth = if depth == NOWHERE { 0 } else { depth };
            self.entered += 1;
            let mut asked = Asked::Done;
            if self.sampling.takes(key) {
                self.entered_sampled += self.sampling.weight();
                let node = self.node(key, nearest);
                let distance = self.distance(node);
                nearest = Link { node, check: key as u32 };
                if in_tier(key) {
                    self.note_use(node);
                    count(found(distance, known_depth));
                } else {
                    asked = Asked::Pending(distance);
                }
            }
            self.pool.insert(key, Block { nearest, depth: known_depth, asked });
        }
    }

    /// A block left the pool.
    pub(super) fn left(&mut self, key: Key) {
        if let Some(Block { asked: Asked::Pending(_), .. }) = self.pool.remove(key) {
            self.release(key);
        }
    }

    /// The pool is empty.
    pub(super) fn cleared(&mut self) {
        let pool = std::mem::take(&mut self.pool);
        let pending = pool.iter().filter(|(_, block)| block.asked != Asked::Done);
        pending.for_each(|(key, _)| self.release(key));
    }

    /// The tier stored a chunk. A use, if the pool had missed it; then it is returned.
    pub(super) fn stored(&mut self, key: Key) -> Option<Use> {
        if !self.sampling.takes(key) {
            return None;
        }
        let node = self.node(key, NO_LINK);
        self.note_use(node);
        let block = self.pool.get_mut(key)?;
        match std::mem::replace(&mut block.asked, Asked::Done) {
            Asked::Pending(distance) => Some(found(distance, block.depth)),
            Asked::Done => None,
        }
    }

    /// The tier was emptied before the batch of that number: what was used earlier is gone in a tier of any size. It stands
    /// behind all others.
    pub(super) fn emptied(&mut self, before: u64) {
        self.end();
        while let Some(number) = self.order.oldest().filter(|number| self.nodes[*number as usize].used < before) {
            self.unplace(number);
            self.release(self.nodes[number as usize].key);
        }
        self.fit();
    }

    /// A batch begins.
    pub(super) fn begin(&mut self) {
        self.batch += 1;
    }

    /// Number of the batch at hand.
    pub(super) fn batch(&self) -> u64 {
        self.batch
    }

    /// Uses are put in order together, but for those of a batch that names the same chunks again and again.
    fn note_use(&mut self, node: u32) {
        self.used.push(node);
        if self.used.len() > 2 * self.numbers.len() + FEWEST_NODES {
            self.end();
        }
    }

    /// Ends the batch: every chunk used in it, and all before it in its prompt, move to the front.
    pub(super) fn end(&mut self) {
        let mut used = std::mem::take(&mut self.used);
        used.drain(..).rev().for_each(|last| self.refresh(last));
        self.used = used;
        fit(&mut self.used);
        self.settle();
        self.fit();
    }

    /// Walks from a chunk to the head of its prompt, up to where this batch has been already.
    fn refresh(&mut self, last: u32) {
        let Some(node) = self.nodes.get(last as usize) else { return };
        let mut link = Link { node: last, check: node.key as u32 };
        while let Some(node) = self.nodes.get_mut(link.node as usize).filter(|node| node.key as u32 == link.check) {
            let (seen, placed) = (node.used == self.batch, node.place != NOWHERE);
            if seen && (placed || link.node != last) {
                return;
            }
            node.used = self.batch;
            if placed {
                self.order.remove(node.place);
            }
            // A block that the tier has not stored is passed over.
            if placed || link.node == last {
                node.place = self.order.push(link.node);
            }
            link = node.before;
        }
    }

    fn settle(&mut self) {
        let nodes = &mut self.nodes;
        self.order.settle(|number, place| {
            nodes[number as usize].place = place;
            number
        });
    }

    /// Chunks in the list, by what they stand for.
    pub(super) fn reach(&self) -> u64 {
        self.order.len() as u64 * self.sampling.weight()
    }

    /// Forgets what lies deeper than `most` chunks.
    pub(super) fn trim(&mut self, most: u64) {
        self.end();
        while self.reach() > most {
            let Some(number) = self.order.pop_oldest() else { break };
            let node = &mut self.nodes[number as usize];
            node.place = NOWHERE;
            let key = node.key;
            self.release(key);
        }
        self.settle();
    }

    /// Keeps only the chunks of this sampling, which is a coarser one by half.
    pub(super) fn sample(&mut self, sampling: Sampling) {
        self.end();
        self.sampling = sampling;
        for number in 0..self.nodes.len() {
            self.nodes[number].before = self.nearest_kept(self.nodes[number].before);
        }
        let mut pool = std::mem::take(&mut self.pool);
        for (key, block) in pool.iter_mut() {
            block.nearest = self.nearest_kept(block.nearest);
            if !sampling.takes(key) {
                block.asked = Asked::Done;
            }
        }
        self.pool = pool;
        for number in 0..self.nodes.len() as u32 {
            let key = self.nodes[number as usize].key;
            if self.numbers.get(key) == Some(&number) && !sampling.takes(key) {
                self.unplace(number);
                self.release(key);
            }
        }
        self.renumber();
    }

    /// Begins anew with this sampling. The pool's blocks are known on; what was asked of the tier when they entered it is not.
    pub(super) fn begin_anew(&mut self, sampling: Sampling) {
        let mut pool = std::mem::take(&mut self.pool);
        for (_, block) in pool.iter_mut() {
            (block.nearest, block.asked) = (NO_LINK, Asked::Done);
        }
        let Chains { batch, entered, entered_sampled, .. } = *self;
        *self = Chains { pool, batch, sampling, entered, entered_sampled, ..Chains::default() };
    }

    /// Gives memory back that is mostly free. That costs a look through nodes and pool, so the nodes have to be worth it.
    fn fit(&mut self) {
        self.pool.fit();
        let places = self.nodes.capacity();
        if places >= FEWEST_NODES && self.numbers.len() * 8 <= places && self.pool.places() <= places * 4 {
            self.renumber();
        }
    }

    /// Numbers the nodes anew, so that none is free.
    fn renumber(&mut self) {
        let mut now = vec![NOWHERE; self.nodes.len()];
        let mut kept = 0;
        for (number, now) in now.iter_mut().enumerate() {
            let node = self.nodes[number];
            if self.numbers.get(node.key) == Some(&(number as u32)) {
                *now = kept;
                self.nodes[kept as usize] = node;
                self.numbers.insert(node.key, kept);
                kept += 1;
            }
        }
        let moved = |link: Link| match now.get(link.node as usize) {
            Some(node) if *node != NOWHERE => Link { node: *node, ..link },
            _ => NO_LINK,
        };
        self.nodes.truncate(kept as usize);
        self.nodes.iter_mut().for_each(|node| node.before = moved(node.before));
        self.pool.iter_mut().for_each(|(_, block)| block.nearest = moved(block.nearest));
        let nodes = &mut self.nodes;
        self.order.compact(|number, place| {
            let number = now[number as usize];
            nodes[number as usize].place = place;
            number
        });
        fit(&mut self.nodes);
        self.numbers.fit();
        self.free = Vec::new();
    }

    /// Chunks that are followed.
    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    fn nearest_kept(&self, mut link: Link) -> Link {
        // Every other chunk is kept, so a long way without one is a prompt that comes back to itself, as only the wire can say.
        for _ in 0..LONGEST_WAY {
            match self.nodes.get(link.node as usize).filter(|node| node.key as u32 == link.check) {
                Some(node) if !self.sampling.takes(node.key) => link = node.before,
                Some(_) => return link,
                None => return NO_LINK,
            }
        }
        NO_LINK
    }

    /// The node of a chunk, made where there is none, after `before` where that is known.
    fn node(&mut self, key: Key, before: Link) -> u32 {
        if let Some(number) = self.numbers.get(key) {
            if before.node != NOWHERE && before.node != *number {
                self.nodes[*number as usize].before = before;
            }
            return *number;
        }
        let node = Node { key, before, place: NOWHERE, used: self.batch.saturating_sub(1) };
        let number = self.free.pop().unwrap_or(self.nodes.len() as u32);
        match self.nodes.get_mut(number as usize) {
            Some(free) => *free = node,
            None => self.nodes.push(node),
        }
        self.numbers.insert(key, number);
        number
    }

    fn unplace(&mut self, number: u32) {
        let place = std::mem::replace(&mut self.nodes[number as usize].place, NOWHERE);
        if place != NOWHERE {
            self.order.remove(place);
        }
    }

    /// Lets a node go, unless it has a place in the list.
    fn release(&mut self, key: Key) {
        let Some(number) = self.numbers.get(key).copied() else { return };
        let node = &mut self.nodes[number as usize];
        if node.place == NOWHERE {
            // No link to it fits any more.
            node.key = !key;
            self.numbers.remove(key);
            self.free.push(number);
        }
    }

    fn distance(&self, node: u32) -> Option<u32> {
        let place = self.nodes[node as usize].place;
        let chunks = (place != NOWHERE).then(|| self.order.newer(place) as u64 * self.sampling.weight());
        chunks.map(|chunks| u32::try_from(chunks).unwrap_or(u32::MAX))
    }

    /// Bytes of the pool's blocks. Sampling does not make them fewer.
    pub(super) fn pool_bytes(&self, more: usize) -> usize {
        self.pool.bytes(more)
    }

    pub(super) fn bytes(&self, more: usize) -> usize {
        self.pool_bytes(more)
            + self.numbers.bytes(more)
            // Free nodes are used before new ones are made.
            + vec_bytes(&self.nodes, more.saturating_sub(self.free.len()))
            + vec_bytes(&self.free, 0)
            + vec_bytes(&self.used, more)
            + self.order.bytes(2 * more)
    }
}

fn found(distance: Option<u32>, depth: u32) -> Use {
    Use { distance: distance.map(u64::from), depth: (depth > 0).then_some(depth) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    /// A pool and a tier that has everything it was given.
    #[derive(Default)]
    struct Story {
        chains: Chains,
        tier: BTreeSet<Key>,
        uses: RefCell<Vec<Option<u64>>>,
    }

    impl Story {
        /// A prompt of these blocks whose first `cached` ones the pool still has; the tier stores what it lacks.
        fn prompt(&mut self, blocks: &[Key], cached: usize) {
            self.chains.begin();
            let (parent, missed) = (cached.checked_sub(1).map(|last| blocks[last]), &blocks[cached..]);
            let (tier, uses) = (&self.tier, &self.uses);
            let count = |found: Use| uses.borrow_mut().push(found.distance);
            self.chains.entered(parent, missed.iter().copied(), |key| tier.contains(&key), count);
            self.chains.end();
            self.chains.begin();
            for key in missed.iter().filter(|key| self.tier.insert(**key)) {
                let found = self.chains.stored(*key);
                self.uses.borrow_mut().extend(found.map(|found| found.distance));
            }
            self.chains.end();
        }

        fn forget(&mut self, blocks: &[Key]) {
            blocks.iter().for_each(|key| self.chains.left(*key));
        }

        fn uses(&mut self) -> Vec<Option<u64>> {
            std::mem::take(&mut self.uses.borrow_mut())
        }
    }

    #[test]
    fn a_chunk_is_as_far_as_chunks_were_used_since_its_last_use() {
        let mut story = Story::default();
        story.prompt(&[1, 2, 3], 0);
        assert_eq!(story.uses(), [None; 3]);
        story.prompt(&[4, 5], 0);
        story.forget(&[1, 2, 3]);
        story.uses();
        // The list is 4 5 1 2 3 from the front: the head of a prompt stands before its tail.
        story.prompt(&[1, 2, 3], 0);
        assert_eq!(story.uses(), [Some(2), Some(3), Some(4)]);
    }

    #[test]
    fn a_use_of_the_tail_is_a_use_of_the_head_that_the_pool_had() {
        let mut story = Story::default();
        story.prompt(&[1, 2], 0);
        story.prompt(&[4, 5], 0);
        // The pool has 1 and 2; the prompt goes on with 3. Then 1 stands before 4 and 5 again.
        story.prompt(&[1, 2, 3], 2);
        story.forget(&[1, 2, 3, 4, 5]);
        story.uses();
        story.prompt(&[4], 0);
        assert_eq!(story.uses(), [Some(3)]);
    }

    #[test]
    fn blocks_that_never_enter_the_tier_are_no_use_and_hold_no_place() {
        let mut story = Story::default();
        story.chains.begin();
        story.chains.entered(None, [7, 8, 9].into_iter(), |_| false, |_| panic!("nothing is known of them"));
        story.chains.end();
        assert_eq!((story.chains.reach(), story.chains.len()), (0, 3));
        story.forget(&[7, 8, 9]);
        assert_eq!(story.chains.len(), 0);
    }

    #[test]
    fn what_is_announced_again_while_the_pool_has_it_is_no_miss() {
        let mut story = Story::default();
        story.prompt(&[1, 2], 0);
        story.uses();
        story.prompt(&[1, 2], 0);
        assert_eq!((story.uses(), story.chains.entered), (vec![], 2));
    }

    #[test]
    fn a_prompt_that_the_wire_turns_into_a_ring_ends_all_the_same() {
        let mut story = Story::default();
        story.prompt(&[1, 2], 0);
        story.forget(&[1]);
        story.chains.begin();
        // 1 after 2, which is after 1.
        story.chains.entered(Some(2), [1].into_iter(), |_| true, |_| {});
        story.chains.end();
        story.chains.sample(Sampling::default().one_in(1));
        story.chains.end();
    }

    #[test]
    fn an_emptied_tier_is_empty_at_every_size() {
        let mut story = Story::default();
        story.prompt(&[1, 2, 3], 0);
        story.forget(&[1, 2, 3]);
        let now = story.chains.batch();
        story.chains.emptied(now + 1);
        assert_eq!((story.chains.reach(), story.chains.len()), (0, 0));
    }
}
