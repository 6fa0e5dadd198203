//! What several test crates share: an independent reader of text 0.0.4, odd pages, captures, a real Prometheus,
//! and pages written by hand.
//!
//! The reader and the checker share no code with `src/`; [`exporter`] and [`page`] run it, as any user of the
//! library would.

#![allow(dead_code, unreachable_pub, reason = "every test crate uses another part, and none exports it")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]

pub mod beside;
pub mod bodies;
pub mod captures;
pub mod damage;
pub mod exporter;
pub mod own;
pub mod page;
pub mod peers;
pub mod reader;
pub mod sameness;
pub mod stream;
pub mod strict;
pub mod verdicts;
