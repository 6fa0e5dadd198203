//! All rooms together: a correction, the collectors on a fixture tree, the demo.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::nvml::Stub;
use crate::support::client::get;
use crate::support::exporter::{Exporter, command, field};
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

/// 98.4 GB went through the tier and the engine's own gauge says that it is empty.
const FULL_TIER: &str = "\
# HELP vllm:kv_offload_cpu_cache_usage_perc Share of the tier in use.
# TYPE vllm:kv_offload_cpu_cache_usage_perc gauge
vllm:kv_offload_cpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.0
# HELP vllm:kv_offload_store_bytes_total Bytes stored.
# TYPE vllm:kv_offload_store_bytes_total counter
vllm:kv_offload_store_bytes_total{engine=\"0\",model_name=\"m\"} 9.84e+10
";

fn value(body: &str, series: &str) -> Option<f64> {
    body.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
}

#[test]
fn the_gauge_is_corrected_and_the_other_lines_are_not_touched() {
    let upstream = Upstream::start(|_| vec![ok(FULL_TIER)]);
    let exporter = Exporter::start(&upstream.url(), &["--tier.size=32GiB"]);
    let body = exporter.metrics().body;
    let labels = "{engine=\"0\",model_name=\"m\"}";
    assert_eq!(value(&body, &format!("vllm:kv_offload_cpu_cache_usage_perc{labels}")), Some(1.0));
    assert!(body.contains(FULL_TIER.split_once("model_name=\"m\"} 0.0\n").unwrap().1));
    // min(32 × 2^30, 98.4e9)
    let fill = body.lines().find(|line| line.starts_with("kvtier_tier_fill_upper_bound_bytes{")).unwrap();
    assert!(fill.ends_with(" 34359738368"), "{fill}");
    assert_eq!(value(&body, "kvtier_upstream_samples{upstream=\"main\"}"), Some(2.0));
    assert!(exporter.get("/debug").body.contains("vllm:kv_offload_store_bytes"));
}

/// The same lines with other numbers, then a new line, a bad one, and an engine that started again without either: each
/// page is answered as if it were the first.
#[test]
fn pages_in_turn_are_each_answered_for_themselves() {
    const NEW: &str = "# TYPE z counter\nz 1\n";
    const BAD: &str = "y{ 1\n";
    // Of 32 GiB: a 32nd, a quarter, a quarter, more than all, nothing.
    let in_turn = [
        ("1073741824", "", 0.03125, 0.0),
        ("8589934592", "", 0.25, 0.0),
        ("8.589934592e+09", NEW, 0.25, 0.0),
        ("9.84e+10", BAD, 1.0, 1.0),
        ("0", "", 0.0, 0.0),
        ("1073741824", NEW, 0.03125, 0.0),
    ];
    let page = |stored: &str, more: &str| more.to_owned() + &FULL_TIER.replace("9.84e+10", stored);
    let pages = in_turn.map(|(stored, more, ..)| page(stored, more));
    let next = AtomicUsize::new(0);
    let upstream = Upstream::start(move |_| vec![ok(&pages[next.fetch_add(1, Ordering::SeqCst)])]);
    let exporter = Exporter::start(&upstream.url(), &["--tier.size=32GiB"]);
    for (stored, more, fill, dropped) in in_turn {
        let body = exporter.metrics().body;
        let labels = "{engine=\"0\",model_name=\"m\"}";
        assert_eq!(value(&body, &format!("vllm:kv_offload_cpu_cache_usage_perc{labels}")), Some(fill), "{stored}");
        assert!(body.contains(&format!("\nvllm:kv_offload_store_bytes_total{labels} {stored}\n")), "{body}");
        assert_eq!(body.starts_with(NEW), more == NEW);
        assert!(!body.contains(BAD));
        assert_eq!(value(&body, "kvtier_upstream_dropped_lines{upstream=\"main\"}"), Some(dropped), "{stored}");
    }
}

#[test]
fn a_gauge_that_cannot_be_corrected_is_said_once_in_the_log() {
    let upstream = Upstream::start(|_| vec![ok(FULL_TIER)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for _ in 0..3 {
        assert!(exporter.metrics().body.starts_with(FULL_TIER));
    }
    let said = || exporter.log().iter().filter(|line| line.contains("kv_offload_cpu_cache_usage_perc")).count();
    until("the log says so", || said() > 0);
    assert_eq!(said(), 1);
}

#[test]
fn collectors_look_at_the_tree_that_they_are_given() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("meminfo"), "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\nShmem: 10 kB\n")
        .unwrap();
    let (root, upstream) = (root.path().to_str().unwrap(), Upstream::start(|_| vec![ok("x 1\n")]));
    let exporter = Exporter::start(&upstream.url(), &["--collector.memory", "--path.procfs", root]);
    until("memory was read", || exporter.metrics().has("kvtier_host_memory_available_bytes 256000"));
    assert!(exporter.metrics().has("kvtier_host_memory_total_bytes 1024000"));
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("collector memory\n") && !debug.contains("collector gpu\n"), "{debug}");
}

