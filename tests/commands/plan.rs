//! `plan`: the worked case, the refusals, and what a box cannot hold.

use serde_json::{Value, json};

use crate::bench::{Bench, GIB, Said, shape};

fn plan(bench: &Bench, words: &[&str]) -> Said {
    bench.run(&[&["plan"], words].concat())
}

const WORKED: [&str; 6] = ["--engine=vllm", "--ram=32GiB", "--bytes-per-token", "36166", "--gpu-pool-tokens", "235074"];

#[test]
fn the_worked_case() {
    let said = plan(&Bench::new(), &WORKED);
    // 34,359,738,368 ÷ 36,166 = 950,056.36…; ÷ 235,074 = 4.0415…; 16 lanes × 3.938 GB/s = 63.0 GB/s
    said.says(0, &["holds 950,056 tokens, 4.04 times the 235,074 tokens of the GPU pool"]);
    said.says(0, &["--kv-offloading-size 32 --kv-offloading-backend native", "No findings, no remarks."]);
    said.says(0, &["32.0 GiB (34,359,738,368 bytes) in /", "generation 5 with 16 lanes moves 63.0 GB/s"]);
    assert_eq!(said.err, "");
    let unknown = plan(&Bench::new(), &["--engine=vllm", "--ram=32GiB"]);
    unknown.says(0, &["an unknown number of tokens: give --bytes-per-token", "--kv-offloading-size 32"]);
}

#[test]
fn what_the_box_cannot_hold_is_a_finding_and_the_flags_come_all_the_same() {
    let figures = ["holds 950,056 tokens, 4.04 times", "--kv-offloading-size 32 --kv-offloading-backend native"];
    let small = plan(&Bench::new().shm("31g"), &WORKED);
    small.says(1, &figures).says(1, &["FINDING shm-smaller-than-tier", "has 31.0 GiB (33,285,996,544 bytes) in all"]);
    let container = plan(&Bench::new().shm("64m"), &WORKED);
    container.says(1, &figures).says(1, &["FINDING shm-container-default", "--shm-size"]);
    let two = plan(&Bench::new(), &[&WORKED[..], &["--engines=2"]].concat());
    two.says(1, &figures).says(1, &["tiers of 2 engines take 64.0 GiB (68,719,476,736 bytes) together"]);
    let poor = Bench::new();
    poor.memory(64 * GIB, 20 * GIB);
    plan(&poor, &WORKED).says(1, &figures).says(1, &["FINDING host-memory-too-small", "has 20.0 GiB"]);
    let little =
        plan(&Bench::new(), &["--engine=vllm", "--ram=4GiB", "--bytes-per-token=36166", "--gpu-pool-tokens=235074"]);
    // 4,294,967,296 ÷ 36,166 = 118,757.0…; ÷ 235,074 = 0.505…
    little.says(1, &["FINDING tier-smaller-than-gpu-pool", "118,757 tokens, 0.51 times", "--kv-offloading-size 4 "]);
}

#[test]
fn a_mount_as_large_as_the_tier_leaves_no_room_beside_it() {
    let on = |mount: &str| plan(&Bench::new().shm(mount), &WORKED);
    on("32g").says(1, &["FINDING shm-headroom-low", "will leave 0 bytes", "--kv-offloading-size 32"]);
    on("33000m").says(1, &["FINDING shm-headroom-low", "will leave 232.0 MiB"]);
    on("33500m").says(0, &["remark shm-headroom-low", "will leave 732.0 MiB"]);
    on("33g").says(0, &["No findings, no remarks."]);
    let full = Bench::new();
    let other = full.at("shm/other");
    let full = full.prepare(format!("fallocate -l 8g {}", other.display()));
    plan(&full, &WORKED).says(1, &["FINDING shm-headroom-low"]);
}

#[test]
fn without_a_size_a_box_that_is_too_small_is_told_so() {
    let said = plan(&Bench::new().shm("1500m"), &["--engine=vllm"]);
    said.says(0, &["remark no-size-given", "no RAM tier fits here"]);
    said.is_silent_about(&["--ram 32GiB", "--ram 0"]);
}

