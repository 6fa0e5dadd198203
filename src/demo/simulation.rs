//! The simulated deployment: two engines in one clock, and the truth about their tiers.
//!
//! Pure and repeatable: time passes only through [`State::advance`], and chance comes from a seed. The truth
//! ([`State::truth`]) is what no vLLM page tells, so that a test can hold an exporter's bound against it.

use std::time::Duration;

use super::CHUNK_BYTES;
use super::engine::{BLOCK_TOKENS, Engine, STEP};
use super::news::Batch;
use super::tier::TIER_CHUNKS;

/// What a simulation is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Same seed, same history.
    pub seed: u64,
    /// Served model name, as it is; it is escaped on the page.
    pub model_name: String,
    /// Simulated time after which one engine restarts, the two by turns. `None`: never.
    pub restart_every: Option<Duration>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup { seed: 20_261_012, model_name: "demo/simulated-27b".to_owned(), restart_every: None }
    }
}

/// The state of the whole deployment.
#[derive(Debug)]
pub struct State {
    /// The engines, in the order of the page.
    pub(super) engines: [Engine; 2],
    setup: Setup,
    owed: Duration,
    steps: u64,
    /// What the engines announced, while anybody listens.
    batches: Option<Vec<Batch>>,
    restarted: [bool; 2],
    /// Requests finished by engines that have restarted since.
    finished_before: u64,
}

/// What is so in one engine's RAM tier, whatever the page says.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// Value of the `engine` label.
    pub engine: &'static str,
    /// Simulated seconds since this engine started.
    pub age_seconds: f64,
    /// Bytes of the tier.
    pub size_bytes: u64,
    /// Bytes of the slots that hold a chunk or are being filled: what a fill gauge should say.
    pub occupied_bytes: u64,
    /// Bytes of the slots that copies pin: what vLLM's usage gauge says instead.
    pub pinned_bytes: u64,
    /// Bytes stored from the GPU since the start.
    pub stored_bytes: u64,
    /// Bytes promoted from the disk tier since the start.
    pub promoted_bytes: u64,
    /// Bytes reloaded into the GPU since the start.
    pub reloaded_bytes: u64,
    /// Bytes that lost their slot to others since the start.
    pub evicted_bytes: u64,
    /// Prompt tokens since the start.
    pub prompt_tokens: u64,
    /// Those of them that prefill computed.
    pub computed_tokens: u64,
    /// Attempts to store that were refused since the start.
    pub stores_refused: u64,
}

impl State {
    /// Two engines that have just started; engine 0 has a disk tier behind its RAM tier.
    pub fn new(setup: Setup) -> State {
        let engines = [Engine::new("0", true, setup.seed), Engine::new("1", false, setup.seed.wrapping_add(1))];
        State {
            engines,
            setup,
            owed: Duration::ZERO,
            steps: 0,
            batches: None,
            restarted: [false; 2],
            finished_before: 0,
        }
    }

    /// Lets simulated time pass. What is less than one step is kept for the next call, so only the sum counts.
    pub fn advance(&mut self, time: Duration) {
        self.owed += time;
        let step = Duration::from_secs_f64(STEP);
        while self.owed >= step {
            self.owed -= step;
            self.steps += 1;
            self.engines.iter_mut().for_each(Engine::step);
            self.gather_news();
            self.restart_if_due();
        }
    }

    /// Keeps what the engines announce from now on.
    pub(super) fn listen(&mut self) {
        self.batches = Some(Vec::new());
    }

    /// What was announced since the last call.
    pub(super) fn take_batches(&mut self) -> Vec<Batch> {
        self.batches.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn gather_news(&mut self) {
        for (at, engine) in self.engines.iter_mut().enumerate() {
            let news = engine.take_news();
            if let Some(batches) = self.batches.as_mut().filter(|_| !news.is_empty()) {
                let restarted = std::mem::take(&mut self.restarted[at]);
                batches.push(Batch { engine: at, seconds: engine.now(), restarted, news });
            }
        }
    }

    fn restart_if_due(&mut self) {
        let Some(every) = self.setup.restart_every else { return };
        let every = ((every.as_secs_f64() / STEP) as u64).max(1);
        if self.steps.is_multiple_of(every) {
            self.restart((self.steps / every - 1) as usize % self.engines.len());
        }
    }

    /// Restarts one engine: counters at 0, RAM tier empty, files of the disk tier still there.
    pub fn restart(&mut self, engine: usize) {
        if let Some(restarted) = self.restarted.get_mut(engine) {
            *restarted = true;
        }
        if let Some(engine) = self.engines.get_mut(engine) {
            self.finished_before += engine.tally.finished();
            engine.restart();
        }
    }

    /// Simulated seconds that have passed.
    pub fn seconds(&self) -> f64 {
        self.steps as f64 * STEP
    }

    /// Served model name, not escaped.
    pub fn model_name(&self) -> &str {
        &self.setup.model_name
    }

    /// Requests answered since the server started, whichever engine did it.
    pub fn finished(&self) -> u64 {
        self.finished_before + self.engines.iter().map(|engine| engine.tally.finished()).sum::<u64>()
    }

    /// What is so now, one entry an engine.
    pub fn truth(&self) -> Vec<Truth> {
        self.engines.iter().map(truth).collect()
    }
}

impl Truth {
    /// Its numbers with their names, as `/truth` of the demo server shows them.
    pub fn numbers(&self) -> [(&'static str, u64); 11] {
        [
            ("age_seconds", self.age_seconds as u64),
            ("size_bytes", self.size_bytes),
            ("occupied_bytes", self.occupied_bytes),
            ("pinned_bytes", self.pinned_bytes),
            ("stored_bytes", self.stored_bytes),
            ("promoted_bytes", self.promoted_bytes),
            ("reloaded_bytes", self.reloaded_bytes),
            ("evicted_bytes", self.evicted_bytes),
            ("prompt_tokens", self.prompt_tokens),
            ("computed_tokens", self.computed_tokens),
            ("stores_refused", self.stores_refused),
        ]
    }
}

fn truth(engine: &Engine) -> Truth {
    let (tally, tier) = (&engine.tally, &engine.tier);
    Truth {
        engine: engine.name,
        age_seconds: engine.now() - engine.started,
        size_bytes: TIER_CHUNKS as u64 * CHUNK_BYTES,
        occupied_bytes: tier.occupied() as u64 * CHUNK_BYTES,
        pinned_bytes: tier.pinned(engine.now()) as u64 * CHUNK_BYTES,
        stored_bytes: tally.store.chunks * CHUNK_BYTES,
        promoted_bytes: tally.promotion.chunks * CHUNK_BYTES,
        reloaded_bytes: tally.load.chunks * CHUNK_BYTES,
        evicted_bytes: tier.evicted() * CHUNK_BYTES,
        prompt_tokens: tally.prompts.prompt(),
        computed_tokens: tally.prompts.computed,
        stores_refused: tally.stores_refused,
    }
}

/// Tokens that a whole tier holds.
pub fn tier_tokens() -> u64 {
    TIER_CHUNKS as u64 * BLOCK_TOKENS
}
