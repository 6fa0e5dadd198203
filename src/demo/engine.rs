//! One simulated engine: sessions that come back, a GPU pool with a prefix cache, and a scheduler.
//!
//! Time goes in steps of [`STEP`] seconds. It is no model of a GPU: speeds are constants near those of a
//! measured node. What it keeps exactly is the book-keeping: each prompt token has one source, each copied
//! chunk is there because a request computed, wanted or lost it, and nothing is counted that did not happen.

use std::collections::VecDeque;
use std::ops::Range;

use super::announced::Announced;
use super::draw::Draw;
use super::news::News;
use super::pool::{Chunk, Pool};
use super::request::{Request, Session, TOKEN_LIMIT};
use super::tally::{Sources, Tally};
use super::tier::Tier;

/// Simulated seconds of one step.
pub(super) const STEP: f64 = 0.25;
/// Tokens of one block, which is also one chunk: large, as vLLM makes it for hybrid models.
pub(super) const BLOCK_TOKENS: u64 = 464;
/// Blocks of the GPU pool: 7.92 GiB.
pub(super) const GPU_BLOCKS: usize = 507;

/// Longest context of the model: a whole number of blocks, so that a full tier's tokens come out even.
pub(super) const MODEL_LENGTH: u64 = 256 * BLOCK_TOKENS;

/// Requests that may run at once.
const SEATS: usize = 16;
const SESSIONS: usize = 24;
/// Kinds of sessions; those of one kind share the system prompt.
const KINDS: u64 = 4;
/// Prefill speed, in tokens per second.
const PREFILL_SPEED: f64 = 6500.0;
/// Seconds of one decode step: alone, more for each further stream, more where prefill shares the step.
const DECODE_ALONE: f64 = 0.0165;
const DECODE_EACH: f64 = 0.0011;
const DECODE_MIXED: f64 = 0.035;

/// One engine, its tiers and its counts.
#[derive(Debug)]
pub(super) struct Engine {
    /// Value of the `engine` label.
    pub(super) name: &'static str,
    /// Counts since `started`.
    pub(super) tally: Tally,
    /// RAM tier, with or without a disk tier.
    pub(super) tier: Tier,
    /// Simulated second of its start.
    pub(super) started: f64,
    gpu: Pool,
    sessions: Vec<Session>,
    next_session: u32,
    waiting: VecDeque<Request>,
    running: Vec<Request>,
    now: f64,
    draw: Draw,
    announced: Announced,
}

impl Engine {
    /// An engine with empty pools whose sessions arrive during the first half minute.
    pub(super) fn new(name: &'static str, disk: bool, seed: u64) -> Engine {
        let mut engine = Engine {
            name,
            tally: Tally::new(),
            tier: Tier::new(disk, seed ^ 0x7469_6572),
            started: 0.0,
            gpu: Pool::new(GPU_BLOCKS),
            sessions: Vec::new(),
            next_session: KINDS as u32,
            waiting: VecDeque::new(),
            running: Vec::new(),
            now: 0.0,
            draw: Draw::new(seed),
            announced: Announced::default(),
        };
        for _ in 0..SESSIONS {
            let returns = engine.draw.between(0.0, 30.0);
            let mut session = engine.new_session(returns);
            // Their histories are of all ages: the engine starts in the middle of a working day.
            session.tokens += engine.draw.whole(0, 34_000);
            engine.sessions.push(session);
        }
        engine
    }

    fn new_session(&mut self, returns: f64) -> Session {
        let id = self.next_session;
        self.next_session += 1;
        Session {
            id,
            kind: self.draw.whole(0, KINDS) as u32,
            tokens: self.draw.whole(9_000, 15_000),
            ends_at: self.draw.whole(34_000, 54_000),
            returns: Some(returns),
        }
    }

    /// The process starts anew: counters, GPU pool and RAM tier are empty; clients try again soon.
    pub(super) fn restart(&mut self) {
        self.tally = Tally::new();
        self.tier.restart();
        self.started = self.now;
        self.gpu = Pool::new(GPU_BLOCKS);
        self.announced = Announced::default();
        self.waiting.clear();
        self.running.clear();
        for session in &mut self.sessions {
            let soon = self.now + self.draw.between(2.0, 30.0);
            session.returns = Some(session.returns.unwrap_or(0.0).max(soon));
        }
    }

    /// One step of [`STEP`] seconds.
    pub(super) fn step(&mut self) {
        self.tier.step(self.now, &mut self.tally);
        self.arrive();
        self.admit();
        let busy = self.prefill();
        self.decode(busy);
        self.now += STEP;
        self.tier.land(self.now, &mut self.tally);
    }

