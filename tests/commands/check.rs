//! Every finding of `check`, there and not there.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::bench::{Bench, GIB, MIB, Said, capture, full, gpu, replaced, shape};
use crate::program::upstream::{Step, Upstream, ok, raw, response};

const FINE: &str = "No findings, no remarks.";

#[test]
fn a_box_on_which_all_is_well_gives_no_finding() {
    let bench = Bench::serving(full());
    let said = bench.check(&[]);
    said.says(0, &[FINE, "vllm 0.33+, 1 engine, 1 tier", "40.0 GiB in all", "RTX 5090): 2.0 GiB free"]);
    assert_eq!(said.err, "", "nothing but the answer");
    said.is_silent_about(&["Not known"]);
}

#[test]
fn an_upstream_that_does_not_answer() {
    let said = Bench::new().check(&[]);
    said.says(1, &["FINDING upstream-unreachable", "http://127.0.0.1:1/metrics cannot be reached: connection refused"]);
    said.says(1, &["--upstream, such as", "1 finding, no remarks."]);
}

#[test]
fn an_endpoint_that_is_no_engine() {
    let html = Bench::serving("<!DOCTYPE html><html>");
    html.check(&[]).says(1, &["FINDING upstream-wrong-endpoint", "sent HTML instead of metrics"]);
    let json = Bench::serving("{\"detail\":\"Not Found\"}");
    json.check(&[]).says(1, &["FINDING upstream-wrong-endpoint", "sent JSON instead of metrics"]);
    let router = "vllm:current_qps{server=\"http://a:8000\"} 1\nvllm:num_requests_running{server=\"http://a:8000\"} 2\n\
                  vllm:healthy_pods_total 2\nprocess_cpu_seconds_total 5\n";
    let said = Bench::serving(router).check(&[]);
    said.says(1, &["FINDING upstream-wrong-endpoint", "serves 4 metric names, 3 of them of vLLM", "router"]);
    let gateway = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 2\n";
    Bench::serving(gateway).check(&[]).says(1, &["serves 1 metric name, 1 of them of vLLM"]);
    for engine in ["sglang-0.5.23-no-tier", "vllm-0.33.0-no-offload", "vllm-0.16.0-no-offload"] {
        Bench::serving(capture(engine)).check(&[]).says(0, &[FINE]);
    }
}

