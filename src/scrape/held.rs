//! How much the pages hold that clients wait with: fetched, and not yet an answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of all pages that are held.
#[derive(Clone, Default)]
pub(super) struct Held(Arc<AtomicUsize>);

/// The part of one page, until it is dropped.
pub(super) struct Share {
    held: Held,
    bytes: usize,
}

impl Held {
    /// Counts so many more.
    pub(super) fn share(&self, bytes: usize) -> Share {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Share { held: self.clone(), bytes }
    }

    pub(super) fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.held.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
