//! The RAM tier of one simulated engine, with or without a disk tier behind it, and the copies that cross.
//!
//! As in vLLM, a store is written through, the disk tier gets a copy of each stored chunk, a chunk that only
//! the disk has is promoted into RAM before it is reloaded, and slots are pinned while a copy uses them. That
//! pinned share is all that vLLM's usage gauges tell; how many slots are occupied is known in here only.

use std::collections::BTreeSet;

use super::CHUNK_BYTES;
use super::draw::Draw;
use super::news::News;
use super::pool::{Chunk, Pool};
use super::tally::Tally;

/// Slots of the RAM tier: 32 GiB in chunks of 16 MiB.
pub(super) const TIER_CHUNKS: usize = 2048;

/// Copy speeds of one rank, in bytes per second, as measured on a node with a discrete GPU.
const STORE_SPEED: f64 = 13.1e9;
const RELOAD_SPEED: f64 = 13.4e9;
/// Disk speeds of one I/O thread, in bytes per second, and how many threads there are.
const DISK_WRITE_SPEED: f64 = 1.05e9;
const DISK_READ_SPEED: f64 = 1.7e9;
const DISK_THREADS: u64 = 16;
/// Share of the disk jobs that fail.
const DISK_FAILURES: f64 = 0.002;
/// Seconds between two stalls, on average, and how long one lasts: readers that hang hold every occupied slot.
const STALL_EVERY: f64 = 600.0;
const STALL_SECONDS: f64 = 2.0;
/// Seconds of one lookup in RAM and on disk.
const RAM_LOOKUP: f64 = 2e-5;
const DISK_LOOKUP: f64 = 3e-4;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Store,
    Reload,
    Promotion,
    Cascade,
}

/// Chunks on their way, pinned in RAM until `ends`.
#[derive(Debug)]
struct Copy {
    way: Way,
    chunks: Vec<Chunk>,
    starts: f64,
    ends: f64,
    /// Seconds of copying, summed over the threads at work.
    seconds: f64,
    fails: bool,
}

/// What the tiers could supply of a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reload {
    /// Chunks that were in RAM.
    pub(super) host: u64,
    /// Chunks that had to be promoted from disk first.
    pub(super) disk: u64,
    /// Simulated second at which all of them are in the GPU pool.
    pub(super) ready: f64,
}

/// The tiers behind one engine's GPU pool.
#[derive(Debug)]
pub(super) struct Tier {
    pool: Pool,
    copies: Vec<Copy>,
    /// Chunks on disk, where there is a disk tier. Files outlive the engine.
    disk: Option<BTreeSet<Chunk>>,
    /// Stores that found no slot and are tried again.
    owed: Vec<Vec<Chunk>>,
    stall: (f64, f64),
    draw: Draw,
    news: Vec<News>,
}

impl Tier {
    /// An empty tier; with an empty disk tier behind it if `disk`.
    pub(super) fn new(disk: bool, seed: u64) -> Tier {
        Tier {
            pool: Pool::new(TIER_CHUNKS),
            copies: Vec::new(),
            disk: disk.then(BTreeSet::new),
            owed: Vec::new(),
            stall: (0.0, 0.0),
            draw: Draw::new(seed),
            news: Vec::new(),
        }
    }

    /// The engine starts anew: RAM is empty, the files are still there.
    pub(super) fn restart(&mut self) {
        self.pool = Pool::new(TIER_CHUNKS);
        self.copies.clear();
        self.owed.clear();
        self.news.clear();
    }

    /// What became ready or was evicted since the last call.
    pub(super) fn take_news(&mut self) -> Vec<News> {
        self.note_evictions();
        std::mem::take(&mut self.news)
    }

    /// Evictions come before the stores that they made room for.
    fn note_evictions(&mut self) {
        self.news.extend(self.pool.take_lost().into_iter().map(News::Evicted));
    }

    /// Whether a disk tier lies behind the RAM tier.
    pub(super) fn has_disk(&self) -> bool {
        self.disk.is_some()
    }

    /// Slots that hold a chunk, ready or on its way in.
    pub(super) fn occupied(&self) -> usize {
        self.pool.resident()
    }

    /// Chunks that gave up their slot since the engine's start.
    pub(super) fn evicted(&self) -> u64 {
        self.pool.evicted()
    }

    /// Slots pinned by copies.
    pub(super) fn pinned(&self, now: f64) -> usize {
        if self.is_stalled(now) { self.pool.resident() } else { self.pool.pinned() }
    }

    /// Slots that stores are filling.
    pub(super) fn storing(&self) -> usize {
        self.moving(Way::Store)
    }

