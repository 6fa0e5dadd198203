//! How a log line is written: one event a line on standard error, as logfmt or JSON.
//!
//! Values may come from anywhere, so each passes [`crate::redact`] (`notation`). Whoever reads may stall, so lines go through
//! a bounded queue: nothing that serves waits for a terminal, a pipe or a collector. What somebody outside can cause as often as it likes is
//! written once and then counted ([`repeats`]).

mod notation;
mod queue;
pub mod repeats;

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use tracing::Level;

use self::notation::missing;
use self::queue::Queue;
use crate::family::{Desc, Family};
use crate::{plain, redact};

/// How long the end of the program waits for who reads the log.
const FLUSH: Duration = Duration::from_millis(500);

/// The one log of this process.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// `kvtier_log_dropped_lines_total`.
pub const DROPPED_LINES: Desc = Desc::counter(
    "kvtier_log_dropped_lines_total",
    "Log lines of this exporter that did not reach their reader: it took none for too long, or standard error could not be written.",
);

/// The notation of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// `ts=… level=info msg="…" key=value`
    Logfmt,
    /// One JSON object.
    Json,
}

/// Starts logging. Later calls do nothing.
pub fn init(format: Format, level: Level) {
    let queue = QUEUE.get_or_init(Queue::default);
    // A descriptor of our own: whoever stalls in a write to it holds no lock of the standard library.
    let out = io::stderr().as_fd().try_clone_to_owned().map(File::from);
    let write = move || match out {
        Ok(mut file) => queue.write_to(&mut file, |lines| missing(format, lines)),
        Err(_) => queue.write_to(&mut io::stderr(), |lines| missing(format, lines)),
    };
    if let Err(error) = thread::Builder::new().name("log".to_owned()).spawn(write) {
        // The last that is heard of the log.
        eprintln!("kvtier-exporter: there is no thread for the log: {}", plain::io(&error));
    }
    let started = tracing_subscriber::fmt()
        .with_max_level(level)
        // Telling of it on the same stream helps nobody.
        .log_internal_errors(false)
        .event_format(format)
        .with_writer(|| Line(queue))
        .try_init();
    // The only error is that somebody else has started it.
    drop(started);
    // The default hook writes by itself, and would wait for the reader.
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a task broke: this is a fault of the exporter")));
}

/// What the log counts of itself.
pub fn families() -> Vec<Family> {
    vec![Family::single(DROPPED_LINES, QUEUE.get().map_or(0, Queue::dropped) as f64)]
}

/// The last words of the program: a line without keys, behind all others. They wait for a reader, but not for ever.
pub fn end(words: Option<&str>) {
    let words = words.map(redact::line);
    match (QUEUE.get(), words) {
        (Some(queue), words) => {
            words.into_iter().for_each(|words| queue.put(format!("{words}\n").as_bytes()));
            queue.flush(FLUSH);
        }
        // Nothing was started, so nobody serves: whoever called the program may take the time.
        (None, Some(words)) => eprintln!("{words}"),
        (None, None) => {}
    }
}

/// Puts a line into the queue. Each event comes in one piece.
struct Line(&'static Queue);

impl Write for Line {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
