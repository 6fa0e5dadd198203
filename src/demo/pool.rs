//! A pool of equal slots with an LRU: the GPU's KV blocks, and the chunks of the RAM tier.
//!
//! A slot holds one chunk. While somebody uses it (a running request, a copy in flight) it is *pinned*;
//! otherwise it stays resident and is given away, oldest use first, when another chunk needs room. Nothing
//! else empties a slot, which is why a pool that was full once stays full.

use std::collections::BTreeMap;

/// One block of one session's history: `(session, position)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Chunk {
    /// Whose history; prefixes shared by several sessions have a number of their own.
    pub(super) session: u32,
    /// Position in that history, in blocks.
    pub(super) index: u32,
}

#[derive(Debug)]
struct Slot {
    pins: u32,
    used: u64,
}

/// Resident chunks, at most `capacity` of them.
#[derive(Debug)]
pub(super) struct Pool {
    capacity: usize,
    slots: BTreeMap<Chunk, Slot>,
    /// The chunks that nobody pins, by their last use.
    idle: BTreeMap<u64, Chunk>,
    uses: u64,
    evicted: u64,
    /// Evicted since somebody asked.
    lost: Vec<Chunk>,
}

impl Pool {
    /// An empty pool.
    pub(super) fn new(capacity: usize) -> Pool {
        Pool { capacity, slots: BTreeMap::new(), idle: BTreeMap::new(), uses: 0, evicted: 0, lost: Vec::new() }
    }

    /// Whether the chunk is resident.
    pub(super) fn contains(&self, chunk: Chunk) -> bool {
        self.slots.contains_key(&chunk)
    }

    /// Resident chunks, pinned ones included.
    pub(super) fn resident(&self) -> usize {
        self.slots.len()
    }

    /// Chunks that are pinned now.
    pub(super) fn pinned(&self) -> usize {
        self.slots.len() - self.idle.len()
    }

    /// Slots that hold nothing.
    pub(super) fn free(&self) -> usize {
        self.capacity - self.slots.len()
    }

    /// Slots that new chunks could have: free ones and those of chunks that nobody pins.
    pub(super) fn obtainable(&self) -> usize {
        self.free() + self.idle.len()
    }

    /// Chunks that lost their slot to another since the pool was made.
    pub(super) fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Chunks that lost their slot since the last call.
    pub(super) fn take_lost(&mut self) -> Vec<Chunk> {
        std::mem::take(&mut self.lost)
    }

    /// Whether the chunk is resident and unpinned.
    pub(super) fn is_idle(&self, chunk: Chunk) -> bool {
        self.slots.get(&chunk).is_some_and(|slot| slot.pins == 0)
    }

    /// Marks a resident chunk as just used; others are untouched.
    pub(super) fn touch(&mut self, chunk: Chunk) {
        if self.is_idle(chunk) {
            self.pin(chunk);
            self.unpin(chunk);
        }
    }

    /// Pins a chunk, making room for it if it is not resident. False if every slot is pinned: nothing has changed then.
    pub(super) fn pin(&mut self, chunk: Chunk) -> bool {
        if let Some(slot) = self.slots.get_mut(&chunk) {
            if slot.pins == 0 {
                self.idle.remove(&slot.used);
            }
            slot.pins += 1;
            return true;
        }
        if self.free() == 0 && !self.evict_oldest() {
            return false;
        }
        self.slots.insert(chunk, Slot { pins: 1, used: 0 });
        true
    }

    fn evict_oldest(&mut self) -> bool {
        let Some((_, oldest)) = self.idle.pop_first() else { return false };
        self.slots.remove(&oldest);
        self.evicted += 1;
        self.lost.push(oldest);
        true
    }

    /// Takes one pin off; the last one leaves the chunk resident and the most recently used.
    pub(super) fn unpin(&mut self, chunk: Chunk) {
        let Some(slot) = self.slots.get_mut(&chunk) else { return };
        slot.pins -= 1;
        if slot.pins == 0 {
            self.uses += 1;
            slot.used = self.uses;
            self.idle.insert(slot.used, chunk);
        }
    }

    /// Takes one pin off a chunk that is of no use to anybody else, and frees its slot with the last pin.
    pub(super) fn discard(&mut self, chunk: Chunk) {
        self.unpin(chunk);
        if self.is_idle(chunk)
            && let Some(slot) = self.slots.remove(&chunk)
        {
            self.idle.remove(&slot.used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(index: u32) -> Chunk {
        Chunk { session: 1, index }
    }

    #[test]
    fn the_least_recently_used_unpinned_chunk_makes_room() {
        let mut pool = Pool::new(2);
        for index in [1, 2] {
            assert!(pool.pin(chunk(index)));
            pool.unpin(chunk(index));
        }
        pool.touch(chunk(1));
        assert!(pool.pin(chunk(3)));
        assert!(pool.contains(chunk(1)) && pool.contains(chunk(3)) && !pool.contains(chunk(2)));
        assert_eq!((pool.resident(), pool.pinned(), pool.obtainable(), pool.evicted()), (2, 1, 1, 1));
    }

    #[test]
    fn a_pool_whose_slots_are_all_pinned_takes_nothing() {
        let mut pool = Pool::new(1);
        assert!(pool.pin(chunk(1)) && pool.pin(chunk(1)));
        assert!(!pool.pin(chunk(2)));
        pool.unpin(chunk(1));
        assert!(!pool.pin(chunk(2)), "two pins, one taken off");
        pool.unpin(chunk(1));
        assert!(pool.pin(chunk(2)));
    }

    #[test]
    fn a_discarded_chunk_frees_its_slot() {
        let mut pool = Pool::new(1);
        pool.pin(chunk(1));
        pool.discard(chunk(1));
        assert_eq!((pool.resident(), pool.free(), pool.evicted()), (0, 1, 0));
    }
}
