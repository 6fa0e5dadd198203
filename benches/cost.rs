//! What the real program costs its box: memory, size, start; what many scrapers cost the upstream; what a slow driver
//! costs a scrape.
//!
//! `cargo bench --bench cost`, or `benches/compare.sh`, which runs this too.
#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a bench prints"
)]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nvml::Stub;
use rig::figures::{Targets, median, quantile, ratio};
use rig::program::{self, Program};
use rig::{Place, load, reference};

#[path = "../tests/support/nvml.rs"]
mod nvml;
mod rig;
#[allow(dead_code, unreachable_pub, reason = "the other benches use the rest of it")]
mod support;

const MIB: f64 = (1 << 20) as f64;
const PAGE: &str = "# TYPE x counter\nx 1\n";

fn main() -> ExitCode {
    reference::serve_if_asked();
    let quick = std::env::args().any(|argument| argument == "--quick");
    let mut targets = Targets::begin();
    memory(&mut targets);
    binary(&mut targets);
    start(&mut targets, if quick { 5 } else { 20 });
    sharing(&mut targets, Duration::from_secs(if quick { 3 } else { 10 }));
    slow_driver(&mut targets, if quick { 5 } else { 40 });
    println!("\n{} target(s) missed.", targets.missed());
    if targets.missed() > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Idle is after a scrape of one engine's page: every path was taken once.
fn memory(targets: &mut Targets) {
    for bytes in [2_000_000, 20_000_000] {
        let body = support::body(bytes);
        let small = program::upstream(&support::capture("vllm-0.32.0-offload-cpu-nocreated-full"));
        let large = program::upstream(&body);
        let idle = program::exporter(&small.place, &[]);
        load::fetch(&idle.place);
        let loaded = program::exporter(&large.place, &[]);
        for _ in 0..5 {
            load::fetch(&loaded.place);
        }
        let (peak, room) = (loaded.peak() / MIB, idle.resident() / MIB + 2.0 * body.len() as f64 / MIB);
        targets.at_most("MiB resident, idle, no GPU", idle.resident() / MIB, 10.0);
        targets.at_most(&format!("MiB resident at most, body of {} bytes, of idle + 2 × body", body.len()), peak, room);
    }
}

fn binary(targets: &mut Targets) {
    let size = std::fs::metadata(env!("CARGO_BIN_EXE_kvtier-exporter")).unwrap().len() as f64 / MIB;
    targets.at_most("MiB of the binary, stripped", size, 8.0);
}

/// From the start of the process to the last byte of its first answer.
fn start(targets: &mut Targets, rounds: usize) {
    let upstream = program::upstream(&support::capture("vllm-0.32.0-offload-cpu-nocreated-full"));
    let mut milliseconds = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        let exporter = program::exporter(&upstream.place, &[]);
        load::fetch(&exporter.place);
        milliseconds.push(began.elapsed().as_secs_f64() * 1e3);
    }
    targets.at_most("ms from start to the first answered scrape, no GPU", median(&milliseconds), 50.0);
}

/// A hundred scrapers, one scrape a second each, spread over the second, and an upstream that takes 200 ms.
fn sharing(targets: &mut Targets, span: Duration) {
    const SCRAPERS: u32 = 100;
    let (place, requests) = slow_upstream(Duration::from_millis(200));
    let exporter = program::exporter(&place, &["--web.max-requests=0"]);
    let began = Instant::now();
    let scrapers: Vec<_> = (0..SCRAPERS)
        .map(|number| {
            let (place, first) = (exporter.place.clone(), began + Duration::from_secs(1) * number / SCRAPERS);
            thread::spawn(move || each_second(&place, first, began + span))
        })
        .collect();
    let seconds: Vec<f64> = scrapers.into_iter().flat_map(|scraper| scraper.join().unwrap()).collect();
    let rate = requests.load(Ordering::SeqCst) as f64 / began.elapsed().as_secs_f64();
    let what = format!("{SCRAPERS} scrapers at 1 s, upstream takes 200 ms");
    targets.at_most(&format!("{what}: requests/s upstream"), rate, 6.0);
    targets.at_most(&format!("{what}: p99, ms"), quantile(&seconds, 0.99) * 1e3, 300.0);
}

fn each_second(place: &Place, first: Instant, end: Instant) -> Vec<f64> {
    let mut client = load::Client::connect(place).unwrap();
    let (mut at, mut seconds) = (first, Vec::new());
    while at < end {
        thread::sleep(at.saturating_duration_since(Instant::now()));
        let began = Instant::now();
        client.scrape().unwrap();
        seconds.push(began.elapsed().as_secs_f64());
        at += Duration::from_secs(1);
    }
    seconds
}

/// Counts its requests.
fn slow_upstream(takes: Duration) -> (Place, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (place, requests) = (Place::new(listener.local_addr().unwrap(), "/metrics"), Arc::<AtomicUsize>::default());
    let counter = Arc::clone(&requests);
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                while stream.read(&mut [0; 4096]).is_ok_and(|bytes| bytes > 0) {
                    counter.fetch_add(1, Ordering::SeqCst);
                    thread::sleep(takes);
                    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", PAGE.len());
                    stream.write_all((head + PAGE).as_bytes()).unwrap();
                }
            });
        }
    });
    (place, requests)
}

/// Two exporters with a GPU each take turns; the driver of one takes a second for every call.
fn slow_driver(targets: &mut Targets, rounds: usize) {
    const CARD: &str = "count 1\ngpu0.uuid GPU-1\ngpu0.name NVIDIA L4\ngpu0.memory 100 50 50 0\ngpu0.link 4 4 16 16\n";
    let upstream = program::upstream(&support::body(250_000));
    let (quick, slow) = (with_driver(&upstream, CARD), with_driver(&upstream, &format!("delay 1000\n{CARD}")));
    let mut p50 = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for at in [round % 2, (round + 1) % 2] {
            p50[at].push(load::turn(&[&quick, &slow][at].place, Duration::from_millis(250)));
        }
    }
    targets.at_most(
        "p50 with a driver that takes 1 s for each call, × with a quick one",
        ratio(&p50[1], &p50[0]),
        1.05,
    );
}

fn with_driver(upstream: &Program, script: &str) -> Program {
    let dir = tempfile::tempdir().unwrap();
    let stub = Stub::build(dir.path(), &[], script);
    let library = stub.library().display().to_string();
    program::exporter(&upstream.place, &["--nvml.library", &library]).keeping((dir, stub))
}
