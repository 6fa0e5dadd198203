//! How a log line is written: one event a line on standard error, as logfmt or JSON.
//!
//! Values may come from the network, so control bytes are escaped in both. Whoever reads may stall, so lines go through a
//! bounded queue: nothing that serves waits for a terminal, a pipe or a collector.

mod queue;

use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use self::queue::Queue;
use crate::family::{Desc, Family};

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
        eprintln!("kvtier-exporter: there is no thread for the log: {error}");
    }
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        // Telling of it on the same stream helps nobody.
        .log_internal_errors(false);
    let started = match format {
        Format::Logfmt => builder.event_format(Logfmt).with_writer(|| Line(queue)).try_init(),
        Format::Json => {
            let builder = builder.json().flatten_event(true).with_target(false);
            builder.with_writer(|| PlainJson(Line(queue))).try_init()
        }
    };
    // The only error is that somebody else has started it.
    drop(started);
    // The default hook writes by itself, and would wait for the reader.
    std::panic::set_hook(Box::new(|panic| tracing::error!(%panic, "a task broke: this is a fault of the exporter")));
}

/// What the log counts of itself.
pub fn families() -> Vec<Family> {
    vec![Family::single(DROPPED_LINES, QUEUE.get().map_or(0, Queue::dropped) as f64)]
}

/// The last words of the program: a line as it is, behind all others. They wait for a reader, but not for ever.
pub fn end(words: Option<&str>) {
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

/// The line that stands where lines are missing.
fn missing(format: Format, lines: u64) -> String {
    const WHAT: &str = "lines are missing here: nobody took them in time, or they could not be written";
    let mut time = String::new();
    // Writing to a String cannot fail.
    let _ = SystemTime.format_time(&mut Writer::new(&mut time));
    match format {
        Format::Logfmt => format!("ts={time} level=error msg={} lines={lines}\n", Quoted(WHAT)),
        Format::Json => {
            format!("{}\n", json!({"timestamp": time, "level": "ERROR", "message": WHAT, "lines": lines}))
        }
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

/// Writes an event as logfmt.
struct Logfmt;

impl<S, N> FormatEvent<S, N> for Logfmt
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        line.write_str("ts=")?;
        SystemTime.format_time(&mut line)?;
        write!(line, " level={}", event.metadata().level().as_str().to_ascii_lowercase())?;
        let mut fields = Fields { line, result: Ok(()) };
        event.record(&mut fields);
        fields.result?;
        fields.line.write_char('\n')
    }
}

struct Fields<'a> {
    line: Writer<'a>,
    result: fmt::Result,
}

impl Fields<'_> {
    fn put(&mut self, field: &Field, value: &str) {
        let key = if field.name() == "message" { "msg" } else { field.name() };
        self.result = self.result.and_then(|()| write!(self.line, " {key}={}", Quoted(value)));
    }
}

impl Visit for Fields<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, &format!("{value:?}"));
    }
}

/// A value as it stands, or in quotes with escapes where it would end early.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '=' | '\\');
        if !self.0.is_empty() && self.0.chars().all(plain) { f.write_str(self.0) } else { write!(f, "{:?}", self.0) }
    }
}

/// Writes JSON lines with every control character escaped. JSON asks for it only below the blank; delete and the
/// controls behind it (a CSI in one character) move a terminal too.
struct PlainJson<W>(W);

impl<W: Write> Write for PlainJson<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Each event comes in one piece. Outside of texts JSON has none of these, and inside an escape is the same text.
        let escaped = |c: char| matches!(c, '\u{7f}'..='\u{9f}');
        let text = String::from_utf8_lossy(line);
        if text.contains(escaped) {
            let plain = |c: char| if escaped(c) { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() };
            self.0.write_all(text.chars().map(plain).collect::<String>().as_bytes())?;
        } else {
            self.0.write_all(line)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_control_character_left() {
        let mut written = PlainJson(Vec::new());
        written.write_all("{\"a\":\"\u{7f}\u{9b}é\\u001b\"}\n".as_bytes()).unwrap();
        assert_eq!(String::from_utf8(written.0).unwrap(), "{\"a\":\"\\u007f\\u009bé\\u001b\"}\n");
    }

    #[test]
    fn values_are_quoted_only_where_needed_and_control_bytes_escaped() {
        let quoted = |text: &str| Quoted(text).to_string();
        assert_eq!(quoted("127.0.0.1:1"), "127.0.0.1:1");
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted("a \"b\"\n"), "\"a \\\"b\\\"\\n\"");
        assert_eq!(quoted("\u{1b}[31m"), "\"\\u{1b}[31m\"");
    }
}