#[test]
fn unified_memory_refuses_ram_and_offers_disk() {
    let spark = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-bbbb\ngpu0.name NVIDIA GB10\ngpu0.memory !3\n";
    for (bench, words) in [(Bench::new().driver(spark), &[][..]), (Bench::new(), &["--gpu.unified"])] {
        let said = plan(&bench, &[&WORKED[..], words].concat());
        said.says(1, &["FINDING ram-refused-unified-memory", "950,056 tokens, 4.04 times", "refused", "--disk SIZE"]);
        said.is_silent_about(&["--kv-offloading-size", "kv-offloading-backend"]);
        let kv = bench.at("kv");
        let disk = plan(&bench, &[&["--engine=vllm", "--disk=1GiB", "--path", kv.to_str().unwrap()], words].concat());
        disk.says(
            0,
            &["remark ram-refused-unified-memory", "max_local_disk_size: 1.0", "the one memory that the GPU uses"],
        );
        disk.is_silent_about(&["--kv-offloading-size"]);
    }
}

#[test]
fn sglang_has_no_connector() {
    let said = plan(&Bench::new(), &["--engine=sglang", "--ram=32GiB"]);
    said.says(1, &["FINDING sglang-no-connector", "--enable-hierarchical-cache", "--hicache-size N"]);
    said.is_silent_about(&["--kv-offloading-size 32", "kv-transfer-config"]);
    plan(&Bench::new(), &["--engine=sglang"]).says(1, &["FINDING sglang-no-connector"]);
}

/// The text of the block whose heading starts so.
fn block(answer: &Value, what: &str) -> String {
    let mut blocks = answer["tiers"].as_array().unwrap().iter().flat_map(|tier| tier["launch"].as_array().unwrap());
    let found = blocks.find(|block| block["what"].as_str().unwrap().starts_with(what));
    found.unwrap_or_else(|| panic!("no block {what}: {answer}"))["text"].as_str().unwrap().to_owned()
}

fn transfer_config(text: &str) -> Value {
    let quoted = text.split_once("--kv-transfer-config '").unwrap().1;
    serde_json::from_str(quoted.trim_end().strip_suffix('\'').unwrap()).unwrap()
}

#[test]
fn a_disk_tier_is_written_down_so_that_it_starts() {
    let bench = Bench::new();
    let kv = bench.at("kv").display().to_string();
    let words = ["--engine=vllm", "--disk=1GiB", "--path", &kv, "--bytes-per-token=36166", "--gpu-pool-tokens=20000"];
    let said = plan(&bench, &[&words[..], &["--format=json"]].concat());
    // 1,073,741,824 ÷ 36,166 = 29,689.2
    assert_eq!((said.status, &said.json()["tiers"][0]["tokens"]), (0, &json!(29_689)));
    let yaml = block(&said.json(), "file");
    let value = |key: &str| {
        let line = yaml.lines().find_map(|line| line.strip_prefix(&format!("{key}: ")));
        line.unwrap_or_else(|| panic!("no {key} in\n{yaml}")).to_owned()
    };
    assert_eq!((value("chunk_size"), value("local_cpu")), ("256".into(), "false".into()));
    assert_eq!(value("local_disk"), format!("\"file://{kv}\""));
    // One request of 20,000 tokens (no longer than the pool) is 723 MB: one whole GiB.
    assert_eq!((value("max_local_cpu_size"), value("max_local_disk_size")), ("1.0".into(), "1.0".into()));

    let shell = block(&said.json(), "environment");
    assert!(shell.contains("export PROMETHEUS_MULTIPROC_DIR=/") && shell.contains("export LMCACHE_CONFIG_FILE="));
    assert_eq!(transfer_config(&shell), json!({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}));
    let fs = transfer_config(&block(&said.json(), "or, from vLLM 0.28 on"));
    let extra = json!({
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": 1_073_741_824_u64,
        "secondary_tiers": [{"type": "fs", "root_dir": kv}],
    });
    assert_eq!((&fs["kv_connector"], &fs["kv_connector_extra_config"]), (&json!("OffloadingConnector"), &extra));

    // The file that was printed passes check.
    let file = bench.at("lmcache.yaml");
    std::fs::write(&file, &yaml).unwrap();
    bench.check(&["--lmcache.config", file.to_str().unwrap()]).is_silent_about(&["lmcache-"]);
}