#[test]
fn a_tier_whose_copies_nobody_counts() {
    let simple = Bench::serving(capture("vllm-0.33.0-offload-simple-full")).check(&[]);
    simple.says(
        1,
        &[
            "FINDING tier-without-transfer-metrics",
            "SimpleCPUOffloadConnector, which counts neither bytes nor seconds in any version",
        ],
    );
    let old = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 5\n\
               vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1\n\
               vllm:cache_config_info{engine=\"0\",kv_offloading_backend=\"native\",kv_offloading_size=\"8.0\"} 1\n";
    let said = Bench::serving(old).check(&[]);
    said.says(1, &["has a RAM tier of 8.0 GiB (8,589,934,592 bytes)", "vLLM before 0.16 counts no copies"]);
    let declared = Bench::serving(capture("vllm-0.33.0-no-offload")).check(&["--tier.size=16GiB"]);
    declared.says(1, &["FINDING tier-without-transfer-metrics", "of 16.0 GiB", "a tier that did not start"]);
    for counted in ["vllm-0.16.0-offload-cpu-full", "vllm-0.24.0-offload-cpu-init", "vllm-0.33.0-offload-cpu-init"] {
        Bench::serving(capture(counted)).check(&[]).is_silent_about(&["tier-without-transfer-metrics"]);
    }
}

#[test]
fn series_that_cannot_be_told_apart_are_found() {
    let page = capture("pods-vllm-0.33.0-one-full-one-empty");
    Bench::serving(page.clone()).check(&[]).is_silent_about(&["identity-uncertain"]);
    let gauge = "vllm:kv_offload_cpu_cache_usage_perc";
    let line = page.lines().find(|line| line.starts_with(gauge)).unwrap();
    let odd = line.replace("{", "{numa=\"1\",");
    let said = Bench::serving(format!("{page}{odd}\n")).check(&[]);
    let seen = format!("of engine \"0\" of model \"Qwen3.8-27B-NVFP4\", pod=\"a-0\": {gauge} has several series");
    said.says(1, &["FINDING identity-uncertain", &seen, "label \"numa\""]);
}

#[test]
fn what_is_not_read_for_a_doubt_is_not_said_to_be_missing() {
    // A replica that was started again: each series of its dead worker is on the page too.
    let by = |worker: &str, tokens: u32| {
        let labels = format!("engine=\"0\",model_name=\"m\",ReplicaId=\"r\",WorkerId=\"{worker}\"");
        [
            format!("vllm:num_requests_running{{{labels}}} 1"),
            format!("vllm:prompt_tokens_total{{{labels}}} {tokens}"),
            format!("vllm:kv_offload_store_bytes_total{{{labels}}} {tokens}e4"),
        ]
    };
    let hits = "vllm:external_prefix_cache_hits_total{engine=\"0\",model_name=\"m\",ReplicaId=\"r\"} 5";
    let lines = by("w1", 1000).into_iter().zip(by("w2", 7)).flat_map(|(one, two)| [one, two]);
    let page = lines.chain([hits.to_owned()]).map(|line| line + "\n").collect::<String>();
    let said = Bench::serving(page).check(&["--tier.size=8GiB"]);
    said.says(1, &["FINDING identity-uncertain", "label \"WorkerId\"", "1 finding, no remarks."]);
}

#[test]
fn a_tier_of_several_kv_groups_and_one_of_which_that_is_not_told() {
    let page = capture("vllm-0.32.0-offload-cpu-storeonly");
    let assumed = "remark kv-groups-not-told";
    let shared = "remark tier-of-several-kv-groups";
    let said = Bench::serving(page.clone()).check(&[]);
    said.says(
        1,
        &[
            assumed,
            "The fill of tier ram of engine \"0\" of \"Qwen3.8-27B-NVFP4\" is a bound for models of one KV group",
        ],
    );
    said.is_silent_about(&[shared]);
    let hybrid = replaced(&page, "mamba_block_size=\"None\"", "mamba_block_size=\"512\"");
    let said = Bench::serving(hybrid).check(&[]);
    said.says(1, &[shared, "splits its KV over several groups (mamba_block_size is set)"]);
    said.is_silent_about(&[assumed]);
    // 0.33 counts slots, and an empty tier is empty.
    for known in ["vllm-0.33.0-offload-hybrid-slots", "vllm-0.33.0-offload-cpu-full", "vllm-0.32.0-offload-cpu-init"] {
        Bench::serving(capture(known)).check(&[]).is_silent_about(&[assumed, shared]);
    }
}

#[test]
fn lmcache_that_shows_nothing() {
    let off = capture("vllm-0.33.0-no-offload");
    let page = replaced(&off, "kv_offloading_backend=\"native\"", "kv_offloading_backend=\"lmcache\"");
    let said = Bench::serving(&*page).check(&[]);
    said.says(1, &["FINDING lmcache-metrics-missing", "engine \"0\" offloads to LMCache", "PROMETHEUS_MULTIPROC_DIR"]);
    let declared = Bench::serving(&*off).check(&["--tier.size=lmcache_disk=250GiB"]);
    declared.says(1, &["FINDING lmcache-metrics-missing", "--tier.size declares the tier lmcache_disk"]);
    let shown = page + "lmcache:num_lookup_tokens_total{model_name=\"Qwen3.8-27B-NVFP4\",worker_id=\"0\"} 5\n";
    Bench::serving(shown).check(&[]).says(0, &[FINE]);
    Bench::serving(off).check(&[]).says(0, &[FINE]);
}

#[test]
fn a_size_that_the_engine_contradicts_is_a_remark() {
    let bench = Bench::serving(full());
    let said = bench.check(&["--tier.size=30GiB"]);
    said.says(
        0,
        &["remark tier-size-mismatch", "--tier.size says 30.0 GiB", "the engine says 32.0 GiB (34,359,738,368 bytes)"],
    );
    bench.check(&["--tier.size=32GiB"]).says(0, &[FINE]);
}

#[test]
fn a_tier_with_fewer_tokens_than_the_pool() {
    // The pool of the capture holds 228,800 tokens; 34,359,738,368 ÷ 200,000 = 171,798.
    let bench = Bench::serving(full());
    let said = bench.check(&["--kv.bytes-per-token=200000"]);
    said.says(1, &["FINDING tier-smaller-than-gpu-pool", "holds 171,798 tokens, 0.75 times the 228,800 tokens"]);
    bench.check(&["--kv.bytes-per-token=36166"]).says(0, &[FINE]);
}

#[test]
fn a_tier_whose_tokens_another_connector_hides() {
    // 501,437,431,808 bytes reloaded, and ten times as many tokens supplied as the tier has: by a peer, through NIXL.
    let page = capture("vllm-0.31.0-offload-cpu-full");
    let hits = "vllm:external_prefix_cache_hits_total{engine=\"0\",model_name=\"Qwen3.8-27B-NVFP4\"} ";
    let before = page.lines().find(|line| line.starts_with(hits)).unwrap();
    let page = replaced(&page, before, &format!("{hits}76513280.0")) + "# TYPE vllm:nixl_xfer_time_seconds histogram\n";
    let bench = Bench::serving(page);
    // 10 GiB ÷ 65,536 B = 163,840 tokens, fewer than the 228,800 of the pool; by the hits it would be 1,638,400.
    let size = "--tier.size=10GiB";
    bench
        .check(&[size, "--kv.bytes-per-token=65536"])
        .says(1, &["FINDING tier-smaller-than-gpu-pool", "163,840 tokens"]);
    bench.check(&[size]).says(
        0,
        &["Not known", "whether the RAM tier of engine \"0\" of \"Qwen3.8-27B-NVFP4\" holds more", "NixlConnector"],
    );
}

#[test]
fn tiers_of_two_pods_whose_tokens_are_not_known_are_told_apart() {
    let said = Bench::serving(capture("pods-vllm-0.33.0-one-full-one-empty")).check(&[]);
    for pod in ["a-0", "b-0"] {
        let tier = format!("whether the RAM tier of engine \"0\" of \"Qwen3.8-27B-NVFP4\", pod=\"{pod}\" holds more");
        said.says(said.status, &[&tier]);
    }
}

#[test]
fn bytes_that_never_come_back() {
    let stored = capture("vllm-0.33.0-offload-cpu-storeonly");
    let said = Bench::serving(&*stored).check(&[]);
    said.says(
        1,
        &["FINDING stored-never-reloaded", "stored 9.3 GiB (10,000,000,000 bytes)", "asked for 200,000 tokens"],
    );
    let never_asked = replaced(
        &stored,
        "vllm:external_prefix_cache_queries_total{engine=\"0\",model_name=\"Qwen3.8-27B-NVFP4\"} 200000.0",
        "vllm:external_prefix_cache_queries_total{engine=\"0\",model_name=\"Qwen3.8-27B-NVFP4\"} 0.0",
    );
    Bench::serving(never_asked).check(&[]).says(0, &["No findings, 1 remark.", "remark kv-groups-not-told"]);
    Bench::serving(capture("vllm-0.33.0-offload-cpu-init")).check(&[]).says(0, &[FINE]);
}

const DISK_ONLY: &str =
    "chunk_size: 256\nlocal_cpu: false\nmax_local_cpu_size: 0\nlocal_disk: /kv\nmax_local_disk_size: 500\n";

#[test]
fn an_lmcache_file_that_starts_no_tier() {
    let bench = Bench::serving(full());
    let file = bench.at("lmcache.yaml");
    let check = |text: &str| {
        fs::write(&file, text).unwrap();
        bench.check(&["--lmcache.config", file.to_str().unwrap()])
    };
    let said = check(DISK_ONLY);
    said.says(1, &["FINDING lmcache-no-staging", "local_cpu is false and max_local_cpu_size is 0", "degraded mode"]);
    said.is_silent_about(&["lmcache-disk-size-zero"]);
    check(&DISK_ONLY.replace("cpu_size: 0", "cpu_size: 2.0")).says(0, &[FINE]);
    let said = check("local_cpu: false\nmax_local_cpu_size: 2\nlocal_disk: /kv\n");
    said.says(1, &["FINDING lmcache-disk-size-zero", "local_disk is \"/kv\" and max_local_disk_size is 0"]);
    let unread = check("local_cpu: [");
    assert_eq!((unread.status, unread.out.as_str()), (2, ""));
    assert!(
        unread.err.contains("lmcache.yaml, line 1: this is not YAML") && unread.err.lines().count() == 1,
        "{}",
        unread.err
    );
    let gone = bench.check(&["--lmcache.config", "/nowhere/lmcache.yaml"]);
    assert!(gone.status == 2 && gone.err.contains("/nowhere/lmcache.yaml"), "{}", gone.err);
}

#[test]
fn an_lmcache_file_that_never_comes_or_is_far_too_large() {
    let bench = Bench::serving(full());
    let file = bench.at("lmcache.yaml");
    let check = || bench.check(&["--lmcache.config", file.to_str().unwrap()]);
    fs::File::create(&file).unwrap().set_len(1 << 30).unwrap();
    let large = check();
    assert!(large.status == 2 && large.err.contains("lmcache.yaml: it is larger than 1024 KiB"), "{}", large.err);
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
    let began = Instant::now();
    let silent = check();
    assert!(silent.status == 2 && silent.err.contains("lmcache.yaml: nothing came within 5 s"), "{}", silent.err);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    // A pipe with somebody at its other end, as the shell's <(…) makes it.
    let path = file.clone();
    let writer = std::thread::spawn(move || fs::write(path, DISK_ONLY));
    check().says(1, &["FINDING lmcache-no-staging"]);
    writer.join().unwrap().unwrap();
}

#[test]
fn the_configuration_of_a_running_lmcache() {
    let bench = Bench::serving(full());
    let conf = |body: &'static str| {
        Upstream::start(move |request| match request.path.as_str() {
            "/conf" => vec![response("200 OK", &["Content-Type: text/plain"], body)],
            _ => vec![response("404 Not Found", &[], "")],
        })
    };
    let check = |server: &Upstream| bench.check(&["--lmcache.url", &server.address.to_string()]);
    let broken = conf(
        "{\n  \"chunk_size\": 256,\n  \"local_cpu\": false,\n  \"max_local_cpu_size\": 0.0,\n  \"local_disk\": null\n}",
    );
    check(&broken).says(1, &["FINDING lmcache-no-staging", "/conf: local_cpu is false and max_local_cpu_size is 0"]);
    let good = conf(
        "{\"local_cpu\": false, \"max_local_cpu_size\": 2.0, \"local_disk\": \"/kv\", \"max_local_disk_size\": 9}",
    );
    check(&good).says(0, &[FINE, "LMCache's configuration, http://"]);
    check(&conf("<html>"))
        .says(1, &["FINDING lmcache-conf-unreadable", "sent a page for browsers (HTML) in place of JSON."]);
    // Each cause with its own remedy.
    let told = |said: &Said, words: &[&str]| {
        said.says(1, &["FINDING lmcache-conf-unreadable", "/conf: no configuration"]).says(1, words);
    };
    let another = "Give the address of LMCache's internal server after --lmcache.url, such as 127.0.0.1:7000.";
    told(&check(&conf("{\"status\":\"ok\"}")), &["what stands in it is \"status\".", another]);
    let none = "Or give the file with --lmcache.config instead.";
    for (status, words) in [
        ("401 Unauthorized", "It is asked without credentials"),
        ("404 Not Found", another),
        ("400 Bad Request", another),
        ("496 ", "It is shown no client certificate"),
    ] {
        let said = check(&Upstream::start(move |_| vec![response(status, &[], "")]));
        told(&said, &[words, none]);
        said.is_silent_about(&["in the engine's log"]);
    }
    let garbage = check(&Upstream::start(|_| vec![raw("220 smtp ready\r\n"), Step::Close]));
    told(&garbage, &["/conf sent what is no HTTP response.", another]);
    garbage.is_silent_about(&["metrics."]);
    let secure = check(&Upstream::start(|_| vec![raw("\x15\x03\x01\0\x02\x02\x46"), Step::Close]));
    told(
        &secure,
        &["speaks TLS, and was asked in plain HTTP.", "Write https:// in place of http:// after --lmcache.url."],
    );
    let silent = bench.check(&["--lmcache.url", "127.0.0.1:1"]);
    silent.says(
        1,
        &["FINDING lmcache-conf-unreadable", "http://127.0.0.1:1/conf cannot be reached", "in the engine's log"],
    );
    silent.says(1, &["LMCache's server at http://127.0.0.1:1/conf: no configuration"]);
}

