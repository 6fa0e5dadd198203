//! What is claimed of a tier, held against a simulated engine whose tier is known, over random histories.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::bound::{self, Fill, Resolved};
use crate::events::ledger::{Ledger, Limits};
use crate::events::wire::{Event, Medium};
use crate::events::{Hints, Resident, address::Address};
use crate::model::{self, EngineId, Fact, Size, SizeSource, Slots, Snapshot};
use crate::settings::{HostFacts, Settings};

const CHUNK: f64 = 16_384.0;
const LIMITS: Limits = Limits { window: 3600.0, max_error: 0.03 };

/// What a reset does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scope {
    /// The pool alone, announced.
    Pool,
    /// Pool and tier, announced.
    Both,
    /// The tier alone: the pool had blocks in use, so nothing is announced.
    Tier,
}

#[derive(Clone, Debug)]
enum Step {
    /// A request of these chunks, whose stores take so many steps.
    Ask(u64, u64, u8),
    /// A tier behind gives these back.
    Promote(u64, u64),
    /// An engine step that only publishes.
    Tick,
    /// The engine does nothing for so long.
    Idle(f64),
    Reset(Scope),
    /// So many batches on their way are lost, and another one follows, which tells of it, or the engine has nothing more to say.
    Lose(usize, bool),
    /// The connection breaks; the next one may ask for a replay.
    Reconnect(bool),
    /// The engine begins anew, with or without a word to the connection.
    Restart,
    /// The engine's clock is set.
    Clock(f64),
    /// Identities are sampled.
    Sample(u32),
    Scrape,
}

/// A batch of the simulation, with the chunks that were ready when it was made.
#[derive(Clone)]
struct Sent {
    seq: u64,
    at: f64,
    events: Vec<Happened>,
    ready: usize,
}

#[derive(Clone, Debug, PartialEq)]
enum Happened {
    Stored(Vec<u64>),
    Removed(Vec<u64>),
    Cleared,
}

/// An engine and its tier.
struct Engine {
    slots: usize,
    /// Oldest use first.
    ready: Vec<u64>,
    pending: Vec<(u64, u8)>,
    news: Vec<Happened>,
    cleared: bool,
    sent: Vec<Sent>,
    stored: u64,
    promoted: u64,
    allocated: u64,
    refused: u64,
    calls: u64,
    clock: f64,
    /// Chunks that nobody asked for before.
    unheard: u64,
}

impl Engine {
    fn new(slots: usize, clock: f64) -> Engine {
        Engine {
            slots,
            ready: Vec::new(),
            pending: Vec::new(),
            news: Vec::new(),
            cleared: false,
            sent: Vec::new(),
            stored: 0,
            promoted: 0,
            allocated: 0,
            refused: 0,
            calls: 0,
            clock,
            unheard: 0,
        }
    }

    fn ask(&mut self, chunks: std::ops::Range<u64>, steps: u8) {
        for chunk in chunks.clone() {
            if let Some(at) = self.ready.iter().position(|known| *known == chunk) {
                let chunk = self.ready.remove(at);
                self.ready.push(chunk);
            }
        }
        let missing: Vec<u64> = chunks
            .clone()
            .filter(|chunk| !self.ready.contains(chunk) && self.pending.iter().all(|(pending, _)| pending != chunk))
            .collect();
        let free = self.slots - self.ready.len() - self.pending.len();
        let evict = missing.len().saturating_sub(free);
        let victims: Vec<u64> = self.ready.iter().copied().filter(|c| !chunks.contains(c)).take(evict).collect();
        if victims.len() < evict {
            self.refused += missing.len() as u64;
            return;
        }
        self.ready.retain(|chunk| !victims.contains(chunk));
        if !victims.is_empty() {
            self.news.push(Happened::Removed(victims));
        }
        self.allocated += missing.len() as u64;
        self.pending.extend(missing.into_iter().map(|chunk| (chunk, steps)));
    }

    /// A request of a chunk that was never asked for.
    fn ask_for_another(&mut self) {
        self.unheard += 1;
        self.ask(1000 + self.unheard..1001 + self.unheard, 0);
        self.step();
    }

