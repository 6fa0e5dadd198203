//! Which chunks are in the tier: a fold over its events, with all that they leave open. Pure; no clock of its own.
//!
//! Stored and removed are said; a reset is not. The GPU pool says when it is cleared, and the tier may have been
//! cleared with it or not; the tier alone may be cleared without a word. What happened is told by what follows,
//! since a chunk in the tier is never stored again and only a chunk in the tier can be removed.
//!
//! The history is cut into **eras** by what is not known at their borders ([`Border`]). A chunk belongs to the era
//! in which it was stored; it is surely there while every border since is closed. Two numbers bound the truth: the
//! chunks that are surely there, and those that may be.
//!
//! A full tier tells more. It has to evict for each chunk that it takes, and an eviction is announced before the store
//! that caused it: so more stores than were under way, and no eviction before them, tell that it was emptied. How many slots
//! it has is believed where the engine states it, and no estimate of it shows anything.
//!
//! # What it costs
//! Eras are numbered through, at most 64 are told apart, and what was emptied is dropped later: no event looks through all
//! chunks unless as many events have come since the last such look. Until then bounds are a little wider, never wrong.
//!
//! # What stays open
//! - A reset that nobody announces shows when a chunk comes again, or where the page counts it. Before that what is sure is not.
//! - If the tier alone is reset, and then the pool is cleared before anything shows the former, the clear is taken for
//!   the reset: what was stored between the two counts as gone while it is there. A page that was read in between, and something
//!   stored since, tell them apart; nothing in the stream does. The same holds for the reset of a tier during a clear that is not judged yet.
//! - An engine that takes the place of another, where nothing is replayed, and whose first batch to arrive has the very number
//!   that was expected of the other, goes on in its fold. The page's counters show it where they fall.
//! - A store that failed and was counted by the page makes the bytes of a chunk that are learned from page and stream too large,
//!   until two times at rest have none between them.
//! - The last batch before an engine rests may be lost, and the next one tells. A page that counts its stores shows it before; where
//!   page and stream have agreed about no moment yet, nothing is exact unless the tier is full.
//! - A reset that took place between the restart of an engine and the first page of it, and was not announced by then, is taken for one
//!   of before the stream, so that a stream that knows every slot is believed.
//! - A batch that was lost, was made before a reset that only the page counts, and is replayed after it, is told from later ones by
//!   its time alone: not where the engine's clock was set back in between.

use super::identity::{Key, Map, Sampling};

/// What may have happened between two eras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Border {
    /// The GPU pool was cleared, the tier perhaps with it.
    Cleared,
    /// The engine's page counted a reset that the stream did not announce: it took place after these ticks.
    Doubt(u32),
    /// Whether the stores of the era before it came before or after a reset is not known: it is the batch of a clear, or
    /// the time in which the tier was emptied without a word.
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
    /// The tier was emptied before.
    pub(super) emptied: Option<Emptied>,
    /// Seconds since the store of the chunk that was removed, where that is known.
    pub(super) age: Option<f64>,
}

/// When the tier was emptied, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Emptied {
    /// At the last clear of the GPU pool, or where the page told of a reset.
    AtBorder,
    /// Some time before this batch.
    Before,
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
    /// Number of its era: see [`Residency::era_of`].
    era: u32,
    /// Ticks since the fold began.
    stored: u32,
}

/// How many chunks the tier has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slots {
    pub(super) count: u64,
    /// The engine says so; else it is an estimate, or the operator's, who may be wrong. Nothing is shown by that.
    pub(super) stated: bool,
}

/// Eras that are told apart.
const MOST_ERAS: usize = 64;

/// Ages are kept in steps of 1/64 second, which lasts for two years; then no more are told.
const TICKS: f64 = 64.0;

/// Chunks that may be looked at for each one that was stored or removed, and looks through everything that may be saved up.
/// So a peer's bytes cost no more than so many looks, whatever it has put there before.
const LOOKS: usize = 16;
const SAVED: usize = 4;