#[test]
fn the_shared_memory_of_a_container_of_its_own() {
    let page = full();
    let said = Bench::serving(&*page).shm("64m").check(&[]);
    said.says(
        1,
        &[
            "FINDING shm-container-default",
            "takes 32.0 GiB (34,359,738,368 bytes)",
            "has 64.0 MiB (67,108,864 bytes) in all",
            "--ipc=container:",
        ],
    );
    said.is_silent_about(&["shm-smaller-than-tier"]);
    Bench::serving(page).shm("40g").check(&[]).says(0, &[FINE]);
    // Without a RAM tier a small mount is nobody's concern.
    Bench::serving(capture("vllm-0.33.0-no-offload")).shm("64m").check(&[]).says(0, &[FINE]);
}

#[test]
fn a_mount_smaller_than_all_tiers_together() {
    let said = Bench::serving(full()).shm("31g").check(&[]);
    said.says(
        1,
        &["FINDING shm-smaller-than-tier", "has 31.0 GiB (33,285,996,544 bytes) in all", "not the engine's mount"],
    );
    // Two engines of 32 GiB each need 64 GiB.
    let two = capture("vllm-0.33.0-offload-cpu-dp2-full");
    let said = Bench::serving(&*two).shm("40g").check(&[]);
    said.says(
        1,
        &["FINDING shm-smaller-than-tier", "tiers of 2 engines take 64.0 GiB (68,719,476,736 bytes) together"],
    );
    Bench::serving(two).shm("65g").check(&[]).is_silent_about(&["shm-"]);
    // Before 0.27 the tier is no file, and the simple connector's never is.
    Bench::serving(capture("vllm-0.16.0-offload-cpu-full")).shm("31g").check(&[]).is_silent_about(&["shm-"]);
    let perhaps = Bench::serving(capture("vllm-0.24.0-offload-cpu-full")).shm("31g").check(&[]);
    perhaps.says(0, &["remark shm-smaller-than-tier", "Before 0.27 it does not matter"]);
    Bench::serving(capture("vllm-0.33.0-offload-simple-full")).shm("31g").check(&[]).is_silent_about(&["shm-"]);
}