    /// Whether the scheduler has run since the start: several families have no sample before that.
    pub(super) fn has_stepped(&self) -> bool {
        self.tally.admitted.prompt() > 0
    }

    /// Requests that hold GPU blocks and compute.
    pub(super) fn running(&self) -> usize {
        self.running.len() - self.loading()
    }

    /// Requests that wait for their reload.
    pub(super) fn loading(&self) -> usize {
        self.running.iter().filter(|request| request.is_loading(self.now)).count()
    }

    /// Requests that wait for a seat or for GPU blocks.
    pub(super) fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// Share of the GPU pool that requests hold.
    pub(super) fn gpu_usage(&self) -> f64 {
        self.gpu.pinned() as f64 / GPU_BLOCKS as f64
    }

    /// Simulated second up to which it has run.
    pub(super) fn now(&self) -> f64 {
        self.now
    }

    /// What happened in the GPU pool and in the RAM tier since the last call, the pool first.
    pub(super) fn take_news(&mut self) -> Vec<News> {
        self.announced.left(self.gpu.take_lost());
        let mut news = self.announced.take();
        news.extend(self.tier.take_news());
        news
    }

    /// Announces what is new of a session's history in the GPU pool.
    fn note_entered(&mut self, session: usize, blocks: Range<u64>) {
        self.announced.left(self.gpu.take_lost());
        self.announced.entered(&self.sessions[session], blocks, &self.gpu);
    }

    fn arrive(&mut self) {
        let end = self.now + STEP;
        for (index, session) in self.sessions.iter_mut().enumerate() {
            let Some(arrived) = session.returns.take_if(|returns| *returns < end) else { continue };
            let target = (self.draw.waiting(460.0) as u64).clamp(24, TOKEN_LIMIT);
            self.waiting.push_back(Request::new(index, arrived.max(self.started), session.tokens, target));
        }
    }

    fn chunks(&self, session: usize, blocks: Range<u64>) -> Vec<Chunk> {
        blocks.map(|index| self.sessions[session].chunk(index)).collect()
    }

    fn admit(&mut self) {
        while self.running.len() < SEATS {
            let Some(request) = self.waiting.pop_front() else { return };
            let blocks = self.chunks(request.session, 0..request.blocks_needed());
            if !self.fits(&blocks) {
                self.waiting.push_front(request);
                return;
            }
            let request = self.seat(request, &blocks);
            self.running.push(request);
        }
    }

    fn fits(&self, blocks: &[Chunk]) -> bool {
        let cached = blocks.iter().filter(|block| self.gpu.contains(**block)).count();
        let idle = blocks.iter().filter(|block| self.gpu.is_idle(**block)).count();
        self.gpu.obtainable() - idle >= blocks.len() - cached
    }

    /// Gives a request its blocks: what the GPU pool still has, what the tier can reload, room for the rest.
    fn seat(&mut self, mut request: Request, blocks: &[Chunk]) -> Request {
        let now = request.arrived.max(self.now);
        // At least one token of each prompt is computed, whatever is cached.
        let full = ((request.tokens() - 1) / BLOCK_TOKENS) as usize;
        let device = blocks[..full].iter().take_while(|block| self.gpu.contains(**block)).count();
        self.tier.touch(&blocks[..full]);
        let reload = self.tier.reload(&blocks[device..full], now, &mut self.tally);
        for block in blocks {
            self.gpu.pin(*block);
        }
        request.blocks = blocks.len() as u64;
        request.ready = reload.ready;
        let cached = device as u64 + reload.host + reload.disk;
        self.note_entered(request.session, device as u64..cached);
        request.to_compute = (request.tokens() - cached * BLOCK_TOKENS) as f64;
        if request.sources.is_none() {
            let sources = Sources {
                computed: request.to_compute as u64,
                device: device as u64 * BLOCK_TOKENS,
                host: reload.host * BLOCK_TOKENS,
                disk: reload.disk * BLOCK_TOKENS,
            };
            self.tally.admitted.add(&sources);
            request.sources = Some(sources);
            request.scheduled = reload.ready;
        }
        // A block that the GPU pool still has, but the tier lost, is written through again.
        self.tier.store(blocks[..device.min(request.blocks_computed() as usize)].to_vec(), now, &mut self.tally);
        request
    }

    /// Prefill, first come first served; the share of the step that it took.
    fn prefill(&mut self) -> f64 {
        let end = self.now + STEP;
        let (mut clock, mut busy) = (self.now, 0.0);
        for mut request in std::mem::take(&mut self.running) {
            if !request.is_decoding() && request.ready < end && clock < end {
                let starts = clock.max(request.ready);
                let tokens = request.to_compute.min((end - starts) * PREFILL_SPEED);
                clock = starts + tokens / PREFILL_SPEED;
                busy += clock - starts;
                self.compute(&mut request, tokens, clock);
            }
            self.running.push(request);
        }
        busy / STEP
    }

