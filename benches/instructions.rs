//! The pipeline over one fixed body, as often as the argument says: the program whose instructions
//! `tests/instructions.sh` counts. It measures nothing by itself.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;

use bytes::Bytes;
use kvtier_exporter::family::encode;
use kvtier_exporter::pipeline::{Format, MAIN, Source, process};
use kvtier_exporter::settings::{HostFacts, Settings};

#[allow(dead_code, unreachable_pub, reason = "the other benches use the rest of it")]
mod support;

fn main() {
    let times: usize = std::env::args().nth(1).and_then(|argument| argument.parse().ok()).unwrap_or(1);
    let source = Source { name: MAIN.to_owned(), body: Bytes::from(support::body(250_000)), format: Format::Text };
    let (settings, host) = (Settings::default(), HostFacts::default());
    for _ in 0..times {
        let outcome = process(std::slice::from_ref(black_box(&source)), &settings, &host);
        black_box((&outcome.page, encode(&outcome.families)));
    }
}