#[test]
fn two_ranks_share_the_disk_and_the_staging() {
    let bench = Bench::new();
    let kv = bench.at("kv").display().to_string();
    let words = ["--engine=vllm", "--disk=1GiB", "--path", &kv, "--bytes-per-token=100000", "--engine.ranks=2"];
    let said = plan(&bench, &words);
    // 32,768 tokens × 100,000 ÷ 2 = 1.53 GiB, so 2 GiB each and 4 GiB together.
    said.says(0, &["max_local_disk_size: 0.5", "max_local_cpu_size: 2.0", "4.0 GiB per engine as staging"]);
    let longer = plan(&bench, &[&words[..], &["--request-tokens=131072"]].concat());
    // 131,072 × 100,000 ÷ 2 = 6.1 GiB.
    longer.says(0, &["max_local_cpu_size: 7.0"]);
}

/// What a disk tier stages is memory like that of a RAM tier, and has to fit by the same rules.
#[test]
fn what_a_disk_tier_stages_has_to_fit_into_memory() {
    let words = |bench: &Bench, more: &[&str]| {
        let kv = bench.at("kv").display().to_string();
        plan(bench, &[&["--engine=vllm", "--disk=10GiB", "--path", &kv], more].concat())
    };
    // LMCache's own 5 GiB, as a RAM tier of 5 GiB.
    let small = Bench::new().shm("1g");
    let staged = "What the disk tier stages takes 5.0 GiB (5,368,709,120 bytes)";
    words(&small, &[])
        .says(1, &["cpu_bytes_to_use\":5368709120", "FINDING shm-smaller-than-tier", staged, "--request-tokens"]);
    plan(&small, &["--engine=vllm", "--ram=5GiB"]).says(1, &["FINDING shm-smaller-than-tier"]);
    words(&Bench::new().shm("5100m"), &[]).says(1, &["FINDING shm-smaller-than-tier", "5,368,709,120"]);
    // 5,220 MiB less 5,120.
    words(&Bench::new().shm("5220m"), &[]).says(1, &["FINDING shm-headroom-low", "leave 100.0 MiB"]);
    words(&Bench::new().shm("6g"), &[]).says(0, &["No findings"]);
    words(&Bench::new().shm("6g"), &["--engines=2"])
        .says(1, &["disk tiers of 2 engines stage takes 10.0 GiB (10,737,418,240 bytes) together"]);
    let poor = Bench::new();
    poor.memory(64 * GIB, 4 * GIB);
    words(&poor, &[]).says(1, &["FINDING host-memory-too-small", staged, "has 4.0 GiB"]);
    // Beside a RAM tier that is offered, it is that one which stages.
    let both = words(&Bench::new().shm("1g"), &["--ram=6GiB"]);
    both.says(1, &["FINDING shm-smaller-than-tier", "The RAM tier takes 6.0 GiB"]).is_silent_about(&["stages takes"]);
    // A RAM tier of 4 GiB has just enough, and what LMCache stages has not.
    words(&poor, &["--ram=4GiB"]).says(1, &["FINDING host-memory-too-small", staged]);
}