    fn compute(&mut self, request: &mut Request, tokens: f64, until: f64) {
        let before = request.blocks_computed();
        request.to_compute -= tokens;
        // Rounding must not leave a crumb of a token behind.
        if request.to_compute < 1e-6 {
            request.to_compute = 0.0;
        }
        self.note_entered(request.session, before..request.blocks_computed());
        let written = self.chunks(request.session, before..request.blocks_computed());
        self.tier.store(written, until, &mut self.tally);
        if request.is_decoding() {
            request.decoding_since = until;
            if request.first_token.is_none() {
                request.first_token = Some(until);
                request.generated = 1;
                self.tally.began_to_answer(request, until);
            }
        }
    }

    /// Decodes all streams; `busy` is the share of the step whose passes also carry prefill.
    fn decode(&mut self, busy: f64) {
        let streams = self.running.iter().filter(|request| request.is_decoding()).count() as u64;
        let alone = DECODE_ALONE + DECODE_EACH * streams as f64;
        let mut given = 0;
        for mut request in std::mem::take(&mut self.running) {
            if request.is_decoding() {
                let pass = alone * self.draw.between(0.94, 1.06);
                given += self.stream(&mut request, busy, pass);
            }
            self.running.push(request);
        }
        if given > 0 {
            self.tally.generated += given;
            self.tally.step_tokens.spread(given.div_ceil(streams), given as f64);
        }
        self.grow();
        self.leave();
    }

    /// Tokens that one stream gives in this step; `pass` is the time of a pass without prefill.
    fn stream(&mut self, request: &mut Request, busy: f64, pass: f64) -> u64 {
        let mixed = pass + DECODE_MIXED;
        let seconds = self.now + STEP - request.decoding_since.max(self.now);
        let (with, without) = (seconds * busy / mixed, seconds * (1.0 - busy) / pass);
        let due = with + without + request.carry;
        let left = request.target.saturating_sub(request.generated);
        let given = (due as u64).min(left);
        request.carry = due.fract();
        request.generated += given;
        let slow = ((given as f64 * with / (with + without)).round() as u64).min(given);
        self.tally.next_token.spread(slow, slow as f64 * mixed);
        self.tally.next_token.spread(given - slow, (given - slow) as f64 * pass);
        given
    }

    /// Gives each stream the blocks for its new tokens. If there is none, the youngest request is preempted.
    fn grow(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let request = &self.running[index];
            if !request.is_decoding() || request.blocks >= request.blocks_needed() {
                index += 1;
            } else if self.gpu.pin(self.sessions[request.session].chunk(request.blocks)) {
                self.running[index].blocks += 1;
            } else {
                self.preempt();
            }
        }
    }

    fn preempt(&mut self) {
        let Some(mut youngest) = self.running.pop() else { return };
        self.release(&youngest);
        youngest.preemptions += 1;
        youngest.blocks = 0;
        youngest.ready = 0.0;
        self.tally.preemptions += 1;
        self.waiting.push_front(youngest);
    }

    /// Takes a request's hands off its blocks. Full blocks stay cached; the last, half-filled one is of no use.
    fn release(&mut self, request: &Request) {
        let done = request.tokens() - request.to_compute.ceil() as u64;
        self.note_entered(request.session, 0..done / BLOCK_TOKENS);
        for index in 0..request.blocks {
            let block = self.sessions[request.session].chunk(index);
            if index < done / BLOCK_TOKENS {
                self.gpu.unpin(block);
            } else {
                self.gpu.discard(block);
                if !self.gpu.contains(block) {
                    self.announced.left([block]);
                }
            }
        }
    }

    fn leave(&mut self) {
        for request in std::mem::take(&mut self.running) {
            if request.is_decoding() && request.generated >= request.target {
                self.finish(&request);
            } else {
                self.running.push(request);
            }
        }
    }

    fn finish(&mut self, request: &Request) {
        self.release(request);
        self.tally.answered(request, self.now + STEP);
        let pause =
            if self.draw.chance(0.02) { self.draw.between(500.0, 1500.0) } else { 2.0 + self.draw.waiting(16.0) };
        let returns = self.now + STEP + pause;
        let answer = self.draw.waiting(1900.0) as u64;
        let session = &mut self.sessions[request.session];
        session.tokens = request.tokens() + answer.clamp(30, 12_000);
        session.returns = Some(returns);
        if session.tokens > session.ends_at {
            self.tier.forget(session.id);
            let fresh = self.new_session(returns);
            self.sessions[request.session] = fresh;
        }
    }
}
