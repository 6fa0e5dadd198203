//! The dashboards: parsed and linted; every name in their queries looked for in scrapes of the running program; and
//! every panel asked of a real Prometheus that scrapes the program in front of the demo engine.
//!
//! Grafana itself has no part in this: what it makes of the JSON is for eyes to judge.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A helper that panics is a failed test.
#![allow(unreachable_pub)] // Nothing outside a test crate can reach anything in it.

#[path = "../support/nvml.rs"]
mod nvml;
#[path = "../support/program/mod.rs"]
#[allow(dead_code, reason = "its scripted upstream can do more than is needed here")]
mod program;
#[path = "../support/mod.rs"]
mod support;

mod apart;
mod board;
mod lint;
mod live;
mod marks;
mod names;
mod query;
mod rig;
