//! Whether an engine of vLLM splits its KV over several groups, as far as its page shows it.
//!
//! Layers of one kind are a group. Models that mix kinds (full attention with Mamba, linear attention or sliding
//! windows; a draft model beside the main one) have several, whose blocks share one pool. No family names them before
//! 0.33, and none counts them then. Two things show them:
//!
//! - Mamba's own settings are filled in, which stay at `None` for models without such layers.
//! - The pool holds fewer tokens than its blocks do. One group needs a block for `block_size` tokens; with more than one a
//!   request of full length needs blocks of each, and the engine states its pool in tokens of such requests (0.24+).
//!
//! That nothing shows is no proof of one group.

use std::collections::{BTreeMap, BTreeSet};

use super::identity::{Kind, Whose};
use super::vllm::CACHE_CONFIG;
use super::{as_number, placed};
use crate::exposition::{Exposition, Labels};
use crate::model::{Owner, Snapshot};

/// Tells the engines what shows that they have several groups.
pub(super) fn mark(page: &Exposition<'_>, snapshot: &mut Snapshot) {
    let whose = Whose::of(snapshot, Kind::Vllm, CACHE_CONFIG);
    let mut servers: BTreeMap<_, Server<'_>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for (place, sample) in placed(page, CACHE_CONFIG) {
        let server = servers.entry(whose.server(sample.labels)).or_default();
        let owner = snapshot.pages.owner(place);
        if owner.one().is_none_or(|engine| known.insert(engine)) {
            server.engines.push(sample.labels);
        }
        server.descriptions.push((owner, sample.labels));
    }
    for server in servers.values() {
        let of_the_pool =
            holds_fewer_tokens(&server.engines).then_some("the pool holds fewer tokens than its blocks do");
        for (owner, labels) in &server.descriptions {
            let Owner::One(at) = owner else { continue };
            let engine = &mut snapshot.engines[*at];
            engine.several_groups = engine.several_groups.or(mamba(*labels)).or(of_the_pool);
        }
    }
}

/// What is said of the engines of one server.
#[derive(Default)]
struct Server<'a> {
    /// Each description, with whose it is. An engine may have several.
    descriptions: Vec<(Owner, Labels<'a>)>,
    /// One of each engine.
    engines: Vec<Labels<'a>>,
}

fn mamba(labels: Labels<'_>) -> Option<&'static str> {
    let [block, page] = labels.raws(["mamba_block_size", "mamba_page_size_padded"]);
    let (block, page) = (as_number(block).map(|_| "mamba_block_size is set"), as_number(page));
    block.or(page.map(|_| "mamba_page_size_padded is set"))
}

/// All engines of one server are looked at together: `num_gpu_blocks` is their sum, repeated on each of them, and they run
/// one model.
fn holds_fewer_tokens(configs: &[Labels<'_>]) -> bool {
    let pools: Option<Vec<Pool>> = configs.iter().map(|labels| Pool::read(*labels)).collect();
    let Some(pools) = pools.filter(|pools| !pools.is_empty()) else { return false };
    let first = pools[0];
    if pools.iter().any(|pool| (pool.blocks, pool.block_tokens) != (first.blocks, first.block_tokens)) {
        return false;
    }
    let tokens: f64 = pools.iter().map(|pool| pool.tokens).sum();
    // One group rounds a request of full length up to whole blocks, and the pool down to whole tokens.
    let longest = pools.iter().map(|pool| pool.longest_request).fold(f64::INFINITY, f64::min);
    let of_one_group = first.blocks * first.block_tokens * longest / (longest + first.block_tokens);
    tokens + (pools.len() as f64) < of_one_group
}

/// The pool of one engine.
#[derive(Clone, Copy)]
struct Pool {
    tokens: f64,
    blocks: f64,
    block_tokens: f64,
    /// Tokens of a request of full length, at least.
    longest_request: f64,
}

impl Pool {
    fn read(labels: Labels<'_>) -> Option<Pool> {
        let names = ["kv_cache_size_tokens", "num_gpu_blocks", "block_size", "kv_cache_max_concurrency"];
        let [tokens, blocks, block_tokens, concurrency] = labels.raws(names).map(as_number);
        // It is stated with two places.
        let longest_request = tokens? / (concurrency? + 0.005);
        Some(Pool { tokens: tokens?, blocks: blocks?, block_tokens: block_tokens?, longest_request })
    }
}
