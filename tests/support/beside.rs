//! A page that is read beside the layout of another one, which must not show.

use kvtier_exporter::dialect::{DIALECTS, NAMES};
use kvtier_exporter::exposition::{Exposition, Layout};

/// What is read from a page alone and beside the layout of another one, where that is not the same.
pub fn difference(page: &[u8], other: &[u8]) -> Option<(String, String)> {
    let layout = Layout::of(other, &NAMES);
    let alone = all_of(&Exposition::scan(page, &NAMES));
    let beside = all_of(&Exposition::scan_beside(&layout, page, &NAMES));
    (alone != beside).then_some((alone, beside))
}

fn all_of(page: &Exposition<'_>) -> String {
    let names = DIALECTS.iter().flat_map(|dialect| dialect.reads);
    let wanted: Vec<_> = names.map(|name| (page.has(name), page.samples(name))).collect();
    format!("{:?}\n{:?}\n{:?}\n{:?}\n{wanted:?}", page.counts, page.edits, page.notes, page.metadata)
}
