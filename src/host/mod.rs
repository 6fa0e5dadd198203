//! Host collectors: facts of the box that no engine's page carries.
//!
//! Each collector lives on one long-lived thread of its own, because a driver or file-system call may block
//! for minutes. A scrape only looks at the last sample and its age; it never waits for a collector, and one
//! collector's failure is never another's. Inside a collector, reading (I/O) and understanding (pure) are
//! kept apart.
//!
//! To add one: a file here with a type that implements [`Collector`], and one line in [`all`]. Its flag
//! (`--[no-]collector.NAME`) follows from its name.

use crate::family::Family;
use crate::settings::HostFacts;

/// One source of host facts. It is called on its own thread, again and again.
pub trait Collector: Send {
    /// Name in flags, logs and the `collector` label.
    fn name(&self) -> &'static str;

    /// Reads everything once. It may block; it must not sleep.
    ///
    /// # Errors
    /// [`Failure`] when nothing at all could be read. What could be read in part is an `Ok` with less in it.
    fn collect(&mut self) -> Result<Reading, Failure>;
}

/// What one run of a collector brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Our families; unknown values are absent samples.
    pub families: Vec<Family>,
    /// Facts that the core works with; only the fields that this collector knows are set.
    pub facts: HostFacts,
    /// Sentences for `/debug`: what is partly unknown, and why.
    pub notes: Vec<String>,
}

/// Why a collector has nothing to say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// What it looks at is not on this box: no fault, and nothing to log twice.
    #[error("not here: {0}")]
    Absent(String),
    /// It should have worked.
    #[error("{0}")]
    Broken(String),
}
