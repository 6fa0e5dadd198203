//! A state written as vLLM 0.33 writes its `/metrics` (one API server process, `prometheus_client`).
//!
//! Names, label order, bounds, number format, the `_created` gauges, and the moment at which a series first
//! appears are vLLM's; the HELP texts are our own. Two things no single vLLM process would show: engine 0 has
//! a disk tier and engine 1 has none, and one engine restarts while the other goes on. It stands for a page
//! that some proxy put together from two servers, and shows both cases at once.

mod offload;
mod process;
mod serving;
mod sheet;

use super::simulation::State;
use sheet::Sheet;

/// How simulated seconds become dates: one wall-clock second is `speed` of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dates {
    /// Unix time of the simulation's start, in seconds.
    pub epoch: f64,
    /// Simulated seconds per second.
    pub speed: f64,
}

impl Dates {
    /// Unix time of a simulated second.
    pub(super) fn unix(&self, seconds: f64) -> f64 {
        self.epoch + seconds / self.speed
    }
}

/// The page of this state.
pub fn page(state: &State, dates: Dates) -> String {
    let mut sheet = Sheet::new(state, dates);
    process::python(&mut sheet);
    sheet.rows(offload::TRANSFERS);
    if state.engines.iter().any(|engine| engine.tier.has_disk()) {
        sheet.rows(offload::TIERING);
    }
    sheet.rows(offload::CONNECTOR);
    offload::config_info(&mut sheet);
    sheet.rows(serving::ENGINE);
    serving::admission(&mut sheet);
    sheet.rows(serving::REQUESTS);
    serving::cache_config_info(&mut sheet);
    process::http(&mut sheet);
    sheet.text()
}