/// The chunks of one engine's tier.
#[derive(Debug)]
pub(super) struct Residency {
    /// Some of them may be known to be gone: of an era that was emptied.
    chunks: Map<Chunk>,
    /// Number of the first era, and of the first one that was not emptied.
    first: u32,
    alive: u32,
    has_gone: bool,
    /// Chunks of each era, the present one last; also those that are not in `chunks` because of sampling.
    counts: Vec<u64>,
    /// `borders[i]` lies between era i and era i + 1.
    borders: Vec<Border>,
    /// Removed chunks that are not kept as such and may be of an earlier era than they were counted out of; and chunks that may
    /// be there, since such an earlier era was emptied.
    misplaced: u64,
    spared: u64,
    strangers: bool,
    /// A chunk was removed that we did not know.
    strangers_left: bool,
    /// While there may have been strangers a chunk left that is not kept as such: whether it was one of them is not known.
    blurred: bool,
    full: bool,
    /// Slots of the tier, as far as anybody says.
    slots: Option<Slots>,
    /// Slots of the tier as the engine states them, if it was full at the last border, every chunk in it was known, and it
    /// has not evicted since.
    was_full: Option<u64>,
    /// The page told of a reset, and nothing was stored or removed since; and what comes may have been made before it.
    in_doubt: bool,
    settling: bool,
    /// Most chunks that were surely there at once, since the last reset or gap.
    most: u64,
    /// Everything stored before these ticks is gone, and how many chunks have told more of it than was acted upon.
    gone: u32,
    told_of_gone: u64,
    /// In the batch at hand: what it stored and did not remove again, how many more that are not kept as such, and whether
    /// it holds a clear.
    fresh: Map<()>,
    fresh_unseen: u64,
    clearing: bool,
    /// Chunks that may be looked at.
    looks: usize,
    /// Time of the last batch, and seconds since the first one. A clock that is set back stands still for that batch.
    at: Option<f64>,
    passed: f64,
    sampling: Sampling,
    /// The coarsest sampling by which a chunk may have been stored that is still there.
    coarsest: Sampling,
    resets: Vec<Reset>,
}

impl Residency {
    /// An empty tier; or, where `strangers`, one of which nothing is known yet.
    pub(super) fn new(strangers: bool) -> Residency {
        Residency {
            chunks: Map::default(),
            first: 0,
            alive: 0,
            has_gone: false,
            counts: vec![0],
            borders: Vec::new(),
            misplaced: 0,
            spared: 0,
            strangers,
            strangers_left: false,
            blurred: false,
            full: false,
            slots: None,
            was_full: None,
            in_doubt: false,
            settling: false,
            most: 0,
            gone: 0,
            told_of_gone: 0,
            fresh: Map::default(),
            fresh_unseen: 0,
            clearing: false,
            looks: 0,
            at: None,
            passed: 0.0,
            sampling: Sampling::default(),
            coarsest: Sampling::default(),
            resets: Vec::new(),
        }
    }

    /// A batch of that time begins.
    pub(super) fn begin(&mut self, at: f64) {
        self.passed += (at - self.at.replace(at).unwrap_or(at)).max(0.0);
        self.fresh.clear();
        self.fresh_unseen = 0;
        self.may_look(1);
        self.end_clear();
        self.forget_gone();
        self.forget_empty_eras();
        self.merge_eras();
        self.tidy();
    }

    /// The batch ends.
    pub(super) fn end(&mut self) {
        let bounds = self.bounds();
        if bounds.is_exact() {
            self.most = self.most.max(bounds.sure);
        }
    }

    /// The GPU pool was cleared.
    pub(super) fn cleared(&mut self) {
        if self.clearing {
            return;
        }
        // It announces the reset that the page told of, if nothing was stored since.
        self.withdraw_doubt();
        self.border(Border::Cleared);
        self.clearing = true;
    }

    /// The page counted a reset that the stream did not announce: it took place at that time or later. Batches that were
    /// made before it may still be on their way, until [`Residency::settle`].
    pub(super) fn doubt(&mut self, since: f64) {
        self.end_clear();
        self.settling = true;
        if !self.in_doubt {
            self.border(Border::Doubt(self.ticks_at(since)));
            self.in_doubt = true;
        }
    }

    /// Batches that come from now on were made after the reset that the page told of.
    pub(super) fn settle(&mut self) {
        self.settling = false;
    }

    /// Batches that were missed come now, made before or after a reset that the page told of and nothing has placed yet. Whether
    /// there is one.
    pub(super) fn unsettle(&mut self) -> bool {
        self.settling |= self.in_doubt;
        self.in_doubt
    }

    /// Batches were lost: anything may have happened to what was there, and anything may have come.
    pub(super) fn lost(&mut self) {
        self.border(Border::Gap);
        self.strangers = true;
        self.strangers_left = true;
        self.was_full = None;
    }