    /// Stores that are done become ready, and what happened is published.
    fn step(&mut self) {
        let done: Vec<u64> = self.pending.iter().filter(|(_, left)| *left == 0).map(|(chunk, _)| *chunk).collect();
        self.pending.retain(|(_, left)| *left > 0);
        self.pending.iter_mut().for_each(|(_, left)| *left -= 1);
        if !done.is_empty() {
            self.stored += done.len() as u64;
            self.ready.extend(&done);
            self.news.push(Happened::Stored(done));
        }
        self.publish();
    }

    fn publish(&mut self) {
        let mut events = Vec::new();
        if std::mem::take(&mut self.cleared) {
            events.push(Happened::Cleared);
        }
        events.append(&mut self.news);
        if !events.is_empty() {
            let (seq, ready) = (self.sent.len() as u64, self.ready.len());
            self.sent.push(Sent { seq, at: self.clock, events, ready });
        }
    }

    fn reset(&mut self, scope: Scope) {
        self.calls += 1;
        self.cleared |= scope != Scope::Tier;
        if scope != Scope::Pool {
            self.ready.clear();
            self.pending.clear();
        }
    }
}

/// How sizes are known.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sized {
    /// The engine states bytes and slots.
    Stated,
    /// It states so many times the bytes that its chunks have, and no slots: how many there are is an estimate.
    Own(f64),
    /// The operator does.
    Flag(f64),
    No,
}

struct World {
    engine: Engine,
    sized: Sized,
    /// Pages tell of the slots handed out.
    counts: bool,
    /// The page tells of stores under way.
    tells_storing: bool,
    buffer: usize,
    reader: Reader,
    ledger: Ledger,
    /// Of the engine's batches, how many were delivered or lost.
    wire: VecDeque<Sent>,
    taken: usize,
    now: f64,
    /// The last batch taken in, of which engine.
    seen: Option<(u64, Sent)>,
    generation: u64,
    tier_behind_ram: bool,
    /// A silent reset, and how much was stored when a page told of it.
    silent: Option<u64>,
    /// A page of the present engine was seen.
    paged: bool,
}

fn fact(value: f64) -> Fact {
    Fact::new(value, "test")
}

impl World {
    fn new(slots: usize, sized: Sized, counts: bool, tells_storing: bool, buffer: usize, behind: bool) -> World {
        let endpoint = Endpoint {
            link: Link::Connect(Address { host: "h".to_owned(), port: 1 }),
            replay: None,
            topic: String::new(),
        };
        let mut reader = Reader::new(endpoint, Arc::new(Shared::default()), Shares { arrival: 1 << 24, fold: 1 << 24 });
        reader.status.up = true;
        reader.status.current = true;
        World {
            engine: Engine::new(slots, 1.8e9),
            sized,
            counts,
            tells_storing,
            buffer,
            reader,
            ledger: Ledger::default(),
            wire: VecDeque::new(),
            taken: 0,
            now: 0.0,
            seen: None,
            generation: 0,
            tier_behind_ram: behind,
            silent: None,
            paged: false,
        }
    }

    /// The model's reading of a page of now.
    fn page(&self) -> model::Engine {
        let mut engine = model::Engine::new(EngineId::new("m", "0"));
        (engine.external_queries, engine.external_hits) = (Some(fact(100.0)), Some(fact(0.0)));
        engine.reset_calls.others = self.engine.calls as f64;
        let tier = engine.tier_or_insert("ram", model::Medium::Ram, "OffloadingConnector");
        tier.bounded_by_stores = true;
        tier.transfers.stored_bytes = Some(fact((self.engine.stored - self.engine.promoted) as f64 * CHUNK));
        tier.refusals = self.engine.refused as f64;
        if self.tier_behind_ram {
            tier.promoted = Some(fact(self.engine.promoted as f64 * CHUNK));
        }
        if self.tells_storing {
            tier.storing = Some(fact(self.engine.pending.len() as f64 / self.engine.slots as f64));
        }
        let bytes = self.engine.slots as f64 * CHUNK;
        let allocated = Some(fact((self.engine.allocated + self.engine.refused) as f64));
        if self.counts {
            tier.allocated = allocated;
        }
        match self.sized {
            Sized::Stated => {
                tier.sizes.push(Size { fact: fact(bytes), source: SizeSource::ConfigInfo });
                tier.slots = Some(Slots {
                    allocated,
                    count: fact(self.engine.slots as f64),
                    bytes: fact(bytes),
                    blocks_per_slot: None,
                });
            }
            Sized::Own(by) => tier.sizes.push(Size { fact: fact(bytes * by), source: SizeSource::CacheConfig }),
            Sized::Flag(_) | Sized::No => {}
        }
        engine
    }

    fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        if let Sized::Flag(by) = self.sized {
            settings.tier_sizes.insert("ram".to_owned(), (self.engine.slots as f64 * by * CHUNK) as u64);
        }
        settings
    }

    fn put(&mut self, sent: &Sent) {
        let mut hashes = Vec::new();
        let mut events = Vec::new();
        for event in &sent.events {
            let from = hashes.len();
            events.push(match event {
                Happened::Cleared => Event::Cleared,
                Happened::Stored(chunks) => {
                    // One event a chunk.
                    for chunk in chunks {
                        let from = hashes.len();
                        hashes.push(hash(*chunk));
                        events.push(Event::Stored {
                            medium: Medium::Ram,
                            group: 0,
                            hashes: from..hashes.len(),
                            parent: None,
                            block_tokens: 0,
                        });
                    }
                    continue;
                }
                Happened::Removed(chunks) => {
                    hashes.extend(chunks.iter().map(|chunk| hash(*chunk)));
                    Event::Removed { medium: Medium::Ram, group: 0, hashes: from..hashes.len() }
                }
            });
        }
        self.reader.batch = Batch::made(sent.at, events, hashes);
    }

    /// New batches go on their way.
    fn send(&mut self) {
        self.wire.extend(self.engine.sent[self.taken..].iter().cloned());
        self.taken = self.engine.sent.len();
    }

    /// Takes in what is on its way but for so many batches.
    fn deliver(&mut self, late: usize) {
        while self.wire.len() > late {
            let Some(sent) = self.wire.pop_front() else { break };
            self.put(&sent);
            // Where nothing is replayed, an engine whose first batch to come has the very number that was expected of the
            // one before cannot be told from it.
            let is_another = self.seen.as_ref().is_some_and(|(generation, _)| *generation != self.generation);
            if is_another && sent.seq == self.reader.sequence.next() {
                self.reader.restarted();
            }
            self.reader.live(sent.seq);
            self.seen = Some((self.generation, sent));
        }
        self.tell();
    }

    fn tell(&mut self) {
        let waiting = self.reader.doubted;
        self.reader.heed();
        // A batch is late by a step at most, and one has passed since the page told of a reset.
        if waiting.is_some() && self.reader.doubted.take().is_some() {
            self.reader.fold.iter_mut().for_each(Fold::settle);
        }
        self.reader.tell();
    }

    /// As the reader begins a connection. The replay is asked from the last batch on, and has to give it back.
    fn connect(&mut self, replay: bool) {
        self.wire.clear();
        self.taken = self.engine.sent.len();
        self.reader.sequence.connected();
        (self.reader.status.up, self.reader.status.current) = (true, false);
        let mut whole = false;
        if replay {
            let kept: Vec<Sent> = self.engine.sent.iter().rev().take(self.buffer).rev().cloned().collect();
            let known = self.reader.sequence.last();
            let same = known.is_none_or(|known| {
                kept.iter()
                    .find(|sent| sent.seq >= known)
                    .is_some_and(|first| first.seq == known && self.reader.sequence.ended_with(known, first.at))
            });
            // An answer that begins later has no last batch to be known by.
            if !same {
                self.reader.restarted();
            }
            self.reader.unsettle();
            for sent in kept {
                let next = self.reader.sequence.next();
                if sent.seq >= next {
                    if sent.seq > next {
                        self.reader.gap(sent.seq);
                    }
                    self.put(&sent);
                    self.reader.take(sent.seq);
                    self.seen = Some((self.generation, sent));
                }
            }
            whole = true;
        }
        self.reader.status.current = whole || self.reader.fold.is_none();
        self.tell();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Ask(from, count, steps) => {
                self.engine.ask(*from..from + count, *steps);
                self.engine.step();
            }
            Step::Promote(from, count) => {
                if self.tier_behind_ram {
                    let before = self.engine.allocated;
                    self.engine.ask(*from..from + count, 0);
                    self.engine.promoted += self.engine.allocated - before;
                }
                self.engine.step();
            }
            Step::Tick => self.engine.step(),
            Step::Idle(seconds) => {
                self.now += seconds;
                self.engine.clock += seconds;
            }
            // A clear that follows a silent reset is taken for its announcement, unless a page has told of the reset and
            // something was stored since.
            Step::Reset(scope) if *scope != Scope::Tier && self.silent.is_some() => {}
            // Nor is it told from a clear of which it is not known yet what it emptied.
            Step::Reset(Scope::Tier) if self.is_open() => {}
            // What a page has counted before it was first seen may be from before the stream that is followed.
            Step::Reset(_) if !self.paged && self.generation > 0 => {}
            Step::Reset(scope) => {
                if *scope == Scope::Tier {
                    self.silent = Some(u64::MAX);
                }
                self.engine.reset(*scope);
            }
            Step::Lose(count, tells) => {
                for _ in 0..*count {
                    self.engine.ask_for_another();
                }
                self.send();
                self.wire.clear();
                if *tells {
                    self.engine.ask_for_another();
                }
            }
            Step::Reconnect(replay) => self.connect(*replay),
            Step::Restart => {
                self.silent = None;
                self.engine = Engine::new(self.engine.slots, self.engine.clock + 5.0);
                self.now += 5.0;
                self.generation += 1;
                self.paged = false;
                self.connect(false);
            }
            // Where batches that were made before a reset come after it, only their time tells.
            Step::Clock(by) if *by < 0.0 && self.silent.is_some() => {}
            Step::Clock(by) => self.engine.clock += by,
            Step::Sample(halvings) => {
                // Always the same sample, so that a history that fails does so again.
                let fold = self.reader.fold.take();
                self.reader.fold = fold.map(|fold| if fold.view().one_in == 1 { fold.drawn(0) } else { fold });
                self.reader.fold.iter_mut().for_each(|fold| fold.sample(*halvings));
            }
            Step::Scrape => {}
        }
        self.silent = self.silent.filter(|stored| self.engine.stored <= *stored);
        self.now += 0.3;
        self.engine.clock += 0.3;
    }

    /// Whether something is not known of the chunks that were announced.
    fn is_open(&self) -> bool {
        let bounds = self.reader.fold.as_ref().map(|fold| fold.view().bounds).unwrap_or_default();
        let on_its_way = self.wire.iter().any(|sent| sent.events.contains(&Happened::Cleared));
        self.engine.cleared || on_its_way || bounds.sure != bounds.possible
    }

    /// A scrape: the page is of now, and the stream has brought what is on its way or not yet.
    fn scrape(&mut self) -> Result<(), TestCaseError> {
        let page = self.page();
        self.paged = true;
        if self.reader.status.current {
            self.silent = self.silent.map(|_| self.engine.stored);
        }
        let snapshot = Snapshot { engines: vec![page], ..Snapshot::default() };
        let statuses = vec![Arc::clone(&crate::events::lock(&self.reader.shared.status))];
        let facts = HostFacts { streams: self.ledger.streams(&statuses, self.now), ..HostFacts::default() };
        let settings = self.settings();
        let resolved = bound::resolve(&snapshot, &settings, &facts);
        self.check(&resolved[0], &statuses[0])?;
        let resident = resolved[0].tiers[0].resident;
        self.ledger.note(&snapshot.engines[0], &statuses[0], resident, LIMITS, self.now);
        let fold = statuses[0].view.as_ref().map(|view| view.fold);
        let slots = fold.zip(resident.and_then(|resident| resident.room()));
        let (doubt, outlived) = self.ledger.hints(&statuses[0]);
        *crate::events::lock(&self.reader.shared.hints) = Hints { slots, doubt, outlived };
        Ok(())
    }

    /// What a scrape would tell now.
    fn look(&self) -> Resident {
        let snapshot = Snapshot { engines: vec![self.page()], ..Snapshot::default() };
        let statuses = [Arc::clone(&crate::events::lock(&self.reader.shared.status))];
        let facts = HostFacts { streams: self.ledger.streams(&statuses, self.now), ..HostFacts::default() };
        let settings = self.settings();
        bound::resolve(&snapshot, &settings, &facts)[0].tiers[0].resident.unwrap()
    }

    fn check(&self, resolved: &Resolved<'_>, status: &Status) -> Result<(), TestCaseError> {
        let (tier, slots) = (&resolved.tiers[0], self.engine.slots as f64);
        let ready = self.engine.ready.len() as f64;
        let size = tier.size.map(|size| size.fact.value);
        let right_size = size.is_none_or(|size| (size - slots * CHUNK).abs() < 0.5);
        if let (true, Fill::AtMost { bytes, .. } | Fill::Measured { bytes: Some(bytes), .. }) = (right_size, &tier.fill)
        {
            prop_assert!(*bytes + 0.5 >= ready * CHUNK, "bound {} of {ready}; {:?}", bytes / CHUNK, tier.fill);
        }
        if right_size {
            prop_assert_eq!(tier.resident.and_then(|r| r.shown), None, "a size that is right is doubted");
        }
        let Some(resident) = tier.resident else { return Ok(()) };
        prop_assert!(status.current, "told before proof");
        let Some((generation, seen)) = &self.seen else { return Ok(()) };
        if *generation != self.generation {
            prop_assert!(!resident.exact || resident.chunks.0 <= 0.0, "of an engine that is no more: {:?}", resident);
            return Ok(());
        }
        if resident.exact {
            prop_assert_eq!(resident.chunks, (seen.ready as f64, Some(seen.ready as f64)), "exact");
            prop_assert!(
                resident.chunk.is_none_or(|chunk| (chunk.bytes - CHUNK).abs() < 0.5),
                "chunk {:?}",
                resident.chunk
            );
        }
        // Estimates are no bounds, nor is what the operator got wrong.
        let right_size = right_size && resident.chunk.is_none_or(|chunk| chunk.exact);
        prop_assert!(
            !right_size || resident.chunks.0 <= ready.max(seen.ready as f64) + 1e-6,
            "low {} of {}",
            resident.chunks.0,
            seen.ready
        );
        let high = resident.chunks.1.filter(|_| right_size);
        prop_assert!(high.is_none_or(|high| high >= seen.ready as f64), "high {high:?} of {}", seen.ready);
        Ok(())
    }
}

