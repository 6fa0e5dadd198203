//! An event as a line, in either notation. Every value passes the exit for foreign text, and then the notation's own escapes.

use std::fmt::{self, Write as _};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::Format;
use crate::redact;

impl<S, N> FormatEvent<S, N> for Format
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut line = Line::begun(*self, event.metadata().level().as_str());
        event.record(&mut line);
        out.write_str(&line.ended())
    }
}

/// The line that stands where lines are missing.
pub(super) fn missing(format: Format, lines: u64) -> String {
    let mut line = Line::begun(format, "ERROR");
    line.plain("lines", &lines);
    line.text("message", "lines are missing here: nobody took them in time, or they could not be written");
    line.ended()
}

/// A line that grows by fields.
struct Line {
    format: Format,
    line: String,
}

impl Line {
    fn begun(format: Format, level: &str) -> Line {
        let mut time = String::new();
        // Writing to a String cannot fail, here and below.
        let _ = SystemTime.format_time(&mut Writer::new(&mut time));
        let line = match format {
            Format::Logfmt => format!("ts={time} level={}", level.to_ascii_lowercase()),
            Format::Json => format!("{{\"timestamp\":\"{time}\",\"level\":\"{level}\""),
        };
        Line { format, line }
    }

    fn text(&mut self, name: &str, value: &str) {
        let value = redact::blanked(value);
        match self.format {
            Format::Logfmt => self.plain(name, &Quoted(&value)),
            Format::Json => self.plain(name, &Json(&value)),
        }
    }

    /// A value that needs no escapes.
    fn plain(&mut self, name: &str, value: &dyn fmt::Display) {
        let _ = match (self.format, name) {
            (Format::Logfmt, "message") => write!(self.line, " msg={value}"),
            (Format::Logfmt, name) => write!(self.line, " {name}={value}"),
            (Format::Json, name) => write!(self.line, ",\"{name}\":{value}"),
        };
    }

    fn ended(self) -> String {
        self.line + if self.format == Format::Json { "}\n" } else { "\n" }
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), &format!("{value:?}"));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.plain(field.name(), &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.plain(field.name(), &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no infinity.
        if value.is_finite() {
            self.plain(field.name(), &value);
        } else {
            self.text(field.name(), &value.to_string());
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.plain(field.name(), &value);
    }
}

/// A value as it stands, or in quotes with escapes where it would end early.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |c: char| !c.is_whitespace() && !redact::is_hidden(c) && !matches!(c, '"' | '=' | '\\');
        if !self.0.is_empty() && self.0.chars().all(plain) { f.write_str(self.0) } else { write!(f, "{:?}", self.0) }
    }
}

/// A text in JSON with every hidden character escaped. JSON asks for it only below the blank; delete and the controls behind it
/// (a CSI in one character) move a terminal too.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(self.0).map_err(|_| fmt::Error)?;
        for c in json.chars() {
            if redact::is_hidden(c) {
                c.encode_utf16(&mut [0; 2]).iter().try_for_each(|unit| write!(f, "\\u{unit:04x}"))?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_no_hidden_character_left_and_reads_the_same() {
        let text = "\u{7f}\u{9b}é\u{1b}\"\u{202e}\u{e0041}\n";
        let json = Json(text).to_string();
        assert_eq!(json, r#""\u007f\u009bé\u001b\"\u202e\udb40\udc41\n""#);
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
    }

    #[test]
    fn values_are_quoted_only_where_needed_and_hidden_characters_escaped() {
        let quoted = |text: &str| Quoted(text).to_string();
        assert_eq!(quoted("127.0.0.1:1"), "127.0.0.1:1");
        assert_eq!(quoted(""), "\"\"");
        assert_eq!(quoted("a \"b\"\n"), "\"a \\\"b\\\"\\n\"");
        assert_eq!(quoted("\u{1b}[31m"), "\"\\u{1b}[31m\"");
        assert_eq!(quoted("a\u{202e}b"), "\"a\\u{202e}b\"");
    }

    #[test]
    fn a_line_is_of_the_same_fields_in_both_notations() {
        let line = |format| {
            let mut line = Line::begun(format, "WARN");
            line.text("message", "it is so");
            line.plain("count", &5_u64);
            line.ended()
        };
        let json: serde_json::Value = serde_json::from_str(&line(Format::Json)).unwrap();
        assert_eq!((&json["level"], &json["message"], &json["count"]), (&"WARN".into(), &"it is so".into(), &5.into()));
        assert!(line(Format::Logfmt).ends_with(" level=warn msg=\"it is so\" count=5\n"));
    }
}