#[test]
fn free_space_and_inodes_bound_the_disk() {
    let bench = Bench::new().mount("kv", "size=100m,nr_inodes=50");
    let kv = bench.at("kv").display().to_string();
    let disk = |size: &str| plan(&bench, &["--engine=vllm", "--disk", size, "--path", &kv, "--bytes-per-token=4096"]);
    let said = disk("200MiB");
    said.says(
        1,
        &["FINDING disk-too-small", "takes 200.0 MiB (209,715,200 bytes)", "has 100.0 MiB (104,857,600 bytes) left"],
    );
    // 200 MiB ÷ 4 KiB = 51,200 tokens = 200 chunks; the root directory has one inode.
    said.says(
        1,
        &["FINDING disk-inodes-too-few", "makes 200 files of 256 tokens; 49 inodes are left", "max_local_disk_size"],
    );
    disk("40MiB").says(0, &["No findings, no remarks."]);
    let missing = plan(&bench, &["--engine=vllm", "--disk=1MiB", "--path", &format!("{kv}/new")]);
    missing.says(0, &["remark disk-tier-missing", "and write its path as this program sees it"]);
    missing.is_silent_about(&["--path.disk-tier"]);
}

#[test]
fn without_a_size_the_most_that_fits_is_told() {
    let said = plan(&Bench::new(), &["--engine=vllm", "--engines=2"]);
    // Shared memory of 40 GiB is the nearest wall; less 1 GiB beside the tiers: 19.5 GiB for each of two.
    said.says(0, &["remark no-size-given", "leave 40.0 GiB", "19 GiB for each of 2 engines", "--ram 19GiB"]);
    plan(&Bench::new(), &["--engine=vllm"]).says(0, &["a RAM tier can take 39 GiB for the engine here"]);
}

#[test]
fn ram_and_disk_together_are_two_connectors() {
    let bench = Bench::new();
    let kv = bench.at("kv").display().to_string();
    let said = plan(&bench, &["--engine=vllm", "--ram=8GiB", "--disk=1GiB", "--path", &kv, "--format=json"]);
    assert_eq!((said.status, &said.json()["findings"][0]["id"]), (0, &json!("two-connectors")));
    let fs = transfer_config(&block(&said.json(), "or, from vLLM 0.28 on"));
    assert_eq!(fs["kv_connector_extra_config"]["cpu_bytes_to_use"], 8_589_934_592_u64);
}

#[test]
fn the_json_has_the_documented_keys_and_kinds() {
    let said = plan(&Bench::new().shm("31g"), &[&WORKED[..], &["--format=json"]].concat());
    let finding = json!({"id": "text", "severity": "text", "seen": "text", "why": "text", "do": "text"});
    let tier = json!({
        "tier": "text", "offered": "truth", "size_bytes": "number", "total_bytes": "number", "tokens": "number",
        "gpu_pool_multiple": "number", "costs": ["text"], "launch": [{"what": "text", "text": "text"}],
    });
    let expected = json!({
        "command": "text", "version": "text", "engine": "text", "engines": "number", "ranks": "number",
        "tiers": [tier], "findings": [finding], "unknown": [],
    });
    let answer = said.json();
    assert_eq!(shape(&answer), expected);
    let ram = &answer["tiers"][0];
    assert_eq!((&ram["tokens"], &ram["size_bytes"]), (&json!(950_056), &json!(34_359_738_368_u64)));
    assert!((ram["gpu_pool_multiple"].as_f64().unwrap() - 4.041_52).abs() < 1e-5);
    assert_eq!((said.status, &answer["engine"], &ram["offered"]), (1, &json!("vllm"), &json!(true)));
    let unknown = plan(&Bench::new(), &["--engine=vllm", "--ram=1GiB", "--format=json"]).json();
    assert!(unknown["tiers"][0]["tokens"].is_null() && unknown["tiers"][0]["gpu_pool_multiple"].is_null());
}

#[test]
fn a_wish_that_is_incomplete_ends_with_2() {
    for words in
        [&["--ram=32GiB"][..], &["--engine=vllm", "--disk=1GiB"], &["--engine=tgi"], &["--engine=vllm", "--ram=32"]]
    {
        let said = plan(&Bench::new(), words);
        assert_eq!((said.status, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{}", said.err);
    }
}