fn hash(chunk: u64) -> u64 {
    (chunk + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn step() -> impl Strategy<Value = Step> {
    let scope = prop_oneof![Just(Scope::Pool), Just(Scope::Both), Just(Scope::Tier)];
    prop_oneof![
        30 => (0_u64..40, 1_u64..9, 0_u8..4).prop_map(|(from, count, steps)| Step::Ask(from, count, steps)),
        2 => (0_u64..40, 1_u64..5).prop_map(|(from, count)| Step::Promote(from, count)),
        10 => Just(Step::Tick),
        4 => prop_oneof![Just(1.0), Just(3.0), Just(20.0)].prop_map(Step::Idle),
        4 => scope.prop_map(Step::Reset),
        2 => (1_usize..3, any::<bool>()).prop_map(|(count, tells)| Step::Lose(count, tells)),
        1 => any::<bool>().prop_map(Step::Reconnect),
        1 => Just(Step::Restart),
        1 => prop_oneof![Just(-30.0), Just(-3600.0), Just(3600.0)].prop_map(Step::Clock),
        1 => (0_u32..3).prop_map(Step::Sample),
        14 => Just(Step::Scrape),
    ]
}

fn sized() -> impl Strategy<Value = Sized> {
    prop_oneof![
        3 => Just(Sized::Stated),
        2 => Just(Sized::Own(1.0)),
        // Chunks are padded, or not all of the size is the tier's.
        1 => Just(Sized::Own(1.2)),
        2 => Just(Sized::Flag(1.0)),
        1 => Just(Sized::Flag(0.5)),
        1 => Just(Sized::Flag(2.0)),
        1 => Just(Sized::No),
    ]
}

fn run(steps: &[(Step, bool)], world: &mut World) -> Result<(), TestCaseError> {
    for (step, late) in steps {
        world.step(step);
        world.send();
        world.deliver(usize::from(*late));
        if matches!(step, Step::Scrape) {
            world.scrape()?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]
    /// Exact is equal to the truth, bounds hold it, a size that is right is not doubted, and nothing is told before proof.
    #[test]
    fn what_is_claimed_is_true(
        steps in proptest::collection::vec((step(), proptest::bool::weighted(0.15)), 1..90),
        slots in 4_usize..24,
        sized in sized(),
        counts in any::<bool>(),
        tells in proptest::bool::weighted(0.8),
        buffer in prop_oneof![Just(1000_usize), Just(3)],
        behind in proptest::bool::weighted(0.2),
        late in proptest::bool::weighted(0.3),
    ) {
        let mut world = World::new(slots, sized, counts, tells, buffer, behind);
        if late {
            for from in 0..6 {
                world.engine.ask(from * 3..from * 3 + 5.min(slots as u64), 0);
                world.engine.step();
            }
            world.taken = world.engine.sent.len();
        }
        run(&steps, &mut world)?;
    }
}

#[test]
fn the_slots_of_an_engine_are_not_those_of_the_one_after_it() {
    let mut world = World::new(4, Sized::Stated, true, true, 1000, false);
    let steps = [Step::Ask(0, 4, 0), Step::Scrape, Step::Tick];
    run(&steps.map(|step| (step, false)), &mut world).unwrap();
    // Another engine, with room for twice as many, whose first batch is lost: of eight chunks four are known.
    world.engine = Engine::new(8, world.engine.clock + 5.0);
    (world.taken, world.generation) = (0, 1);
    for from in [10, 14] {
        world.engine.ask(from..from + 4, 0);
        world.engine.step();
    }
    (world.engine.sent[1].seq, world.taken) = (7, 1);
    world.reader.restarted();
    world.send();
    world.deliver(0);
    world.tell();
    assert!(!world.reader.fold.as_ref().unwrap().view().bounds.is_exact());
}

/// What is told of a tier after these steps, and what it holds.
fn told(world: &mut World, steps: &[Step]) -> (Resident, f64) {
    let steps: Vec<(Step, bool)> = steps.iter().map(|step| (step.clone(), false)).collect();
    run(&steps, world).unwrap();
    (world.look(), world.engine.ready.len() as f64)
}

#[test]
fn a_batch_that_is_lost_before_the_engine_rests_leaves_nothing_exact() {
    let mut world = World::new(20, Sized::Stated, true, true, 1000, false);
    let resting = [Step::Scrape, Step::Idle(20.0), Step::Scrape, Step::Idle(20.0), Step::Scrape];
    let (resident, ready) = told(&mut world, &[&[Step::Ask(0, 5, 0)], &resting[..]].concat());
    assert_eq!((resident.exact, resident.chunks), (true, (ready, Some(ready))));
    // Nobody has noticed yet that it is missing, but for the page, which has counted what it stored.
    let (resident, ready) = told(&mut world, &[&[Step::Lose(1, false)], &resting[..]].concat());
    assert_eq!((resident.exact, resident.chunks), (false, (ready - 1.0, Some(ready))));
}
