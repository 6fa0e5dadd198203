//! The grammar of one line, as Prometheus' own text parser reads it.
//!
//! Total: any bytes give an answer. A line is refused exactly where Prometheus would refuse the whole page for
//! it; where the reading here is narrower than Prometheus' (an escape that the format does not know), the line
//! is marked opaque and passes.

use super::series::{Series, Shape};

/// What one line is. Ranges count from the start of the line.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line<'a> {
    /// Nothing but blanks.
    Blank,
    /// A comment that means nothing to anyone.
    Comment,
    /// OpenMetrics' end mark.
    EndMark,
    /// `# HELP name text`.
    Help { name: &'a [u8] },
    /// `# TYPE name kind`, with the place of the kind.
    Type { name: &'a [u8], kind: Kind, kind_at: (usize, usize) },
    /// A sample.
    Sample(Sample<'a>),
    /// Prometheus would refuse the page.
    Refused(Refusal),
}

/// The kind in a TYPE line: one that text 0.0.4 knows, or what it has to be called there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One of the five of text 0.0.4.
    Text,
    /// OpenMetrics' word; the nearest one of text 0.0.4.
    OpenMetrics(&'static str),
}

/// A sample, taken apart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub name: &'a [u8],
    /// Between the braces.
    pub labels: &'a [u8],
    /// The line before has the same name.
    pub same_name: bool,
    pub value_at: (usize, usize),
    /// A label value has an escape that the format does not know.
    pub odd_escape: bool,
    pub tail: Tail,
    /// Where the line ends, without its line end.
    pub end: usize,
}

/// What follows the value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tail {
    /// Nothing, or a timestamp in whole milliseconds.
    Text,
    /// OpenMetrics' seconds and exemplar: what stands there has to be replaced from this place on.
    OpenMetrics { from: usize, milliseconds: Option<i64> },
}

/// Why Prometheus would refuse the page for this line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Name,
    Label,
    RepeatedLabel,
    OpenQuote,
    Utf8,
    Value,
    Timestamp,
    Kind,
    Metadata,
    Trailing,
    Nul,
}

impl Refusal {
    /// The reason in words.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Refusal::Name => "no metric name at the start of the line",
            Refusal::Label => "labels are not well formed",
            Refusal::RepeatedLabel => "a label name stands twice (the name itself is `__name__`)",
            Refusal::OpenQuote => "a label value is not closed",
            Refusal::Utf8 => "not valid UTF-8",
            Refusal::Value => "the value is not a number",
            Refusal::Timestamp => "the timestamp is not a number of milliseconds",
            Refusal::Kind => "unknown metric type",
            Refusal::Metadata => "HELP or TYPE without a metric name",
            Refusal::Trailing => "something follows the sample",
            Refusal::Nul => "a NUL byte, at which Prometheus silently ends the page",
        }
    }
}

/// Reads the line that starts at `text[0]` and ends before `text[end]`. Only a label value may go on behind
/// `end`: Prometheus lets line ends stand inside quotes. `shape` is what earlier lines of the same page left.
pub(super) fn read<'a>(text: &'a [u8], end: usize, shape: &mut Shape<'a>) -> Line<'a> {
    let line = &text[..end];
    let start = skip_blanks(line, 0);
    match line.get(start) {
        None => Line::Blank,
        Some(0) => Line::Refused(Refusal::Nul),
        Some(b'#') => comment(line, start),
        Some(_) if start > 0 => Line::Refused(Refusal::Name),
        Some(_) => match sample(line, shape) {
            Err(Refusal::OpenQuote) => sample(&text[..text.len().min(LONGEST_QUOTE)], shape),
            other => other,
        }
        .map_or_else(Line::Refused, Line::Sample),
    }
}

/// How far a label value may run over line ends before the quote counts as never closed. It bounds the work
/// that a page of unclosed quotes can cause.
const LONGEST_QUOTE: usize = 64 * 1024;