    /// So many chunks fit. Where the engine says so and all of them are known, there is nothing else. Whether this
    /// shows that there never was anything else: then no stranger was removed either.
    pub(super) fn fits(&mut self, slots: Slots) -> bool {
        self.slots = Some(slots);
        let complete = slots.stated && !self.bounds().is_exact() && self.bounds().sure >= slots.count;
        if !complete {
            return false;
        }
        let sure_from = self.sure_from();
        self.empty_before(sure_from);
        (self.blurred, self.misplaced, self.spared) = (false, 0, 0);
        std::mem::take(&mut self.strangers) && !self.strangers_left
    }

    /// Most chunks that were surely in the tier at once, since the last reset or gap.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    pub(super) fn contains(&self, key: Key) -> bool {
        self.chunk(key).is_some()
    }

    /// The chunk is in the tier from now on.
    pub(super) fn stored(&mut self, key: Key) -> Effect {
        self.may_look(1);
        let known = self.chunk(key).filter(|_| !self.fresh.contains(key));
        let emptied = known.and_then(|chunk| self.judge_store(chunk));
        self.insert(key);
        Effect { emptied: emptied.or_else(|| self.judge_room()), age: None }
    }

    /// The chunk has left the tier.
    pub(super) fn removed(&mut self, key: Key) -> Effect {
        self.may_look(1);
        // What is on its way to us was evicted before the reset that the page told of.
        let is_older = self.clearing || self.settling && self.in_doubt;
        self.full = !is_older;
        self.in_doubt &= is_older;
        self.was_full = self.was_full.filter(|_| self.clearing);
        self.fresh.remove(key);
        let known = self.chunk(key);
        self.chunks.remove(key);
        if let Some(chunk) = known {
            self.uncount(self.era_of(chunk));
            if !self.clearing {
                self.judge_removal(chunk);
            }
            let now = self.ticks();
            let age = (now < u32::MAX).then(|| f64::from(now.saturating_sub(chunk.stored)) / TICKS);
            return Effect { emptied: None, age };
        }
        if self.coarsest.takes(key) || self.knows_each() {
            self.strangers_left = true;
        } else {
            self.remove_unseen();
        }
        Effect::default()
    }

    pub(super) fn bounds(&self) -> Bounds {
        let possible = self.possible() + self.spared;
        let sure = if self.clearing { 0 } else { self.counts[self.sure_from()..].iter().sum() };
        Bounds { sure, possible, strangers: self.strangers || self.blurred, full: self.full }
    }

    /// Resets that were judged since the last call.
    pub(super) fn take_resets(&mut self) -> Vec<Reset> {
        std::mem::take(&mut self.resets)
    }

    /// Keeps only the chunks of this sampling as such; the others are counted on. Of a finer one than before it keeps those
    /// that are stored from now on: what was there and was not kept is not known one by one until all of it has left.
    pub(super) fn sample(&mut self, sampling: Sampling) {
        if sampling.halvings() > self.sampling.halvings() {
            self.chunks.retain(|key, _| sampling.takes(key));
            self.fresh_unseen += self.fresh.len() as u64;
            self.fresh.retain(|key, ()| sampling.takes(key));
            self.fresh_unseen -= self.fresh.len() as u64;
        }
        self.sampling = sampling;
        if sampling.halvings() > self.coarsest.halvings() || self.possible() == 0 {
            self.coarsest = sampling;
        }
    }

    pub(super) fn bytes(&self, more: usize) -> usize {
        self.chunks.bytes(more) + self.fresh.bytes(more)
    }

    fn may_look(&mut self, events: usize) {
        self.looks = (self.looks + events * LOOKS).min(self.chunks.places() * SAVED + LOOKS);
    }

    /// Whether a look through all chunks is paid for.
    fn looks_through(&mut self) -> bool {
        let cost = self.chunks.places();
        let may = self.looks >= cost;
        self.looks -= if may { cost } else { 0 };
        may
    }

    fn chunk(&self, key: Key) -> Option<Chunk> {
        self.chunks.get(key).copied().filter(|chunk| chunk.era >= self.alive)
    }

    /// Place of its era among those that are told apart. Eras are numbered through; what became one with others, or was
    /// forgotten, is the first one.
    fn era_of(&self, chunk: Chunk) -> usize {
        chunk.era.saturating_sub(self.first) as usize
    }

    fn number_of(&self, era: usize) -> u32 {
        self.first + era as u32
    }

    fn possible(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn insert(&mut self, key: Key) {
        self.in_doubt = false;
        let era = self.era_of_stores();
        if self.sampling.takes(key) {
            let (stored, before) = (self.ticks(), self.chunk(key));
            self.chunks.insert(key, Chunk { era: self.number_of(era), stored });
            if let Some(before) = before {
                self.uncount(self.era_of(before));
            }
            self.fresh.insert(key, ());
        } else {
            self.fresh_unseen += 1;
        }
        self.counts[era] += 1;
    }

    /// Ticks of that time; the very first where it lies ahead of the last batch, since the clock was set back then.
    fn ticks_at(&self, at: f64) -> u32 {
        let ago = self.at.unwrap_or(at) - at;
        if ago < 0.0 { 0 } else { ((self.passed - ago) * TICKS) as u32 }
    }

    fn ticks(&self) -> u32 {
        (self.passed * TICKS) as u32
    }

    /// A chunk of that era is no more. Where one that is not kept as such has been taken for it, that one's is free.
    fn uncount(&mut self, era: usize) {
        match self.counts[era].checked_sub(1) {
            Some(left) => self.counts[era] = left,
            None => self.remove_unseen(),
        }
    }

    /// The present one; while the reset that the page told of may be later than the batch, the one before that.
    fn era_of_stores(&self) -> usize {
        let (present, doubted) = (self.counts.len() - 1, matches!(self.borders.last(), Some(Border::Doubt(_))));
        if self.settling && doubted { present - 1 } else { present }
    }

    /// A removed chunk that is not kept as such: of the present era if that has any, else of the last one that has. So what is
    /// sure stays so; what is possible does once those are counted that may be of an earlier era.
    fn remove_unseen(&mut self) {
        self.blurred |= self.strangers;
        self.fresh_unseen = self.fresh_unseen.saturating_sub(1);
        match self.counts.iter().rposition(|count| *count > 0) {
            Some(era) => {
                self.counts[era] -= 1;
                self.misplaced += u64::from(self.counts[..era].iter().any(|count| *count > 0));
            }
            None => self.spared = self.spared.saturating_sub(1),
        }
    }

    fn cut(&mut self, border: Border) {
        self.borders.push(border);
        self.counts.push(0);
    }

    /// Looks after what was put off, where that is paid for.
    fn tidy(&mut self) {
        if self.has_gone && self.looks_through() {
            self.sweep();
        }
        // Once in billions of eras.
        if self.first > u32::MAX / 2 {
            self.sweep();
            let first = std::mem::take(&mut self.first);
            self.alive = 0;
            self.chunks.iter_mut().for_each(|(_, chunk)| chunk.era = chunk.era.saturating_sub(first));
        }
        self.chunks.fit();
        // Nothing is left of a coarser sampling.
        if self.coarsest != self.sampling && self.knows_each() {
            self.coarsest = self.sampling;
        }
    }

    /// Whether each chunk that is counted is kept as such.
    fn knows_each(&mut self) -> bool {
        if self.has_gone && self.looks_through() {
            self.sweep();
        }
        !self.has_gone && self.spared == 0 && self.chunks.len() as u64 >= self.possible()
    }

    /// Drops what is known to be gone.
    fn sweep(&mut self) {
        let alive = self.alive;
        self.chunks.retain(|_, chunk| chunk.era >= alive);
        self.has_gone = false;
    }

    /// The first era of which every later border is closed.
    fn sure_from(&self) -> usize {
        self.borders.iter().rposition(|border| *border != Border::Closed).map_or(0, |border| border + 1)
    }

    /// A border at which the tier may have been emptied. What is known of a full one goes on to what follows.
    fn border(&mut self, border: Border) {
        let bounds = self.bounds();
        let was_full = self.full && bounds.is_exact();
        let stated = self.slots.filter(|slots| slots.stated && was_full && bounds.sure <= slots.count);
        self.was_full = stated.map(|slots| slots.count);
        (self.full, self.in_doubt) = (false, false);
        self.most = 0;
        self.cut(border);
    }

    /// What the batch of a clear stored is an era of its own.
    fn end_clear(&mut self) {
        if std::mem::take(&mut self.clearing) {
            self.cut(Border::Fog);
        }
    }

    /// Takes back what the page told of, if nothing was stored since. The border may be gone with all that was before it.
    fn withdraw_doubt(&mut self) {
        if !std::mem::take(&mut self.in_doubt) {
            return;
        }
        if matches!(self.borders.last(), Some(Border::Doubt(_))) {
            self.borders.pop();
            // Nothing was stored in it.
            self.counts.pop();
        }
        self.full |= self.was_full.is_some();
    }

    /// A chunk that was held for resident is stored again, so it was not there: the tier was emptied after its store.
    fn judge_store(&mut self, chunk: Chunk) -> Option<Emptied> {
        let era = self.era_of(chunk);
        let since = &self.borders[era..];
        // What came beside a clear proves nothing; what is missing may have been a removal.
        if self.clearing || since.contains(&Border::Gap) {
            return None;
        }
        let first = since.iter().position(|border| *border != Border::Closed).map(|at| era + at);
        match first.map(|at| (at, self.borders[at])) {
            Some((_, Border::Cleared)) => Some(self.judged(Reset::Tier, era)),
            Some((at, Border::Doubt(reset))) if chunk.stored < reset => Some(self.emptied_in_doubt(at, reset)),
            // When within the fog is told by the chunks of it that come again.
            Some(_) => {
                self.gone = self.gone.max(chunk.stored);
                self.told_of_gone = self.told_of_gone.saturating_add(1);
                self.strangers = false;
                None
            }
            None => {
                self.empty_silently(chunk.stored);
                Some(Emptied::Before)
            }
        }
    }

    /// A tier that was full takes more than was under way into it without evicting: it was emptied.
    fn judge_room(&mut self) -> Option<Emptied> {
        let room = self.was_full.filter(|_| !self.clearing)?;
        if self.possible() <= room {
            return None;
        }
        let first = self.borders.iter().position(|border| *border != Border::Closed)?;
        match self.borders[first] {
            Border::Cleared => Some(self.judged(Reset::Tier, first)),
            Border::Doubt(reset) => Some(self.emptied_in_doubt(first, reset)),
            _ => None,
        }
    }

    /// The page told of a reset after these ticks, and the tier was emptied then. What was stored between the two may have
    /// come before or after.
    fn emptied_in_doubt(&mut self, border: usize, since: u32) -> Emptied {
        self.borders[border] = Border::Fog;
        (self.gone, self.told_of_gone) = (self.gone.max(since), u64::MAX);
        self.forget_gone();
        (self.was_full, self.strangers) = (None, false);
        self.resets.push(Reset::Silent);
        Emptied::AtBorder
    }

    /// The tier was emptied at the first open border since this era.
    fn judged(&mut self, reset: Reset, era: usize) -> Emptied {
        let open = self.borders[era..].iter().position(|border| *border != Border::Closed);
        self.empty_before(era + open.unwrap_or(0) + 1);
        (self.was_full, self.strangers) = (None, false);
        self.resets.push(reset);
        Emptied::AtBorder
    }

    /// No chunk of an era before this one is there.
    fn empty_before(&mut self, era: usize) {
        self.alive = self.alive.max(self.number_of(era));
        self.has_gone = true;
        let spared = self.misplaced.min(self.counts[..era].iter().sum());
        self.misplaced -= spared;
        self.spared += spared;
        self.counts[..era].fill(0);
        self.borders[..era].fill(Border::Closed);
    }

    /// The tier was emptied without a word, after `gone` and before this batch. What was stored since then may have come
    /// before or after.
    fn empty_silently(&mut self, gone: u32) {
        // Two eras are left: all that was stored before this batch, and what was stored in it.
        let fresh = self.fresh.len() as u64 + self.fresh_unseen;
        self.counts = vec![self.possible().saturating_sub(fresh), fresh];
        self.first = self.number_of(self.borders.len());
        self.borders = vec![Border::Fog];
        let present = self.number_of(1);
        for (key, ()) in self.fresh.iter() {
            self.chunks.get_mut(key).into_iter().for_each(|chunk| chunk.era = present);
        }
        (self.strangers, self.full, self.was_full, self.most) = (false, false, None, 0);
        self.resets.push(Reset::Silent);
        (self.gone, self.told_of_gone) = (self.gone.max(gone), u64::MAX);
        self.forget_gone();
    }

    /// Forgets what was stored before a chunk out of the fog that came again. Many such chunks are acted upon
    /// together, since each time everything is looked through.
    fn forget_gone(&mut self) {
        let unsure: u64 = self.counts[..self.sure_from()].iter().sum();
        if self.told_of_gone == 0 || self.told_of_gone.saturating_mul(8) < unsure || !self.looks_through() {
            return;
        }
        self.told_of_gone = 0;
        let (gone, alive, first, counts) = (self.gone, self.alive, self.first, &mut self.counts);
        self.chunks.retain(|_, chunk| {
            if chunk.era < alive {
                return false;
            }
            let kept = chunk.stored >= gone;
            if !kept {
                let count = &mut counts[chunk.era.saturating_sub(first) as usize];
                *count = count.saturating_sub(1);
            }
            kept
        });
    }

    /// A chunk is removed, so it was there: the tier was left alone since its store.
    fn judge_removal(&mut self, chunk: Chunk) {
        let era = self.era_of(chunk);
        let since = &mut self.borders[era..];
        // It may have been stored after the reset.
        let is_later = |border: &Border| match border {
            Border::Fog => true,
            Border::Doubt(reset) => chunk.stored >= *reset,
            Border::Cleared | Border::Gap | Border::Closed => false,
        };
        if since.iter().find(|border| **border != Border::Closed).is_some_and(is_later) {
            return;
        }
        for border in since {
            match border {
                Border::Cleared => self.resets.push(Reset::Gpu),
                // What is on its way to us was evicted before the reset that the page told of.
                Border::Doubt(reset) if chunk.stored < *reset && !self.settling => {}
                Border::Fog => {}
                Border::Doubt(_) | Border::Gap | Border::Closed => continue,
            }
            *border = Border::Closed;
        }
    }

    /// Eras that nothing tells apart any more are not kept apart for ever: the oldest become one. What may have happened
    /// between them is a fog then, which proves less, and never something else.
    fn merge_eras(&mut self) {
        if self.counts.len() <= MOST_ERAS {
            return;
        }
        let merged = MOST_ERAS / 2;
        let borders: Vec<Border> = self.borders.drain(..=merged).collect();
        let cleared = borders.iter().filter(|border| **border == Border::Cleared).count();
        self.resets.extend(std::iter::repeat_n(Reset::Unknown, cleared));
        self.borders.insert(0, if borders.contains(&Border::Gap) { Border::Gap } else { Border::Fog });
        let count = self.counts.drain(..=merged).sum();
        self.counts.insert(0, count);
        self.first += merged as u32;
    }

    /// Borders with nothing before them matter no more.
    fn forget_empty_eras(&mut self) {
        let present = self.counts.len() - 1;
        let empty = self.counts[..present].iter().take_while(|count| **count == 0).count();
        let gone = self.borders.drain(..empty).filter(|border| *border == Border::Cleared).count();
        self.resets.extend(std::iter::repeat_n(Reset::Unknown, gone));
        self.counts.drain(..empty);
        self.first += empty as u32;
        // One that is kept as such may have been counted out for one that is not.
        if empty > 0 && self.chunks.len() as u64 > self.possible() {
            (self.alive, self.has_gone) = (self.alive.max(self.first), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batches, a second apart, each a text of events: `+a` stored, `-a` removed, `!` GPU pool cleared; `?` batches lost
    /// before it, `~2` a reset counted before it that may have taken place in the second 2 or later.
    fn told(residency: &mut Residency, batches: &[&str]) {
        for batch in batches {
            if batch.starts_with('?') {
                residency.lost();
            }
            if let Some(since) = batch.strip_prefix('~').and_then(|rest| rest.split(' ').next()) {
                residency.doubt(since.parse().unwrap());
                residency.settle();
            }
            residency.begin(residency.at.unwrap_or(0.0) + 1.0);
            for event in batch.split(' ') {
                let key = event.bytes().last().map_or(0, u64::from);
                match event.as_bytes().first() {
                    Some(b'+') => drop(residency.stored(key)),
                    Some(b'-') => drop(residency.removed(key)),
                    Some(b'!') => residency.cleared(),
                    _ => {}
                }
            }
            residency.end();
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
        // b and c came with a: whether before the reset or after it is not known.
        assert_eq!(after(&["+a +b +c", "+d +a +e"]), (3, 5, false));
        assert_eq!(resets(&["+a", "+a"]), [Reset::Silent]);
        // The same chunk twice in one batch is one chunk, and no reset.
        assert_eq!((after(&["+a +a"]), resets(&["+a +a"])), ((1, 1, false), vec![]));
    }

    #[test]
    fn when_a_silent_reset_was_is_told_by_what_comes_again() {
        // After the store of a, before its return: c may have come before or after.
        assert_eq!(after(&["+a", "+b", "+c", "+d +a"]), (2, 4, false));
        // After the store of c then, so b is gone.
        assert_eq!(after(&["+a", "+b", "+c", "+d +a", "+c", ""]), (3, 3, false));
        assert_eq!(after(&["+a", "+b", "+c", "+d +a", "+b", ""]), (3, 4, false));
        // An eviction does not tell more: the tier may have been emptied before it and be full of others since.
        assert_eq!(after(&["+a", "+b +c", "-a", "+d", "+e +b", ""]), (2, 4, false));
    }

    #[test]
    fn a_reset_that_the_page_counts_leaves_open_what_was_there() {
        assert_eq!(after(&["+a +b", "~2"]), (0, 2, false));
        // A chunk from before comes again: it was emptied. One is removed: it was not.
        assert_eq!(after(&["+a +b", "", "~2 +c"]), (1, 3, false));
        assert_eq!(after(&["+a +b", "", "~2 +c", "+a"]), (2, 2, false));
        assert_eq!(after(&["+a +b", "", "~2 +c", "-a"]), (2, 2, false));
        assert_eq!(resets(&["+a +b", "", "~2 +c", "+a"]), [Reset::Silent]);
        // Nor does an eviction before it tell when it was: c and d may have come before or after.
        assert_eq!(after(&["+a +b", "+c", "-a", "+d", "~2 +b", ""]), (1, 3, false));
        // What was stored about that time may have come before or after, and tells of itself alone.
        assert_eq!(after(&["+a", "+b", "~2 +c"]), (1, 3, false));
        assert_eq!(after(&["+a", "+b", "~2 +c", "+a"]), (2, 3, false));
        assert_eq!(after(&["+a", "+b", "~2 +c", "-b"]), (1, 2, false));
        assert_eq!(after(&["+a", "+b", "~2 +c", "+a", "+b"]), (3, 3, false));
        // It may have been at any time.
        assert_eq!(after(&["+a", "+b", "~-inf +c", "-a"]), (1, 2, false));
        // Counted again with nothing stored since, it is the same question.
        assert_eq!(after(&["+a", "~2", "~2", "~2 +c", "-a"]), (1, 1, false));
        // With something removed since, it is another one.
        assert_eq!(after(&["+a +b", "", "~2", "-a"]), (1, 1, false));
        assert_eq!(after(&["+a +b", "", "~2", "-a", "~4"]), (0, 1, false));
    }

    #[test]
    fn what_was_on_its_way_when_the_page_told_of_a_reset_is_no_evidence() {
        let mut residency = Residency::new(false);
        told(&mut residency, &["+a", "+b", "", ""]);
        residency.doubt(3.5);
        // Made before the reset: c is as gone as the others may be, and the removal of a tells nothing.
        told(&mut residency, &["+c -a"]);
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (0, 2));
        residency.settle();
        told(&mut residency, &["+d"]);
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (1, 3));
        // b comes again, so the tier was emptied after 3.5: c may have come after that.
        told(&mut residency, &["+b"]);
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (2, 3));
    }

    #[test]
    fn a_hundred_thousand_clears_leave_bounds_and_little_else() {
        let mut residency = Residency::new(false);
        told(&mut residency, &["+a +b"]);
        // Nothing tells what any of them emptied: another chunk comes and goes after each.
        for _ in 0..100_000 {
            told(&mut residency, &["!", "+c", "-c"]);
        }
        assert!(residency.counts.len() <= MOST_ERAS && residency.borders.len() < residency.counts.len());
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (0, 2));
        residency.take_resets();
        told(&mut residency, &["+d", "+a", "+b", ""]);
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (3, 3));
    }

    #[test]
    fn a_clock_that_is_set_back_does_not_make_the_latest_the_oldest() {
        let mut residency = Residency::new(false);
        told(&mut residency, &["+a", "+b"]);
        residency.at = Some(-3600.0);
        // c is stored after b, whatever the clock says; a silent reset after the store of b leaves it open.
        told(&mut residency, &["+c", "+d +b", ""]);
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (2, 3));
    }

    #[test]
    fn a_sample_counts_those_that_it_does_not_keep_whatever_era_they_were_of() {
        let (sampling, mut residency) = (Sampling::default().one_in(1), Residency::new(false));
        let kept = |kept: bool| (0..).filter(move |key| sampling.takes(*key) == kept);
        let (kept, unkept): (Vec<Key>, Vec<Key>) = (kept(true).take(2).collect(), kept(false).take(4).collect());
        residency.sample(sampling);
        residency.begin(1.0);
        for key in &unkept {
            residency.stored(*key);
        }
        residency.stored(kept[0]);
        residency.end();
        residency.begin(2.0);
        residency.cleared();
        residency.end();
        residency.begin(3.0);
        residency.stored(kept[1]);
        residency.end();
        // The clear was of the pool alone: of six chunks all four that are not kept leave, and then both of the others.
        residency.begin(4.0);
        for key in &unkept {
            residency.removed(*key);
        }
        residency.removed(kept[1]);
        residency.removed(kept[0]);
        residency.end();
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (0, 0));
    }

    #[test]
    fn a_clear_announces_the_reset_that_was_counted_before_it() {
        for since in ["~2", "~-inf"] {
            assert_eq!(after(&["+a +b", since, "!", "+c"]), (1, 3, false));
            assert_eq!(resets(&["+a +b", since, "!", "+a"]), [Reset::Tier]);
            assert_eq!(resets(&["+a +b", since, "!", "-a"]), [Reset::Gpu]);
        }
        // Not if something was stored between the two: then there were two.
        assert_eq!(after(&["+a +b", "", "~2 +c", "!", "-c"]), (0, 2, false));
        assert_eq!(after(&["+a +b", "", "~2 +c", "!", "-c", "-a"]), (1, 1, false));
    }

    /// Sure and possible chunks of a tier of three after these batches, and what its resets were judged.
    fn of_three(batches: &[&str]) -> (u64, u64, Vec<Reset>) {
        let mut residency = Residency::new(false);
        residency.fits(Slots { count: 3, stated: true });
        told(&mut residency, batches);
        let Bounds { sure, possible, .. } = residency.bounds();
        (sure, possible, residency.take_resets())
    }

    #[test]
    fn a_full_tier_that_stores_without_evicting_was_emptied() {
        let full = ["+a +b +c", "-a", "+d"];
        let then = |batches: &[&str]| of_three(&[&full[..], batches].concat());
        assert_eq!(then(&["!"]), (0, 3, vec![]));
        assert_eq!(then(&["!", "+e"]), (1, 1, vec![Reset::Tier]));
        assert_eq!(then(&["", "~4 +e"]), (1, 1, vec![Reset::Silent]));
        // It evicts first: it is as full as before, whatever follows.
        assert_eq!(then(&["!", "-b", "+e", "+f"]), (4, 4, vec![Reset::Gpu]));
        assert_eq!(then(&["!", "-x", "+e"]), (1, 4, vec![]));
        // What was on its way, or evicted beside the clear, needs no further eviction.
        assert_eq!(then(&["-b", "!", "+e"]), (1, 3, vec![]));
        assert_eq!(then(&["-b", "!", "+e", "+f"]), (2, 2, vec![Reset::Tier]));
        assert_eq!(then(&["! -b", "+e"]), (1, 3, vec![]));
        assert_eq!(then(&["! -b +e", "+f"]), (1, 1 + 1, vec![Reset::Tier]));
        // One that was not full has room.
        assert_eq!(of_three(&["+a +b", "!", "+c +d"]), (2, 4, vec![]));
    }

    #[test]
    fn what_is_not_known_is_not_there_once_the_known_fills_all_slots() {
        assert_eq!(of_three(&["+a +b", "!", "+c +d +e"]), (3, 5, vec![]));
        let mut residency = Residency::new(false);
        told(&mut residency, &["+a +b", "!", "+c +d +e"]);
        assert!(!residency.fits(Slots { count: 3, stated: false }), "the operator may be wrong");
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (3, 5));
        residency.fits(Slots { count: 3, stated: true });
        assert_eq!((residency.bounds().sure, residency.bounds().possible), (3, 3));
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
        assert!(!residency.fits(Slots { count: 3, stated: true }) && residency.bounds().strangers);
        told(&mut residency, &["+c"]);
        assert!(residency.fits(Slots { count: 3, stated: true }), "none was ever removed, so there were none");
        assert!(residency.bounds().is_exact());
        let mut residency = Residency::new(true);
        told(&mut residency, &["+a -x +b"]);
        assert!(!residency.fits(Slots { count: 2, stated: true }), "there was one, and it has left");
        assert!(residency.bounds().is_exact());
    }
}
