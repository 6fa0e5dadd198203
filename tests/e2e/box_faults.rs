//! Faults of the box and not of the upstream: a tier directory that is full or cannot be written, a file system that does
//! not answer, a clock that jumps, a driver that loses GPUs. What the page says goes on, and the rest says what is wrong.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::PAGE;
use crate::nvml::Stub;
use crate::support::client::Answer;
use crate::support::exporter::{Exporter, command, unshared};
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

/// Longer than a collector's call may take until it counts as failed (15 s).
const BLOCKED: Duration = Duration::from_secs(40);

/// A scrape, which nothing on the box may hold up, and which has the whole page.
fn scrape(exporter: &Exporter) -> Answer {
    let began = Instant::now();
    let answer = exporter.metrics();
    assert!(began.elapsed() < Duration::from_secs(1), "a scrape took {:?}", began.elapsed());
    assert!(answer.body.starts_with(PAGE) && answer.has("kvtier_upstream_up{upstream=\"main\"} 1"), "{}", answer.body);
    answer
}

fn wait_for(exporter: &Exporter, line: &str) {
    until(line, || scrape(exporter).has(line));
}

fn logs(exporter: &Exporter, text: &str) {
    until("the log says so", || exporter.log().iter().any(|line| line.contains(text)));
}

fn upstream() -> Upstream {
    Upstream::start(|_| vec![ok(PAGE)])
}

/// Starts it with a tmpfs of 1 MiB at `tier`, in which these commands were run before.
fn with_tier(upstream: &Upstream, tier: &Path, prepare: &str) -> Exporter {
    let script = format!("mount -t tmpfs -o size=1m tier \"$1\"\ncd \"$1\"\n{prepare}\nshift\ncd /\nexec \"$@\"");
    let url = upstream.url();
    let program =
        command(&["--upstream", &url, "--web.listen-address=127.0.0.1:0", "--collector.disk", "--path.disk-tier"]);
    let mut unshared = unshared();
    unshared.args(["sh", "-e", "-c", &script, "sh"]).arg(tier);
    unshared.arg(program.get_program()).args(program.get_args()).arg(tier).stdin(std::process::Stdio::null());
    Exporter::spawn(&mut unshared)
}

#[test]
fn a_full_tier_directory_is_measured_as_it_is() {
    let (tier, upstream) = (tempfile::tempdir().unwrap(), upstream());
    // More than there is room for: what fits is written, and the rest refused.
    let exporter = with_tier(&upstream, tier.path(), "head -c 2097152 /dev/zero > chunk 2>/dev/null || true");
    let path = tier.path().display();
    for (family, value) in [("size_bytes", 1_048_576), ("used_bytes", 1_048_576), ("available_bytes", 0)] {
        wait_for(&exporter, &format!("kvtier_disk_{family}{{path=\"{path}\"}} {value}"));
    }
    wait_for(&exporter, &format!("kvtier_disk_tier_bytes{{path=\"{path}\"}} 1048576"));
    wait_for(&exporter, "kvtier_collector_success{collector=\"disk\"} 1");
}

