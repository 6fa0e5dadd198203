//! What a directory holds, measured once: for a command that is answered once and cannot wait for the collector's passes.

use std::path::Path;
use std::time::{Duration, Instant};

use super::mount;
use super::walk::{self, Walk};

/// What was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes that the files hold on disk; what `kvtier_disk_tier_bytes` leaves out is left out here too.
    pub bytes: u64,
    /// All of it was seen; otherwise it holds at least so much.
    pub whole: bool,
}

/// Counts for as long as `patience` allows. `None` where the directory cannot be opened, or may lie on a network mount and
/// `network_too` does not allow that.
pub(super) fn measure(path: &Path, procfs: &Path, network_too: bool, patience: Duration) -> Option<Measured> {
    let deadline = Instant::now() + patience;
    if !network_too && mount::read(procfs, path).ok()?.is_network() {
        return None;
    }
    let mut walk = Walk::begin(path, walk::open).ok()?;
    let whole = walk.advance(|| Instant::now() < deadline);
    let found = walk.into_found();
    Some(Measured { bytes: found.bytes, whole: whole && found.unreadable == 0 })
}
