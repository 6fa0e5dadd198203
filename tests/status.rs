//! `/api/status` of the whole program: its form against the document, its values against pages whose numbers were
//! worked out by hand, and what it says of what is not known.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "no test crate uses or exports all of it")]

#[path = "support/nvml.rs"]
mod nvml;
#[path = "support/program/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};
use support::client::get_aside;
use support::exporter::{Exporter, command};
use support::until;
use support::upstream::{Gate, Step, Upstream, ok, response};
use tempfile::TempDir;

const GIB: f64 = 1_073_741_824.0;

/// Something of everything: the figures measured on the first box that had a tier, and a disk tier behind it.
const WORKED: &str = r#"
vllm:prompt_tokens_total{engine="0",model_name="acme/m"} 1000000
vllm:prompt_tokens_by_source_total{engine="0",model_name="acme/m",source="local_compute"} 120000
vllm:prompt_tokens_by_source_total{engine="0",model_name="acme/m",source="local_cache_hit"} 300000
vllm:prompt_tokens_by_source_total{engine="0",model_name="acme/m",source="external_kv_transfer"} 580000
vllm:prompt_tokens_cached_by_source_total{engine="0",model_name="acme/m",source="host"} 580000
vllm:request_prefill_time_seconds_sum{engine="0",model_name="acme/m"} 240
vllm:request_prefill_kv_computed_tokens_sum{engine="0",model_name="acme/m"} 120000
vllm:kv_cache_usage_perc{engine="0",model_name="acme/m"} 0.97
vllm:cache_config_info{engine="0",block_size="16",kv_cache_size_tokens="235074",kv_offloading_size="16",kv_offloading_backend="native"} 1
vllm:kv_offload_store_bytes_total{engine="0",model_name="acme/m"} 98400000000
vllm:kv_offload_store_time_total{engine="0",model_name="acme/m"} 7.5
vllm:kv_offload_load_bytes_total{engine="0",model_name="acme/m"} 501437431808
vllm:kv_offload_load_time_total{engine="0",model_name="acme/m"} 37.5
vllm:kv_offload_cpu_cache_usage_perc{engine="0",model_name="acme/m"} 0.0
vllm:kv_offload_tiering_write_bytes_total{engine="0",model_name="acme/m",tier="1:fs"} 98400000000
vllm:kv_offload_tiering_read_bytes_total{engine="0",model_name="acme/m",tier="1:fs"} 1000000000
http_requests_total{handler="/reset_prefix_cache",method="POST",status="2xx"} 1
not a line of text
"#;

const CARD: &str = "\
driver 580.95.05
count 1
gpu0.uuid GPU-aaaa
gpu0.name NVIDIA GeForce RTX 5090
gpu0.memory 34190917632 32505856000 706740224 978321408
gpu0.link 5 5 16 16
";

/// A box with a card, a memory limit, a tier file that nobody maps, and a disk tier beside one that is gone.
struct Machine(TempDir);

