//! Any bytes as a page: every line is accounted for, every place lies in the page, and the work grows with the page's
//! size and no faster. `fuzz/run 60 scanner`
#![no_main]

use kvtier_exporter::dialect::NAMES;
use kvtier_exporter::exposition::{Exposition, Span, named_lines};
use libfuzzer_sys::fuzz_target;
use rustix::time::{ClockId, clock_gettime};

fuzz_target!(|page: &[u8]| {
    let scan = Exposition::scan(page, &NAMES);
    lines_are_the_page(page);
    edits_are_in_order(page, &scan);
    samples_are_where_they_say(page);
    notes_are_in_order(page, &scan);
    // Few inputs are worth a megabyte each.
    if page.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 77 {
        a_megabyte_is_soon_read(page);
    }
});

/// The lines, one behind the other, are the page; what passes is counted.
fn lines_are_the_page(page: &[u8]) {
    let (mut at, mut samples) = (0, 0);
    for (name, span) in named_lines(page) {
        assert_eq!(span.start, at);
        assert!(span.end > span.start && span.end <= page.len());
        assert!(span.end == page.len() || page[span.end - 1] == b'\n');
        at = span.end;
        let line = span.of(page);
        if let Some(name) = name {
            assert!(line.windows(name.len()).any(|part| part == name) && !name.is_empty());
            samples += u64::from(line[0] == name[0] && !name.starts_with(b"kvtier_"));
        }
    }
    assert_eq!(at, page.len());
    assert_eq!(samples, Exposition::scan(page, &NAMES).counts.samples);
}

fn edits_are_in_order(page: &[u8], scan: &Exposition<'_>) {
    let mut at = 0;
    for edit in &scan.edits {
        assert!(at <= edit.span.start && edit.span.start < edit.span.end && edit.span.end <= page.len());
        at = edit.span.end;
    }
}

/// A wanted sample's line begins with its name, and its value is the number that stands there.
fn samples_are_where_they_say(page: &[u8]) {
    let scan = Exposition::scan(page, &NAMES);
    let names = named_lines(page).filter_map(|(name, _)| std::str::from_utf8(name?).ok());
    for name in names.collect::<std::collections::BTreeSet<_>>() {
        let mut at = 0;
        for sample in scan.samples(name) {
            assert!(at <= sample.line.start);
            at = sample.line.end;
            let Span { start, end } = sample.value_at;
            assert!(sample.line.start < start && start < end && end <= sample.line.end);
            let text = std::str::from_utf8(sample.value_at.of(page)).unwrap();
            let value: f64 = text.parse().unwrap();
            assert!(value == sample.value || value.is_nan() && sample.value.is_nan());
            let spelled = scan.spelled(sample.name);
            let line = sample.line.of(page);
            assert!(line.starts_with(spelled.as_bytes()) || line.starts_with(spelled.replace(':', "_").as_bytes()));
        }
    }
}

/// A note's number is its line's, and what was left out or not understood has one, up to a limit.
fn notes_are_in_order(page: &[u8], scan: &Exposition<'_>) {
    let odd = scan.counts.dropped + scan.counts.opaque;
    assert!(scan.notes.len() as u64 <= odd && (odd == 0) == scan.notes.is_empty());
    let lines: Vec<&[u8]> = page.split(|byte| *byte == b'\n').collect();
    let mut before = 0;
    for note in &scan.notes {
        assert!(before < note.number && note.number <= lines.len());
        before = note.number;
        let line = lines[note.number - 1];
        let start = line[..line.len().min(8)].escape_ascii().to_string();
        assert!(note.text.starts_with(start.trim_end_matches("\\r")), "{note:?} {start:?}");
    }
}

/// The page again and again until it is long. A scanner that looked back, or ahead without a bound, would take minutes.
fn a_megabyte_is_soon_read(page: &[u8]) {
    let long = page.repeat((1 << 20) / page.len());
    let before = cpu_seconds();
    Exposition::scan(&long, &NAMES);
    let spent = cpu_seconds() - before;
    assert!(spent < 2.0, "{spent} s for a megabyte");
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
