//! What several test crates share. Each uses a part of it.
#![allow(dead_code, unreachable_pub, reason = "every test crate uses another part")]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]

pub mod page;