impl Machine {
    fn new() -> Machine {
        let root = tempfile::tempdir().unwrap();
        nvml::Stub::build(root.path(), &[], CARD);
        for folder in ["proc/self", "shm", "kv", "engine.slice"] {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let write = |path: &str, text: &str| fs::write(root.path().join(path), text).unwrap();
        write("proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 250 kB\nShmem: 10 kB\n");
        write("proc/self/mountinfo", "1 0 8:1 / / rw - ext4 /dev/sda rw\n");
        write("engine.slice/memory.max", "3072\n");
        write("engine.slice/memory.current", "2048\n");
        write("shm/vllm_offload_abc.mmap", &"x".repeat(4096));
        write("kv/chunk", &"x".repeat(8192));
        Machine(root)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn flags(&self) -> Vec<String> {
        let collectors = ["shm", "memory", "gpu", "disk"].map(|name| format!("--collector.{name}"));
        let paths = [
            format!("--path.procfs={}", self.path("proc")),
            format!("--path.shm={}", self.path("shm")),
            format!("--path.cgroup={}", self.path("engine.slice")),
            format!("--path.disk-tier={},{}", self.path("kv"), self.path("gone")),
            format!("--nvml.library={}", nvml::Stub::path_in(self.0.path()).display()),
        ];
        let engine = ["--tier.size=32GiB", "--kv.bytes-per-token=36166", "--engine.ranks=1"].map(str::to_owned);
        collectors.into_iter().chain(paths).chain(engine).collect()
    }
}

/// The exporter in front of a page.
fn in_front_of(page: impl Into<String>, flags: &[&str]) -> (Upstream, Exporter) {
    let page = page.into();
    let upstream = Upstream::start(move |_| vec![ok(&page)]);
    let exporter = Exporter::start(&upstream.url(), flags);
    (upstream, exporter)
}

fn status(exporter: &Exporter) -> Value {
    let answer = exporter.get("/api/status");
    assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    serde_json::from_str(&answer.body).unwrap()
}

/// The worked page on the worked box, once all collectors have run.
fn worked() -> Value {
    let (root, upstream) = (Machine::new(), Upstream::start(|_| vec![ok(WORKED)]));
    let flags = root.flags();
    let exporter = Exporter::start(&upstream.url(), &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let mut last = Value::Null;
    until("all collectors have run", || {
        last = status(&exporter);
        let collectors = last["host"]["collectors"].as_array().unwrap();
        let scanned = last["host"]["disk_tiers"][0]["tier_bytes"].is_number();
        scanned && collectors.iter().all(|collector| collector["success"] == true)
    });
    last
}

fn close(value: &Value, to: f64) {
    let value = value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    assert!((value - to).abs() <= to.abs() * 1e-12, "{value} is not {to}");
}

// Values.

#[test]
fn the_worked_case() {
    let status = worked();
    assert_eq!(status["schema"], 1);
    assert_eq!(status["exporter"]["corrections_on"], true);
    let upstream = &status["upstreams"][0];
    assert_eq!((&upstream["up"], &upstream["engine_kind"]), (&json!(true), &json!("vllm")));
    assert_eq!((&upstream["samples"], &upstream["dropped_lines"]), (&json!(17), &json!(1)));
    assert_eq!(upstream["body_bytes"], WORKED.len());
    assert!(upstream["reason"].is_null() && upstream["message"].is_null());

    assert_eq!(status["engines"].as_array().unwrap().len(), 1);
    let engine = &status["engines"][0];
    assert_eq!((&engine["model_name"], &engine["engine"]), (&json!("acme/m"), &json!("0")));
    assert_eq!(engine["gpu_pool"], json!({"size_tokens": 235_074.0, "used_ratio": 0.97}));
    assert_eq!(
        (&engine["kv_bytes_per_token"], &engine["kv_bytes_per_token_method"]),
        (&json!(36_166.0), &json!("flag"))
    );
    let tokens = |source: &str, tokens: f64| json!({"source": source, "tokens_total": tokens});
    assert_eq!(
        engine["prompt_tokens"],
        json!([tokens("computed", 120e3), tokens("external", 580e3), tokens("gpu_cache", 300e3)])
    );
    assert_eq!(engine["tier_served_tokens"], json!([tokens("ram", 580e3)]));
    close(&engine["prefill_computed_ratio"], 0.12);
    close(&engine["prefill_seconds_per_token"], 0.002);
    close(&engine["reload_seconds_per_token"], 37.5 / 580e3);
    assert!(engine["reset_evidence"][0].as_str().unwrap().contains("/reset_prefix_cache"));
}

#[test]
fn tiers_of_the_worked_case() {
    let status = worked();
    let [ram, disk] = status["engines"][0]["tiers"].as_array().unwrap().as_slice() else { panic!("{status}") };
    assert_eq!((&ram["tier"], &ram["medium"], &disk["tier"]), (&json!("ram"), &json!("ram"), &json!("1:fs")));
    assert_eq!((&ram["size_bytes"], &ram["size_source"]), (&json!(32.0 * GIB), &json!("flag")));
    // The engine says 16 GiB.
    assert_eq!(ram["size_mismatch"], true);
    // 34359738368 ÷ 36166 = 950056.36
    assert_eq!(ram["size_tokens"], 950_056.0);
    // 98.4 GB stored and 1 GB promoted are more than 32 GiB.
    let fill = &ram["fill"];
    assert_eq!(
        (&fill["kind"], &fill["bytes"], &fill["ratio"]),
        (&json!("upper_bound"), &json!(32.0 * GIB), &json!(1.0))
    );
    let term = |term: &str, bytes: f64| json!({"term": term, "bytes": bytes});
    assert_eq!(fill["terms"], json!([term("stored", 98.4e9), term("promoted", 1e9)]));
    assert_eq!(ram["pinned_ratio"], 0.0);
    assert_eq!((&ram["stored_bytes_total"], &ram["reloaded_bytes_total"]), (&json!(98.4e9), &json!(467.0 * GIB)));
    assert_eq!((&ram["store_seconds_total"], &ram["reload_seconds_total"]), (&json!(7.5), &json!(37.5)));
    // 98.4 ÷ 7.5 = 13.12 and 501.437431808 ÷ 37.5 = 13.371664848…
    close(&ram["store_speed_bytes_per_second"], 13.12e9);
    close(&ram["reload_speed_bytes_per_second"], 501_437_431_808.0 / 37.5);
    assert_eq!(disk["fill"]["kind"], "unknown");
    assert!(disk["fill"]["ratio"].is_null() && disk["size_bytes"].is_null() && disk["pinned_ratio"].is_null());
    assert_eq!((&disk["stored_bytes_total"], &disk["reloaded_bytes_total"]), (&json!(98.4e9), &json!(1e9)));
}

#[test]
fn a_correction_says_who_measured() {
    let tier = |what, value| format!("vllm:kv_offload_cpu_cache_{what}{{engine=\"0\",model_name=\"m\"}} {value}\n");
    let page = tier("usage_perc", "0.0") + &tier("occupied_bytes", "25") + &tier("capacity_bytes", "100");
    let (_upstream, fork) = in_front_of(page, &[]);
    let correction = |exporter: &Exporter| status(exporter)["engines"][0]["corrections"][0].clone();
    let by_the_engine = correction(&fork);
    assert_eq!(by_the_engine["rule"], "measured by the engine");
    assert_eq!((&by_the_engine["after_ratio"], &by_the_engine["after_is_upper_bound"]), (&json!(0.25), &json!(false)));
    let demo = Exporter::spawn(&mut command(&["--web.listen-address=127.0.0.1:0", "demo"]));
    until("the demo's events tell", || correction(&demo)["rule"] == "measured from the engine's KV cache events");
}

#[test]
fn the_correction_of_the_worked_case_says_before_after_and_why() {
    let status = worked();
    let [one] = status["engines"][0]["corrections"].as_array().unwrap().as_slice() else { panic!("{status}") };
    assert_eq!(one["family"], "vllm:kv_offload_cpu_cache_usage_perc");
    assert_eq!((&one["before_ratio"], &one["after_ratio"]), (&json!(0.0), &json!(1.0)));
    assert_eq!((&one["after_is_upper_bound"], &one["rule"]), (&json!(true), &json!("min(size, stored + promoted)")));
    assert!(one["because"].as_str().unwrap().contains("pinned by copies in flight"));
    assert!(one["not_corrected_because"].is_null());
}

#[test]
fn the_box_of_the_worked_case() {
    let status = worked();
    let host = &status["host"];
    assert_eq!(
        host["gpus"],
        json!([{
            "gpu": "0", "uuid": "GPU-aaaa", "name": "NVIDIA GeForce RTX 5090",
            "unified_memory": false, "memory_source": "nvml",
            "memory_total_bytes": 34_190_917_632.0, "memory_used_bytes": 32_505_856_000.0, "memory_free_bytes": 706_740_224.0,
        }])
    );
    assert_eq!(
        host["memory"],
        json!({"total_bytes": 1_024_000.0, "available_bytes": 256_000.0, "free_bytes": 102_400.0, "shared_bytes": 10_240.0})
    );
    let shm = &host["shm"][0];
    // 3072 − 2048: the cgroup is tighter than any disk.
    assert_eq!((&shm["headroom_bytes"], &shm["headroom_limiter"]), (&json!(1024.0), &json!("cgroup")));
    // This tree shows no kernel threads, so a process that maps the file may be out of sight.
    let unsure = shm["tier_files"].as_array().unwrap().iter().find(|files| files["state"] == "unknown").unwrap();
    assert_eq!((&unsure["files"], &unsure["bytes"]), (&json!(1.0), &json!(4096.0)));
    let disk = &host["disk_tiers"][0];
    assert!(disk["path"].as_str().unwrap().ends_with("/kv") && disk["available_bytes"].is_number());
    assert_eq!((&disk["tier_bytes"], &disk["tier_files"]), (&json!(8192.0), &json!(1.0)));
    let collectors = host["collectors"].as_array().unwrap();
    let disk = collectors.iter().find(|collector| collector["name"] == "disk").unwrap();
    assert!(disk["notes"][0].as_str().unwrap().contains("/gone"));
}

#[test]
fn what_is_not_known_is_null_and_says_why() {
    let page = WORKED.replace(",kv_offloading_size=\"16\",kv_offloading_backend=\"native\"", "");
    let (_upstream, exporter) = in_front_of(page, &[]);
    let status = status(&exporter);
    let engine = &status["engines"][0];
    let ram = &engine["tiers"][0];
    assert!(ram["size_bytes"].is_null() && ram["size_source"].is_null() && ram["size_mismatch"].is_null());
    assert!(ram["fill"]["bytes"].is_null() && ram["fill"]["ratio"].is_null());
    assert_eq!(ram["fill"]["kind"], "unknown");
    assert!(ram["fill"]["unknown_because"].as_str().unwrap().contains("--tier.size"));
    // The raw gauge is known all the same.
    assert_eq!(ram["pinned_ratio"], 0.0);
    let one = &engine["corrections"][0];
    assert!(one["after_ratio"].is_null() && one["rule"].is_null() && one["after_is_upper_bound"].is_null());
    assert!(one["not_corrected_because"].as_str().unwrap().contains("--tier.size"));
    // The number of ranks is not known either.
    assert!(engine["reload_seconds_per_token"].is_null());
    assert_eq!(status["host"]["gpus"], json!([]));
    assert!(status["host"]["memory"]["free_bytes"].is_null());
}

#[test]
fn corrections_that_are_off_are_told() {
    let (_upstream, exporter) = in_front_of(WORKED, &["--correct=off"]);
    let status = status(&exporter);
    assert_eq!(status["exporter"]["corrections_on"], false);
    let one = &status["engines"][0]["corrections"][0];
    assert!(one["not_corrected_because"].as_str().unwrap().contains("--correct=off"));
    assert_eq!(status["engines"][0]["tiers"][0]["fill"]["ratio"], 1.0);
}

#[test]
fn an_upstream_that_is_down_is_told_with_its_reason() {
    let upstream = Upstream::start(|_| vec![response("503 Service Unavailable", &[], "<b>busy</b>")]);
    let exporter = Exporter::start(&upstream.url(), &["--strict"]);
    let status = status(&exporter);
    let down = &status["upstreams"][0];
    assert_eq!((&down["up"], &down["reason"]), (&json!(false), &json!("status")));
    // What was seen, and what to do about it.
    let message = down["message"].as_str().unwrap();
    assert!(
        message.starts_with("The upstream answered with status 503. ") && message.contains("still loading"),
        "{message}"
    );
    assert_eq!(down["excerpt"], "<b>busy</b>");
    assert!(down["age_seconds"].is_null() && down["samples"].is_null() && down["body_bytes"].is_null());
    assert_eq!(status["engines"], json!([]));
}

#[test]
fn a_hostile_model_name_arrives_as_it_is() {
    let name = r#"<script>alert(1)</script>"&'"#;
    let page = WORKED.replace("acme/m", &name.replace('"', "\\\""));
    let (_upstream, exporter) = in_front_of(page, &[]);
    assert_eq!(status(&exporter)["engines"][0]["model_name"], name);
}

#[test]
fn a_status_and_a_scrape_at_once_are_one_fetch() {
    let gate = Gate::default();
    let shut = gate.clone();
    let upstream = Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(WORKED)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let scrape = get_aside(exporter.address, "/metrics", &[]);
    until("the fetch is under way", || upstream.requests().len() == 1);
    let asked = get_aside(exporter.address, "/api/status", &[]);
    // The program has one thread: when it answers these, it has seen what came before.
    for _ in 0..2 {
        assert_eq!(exporter.get("/-/healthy").status, 200);
    }
    gate.open();
    assert!(scrape.join().unwrap().body.contains("kvtier_upstream_up{upstream=\"main\"} 1"));
    assert!(asked.join().unwrap().body.contains("\"up\":true"));
    assert_eq!(upstream.requests().len(), 1);
}

// The form.

/// Each field of a value with the types seen there; an element of a list is written `[]`.
fn fields(value: &Value, path: &str, into: &mut BTreeMap<String, Vec<&'static str>>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let dot = if path.is_empty() { "" } else { "." };
                fields(value, &format!("{path}{dot}{name}"), into);
            }
        }
        Value::Array(list) => list.iter().for_each(|value| fields(value, &format!("{path}[]"), into)),
        Value::Null => into.entry(path.to_owned()).or_default().push("null"),
        Value::Bool(_) => into.entry(path.to_owned()).or_default().push("boolean"),
        Value::Number(_) => into.entry(path.to_owned()).or_default().push("number"),
        Value::String(_) => into.entry(path.to_owned()).or_default().push("string"),
    }
}

