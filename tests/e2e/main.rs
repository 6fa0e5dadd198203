//! The whole program, started as a process, against an upstream that is scripted down to the byte.
//!
//! What the pipeline makes of pages has tests of its own; but for `whole`, the pages here have nothing to correct.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A helper that panics is a failed test.
#![allow(clippy::print_stdout)] // Figures of the tests of memory, shown on request.
#![allow(unreachable_pub)] // Nothing outside a test crate can reach anything in it.

#[path = "../support/nvml.rs"]
mod nvml;
#[path = "../support/reader.rs"]
#[allow(dead_code, reason = "other test crates use the rest of it")]
mod reader;
#[path = "../support/strict.rs"]
#[allow(dead_code, reason = "other test crates use the rest of it")]
mod strict;
#[path = "../support/program/mod.rs"]
mod support;

mod addresses;
mod anchors;
mod answers;
mod box_faults;
mod coding;
mod connections;
mod descriptors;
mod endings;
mod event_peers;
mod event_streams;
mod extras;
mod failures;
mod faults;
mod files;
mod healthcheck;
mod hostile;
mod interval;
mod leaks;
mod logs;
mod memory;
mod notices;
mod privilege;
mod process;
mod secrets;
mod sharing;
mod soak;
mod trust;
mod whole;

/// A page that passes as it came.
const PAGE: &str = "# HELP x_total Things.\n# TYPE x_total counter\nx_total{k=\"1\"} 5\n";