#[test]
fn before_the_start_the_tier_has_to_find_room() {
    let fill = |bench: Bench, bytes: &str| {
        let file = bench.at("shm/other");
        bench.prepare(format!("fallocate -l {bytes} {}", file.display()))
    };
    let tight = fill(Bench::new().shm("40m"), "30m");
    let said = tight.check(&["--tier.size=20MiB"]);
    said.says(
        1,
        &["FINDING shm-too-full", "takes 20.0 MiB (20,971,520 bytes)", "has 10.0 MiB (10,485,760 bytes) free"],
    );
    said.is_silent_about(&["shm-smaller-than-tier", "shm-container-default"]);
    // It fits, and leaves 10 − 8 = 2 MiB for all else.
    tight.check(&["--tier.size=8MiB"]).says(1, &["FINDING shm-headroom-low", "will leave 2.0 MiB (2,097,152 bytes)"]);
    let twice = tight.check(&["--tier.size=8MiB", "--engines=2"]);
    twice.says(1, &["FINDING shm-too-full", "tiers of 2 engines take 16.0 MiB (16,777,216 bytes) together"]);
    let said = Bench::new().shm("31g").check(&["--tier.size=32GiB"]);
    said.says(1, &["FINDING shm-smaller-than-tier", "the engine will not start"]);
}

#[test]
fn before_the_start_the_memory_limit_and_the_host_count_too() {
    let bench = Bench::new();
    let cgroup = bench.at("sys/fs/cgroup/engine");
    let limit = |limit: u64| {
        bench.write("sys/fs/cgroup/engine/memory.max", &limit.to_string());
        bench.write("sys/fs/cgroup/engine/memory.current", &(2 * GIB).to_string());
        bench.check(&["--tier.size=32GiB", "--path.cgroup", cgroup.to_str().unwrap()])
    };
    let said = limit(24 * GIB);
    said.says(1, &["FINDING memory-limit-too-small", "memory limit leaves 22.0 GiB (23,622,320,128 bytes)"]);
    limit(36 * GIB).is_silent_about(&["memory-limit", "host-memory"]);
    bench.memory(128 * GIB, 31 * GIB);
    limit(36 * GIB).says(1, &["FINDING host-memory-too-small", "has 31.0 GiB (33,285,996,544 bytes) available"]);
    // An engine that runs has its memory already.
    let running = Bench::serving(full());
    running.memory(128 * GIB, 3 * GIB);
    running.check(&[]).says(0, &[FINE]);
}

#[test]
fn room_beside_a_tier_that_runs() {
    let bench = Bench::serving(full());
    let cgroup = bench.at("sys/fs/cgroup/engine");
    let left = |bytes: u64| {
        bench.write("sys/fs/cgroup/engine/memory.max", &(36 * GIB).to_string());
        bench.write("sys/fs/cgroup/engine/memory.current", &(36 * GIB - bytes).to_string());
        bench.check(&["--path.cgroup", cgroup.to_str().unwrap()])
    };
    left(200 * MIB)
        .says(1, &["FINDING shm-headroom-low", "the engine's memory limit leaves 200.0 MiB (209,715,200 bytes)"]);
    left(700 * MIB).says(0, &["remark shm-headroom-low", "No findings, 1 remark."]);
    left(2 * GIB).says(0, &[FINE]);
}

#[test]
fn a_tier_leaves_room_beside_it_before_it_starts_as_while_it_runs() {
    let left = |size: &str| Bench::new().shm("33g").check(&[&format!("--tier.size={size}")]);
    left("33GiB").says(1, &["FINDING shm-headroom-low", "the mount", "will leave 0 bytes"]);
    left("32.9GiB").says(1, &["FINDING shm-headroom-low", "will leave 102.4 MiB"]);
    left("32.5GiB").says(1, &["remark shm-headroom-low", "will leave 512.0 MiB (536,870,912 bytes)"]);
    left("32GiB").is_silent_about(&["shm-"]);
}

