//! What tells chunks and blocks apart, and which of them are looked at one by one.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

/// A block's hash together with its KV cache group.
pub(super) type Key = u64;

/// Group 0, the usual one, keeps its hashes as they are.
pub(super) fn key(group: u32, hash: u64) -> Key {
    hash ^ spread(u64::from(group))
}

/// Spreads a number over all 64 bits; 0 stays 0.
fn spread(value: u64) -> u64 {
    let wide = u128::from(value) * 0x9e37_79b9_7f4a_7c15;
    (wide >> 64) as u64 ^ wide as u64
}

/// Which identities are kept: all, or one in 2, 4, 8 … chosen by their hash. A coarser choice is part of each finer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sampling {
    halvings: u32,
}

impl Sampling {
    /// One in 2^`halvings`.
    pub(super) fn one_in(halvings: u32) -> Sampling {
        Sampling { halvings: halvings.min(32) }
    }

    /// Half of what was kept so far; `None` where nothing sensible would be left.
    pub(super) fn halved(self) -> Option<Sampling> {
        (self.halvings < 32).then_some(Sampling { halvings: self.halvings + 1 })
    }

    pub(super) fn takes(self, key: Key) -> bool {
        self.halvings == 0 || spread(key) >> (64 - self.halvings) == 0
    }

    /// How many each one kept stands for.
    pub(super) fn weight(self) -> u64 {
        1 << self.halvings
    }
}

/// A map by key. The keys are hashes already, but come from outside: a seed of our own keeps a peer from choosing
/// ones that collide.
pub(super) type Map<V> = HashMap<Key, V, Seeded>;

#[derive(Clone)]
pub(super) struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded(RandomState::new().hash_one(0_u64))
    }
}

impl BuildHasher for Seeded {
    type Hasher = Spread;
    fn build_hasher(&self) -> Spread {
        Spread(self.0)
    }
}

pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = spread(self.0 ^ value);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Bytes that a map takes once `more` entries have been added, with the old table beside the new one while it grows.
pub(super) fn map_bytes<V>(map: &Map<V>, more: usize) -> usize {
    let entry = size_of::<(Key, V)>() + 1;
    let table = |entries: usize| if entries == 0 { 0 } else { (entries * 8 / 7).next_power_of_two() * entry };
    let (now, wanted) = (table(map.capacity()), map.len() + more);
    if wanted > map.capacity() { now + table(wanted.max(map.capacity() + 1)) } else { now }
}

/// The same for a vector.
pub(super) fn vec_bytes<T>(vec: &Vec<T>, more: usize) -> usize {
    let (now, wanted) = (vec.capacity(), vec.len() + more);
    let grown = if wanted > now { wanted.max(now * 2) } else { 0 };
    (now + grown) * size_of::<T>()
}
