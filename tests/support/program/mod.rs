//! What tests of the whole program stand on: the program itself, a scripted upstream, a client that shows every
//! byte. Nothing in here knows metrics.

pub mod client;
pub mod exporter;
pub mod upstream;

use std::time::{Duration, Instant};

/// The longest that anything in a test may take: far more than it needs, so that a loaded machine fails nothing.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until `condition` holds.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
