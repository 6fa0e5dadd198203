//! Any bytes as an OpenMetrics page: what comes out of the whole middle is taken, and a page that is as good in text
//! keeps every sample. `fuzz/run 60 openmetrics`
#![no_main]

use kvtier_exporter::openmetrics::to_text;
use kvtier_exporter::pipeline::Format;
use kvtier_exporter::settings::Settings;
use kvtier_exporter_fuzz::exporter::{answer_of, process};
use kvtier_exporter_fuzz::sameness::{holds, identity};
use kvtier_exporter_fuzz::strict::{Verdict, check};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|page: &[u8]| {
    let answer = answer_of(&process(page, Format::OpenMetrics, &Settings::default()));
    let verdict = check(&answer);
    assert!(verdict.accepted(), "{:?} in\n{}", verdict.refusal, answer.escape_ascii());
    let before = check(page);
    if is_both(page, &before) {
        let after = check(&to_text(page));
        assert_eq!(samples(&before), samples(&after), "{}", page.escape_ascii());
    }
});

/// Whether the page means the same in both formats: it says no time, and no value runs over a line end.
fn is_both(page: &[u8], verdict: &Verdict) -> bool {
    verdict.accepted()
        && !holds(page, b"\0")
        && !holds(page, b"\r")
        && !verdict.finds("inside a label value")
        && verdict.samples.iter().all(|sample| sample.timestamp.is_none())
}

/// In any order: some families are parted.
fn samples(verdict: &Verdict) -> Vec<String> {
    let mut samples: Vec<String> = verdict.samples.iter().map(identity).collect();
    samples.sort();
    samples
}