#[test]
fn files_that_dead_engines_left_behind() {
    let bench = |line: &str| {
        let bench = Bench::serving(full());
        let file = bench.at("shm/vllm_offload_dead-1.mmap");
        bench.prepare(format!("{line} {}", file.display()))
    };
    let said = bench("truncate -s 12G").check(&[]);
    said.says(
        1,
        &[
            "FINDING shm-stale-files",
            "1 vllm_offload_* file of 12.0 GiB (12,884,901,888 bytes) lies in",
            "no process maps it.",
        ],
    );
    let unsure = bench("truncate -s 12G");
    // A process whose maps cannot be read.
    fs::create_dir_all(unsure.at("proc/7/maps")).unwrap();
    fs::write(unsure.at("proc/7/comm"), "VLLM::Worker\n").unwrap();
    unsure.check(&[]).says(
        0,
        &[
            "remark shm-files-unknown",
            "1 vllm_offload_* file of 12.0 GiB",
            "process 7 (VLLM::Worker)",
            "is a directory",
            "SYS_PTRACE",
        ],
    );
    // A process file system of one namespace: whoever runs it there, more rights do not help.
    let inside = bench("truncate -s 12G");
    fs::write(inside.at("proc/2/comm"), "python3\n").unwrap();
    let said = inside.check(&[]);
    said.says(0, &["remark shm-files-unknown", "shows the processes of one PID namespace", "hostPID: true"]);
    said.is_silent_about(&["as root"]);
    bench("true").check(&[]).says(0, &[FINE]);
}

#[test]
fn a_path_that_is_no_tmpfs_is_a_remark() {
    let below = Bench::serving(full());
    below.check(&[]).says(0, &[FINE]);
    let (shm, kv) = (below.at("shm").display().to_string(), below.at("kv").display().to_string());
    // A file system of another kind over the box's own disk.
    let overlay = format!("lowerdir={kv}/lower,upperdir={kv}/upper,workdir={kv}/work");
    below
        .prepare(format!(
            "umount {shm}; mkdir {kv}/lower {kv}/upper {kv}/work; mount -t overlay -o {overlay} overlay {shm}"
        ))
        .check(&[])
        .says(0, &["remark shm-not-tmpfs", &format!("{shm} is no tmpfs."), "No findings, 1 remark."]);
}

const SPARK: &str = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-bbbb\ngpu0.name NVIDIA GB10\ngpu0.memory !3\n";

#[test]
fn a_ram_tier_on_unified_memory() {
    let said = Bench::serving(full()).driver(SPARK).check(&[]);
    said.says(1, &["FINDING ram-tier-on-unified-memory", "a tier in host memory (ram)", "GPU 0 is NVIDIA GB10"]);
    let said = Bench::serving(capture("sglang-0.5.23-hicache")).driver(SPARK).check(&[]);
    said.says(1, &["FINDING ram-tier-on-unified-memory", "(hicache_host)"]);
    let told = Bench::serving(full()).check(&["--gpu.unified"]);
    told.says(1, &["FINDING ram-tier-on-unified-memory", "--gpu.unified says so"]);
    let planned = Bench::new().driver(SPARK).check(&["--tier.size=8GiB"]);
    planned.says(1, &["FINDING ram-tier-on-unified-memory"]);
    Bench::serving(capture("vllm-0.33.0-no-offload")).driver(SPARK).check(&[]).says(0, &[FINE]);
    // A 32 GB card in a 32 GB host is no such box.
    let alike = Bench::serving(full());
    alike.memory(34_190_917_632, 20 * GIB);
    alike.check(&[]).says(0, &[FINE]);
}

#[test]
fn gpu_memory_that_runs_out() {
    let free = |bytes: u64| Bench::serving(full()).driver(&gpu(bytes)).check(&[]);
    free(400 * MIB)
        .says(1, &["FINDING gpu-headroom-low", "RTX 5090) has 400.0 MiB (419,430,400 bytes) of 31.8 GiB free"]);
    free(512 * MIB).says(0, &["remark gpu-headroom-low"]);
    free(674 * MIB).says(0, &["remark gpu-headroom-low", "No findings, 1 remark."]);
    free(1024 * MIB).says(0, &[FINE]);
    let refuses = changed_memory("!3");
    let said = Bench::serving(full()).driver(&refuses).check(&[]);
    said.says(0, &["remark gpu-memory-unknown", "does not tell its memory", "--gpu.unified", "Not known"]);
    let nothing = Bench::serving(full()).driver(&changed_memory("0 0 0 0")).check(&[]);
    nothing.says(0, &["remark gpu-memory-unknown", "a total of nothing", "--gpu.unified"]);
    nothing.is_silent_about(&["gpu-headroom-low"]);
    let lies = Bench::serving(full()).driver(&changed_memory("100 90 90 0")).check(&[]);
    lies.says(0, &["remark gpu-memory-unknown", "contradict each other", "install another release"]);
    lies.is_silent_about(&["--gpu.unified"]);
}

/// A second GPU beside the one that has 2 GiB free.
fn with_second(lines: &str) -> String {
    gpu(2 * GIB).replace("count 1", "count 2") + lines
}

