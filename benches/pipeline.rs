//! Throughput of the pipeline on one core, beside a plain visit of every line of the same body in the same run.
//!
//! `cargo bench --bench pipeline`. The absolute figures depend on the machine and on who else uses it; the ratios
//! are what counts. Bodies are built from captures of real engines; each also runs with one bad line at its end,
//! and what the pipeline makes of it is compared with what the program itself answers. A page is measured as the first
//! one of its server and as the next one, beside the layout of one with other numbers; the layout of a page that is too
//! large for one is that of none.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a bench prints"
)]

use std::hint::black_box;

use kvtier_exporter::exposition::Layout;
use kvtier_exporter::family::encode;
use kvtier_exporter::pipeline::{Source, layout, process_beside};
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
        "GB/s of CPU time; behind a figure its ratio to a visit of each line; `bad`: with one bad line at the end"
    );
    println!(
        "{:<20} {:>10} {:>8} {:>8} {:>16} {:>10} {:>16} {:>10}",
        "body", "bytes", "engines", "lines", "first page", "bad", "next page", "bad"
    );
    for (name, body) in &bodies {
        support::answers_alike(body);
        support::answers_alike(&support::with_bad_line(body));
        let [lines, first, first_bad, next, next_bad] = compare(body);
        println!(
            "{name:<20} {:>10} {:>8} {lines:>8.2} {first:>8.3} {:>7.3} {first_bad:>10.3} {next:>8.3} {:>7.3} {next_bad:>10.3}",
            body.len(),
            support::count_engines(body),
            first / lines,
            next / lines,
        );
    }
}

/// GB/s of a visit of each line, of the pipeline, and of the pipeline beside the layout of an earlier page, the last two
/// also with a bad line: the median of rounds that take turns, so that a machine that slows down slows all of them.
fn compare(body: &[u8]) -> [f64; 5] {
    let pages = [body.to_vec(), support::with_bad_line(body)].map(|page| support::source(&page));
    let layouts = pages.clone().map(|page| layout(&support::source(&support::earlier(&page.body))));
    let runs = (30_000_000 / body.len()).max(1);
    let mut figures = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        figures[0].push(speed(body.len(), runs, || visit_lines(body)));
        for (at, (page, beside)) in pages.iter().zip(&layouts).enumerate() {
            figures[1 + at].push(speed(body.len(), runs, || pipeline(Layout::none(), page)));
            figures[3 + at].push(speed(body.len(), runs, || pipeline(beside, page)));
        }
    }
    figures.map(median)
}

fn pipeline(layout: &Layout, page: &Source) -> usize {
    let outcome = process_beside(layout, std::slice::from_ref(page), &Settings::default(), &HostFacts::default());
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
