//! What the targets share: the tests' own reader and checker, which have no code in common with what they judge.

#![allow(dead_code, unreachable_pub, reason = "the tests use more of it")]

#[path = "../../tests/support/beside.rs"]
pub mod beside;
#[path = "../../tests/support/exporter.rs"]
pub mod exporter;
#[path = "../../tests/support/reader.rs"]
pub mod reader;
#[path = "../../tests/support/sameness.rs"]
pub mod sameness;
#[path = "../../tests/support/strict.rs"]
pub mod strict;