    /// Slots that promotions are filling.
    pub(super) fn promoting(&self) -> usize {
        self.moving(Way::Promotion)
    }

    /// Slots that cascades are reading.
    pub(super) fn cascading(&self) -> usize {
        self.moving(Way::Cascade)
    }

    /// Promotion jobs that run.
    pub(super) fn promotion_jobs(&self) -> usize {
        self.copies.iter().filter(|copy| copy.way == Way::Promotion).count()
    }

    /// Cascade jobs that run.
    pub(super) fn cascade_jobs(&self) -> usize {
        self.copies.iter().filter(|copy| copy.way == Way::Cascade).count()
    }

    fn moving(&self, way: Way) -> usize {
        self.copies.iter().filter(|copy| copy.way == way).map(|copy| copy.chunks.len()).sum()
    }

    fn is_stalled(&self, now: f64) -> bool {
        (self.stall.0..self.stall.1).contains(&now)
    }

    /// Slots that can be had now.
    fn obtainable(&self, now: f64) -> usize {
        if self.is_stalled(now) { self.pool.free() } else { self.pool.obtainable() }
    }

    /// Ends the copies that are done by `now`, and tries the owed stores again.
    pub(super) fn step(&mut self, now: f64, tally: &mut Tally) {
        self.land(now, tally);
        if now >= self.stall.1 {
            let starts = now + self.draw.waiting(STALL_EVERY);
            self.stall = (starts, starts + STALL_SECONDS);
        }
        for chunks in std::mem::take(&mut self.owed) {
            self.store(chunks, now, tally);
        }
    }

    /// Ends the copies that are done by `now`; a store that ends may start a cascade.
    pub(super) fn land(&mut self, now: f64, tally: &mut Tally) {
        while let Some(done) = self.copies.iter().position(|copy| copy.ends <= now) {
            let copy = self.copies.swap_remove(done);
            self.end(&copy, tally);
            if copy.way == Way::Store && self.has_disk() {
                self.cascade(copy.chunks, copy.ends);
            }
        }
    }

    fn end(&mut self, copy: &Copy, tally: &mut Tally) {
        let traffic = match copy.way {
            Way::Store => &mut tally.store,
            Way::Reload => &mut tally.load,
            Way::Promotion => &mut tally.promotion,
            Way::Cascade => &mut tally.cascade,
        };
        if copy.fails {
            traffic.failures += 1;
        } else {
            traffic.chunks += copy.chunks.len() as u64;
            traffic.seconds += copy.seconds;
            traffic.sizes.observe((copy.chunks.len() as u64 * CHUNK_BYTES) as f64);
        }
        match copy.way {
            Way::Promotion => Tier::count_promotion(copy, tally),
            Way::Cascade if !copy.fails => self.disk.iter_mut().for_each(|disk| disk.extend(&copy.chunks)),
            _ => {}
        }
        if !copy.fails && matches!(copy.way, Way::Store | Way::Promotion) {
            self.note_evictions();
            self.news.extend(copy.chunks.iter().copied().map(News::Stored));
        }
        for chunk in &copy.chunks {
            if copy.fails && copy.way == Way::Promotion { self.pool.discard(*chunk) } else { self.pool.unpin(*chunk) }
        }
    }

    fn count_promotion(copy: &Copy, tally: &mut Tally) {
        let latency = copy.ends - copy.starts;
        let histogram = if copy.fails { &mut tally.failed_promotion_latency } else { &mut tally.promotion_latency };
        histogram.observe(latency);
        let chunks = copy.chunks.len() as u64;
        tally.secondary_wait.spread(chunks, chunks as f64 * latency);
    }

    /// Starts a copy; the second at which it ends.
    fn start(&mut self, copy: Copy) -> f64 {
        let ends = copy.ends;
        self.copies.push(copy);
        ends
    }

    /// Seconds for so many chunks at about `speed`.
    fn copy_seconds(&mut self, chunks: usize, speed: f64) -> f64 {
        chunks as f64 * CHUNK_BYTES as f64 / (speed * self.draw.between(0.96, 1.04))
    }

    /// Writes chunks through to RAM, except those that are there. Without slots for all of them the attempt is
    /// refused, counted, and owed.
    pub(super) fn store(&mut self, chunks: Vec<Chunk>, now: f64, tally: &mut Tally) {
        let new: Vec<Chunk> = chunks.into_iter().filter(|chunk| !self.pool.contains(*chunk)).collect();
        if new.is_empty() {
            return;
        }
        tally.allocations.observe(new.len() as f64);
        if self.obtainable(now) < new.len() {
            tally.stores_refused += 1;
            self.owed.push(new);
            return;
        }
        for chunk in &new {
            self.pool.pin(*chunk);
        }
        self.device_job(Way::Store, new, now, STORE_SPEED);
    }

