//! What is written in two places says the same in both.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test crate says what it expects")]

use std::collections::BTreeMap;

use kvtier_exporter::catalogue::catalogue;
use kvtier_exporter::notice::kinds::KINDS;

const README: &str = include_str!("../README.md");

/// Family and kind of each row of the README's table.
fn table() -> BTreeMap<String, String> {
    let rows = README.lines().filter_map(|line| line.strip_prefix("| `kvtier_"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()).filter(|row| row.len() == 5);
    cells.map(|row| (format!("kvtier_{}", row[0].trim_end_matches('`')), row[1].to_owned())).collect()
}

#[test]
fn the_readmes_table_has_every_family_with_its_kind() {
    let program: BTreeMap<_, _> =
        catalogue().into_iter().map(|desc| (desc.name.to_owned(), desc.kind.to_string())).collect();
    assert_eq!(table(), program);
}

/// The rows of the document on notices: id, meaning, reason and remedy.
fn notices() -> Vec<[&'static str; 4]> {
    let rows =
        include_str!("../docs/notices.md").lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let cells = rows.map(|row| row.split(" | ").collect::<Vec<_>>().try_into().unwrap());
    cells.map(|[id, what, why, action]: [&str; 4]| [id.trim_end_matches('`'), what, why, action]).collect()
}

#[test]
fn the_document_on_notices_has_every_kind_in_the_programs_words() {
    let program: Vec<_> = KINDS.iter().map(|kind| [kind.id, kind.what, kind.why, kind.action]).collect();
    assert_eq!(notices(), program);
}
