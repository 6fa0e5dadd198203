//! Whole scrapes through the real program, beside what people would use instead, side by side in one run.
//!
//! `benches/compare.sh` installs the others and runs this; `cargo bench --bench compare` takes what is there, and
//! says what is not. All programs take turns within each round, and a ratio is the median of the rounds' ratios, so a
//! machine that is busy for a while slows all of them. A run in which even streaming through the least proxy (S) costs
//! much more than no proxy is void: then the machine was too busy to tell anything.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench prints"
)]

use std::process::ExitCode;

use rig::figures::{Targets, median, ratio};
use rig::program::{self, Program};
use rig::{load, reference, wrk};

mod rig;
#[allow(dead_code, unreachable_pub, reason = "the other benches use the rest of it")]
mod support;

const CONNECTIONS: [usize; 2] = [1, 8];
/// Of S to no proxy, at 250 KB over one connection.
const VOID: f64 = 1.15;
const GAUGE: &str = "vllm:kv_offload_cpu_cache_usage_perc{engine=\"0\"";

const DIRECT: &str = "direct";
const S: &str = "S: stream";
const B: &str = "B: collect, send";
const OURS: &str = "kvtier-exporter";
const BAD: &str = "kvtier-exporter, one bad line";
const PASS: &str = "nginx proxy_pass";
const FILTER: &str = "nginx + sub_filter";
const VERIFY: &str = "exporter-exporter, verifying";

/// One program and what its turns brought.
struct Candidate {
    name: &'static str,
    program: Program,
    /// Median seconds of a scrape, a round each.
    p50: Vec<f64>,
    /// CPU seconds of a scrape, a round each.
    cpu: Vec<f64>,
    per_second: Vec<f64>,
}

fn main() -> ExitCode {
    reference::serve_if_asked();
    if !program::is_there("wrk") {
        println!("Nothing was compared: wrk is missing (apt-get install wrk).");
        return ExitCode::from(2);
    }
    let rounds = if std::env::args().any(|argument| argument == "--quick") { 1 } else { 7 };
    let bodies = [
        ("50 KB", support::capture("vllm-0.32.0-offload-cpu-nocreated-full")),
        ("250 KB", support::body(250_000)),
        ("500 KB", support::body(500_000)),
        ("2 MB", support::body(2_000_000)),
    ];
    println!("| body | connections | program | p50 ms | × B | CPU ms a scrape | × B | scrapes/s |");
    println!("|---|---|---|---|---|---|---|---|");
    let mut measured = Vec::new();
    for (size, body) in &bodies {
        for connections in CONNECTIONS {
            let candidates = measure(body, connections, rounds);
            print(size, body.len(), connections, &candidates);
            measured.push((*size, connections, candidates));
        }
    }
    judge(&measured)
}

fn measure(body: &[u8], connections: usize, rounds: usize) -> Vec<Candidate> {
    let mut candidates = candidates(body);
    candidates.iter().for_each(|candidate| candidate.check(body));
    for _ in 0..rounds {
        for candidate in &mut candidates {
            candidate.take_turn(connections);
        }
        candidates.rotate_left(1);
    }
    let order = [DIRECT, S, B, OURS, BAD, PASS, FILTER, VERIFY];
    candidates.sort_by_key(|candidate| order.iter().position(|name| *name == candidate.name));
    candidates
}

fn candidates(body: &[u8]) -> Vec<Candidate> {
    let upstream = program::upstream(body);
    let (page, bad) = (upstream.place.clone(), program::upstream(&support::with_bad_line(body)));
    let mut all = vec![
        (S, program::reference("stream", &page)),
        (B, program::reference("collect", &page)),
        (OURS, program::exporter(&page, &[])),
        (BAD, program::exporter(&bad.place.clone(), &[]).keeping(bad)),
    ];
    if program::is_there("nginx") {
        let filter = format!("sub_filter_types *; sub_filter_once off; sub_filter '{GAUGE}' '{GAUGE},filtered=\"1\"';");
        all.push((PASS, program::nginx_proxy(&page, "")));
        all.push((FILTER, program::nginx_proxy(&page, &filter)));
    }
    if program::is_there("prometheus-exporter-exporter") {
        all.push((VERIFY, program::exporter_exporter(&page)));
    }
    all.push((DIRECT, upstream));
    all.into_iter().map(|(name, program)| Candidate::new(name, program)).collect()
}

