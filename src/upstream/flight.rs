//! Single flight: whoever comes while a piece of work is running waits for the same result.
//!
//! The result lives as long as somebody waits for it and not longer: nothing is cached, so nothing old can be
//! taken for new.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

type Waiting<T> = watch::Receiver<Option<Arc<T>>>;

/// A piece of work that at most one task does at a time.
pub struct Flight<T>(Arc<Mutex<Option<Waiting<T>>>>);

impl<T> Default for Flight<T> {
    fn default() -> Flight<T> {
        Flight(Arc::default())
    }
}

impl<T: Send + Sync + 'static> Flight<T> {
    /// The result of the work that is running, or of `work`, which is then started. The work goes on when the
    /// caller gives up. `None` when the work panicked.
    pub async fn join<W: Future<Output = T> + Send + 'static>(&self, work: impl FnOnce() -> W) -> Option<Arc<T>> {
        let mut waiting = self.board(work);
        let landed = waiting.wait_for(Option::is_some).await.ok()?;
        landed.clone()
    }

    fn board<W: Future<Output = T> + Send + 'static>(&self, work: impl FnOnce() -> W) -> Waiting<T> {
        let mut running = lock(&self.0);
        // A sender that is gone belongs to work that panicked.
        if let Some(waiting) = running.as_ref().filter(|waiting| waiting.has_changed().is_ok()) {
            return waiting.clone();
        }
        let (sender, waiting) = watch::channel(None);
        *running = Some(waiting.clone());
        let (slot, work) = (Arc::clone(&self.0), work());
        tokio::spawn(async move {
            let result = Arc::new(work.await);
            // In this order: whoever comes from here on starts anew.
            lock(&slot).take();
            sender.send_replace(Some(result));
        });
        waiting
    }
}

fn lock<T>(slot: &Mutex<Option<Waiting<T>>>) -> std::sync::MutexGuard<'_, Option<Waiting<T>>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn all_who_wait_get_the_same_result_and_the_next_gets_a_new_one() {
        let flight = Flight::default();
        let runs = Arc::new(AtomicU32::new(0));
        let (open, gate) = oneshot::channel::<()>();
        let counted = Arc::clone(&runs);
        let first = flight.join(|| async move {
            gate.await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst)
        });
        let second = flight.join(|| async { unreachable!("the first is still running") });
        let opener = async { open.send(()).unwrap() };
        let (first, second, ()) = tokio::join!(first, second, opener);
        assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
        assert_eq!(flight.join(|| async { 7 }).await.as_deref(), Some(&7));
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn one_who_gives_up_does_not_stop_the_others() {
        let flight = Flight::default();
        let (open, gate) = oneshot::channel::<u32>();
        {
            let impatient = flight.join(|| async move { gate.await.unwrap() });
            tokio::select! { biased; _ = impatient => unreachable!(), () = std::future::ready(()) => {} }
        }
        let patient = flight.join(|| async { unreachable!("the first is still running") });
        let (result, ()) = tokio::join!(patient, async { open.send(3).unwrap() });
        assert_eq!(result.as_deref(), Some(&3));
    }

    #[tokio::test]
    async fn nothing_is_kept_and_a_panic_is_not_the_end() {
        let flight = Flight::default();
        let result = Arc::downgrade(&flight.join(|| async { vec![1] }).await.unwrap());
        assert!(result.upgrade().is_none());
        assert!(flight.join(|| async { panic!("on purpose") }).await.is_none());
        assert_eq!(flight.join(|| async { vec![2] }).await.as_deref(), Some(&vec![2]));
    }
}