#[test]
fn a_gpu_that_cannot_be_read() {
    let fine = "gpu1.uuid GPU-b\ngpu1.name NVIDIA L4\ngpu1.memory 24000000000 1000000000 23000000000 0\n";
    Bench::serving(full()).driver(&with_second(fine)).check(&[]).says(0, &[FINE]);
    let lost = fine.replace("24000000000 1000000000 23000000000 0", "!15");
    let said = Bench::serving(full()).driver(&with_second(&lost)).check(&[]);
    said.says(1, &["FINDING gpu-lost", "Of 2 GPUs 1 can be read.", "GPU 1 (NVIDIA L4, GPU-b)", "dmesg"]);
    said.is_silent_about(&["gpu-memory-unknown"]);
    let reset = format!("{fine}gpu1.handle 16\n");
    let said = Bench::serving(full()).driver(&with_second(&reset)).check(&[]);
    said.says(1, &["FINDING gpu-lost", "GPU 1 cannot be read", "reset"]);
    let all = format!("{}gpu0.handle 15\n", gpu(2 * GIB));
    let said = Bench::serving(full()).driver(&all).check(&[]);
    said.says(1, &["FINDING gpu-lost", "Of 1 GPU 0 can be read.", "GPU 0 cannot be read"]);
    let refused = format!("{fine}gpu1.handle 4\n");
    let said = Bench::serving(full()).driver(&with_second(&refused)).check(&[]);
    said.says(0, &["remark gpu-no-permission", "may not open it", "NVIDIA_VISIBLE_DEVICES"]);
}

#[test]
fn a_gpu_driver_that_is_there_and_does_not_answer() {
    // 18: library and kernel module are of different releases.
    for (script, why) in [("init 18\n", "mismatch"), ("init 999\n", "NVML does not start"), ("count !999\n", "count")] {
        let said = Bench::serving(full()).driver(script).check(&[]);
        said.says(1, &["FINDING gpu-driver-fails", why, "nvidia-smi"]);
    }
    // No driver is loaded: a box without a GPU is no finding.
    Bench::serving(full()).driver("init 9\n").check(&[]).says(0, &["not here"]);
}

#[test]
fn a_gpu_that_is_cut_into_slices() {
    let parent =
        "driver 535.5\ncount 1\ngpu0.uuid GPU-dddd\ngpu0.name NVIDIA H100 80GB HBM3\ngpu0.memory !4\ngpu0.mig 7\n";
    let said = Bench::serving(full()).driver(parent).check(&[]);
    said.says(0, &["remark gpu-memory-unknown", "cut into MIG slices", "NVIDIA_MIG_MONITOR_DEVICES=all"]);
    said.is_silent_about(&["--gpu.unified"]);
    let slice = "gpu0.slice2.uuid MIG-2\ngpu0.slice2.name NVIDIA H100 MIG 1g.10gb\ngpu0.slice2.memory ";
    let full_slice = format!("{parent}{slice}10334765056 10000000000 334765056 0\n");
    let said = Bench::serving(full()).driver(&full_slice).check(&[]);
    said.says(1, &["FINDING gpu-headroom-low", "GPU 0:2 (NVIDIA H100 MIG 1g.10gb)"]);
    said.is_silent_about(&["gpu-memory-unknown"]);
    // A driver that gives a slice no name.
    let nameless = full_slice.replace("gpu0.slice2.name NVIDIA H100 MIG 1g.10gb\n", "gpu0.slice2.name \n");
    let said = Bench::serving(full()).driver(&nameless).check(&[]);
    said.says(1, &["FINDING gpu-headroom-low", "GPU 0:2 has 319.3 MiB", "GPU 0:2: 319.3 MiB free"])
        .is_silent_about(&["()"]);
}

#[test]
fn a_link_is_no_finding_on_unified_memory() {
    let spark = format!("{SPARK}gpu0.link 1 5 1 16\n").replace("!3", "25276510208 22276510208 3000000000 0");
    let page = capture("vllm-0.33.0-no-offload");
    Bench::serving(page).driver(&spark).check(&[]).says(0, &[FINE]);
}

#[test]
fn a_link_below_its_maximum_counts_only_under_load() {
    let low = gpu(2 * GIB).replace("gpu0.link 5 5 16 16", "gpu0.link 3 5 8 16");
    let running = full();
    let said = Bench::serving(&*running).driver(&low).check(&[]);
    said.says(1, &["FINDING pcie-link-below-maximum", "has generation 3 of 5 and 8 of 16 lanes"]);
    Bench::serving(&*running).check(&[]).says(0, &[FINE]);
    let three = "vllm:num_requests_running{engine=\"0\",model_name=\"Qwen3.8-27B-NVFP4\"} 3.0";
    let rest = replaced(&running, three, &three.replace("3.0", "0.0"));
    Bench::serving(&*rest).driver(&low).check(&[]).says(0, &[FINE]);
    // At rest by the second page: then the link may have been at rest as well.
    let ends = Bench::new().upstream(move |request| vec![ok(if request.number == 1 { &running } else { &rest })]);
    ends.driver(&low).check(&[]).says(0, &[FINE]);
}

#[test]
fn a_directory_that_is_not_there_or_no_directory() {
    let bench = Bench::serving(full());
    let check = |name: &str| bench.check(&["--path.disk-tier", bench.at(name).to_str().unwrap()]);
    check("kv").says(0, &[FINE, "disk tier /", "kv: 0 bytes in it"]);
    check("nothing").says(1, &["FINDING disk-tier-missing", "nothing is not there.", "nothing: it is not there"]);
    bench.write("file", "");
    check("file").says(1, &["FINDING disk-tier-missing", "file is no directory.", "file: it is no directory"]);
}

#[test]
fn a_directory_that_cannot_be_written_to() {
    let bench = Bench::serving(capture("vllm-0.33.0-no-offload")).unprivileged();
    let kv = bench.at("kv");
    let mode = |path: &std::path::Path, bits| fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
    mode(&bench.at(""), 0o755);
    mode(&kv, 0o555);
    let words = ["--path.disk-tier", kv.to_str().unwrap()];
    bench.check(&words).says(1, &["FINDING disk-tier-not-writable", "kv cannot be written to by this user."]);
    mode(&kv, 0o777);
    // Without rights of its own it runs on the machine's file system, of which nothing else is known.
    bench.check(&words).is_silent_about(&["disk-tier-not-writable"]);
}