#[test]
fn a_tier_directory_that_cannot_be_written_is_measured_as_it_is() {
    let (tier, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let prepare = "head -c 65536 /dev/zero > chunk\nmount -o remount,ro \"$1\"";
    let exporter = with_tier(&upstream, tier.path(), prepare);
    let path = tier.path().display();
    // 1 MiB less 64 KiB.
    for (family, value) in [("size_bytes", 1_048_576), ("used_bytes", 65_536), ("available_bytes", 983_040)] {
        wait_for(&exporter, &format!("kvtier_disk_{family}{{path=\"{path}\"}} {value}"));
    }
    wait_for(&exporter, &format!("kvtier_disk_tier_files{{path=\"{path}\"}} 1"));
}

#[test]
fn a_tier_directory_that_is_not_there_is_said_everywhere() {
    let (root, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let gone = root.path().join("gone").display().to_string();
    let exporter = Exporter::start(&upstream.url(), &["--collector.disk", "--path.disk-tier", &gone]);
    wait_for(&exporter, "kvtier_collector_success{collector=\"disk\"} 0");
    assert!(!scrape(&exporter).body.contains("kvtier_disk_size_bytes"));
    logs(&exporter, &gone);
    assert!(exporter.get("/debug").body.contains(&gone));
}

/// A pipe that nobody writes to: opening it does not return, as a call to a dead network mount does not.
#[test]
fn a_file_system_that_does_not_answer_costs_its_collector_alone() {
    let (root, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let meminfo = root.path().join("meminfo");
    assert!(Command::new("mkfifo").arg(&meminfo).status().unwrap().success());
    let flags = ["--collector.memory", "--collector.shm", "--path.procfs", root.path().to_str().unwrap()];
    let mut exporter = Exporter::start(&upstream.url(), &flags);
    let threads = exporter.threads();
    let end = Instant::now() + BLOCKED;
    while !scrape(&exporter).has("kvtier_collector_success{collector=\"memory\"} 0") {
        assert!(Instant::now() < end, "it is not told");
    }
    wait_for(&exporter, "kvtier_collector_success{collector=\"shm\"} 1");
    assert!(!scrape(&exporter).body.contains("kvtier_host_memory"));
    assert!(exporter.get("/debug").body.contains("a call has not come back"));
    logs(&exporter, "a call has not come back");
    let told = exporter.log().iter().filter(|line| line.contains("a call has not come back")).count();
    assert_eq!((told, exporter.threads()), (1, threads), "once, and no thread beside the one that hangs");
    let began = Instant::now();
    exporter.terminate();
    let (status, ended) = exporter.wait();
    assert!(status.success() && ended - began < Duration::from_secs(3), "{status} after {:?}", ended - began);
}

/// The program with a clock that the returned function sets forward or back, in seconds against the real one.
fn with_clock(root: &Path, upstream: &Upstream) -> (Exporter, impl Fn(i64) + use<>) {
    let (library, offset) = (root.join("clock.so"), root.join("offset"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clock_stub/clock_stub.c");
    let flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-o"];
    let built = Command::new("cc").args(flags).arg(&library).arg(source).status();
    assert!(built.expect("the tests need a C compiler called cc").success());
    let unfinished = root.join("unfinished");
    let mut program = command(&["--upstream", &upstream.url(), "--web.listen-address=127.0.0.1:0"]);
    program.args(["--upstream.min-interval=100ms", "--collector.shm"]);
    program.env("LD_PRELOAD", library).env("CLOCK_STUB", &offset);
    let set = move |seconds: i64| {
        fs::write(&unfinished, seconds.to_string()).unwrap();
        fs::rename(&unfinished, &offset).unwrap();
    };
    (Exporter::spawn(&mut program), set)
}

fn value(body: &str, series: &str) -> f64 {
    let found = body.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {series} in {body}"))
}

#[test]
fn a_clock_that_jumps_changes_the_date_and_nothing_else() {
    const YEAR: i64 = 31_536_000;
    let root = tempfile::tempdir().unwrap();
    let upstream = Upstream::start(|request| vec![ok(format!("number {}\n", request.number))]);
    let (exporter, set_clock) = with_clock(root.path(), &upstream);
    let date = || {
        let status: serde_json::Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
        status["time_unix_seconds"].as_f64().unwrap()
    };
    until("the first look at shared memory", || {
        exporter.metrics().body.contains("kvtier_collector_success{collector=\"shm\"} 1\n")
    });
    let (now, started) = (date(), value(&exporter.metrics().body, "kvtier_process_start_time_seconds"));
    let mut number = 0.0;
    for jump in [0, YEAR, -YEAR, 10 * YEAR, 0] {
        set_clock(jump);
        let shift = date() - now - jump as f64;
        assert!((0.0..60.0).contains(&shift), "the clock went {shift} s beside {jump}");
        // The interval goes by whatever the date is, and what comes behind it is new.
        let before = number;
        until("a new page", || {
            number = value(&exporter.metrics().body, "number");
            number > before
        });
        let body = exporter.metrics().body;
        assert!(body.contains("kvtier_upstream_up{upstream=\"main\"} 1\n"), "{body}");
        assert!((0.0..10.0).contains(&value(&body, "kvtier_upstream_age_seconds{upstream=\"main\"}")), "{body}");
        assert!((0.0..60.0).contains(&value(&body, "kvtier_collector_age_seconds{collector=\"shm\"}")), "{body}");
        assert!((value(&body, "kvtier_process_start_time_seconds") - started).abs() < 1e-6, "{body}");
    }
}

const ONE: &str = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-a\ngpu0.name NVIDIA L4\ngpu0.memory 1000 300 600 100\n";
const TWO: &str = "driver 580.95.05\ncount 2\ngpu0.uuid GPU-a\ngpu0.name NVIDIA L4\ngpu0.memory 1000 300 600 100\n\
    gpu1.uuid GPU-b\ngpu1.name NVIDIA L4\ngpu1.memory 1000 500 400 100\n";
const FREE_A: &str = "kvtier_gpu_memory_free_bytes{gpu=\"0\",uuid=\"GPU-a\"} 600";
const FREE_B: &str = "kvtier_gpu_memory_free_bytes{gpu=\"1\",uuid=\"GPU-b\"} 400";

fn with_driver(upstream: &Upstream, library: &Path) -> Exporter {
    Exporter::start(&upstream.url(), &["--collector.gpu", "--nvml.library", library.to_str().unwrap()])
}

#[test]
fn a_gpu_that_is_lost_is_gone_and_the_other_one_stays() {
    let (root, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let stub = Stub::build(root.path(), &[], TWO);
    let exporter = with_driver(&upstream, stub.library());
    wait_for(&exporter, FREE_B);
    stub.script(&format!("{TWO}gpu1.handle 15\n"));
    until("the second is gone", || !scrape(&exporter).body.contains("GPU-b"));
    let answer = scrape(&exporter);
    assert!(answer.has(FREE_A) && answer.has("kvtier_collector_success{collector=\"gpu\"} 1"), "{}", answer.body);
    assert!(answer.has("kvtier_gpu_devices{state=\"listed\"} 2"), "{}", answer.body);
    assert!(answer.has("kvtier_gpu_devices{state=\"readable\"} 1"), "{}", answer.body);
    let lost = "GPU 1 (NVIDIA L4, GPU-b) cannot be read: device fell off the bus";
    logs(&exporter, lost);
    assert!(exporter.get("/debug").body.contains(lost));
    let status: serde_json::Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
    let host = &status["host"];
    assert_eq!((&host["gpus_listed"], &host["gpus_readable"]), (&2.0.into(), &1.0.into()));
    assert!(host["gpus_unreadable"][0].as_str().unwrap().starts_with(lost), "{host}");
    // Another reason is said anew, and so is the end.
    stub.script(&format!("{TWO}gpu1.handle 16\n"));
    logs(&exporter, "GPU 1 (NVIDIA L4, GPU-b) cannot be read: device requires a reset");
    stub.script(TWO);
    wait_for(&exporter, FREE_B);
    logs(&exporter, "no longer so: GPU 1 (NVIDIA L4, GPU-b)");
}

#[test]
fn gpus_that_come_and_go_are_counted_anew() {
    let (root, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let stub = Stub::build(root.path(), &[], ONE);
    let exporter = with_driver(&upstream, stub.library());
    let gpus = || scrape(&exporter).body.lines().filter(|line| line.starts_with("kvtier_gpu_info{")).count();
    for (script, number) in [(ONE, 1), (TWO, 2), (ONE, 1)] {
        stub.script(script);
        until("the number follows", || gpus() == number);
    }
    assert!(scrape(&exporter).has(FREE_A));
}

#[test]
fn a_driver_that_appears_later_is_found() {
    let (root, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let exporter = with_driver(&upstream, &Stub::path_in(root.path()));
    wait_for(&exporter, "kvtier_collector_success{collector=\"gpu\"} 0");
    assert!(!scrape(&exporter).body.contains("kvtier_gpu_"));
    logs(&exporter, "--nvml.library");
    assert!(exporter.get("/debug").body.contains("--nvml.library"));
    let _stub = Stub::build(root.path(), &[], ONE);
    wait_for(&exporter, FREE_A);
    logs(&exporter, "collector works again");
}

#[test]
fn a_driver_call_that_blocks_is_told_and_ends_when_it_returns() {
    let (root, upstream) = (tempfile::tempdir().unwrap(), upstream());
    let stub = Stub::build(root.path(), &[], &ONE.replace("1000 300 600 100", "block"));
    let exporter = with_driver(&upstream, stub.library());
    let threads = exporter.threads();
    let end = Instant::now() + BLOCKED;
    while !scrape(&exporter).has("kvtier_collector_success{collector=\"gpu\"} 0") {
        assert!(Instant::now() < end, "it is not told");
    }
    logs(&exporter, "a call has not come back");
    assert!(exporter.get("/debug").body.contains("a call has not come back"));
    assert_eq!(exporter.threads(), threads);
    stub.script(ONE);
    wait_for(&exporter, FREE_A);
    logs(&exporter, "collector works again");
}