fn comment(line: &[u8], hash: usize) -> Line<'_> {
    if line[hash..] == *b"# EOF" {
        return Line::EndMark;
    }
    let word = skip_blanks(line, hash + 1);
    let keyword = keyword(&line[word..]).filter(|_| word > hash + 1);
    match keyword {
        Some((Keyword::Help, rest)) => help(line, word + rest),
        // Prometheus' comments step over a NUL or end the page at it, depending on where it stands.
        _ if line.contains(&0) => Line::Refused(Refusal::Nul),
        Some((Keyword::Type, rest)) => kind(line, word + rest),
        None => Line::Comment,
    }
}

enum Keyword {
    Help,
    Type,
}

/// `HELP` or `TYPE` with the blanks behind it, and where its name starts.
fn keyword(text: &[u8]) -> Option<(Keyword, usize)> {
    let (word, which) =
        [(b"HELP", Keyword::Help), (b"TYPE", Keyword::Type)].into_iter().find(|(w, _)| text.starts_with(*w))?;
    let name = skip_blanks(text, word.len());
    (name > word.len()).then_some((which, name))
}

fn help(line: &[u8], name: usize) -> Line<'_> {
    match metadata_name(line, name) {
        None => Line::Refused(Refusal::Metadata),
        Some(end) if line.get(end) == Some(&0) => Line::Refused(Refusal::Nul),
        Some(end) if std::str::from_utf8(&line[end..]).is_err() => Line::Refused(Refusal::Utf8),
        Some(end) => Line::Help { name: &line[name..end] },
    }
}

fn kind(line: &[u8], name: usize) -> Line<'_> {
    let Some(end) = metadata_name(line, name) else { return Line::Refused(Refusal::Metadata) };
    // Exactly one byte lies between name and kind: Prometheus takes a second blank for a part of the kind.
    let at = (end + 1).min(line.len());
    let kind = match &line[at..] {
        b"counter" | b"gauge" | b"histogram" | b"summary" | b"untyped" => Kind::Text,
        b"unknown" | b"gaugehistogram" => Kind::OpenMetrics("untyped"),
        b"info" | b"stateset" => Kind::OpenMetrics("gauge"),
        _ => return Line::Refused(Refusal::Kind),
    };
    Line::Type { name: &line[name..end], kind, kind_at: (at, line.len()) }
}

fn metadata_name(line: &[u8], at: usize) -> Option<usize> {
    let end = name_end(line, at, is_name_start, is_name_part);
    (end > at).then_some(end)
}

fn sample<'a>(line: &'a [u8], shape: &mut Shape<'a>) -> Result<Sample<'a>, Refusal> {
    let series = shape.series(line)?;
    let sample = value_and_tail(line, series);
    if sample.is_err() {
        // Nobody sees a refused line's name, so the next line must not be told that it has the same.
        shape.forget();
    }
    sample
}

fn value_and_tail(line: &[u8], series: Series) -> Result<Sample<'_>, Refusal> {
    let at = skip_blanks(line, series.end);
    let value_end = token_end(line, at);
    if !is_number(&line[at..value_end]) {
        return Err(Refusal::Value);
    }
    let (tail, end) = read_tail(line, value_end)?;
    Ok(Sample {
        name: &line[..series.name_end],
        labels: &line[series.labels.0..series.labels.1],
        same_name: series.repeated,
        value_at: (at, value_end),
        odd_escape: series.odd_escape,
        tail,
        end,
    })
}

fn read_tail(line: &[u8], value_end: usize) -> Result<(Tail, usize), Refusal> {
    if value_end == line.len() {
        return Ok((Tail::Text, value_end));
    }
    let end = line_end(line, value_end);
    let line = &line[..end];
    let at = skip_blanks(line, value_end);
    let stamp_end = token_end(line, at);
    let stamp = match line.get(at) {
        None => return Ok((Tail::Text, end)),
        Some(b'#') => None,
        Some(_) => Some(&line[at..stamp_end]),
    };
    let exemplar = is_exemplar(&line[stamp.map_or(at, |_| skip_blanks(line, stamp_end))..])?;
    let milliseconds = match stamp {
        Some(stamp) if is_whole(stamp) && !exemplar => {
            return if parse::<i64>(stamp).is_some() { Ok((Tail::Text, end)) } else { Err(Refusal::Timestamp) };
        }
        Some(stamp) => Some(seconds_to_milliseconds(stamp).ok_or(Refusal::Timestamp)?),
        None => None,
    };
    Ok((Tail::OpenMetrics { from: value_end, milliseconds }, end))
}