#[test]
fn a_directory_on_a_network_mount() {
    let bench = Bench::serving(full());
    let kv = bench.at("kv");
    let words = ["--path.disk-tier", kv.to_str().unwrap()];
    bench.check(&words).says(0, &[FINE]);
    let local = "27 1 259:2 / / rw - ext4 /dev/nvme0n1p2 rw\n";
    bench.write("proc/self/mountinfo", &format!("{local}28 27 0:50 / {} rw - nfs4 filer:/kv rw\n", kv.display()));
    bench.check(&words).says(1, &["FINDING disk-tier-network-mount", "network mount (nfs4 at ", "local NVMe disk"]);
}

#[test]
fn a_disk_that_is_nearly_full() {
    let bench = |megabytes: u32| {
        let bench = Bench::serving(full()).mount("kv", "size=100m");
        let file = bench.at("kv/chunk");
        bench.prepare(format!("fallocate -l {megabytes}m {}", file.display()))
    };
    let check = |bench: Bench| bench.check(&["--path.disk-tier", bench.at("kv").to_str().unwrap()]);
    check(bench(97))
        .says(1, &["FINDING disk-tier-nearly-full", "has 3.0 MiB (3,145,728 bytes) of 100.0 MiB", "left, 3.0 %."]);
    check(bench(80)).says(0, &[FINE]);
}

#[test]
fn a_disk_that_runs_out_of_inodes() {
    let bench = |files: u32| {
        let bench = Bench::serving(full()).mount("kv", "size=100m,nr_inodes=50");
        let kv = bench.at("kv");
        bench.prepare(format!("for n in $(seq {files}); do : > {}/$n; done", kv.display()))
    };
    let check = |bench: Bench| bench.check(&["--path.disk-tier", bench.at("kv").to_str().unwrap()]);
    // The root directory takes one: 50 − 1 − 47 = 2.
    check(bench(47)).says(1, &["FINDING disk-tier-inodes-low", "has 2 of 50 inodes left, 4.0 %."]);
    check(bench(20)).says(0, &[FINE]);
}

/// A box whose disk tier of a gigabyte holds a file of so many megabytes.
fn disk_tier(page: String, megabytes: u32) -> Bench {
    let bench = Bench::serving(page).mount("kv", "size=1000m");
    let file = bench.at("kv/chunk");
    bench.prepare(format!("fallocate -l {megabytes}m {}", file.display()))
}

#[test]
fn a_directory_that_holds_more_than_the_tier_was_given() {
    let check = |megabytes, size: &str| {
        let bench = disk_tier(capture("lmcache-0.5.6-disk"), megabytes);
        let kv = bench.at("kv").display().to_string();
        bench.check(&["--path.disk-tier", &kv, "--tier.size", &format!("lmcache_disk={size}")])
    };
    check(300, "200MiB").says(
        1,
        &[
            "FINDING disk-tier-larger-than-declared",
            "holds 300.0 MiB (314,572,800 bytes); the disk tier has 200.0 MiB (209,715,200 bytes) (--tier.size)",
            "kv: 300.0 MiB in it",
        ],
    );
    check(200, "200MiB").is_silent_about(&["disk-tier-larger", "disk-too-small"]);
    // 300 MiB lie there and 700 are left.
    check(300, "1001MiB").says(1, &["FINDING disk-too-small", "takes 1001.0 MiB", "has 700.0 MiB"]);
    check(300, "1000MiB").is_silent_about(&["disk-tier-larger", "disk-too-small"]);
}

#[test]
fn the_size_in_lmcaches_own_configuration_counts_for_each_rank() {
    let bench = disk_tier(full(), 300);
    bench
        .write("lmcache.yaml", "local_cpu: false\nmax_local_cpu_size: 2\nlocal_disk: /kv\nmax_local_disk_size: 0.25\n");
    let (kv, file) = (bench.at("kv").display().to_string(), bench.at("lmcache.yaml").display().to_string());
    let words = ["--path.disk-tier", &kv, "--lmcache.config", &file];
    let said = bench.check(&words);
    said.says(1, &["FINDING disk-tier-larger-than-declared", "the disk tier has 256.0 MiB (268,435,456 bytes)"]);
    bench.check(&[&words[..], &["--engine.ranks=2"]].concat()).is_silent_about(&["disk-tier-larger"]);
}

#[test]
fn what_lmcache_believes_to_keep_on_disk_is_held_against_the_directory() {
    let check = |claimed: &str, megabytes| {
        let page = full() + &format!("lmcache:local_storage_usage{{model_name=\"m\",worker_id=\"0\"}} {claimed}\n");
        let bench = disk_tier(page, megabytes);
        let kv = bench.at("kv").display().to_string();
        bench.check(&["--path.disk-tier", &kv])
    };
    // 314,572,800 bytes are 300 MiB.
    check("314572800", 300).is_silent_about(&["lmcache-disk-usage"]);
    check("314572800", 340).is_silent_about(&["lmcache-disk-usage"]);
    let less = check("104857600", 300);
    less.says(
        1,
        &["FINDING lmcache-disk-usage-differs", "keeps 100.0 MiB (104,857,600 bytes) on disk", "earlier process"],
    );
    let more = check("629145600", 300);
    more.says(1, &["FINDING lmcache-disk-usage-differs", "holds 300.0 MiB (314,572,800 bytes)", "Writes failed"]);
}

