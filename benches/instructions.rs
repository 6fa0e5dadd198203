//! The pipeline over one fixed body, as often as the first argument says for a first page, and the second for the next one,
//! beside the layout of an earlier page: the program whose instructions `tests/instructions.sh` counts. It measures
//! nothing by itself.
#![allow(missing_docs, clippy::unwrap_used, reason = "a bench")]

use std::hint::black_box;

use kvtier_exporter::exposition::Layout;
use kvtier_exporter::family::encode;
use kvtier_exporter::pipeline::{layout, process_beside};
use kvtier_exporter::settings::{HostFacts, Settings};

#[allow(dead_code, unreachable_pub, reason = "the other benches use the rest of it")]
mod support;

fn main() {
    let times = |at| std::env::args().nth(at).and_then(|argument| argument.parse().ok()).unwrap_or(1);
    let (first, next): (usize, usize) = (times(1), times(2));
    let body = support::body(250_000);
    let (source, layout) = (support::source(&body), layout(&support::source(&support::earlier(&body))));
    let (settings, host) = (Settings::default(), HostFacts::default());
    for (beside, times) in [(Layout::none(), first), (&layout, next)] {
        for _ in 0..times {
            let outcome = process_beside(beside, std::slice::from_ref(black_box(&source)), &settings, &host);
            black_box((&outcome.page, encode(&outcome.families)));
        }
    }
}