/// The rows of the document: field and type.
fn documented() -> BTreeMap<String, String> {
    let document = include_str!("../docs/status-api.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    rows.map(|(field, rest)| (field.to_owned(), rest.split_once(" |").unwrap().0.to_owned())).collect()
}

#[test]
fn the_form_is_the_documented_one() {
    let lmcache =
        ["0", "1"].map(|engine| format!("vllm:prompt_tokens_total{{engine=\"{engine}\",model_name=\"m\"}} 1\n"));
    let lmcache =
        lmcache.concat() + "lmcache:local_storage_usage{model_name=\"m\",role=\"worker\",worker_id=\"0\"} 1\n";
    let (_upstream, odd) = in_front_of(lmcache, &["--collector.memory", "--path.procfs=/nowhere"]);
    let down = Upstream::start(|_| vec![response("503 Service Unavailable", &[], "busy")]);
    let down = Exporter::start(&down.url(), &[]);
    until("the collector has failed", || status(&odd)["host"]["collectors"][0]["failure"].is_string());
    let box_of = tempfile::tempdir().unwrap();
    let lost = nvml::Stub::build(box_of.path(), &[], &format!("{CARD}gpu0.handle 15\n"));
    let library = format!("--nvml.library={}", lost.library().display());
    let (_upstream, unsized_tier) =
        in_front_of(WORKED.replace("kv_offloading_size", "x"), &["--collector.gpu", &library]);
    until("the GPU is missed", || status(&unsized_tier)["host"]["gpus_unreadable"][0].is_string());

    // Two pods, and series of one that nothing tells apart.
    let pods = [("a", ""), ("a", ",numa=\"1\""), ("b", "")].map(|(pod, odd)| {
        format!(
            "vllm:prompt_tokens_total{{engine=\"0\",model_name=\"m\",pod=\"{pod}\"}} 1\n\
                 vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\",pod=\"{pod}\"{odd}}} 1\n"
        )
    });
    let (_upstream, pods) = in_front_of(pods.concat(), &[]);

    // The demo publishes its events; what it predicts comes and goes while its window is short.
    let demo = Exporter::spawn(&mut command(&["--web.listen-address=127.0.0.1:0", "demo"]));
    let mut predicting = Value::Null;
    until("the demo tells of other sizes", || {
        predicting = status(&demo);
        predicting["engines"][0]["events"]["sizes"][0].is_object()
    });

    let mut seen = BTreeMap::new();
    for one in [worked(), status(&odd), status(&down), status(&unsized_tier), status(&pods), predicting] {
        fields(&one, "", &mut seen);
    }
    let documented = documented();
    let undocumented: Vec<_> = seen.keys().filter(|field| !documented.contains_key(*field)).collect();
    let unseen: Vec<_> = documented.keys().filter(|field| !seen.contains_key(*field)).collect();
    assert!(undocumented.is_empty() && unseen.is_empty(), "not documented: {undocumented:?}, not served: {unseen:?}");
    for (field, kinds) in seen {
        let allowed: Vec<_> = documented[&field].split(" or ").collect();
        assert!(kinds.iter().all(|kind| allowed.contains(kind)), "{field} is {allowed:?}, seen {kinds:?}");
    }
}