    fn cascade(&mut self, chunks: Vec<Chunk>, now: f64) {
        for chunk in &chunks {
            self.pool.pin(*chunk);
        }
        self.disk_job(Way::Cascade, chunks, now, DISK_WRITE_SPEED);
    }

    /// Starts a copy between GPU and RAM; its end.
    fn device_job(&mut self, way: Way, chunks: Vec<Chunk>, starts: f64, speed: f64) -> f64 {
        let seconds = self.copy_seconds(chunks.len(), speed);
        self.start(Copy { way, chunks, starts, ends: starts + seconds, seconds, fails: false })
    }

    /// Starts a job of the disk's threads; its end, or `None` if it is going to fail.
    fn disk_job(&mut self, way: Way, chunks: Vec<Chunk>, starts: f64, speed: f64) -> Option<f64> {
        let seconds = self.copy_seconds(chunks.len(), speed);
        let threads = DISK_THREADS.min(chunks.len() as u64);
        let fails = self.draw.chance(DISK_FAILURES);
        let ends = self.start(Copy { way, chunks, starts, ends: starts + seconds / threads as f64, seconds, fails });
        (!fails).then_some(ends)
    }

    /// Reloads the longest run of chunks that the tiers have, promoting from disk what RAM lacks. If that
    /// promotion fails, only what lies before its first chunk is reloaded.
    pub(super) fn reload(&mut self, wanted: &[Chunk], now: f64, tally: &mut Tally) -> Reload {
        let (mut found, mut promoted) = self.look_up(wanted, now, tally);
        let mut starts = now;
        if let Some(first) = promoted.first().copied() {
            match self.promote(promoted.clone(), now, tally) {
                Some(ends) => starts = ends,
                None => {
                    let kept = found.iter().position(|chunk| *chunk == first).unwrap_or(0);
                    found.split_off(kept).into_iter().for_each(|chunk| self.pool.unpin(chunk));
                    promoted.clear();
                }
            }
        }
        if found.is_empty() {
            return Reload { ready: now, ..Reload::default() };
        }
        let disk = promoted.len() as u64;
        let host = found.len() as u64 - disk;
        Reload { host, disk, ready: self.device_job(Way::Reload, found, starts, RELOAD_SPEED) }
    }

    /// The chunks from the front that can be supplied (pinned), and those of them that only the disk has.
    fn look_up(&mut self, wanted: &[Chunk], now: f64, tally: &mut Tally) -> (Vec<Chunk>, Vec<Chunk>) {
        let (mut found, mut promoted) = (Vec::new(), Vec::new());
        let (mut asked, mut asked_disk, mut on_disk) = (0, 0, 0);
        for chunk in wanted {
            asked += 1;
            if !self.pool.contains(*chunk) {
                let Some(disk) = &self.disk else { break };
                asked_disk += 1;
                if !disk.contains(chunk) {
                    break;
                }
                on_disk += 1;
                if self.obtainable(now) == 0 {
                    tally.promotions_refused += 1;
                    break;
                }
                promoted.push(*chunk);
                self.pool.pin(*chunk);
            }
            self.pool.pin(*chunk);
            found.push(*chunk);
        }
        tally.primary.count(asked, (found.len() - promoted.len()) as u64, RAM_LOOKUP);
        tally.secondary.count(asked_disk, on_disk, DISK_LOOKUP);
        tally.connector_delay.observe(asked as f64 * RAM_LOOKUP + asked_disk as f64 * DISK_LOOKUP);
        (found, promoted)
    }

    fn promote(&mut self, chunks: Vec<Chunk>, now: f64, tally: &mut Tally) -> Option<f64> {
        tally.allocations.spread(chunks.len() as u64, chunks.len() as f64);
        let ends = self.disk_job(Way::Promotion, chunks, now, DISK_READ_SPEED)?;
        tally.connector_wait.observe(ends - now);
        Some(ends)
    }

    /// Marks a prompt's chunks as used.
    pub(super) fn touch(&mut self, chunks: &[Chunk]) {
        for chunk in chunks {
            self.pool.touch(*chunk);
        }
    }

    /// A session is over: nobody will ask for its files again, so they need not be remembered.
    pub(super) fn forget(&mut self, session: u32) {
        if let Some(disk) = &mut self.disk {
            let (first, last) = (Chunk { session, index: 0 }, Chunk { session, index: u32::MAX });
            let gone: Vec<Chunk> = disk.range(first..=last).copied().collect();
            for chunk in gone {
                disk.remove(&chunk);
            }
        }
    }
}
