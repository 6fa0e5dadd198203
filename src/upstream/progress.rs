//! How far a fetch has come, for whoever does not wait for its end and has to say why.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::UpstreamError;

/// Of the one fetch that is under way.
#[derive(Default)]
pub(super) struct Progress(AtomicUsize);

/// No head of a response has come.
const ASKED: usize = 0;
/// The whole body has come, and we work on it. In between are the bytes of it, and one.
const CAME: usize = usize::MAX;

impl Progress {
    /// A request is sent.
    pub(super) fn ask(&self) {
        self.0.store(ASKED, Ordering::Relaxed);
    }

    /// The head has come, and so many bytes of the body.
    pub(super) fn read(&self, bytes: usize) {
        self.0.store(bytes.saturating_add(1).min(CAME - 1), Ordering::Relaxed);
    }

    /// All of it has come.
    pub(super) fn came(&self) {
        self.0.store(CAME, Ordering::Relaxed);
    }

    /// What it means that there is no page after this time.
    pub(super) fn late(&self, limit: Duration) -> UpstreamError {
        match self.0.load(Ordering::Relaxed) {
            ASKED => UpstreamError::Timeout(limit),
            CAME => UpstreamError::Unworked(limit),
            read => UpstreamError::Unfinished { limit, bytes: read - 1 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_is_what_has_not_come() {
        let (progress, limit) = (Progress::default(), Duration::from_secs(1));
        assert_eq!(progress.late(limit), UpstreamError::Timeout(limit));
        progress.read(0);
        assert_eq!(progress.late(limit), UpstreamError::Unfinished { limit, bytes: 0 });
        progress.read(7);
        assert_eq!(progress.late(limit), UpstreamError::Unfinished { limit, bytes: 7 });
        progress.came();
        assert_eq!(progress.late(limit), UpstreamError::Unworked(limit));
        progress.ask();
        assert_eq!(progress.late(limit), UpstreamError::Timeout(limit));
    }
}
