//! What a stream of KV cache events costs: CPU a batch, and memory at four million chunks.
//!
//! `cargo bench --bench events`. Sixteen conversations of some 500 blocks take turns; a batch holds 20 events, with
//! the tokens of its blocks, as vLLM 0.32 writes them. The bound to hold: 10,000 such batches a second on half a core,
//! which is 50 µs of CPU each, and no more memory than --events.max-bytes beyond an idle program.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints")]

use std::collections::VecDeque;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use kvtier_exporter::events::fold::Fold;
use kvtier_exporter::events::transport::{Kind, Socket};
use kvtier_exporter::events::wire::Batch;
use kvtier_exporter::events::{Address, Endpoint, Events, Link, Options};
use kvtier_exporter::process::Process;
use rustix::time::{ClockId, clock_gettime};

const BUDGET: usize = 64 << 20;
/// What of it is for identities: all but the quarter of what is on its way, and the window of predictions.
const KEPT: usize = 46 << 20;
/// Blocks of the GPU pool, and tokens of each.
const POOL: usize = 20_000;
const TOKENS: usize = 16;

fn main() {
    println!("{:>10} {:>10} {:>12} {:>14} {:>9}", "tier", "batches", "µs a batch", "RSS grew MiB", "one in");
    // What an earlier tier has given back would hide growth, so the largest comes first.
    for (slots, batches) in [(4_194_304, 1_100_000), (262_144, 120_000), (16_384, 60_000)] {
        run(slots, batches);
    }
    through_a_socket(30_000);
}

/// The same batches through a connection, as fast as they can be taken, with a thread that looks all the time as
/// scrapes do.
fn through_a_socket(batches: u64) {
    let mut engine = Engine::new(262_144);
    let payloads: Vec<Vec<u8>> = (0..batches).map(|_| engine.batch()).collect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let link = Link::Connect(Address::parse_all(&address).unwrap().remove(0));
    let endpoints = vec![Endpoint { link, replay: None, topic: String::new() }];
    let window = Duration::from_secs(3600);
    let events = Events::start(&Options { endpoints, window, max_error: 0.03, max_bytes: BUDGET });
    let mut socket = Socket::over(listener.accept().unwrap().0, Kind::Pub).unwrap();
    while socket.receive(Duration::from_millis(10)).unwrap().is_none() {}
    let (before, own, start) = (cpu_of(ClockId::ProcessCPUTime), cpu(), Instant::now());
    let (mut looks, mut longest) = (0_u32, Duration::ZERO);
    let done = || events.look()[0].last_seq == Some(batches - 1);
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            for (seq, payload) in payloads.iter().enumerate() {
                socket.send(&[b"", &(seq as u64).to_be_bytes(), payload]).unwrap();
            }
            cpu()
        });
        while !done() {
            let look = Instant::now();
            drop(events.look());
            longest = longest.max(look.elapsed());
            looks += 1;
            thread::sleep(Duration::from_millis(1));
        }
        let reader = cpu_of(ClockId::ProcessCPUTime) - before - (cpu() - own) - sender.join().unwrap();
        let each = reader / batches as f64 * 1e6;
        let rate = batches as f64 / start.elapsed().as_secs_f64();
        println!("\nthrough a socket: {each:.2} µs of CPU a batch, {rate:.0} batches a second;");
        println!("{looks} looks meanwhile, the longest {:.1} µs", longest.as_secs_f64() * 1e6);
    });
}

fn run(slots: usize, batches: usize) {
    let mut engine = Engine::new(slots);
    let (mut fold, mut batch) = (Fold::new(false, KEPT), Batch::default());
    let before = Process::own().read().resident_bytes.unwrap();
    let mut seconds = 0.0;
    for _ in 0..batches {
        let payload = engine.batch();
        let start = cpu();
        batch.decode(&payload).unwrap();
        fold.apply(&batch);
        seconds += cpu() - start;
    }
    // The simulated engine itself takes memory.
    let grew = (Process::own().read().resident_bytes.unwrap() - before - engine.bytes() as f64) / f64::from(1 << 20);
    let view = fold.view();
    assert!(view.bounds.is_exact() && view.bounds.sure as usize == engine.tier.len());
    assert!(fold.bytes() <= BUDGET && grew <= (BUDGET >> 20) as f64, "{grew} MiB");
    let each = seconds / batches as f64 * 1e6;
    println!("{slots:>10} {batches:>10} {each:>12.2} {grew:>14.1} {:>9}", view.one_in);
}

