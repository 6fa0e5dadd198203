//! Work on a large page, or on many small ones together, done beside the one thread that answers everybody.
//!
//! A page that is made to cost time can cost seconds, in which nobody else would be answered and no deadline kept. Small
//! pages stay where they are while they are small together: they cost less than the way to another thread and back.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

/// The most bytes, of all pages of a round together, that are worked on where they came in. Pages of up to eight engines
/// have less; the most hostile ones of this size cost a tenth of a second.
pub(super) const SMALL: usize = 512 << 10;

/// The turn to work on large pages of one upstream, or on the many small pages of a round: one piece of work has it at a time, so that work which nobody waits
/// for any more does not pile up.
#[derive(Clone)]
pub(super) struct Turn(Arc<Semaphore>);

impl Turn {
    pub(super) fn new() -> Turn {
        Turn(Arc::new(Semaphore::new(1)))
    }

    /// Waits until nobody has it; `false` when somebody still does at the deadline.
    pub(super) async fn comes(&self, deadline: Instant) -> bool {
        timeout_at(deadline, self.0.acquire()).await.is_ok()
    }

    /// Whether somebody has it.
    pub(super) fn is_taken(&self) -> bool {
        self.0.available_permits() == 0
    }
}

/// Does the work on another thread when all `turns` are free. `None` when it is not done by `deadline`: if it has begun,
/// it goes on and keeps the turns to its end.
pub(super) async fn aside<T: Send + 'static>(
    turns: impl IntoIterator<Item = Turn>,
    deadline: Instant,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let held = timeout_at(deadline, all(turns)).await.ok()?;
    let done = spawn_blocking(move || {
        let done = work();
        drop(held);
        done
    });
    timeout_at(deadline, done).await.ok()?.ok()
}

/// Everybody asks for turns in the order of the upstreams, so nobody waits for one who waits for him.
async fn all(turns: impl IntoIterator<Item = Turn>) -> Vec<OwnedSemaphorePermit> {
    let mut held = Vec::new();
    for Turn(turn) in turns {
        // The semaphore is never closed.
        held.extend(turn.acquire_owned().await);
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn in_time() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_keeps_its_turn_to_its_end() {
        let turn = Turn::new();
        let (open, gate) = mpsc::channel::<()>();
        let slow = aside([turn.clone()], soon(), move || gate.recv());
        assert!(slow.await.is_none());
        assert!(turn.is_taken());
        assert!(!turn.comes(soon()).await);
        assert_eq!(aside([turn.clone()], soon(), || unreachable!("it has no turn")).await, None::<()>);
        open.send(()).unwrap();
        assert_eq!(aside([turn.clone()], in_time(), || 7).await, Some(7));
        assert!(turn.comes(soon()).await);
        assert!(!turn.is_taken());
    }

    #[tokio::test]
    async fn a_panic_gives_the_turn_back() {
        let turn = Turn::new();
        assert_eq!(aside([turn.clone()], in_time(), || panic!("on purpose")).await, None::<()>);
        assert_eq!(aside([turn], in_time(), || 7).await, Some(7));
    }
}
