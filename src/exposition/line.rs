//! The grammar of one line, as Prometheus' own text parser reads it.
//!
//! Total: any bytes give an answer. A line is refused exactly where Prometheus would refuse the whole page for
//! it; where the reading here is narrower than Prometheus' (an escape that the format does not know), the line
//! is marked opaque and passes.

use super::series::{Repeat, Shape, Shapes};
use super::window::short_number;
use super::words::{METRIC_NAME, skip_blanks};

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

/// A sample, taken apart. It is kept small, since it is handed on for each line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    pub name: &'a [u8],
    /// Between the braces.
    pub labels: (usize, usize),
    pub value_at: (usize, usize),
    /// Where the line ends, without its line end.
    pub end: usize,
    /// A label value has an escape that the format does not know.
    pub odd_escape: bool,
    /// OpenMetrics' seconds or an exemplar follow the value: see [`milliseconds`].
    pub is_openmetrics: bool,
    /// It has the name of the sample before it. `false` says nothing.
    pub has_last_name: bool,
}

/// What follows a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tail {
    /// Nothing, or a timestamp in whole milliseconds.
    Text,
    /// OpenMetrics' seconds and exemplar: what stands there has to be replaced.
    OpenMetrics { milliseconds: Option<i64> },
}

/// Why Prometheus would refuse the page for this line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    QuotedName,
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
    /// The same, or what is wrong with a name in quotes, where one stands in the place of a name.
    pub(super) fn of_quotes(self) -> Refusal {
        match self {
            Refusal::Name | Refusal::Label | Refusal::Metadata => Refusal::QuotedName,
            other => other,
        }
    }

    /// The reason in words.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Refusal::QuotedName => "a name in quotes that is not well formed, or would be another's without them",
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

/// Reads the line that starts at `text[0]`, and says where its line end stands: LF, CR LF or the end of the text.
/// `shapes` is what earlier lines of the same page left.
pub(super) fn read<'a>(text: &'a [u8], shapes: &mut Shapes<'a>) -> (Line<'a>, usize) {
    match text.first() {
        // Most lines are samples. They end where their value ends, so nobody has to look for their end before.
        Some(first) if !matches!(first, b'#' | b' ' | b'\t' | b'\r' | b'\n' | 0) => sample_line(text, shapes),
        _ => {
            let line = &text[..line_end(text, 0)];
            (no_sample(line), line.len())
        }
    }
}

/// The sample at the start of `text`, where it repeats one of the last. `None` says nothing about the text: [`read`]
/// does. Most lines repeat, and so they cost a quarter.
#[inline]
pub(super) fn next_sample<'a>(text: &'a [u8], shapes: &mut Shapes<'a>) -> Option<Sample<'a>> {
    if text.starts_with(b"#") {
        return None;
    }
    let text = &text[..text.len().min(LONGEST_QUOTE)];
    let Repeat { name_end, labels, value, has_last_name } = shapes.repeat(text)?;
    Some(Sample {
        name: &text[..name_end],
        labels,
        value_at: value,
        end: value.1,
        odd_escape: false,
        is_openmetrics: false,
        has_last_name,
    })
}

/// How far a sample may go where it does not end with its line: Prometheus lets line ends stand inside quotes. It
/// bounds the work that a page of unclosed quotes can cause.
pub(super) const LONGEST_QUOTE: usize = 64 * 1024;

fn sample_line<'a>(text: &'a [u8], shapes: &mut Shapes<'a>) -> (Line<'a>, usize) {
    let mut sample = sample_within(text, LONGEST_QUOTE, shapes);
    let end = match &sample {
        Ok(sample) => sample.end,
        Err(_) => line_end(text, 0),
    };
    if sample.is_err() && end > LONGEST_QUOTE {
        sample = sample_within(text, end, shapes);
    }
    (sample.map_or_else(Line::Refused, Line::Sample), end)
}

/// The sample, where it ends within so many bytes.
fn sample_within<'a>(text: &'a [u8], limit: usize, shapes: &mut Shapes<'a>) -> Result<Sample<'a>, Refusal> {
    let (sample, shape) = sample(&text[..text.len().min(limit)], shapes)?;
    match &text[sample.end..] {
        [] | [b'\n', ..] | [b'\r', b'\n', ..] => {
            shapes.remember(shape);
            Ok(sample)
        }
        _ => Err(Refusal::OpenQuote),
    }
}

fn no_sample(line: &[u8]) -> Line<'_> {
    let start = skip_blanks(line, 0);
    match line.get(start) {
        None => Line::Blank,
        Some(0) => Line::Refused(Refusal::Nul),
        Some(b'#') => comment(line, start),
        Some(_) => Line::Refused(Refusal::Name),
    }
}

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
        // The byte behind the name is thrown away, whatever it is, and only the rest has to be UTF-8.
        Some(end) if std::str::from_utf8(line.get(end + 1..).unwrap_or_default()).is_err() => {
            Line::Refused(Refusal::Utf8)
        }
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
    let end = METRIC_NAME.end(line, at);
    (end > at).then_some(end)
}