fn cpu() -> f64 {
    cpu_of(ClockId::ThreadCPUTime)
}

fn cpu_of(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Conversations that grow and start anew, a pool and a tier that evict by first in, first out.
struct Engine {
    slots: usize,
    names: u64,
    steps: u64,
    /// Last block and length of each conversation.
    talks: Vec<(Option<u64>, usize)>,
    pool: VecDeque<u64>,
    tier: VecDeque<u64>,
}

impl Engine {
    fn new(slots: usize) -> Engine {
        let (pool, tier) = (VecDeque::with_capacity(POOL + 64), VecDeque::with_capacity(slots + 64));
        Engine { slots, names: 0, steps: 0, talks: vec![(None, 0); 16], pool, tier }
    }

    fn bytes(&self) -> usize {
        (self.pool.capacity() + self.tier.len()) * 8
    }

    /// One batch of 20 events: 4 blocks enter the pool one by one, as many leave, 4 chunks are stored and as many
    /// evicted; the rest are the pool's.
    fn batch(&mut self) -> Vec<u8> {
        let mut events = Vec::new();
        let talk = (self.steps % 16) as usize;
        self.steps += 1;
        let mut fresh = Vec::new();
        for _ in 0..6 {
            self.names += 1;
            let hash = self.names.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let (parent, length) = self.talks[talk];
            events.push(stored(hash, parent, TOKENS, "GPU"));
            self.talks[talk] = if length > 500 { (None, 0) } else { (Some(hash), length + 1) };
            self.pool.push_back(hash);
            fresh.push(hash);
            let gone = if self.pool.len() > POOL { self.pool.pop_front() } else { None };
            events.extend(gone.map(|hash| removed(hash, "GPU")));
        }
        for hash in fresh.into_iter().take(4) {
            events.push(stored(hash, None, 0, "CPU"));
            self.tier.push_back(hash);
            let gone = if self.tier.len() > self.slots { self.tier.pop_front() } else { None };
            events.extend(gone.map(|hash| removed(hash, "CPU")));
        }
        let mut out = vec![0x93, 0xcb];
        out.extend((1.8e9 + self.steps as f64 * 1e-4).to_be_bytes());
        out.push(0xdc);
        out.extend((events.len() as u16).to_be_bytes());
        out.extend(events.concat());
        out.push(0);
        out
    }
}

fn stored(hash: u64, parent: Option<u64>, tokens: usize, medium: &str) -> Vec<u8> {
    let mut out = vec![0x89];
    pair(&mut out, "type", "BlockStored");
    hashes(&mut out, hash);
    text(&mut out, "parent_block_hash");
    match parent {
        Some(parent) => number(&mut out, parent),
        None => out.push(0xc0),
    }
    text(&mut out, "token_ids");
    out.extend([0xdc, 0, tokens as u8]);
    (0..tokens).for_each(|at| out.extend([0xcd, 0x3a, at as u8]));
    text(&mut out, "block_size");
    out.push(tokens as u8);
    text(&mut out, "lora_id");
    out.push(0xc0);
    pair(&mut out, "medium", medium);
    text(&mut out, "lora_name");
    out.push(0xc0);
    text(&mut out, "group_idx");
    out.push(0);
    out
}

fn removed(hash: u64, medium: &str) -> Vec<u8> {
    let mut out = vec![0x84];
    pair(&mut out, "type", "BlockRemoved");
    hashes(&mut out, hash);
    pair(&mut out, "medium", medium);
    text(&mut out, "group_idx");
    out.push(0);
    out
}

fn hashes(out: &mut Vec<u8>, hash: u64) {
    text(out, "block_hashes");
    out.push(0x91);
    number(out, hash);
}

fn pair(out: &mut Vec<u8>, key: &str, value: &str) {
    text(out, key);
    text(out, value);
}

fn text(out: &mut Vec<u8>, word: &str) {
    out.push(0xa0 | word.len() as u8);
    out.extend(word.bytes());
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.push(0xcf);
    out.extend(value.to_be_bytes());
}
