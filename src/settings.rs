//! What the operator told us about the engine, and what the box told us: the core's other two inputs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::events::Bounds;

/// Flags that change what is computed. All of it is per engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `--tier.size`: bytes by tier name, all ranks of one engine together.
    pub tier_sizes: BTreeMap<String, u64>,
    /// `--kv.bytes-per-token`: KV bytes of one token, all ranks together.
    pub bytes_per_token: Option<f64>,
    /// `--engine.ranks`: processes that copy in parallel (TP × PP).
    pub engine_ranks: Option<u32>,
    /// `--correct`: whether upstream's gauge is replaced.
    pub correct: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { tier_sizes: BTreeMap::new(), bytes_per_token: None, engine_ranks: None, correct: true }
    }
}

/// What host collectors and the upstream's address add to a page. Everything is unknown by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostFacts {
    /// GPUs on this box, where the driver answered.
    pub gpus: Option<usize>,
    /// Tier files in shared memory that a live process maps.
    pub live_tier_files: Vec<LiveTierFile>,
    /// The shared-memory mount that is looked at.
    pub shm: Option<SharedMemory>,
    /// The upstream is on this box: a loopback address or a unix socket.
    pub upstream_is_local: bool,
    /// What the event streams say that are followed and up to date.
    pub streams: Vec<Stream>,
}

/// What the KV cache events of one engine say of its RAM tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// Data-parallel rank of the engine, which is its `engine` label.
    pub rank: u32,
    /// Chunks in the tier.
    pub bounds: Bounds,
    /// It told of blocks of more than one KV group.
    pub several_groups: bool,
    /// Bytes of a chunk, where earlier pages and the stream told.
    pub chunk: Option<ChunkBytes>,
    /// Tokens of a chunk.
    pub chunk_tokens: Option<f64>,
    /// Most chunks that were surely in the tier at once.
    pub most: u64,
    /// Chunks that are in the tier when it evicts although nothing is on its way in: its slots. Only where that is less
    /// than its size says.
    pub evicts_at: Option<f64>,
    /// Resets of the tier that a page may count: so many were announced, or have been dealt with. Where there are more,
    /// the tier may be empty. `None`: the stream is yet to take in that there were more.
    pub resets: Option<f64>,
    /// Resets that the page counted last. Where it counts fewer and some, its counters have begun anew, and so has the
    /// question whether those were announced.
    pub counted: f64,
    /// It is the only stream that is followed: whatever its rank, it is of the only engine.
    pub alone: bool,
    /// What page and stream have to agree about.
    pub since_rest: Option<SinceRest>,
}

/// What was counted since the page and the stream last stood still together, or since both began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SinceRest {
    /// Bytes stored and promoted that the page had counted then.
    pub page_bytes: f64,
    /// Chunks that the stream has announced since.
    pub chunks: f64,
}

/// Bytes of a chunk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChunkBytes {
    /// Bytes.
    pub bytes: f64,
    /// Counted to the last byte, or stated by the engine; else an estimate from numbers of different moments.
    pub exact: bool,
    /// By what the page alone says: so it is not too large, and a size has room for no fewer chunks.
    pub by_page: bool,
}

/// The shared-memory mount that is looked at, whether or not it is the engine's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// Where.
    pub path: PathBuf,
    /// Its bytes; `None` where it has no limit of its own.
    pub size: Option<u64>,
    /// Whether it is a tmpfs.
    pub is_tmpfs: bool,
}

/// The shared-memory file (or all its segments) of one live engine's RAM tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveTierFile {
    /// The engine id in the file's name: `vllm_offload_<id>.mmap`.
    pub engine_id: String,
    /// Bytes of all its segments.
    pub bytes: u64,
}
