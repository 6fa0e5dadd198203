//! Chunks that were evicted, in the order of their eviction: what comes back of them is what a larger tier would
//! still have had. Pure.
//!
//! The tier evicts the chunk whose last use is longest ago, so a chunk that is wanted again after `d` later evictions
//! would have been a hit in a tier that is larger by more than `d` chunks.

use super::identity::{Key, Map, Sampling};
use super::ranks::Ranks;

/// Evicted chunks.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    places: Map<u32>,
    order: Ranks<Key>,
    sampling: Sampling,
}

impl Ghosts {
    pub(super) fn evicted(&mut self, key: Key) {
        if self.sampling.takes(key) {
            let place = self.order.push(key);
            if let Some(before) = self.places.insert(key, place) {
                self.order.remove(before);
            }
            self.settle();
        }
    }

    /// The chunk is stored again: how many chunks were evicted after it and are still out, itself included. `None`
    /// where it was never evicted.
    pub(super) fn returned(&mut self, key: Key) -> Option<u64> {
        let place = self.places.remove(key)?;
        let depth = self.order.newer(place) as u64 * self.sampling.weight() + 1;
        self.order.remove(place);
        Some(depth)
    }

    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.order.clear();
    }

    /// Keeps the `most` latest of them (by what they stand for), and closes gaps.
    pub(super) fn trim(&mut self, most: u64) {
        while self.order.len() as u64 * self.sampling.weight() > most {
            let Some(key) = self.order.pop_oldest() else { break };
            self.places.remove(key);
        }
        self.settle();
        self.places.fit();
    }

    fn settle(&mut self) {
        let places = &mut self.places;
        self.order.settle(|key, place| {
            places.insert(key, place);
            key
        });
    }

    /// Keeps only the chunks of this sampling, which is a coarser one.
    pub(super) fn sample(&mut self, sampling: Sampling) {
        self.sampling = sampling;
        let order = &mut self.order;
        self.places.retain(|key, place| {
            let kept = sampling.takes(key);
            if !kept {
                order.remove(*place);
            }
            kept
        });
        let places = &mut self.places;
        self.order.compact(|key, place| {
            places.insert(key, place);
            key
        });
    }

    /// Begins anew with this sampling.
    pub(super) fn begin_anew(&mut self, sampling: Sampling) {
        *self = Ghosts { sampling, ..Ghosts::default() };
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    pub(super) fn bytes(&self, more: usize) -> usize {
        self.places.bytes(more) + self.order.bytes(more)
    }
}
