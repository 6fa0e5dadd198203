//! What tiers of other sizes would reload, as the exporter tells it on its own page. Pure.
//!
//! Only an exporter with `--events` knows it, so it is there where the page is an exporter's. It is no count since the
//! engine's start but an estimate over the exporter's window.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::{Cell, PREDICTED};
use crate::exposition::{Exposition, Names, named_lines};

/// The family that tells it, without the prefix of our families: the scanner takes those for an exporter's in front
/// of the engine, and leaves them out.
const FAMILY: &str = "tier_predicted_reload_ratio";
const PREFIX: &[u8] = b"kvtier_";

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new([FAMILY]));

/// The family's lines, without that prefix.
fn lines(page: &[u8]) -> Vec<u8> {
    let ours = |name: &[u8]| name.strip_prefix(PREFIX) == Some(FAMILY.as_bytes());
    let spans = named_lines(page).filter(|(name, _)| name.is_some_and(ours)).map(|(_, span)| span);
    spans.filter_map(|span| span.of(page).strip_prefix(PREFIX)).flatten().copied().collect()
}

/// The share for each size on a page in text 0.0.4: the mean over its engines.
pub fn cells(page: &[u8]) -> Vec<Cell> {
    let lines = lines(page);
    let page = Exposition::scan(&lines, &NAMES);
    let mut sizes: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for sample in page.samples(FAMILY).iter().filter(|sample| sample.value.is_finite()) {
        let (sum, count) = sizes.entry(sample.labels.value("size").into_owned()).or_default();
        *sum += sample.value;
        *count += 1.0;
    }
    let cell = |(size, (sum, count)): (String, (f64, f64))| Cell {
        quantity: PREDICTED,
        of: Some(times(&size)),
        value: sum / count,
    };
    sizes.into_iter().map(cell).collect()
}

/// A size by its label, for people.
pub fn times(size: &str) -> String {
    format!("{size}×")
}

/// What to know where it is told.
pub fn note(cells: &[Cell]) -> Option<String> {
    cells.iter().any(|cell| cell.quantity == PREDICTED).then(|| {
        "Predicted shares are an estimate for a tier that evicts by last use, from KV events over the exporter's \
         --events.window; 1× is the present size."
            .to_owned()
    })
}
