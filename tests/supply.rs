//! What the program is built from: the rules of `docs/dependencies.md`, held against cargo's own account of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A helper that panics is a failed test.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Asks cargo, which must need neither the network nor another lock file.
fn cargo(words: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(words).args(["--locked", "--offline"]).current_dir(root()).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn policy() -> String {
    std::fs::read_to_string(root().join("docs/dependencies.md")).unwrap()
}

fn host() -> String {
    let said = Command::new("rustc").args(["--version", "--verbose"]).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    said.lines().find_map(|line| line.strip_prefix("host: ")).unwrap().to_owned()
}

/// Every crate that is built here, this one too.
fn packages() -> Vec<Value> {
    let metadata = cargo(&["metadata", "--format-version", "1", "--filter-platform", &host()]);
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn text<'a>(package: &'a Value, field: &str) -> &'a str {
    package[field].as_str().unwrap_or_default()
}

#[test]
fn all_crates_come_from_crates_io_under_licences_of_the_list() {
    let allowed = ["MIT", "Apache-2.0", "BSD-3-Clause", "ISC", "Zlib", "0BSD", "Unlicense", "Unicode-3.0"];
    let policy = policy();
    assert!(allowed.iter().all(|licence| policy.contains(licence)), "the list in docs/dependencies.md");
    let packages = packages();
    assert!(packages.len() > 50);
    for package in packages.iter().filter(|package| text(package, "name") != "kvtier-exporter") {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        assert_eq!(text(package, "source"), "registry+https://github.com/rust-lang/crates.io-index", "{name}");
        // Of a choice one will do; of what holds together each must.
        let parts = licence.replace(" AND ", "&").replace(" OR ", "|").replace(" / ", "|").replace('/', "|");
        let parts = parts.replace(['(', ')'], "");
        let fits = |part: &str| part.split('|').any(|choice| allowed.contains(&choice));
        assert!(parts.split('&').all(fits), "{name}: {licence}");
    }
}

#[test]
fn duplicates_are_those_that_are_explained() {
    let listed = cargo(&["tree", "--duplicates", "--edges", "normal", "--depth", "0", "--prefix", "none"]);
    let duplicates: BTreeSet<&str> =
        listed.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).collect();
    let policy = policy();
    let (_, explained) = policy.split_once("Duplicates that are there today").unwrap();
    let explained: BTreeSet<&str> = explained.split("\n\n").next().unwrap().split('`').skip(1).step_by(2).collect();
    // A macro crate goes with its own.
    let found: BTreeSet<&str> = duplicates.iter().map(|name| name.trim_end_matches("-impl")).collect();
    assert_eq!(found, explained);
}

#[test]
fn the_rust_version_is_the_highest_that_a_crate_asks_for() {
    let number = |version: &str| -> Vec<u32> {
        let mut parts: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
        parts.resize(3, 0);
        parts
    };
    let packages = packages();
    let (ours, others): (Vec<&Value>, Vec<&Value>) =
        packages.iter().partition(|one| text(one, "name") == "kvtier-exporter");
    let highest = others.iter().filter_map(|package| package["rust_version"].as_str()).map(number).max();
    assert_eq!(Some(number(text(ours[0], "rust_version"))), highest);
}

#[test]
fn unsafe_code_is_forbidden() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, lints) = manifest.split_once("[lints.rust]\n").unwrap();
    assert!(lints.lines().take_while(|line| !line.starts_with('[')).any(|line| line == "unsafe_code = \"forbid\""));
}

#[test]
fn the_version_names_the_revision_that_it_was_built_from() {
    let said = Command::new(env!("CARGO_BIN_EXE_kvtier-exporter")).arg("--version").output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let git = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).current_dir(root()).output();
    let head = git.ok().filter(|git| git.status.success() && root().join(".git").exists());
    let revision = head.map_or("unknown".to_owned(), |git| String::from_utf8(git.stdout).unwrap().trim().to_owned());
    let expected = format!("kvtier-exporter {} (revision {revision}, rustc ", env!("CARGO_PKG_VERSION"));
    assert!(said.starts_with(&expected), "{said}, not {expected}");
}
