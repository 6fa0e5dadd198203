//! Work that may hang: reading a file on a mount that is gone, asking a resolver that does not answer. It is done on a thread
//! of its own, which is left behind where it hangs. The runtime's own threads are too few for that: each such work would
//! keep one for good.

use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

/// Does the work on a thread of its own. `None` where it panicked or there is no thread to be had.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, done) = oneshot::channel();
    // Nobody may be waiting any more.
    let run = move || drop(sender.send(work()));
    thread::Builder::new().name("aside".to_owned()).spawn(run).ok()?;
    done.await.ok()
}

/// The same for as long as `patience`. `None` also when it is not done by then.
pub async fn within<T: Send + 'static>(patience: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    timeout(patience, aside(work)).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn work_that_hangs_is_left_behind() {
        let (open, gate) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || gate.recv()).await, None);
        // The work still waits for it.
        open.send(()).unwrap();
        assert_eq!(within(Duration::from_secs(20), || 7).await, Some(7));
        assert_eq!(aside(|| panic!("on purpose")).await, None::<()>);
    }
}
