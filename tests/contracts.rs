//! What is written in two places says the same in both.
#![allow(missing_docs, clippy::unwrap_used, reason = "a test crate says what it expects")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kvtier_exporter::catalogue::catalogue;
use kvtier_exporter::notice::InCheck;
use kvtier_exporter::notice::kinds::KINDS;

const README: &str = include_str!("../README.md");

/// Family and kind of each row of the README's table.
fn table() -> BTreeMap<String, String> {
    let rows = README.lines().filter_map(|line| line.strip_prefix("| `kvtier_"));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>()).filter(|row| row.len() == 5);
    cells.map(|row| (format!("kvtier_{}", row[0].trim_end_matches('`')), row[1].to_owned())).collect()
}

/// The files below a folder of the project, and those below them.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// Whether a text is written as ids are: small words with a dash between each two.
fn is_an_id(text: &str) -> bool {
    let word = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_lowercase());
    text.contains('-') && text.split('-').all(word)
}

/// The ids of findings: whatever stands in quotes in the code of `check` and `plan` and is written as an id.
fn ids_of_findings() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let beside = ["commands/check.rs", "commands/lmcache.rs"].map(|file| source.join(file));
    let files = files_below(&source.join("advise")).into_iter().chain(beside);
    let text = files.map(|file| fs::read_to_string(file).unwrap()).map(|text| {
        let code = text.split("#[cfg(test)]").next().unwrap();
        code.split('"').filter(|piece| is_an_id(piece)).map(str::to_owned).collect::<Vec<_>>()
    });
    let told = KINDS.iter().filter(|kind| kind.check != InCheck::Never).map(|kind| kind.id.to_owned());
    text.flatten().chain(told).collect()
}

#[test]
fn a_notice_that_a_finding_tells_better_names_findings_that_there_are() {
    let ids = ids_of_findings();
    for kind in KINDS {
        if let InCheck::Better(better, _) = kind.check {
            assert!(!better.is_empty() && better.iter().all(|id| ids.contains(*id)), "{}: {better:?}", kind.id);
        }
    }
}

#[test]
fn every_finding_has_a_row_that_says_what_why_and_what_to_do() {
    let rows = include_str!("../docs/findings.md").lines().filter(|line| line.starts_with("| `"));
    let mut told = BTreeSet::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        assert!(cells.len() == 4 && cells.iter().all(|cell| !cell.is_empty()), "{row}");
        told.insert(cells[0].trim_matches('`').to_owned());
    }
    let ids = ids_of_findings();
    assert!(ids.contains("upstream-unreachable") && ids.contains("two-connectors"), "{ids:?}");
    assert_eq!(told, ids, "docs/findings.md and the program");
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

/// What the README says for containers is what the image does.
#[test]
fn the_readme_asks_the_image_for_its_health_as_the_image_does() {
    let command = |text: &str| text.lines().find_map(|line| line.split_once("CMD [")).map(|(_, rest)| rest.to_owned());
    let image = command(include_str!("../deploy/Dockerfile")).expect("the image has a HEALTHCHECK");
    assert_eq!(command(README).as_ref(), Some(&image));
    assert!(image.contains("\"healthcheck\""));
}
