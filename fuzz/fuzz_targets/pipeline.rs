//! Any bytes as the pages of a scrape, through the whole middle: what comes out is a page that Prometheus takes, and
//! what is neither corrected nor ours is in it as it came. `fuzz/run 60 pipeline`
//!
//! The first byte says how the page claims to be written and what the operator has set; a byte 0xFF parts the main
//! page from a further one.
#![no_main]

use bytes::Bytes;
use kvtier_exporter::pipeline::{self, Format, MAIN, Source};
use kvtier_exporter::settings::{HostFacts, Settings};
use kvtier_exporter_fuzz::exporter::{answer_of, page_of, process};
use kvtier_exporter_fuzz::sameness::{ended, fault_of_ours, holds, is_sound, mentions_kvtier, untouched};
use kvtier_exporter_fuzz::strict::check;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((choice, pages)) = input.split_first() else { return };
    let (format, settings) = (format(choice % 3), settings(choice / 3 % 3));
    match pages.iter().position(|byte| *byte == 0xFF) {
        Some(parting) => beside(&pages[..parting], &pages[parting + 1..], format, &settings),
        None => alone(pages, format, &settings),
    }
});

fn format(choice: u8) -> Format {
    [Format::Text, Format::OpenMetrics, Format::Unsaid][usize::from(choice)]
}

fn settings(choice: u8) -> Settings {
    let mut settings = Settings { correct: choice != 2, ..Settings::default() };
    if choice == 1 {
        settings.tier_sizes.insert("ram".to_owned(), 16_777_216);
    }
    settings
}

fn alone(page: &[u8], format: Format, settings: &Settings) {
    let outcome = process(page, format, settings);
    let answer = answer_of(&outcome);
    is_taken(&answer);
    let first = page_of(&outcome);
    assert!(first.is_empty() || first.ends_with(b"\n"));
    let again = page_of(&process(&answer, Format::Text, settings));
    // One CR goes each time: of several before a line end, or of one that a comment was cut behind, more may go.
    assert!(
        again == first || holds(&first, b"\r\n"),
        "changed again:\n{}\nto\n{}",
        first.escape_ascii(),
        again.escape_ascii()
    );
    let before = check(page);
    if format == Format::Text && is_sound(page, &before) {
        assert_eq!(untouched(&before), untouched(&check(&first)));
        assert!(settings.correct || mentions_kvtier(page) || first == ended(page));
    }
}

fn is_taken(answer: &[u8]) {
    let verdict = check(answer);
    assert!(verdict.accepted(), "{:?} in\n{}", verdict.refusal, answer.escape_ascii());
    assert!(!verdict.finds("ends the page"), "a NUL byte in\n{}", answer.escape_ascii());
    let torn = fault_of_ours(&verdict);
    assert!(torn.is_none(), "{torn:?} in\n{}", answer.escape_ascii());
}

/// A page beside another one: the main page leaves as it does alone, but for what the other one tells of its tiers.
fn beside(main: &[u8], further: &[u8], format: Format, settings: &Settings) {
    let source =
        |name: &str, page: &[u8], format| Source { name: name.to_owned(), body: Bytes::copy_from_slice(page), format };
    let sources = [source(MAIN, main, format), source("cache", further, Format::Unsaid)];
    let outcome = pipeline::process(&sources, settings, &HostFacts::default());
    is_taken(&answer_of(&outcome));
    let (both, one) = (check(&page_of(&outcome)), check(&page_of(&process(main, format, settings))));
    assert!(untouched(&both).starts_with(&untouched(&one)));
}
