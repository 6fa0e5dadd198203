//! What a simulated engine announces of its GPU pool and its RAM tier, and how vLLM writes that: its KV cache events.
//! Pure.

use super::engine::BLOCK_TOKENS;
use super::pool::Chunk;

/// One event.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum News {
    /// Blocks of one prompt are in the GPU pool, after `parent`.
    Entered { chunks: Vec<Chunk>, parent: Option<Chunk> },
    /// A block left the GPU pool.
    Left(Chunk),
    /// A chunk is ready in the RAM tier.
    Stored(Chunk),
    /// A chunk lost its slot in the RAM tier.
    Evicted(Chunk),
}

/// The news of one step of one engine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Batch {
    /// Place of the engine.
    pub(super) engine: usize,
    /// Simulated second.
    pub(super) seconds: f64,
    /// The engine has started anew since its last batch.
    pub(super) restarted: bool,
    pub(super) news: Vec<News>,
}

/// A batch as vLLM writes it: `[time, events, rank]` in msgpack, events as maps. Of the tokens of a simulated prompt
/// there is nothing to be said.
pub(super) fn encode(batch: &Batch, unix: f64) -> Vec<u8> {
    let mut out = vec![0x93];
    float(&mut out, unix);
    array(&mut out, batch.news.len());
    batch.news.iter().for_each(|news| event(&mut out, news));
    unsigned(&mut out, batch.engine as u64);
    out
}

fn event(out: &mut Vec<u8>, news: &News) {
    match news {
        News::Entered { chunks, parent } => stored(out, chunks, *parent, BLOCK_TOKENS, "GPU"),
        News::Stored(chunk) => stored(out, &[*chunk], None, 0, "CPU"),
        News::Left(chunk) => removed(out, *chunk, "GPU"),
        News::Evicted(chunk) => removed(out, *chunk, "CPU"),
    }
}

fn stored(out: &mut Vec<u8>, chunks: &[Chunk], parent: Option<Chunk>, block_tokens: u64, medium: &str) {
    out.push(0x89);
    pair(out, "type", "BlockStored");
    hashes(out, chunks);
    text(out, "parent_block_hash");
    match parent {
        Some(parent) => unsigned(out, hash(parent)),
        None => out.push(NIL),
    }
    text(out, "token_ids");
    array(out, 0);
    text(out, "block_size");
    unsigned(out, block_tokens);
    text(out, "lora_id");
    out.push(NIL);
    pair(out, "medium", medium);
    text(out, "lora_name");
    out.push(NIL);
    text(out, "group_idx");
    unsigned(out, 0);
}

fn removed(out: &mut Vec<u8>, chunk: Chunk, medium: &str) {
    out.push(0x84);
    pair(out, "type", "BlockRemoved");
    hashes(out, &[chunk]);
    pair(out, "medium", medium);
    text(out, "group_idx");
    unsigned(out, 0);
}

fn hashes(out: &mut Vec<u8>, chunks: &[Chunk]) {
    text(out, "block_hashes");
    array(out, chunks.len());
    chunks.iter().for_each(|chunk| unsigned(out, hash(*chunk)));
}

/// A number that looks as a hash does, and is another one for every chunk.
fn hash(chunk: Chunk) -> u64 {
    let name = u64::from(chunk.session) << 32 | u64::from(chunk.index);
    // An odd factor and a shift by half the bits: both can be undone, so no two names meet.
    let mixed = (name ^ name >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

const NIL: u8 = 0xc0;

fn pair(out: &mut Vec<u8>, key: &str, value: &str) {
    text(out, key);
    text(out, value);
}

/// Words of fewer than 32 bytes: all that are written here.
fn text(out: &mut Vec<u8>, word: &str) {
    out.push(0xa0 | word.len() as u8);
    out.extend_from_slice(word.as_bytes());
}

fn array(out: &mut Vec<u8>, length: usize) {
    out.push(0xdd);
    out.extend_from_slice(&(length as u32).to_be_bytes());
}

fn unsigned(out: &mut Vec<u8>, value: u64) {
    out.push(0xcf);
    out.extend_from_slice(&value.to_be_bytes());
}

fn float(out: &mut Vec<u8>, value: f64) {
    out.push(0xcb);
    out.extend_from_slice(&value.to_be_bytes());
}