impl Candidate {
    fn new(name: &'static str, program: Program) -> Candidate {
        Candidate { name, program, p50: Vec::new(), cpu: Vec::new(), per_second: Vec::new() }
    }

    /// That it answers with the page, and does to it what it is here for.
    fn check(&self, body: &[u8]) {
        let answer = load::fetch(&self.program.place);
        assert!(answer.len() >= body.len(), "{} cuts the page", self.name);
        let filtered = answer.windows(8).any(|word| word == b"filtered");
        assert_eq!(filtered, self.name == FILTER, "{} filters, or does not", self.name);
    }

    fn take_turn(&mut self, connections: usize) {
        // The slowest by far would hardly answer in one.
        let seconds = if self.name == VERIFY { 3 } else { 1 };
        let before = self.program.cpu_seconds();
        let turn = wrk::turn(&self.program.place, connections, seconds);
        self.cpu.push((self.program.cpu_seconds() - before) / turn.scrapes);
        self.p50.push(turn.p50);
        self.per_second.push(turn.per_second);
    }
}

fn named<'a>(candidates: &'a [Candidate], name: &str) -> Option<&'a Candidate> {
    candidates.iter().find(|candidate| candidate.name == name)
}

fn print(size: &str, bytes: usize, connections: usize, candidates: &[Candidate]) {
    let b = named(candidates, B).unwrap();
    for one in candidates {
        println!(
            "| {size} ({bytes}) | {connections} | {} | {:.3} | {:.2} | {:.3} | {:.2} | {:.0} |",
            one.name,
            median(&one.p50) * 1e3,
            ratio(&one.p50, &b.p50),
            mean(&one.cpu) * 1e3,
            mean(&one.cpu) / mean(&b.cpu),
            median(&one.per_second),
        );
    }
}

/// CPU time is counted in ticks of 10 ms: the sum of all rounds is finer than any round.
fn mean(figures: &[f64]) -> f64 {
    figures.iter().sum::<f64>() / figures.len() as f64
}

fn judge(measured: &[(&str, usize, Vec<Candidate>)]) -> ExitCode {
    let mut targets = Targets::begin();
    for (size, connections, candidates) in measured {
        let of = |name| named(candidates, name);
        let (ours, b) = (of(OURS).unwrap(), of(B).unwrap());
        let at = format!("{size}, {connections} connection(s)");
        targets.at_most(&format!("{at}: p50 × B"), ratio(&ours.p50, &b.p50), 1.6);
        targets.at_most(&format!("{at}: CPU × B"), mean(&ours.cpu) / mean(&b.cpu), 2.0);
        if let Some(filter) = of(FILTER) {
            targets.at_most(&format!("{at}: p50 × nginx + sub_filter"), ratio(&ours.p50, &filter.p50), 1.0);
        }
        if let Some(verify) = of(VERIFY).filter(|_| *size != "50 KB") {
            targets.at_least(&format!("{at}: times as fast as exporter-exporter"), ratio(&verify.p50, &ours.p50), 15.0);
        }
    }
    for missing in ["nginx", "prometheus-exporter-exporter"].iter().filter(|name| !program::is_there(name)) {
        println!("\n{missing} is not installed: not compared with it.");
    }
    let (_, _, candidates) =
        measured.iter().find(|(size, connections, _)| (*size, *connections) == ("250 KB", 1)).unwrap();
    let stretch = ratio(&named(candidates, S).unwrap().p50, &named(candidates, DIRECT).unwrap().p50);
    println!("\nS takes {stretch:.2} × direct at 250 KB; up to {VOID} the run counts.");
    if stretch > VOID {
        println!("VOID: the machine was busy, or S is not what it should be.");
        return ExitCode::from(2);
    }
    println!("{} target(s) missed.", targets.missed());
    if targets.missed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
