//! What can happen to a body: small damages to bytes, lines, labels and numbers, and the odd parts they put in.

#![allow(clippy::ptr_arg, reason = "all damages have one type, and some change the length")]

use kvtier_exporter::pipeline::Format;

use super::bodies::{Draw, families};

/// What a damage may take from elsewhere.
pub struct Around<'a> {
    /// A family of another page.
    pub other: &'a [u8],
    /// How the body is written.
    pub format: Format,
    /// The present time in milliseconds.
    pub now: u64,
}

type Line = Vec<u8>;
type Damage = fn(&mut Draw, &mut Vec<u8>, &Around<'_>);

/// All damages, by name. Those that stand here twice happen twice as often.
pub const DAMAGES: &[(&str, Damage)] = &[
    ("a bit flipped", flip_a_bit),
    ("a byte replaced", replace_a_byte),
    ("a byte put in", put_in_a_byte),
    ("some bytes taken out", take_out_bytes),
    ("cut off", |draw, body, _| body.truncate(draw.below(body.len() + 1))),
    ("another page from the middle on", splice),
    ("the last line end gone", |_, body, _| body.truncate(body.len().saturating_sub(1))),
    ("a line twice", |draw, body, _| in_lines(draw, body, repeat_a_line)),
    ("a line gone", |draw, body, _| in_lines(draw, body, |_, lines, at| drop(lines.remove(at)))),
    ("two lines swapped", |draw, body, _| in_lines(draw, body, swap_lines)),
    ("two lines joined", |draw, body, _| in_lines(draw, body, join_lines)),
    ("a line put in", |draw, body, _| in_lines(draw, body, put_in_a_line)),
    ("a line put in", |draw, body, _| in_lines(draw, body, put_in_a_line)),
    ("a line indented", |draw, body, _| in_lines(draw, body, |_, lines, at| lines[at].insert(0, b' '))),
    ("a line with CR LF", |draw, body, _| in_lines(draw, body, |_, lines, at| end_with_cr_lf(&mut lines[at]))),
    ("all lines with CR LF", |draw, body, _| {
        in_lines(draw, body, |_, lines, _| lines.iter_mut().for_each(end_with_cr_lf));
    }),
    ("a family twice", repeat_a_family),
    ("another family", |_, body, around| drop(body.splice(0..0, around.other.iter().copied()))),
    ("another type", |draw, body, _| in_lines(draw, body, another_type)),
    ("another label", |draw, body, _| in_samples(draw, body, another_label)),
    ("another label", |draw, body, _| in_samples(draw, body, another_label)),
    ("another label", |draw, body, _| in_samples(draw, body, another_label)),
    ("another label name", |draw, body, _| in_samples(draw, body, another_label_name)),
    ("another number", |draw, body, _| in_samples(draw, body, another_number)),
    ("another number", |draw, body, _| in_samples(draw, body, another_number)),
    ("a timestamp", a_timestamp),
    ("a timestamp", a_timestamp),
    ("an odd timestamp", |draw, body, _| in_samples(draw, body, |draw, line| line.extend(*draw.one_of(TIMES)))),
    ("an exemplar", |draw, body, _| in_samples(draw, body, |draw, line| line.extend(*draw.one_of(EXEMPLARS)))),
    ("tabs for blanks", |draw, body, _| in_samples(draw, body, tabs_for_blanks)),
    ("a blank gone", |draw, body, _| in_samples(draw, body, take_out_a_blank)),
    ("a blank put in", |draw, body, _| in_samples(draw, body, put_in_a_blank)),
];

/// Bytes that mean something somewhere, and some that never should.
const BYTES: &[u8] = b"\"\\{}=, \t\r\n#_:0.eN+-\x00\x0b\x1b\x7f\x80\xc3\xff";

fn a_byte<'b>(draw: &mut Draw, body: &'b mut [u8]) -> Option<&'b mut u8> {
    let at = draw.below(body.len().max(1));
    body.get_mut(at)
}

fn flip_a_bit(draw: &mut Draw, body: &mut Vec<u8>, _: &Around<'_>) {
    if let Some(byte) = a_byte(draw, body) {
        *byte ^= 1 << draw.below(8);
    }
}

fn replace_a_byte(draw: &mut Draw, body: &mut Vec<u8>, _: &Around<'_>) {
    if let Some(byte) = a_byte(draw, body) {
        *byte = *draw.one_of(BYTES);
    }
}

fn put_in_a_byte(draw: &mut Draw, body: &mut Vec<u8>, _: &Around<'_>) {
    body.insert(draw.below(body.len() + 1), *draw.one_of(BYTES));
}

