//! What several test crates share: an independent reader of text 0.0.4, odd pages, captures, a real Prometheus.
//!
//! The reader and the checker share no code with `src/`; [`exporter`] runs it, as any user of the library would.

// Each test crate uses a part of this only, and none exports it.
#![allow(dead_code, unreachable_pub)]
// A helper that cannot go on fails its test, and that is what a panic does.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod captures;
pub mod exporter;
pub mod own;
pub mod peers;
pub mod reader;
pub mod strict;
pub mod verdicts;
