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

/// Which identities are kept: all, or one in 2, 4, 8 … chosen by their hash. A coarser choice is part of each finer one. The
/// hashes come from outside, so a draw of our own keeps a peer from choosing ones that are all kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sampling {
    halvings: u32,
    draw: u64,
}

impl Sampling {
    /// All are kept, and are to be chosen by this draw.
    pub(super) fn drawn(draw: u64) -> Sampling {
        Sampling { halvings: 0, draw }
    }

    /// One in 2^`halvings`, of the same draw.
    pub(super) fn one_in(self, halvings: u32) -> Sampling {
        Sampling { halvings: halvings.min(32), ..self }
    }

    /// Half of what was kept so far; `None` where nothing sensible would be left.
    pub(super) fn halved(self) -> Option<Sampling> {
        (self.halvings < 32).then_some(self.one_in(self.halvings + 1))
    }

    pub(super) fn halvings(self) -> u32 {
        self.halvings
    }

    pub(super) fn takes(self, key: Key) -> bool {
        self.halvings == 0 || spread(key ^ self.draw) >> (64 - self.halvings) == 0
    }

    /// How many each one kept stands for.
    pub(super) fn weight(self) -> u64 {
        1 << self.halvings
    }
}

/// A number that nobody outside knows.
pub(super) fn draw() -> u64 {
    RandomState::new().hash_one(0_u64)
}

/// A map by key that knows what memory it takes. The keys are hashes already, but come from outside: a seed of our own
/// keeps a peer from choosing ones that collide.
#[derive(Debug)]
pub(super) struct Map<V> {
    table: HashMap<Key, V, Seeded>,
    /// Places that are allocated. The table itself does not tell: what was removed may go on taking a place of its capacity.
    places: usize,
}

impl<V> Default for Map<V> {
    fn default() -> Map<V> {
        Map { table: HashMap::default(), places: 0 }
    }
}