fn take_out_bytes(draw: &mut Draw, body: &mut Vec<u8>, _: &Around<'_>) {
    let at = draw.below(body.len() + 1);
    body.drain(at..(at + draw.below(20)).min(body.len()));
}

fn splice(draw: &mut Draw, body: &mut Vec<u8>, around: &Around<'_>) {
    body.truncate(draw.below(body.len() + 1));
    body.extend(&around.other[draw.below(around.other.len())..]);
}

fn repeat_a_family(draw: &mut Draw, body: &mut Vec<u8>, _: &Around<'_>) {
    let families = families(body);
    if !families.is_empty() {
        body.splice(0..0, draw.one_of(&families).iter().copied());
    }
}

fn a_timestamp(draw: &mut Draw, body: &mut Vec<u8>, around: &Around<'_>) {
    let past = around.now - 60_000 + draw.below(50_000) as u64;
    let time = match around.format {
        Format::OpenMetrics => format!(" {}.{:03}", past / 1000, past % 1000),
        Format::Text | Format::Unsaid => format!(" {past}"),
    };
    in_samples(draw, body, |_, line| line.extend(time.as_bytes()));
}

/// Changes the lines of a body, which keep their ends, at some place in them.
fn in_lines(draw: &mut Draw, body: &mut Vec<u8>, change: impl FnOnce(&mut Draw, &mut Vec<Line>, usize)) {
    let mut lines: Vec<Line> = body.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    if !lines.is_empty() {
        let at = draw.below(lines.len());
        change(draw, &mut lines, at);
        *body = lines.concat();
    }
}

fn repeat_a_line(draw: &mut Draw, lines: &mut Vec<Line>, at: usize) {
    let to = draw.below(lines.len());
    lines.insert(to, lines[at].clone());
}

fn join_lines(_: &mut Draw, lines: &mut Vec<Line>, at: usize) {
    lines[at].pop_if(|byte| *byte == b'\n');
}

fn swap_lines(draw: &mut Draw, lines: &mut Vec<Line>, at: usize) {
    let other = draw.below(lines.len());
    lines.swap(at, other);
}

fn put_in_a_line(draw: &mut Draw, lines: &mut Vec<Line>, at: usize) {
    lines.insert(at, draw.one_of(LINES).to_vec());
}

fn end_with_cr_lf(line: &mut Line) {
    if line.pop_if(|byte| *byte == b'\n').is_some() {
        line.extend(b"\r\n");
    }
}

fn another_type(draw: &mut Draw, lines: &mut Vec<Line>, at: usize) {
    let near = (at..lines.len()).find(|at| lines[*at].starts_with(b"# TYPE")).unwrap_or(at);
    let kind = lines[near].iter().rposition(|byte| *byte == b' ').map_or(0, |blank| blank + 1);
    lines[near].truncate(kind);
    lines[near].extend([*draw.one_of(TYPES), b"\n"].concat());
}

/// Changes some sample without its line end; nothing where there is none.
fn in_samples(draw: &mut Draw, body: &mut Vec<u8>, change: impl FnOnce(&mut Draw, &mut Line)) {
    in_lines(draw, body, |draw, lines, at| {
        let is_sample = |at: &usize| !lines[*at].starts_with(b"#");
        if let Some(sample) = (at..lines.len()).chain(0..at).find(is_sample) {
            let end = lines[sample].pop_if(|byte| *byte == b'\n');
            change(draw, &mut lines[sample]);
            lines[sample].extend(end);
        }
    });
}

fn another_label(draw: &mut Draw, line: &mut Line) {
    let label = *draw.one_of(LABELS);
    match line.iter().position(|byte| *byte == b'{') {
        Some(brace) => drop(line.splice(brace + 1..=brace, label.iter().copied())),
        None => {
            let name = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
            line.splice(name..name, [b"{", label, b"}"].concat());
        }
    }
}

fn another_label_name(draw: &mut Draw, line: &mut Line) {
    if let Some(equals) = line.iter().position(|byte| *byte == b'=') {
        let start = line[..equals].iter().rposition(|byte| matches!(byte, b'{' | b',')).map_or(0, |at| at + 1);
        line.splice(start..equals, draw.one_of(LABEL_NAMES).iter().copied());
    }
}

fn another_number(draw: &mut Draw, line: &mut Line) {
    let start = line.iter().rposition(|byte| *byte == b' ').map_or(0, |blank| blank + 1);
    line.truncate(start);
    line.extend(*draw.one_of(VALUES));
}

fn tabs_for_blanks(_: &mut Draw, line: &mut Line) {
    line.iter_mut().filter(|byte| **byte == b' ').for_each(|byte| *byte = b'\t');
}

