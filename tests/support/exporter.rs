//! The exporter as a function: a page in, the answer out.

use bytes::Bytes;
use kvtier_exporter::family;
use kvtier_exporter::pipeline::{self, Format, Outcome, Source};
use kvtier_exporter::settings::{HostFacts, Settings};

/// Runs the pipeline on a page, on a box of which nothing is known.
pub fn process(page: &[u8], format: Format, settings: &Settings) -> Outcome {
    let source = Source { name: "main".to_owned(), body: Bytes::copy_from_slice(page), format };
    pipeline::process(&[source], settings, &HostFacts::default())
}

/// The corrected page alone.
pub fn page_of(outcome: &Outcome) -> Vec<u8> {
    outcome.page.concat()
}

/// The derived families alone, as text.
pub fn families_of(outcome: &Outcome) -> String {
    family::encode(&outcome.families)
}

/// The whole answer: the corrected page, and the derived families behind it.
pub fn answer_of(outcome: &Outcome) -> Vec<u8> {
    [page_of(outcome), families_of(outcome).into_bytes()].concat()
}

/// The whole answer to a page, with nothing configured.
pub fn answer(page: &[u8]) -> Vec<u8> {
    answer_of(&process(page, Format::Text, &Settings::default()))
}
