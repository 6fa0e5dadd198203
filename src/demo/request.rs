//! What is asked of an engine: sessions whose history grows, and the requests that are their turns.

use super::engine::BLOCK_TOKENS;
use super::pool::Chunk;
use super::tally::Sources;

/// Blocks of a system prompt, shared by all sessions of one kind.
const SHARED_BLOCKS: u32 = 10;

/// `max_tokens` of every request.
pub(super) const TOKEN_LIMIT: u64 = 2048;

/// A conversation of some agent with the model.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u32,
    pub(super) kind: u32,
    /// Length of the history, in tokens.
    pub(super) tokens: u64,
    /// Length at which it is over.
    pub(super) ends_at: u64,
    /// When its next request comes; `None` while one is out.
    pub(super) returns: Option<f64>,
}

/// One turn of a session.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) session: usize,
    pub(super) arrived: f64,
    pub(super) prompt: u64,
    pub(super) generated: u64,
    pub(super) target: u64,
    pub(super) preemptions: u64,
    /// Where the prompt came from, by its first admission.
    pub(super) sources: Option<Sources>,
    /// When it was first scheduled, and when it gave its first token.
    pub(super) scheduled: f64,
    pub(super) first_token: Option<f64>,
    /// When its reload is in the GPU pool.
    pub(super) ready: f64,
    /// Tokens that prefill still has to compute.
    pub(super) to_compute: f64,
    /// When this run of decoding began, and the part of a token that was left over from the last step.
    pub(super) decoding_since: f64,
    pub(super) carry: f64,
    /// Blocks held in the GPU pool.
    pub(super) blocks: u64,
}

impl Session {
    /// The name of one block of its history; the first blocks are those of the shared system prompt.
    pub(super) fn chunk(&self, index: u64) -> Chunk {
        let index = index as u32;
        let session = if index < SHARED_BLOCKS { self.kind } else { self.id };
        Chunk { session, index }
    }
}

impl Request {
    /// A request that has just arrived.
    pub(super) fn new(session: usize, arrived: f64, prompt: u64, target: u64) -> Request {
        Request {
            session,
            arrived,
            prompt,
            generated: 0,
            target,
            preemptions: 0,
            sources: None,
            scheduled: 0.0,
            first_token: None,
            ready: 0.0,
            to_compute: 0.0,
            decoding_since: 0.0,
            carry: 0.0,
            blocks: 0,
        }
    }

    /// Prompt and what was generated so far.
    pub(super) fn tokens(&self) -> u64 {
        self.prompt + self.generated
    }

    /// Blocks for all its tokens and the next one.
    pub(super) fn blocks_needed(&self) -> u64 {
        self.tokens() / BLOCK_TOKENS + 1
    }

    pub(super) fn is_loading(&self, now: f64) -> bool {
        self.ready > now
    }

    pub(super) fn is_decoding(&self) -> bool {
        self.to_compute <= 0.0
    }

    /// Prompt blocks whose KV is in the GPU pool, full ones only.
    pub(super) fn blocks_computed(&self) -> u64 {
        let done = self.tokens() - self.to_compute.ceil() as u64;
        done.min(self.prompt) / BLOCK_TOKENS
    }
}