fn take_out_a_blank(_: &mut Draw, line: &mut Line) {
    if let Some(blank) = line.iter().rposition(|byte| *byte == b' ') {
        line.remove(blank);
    }
}

/// Beside a sign, where most readers allow it.
fn put_in_a_blank(draw: &mut Draw, line: &mut Line) {
    let signs: Vec<usize> = (0..line.len()).filter(|at| b"{}=,\" ".contains(&line[*at])).collect();
    if !signs.is_empty() {
        line.insert(*draw.one_of(&signs) + draw.below(2), b' ');
    }
}

/// Names, most of them good.
pub const NAMES: &[&[u8]] = &[
    b"a",
    b"a",
    b"b",
    b"a_total",
    b"a_bucket",
    b"a_sum",
    b"_x",
    b":y",
    b"a:b:c",
    b"vllm:x",
    b"A9",
    b"9a",
    b"a-b",
    b"a.b",
    b"\xc3\xa9",
    b"kvtier_x",
    b"vllm:kv_offload_store_bytes_total",
    b"{\"a.b\"}",
    b"vllm:kv_offload_cpu_cache_usage_perc",
    b"process_x",
    b"target_info",
    b"",
];

/// Words of TYPE.
pub const TYPES: &[&[u8]] = &[
    b"counter",
    b"gauge",
    b"histogram",
    b"summary",
    b"untyped",
    b"unknown",
    b"info",
    b"stateset",
    b"gaugehistogram",
    b"Gauge",
    b"gauge ",
    b" gauge",
    b"gauge\r",
    b"",
    b"gauge\x00",
    b"g\xffuge",
];

const LABEL_NAMES: &[&[u8]] = &[
    b"k",
    b"_",
    b"__k",
    b"K9",
    b"9k",
    b"k:l",
    b"k-l",
    b"k.l",
    b"",
    b"__name__",
    b"le",
    b"engine",
    b"model_name",
    b"pid",
    b"\"k\"",
    b"\"k.l\"",
    b"\xc3\xa9",
    b"job",
    b"instance",
    b" k",
    b"k ",
];

/// Labels with what parts them from the next.
pub const LABELS: &[&[u8]] = &[
    b"k=\"v\",",
    b"l=\"w\",",
    b"m=\"1\"",
    b"k=\"\",",
    b"k=\"\xc3\xa9\xf0\x9f\x98\x80\",",
    b"k=\"a\\\"b\",",
    b"k=\"a\\\\\",",
    b"k=\"a\\nb\",",
    b"k=\"\\t\",",
    b"k=\"\\\xc3\xa9\",",
    b"k=\"{}\",",
    b"k=\"}\",",
    b"k=\"a,b=c\",",
    b"k=\"# x\",",
    b"k=\" \",",
    b"k=\"a\tb\",",
    b"k=\"a\rb\",",
    b"k=\"a\nb\",",
    b"k=\"\x01\x1b\",",
    b"k=\"\x00\",",
    b"k=\"\xff\",",
    b"k=\"\xed\xa0\x80\",",
    b"k=\"x,",
    b"k=\"x\\\",",
    b"k=v,",
    b"k='v',",
    b"k:\"v\",",
    b"k,",
    b",",
    b",,",
    b" k = \"v\" , ",
    b"\tk=\"v\",",
    b"k=\"v\";",
    b"k=\"v\"\"w\",",
    b"__name__=\"x\",",
    b"__name__=\"\",",
    b"le=\"1\",",
    b"le=\"\",",
    b"quantile=\"x\",",
    b"engine=\"9\",",
    b"model_name=\"\",",
    b"pid=\"7\",",
    b"9k=\"v\",",
    b"k:l=\"v\",",
    b"\"k\"=\"v\",",
    b"\"k\",",
    b"job=\"x\",",
    b"instance=\"y\",",
    b"k=\"v\",k=\"v\",",
    b"k=\"v\",k=\"\",",
    b"}",
    b"{",
];

