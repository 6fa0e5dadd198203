//! `check`, `plan` and `report` as a user runs them: the program itself, on a box made of a fixture root, a scripted
//! driver and a tmpfs of its own, in front of captured pages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A helper that panics is a failed test.
#![allow(unreachable_pub, dead_code)] // Nothing outside a test crate can reach anything in it.

#[path = "../support/nvml.rs"]
mod nvml;
#[path = "../support/program/mod.rs"]
mod program;
#[path = "../support/publisher.rs"]
mod publisher;
#[path = "../support/stream.rs"]
mod stream;

mod bench;
mod check;
mod check_events;
mod check_upstream;
mod history;
mod plan;
mod report;
mod words;
