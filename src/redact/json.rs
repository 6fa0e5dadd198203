//! JSON whose texts have passed the exit. Keys are ours, and stay.
//!
//! Line ends and tabs stay what they are, since some texts are files to be written; every other hidden character is escaped
//! twice over, so that whoever prints a text that he has taken out of the JSON is safe too.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Result;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, PrettyFormatter, Serializer};

use super::{blanked, hidden};

/// On one line.
///
/// # Errors
/// Where the value cannot be JSON.
pub fn to_vec(value: &impl Serialize) -> Result<Vec<u8>> {
    written(value, CompactFormatter)
}

/// For people.
///
/// # Errors
/// Where the value cannot be JSON.
pub fn to_vec_pretty(value: &impl Serialize) -> Result<Vec<u8>> {
    written(value, PrettyFormatter::new())
}

fn written(value: &impl Serialize, layout: impl Formatter) -> Result<Vec<u8>> {
    let mut json = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut json, Exit { layout, text: String::new(), is_key: false }))?;
    Ok(json)
}

/// Gathers each text, and writes it once it is whole.
struct Exit<F> {
    layout: F,
    text: String,
    is_key: bool,
}

impl<F: Formatter> Formatter for Exit<F> {
    fn begin_string<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.text.clear();
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, _: &mut W, fragment: &str) -> io::Result<()> {
        self.text.push_str(fragment);
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, _: &mut W, escape: CharEscape) -> io::Result<()> {
        self.text.push(meant(&escape));
        Ok(())
    }

    fn end_string<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        if self.is_key {
            return Ok(serde_json::to_writer(writer, &self.text)?);
        }
        let text = blanked(&self.text);
        Ok(serde_json::to_writer(writer, &hidden::escaped(&text, |c| matches!(c, '\n' | '\t')))?)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.is_key = true;
        self.layout.begin_object_key(writer, first)
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.is_key = false;
        self.layout.end_object_key(writer)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_object_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_object(writer)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.layout.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.layout.end_array_value(writer)
    }
}

/// The character that JSON has to escape.
fn meant(escape: &CharEscape) -> char {
    match escape {
        CharEscape::Quote => '"',
        CharEscape::ReverseSolidus => '\\',
        CharEscape::Solidus => '/',
        CharEscape::Backspace => '\u{8}',
        CharEscape::FormFeed => '\u{c}',
        CharEscape::LineFeed => '\n',
        CharEscape::CarriageReturn => '\r',
        CharEscape::Tab => '\t',
        CharEscape::AsciiControl(byte) => char::from(*byte),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Secret, learn};
    use super::*;

    #[test]
    fn texts_pass_the_exit_and_keys_and_layout_stay() {
        // With a sign in it that JSON escapes, which cuts the text in pieces on its way.
        learn("a file of this test", Secret::token("1a2b3c\"of\\another-test"));
        let value = serde_json::json!({
            "a": ["it is 1a2b3c\"of\\another-test", "x\u{1b}[2J\u{202e}\ty\n"],
            "1a2b3c\"of\\another-test": {"b": 1.5, "c": null, "d": true, "e": {}, "f": []},
        });
        let compact = String::from_utf8(to_vec(&value).unwrap()).unwrap();
        assert_eq!(
            compact,
            r#"{"1a2b3c\"of\\another-test":{"b":1.5,"c":null,"d":true,"e":{},"f":[]},"a":["it is ***","x\\u{1b}[2J\\u{202e}\ty\n"]}"#
        );
        let pretty = |value: &serde_json::Value| String::from_utf8(to_vec_pretty(value).unwrap()).unwrap();
        let plain = serde_json::json!({"a": [1, {"b": "c"}], "d": {}, "e": []});
        assert_eq!(pretty(&plain), serde_json::to_string_pretty(&plain).unwrap());
    }
}