#[test]
fn the_demo_runs_by_itself_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    let greeting = folder.path().join("stdout");
    let mut demo = command(&["demo", "--web.listen-address", "127.0.0.1:0"]);
    let exporter = Exporter::spawn_with(&mut demo, fs::File::create(&greeting).unwrap());
    until("it answers", || exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
    let scraping = exporter.log().into_iter().find(|line| line.contains("msg=scraping")).unwrap();
    let engine = field(&scraping, "url").unwrap();
    until("it greets", || fs::read_to_string(&greeting).unwrap().contains("Ctrl-C ends it."));
    let greeting = fs::read_to_string(&greeting).unwrap();
    assert!(greeting.contains(engine) && greeting.contains(&format!("http://{}/metrics", exporter.address)));
    assert!(greeting.contains(&format!("  browser   http://{}/\n", exporter.address)), "{greeting}");
    let address = engine.trim_start_matches("http://").trim_end_matches("/metrics").parse().unwrap();
    // An engine has the gauge from its first copy on.
    until("it has the gauge", || get(address, "/metrics").body.contains("vllm:kv_offload_cpu_cache_usage_perc{"));
}

/// Each simulated engine is one rank, so what a reload costs is known on any box.
#[test]
fn the_demo_compares_the_cost_of_a_token_reloaded_with_one_computed() {
    let exporter = Exporter::spawn(&mut command(&["demo", "--web.listen-address", "127.0.0.1:0"]));
    until("both are there", || {
        let page = exporter.metrics().body;
        page.contains("\nkvtier_reload_seconds_per_token{") && page.contains("\nkvtier_prefill_seconds_per_token{")
    });
}

/// The simulated engine has no shared memory, so no mount can be the wrong one.
#[test]
fn the_demo_warns_of_nothing_about_itself() {
    let folder = tempfile::tempdir().unwrap();
    // On no tmpfs, or on one that is smaller than what the engine says it has.
    let shm = folder.path().to_str().unwrap();
    let mut demo = command(&["--collector.shm", "demo", "--web.listen-address", "127.0.0.1:0", "--path.shm", shm]);
    let exporter = Exporter::spawn(&mut demo);
    until("the mount is looked at and the tier is there", || {
        let page = exporter.metrics().body;
        page.contains("kvtier_shm_is_tmpfs{") && page.contains("kvtier_tier_size_bytes{")
    });
    let page = exporter.metrics().body;
    let notices: Vec<_> = page.lines().filter(|line| line.starts_with("kvtier_notice_active{")).collect();
    assert_eq!(notices, [""; 0]);
}

#[test]
fn the_demo_publishes_events_that_tell_the_truth_about_its_tiers() {
    let mut demo = command(&["demo", "--web.listen-address", "127.0.0.1:0"]);
    let exporter = Exporter::spawn(&mut demo);
    let share = |engine: &str| {
        let start = "kvtier_tier_predicted_reload_ratio{";
        let body = exporter.metrics().body;
        let mut lines = body.lines().filter(|line| line.starts_with(start) && line.contains("size=\"2\""));
        lines.any(|line| line.contains(&format!("engine=\"{engine}\"")))
    };
    until("both engines are measured and other sizes predicted", || share("0") && share("1"));
    let body = exporter.metrics().body;
    let exact = |line: &&str| line.starts_with("kvtier_tier_resident_exact{") && line.ends_with(" 1");
    assert_eq!(body.lines().filter(exact).count(), 2);
    assert_eq!(body.matches("bound_basis=\"measured\"").count(), 2);
}