/// Values.
pub const VALUES: &[&[u8]] = &[
    b"0",
    b"1",
    b"-1",
    b"+1",
    b"-0",
    b"1.5",
    b"1e3",
    b"1E3",
    b"1e+06",
    b"1e-400",
    b"1e999",
    b"-1e999",
    b"1.7976931348623157e308",
    b"1.8e308",
    b"4.9e-324",
    b"2e-324",
    b"9007199254740993",
    b"123456789012345678901234567890",
    b"00012",
    b"0.1",
    b".5",
    b"5.",
    b"-.5",
    b".",
    b"1e",
    b"1e+",
    b"e5",
    b"1..2",
    b"0.1.2",
    b"--1",
    b"1-",
    b"NaN",
    b"nan",
    b"NAN",
    b"+NaN",
    b"-NaN",
    b"Inf",
    b"+Inf",
    b"-Inf",
    b"inf",
    b"+INF",
    b"Infinity",
    b"-infinity",
    b"infinit",
    b"Infinity1",
    b"0x10",
    b"0x1p3",
    b"0b1",
    b"0o7",
    b"1_000",
    b"1,5",
    b"1d",
    b"1f",
    b"true",
    b"\xd9\xa1",
    b"1\xc2\xa0",
    b"1\r",
    b"1\x0b",
    b"1\x00",
    b"",
    b" 1",
    b"\t1",
    b"1 ",
    b"1\t",
    b"1{",
    b"1}",
    b"1#",
    b"\"1\"",
];

const TIMES: &[&[u8]] = &[
    b" 0",
    b" 1000",
    b" 1",
    b" -1",
    b" +1",
    b" 1.5",
    b" 1e3",
    b" 1700000000",
    b" 1700000000.5",
    b" 1700000000000",
    b" 9223372036854775807",
    b" 9223372036854775808",
    b" 99999999999999999999",
    b" NaN",
    b" 0x1",
    b" 1_0",
    b" 1 2",
    b"\t7",
    b" 7 ",
    b" 7\t",
    b" 7#",
    b"  7",
    b" .",
    b" \xd9\xa1",
];

const EXEMPLARS: &[&[u8]] = &[
    b" # {trace_id=\"t\"} 1.0",
    b" # {trace_id=\"t\"} 1.0 1700000000.5",
    b" # {} 1",
    b" # {",
    b" #",
    b" # x",
    b"# {} 1",
    b" 7 # {} 1",
    b" # {a=\"b\",} 1",
    b" # {a=\"\\\"\"} 1 2 3",
];

const LINES: &[&[u8]] = &[
    b"{\"a\"} 1\n",
    b"{\"a.b\",k=\"v\"} 1\n",
    b"{\"vllm:kv_offload_store_bytes_total\",engine=\"0\",\"model_name\"=\"m\"} 1\n",
    b"a{\"k.l\"=\"1\",k_l=\"2\"} 1\n",
    b"# TYPE \"a.b\" gauge\n",
    b"\n",
    b" \n",
    b"\t \n",
    b"\r\n",
    b"#\n",
    b"# \n",
    b"# a comment\n",
    b"#a\n",
    b"## HELP x y\n",
    b"# EOF\n",
    b"# EOF \n",
    b"#EOF\n",
    b"# EO\n",
    b"# HELP\n",
    b"# HELP \n",
    b"# HELP a\n",
    b"# HELP a \n",
    b"# HELP a x \\n \\q \\\n",
    b"# HELP a \xff\n",
    b"# HELP a\xc3\xa9 x\n",
    b"# HELP a\xff x\n",
    b"# TYPE a\xc3\xa9gauge\n",
    b"# TYPE a\xffgauge\n",
    b"# HELP 9 x\n",
    b"#\tHELP\ta\tx\n",
    b"#  HELP a x\n",
    b"# help a x\n",
    b"# HELP a\tx\r\n",
    b"# TYPE\n",
    b"# TYPE a\n",
    b"# TYPE a gauge\n",
    b"# TYPE a counter\n",
    b"# TYPE  a gauge\n",
    b"# TYPE a  gauge\n",
    b"#TYPE a gauge\n",
    b"# TYPE a gauge x\n",
    b"# UNIT a seconds\n",
    b"# UNIT\n",
    b"# unit a s\n",
    b"a 1\n",
    b"a{} 1\n",
    b"a {} 1\n",
    b"a{}1\n",
    b"a{,} 1\n",
    b"a\n",
    b"a \n",
    b"1\n",
    b"{} 1\n",
    b"{\"a\"} 1\n",
    b"{__name__=\"a\"} 1\n",
    b"a{k=\"v\"}1\n",
    b"a{k=\"v\"}{l=\"w\"} 1\n",
    b"a {k=\"v\"} 1\n",
    b"a\t1\n",
    b"a\x0b1\n",
    b"a 1 # x\n",
    b"a=1\n",
    b"<html>\n",
    b"{\"a\": 1}\n",
    b"\xef\xbb\xbfa 1\n",
    b"\xff\n",
    b"\x00\n",
    b"kvtier_x{tier=\"ram\"} 1\n",
    b"# HELP kvtier_x y\n",
    b"# TYPE kvtier_x info\n",
    b"a_created 1.7e9\n",
    b"a_info{v=\"1\"} 1\n",
];
