//! vLLM's KV cache events.

mod chains;
pub mod fold;
mod ghosts;
mod identity;
mod ranks;
mod residency;
pub mod sizing;
pub mod wire;