fn sample<'a>(line: &'a [u8], shapes: &Shapes<'a>) -> Result<(Sample<'a>, Shape<'a>), Refusal> {
    let (series, shape) = shapes.check(line)?;
    let at = skip_blanks(line, series.end);
    let value_end = value_end(line, at).ok_or(Refusal::Value)?;
    let (tail, end) = read_tail(line, value_end)?;
    let sample = Sample {
        name: &line[..series.name_end],
        labels: series.labels,
        value_at: (at, value_end),
        end,
        odd_escape: series.odd_escape,
        is_openmetrics: tail != Tail::Text,
        has_last_name: false,
    };
    Ok((sample, shape))
}

/// The timestamp of a sample that OpenMetrics' way of writing it follows, if it has one.
pub(super) fn milliseconds(line: &[u8], sample: &Sample<'_>) -> Option<i64> {
    match read_tail(&line[..sample.end], sample.value_at.1) {
        Ok((Tail::OpenMetrics { milliseconds }, _)) => milliseconds,
        _ => None,
    }
}

fn read_tail(line: &[u8], value_end: usize) -> Result<(Tail, usize), Refusal> {
    if matches!(line.get(value_end), None | Some(b'\n')) {
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
    Ok((Tail::OpenMetrics { milliseconds }, end))
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

/// Where the number that starts at `at` ends; `None` where there is none. Most are short and plain, and few are
/// wanted: those are not worth parsing.
fn value_end(line: &[u8], at: usize) -> Option<usize> {
    let plain = plain_number(&line[at..]).map(|length| at + length);
    let is_end = |end: &usize| matches!(line.get(*end), None | Some(b' ' | b'\n'));
    plain.filter(is_end).or_else(|| {
        let end = token_end(line, at);
        number(&line[at..end]).map(|_| end)
    })
}

/// The length of a plain number with the line end behind it.
pub(super) fn ended_number(text: &[u8]) -> Option<usize> {
    short_number(text).or_else(|| plain_number(text).filter(|end| text.get(*end) == Some(&b'\n')))
}

/// How many bytes at the start are digits, maybe with a point among them and an exponent of one or two digits behind
/// them: few enough to be a finite number under any reading.
fn plain_number(text: &[u8]) -> Option<usize> {
    let digits = |from: usize| text[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = digits(0);
    if end == 0 {
        return None;
    }
    if text.get(end) == Some(&b'.') {
        end += 1 + digits(end + 1);
    }
    if let [b'e', b'+' | b'-', ..] = text[end..] {
        let exponent = digits(end + 2);
        if !matches!(exponent, 1 | 2) {
            return None;
        }
        end += 2 + exponent;
    }
    (end < 64).then_some(end)
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

/// The end of a value or timestamp: Prometheus takes everything up to a blank, a line end or a brace.
fn token_end(line: &[u8], at: usize) -> usize {
    let end = line[at..].iter().position(|b| matches!(b, b' ' | b'\t' | b'\n' | b'{'));
    let end = end.map_or(line.len(), |length| at + length);
    end - usize::from(line.get(end) == Some(&b'\n') && end > at && line[end - 1] == b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value_of(line: &str) -> Option<(usize, usize)> {
        match read(line.as_bytes(), &mut Shapes::new(line.as_bytes())).0 {
            Line::Sample(sample) => Some(sample.value_at),
            _ => None,
        }
    }

    #[test]
    fn numbers_are_those_of_prometheus() {
        for good in ["0", "1.", "1.5", "1e5", "1e+05", "1.7e-07", "1e308", "-1", "+.5", "NaN", "+Inf", "-inf", "1e+1"] {
            assert_eq!(value_of(&format!("a {good}\n")), Some((2, 2 + good.len())), "{good}");
            assert_eq!(value_of(&format!("a {good} 7\r\n")), Some((2, 2 + good.len())), "{good}");
        }
        for bad in ["", ".", "1e", "1e+", "1e+999", "1.2.3", "1_0", "0x1", "1e+5.", "1x", "+NaN", "e+05"] {
            assert_eq!(value_of(&format!("a {bad}\n")), None, "{bad}");
        }
        assert_eq!(value_of(&format!("a {}\n", "9".repeat(400))), None);
        assert_eq!(value_of(&format!("a 0.{}\n", "3".repeat(400))), Some((2, 404)));
    }

    #[test]
    fn a_number_longer_than_a_quote_may_be_is_read_to_its_end() {
        let number = format!("1.{}", "0".repeat(LONGEST_QUOTE));
        assert_eq!(value_of(&format!("a {number}\nb 1\n")), Some((2, 2 + number.len())));
        assert_eq!(value_of(&format!("a{{b=\"\n\"}} {number}\nb 1\n")), None);
    }

    #[test]
    fn a_quote_may_span_lines_but_not_for_ever() {
        let far = |length| format!("a{{b=\"\n{}\"}} 1\n", "x".repeat(length));
        assert!(value_of(&far(LONGEST_QUOTE - 20)).is_some());
        assert!(value_of(&far(LONGEST_QUOTE)).is_none());
    }
}
