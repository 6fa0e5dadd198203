//! Log lines on their way out: a bounded queue, and the thread that writes it.
//!
//! Whoever logs never waits for who reads. While the reader stalls, lines gather up to [`ROOM`]; those beyond are dropped and
//! counted, and their number is written where they are missing as soon as the reader takes lines again.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes that wait: some thousand lines. As much again may be on its way to the reader.
pub(super) const ROOM: usize = 256 * 1024;

/// Until the next try where standard error is a descriptor that does not block.
const PAUSE: Duration = Duration::from_millis(10);

/// The queue.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: Batch,
    /// A batch is on its way to the reader.
    writing: bool,
}

/// Lines, and how many are missing behind them.
#[derive(Default)]
struct Batch {
    text: Vec<u8>,
    lines: u64,
    missing: u64,
}

impl Queue {
    /// Takes in a line, or drops it.
    pub(super) fn put(&self, line: &[u8]) {
        let waiting = &mut self.state().waiting;
        // After the first that is missing none is taken, so that their number has one place.
        if waiting.missing > 0 || waiting.text.len() + line.len() > ROOM {
            waiting.missing += 1;
            self.lose(1);
        } else {
            waiting.text.extend_from_slice(line);
            waiting.lines += 1;
        }
        self.changed.notify_all();
    }

    /// Lines that did not reach their reader.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything is written, or for as long as `patience`.
    pub(super) fn flush(&self, patience: Duration) {
        let busy = |state: &mut State| state.writing || state.waiting.lines > 0;
        // Whether it was written or not, this is the end.
        drop(self.changed.wait_timeout_while(self.state(), patience, busy));
    }

    /// Writes for ever. `notice` words how many lines are missing.
    pub(super) fn write_to(&self, out: &mut impl Write, notice: impl Fn(u64) -> String) {
        let mut unsaid = 0;
        loop {
            let batch = self.take();
            unsaid += batch.missing;
            if write(out, &batch.text).is_err() {
                self.lose(batch.lines);
                unsaid += batch.lines;
            } else if unsaid > 0 && write(out, notice(unsaid).as_bytes()).is_ok() {
                unsaid = 0;
            }
            self.state().writing = false;
            self.changed.notify_all();
        }
    }

    fn take(&self) -> Batch {
        let waited = self.changed.wait_while(self.state(), |state| state.waiting.lines == 0);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.writing = true;
        std::mem::take(&mut state.waiting)
    }

    fn lose(&self, lines: u64) {
        self.dropped.fetch_add(lines, Ordering::Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes all of it, also where the descriptor was made not to block by somebody who shares it.
fn write(out: &mut impl Write, mut text: &[u8]) -> io::Result<()> {
    while !text.is_empty() {
        match out.write(text) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => text = &text[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    use super::*;

    /// A reader that takes a piece whenever it is told how.
    struct Reader {
        orders: Receiver<io::Result<()>>,
        taken: Sender<String>,
    }

    impl Write for Reader {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            // Without orders it stalls for good.
            let Ok(order) = self.orders.recv() else {
                loop {
                    thread::park();
                }
            };
            order.map(|()| {
                self.taken.send(String::from_utf8(text.to_vec()).unwrap()).unwrap();
                text.len()
            })
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn start() -> (Arc<Queue>, Sender<io::Result<()>>, Receiver<String>) {
        let (queue, (order, orders), (taken, take)) = (Arc::<Queue>::default(), channel(), channel());
        let written = Arc::clone(&queue);
        thread::spawn(move || {
            written.write_to(&mut Reader { orders, taken }, |lines| format!("{lines} missing\n"));
        });
        (queue, order, take)
    }

    /// Puts a line and waits until it is on its way.
    fn stall(queue: &Queue) {
        queue.put(b"first\n");
        while !queue.state().writing {
            thread::yield_now();
        }
    }

    #[test]
    fn lines_beyond_the_room_are_dropped_and_their_number_stands_where_they_are_missing() {
        let (queue, order, take) = start();
        stall(&queue);
        let line = "x".repeat(ROOM / 4 - 1) + "\n";
        for _ in 0..7 {
            queue.put(line.as_bytes());
        }
        queue.put(b"short\n");
        assert_eq!(queue.dropped(), 4, "three long ones, and the short one that came behind them");
        for expected in ["first\n", &line.repeat(4), "4 missing\n"] {
            order.send(Ok(())).unwrap();
            assert!(take.recv().unwrap() == expected);
        }
        queue.put(b"next\n");
        order.send(Ok(())).unwrap();
        assert_eq!((take.recv().unwrap().as_str(), queue.dropped()), ("next\n", 4));
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_said_when_it_can() {
        let (queue, order, take) = start();
        for _ in 0..3 {
            queue.put(b"lost\n");
            order.send(Err(io::ErrorKind::StorageFull.into())).unwrap();
            queue.flush(Duration::from_secs(20));
        }
        assert_eq!(queue.dropped(), 3);
        // Said after a line that could be written: an error said at once would fail, and be said again, for ever.
        order.send(Err(io::ErrorKind::WouldBlock.into())).unwrap();
        for _ in 0..2 {
            order.send(Ok(())).unwrap();
        }
        queue.put(b"kept\n");
        assert_eq!((take.recv().unwrap(), take.recv().unwrap()), ("kept\n".to_owned(), "3 missing\n".to_owned()));
    }

    #[test]
    fn a_flush_waits_for_the_reader_and_not_for_ever() {
        let (queue, order, take) = start();
        stall(&queue);
        let began = Instant::now();
        queue.flush(Duration::from_millis(50));
        assert!(began.elapsed() >= Duration::from_millis(50));
        order.send(Ok(())).unwrap();
        queue.flush(Duration::from_secs(20));
        assert_eq!(take.try_recv().unwrap(), "first\n");
    }
}