#[test]
fn tokens_that_something_served_are_told_where_no_tier_shows_it() {
    let page = include_str!("pages/external-hits.prom");
    let said = Bench::serving(page).shm("70g").check(&[]);
    // 1.2 M of 3.0 M asked.
    said.says(
        1,
        &[
            "1.2 M tokens (1,200,000, 40.0 % of those that were asked for)",
            "were served by something that shows no tier",
            "Its fill and its copy speeds cannot be told.",
        ],
    );
    said.is_silent_about(&["whether it is used at all"]);
    let none = page.replace("kv_offloading_size=\"64.0\"", "kv_offloading_size=\"None\"");
    Bench::serving(none).check(&[]).says(0, &["remark tokens-served-by-no-tier", "1.2 M tokens"]);
    let idle = page.replace("1.2e+06", "0.0");
    let said = Bench::serving(idle).shm("70g").check(&[]);
    said.says(1, &["whether it is used at all cannot be told"]).is_silent_about(&["tokens-served"]);
}

#[test]
fn copies_to_a_place_that_is_not_known_are_told() {
    let said = Bench::serving(include_str!("pages/shared-storage.prom")).check(&[]);
    // 8e11 ÷ 2^30 = 745.06, 3e11 ÷ 2^30 = 279.40
    said.says(0, &["remark unknown-transfer-direction"]);
    said.says(
        0,
        &[
            "\"GPU_to_SHARED_STORAGE\" of engine \"0\" of model \"acme/m\"",
            "(745.1 GiB (800,000,000,000 bytes))",
            "279.4 GiB",
        ],
    );
    let other =
        full() + "vllm:kv_offload_total_bytes_total{engine=\"0\",model_name=\"m\",transfer_type=\"CPU_to_NVME\"} 5e9\n";
    Bench::serving(other).check(&[]).says(0, &["\"CPU_to_NVME\"", "(5,000,000,000 bytes)"]);
}

#[test]
fn what_the_running_exporter_has_notices_of_is_found() {
    // 100 of 60 prompt tokens computed: 1.67.
    let contradicts = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 60\n\
                       vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_compute\"} 100\n";
    Bench::serving(contradicts)
        .check(&[])
        .says(1, &["FINDING value-withheld", "kvtier_prefill_computed_ratio", "100 ("]);
    let odd = full() + "a{b=\"c\" 1\n";
    Bench::serving(odd).check(&[]).says(1, &["FINDING upstream-dropped-lines", "1 line in the last scrape"]);
    let typed = Bench::serving(full()).check(&["--tier.size=rma=32GiB"]);
    typed.says(1, &["FINDING tier-size-unused", "names tier \"rma\""]);
    let unsized_tier = Bench::serving(capture("vllm-0.32.0-offload-cpu-kvtransferconfig-full"));
    unsized_tier.check(&[]).says(1, &["FINDING gauge-not-corrected", "give it with --tier.size"]);
    unsized_tier.check(&["--tier.size=32GiB"]).is_silent_about(&["gauge-not-corrected"]);
    unsized_tier.check(&["--correct=off"]).is_silent_about(&["gauge-not-corrected"]);
    let twice = full() + "vllm:num_preemptions_total{engine=\"0\",model_name=\"Qwen3.8-27B-NVFP4\"} 123456\n";
    Bench::serving(twice)
        .check(&[])
        .says(1, &["FINDING facts-contradict", "vllm:num_preemptions_total has one series"]);
}

#[test]
fn lmcaches_own_page_is_no_router() {
    let said = Bench::serving(include_str!("pages/lmcache-lookups.prom")).check(&[]);
    said.says(0, &["remark upstream-is-lmcache", "6 metric names, 4 of them of LMCache", "--upstream.extra"]);
    said.is_silent_about(&["upstream-wrong-endpoint"]);
    Bench::serving(capture("lmcache-0.5.6-cpu")).check(&[]).says(0, &["remark upstream-is-lmcache"]);
    let engines = full() + "lmcache:num_lookup_tokens_total{model_name=\"Qwen3.8-27B-NVFP4\",worker_id=\"0\"} 5\n";
    Bench::serving(engines).check(&[]).says(0, &[FINE]);
}

#[test]
fn a_driver_that_hangs_is_unknown_and_holds_nothing_up() {
    let hangs = changed_memory("block");
    let begun = Instant::now();
    let said = Bench::serving(full()).driver(&hangs).check(&[]);
    said.says(0, &[FINE, "Not known", "gpu: no answer within 5s"]);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
}

#[test]
fn the_json_has_the_documented_keys_and_kinds() {
    let said = Bench::new().check(&["--format=json"]);
    assert_eq!(said.status, 1);
    let answer = said.json();
    let finding = json!({"id": "text", "severity": "text", "seen": "text", "why": "text", "do": "text"});
    let expected = json!({
        "command": "text", "version": "text", "upstream": "text",
        "looked_at": ["text"], "findings": [finding], "unknown": [],
    });
    assert_eq!(shape(&answer), expected);
    assert_eq!((&answer["command"], &answer["findings"][0]["severity"]), (&json!("check"), &json!("finding")));
    assert_eq!(answer["findings"][0]["id"], "upstream-unreachable");
    let fine = Bench::serving(full()).driver("init 9\n").check(&["--format=json"]);
    assert_eq!((fine.status, &fine.json()["findings"]), (0, &json!([])));
    assert!(fine.json()["unknown"][0].as_str().unwrap().starts_with("gpu: "));
}

#[test]
fn a_wrong_flag_ends_with_2_and_one_line() {
    for words in [&["--engines=0"][..], &["--format=xml"], &["--lmcache.url=gpu-1"], &["--tier.size=32"]] {
        let said = Bench::new().check(words);
        assert_eq!((said.status, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{}", said.err);
    }
}

/// A GPU that answers this about its memory.
fn changed_memory(answer: &str) -> String {
    let lines = gpu(GIB);
    let kept = lines.lines().filter(|line| !line.starts_with("gpu0.memory"));
    kept.chain([&*format!("gpu0.memory {answer}")]).map(|line| format!("{line}\n")).collect()
}