impl<V> Map<V> {
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }

    /// Places that a look through all of it visits.
    pub(super) fn places(&self) -> usize {
        self.places
    }

    pub(super) fn get(&self, key: Key) -> Option<&V> {
        self.table.get(&key)
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut V> {
        self.table.get_mut(&key)
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.table.contains_key(&key)
    }

    pub(super) fn insert(&mut self, key: Key, value: V) -> Option<V> {
        let before = self.table.insert(key, value);
        self.places = self.places.max(places(self.table.capacity()));
        before
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<V> {
        self.table.remove(&key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Key, &V)> {
        self.table.iter().map(|(key, value)| (*key, value))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut V)> {
        self.table.iter_mut().map(|(key, value)| (*key, value))
    }

    pub(super) fn retain(&mut self, mut keep: impl FnMut(Key, &mut V) -> bool) {
        self.table.retain(|key, value| keep(*key, value));
        self.fit();
    }

    /// Empties it and gives its memory back, which costs no more than what was put into it.
    pub(super) fn clear(&mut self) {
        *self = Map::default();
    }

    /// Gives memory back once seven eighths of it are free, and keeps room for as many again: so it does not move for each
    /// that comes and goes.
    pub(super) fn fit(&mut self) {
        let room = self.len() * 2;
        if self.places > FEWEST && places(room.max(FEWEST)) * 4 <= self.places {
            self.table.shrink_to(room);
            self.places = places(self.table.capacity());
        }
    }

    /// Bytes that it takes once `more` entries have been added, with the old table beside the new one while it grows.
    pub(super) fn bytes(&self, more: usize) -> usize {
        let entry = size_of::<(Key, V)>() + 1;
        let wanted = self.len() + more;
        // A table that is half empty is put in order where it is.
        let grows = wanted > self.table.capacity() && wanted > self.places * 7 / 16;
        let new = if grows { places(wanted.max(self.places * 7 / 8 + 1)) } else { 0 };
        // It doubles, and the last table but one is half of the last.
        self.places.max(new + new / 2) * entry
    }
}

/// A table of so few places is never made smaller.
const FEWEST: usize = 64;

/// Places of a table for so many entries: an eighth stays free.
fn places(entries: usize) -> usize {
    match entries {
        0 => 0,
        1..4 => 4,
        4..8 => 8,
        _ => (entries * 8 / 7).next_power_of_two(),
    }
}

#[derive(Clone, Debug)]
struct Seeded(u64);

impl Default for Seeded {
    fn default() -> Seeded {
        Seeded(draw())
    }
}

impl BuildHasher for Seeded {
    type Hasher = Spread;
    fn build_hasher(&self) -> Spread {
        Spread(self.0)
    }
}

struct Spread(u64);

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

/// Bytes that a vector takes once `more` things have been added, with the old one beside the new one while it grows.
pub(super) fn vec_bytes<T>(vec: &Vec<T>, more: usize) -> usize {
    let (mut new, wanted) = (vec.capacity(), vec.len() + more);
    while new < wanted {
        new = (new * 2).max(4);
    }
    let old = if new > vec.capacity() { new / 2 } else { 0 };
    (new + old) * size_of::<T>()
}

/// Gives a vector's memory back once seven eighths of it are free.
pub(super) fn fit<T>(vec: &mut Vec<T>) {
    if vec.capacity() > FEWEST && vec.len() * 8 <= vec.capacity() {
        vec.shrink_to(vec.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Run<'r> = &'r dyn Fn(&mut Map<u32>);

    /// A map after this run of inserts and removals, and the bytes that it left allocated by the allocator's own account.
    fn allocated(run: impl FnOnce(&mut Map<u32>)) -> (Map<u32>, usize) {
        let mut map = Map::default();
        let counted = allocation_counter::measure(|| run(&mut map));
        (map, usize::try_from(counted.bytes_current).unwrap())
    }

    #[test]
    fn a_map_knows_what_it_has_allocated_however_it_came_to_its_size() {
        let fill = |map: &mut Map<u32>, keys: std::ops::Range<u64>| {
            keys.for_each(|key| {
                map.insert(key, 0);
            });
        };
        let drain = |map: &mut Map<u32>, keys: std::ops::Range<u64>| {
            keys.for_each(|key| {
                map.remove(key);
            });
        };
        let runs: [Run<'_>; 5] = [
            &|map| fill(map, 0..1000),
            // Full to the last place, and empty again: what was removed still takes its place.
            &|map| {
                fill(map, 0..1792);
                drain(map, 0..1792);
            },
            &|map| {
                (0..50).for_each(|turn| {
                    fill(map, turn * 900..turn * 900 + 900);
                    drain(map, turn * 900..turn * 900 + 900);
                });
            },
            &|map| {
                fill(map, 0..100_000);
                map.retain(|key, _| key < 10);
            },
            &|map| {
                fill(map, 0..100_000);
                map.clear();
            },
        ];
        for (at, run) in runs.iter().enumerate() {
            let (map, held) = allocated(run);
            // A group of control bytes, and alignment, lie beside the places.
            assert!((map.bytes(0)..=map.bytes(0) + 64).contains(&held), "{at}: {} of {held}", map.bytes(0));
        }
    }

    #[test]
    fn what_was_told_beforehand_holds_what_comes() {
        let mut map = Map::default();
        for key in 0..3000_u64 {
            let told = map.bytes(100);
            let counted = allocation_counter::measure(|| {
                (0..100).for_each(|more| {
                    map.insert(key * 100 + more, 0_u32);
                });
            });
            let peak = usize::try_from(counted.bytes_max).unwrap();
            assert!(map.bytes(0) <= told && peak <= told + 64, "{key}: {told}, {peak}");
            if key % 7 == 6 {
                (key * 100 - 500..key * 100).for_each(|key| {
                    map.remove(key);
                });
            }
        }
    }

    #[test]
    fn a_sample_is_drawn_by_a_number_that_nobody_knows() {
        // A thousand keys that a sample of one draw takes at 1 in 1024; of another draw's they are as any others.
        let (known, other) = (Sampling::drawn(0).one_in(10), Sampling::drawn(draw()).one_in(10));
        let keys: Vec<Key> = (1..).filter(|key| known.takes(*key)).take(1000).collect();
        assert!(keys.iter().filter(|key| other.takes(**key)).count() < 50);
    }
}
