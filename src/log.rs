//! How a log line is written: one event a line on standard error, as logfmt or JSON.
//!
//! Values may come from the network, so control bytes are escaped in both.

use std::fmt;
use std::io::{self, Write};

use clap::ValueEnum;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

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
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        // Where nobody reads our log any more, telling of it on the same stream would be a panic.
        .log_internal_errors(false);
    let started = match format {
        Format::Logfmt => builder.event_format(Logfmt).with_writer(io::stderr).try_init(),
        Format::Json => {
            let builder = builder.json().flatten_event(true).with_target(false);
            builder.with_writer(|| PlainJson(io::stderr())).try_init()
        }
    };
    // The only error is that somebody else has started it.
    drop(started);
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