/// Whether what follows is an exemplar; nothing else may follow.
fn is_exemplar(rest: &[u8]) -> Result<bool, Refusal> {
    match rest {
        [] => Ok(false),
        [b'#', after @ ..] if after.trim_ascii_start().starts_with(b"{") => Ok(true),
        _ => Err(Refusal::Trailing),
    }
}

fn line_end(line: &[u8], from: usize) -> usize {
    let end = memchr::memchr(b'\n', &line[from..]).map_or(line.len(), |at| from + at);
    // The value of a line that spans others may be followed by a CR LF of its own.
    end - usize::from(end < line.len() && end > from && line[end - 1] == b'\r')
}

fn is_whole(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

fn parse<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A timestamp beside an exemplar, or one with a fraction, is OpenMetrics': seconds.
fn seconds_to_milliseconds(text: &[u8]) -> Option<i64> {
    let plain = text.iter().all(|&b| b.is_ascii_digit() || b == b'.');
    let milliseconds = (parse::<f64>(text).filter(|_| plain)? * 1000.0).round();
    // Beyond 2^53 a double no longer counts every millisecond; that is the year 287396.
    (milliseconds <= 9_007_199_254_740_992.0).then_some(milliseconds as i64)
}

/// Whether a value is a number. Most are short and plain, and few are wanted: those are not worth parsing.
fn is_number(text: &[u8]) -> bool {
    is_plain(text) || number(text).is_some()
}

/// At most 18 digits with one point between them: a number under any reading.
fn is_plain(text: &[u8]) -> bool {
    let point = |b: &&u8| **b == b'.';
    text.len() < 20
        && text.first().is_some_and(u8::is_ascii_digit)
        && text.iter().all(|b| b.is_ascii_digit() || *b == b'.')
        && text.iter().filter(point).count() <= 1
}

/// A number as Go's ParseFloat reads it for Prometheus: decimal, no underscores, no hexadecimal; a number too
/// large for a double is an error there and not infinity.
pub(super) fn number(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?;
    match text.parse::<f64>().ok()? {
        value if value.is_finite() => Some(value),
        value if value.is_nan() => text.eq_ignore_ascii_case("nan").then_some(value),
        infinite => (!text.bytes().any(|b| b.is_ascii_digit())).then_some(infinite),
    }
}

pub(super) fn name_end(line: &[u8], at: usize, start: fn(u8) -> bool, part: fn(u8) -> bool) -> usize {
    match line.get(at) {
        Some(&first) if start(first) => at + line[at..].iter().position(|&b| !part(b)).unwrap_or(line.len() - at),
        _ => at,
    }
}

/// The end of a value or timestamp: Prometheus takes everything up to a blank, a line end or a brace.
fn token_end(line: &[u8], at: usize) -> usize {
    let end = line[at..].iter().position(|b| matches!(b, b' ' | b'\t' | b'\n' | b'{'));
    end.map_or(line.len(), |length| at + length)
}

pub(super) fn skip_blanks(line: &[u8], at: usize) -> usize {
    at + line.get(at..).map_or(0, |rest| rest.iter().take_while(|b| matches!(b, b' ' | b'\t')).count())
}

pub(super) fn is_name_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_' || b == b':'
}

pub(super) fn is_name_part(b: u8) -> bool {
    is_name_start(b) || b.is_ascii_digit()
}

pub(super) fn is_label_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_'
}

pub(super) fn is_label_part(b: u8) -> bool {
    is_label_start(b) || b.is_ascii_digit()
}
