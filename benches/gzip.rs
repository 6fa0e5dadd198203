//! Whether packing an answer pays, by total time: pack, carry, unpack.
//!
//! `cargo bench --bench gzip`. Packing and unpacking are measured in CPU time of one core, the way over loopback by
//! a real connection. The way over a network is computed: bytes by its speed, less 6 % for frames and headers.
#![allow(missing_docs, clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints")]

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use rustix::time::{ClockId, clock_gettime};

#[allow(dead_code, unreachable_pub, reason = "the other benches use the rest of it")]
mod support;

const RUNS: usize = 40;
const GIGABIT: f64 = 1e9 / 8.0 * 0.94;

type Packer = fn(&[u8]) -> Vec<u8>;

const PACKERS: [(&str, Packer); 6] = [
    ("identity", |page| page.to_vec()),
    ("flate2 (miniz_oxide), level 1", |page| flate2(page, 1)),
    ("flate2 (miniz_oxide), level 6", |page| flate2(page, 6)),
    ("zlib-rs, level 1", |page| zlib_rs(page, 1)),
    ("zlib-rs, level 6", |page| zlib_rs(page, 6)),
    ("libdeflate, level 1", libdeflate),
];

fn main() {
    println!(
        "| body | coding | bytes | pack ms | loopback ms | unpack ms | total, loopback | total, 1 Gbit/s | total, 10 Gbit/s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let one = support::capture("vllm-0.20.0-offload-cpu-full");
    for body in [one, support::body(250_000), support::body(500_000)] {
        PACKERS.iter().for_each(|(name, packer)| row(&body, name, *packer));
    }
}

fn row(body: &[u8], name: &str, packer: Packer) {
    let packed = packer(body);
    let plain = name == "identity";
    let pack = if plain { 0.0 } else { milliseconds(cpu, || drop(black_box(packer(black_box(body))))) };
    // What unpacks is the same for all: it stands for the scraper's.
    let sample = flate2(body, 1);
    let unpack = if plain { 0.0 } else { milliseconds(cpu, || unpack(&sample, body.len())) };
    let (loopback, gigabit) = (over_loopback(&packed), packed.len() as f64 / GIGABIT * 1e3);
    println!(
        "| {} | {name} | {} | {pack:.3} | {loopback:.3} | {unpack:.3} | {:.3} | {:.3} | {:.3} |",
        body.len(),
        packed.len(),
        pack + loopback + unpack,
        pack + gigabit + unpack,
        pack + gigabit / 10.0 + unpack,
    );
}

/// As the exporter does it.
fn flate2(page: &[u8], level: u32) -> Vec<u8> {
    let mut packer = GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    packer.write_all(page).unwrap();
    packer.finish().unwrap()
}

/// In zlib's wrapping, which is a few bytes shorter.
fn zlib_rs(page: &[u8], level: i32) -> Vec<u8> {
    let config = zlib_rs::DeflateConfig { level, ..Default::default() };
    let mut packed = vec![0; zlib_rs::compress_bound(page.len())];
    let length = zlib_rs::compress_slice(&mut packed, page, config).0.len();
    packed.truncate(length);
    packed
}

fn libdeflate(page: &[u8]) -> Vec<u8> {
    let mut packer = libdeflater::Compressor::new(libdeflater::CompressionLvl::new(1).unwrap());
    let mut packed = vec![0; packer.gzip_compress_bound(page.len())];
    let length = packer.gzip_compress(page, &mut packed).unwrap();
    packed.truncate(length);
    packed
}

fn unpack(packed: &[u8], length: usize) {
    let mut page = Vec::with_capacity(length);
    GzDecoder::new(packed).read_to_end(&mut page).unwrap();
    assert_eq!(black_box(page).len(), length);
}

/// From the request to the last byte, over a connection that is open.
fn over_loopback(bytes: &[u8]) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_nodelay(true).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while server.read(&mut [0]).is_ok_and(|read| read > 0) {
                server.write_all(bytes).unwrap();
            }
        });
        let mut answer = vec![0; bytes.len()];
        let figure = milliseconds(wall, || {
            client.write_all(b"?").unwrap();
            client.read_exact(&mut answer).unwrap();
        });
        drop(client);
        figure
    })
}

/// The median of some runs.
fn milliseconds(clock: fn() -> f64, mut work: impl FnMut()) -> f64 {
    let mut figures: Vec<f64> = (0..RUNS)
        .map(|_| {
            let began = clock();
            work();
            clock() - began
        })
        .collect();
    figures.sort_by(f64::total_cmp);
    figures[RUNS / 2] * 1e3
}

fn cpu() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn wall() -> f64 {
    thread_local!(static START: Instant = Instant::now());
    START.with(Instant::elapsed).as_secs_f64()
}
