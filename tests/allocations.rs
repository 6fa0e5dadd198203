//! Memory on the way of a scrape: how often it is asked for does not depend on how many lines a page has.
//!
//! What grows is stated at the end: engines, whose tiers and families have to be held somewhere.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test says what it expects, and shows figures on request"
)]
#![allow(missing_docs, reason = "a test crate has no readers of its documentation")]

use std::fmt::Write;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use kvtier_exporter::family::encode;
use kvtier_exporter::pipeline::{Format, MAIN, Source, layout, process, process_beside};
use kvtier_exporter::settings::{HostFacts, Settings};

/// What a page may ask for more than another with a hundredth of its lines: a list that grows doubles its room, which
/// is seven times from one to the other, and there may be a few lists.
const MORE: u64 = 32;

const FEW: usize = 200;
const MANY: usize = 20_000;

/// A page of one real engine.
fn engine() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/vllm-0.33.0-offload-cpu-full/page.prom");
    std::fs::read_to_string(path).unwrap()
}

fn cost(page: &str) -> AllocationInfo {
    let source = Source { name: MAIN.to_owned(), body: Bytes::from(page.to_owned()), format: Format::Text };
    let (settings, host) = (Settings::default(), HostFacts::default());
    let work = || {
        let outcome = process(std::slice::from_ref(&source), &settings, &host);
        std::hint::black_box(encode(&outcome.families));
    };
    work(); // What is made once for the whole program is made now.
    measure(work)
}

/// Asserts that lines of this kind, behind the page of an engine, cost no allocations.
fn lines_are_free(kind: &str, line: impl Fn(usize) -> String) {
    let page = |lines: usize| engine() + &(0..lines).map(&line).collect::<String>();
    let (few, many) = (cost(&page(FEW)).count_total, cost(&page(MANY)).count_total);
    println!("{kind}: {few} allocations with {FEW} lines, {many} with {MANY}");
    assert!(many <= few + MORE, "{kind}: {few} allocations with {FEW} lines, {many} with {MANY}");
}

#[test]
fn samples_that_nobody_reads_are_free() {
    lines_are_free("samples of one family", |at| format!("other_total{{k=\"{at}\",l=\"x\"}} {at}.5\n"));
}

#[test]
fn families_that_nobody_reads_are_free() {
    lines_are_free("families", |at| format!("# HELP f{at} Things.\n# TYPE f{at} gauge\nf{at}{{k=\"1\"}} 2\n"));
}

#[test]
fn buckets_are_free() {
    lines_are_free("buckets of one engine", |at| {
        format!("vllm:request_prefill_time_seconds_bucket{{engine=\"0\",model_name=\"m\",le=\"{at}.25\"}} {at}\n")
    });
}

/// Pages in turn: what is remembered of one, and the next one read beside it. They are small enough for that.
#[test]
fn a_page_beside_an_earlier_one_is_free() {
    let cost = |lines: usize| {
        let buckets = (0..lines).map(|at| format!("other_bucket{{le=\"{at}.25\"}} {at}\n")).collect::<String>();
        let source = Source { name: MAIN.to_owned(), body: Bytes::from(engine() + &buckets), format: Format::Text };
        let (settings, host) = (Settings::default(), HostFacts::default());
        let work = || {
            let outcome = process_beside(&layout(&source), std::slice::from_ref(&source), &settings, &host);
            assert!(!outcome.is_unfamiliar);
        };
        work();
        measure(work).count_total
    };
    let (few, many) = (cost(100), cost(10_000));
    println!("beside an earlier page: {few} allocations with 100 lines, {many} with 10000");
    assert!(many <= few + MORE, "{few} allocations with 100 lines, {many} with 10000");
}

#[test]
fn label_values_with_escapes_are_free() {
    lines_are_free("escapes", |at| format!("path_total{{p=\"C:\\\\{at}\\\"x\\n\"}} 1 1700000000000\n"));
}

#[test]
fn comments_and_empty_lines_are_free() {
    lines_are_free("comments", |at| format!("# {at}\n\n"));
}

#[test]
fn a_line_that_is_left_out_costs_at_most_its_place_in_the_list() {
    lines_are_free("bad lines", |at| format!("broken{{k=\"{at}\n"));
    lines_are_free("bad lines between good ones", |at| format!("broken{{k=\"{at}\ngood{{k=\"{at}\"}} 1\n"));
}

/// Memory of all lists together stays a fraction of the page.
#[test]
fn a_large_page_needs_little_beside_itself() {
    let lines: String = (0..200_000).fold(String::new(), |mut text, at| {
        writeln!(text, "vllm:e2e_request_latency_seconds_bucket{{engine=\"0\",model_name=\"m\",le=\"{at}.5\"}} {at}")
            .unwrap();
        text
    });
    let page = engine() + &lines;
    let peak = cost(&page).bytes_max;
    println!("a page of {} bytes needs {peak} bytes beside itself", page.len());
    assert!(peak < page.len() as u64 / 4, "{peak} bytes beside a page of {}", page.len());
}

/// What an engine costs: its tiers, its row in each of our families, and the text of those.
#[test]
fn an_engine_costs_the_same_whether_it_is_the_tenth_or_the_hundredth() {
    let page = |count: usize| {
        let one = engine();
        (0..count).map(|at| one.replace("engine=\"0\"", &format!("engine=\"{at}\""))).collect::<String>()
    };
    let of = |count: usize| cost(&page(count)).count_total as f64;
    let (early, late) = ((of(20) - of(10)) / 10.0, (of(200) - of(100)) / 100.0);
    println!("an engine costs {early} allocations among ten, {late} among a hundred");
    assert!(late < early * 1.1, "{early} among ten, {late} among a hundred");
}
