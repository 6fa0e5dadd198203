//! Any bytes as batches of KV cache events, one after the other: read or refused, folded without a panic, within the
//! memory that the fold was given. `fuzz/run 60 events`
#![no_main]

use kvtier_exporter::events::fold::Fold;
use kvtier_exporter::events::wire::Batch;
use libfuzzer_sys::fuzz_target;

const BUDGET: usize = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let (mut fold, mut batch) = (Fold::new(true, BUDGET), Batch::default());
    // The first byte of each piece is its length.
    let mut rest = bytes;
    while let Some((length, tail)) = rest.split_first() {
        let (piece, after) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = after;
        if batch.decode(piece).is_ok() {
            assert!(batch.len() <= piece.len());
            fold.apply(&batch);
        }
    }
    let bounds = fold.view().bounds;
    assert!(bounds.sure <= bounds.possible && fold.bytes() <= BUDGET);
});
