//! Throughput of the pipeline on one core, beside a plain visit of every line of the same body in the same run.
//!
//! `cargo bench --bench pipeline`. The absolute figures depend on the machine and on who else uses it; the ratios
//! are what counts. Bodies are built from captures of real engines; each also runs with one bad line at its end,
//! and what the pipeline makes of it is compared with what the program itself answers.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench prints"
)]

use std::hint::black_box;

use bytes::Bytes;
use kvtier_exporter::family::encode;
use kvtier_exporter::pipeline::{Format, MAIN, Source, process};
use kvtier_exporter::settings::{HostFacts, Settings};
use rustix::time::{ClockId, clock_gettime};

mod support;

const ROUNDS: usize = 7;

fn main() {
    let bodies = [
        ("capture, 1 engine", support::capture("vllm-0.32.0-offload-cpu-full")),
        ("capture, 2 engines", support::capture("vllm-0.33.0-offload-cpu-dp2-full")),
        ("250 KB", support::body(250_000)),
        ("500 KB", support::body(500_000)),
        ("2 MB", support::body(2_000_000)),
        ("20 MB", support::body(20_000_000)),
        ("8 engines", support::engines(8)),
        ("64 engines", support::engines(64)),
        ("256 engines", support::engines(256)),
    ];
    println!(
        "{:<20} {:>10} {:>8} {:>12} {:>12} {:>9} {:>12}",
        "body", "bytes", "engines", "lines GB/s", "pipeline", "ratio", "one bad line"
    );
    for (name, body) in &bodies {
        support::answers_alike(body);
        let bad = support::with_bad_line(body);
        let (lines, good, bad) = compare(body, &bad);
        let engines = support::count_engines(body);
        println!(
            "{name:<20} {:>10} {engines:>8} {:>12.2} {:>12.3} {:>9.3} {:>12.3}",
            body.len(),
            lines,
            good,
            good / lines,
            bad
        );
    }
}

/// GB/s of a visit of each line, of the pipeline, and of the pipeline with a bad line: the median of rounds that take
/// turns, so that a machine that slows down slows all three.
fn compare(body: &[u8], bad: &[u8]) -> (f64, f64, f64) {
    let (good, bad) = (source(body), source(bad));
    let runs = (30_000_000 / body.len()).max(1);
    let mut figures = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        figures[0].push(speed(body.len(), runs, || visit_lines(body)));
        figures[1].push(speed(body.len(), runs, || pipeline(&good)));
        figures[2].push(speed(body.len(), runs, || pipeline(&bad)));
    }
    let [lines, good, bad] = figures.map(median);
    (lines, good, bad)
}

fn source(body: &[u8]) -> [Source; 1] {
    [Source { name: MAIN.to_owned(), body: Bytes::copy_from_slice(body), format: Format::Text }]
}

fn pipeline(sources: &[Source]) -> usize {
    let outcome = process(sources, &Settings::default(), &HostFacts::default());
    outcome.page.len() + encode(&outcome.families).len()
}

fn visit_lines(body: &[u8]) -> usize {
    memchr::memchr_iter(b'\n', body).fold(0, usize::wrapping_add)
}

fn speed(bytes: usize, runs: usize, mut work: impl FnMut() -> usize) -> f64 {
    let began = cpu_seconds();
    for _ in 0..runs {
        black_box(work());
    }
    (bytes * runs) as f64 / (cpu_seconds() - began) / 1e9
}

/// CPU time of this thread: others that use the machine do not count.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}
