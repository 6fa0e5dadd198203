//! Single flight: whoever comes while a piece of work is running waits for the same result.
//!
//! Unless it is told to keep results for a time, a result lives as long as somebody waits for it and not longer:
//! nothing is cached, so nothing old can be taken for new.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

type Waiting<T> = watch::Receiver<Option<Arc<T>>>;

/// A place on a flight. It has the result for as long as somebody has the ticket.
pub struct Ticket<T>(Waiting<T>);

impl<T> Clone for Ticket<T> {
    fn clone(&self) -> Ticket<T> {
        Ticket(self.0.clone())
    }
}

impl<T> Ticket<T> {
    /// The result; `None` when the work panicked.
    pub async fn landed(mut self) -> Option<Arc<T>> {
        let landed = self.0.wait_for(Option::is_some).await.ok()?;
        landed.clone()
    }
}

/// A piece of work that at most one task does at a time.
pub struct Flight<T> {
    slot: Arc<Mutex<Option<Waiting<T>>>>,
    keep: Duration,
}

impl<T: Send + Sync + 'static> Flight<T> {
    /// Results are kept for this long after they are there; whoever comes in that time gets them too.
    pub fn keeping(keep: Duration) -> Flight<T> {
        Flight { slot: Arc::default(), keep }
    }

    /// A ticket for the result of the work that is running, or of `work`, which is then started before this returns. The
    /// work goes on when the caller gives up.
    pub fn join<W: Future<Output = T> + Send + 'static>(&self, work: impl FnOnce() -> W) -> Ticket<T> {
        let mut running = lock(&self.slot);
        // A sender that is gone belongs to work that panicked.
        if let Some(waiting) = running.as_ref().filter(|waiting| waiting.has_changed().is_ok()) {
            return Ticket(waiting.clone());
        }
        let (sender, waiting) = watch::channel(None);
        *running = Some(waiting.clone());
        let (slot, keep, work) = (Arc::clone(&self.slot), self.keep, work());
        tokio::spawn(async move {
            let result = Some(Arc::new(work.await));
            if keep.is_zero() {
                // In this order: whoever comes from here on starts anew.
                lock(&slot).take();
                sender.send_replace(result);
            } else {
                sender.send_replace(result);
                sleep(keep).await;
                lock(&slot).take();
            }
        });
        Ticket(waiting)
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
        let flight = Flight::keeping(Duration::ZERO);
        let runs = Arc::new(AtomicU32::new(0));
        let (open, gate) = oneshot::channel::<()>();
        let counted = Arc::clone(&runs);
        let first = flight.join(|| async move {
            gate.await.unwrap();
            counted.fetch_add(1, Ordering::SeqCst)
        });
        let second = flight.join(|| async { unreachable!("the first is still running") });
        let (first, second) = (first.landed(), second.landed());
        let opener = async { open.send(()).unwrap() };
        let (first, second, ()) = tokio::join!(first, second, opener);
        assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
        assert_eq!(flight.join(|| async { 7 }).landed().await.as_deref(), Some(&7));
        assert_eq!(runs.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn one_who_gives_up_does_not_stop_the_others() {
        let flight = Flight::keeping(Duration::ZERO);
        let (open, gate) = oneshot::channel::<u32>();
        {
            let impatient = flight.join(|| async move { gate.await.unwrap() }).landed();
            tokio::select! { biased; _ = impatient => unreachable!(), () = std::future::ready(()) => {} }
        }
        let patient = flight.join(|| async { unreachable!("the first is still running") }).landed();
        let (result, ()) = tokio::join!(patient, async { open.send(3).unwrap() });
        assert_eq!(result.as_deref(), Some(&3));
    }

    #[tokio::test]
    async fn nothing_is_kept_and_a_panic_is_not_the_end() {
        let flight = Flight::keeping(Duration::ZERO);
        let result = Arc::downgrade(&flight.join(|| async { vec![1] }).landed().await.unwrap());
        assert!(result.upgrade().is_none());
        assert!(flight.join(|| async { panic!("on purpose") }).landed().await.is_none());
        assert_eq!(flight.join(|| async { vec![2] }).landed().await.as_deref(), Some(&vec![2]));
    }

    #[tokio::test]
    async fn what_is_kept_is_shared_until_its_time_is_over_and_then_let_go() {
        tokio::time::pause();
        let flight = Flight::keeping(Duration::from_secs(1));
        let first = flight.join(|| async { 1 }).landed().await.unwrap();
        tokio::time::advance(Duration::from_millis(900)).await;
        let again = flight.join(|| async { unreachable!("the first is kept") }).landed().await.unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        drop(again);
        sleep(Duration::from_millis(200)).await;
        assert_eq!(Arc::strong_count(&first), 1, "nobody asked, and still it is let go");
        assert_eq!(flight.join(|| async { 2 }).landed().await.as_deref(), Some(&2));
    }
}