#[test]
fn what_lmcache_believes_is_held_against_the_directory() {
    const LMCACHE: &str = "lmcache:local_storage_usage{model_name=\"m\",role=\"worker\",worker_id=\"0\"} 1048576\n";
    let (root, tier) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::create_dir(root.path().join("self")).unwrap();
    std::fs::write(root.path().join("self/mountinfo"), "1 0 8:1 / / rw - ext4 x rw\n").unwrap();
    // 64 KiB that the disk really holds, where LMCache claims 1 MiB: 983,040 bytes of difference.
    std::fs::write(tier.path().join("m@1@0@3e8@bfloat16.pt"), vec![7; 65_536]).unwrap();
    let upstream = Upstream::start(|_| vec![ok(LMCACHE)]);
    let (procfs, path) = (root.path().display().to_string(), tier.path().display().to_string());
    let exporter = Exporter::start(&upstream.url(), &["--path.procfs", &procfs, "--path.disk-tier", &path]);
    let difference = format!("kvtier_lmcache_disk_usage_difference_bytes{{path=\"{path}\"}} 983040");
    until("the directory is measured", || exporter.metrics().has(&difference));
    assert!(exporter.metrics().has(&format!("kvtier_disk_tier_files{{path=\"{path}\"}} 1")));
}

#[test]
fn the_size_is_found_in_the_tier_file_that_a_live_process_maps() {
    let root = tempfile::tempdir().unwrap();
    let (shm, procfs) = (root.path().join("shm"), root.path().join("proc"));
    fs::create_dir(&shm).unwrap();
    fs::create_dir_all(procfs.join("101")).unwrap();
    let tier = shm.join("vllm_offload_e1.mmap");
    // 98.4 GB went through a tier of 16 MiB, so it is full.
    fs::File::create(&tier).unwrap().set_len(16_777_216).unwrap();
    let upstream = Upstream::start(|_| vec![ok(FULL_TIER)]);
    let (shm, proc_path) = (shm.display().to_string(), procfs.display().to_string());
    let exporter =
        Exporter::start(&upstream.url(), &["--collector.shm", "--path.shm", &shm, "--path.procfs", &proc_path]);
    let gauge = "vllm:kv_offload_cpu_cache_usage_perc{engine=\"0\",model_name=\"m\"}";
    assert_eq!(value(&exporter.metrics().body, gauge), Some(0.0), "a file that nobody maps is nobody's tier");
    let meta = tier.metadata().unwrap();
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let line =
        format!("7f0000000000-7f0001000000 rw-s 00000000 {major:02x}:{minor:02x} {} {}\n", meta.ino(), tier.display());
    fs::write(procfs.join("101/maps"), line).unwrap();
    until("the mapping is seen", || value(&exporter.metrics().body, gauge) == Some(1.0));
    let body = exporter.metrics().body;
    assert!(body.contains("size_source=\"shm_file\""), "{body}");
    assert_eq!(value(&body, "kvtier_tier_size_bytes{model_name=\"m\",engine=\"0\",tier=\"ram\"}"), Some(16_777_216.0));
}

#[test]
fn a_driver_call_that_hangs_delays_neither_a_scrape_nor_the_end() {
    let root = tempfile::tempdir().unwrap();
    let stub = Stub::build(root.path(), &[], "count 1\ngpu0.uuid GPU-1\ngpu0.name NVIDIA L4\ngpu0.memory block\n");
    let upstream = Upstream::start(|_| vec![ok("x 1\n")]);
    let library = stub.library().display().to_string();
    let mut exporter = Exporter::start(&upstream.url(), &["--collector.gpu", "--nvml.library", &library]);
    until("the driver call hangs", || stub.blocks());
    let began = Instant::now();
    // It hangs until the end of the test: a scrape that waited for it would not come back.
    for _ in 0..20 {
        assert!(exporter.metrics().has("kvtier_upstream_up{upstream=\"main\"} 1"));
    }
    assert!(began.elapsed() < Duration::from_secs(1), "twenty scrapes took {:?}", began.elapsed());
    let began = Instant::now();
    exporter.terminate();
    let (status, ended) = exporter.wait();
    assert!(status.success() && ended - began < Duration::from_secs(3), "{status} after {:?}", ended - began);
}
