//! `report`: from one page, from two, and from the history in a real Prometheus. Expected values are worked out by
//! hand beside them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::bench::{Bench, MIB, Said, capture, full, gpu, replaced, shape};
use crate::history::History;
use crate::program::upstream::{Upstream, ok};

fn report(bench: &Bench, words: &[&str]) -> Said {
    bench.run(&[&["report"], words].concat())
}

/// The values of a row.
fn row(answer: &Value, id: &str, of: Option<&str>) -> Vec<Option<f64>> {
    let of = of.map_or(Value::Null, Into::into);
    let rows = answer["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["id"] == id && row["of"] == of);
    let found = found.unwrap_or_else(|| panic!("no row {id} of {of}: {answer}"));
    found["values"].as_array().unwrap().iter().map(Value::as_f64).collect()
}

fn assert_near(values: &[Option<f64>], expected: &[Option<f64>]) {
    assert_eq!(values.len(), expected.len());
    for (value, expected) in values.iter().zip(expected) {
        let near = match (value, expected) {
            (Some(value), Some(expected)) => (value - expected).abs() <= 1e-6 * expected.abs().max(1.0),
            (value, expected) => value == expected,
        };
        assert!(near, "{values:?}, expected {expected:?}");
    }
}

#[test]
fn a_share_that_can_be_none_is_left_out_and_said() {
    // 3,000 computed of 2,000 prompted.
    let page = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 2000\n\
                vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_compute\"} 3000\n";
    let said = report(&Bench::serving(page), &[]);
    said.says(
        0,
        &["prompt tokens 2,000", "prompt tokens computed by prefill would be 1.5; the page contradicts itself"],
    );
    assert!(!said.out.contains("150.0 %"), "{}", said.out);
}

#[test]
fn since_engine_start_from_one_page() {
    let said = report(&Bench::serving(full()).driver(&gpu(674 * MIB)), &[]);
    // 2,040,000 ÷ 17,000,000; 501,437,431,808 B ÷ 2^30 and ÷ 37.4207 s; 98.4e9 B and ÷ 7.51145 s.
    // Half of 2,000 steps lies between 830 at 25 ms and 2,000 at 50 ms: 25 + 25 × 170 ÷ 1,170 = 28.6325 ms.
    said.says(
        0,
        &[
            "since engine start prompt tokens computed by prefill 12.0 %",
            "prompt tokens 17,000,000",
            "decode per stream, p50 34.9 tok/s",
            "reloaded, ram 467.0 GiB",
            "stored, ram 91.6 GiB",
            "copy speed, reload, ram 13.4 GB/s",
            "copy speed, store, ram 13.1 GB/s",
            "GPU memory free 674.0 MiB",
            "preemptions 12",
            "tier fill, at most, ram 100.0 %",
            "prompt tokens served, ram 7,651,328",
        ],
    );
    assert_eq!(said.err, "");
    let markdown = report(&Bench::serving(full()), &["--format=markdown"]);
    markdown.says(0, &["| | since engine start | |---|---:|", "| copy speed, reload, ram | 13.4 GB/s |"]);
}

#[test]
fn a_median_below_the_first_bucket_is_called_a_guess() {
    let bucket = |le: &str, count: &str| {
        format!(
            "vllm:inter_token_latency_seconds_bucket{{engine=\"0\",le=\"{le}\",model_name=\"Qwen3.8-27B-NVFP4\"}} {count}"
        )
    };
    let fast = replaced(&full(), &bucket("0.01", "105.0"), &bucket("0.01", "1600.0"));
    let fast = replaced(&fast, &bucket("0.025", "830.0"), &bucket("0.025", "1900.0"));
    // 10 ms × 1,000 ÷ 1,600 = 6.25 ms.
    let said = report(&Bench::serving(fast), &[]);
    said.says(0, &["decode per stream, p50 160.0 tok/s", "shorter than 10 ms, the first bucket", "a guess"]);
    report(&Bench::serving(full()), &[]).is_silent_about(&["a guess"]);
}

const MODEL: &str = "engine=\"0\",model_name=\"Qwen3.8-27B-NVFP4\"";

#[test]
fn between_two_pages() {
    let first = full();
    let counter = |name: &str, labels: &str| format!("vllm:{name}{{{MODEL}{labels}}} ");
    let mut second = first.clone();
    for (name, labels, from, to) in [
        ("prompt_tokens_total", "", "1.7e+07", "1.7001e+07"),
        ("prompt_tokens_by_source_total", ",source=\"local_compute\"", "2.04e+06", "2.04025e+06"),
        ("kv_offload_load_bytes_total", "", "5.01437431808e+11", "5.02437431808e+11"),
        ("kv_offload_load_time_total", "", "37.42070386626866", "37.52070386626866"),
        ("num_preemptions_total", "", "12.0", "15.0"),
    ] {
        let start = counter(name, labels);
        second = replaced(&second, &format!("{start}{from}"), &format!("{start}{to}"));
    }
    let (one, two) = (first.clone(), second.clone());
    let bench = Bench::new().upstream(move |request| vec![ok(if request.number == 1 { &one } else { &two })]);
    let said = report(&bench, &["--interval=1s", "--format=json"]);
    let answer = said.json();
    // 250 of 1,000 tokens; 1e9 bytes in 0.1 s; 15 − 12; nothing stored and no step in between.
    assert_near(&row(&answer, "prefill_computed_ratio", None), &[Some(0.25)]);
    assert_near(&row(&answer, "prompt_tokens", None), &[Some(1000.0)]);
    assert_near(&row(&answer, "reloaded_bytes", Some("ram")), &[Some(1e9)]);
    assert_near(&row(&answer, "stored_bytes", Some("ram")), &[Some(0.0)]);
    assert_near(&row(&answer, "reload_speed_bytes_per_second", Some("ram")), &[Some(1e10)]);
    assert_near(&row(&answer, "preemptions", None), &[Some(3.0)]);
    assert_near(&row(&answer, "decode_tokens_per_second_p50", None), &[None]);
    assert_eq!((said.status, &answer["columns"][0]["name"], said.err.as_str()), (0, &json!("in 1s"), ""));

    let restarted = Bench::new().upstream(move |request| vec![ok(if request.number == 1 { &second } else { &first })]);
    let said = report(&restarted, &["--interval=1s"]);
    said.says(1, &["No data: the counters of engine \"0\" of \"Qwen3.8-27B-NVFP4\" fell", "restarted", "replicas"]);
    report(&Bench::serving(full()), &["--interval=1s"]).says(1, &["No data: nothing was served", "in 1s"]);
}

/// What an address answers that serves two pages in turn.
fn in_turn(first: String, second: String) -> Bench {
    Bench::new().upstream(move |request| vec![ok(if request.number % 2 == 1 { &first } else { &second })])
}

const STARTED: &str = "process_start_time_seconds 1.79598819126e+09";

#[test]
fn two_replicas_behind_one_address_are_refused() {
    let idle = capture("vllm-0.33.0-offload-cpu-init");
    let start = |page: &str| page.lines().find(|line| line.starts_with("process_start_time")).unwrap().to_owned();
    let at = |page: &str, moment: &str| replaced(page, &start(page), &format!("process_start_time_seconds {moment}"));
    let (one, other) = (at(&idle, "1700000000.5"), at(&full(), "1700000060.25"));
    // No counter falls from the idle engine's page to the busy one's.
    let said = report(&in_turn(one.clone(), other), &["--interval=1s"]);
    assert_eq!((said.status, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{}", said.err);
    for words in ["2023-11-14T22:13:20Z", "2023-11-14T22:14:20Z", "several replicas", "--upstream the address of one"] {
        assert!(said.err.contains(words), "{}", said.err);
    }
    // One engine's pages have one start time.
    report(&in_turn(one.clone(), at(&full(), "1700000000.5")), &["--interval=1s"])
        .says(0, &["prompt tokens 17,000,000"]);

    // Without start times, the beginnings of the counters tell.
    let without = |page: String| {
        page.lines().filter(|line| !line.contains("process_start_time")).collect::<Vec<_>>().join("\n") + "\n"
    };
    let said = report(&in_turn(without(idle.clone()), without(full())), &["--interval=1s"]);
    assert!(said.status == 2 && said.err.contains("several replicas"), "{} {}", said.status, said.err);
    // With neither, counters that fall from look to look do.
    let bare = |page: String| {
        page.lines()
            .filter(|line| !line.contains("_created") && !line.contains("_start_time"))
            .collect::<Vec<_>>()
            .join("\n")
            + "\n"
    };
    let said = report(&in_turn(bare(idle.clone()), bare(full())), &["--interval=1s"]);
    assert_eq!((said.status, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{}", said.err);
    for words in ["several processes in turn", "its counters fall", "--upstream the address of one"] {
        assert!(said.err.contains(words), "{}", said.err);
    }
    // Where none falls it is said that nothing tells, and never that one process answered.
    let (one, two) = (bare(idle), bare(full()));
    let risen = Bench::new().upstream(move |request| vec![ok(if request.number == 1 { &one } else { &two })]);
    let said = report(&risen, &["--interval=1s"]);
    said.says(0, &["prompt tokens 17,000,000", "Whether one process answered both times cannot be told", "_created"]);
    report(&in_turn(full(), full()), &["--interval=1s"]).is_silent_about(&["cannot be told"]);
}

/// What `check` says of such a page in many words, the report says in one sentence.
#[test]
fn what_keeps_a_page_from_telling_more_is_said_as_check_says_it() {
    for (page, words) in [
        (
            include_str!("pages/ray-underscored.prom"),
            "5 known names with the prefix ray_vllm_, such as ray_vllm_kv_cache_usage_perc.",
        ),
        (include_str!("pages/python-only.prom"), "serves 4 metric names, all of them Python's own"),
        ("node_load1 1\n", "they are those of node_exporter."),
    ] {
        let bench = Bench::serving(page);
        let words = ["No data: no engine is recognised on this page.", words, "`kvtier-exporter check` says"];
        report(&bench, &[]).says(1, &words);
        bench.check(&[]).says(1, &words[1..2]);
    }
    let bench = Bench::serving(include_str!("pages/shared-storage.prom"));
    let words =
        ["copies between places that are not known here", "\"GPU_to_SHARED_STORAGE\"", "`kvtier-exporter check` says"];
    report(&bench, &[]).says(0, &words);
    report(&Bench::serving(full()), &[]).is_silent_about(&["exporter check"]);
}

#[test]
fn an_engine_that_was_started_between_two_pages_was_restarted() {
    let bench = Bench::new().upstream(move |request| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        let start = if request.number == 1 { 1.7e9 } else { now - 0.5 };
        vec![ok(replaced(&full(), STARTED, &format!("process_start_time_seconds {start}")))]
    });
    let said = report(&bench, &["--interval=1s"]);
    said.says(1, &["No data: the second page is of a process that started at", "restarted", "replicas"]);
}

#[test]
fn what_a_cache_or_another_engine_tells_is_told() {
    // 7,651,200 of 17,000,000 tokens looked up were found; the pool holds what it is declared to hold.
    let cache = Bench::serving(capture("lmcache-0.5.6-cpu"));
    let said = report(&cache, &["--tier.size=lmcache_cpu=32GiB"]);
    said.says(
        0,
        &[
            "found by LMCache, of tokens looked up 45.0 %",
            "tier fill, measured, lmcache_cpu",
            "not counted on this page",
        ],
    );
    said.is_silent_about(&["No data", "at most"]);
    report(&cache, &[]).says(0, &["looked up 45.0 %", "Prompts, decode and preemptions are not counted"]);
    // 10e9 bytes in 1 s and 24e9 in 2 s; 5 of 8 tokens.
    let server = report(&Bench::serving(capture("lmcache_mp-0.5.6-busy")), &[]);
    server.says(0, &["copy speed, reload, lmcache_cpu 12.0 GB/s", "of tokens looked up 62.5 %"]);
    let fresh = report(&Bench::serving(capture("lmcache-0.5.6-fresh")), &[]);
    fresh.says(1, &["No data: nothing was served, looked up or copied since engine start."]);

    // 300,000 of 400,000 tokens: the engine measures that.
    let said = report(&Bench::serving(capture("sglang-0.5.23-hicache")), &[]);
    said.says(0, &["tier fill, measured, hicache_host 75.0 %", "prompt tokens computed by prefill 20.0 %"]);
    said.is_silent_about(&["at most", "not counted", "no tier"]);
    let said = report(&Bench::serving(capture("sglang-0.5.23-no-tier")), &[]);
    said.says(0, &["prompt tokens computed by prefill 40.0 %", "The page shows no tier"]);
    report(&Bench::serving("node_load1 1\n"), &[]).says(1, &["No data: no engine is recognised on this page"]);
}

/// An engine with LMCache inside, and one whose connector has hits and no families of its own.
#[test]
fn hits_are_no_silence() {
    let model = "engine=\"0\",model_name=\"acme/m\"";
    let running = format!("vllm:num_requests_running{{{model}}} 1\n");
    let hits = format!(
        "{running}vllm:external_prefix_cache_queries_total{{{model}}} 3.0e+06\n\
         vllm:external_prefix_cache_hits_total{{{model}}} 1.2e+06\n"
    );
    let said = report(&Bench::serving(hits), &[]);
    said.says(0, &["prompt tokens served, unspecified 1,200,000"]).is_silent_about(&["No data"]);
    let worker = "model_name=\"acme/m\",worker_id=\"0\"";
    let lookups = format!(
        "{running}lmcache:num_lookup_hits_total{{{worker}}} 510000\nlmcache:num_lookup_tokens_total{{{worker}}} 900000\n"
    );
    // 51 ÷ 90 = 56.7 %
    let said = report(&Bench::serving(lookups), &[]);
    said.says(0, &["found by LMCache, of tokens looked up 56.7 %"]).is_silent_about(&["No data"]);
}

/// No engine speaks on these pages, and the cache is told of as far as it counts.
#[test]
fn what_lmcache_alone_counts_is_told() {
    // 94 stores of 256 tokens; 32 MiB that it believes to be on disk, or none where it has no disk.
    let said = report(&Bench::serving(capture("lmcache-0.5.6-real-storage-2-full")), &[]);
    said.says(0, &["handed to LMCache to store 24,064", "on disk, as LMCache believes 32.0 MiB", "no measurement"]);
    said.is_silent_about(&["No data"]);
    let said = report(&Bench::serving(capture("lmcache-0.5.6-real-storage-cpu-2-full")), &[]);
    said.says(0, &["handed to LMCache to store 24,064"]).is_silent_about(&["No data", "on disk"]);
    let said = report(&Bench::serving(capture("lmcache-0.5.6-disk")), &[]);
    said.says(
        0,
        &[
            "found by LMCache, of tokens looked up 45.0 %",
            "handed to LMCache to store 1,501,200",
            "asked back of LMCache 7,651,200",
            "given back by LMCache 7,651,200",
            "on disk, as LMCache believes 32.0 GiB",
        ],
    );
    report(&Bench::serving(full()), &[]).is_silent_about(&["LMCache"]);
}

/// Each rank counts all tokens; and of a series with two values nobody knows which one holds.
#[test]
fn ranks_of_lmcache_share_their_tokens() {
    let line = |name: &str, worker: u8, value: u32| {
        format!("lmcache:{name}_total{{model_name=\"m\",role=\"worker\",worker_id=\"{worker}\"}} {value}\n")
    };
    let lookups = line("num_lookup_tokens", 0, 0);
    let ranks = [0, 1].map(|rank| line("num_stored_tokens", rank, 512) + &line("num_requested_tokens", rank, 256));
    let page = lookups + &ranks.concat() + &line("num_hit_tokens", 0, 0) + &line("num_hit_tokens", 1, 256);
    // The first of two equals speaks of what it was asked for, and was given nothing.
    let said = report(&Bench::serving(&*page), &[]);
    said.says(0, &["to store 512", "asked back of LMCache 256", "given back by LMCache 0"]);
    let twice = page + &line("num_stored_tokens", 0, 1024);
    let said = report(&Bench::serving(twice), &[]);
    said.says(
        0,
        &["asked back of LMCache 256", "lmcache:num_stored_tokens_total of model \"m\" has one series several"],
    );
    said.is_silent_about(&["to store 512", "to store 1,024"]);
}

/// The pages of engines that count less than others, or whose page lost what they count.
#[test]
fn an_engine_that_counts_little_is_no_cache() {
    let said = report(&Bench::serving(include_str!("pages/vllm-0.10.prom")), &[]);
    said.says(0, &["prompt tokens 32"]).is_silent_about(&["No data", "are not counted", "a cache's own"]);
    let said = report(&Bench::serving(include_str!("pages/shared-storage.prom")), &[]);
    said.says(0, &["prompt tokens 3,000,000"]).is_silent_about(&["No data", "are not counted", "a cache's own"]);
    let said = report(&Bench::serving(include_str!("pages/external-hits.prom")), &[]);
    said.says(0, &["Prompts, decode and preemptions are not counted on this page, although an engine is on it"]);
    said.is_silent_about(&["a cache's own"]);
    // It wrote, so something was served.
    let wrote = "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 100\n";
    report(&Bench::serving(wrote), &[]).says(0, &[]).is_silent_about(&["No data"]);
    // And what is not counted at all is not said to be nothing.
    let uncounted = "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n";
    let said = report(&Bench::serving(uncounted), &[]);
    said.says(1, &["No data: nothing here counts what was served, looked up or copied since engine start."]);
}

/// What `check` has against the figures of a page is said beside them.
#[test]
fn a_figure_that_is_left_out_or_not_to_be_relied_on_has_its_reason() {
    let prompt = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"}";
    let running = "vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1\n";
    let contradicting = format!("{running}{prompt} 2000\n{prompt} 3000\n");
    for (page, flag, status, words) in [
        (contradicting, None, 1, "The page says different things of one engine."),
        (full() + "vllm:num_preemptions_total{engine=\"1\" 5\n", None, 0, "Lines of the page were left out"),
        (include_str!("pages/hybrid-groups.prom").to_owned(), None, 0, "is a bound for models of one KV group"),
        (full(), Some("--tier.size=1:fs=1GiB"), 0, "--tier.size names a tier that no engine shows."),
        (full(), Some("--tier.size=ram=64GiB"), 0, "tell of different sizes of one tier."),
    ] {
        let bench = Bench::serving(page);
        let flags: Vec<&str> = flag.into_iter().collect();
        report(&bench, &flags).says(status, &[words, "`kvtier-exporter check` says"]);
        let checked = bench.check(&flags);
        assert!(checked.flat().contains(words), "{}", checked.out);
    }
}

/// Two engines, told by an exporter's page.
const PREDICTED: &str = r#"
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="0.5"} 0.25
kvtier_tier_predicted_reload_ratio{model_name="m",engine="1",tier="ram",size="0.5"} 0.35
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="1"} 0.5
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="2"} 0.625
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="1.5"} 0.55
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="4"} NaN
kvtier_tier_prediction_error_ratio{model_name="m",engine="0",tier="ram"} 0.0125
kvtier_events_up{endpoint="tcp://127.0.0.1:5557"} 1
"#;

#[test]
fn what_other_sizes_would_reload_is_told_where_the_page_is_an_exporters() {
    let said = report(&Bench::serving(full() + PREDICTED), &[]);
    // (0.25 + 0.35) ÷ 2
    said.says(
        0,
        &[
            // 50 − 1.25
            "measured share reloaded 48.8 % \
             predicted share reloaded at 0.5× 30.0 % \
             predicted share reloaded at 1× 50.0 % \
             predicted share reloaded at 1.5× 55.0 % \
             predicted share reloaded at 2× 62.5 %",
            "1× is the present size",
            "Not predicted: 4×.",
            // Both engines have one at 0.5×, and one of them at these.
            "Not every engine has a prediction at 1×, 1.5×, 2×: compare",
        ],
    );
    said.is_silent_about(&["is not told"]);
    report(&Bench::serving(full()), &[]).is_silent_about(&["predicted", "Predicted", "measured"]);
    let said = report(&Bench::serving(full() + PREDICTED), &["--format=json"]);
    assert_near(&row(&said.json(), "predicted_reload_ratio", Some("2×")), &[Some(0.625)]);
    assert_near(&row(&said.json(), "measured_reload_ratio", None), &[Some(0.4875)]);
}

#[test]
fn predictions_that_are_withheld_have_a_reason() {
    let up = "kvtier_events_up{endpoint=\"tcp://127.0.0.1:5557\"} 1\n";
    let error = "kvtier_tier_prediction_error_ratio{model_name=\"m\",engine=\"0\",tier=\"ram\"} -0.07\n";
    let said = report(&Bench::serving(full() + up + error), &[]);
    said.says(0, &["other sizes would reload is not told", "7.0 points fewer than measured", "--events.max-error"]);
    // What the page does not tell is asked of the exporter.
    let (page, why) = (full() + up, "the model has several KV cache groups, which share the slots");
    let status = json!({"engines": [{"engine": "0", "events": {"sizes_unknown_because": why}}]}).to_string();
    let bench =
        Bench::new().upstream(move |request| vec![ok(if request.path == "/api/status" { &status } else { &page })]);
    report(&bench, &[]).says(0, &[&format!("is not told: {why}.")]);
    // An exporter that does not answer that is no reason to give up.
    report(&Bench::serving(full() + up), &[]).says(0, &["the exporter's status page does", "prompt tokens 17,000,000"]);
}

#[test]
fn a_fill_that_the_exporter_measured_is_no_bound() {
    let tier = "model_name=\"Qwen3.8-27B-NVFP4\",engine=\"0\",tier=\"ram\"";
    let page = |basis: &str| {
        format!(
            "{}kvtier_tier_info{{{tier},bound_basis=\"{basis}\"}} 1\nkvtier_tier_fill_upper_bound_ratio{{{tier}}} 0.875\n",
            full()
        )
    };
    let said = report(&Bench::serving(page("measured")), &[]);
    said.says(0, &["tier fill, measured, ram 87.5 %"]).is_silent_about(&["at most"]);
    let said = report(&Bench::serving(page("stored")), &[]);
    said.says(0, &["tier fill, at most, ram 87.5 %"]).is_silent_about(&["tier fill, measured"]);
}

/// Two pages of an exporter: 1,800 tokens asked in between.
#[test]
fn tokens_an_hour_between_two_pages_are_a_rate_times_3600() {
    let asked = |tokens: &str| format!("vllm:external_prefix_cache_queries_total{{{MODEL}}} {tokens}");
    let shares: String = [("0.5", 0.25), ("1", 0.5), ("2", 0.75)]
        .map(|(size, share)| {
            format!("kvtier_tier_predicted_reload_ratio{{{MODEL},tier=\"ram\",size=\"{size}\"}} {share}\n")
        })
        .concat();
    let line =
        full().lines().find(|line| line.starts_with("vllm:external_prefix_cache_queries_total")).unwrap().to_owned();
    let page = |tokens: &str| replaced(&full(), &line, &asked(tokens)) + &shares;
    let said = report(&in_turn(page("1e7"), page("10001800")), &["--interval=2s", "--format=json"]).json();
    // 1,800 ÷ 2 s × 3,600 × (0.75 − 0.5) = 810,000, and as much less at half the size; the scrapes are a little longer apart.
    let more = |of: &str| row(&said, "more_tokens_per_hour", Some(of))[0].unwrap();
    assert!((600_000.0..=810_000.0).contains(&more("2×")), "{said}");
    assert!((more("2×") + more("0.5×")).abs() < 1.0, "{said}");
}

#[test]
fn without_an_engine_there_is_no_report() {
    let said = report(&Bench::new(), &[]);
    assert_eq!((said.status, said.out.as_str()), (2, ""));
    assert!(said.err.contains("cannot be reached") && said.err.lines().count() == 1, "{}", said.err);
    report(&Bench::serving("node_load1 1\n"), &[]).says(1, &["No data"]);
}

/// 2024-05-01T06:00:00Z and the day after. The windows begin an hour later and end an hour before the samples do.
const BEFORE: u64 = 1_714_543_200;
const AFTER: u64 = BEFORE + 86_400;
const WINDOWS: [&str; 4] = [
    "--before",
    "2024-05-01T07:00:00Z..2024-05-01T08:00:00Z",
    "--after",
    "2024-05-02T09:00:00+02:00..2024-05-02T10:00:00+02:00",
];

/// A value as a function of seconds since the begin of its day's samples.
type Curve = Box<dyn Fn(f64) -> f64>;

/// Rises with one rate.
fn line(rate: f64) -> Curve {
    Box::new(move |second| rate * second)
}

fn constant(value: f64) -> Curve {
    Box::new(move |_| value)
}

/// 20 minutes into the window, a third of it.
const BEND: f64 = 3600.0 + 1200.0;

/// Rises with one rate until the bend, and with another then.
fn bent(first: f64, then: f64) -> Curve {
    Box::new(move |second| first * second.min(BEND) + then * (second - BEND).max(0.0))
}

/// A history under construction: OpenMetrics with one sample a minute for three hours of each day.
#[derive(Default)]
struct Writer(String);

impl Writer {
    /// A family: its samples' name, and day, labels and curve of each series.
    fn family(&mut self, kind: &str, name: &str, series: &[(u64, &str, Curve)]) {
        // In OpenMetrics a counter's family is named without the ending of its samples.
        let family = if kind == "counter" { name.strip_suffix("_total").unwrap() } else { name };
        writeln!(self.0, "# TYPE {family} {kind}").unwrap();
        for (start, labels, curve) in series {
            for minute in 0..=180_u32 {
                let value = curve(f64::from(60 * minute));
                writeln!(self.0, "{name}{{{labels}}} {value} {}", start + u64::from(60 * minute)).unwrap();
            }
        }
    }

    fn ended(self) -> String {
        self.0 + "# EOF\n"
    }
}

const ENGINE: &str = "engine=\"0\",model_name=\"m\"";
const RAM: &str = "engine=\"0\",model_name=\"m\",tier=\"ram\"";

/// One day without the tier and one with it. For the first third of each window things are worse, so that a mean
/// would not be the median.
fn two_days() -> String {
    let mut days = Writer::default();
    engine(&mut days);
    tier(&mut days);
    // 674 MiB, and once 400 MiB.
    let dip: Curve = Box::new(|second| if second == 5400.0 { 419_430_400.0 } else { 706_740_224.0 });
    let gpu = "gpu=\"0\",uuid=\"GPU-aaaa\"";
    let free = [(BEFORE, gpu, constant(3_221_225_472.0)), (AFTER, gpu, dip)];
    days.family("gauge", "kvtier_gpu_memory_free_bytes", &free);
    days.ended()
}

/// Prompt tokens: 90 % and then 60 % computed; on the other day 50 % and then 12 %. Preemptions: 12 an hour, and none.
fn engine(days: &mut Writer) {
    let prompt = [(BEFORE, ENGINE, line(1000.0)), (AFTER, ENGINE, line(2000.0))];
    days.family("counter", "vllm:prompt_tokens_total", &prompt);
    let source = format!("{ENGINE},source=\"local_compute\"");
    let computed = [(BEFORE, &*source, bent(900.0, 600.0)), (AFTER, &*source, bent(1000.0, 240.0))];
    days.family("counter", "vllm:prompt_tokens_by_source_total", &computed);
    let preemptions = [(BEFORE, ENGINE, line(12.0 / 3600.0)), (AFTER, ENGINE, constant(7.0))];
    days.family("counter", "vllm:num_preemptions_total", &preemptions);
    // Before: of 100 steps a second 75 take 50 to 75 ms, so half take at most 50 + 25 × (50 ÷ 75) = 66.7 ms.
    // After: 75 take 10 to 25 ms: 10 + 15 × (50 ÷ 75) = 20 ms.
    let bounds = ["0.01", "0.025", "0.05", "0.075", "+Inf"].map(|le| format!("{ENGINE},le=\"{le}\""));
    let rates = [(BEFORE, [0.0, 0.0, 0.0, 75.0, 100.0]), (AFTER, [0.0, 75.0, 90.0, 100.0, 100.0])];
    let day = |(day, rates): (u64, [f64; 5])| bounds.iter().zip(rates).map(move |(le, rate)| (day, &**le, line(rate)));
    let buckets: Vec<_> = rates.into_iter().flat_map(day).collect();
    days.family("gauge", "vllm:inter_token_latency_seconds_bucket", &buckets);
}

/// 467 GiB an hour, at 6.7 and then at 13.4 GB/s; half full and then full; 1,000 tokens a second.
fn tier(days: &mut Writer) {
    let rate = 467.0 * 1_073_741_824.0 / 3600.0;
    days.family("counter", "kvtier_tier_reloaded_bytes_total", &[(AFTER, RAM, line(rate))]);
    days.family("counter", "kvtier_tier_reload_seconds_total", &[(AFTER, RAM, bent(rate / 6.7e9, rate / 13.4e9))]);
    days.family("gauge", "kvtier_tier_size_bytes", &[(AFTER, RAM, constant(1000.0))]);
    let filling: Curve = Box::new(|second| if second < BEND { 500.0 } else { 1000.0 });
    days.family("gauge", "kvtier_tier_fill_upper_bound_bytes", &[(AFTER, RAM, filling)]);
    let served = format!("{ENGINE},source=\"ram\"");
    days.family("counter", "kvtier_tier_served_tokens_total", &[(AFTER, &*served, line(1000.0))]);
    let size = |size: &str| format!("{RAM},size=\"{size}\"");
    let better: Curve = Box::new(|second| if second < BEND { 0.5 } else { 0.75 });
    let shares =
        [(AFTER, &*size("2"), better), (AFTER, &*size("1"), constant(0.5)), (AFTER, &*size("0.5"), constant(0.25))];
    days.family("gauge", "kvtier_tier_predicted_reload_ratio", &shares);
    days.family("gauge", "kvtier_tier_prediction_error_ratio", &[(AFTER, RAM, constant(0.02))]);
    days.family("counter", "vllm:external_prefix_cache_queries_total", &[(AFTER, ENGINE, line(100.0))]);
}

#[test]
fn before_and_after_from_the_history_of_a_prometheus() {
    let history = History::of(&two_days());
    let bench = Bench::new();
    let words = [&["--prometheus", &*history.url], &WINDOWS[..]].concat();
    let said = report(&bench, &[&words[..], &["--format=json"]].concat());
    assert_eq!((said.status, said.err.as_str()), (0, ""), "{}", said.out);
    let answer = said.json();
    assert_near(&row(&answer, "prefill_computed_ratio", None), &[Some(0.6), Some(0.12)]);
    assert_near(&row(&answer, "prompt_tokens", None), &[Some(3.6e6), Some(7.2e6)]);
    assert_near(&row(&answer, "decode_tokens_per_second_p50", None), &[Some(15.0), Some(50.0)]);
    assert_near(&row(&answer, "preemptions", None), &[Some(12.0), Some(0.0)]);
    assert_near(&row(&answer, "reloaded_bytes", Some("ram")), &[None, Some(467.0 * 1_073_741_824.0)]);
    assert_near(&row(&answer, "reload_speed_bytes_per_second", Some("ram")), &[None, Some(13.4e9)]);
    assert_near(&row(&answer, "store_speed_bytes_per_second", None), &[None, None]);
    assert_near(&row(&answer, "tier_fill_upper_bound_ratio", Some("ram")), &[None, Some(1.0)]);
    assert_near(&row(&answer, "served_tokens", Some("ram")), &[None, Some(3.6e6)]);
    assert_near(&row(&answer, "predicted_reload_ratio", Some("2×")), &[None, Some(0.75)]);
    // 0.5 − 0.02; 100 tokens a second × 3,600 × (0.75 − 0.5).
    assert_near(&row(&answer, "measured_reload_ratio", None), &[None, Some(0.48)]);
    assert_near(&row(&answer, "more_tokens_per_hour", Some("2×")), &[None, Some(90_000.0)]);
    assert_near(&row(&answer, "more_tokens_per_hour", Some("0.5×")), &[None, Some(-90_000.0)]);
    assert_near(&row(&answer, "gpu_memory_free_bytes", None), &[Some(3_221_225_472.0), Some(706_740_224.0)]);
    assert_near(&row(&answer, "gpu_memory_free_lowest_bytes", None), &[Some(3_221_225_472.0), Some(419_430_400.0)]);
    let column = json!({"name": "after", "from": "2024-05-02T07:00:00Z", "to": "2024-05-02T08:00:00Z"});
    assert_eq!((&answer["columns"][1], &answer["complete"]), (&column, &json!(true)));

    let markdown = report(&bench, &[&words[..], &["--format=markdown"]].concat());
    markdown.says(
        0,
        &[
            "| | before | after | |---|---:|---:| | prompt tokens computed by prefill | 60.0 % | 12.0 % |",
            "| decode per stream, p50 | 15.0 tok/s | 50.0 tok/s |",
            "| prompt tokens | about 3.6 M | about 7.2 M |",
            "| reloaded, ram | – | about 467 GiB |",
            "| preemptions | about 12 | 0 |",
            "| more tokens reloaded, at 2× | – | +90 k tok/h |",
            "| GPU memory free | 3.0 GiB | 674.0 MiB |",
            "- This is before against after, and no controlled A/B",
        ],
    );
    no_data(&bench, &history);
    matched(&bench, &history);
}

/// A window that has nothing says so, in whatever place.
fn no_data(bench: &Bench, history: &History) {
    let words = ["--prometheus", &*history.url, "--before", "-2h..-1h", "--after", WINDOWS[3]];
    let said = report(bench, &words);
    said.says(
        1,
        &[
            &format!("No data for before: {} has nothing from", history.url),
            "prompt tokens computed by prefill – 12.0 %",
        ],
    );
    let halves = [
        "--prometheus",
        &*history.url,
        "--before",
        "2024-05-01T07:00:00Z..2024-05-01T07:30:00Z",
        "--after",
        WINDOWS[3],
    ];
    report(bench, &halves).says(0, &["The windows are 1800 and 3600 seconds long"]);
}

/// Matchers reach every query.
fn matched(bench: &Bench, history: &History) {
    let words = [&["--prometheus", &*history.url], &WINDOWS[..], &["--match", "model_name=\"m\""]].concat();
    report(bench, &words).says(0, &["prompt tokens computed by prefill 60.0 % 12.0 %"]);
    let other = [&["--prometheus", &*history.url], &WINDOWS[..], &["--match", "model_name=\"other\""]].concat();
    report(bench, &other).says(1, &["No data for before", "No data for after"]);
    let broken = report(bench, &[&["--prometheus", &*history.url], &WINDOWS[..], &["--match", "model_name="]].concat());
    assert_eq!((broken.status, broken.out.as_str(), broken.err.lines().count()), (2, "", 1), "{}", broken.err);
    assert!(broken.err.contains(" refused a query: ") && broken.err.contains("parse error"), "{}", broken.err);
    assert!(broken.err.contains("--match") && !broken.err.contains(['{', '\\']), "{}", broken.err);
}

/// One window stands alone: nothing is compared.
#[test]
fn a_single_window_and_what_is_told_of_it() {
    let mut day = Writer::default();
    engine(&mut day);
    let tier = |name: &str, basis: &str| {
        format!("engine=\"0\",model_name=\"m\",tier=\"{name}\",bound_basis=\"{basis}\",medium=\"ram\"")
    };
    let of = |name: &str| format!("engine=\"0\",model_name=\"m\",tier=\"{name}\"");
    let info = [(AFTER, &*tier("ram", "measured"), constant(1.0)), (AFTER, &*tier("1:fs", "stored"), constant(1.0))];
    day.family("gauge", "kvtier_tier_info", &info);
    let fills = [(AFTER, &*of("ram"), constant(0.5)), (AFTER, &*of("1:fs"), constant(0.25))];
    day.family("gauge", "kvtier_tier_fill_upper_bound_ratio", &fills);
    day.family("gauge", "kvtier_tier_prediction_error_ratio", &[(AFTER, &*of("ram"), constant(0.08))]);
    day.family("gauge", "kvtier_events_up", &[(AFTER, "endpoint=\"tcp://e:1\"", constant(1.0))]);
    let history = History::of(&day.ended());
    let words = ["--prometheus", &*history.url, "--window", WINDOWS[3]];
    let said = report(&Bench::new(), &words);
    said.says(
        0,
        &[
            "in the window prompt tokens computed by prefill 12.0 %",
            "prompt tokens about 7.2 M",
            "tier fill, at most, 1:fs 25.0 %",
            "tier fill, measured, ram 50.0 %",
            "not told (in the window): on average, for the present size 8.0 points more than measured",
        ],
    );
    said.is_silent_about(&["before", "predicted share"]);
    let empty = report(&Bench::new(), &["--prometheus", &*history.url, "--window", "-2h..-1h"]);
    empty.says(1, &["No data in the window: "]).is_silent_about(&["before"]);
}

/// A page whose names have `_` for the colon, as collectors in between write them, is the same engine's.
#[test]
fn a_history_in_underscores_tells_the_same() {
    let mut day = Writer::default();
    engine(&mut day);
    day.family("counter", "vllm:external_prefix_cache_queries_total", &[(AFTER, ENGINE, line(100.0))]);
    let shares = [("1", 0.5), ("4", 0.25)].map(|(size, share)| (format!("{RAM},size=\"{size}\""), share));
    let shares = shares.each_ref().map(|(labels, share)| (AFTER, &**labels, constant(*share)));
    day.family("gauge", "kvtier_tier_predicted_reload_ratio", &shares);
    let history = History::of(&day.ended().replace("vllm:", "vllm_"));
    let words = [&["--prometheus", &*history.url], &WINDOWS[..]].concat();
    report(&Bench::new(), &words).says(
        0,
        &[
            "prompt tokens computed by prefill 60.0 % 12.0 %",
            "prompt tokens about 3.6 M about 7.2 M",
            "decode per stream, p50 15.0 tok/s 50.0 tok/s",
            "preemptions about 12 0",
            "more tokens reloaded, at 4× – -90 k tok/h",
        ],
    );
}

#[test]
fn an_engine_that_is_scraped_twice_is_noticed() {
    let mut day = Writer::default();
    let (direct, through) = (format!("{ENGINE},job=\"vllm\""), format!("{ENGINE},job=\"kvtier\""));
    let series = [(BEFORE, &*direct, line(10.0)), (BEFORE, &*through, line(10.0))];
    day.family("counter", "vllm:prompt_tokens_total", &series);
    let history = History::of(&day.ended());
    let window = ["--before", WINDOWS[1], "--after", WINDOWS[1]];
    let words = [&["--prometheus", &*history.url], &window[..]].concat();
    // 3,600 s × 10, twice.
    report(&Bench::new(), &words)
        .says(0, &["prompt tokens about 72 k about 72 k", "before: 2 series stand for one engine"]);
    let one = [&words[..], &["--match", "job=\"kvtier\""]].concat();
    report(&Bench::new(), &one).says(0, &["prompt tokens about 36 k about 36 k"]).is_silent_about(&["series stand"]);
}

#[test]
fn two_pods_of_one_engine_label_are_no_engine_that_is_scraped_twice() {
    let mut day = Writer::default();
    let pods = ["a", "b"].map(|pod| format!("{ENGINE},job=\"kvtier\",pod=\"{pod}\",otel_scope_name=\"x\""));
    let series = pods.each_ref().map(|pod| (BEFORE, &**pod, line(10.0)));
    day.family("counter", "vllm:prompt_tokens_total", &series);
    let history = History::of(&day.ended());
    let words = ["--prometheus", &*history.url, "--before", WINDOWS[1], "--after", WINDOWS[1]];
    // 3,600 s × 10, of each.
    report(&Bench::new(), &words).says(0, &["prompt tokens about 72 k"]).is_silent_about(&["series stand"]);
}

/// Of two engines one has no prediction at 0.5×.
#[test]
fn predictions_of_a_history_that_are_missing_or_of_some_engines_have_a_reason() {
    let mut day = Writer::default();
    let engines = ["0", "1"].map(|engine| format!("engine=\"{engine}\",model_name=\"m\""));
    let prompt = engines.each_ref().map(|engine| (AFTER, &**engine, line(1000.0)));
    day.family("counter", "vllm:prompt_tokens_total", &prompt);
    let sizes = ["0.5", "1", "1.5", "2", "4"];
    let all = engines.iter().flat_map(|engine| sizes.map(|size| format!("{engine},tier=\"ram\",size=\"{size}\"")));
    let shares: Vec<String> = all.skip(1).collect();
    let shares: Vec<_> = shares.iter().map(|labels| (AFTER, &**labels, constant(0.5))).collect();
    day.family("gauge", "kvtier_tier_predicted_reload_ratio", &shares);
    let history = History::of(&day.ended());
    let words = ["--prometheus", &*history.url, "--window", WINDOWS[3]];
    let of =
        |engine: &str| report(&Bench::new(), &[&words[..], &["--match", &format!("engine=\"{engine}\"")]].concat());
    of("0").says(0, &["Not predicted (in the window): 0.5×.", "a tier behind gives back"]);
    of("1").says(0, &["reloaded at 0.5× 50.0 %"]).is_silent_about(&["Not predicted", "Not every engine"]);
    let both = report(&Bench::new(), &words);
    both.says(0, &["Not every engine has a prediction at 0.5× (in the window): compare"]);
    both.is_silent_about(&["Not predicted"]);
}

/// As between two pages of an engine at rest.
#[test]
fn a_history_in_which_nothing_happens_is_no_data() {
    let mut day = Writer::default();
    day.family("counter", "vllm:prompt_tokens_total", &[(AFTER, ENGINE, constant(1000.0))]);
    day.family("gauge", "kvtier_tier_fill_upper_bound_ratio", &[(AFTER, RAM, constant(0.5))]);
    let history = History::of(&day.ended());
    let words = ["--prometheus", &*history.url, "--window", WINDOWS[3]];
    let said = report(&Bench::new(), &words);
    let idle = "No data in the window: nothing was served, looked up or copied.";
    said.says(1, &[idle, "prompt tokens 0", "tier fill, at most, ram 50.0 %"]);
    let mut gauge = Writer::default();
    gauge.family("gauge", "kvtier_tier_fill_upper_bound_ratio", &[(AFTER, RAM, constant(0.5))]);
    let history = History::of(&gauge.ended());
    let said = report(&Bench::new(), &["--prometheus", &*history.url, "--window", WINDOWS[3]]);
    said.says(1, &["No data in the window: nothing here counts what was served, looked up or copied."]);
}

/// Two ranks, each of which counts all tokens.
#[test]
fn what_lmcache_stored_in_a_window_is_told() {
    let mut day = Writer::default();
    let ranks = ["0", "1"].map(|rank| format!("model_name=\"m\",role=\"worker\",worker_id=\"{rank}\""));
    let stored = ranks.each_ref().map(|rank| (AFTER, &**rank, line(10.0)));
    day.family("counter", "lmcache:num_stored_tokens_total", &stored);
    let history = History::of(&day.ended());
    let said = report(&Bench::new(), &["--prometheus", &*history.url, "--window", WINDOWS[3]]);
    // 3,600 s × 10.
    said.says(0, &["tokens handed to LMCache to store about 36 k"]).is_silent_about(&["No data"]);
}

/// Behind Ray, without a replica, the worker tells an engine; with one, it is a process of it.
#[test]
fn a_worker_of_ray_is_an_engine_where_no_replica_is_named() {
    let told = |labels: [&str; 2], ours: [&str; 2]| {
        let mut day = Writer::default();
        let of = |labels: [&str; 2]| labels.map(|labels| format!("{ENGINE},{labels}"));
        let (engines, ours) = (of(labels), of(ours));
        day.family("counter", "vllm:prompt_tokens_total", &engines.each_ref().map(|e| (AFTER, &**e, line(10.0))));
        // 100 and 200 tokens a second.
        let asked = [(AFTER, &*engines[0], line(100.0)), (AFTER, &*engines[1], line(200.0))];
        day.family("counter", "vllm:external_prefix_cache_queries_total", &asked);
        let size = |size: &str| ours.each_ref().map(|labels| format!("{labels},tier=\"ram\",size=\"{size}\""));
        let (one, two) = (size("1"), size("2"));
        let shares = [(&one, 0.5), (&two, 0.75)];
        let mut series: Vec<_> =
            shares.iter().flat_map(|(all, share)| all.iter().map(|l| (AFTER, &**l, constant(*share)))).collect();
        series.dedup_by_key(|(_, labels, _)| *labels);
        day.family("gauge", "kvtier_tier_predicted_reload_ratio", &series);
        let history = History::of(&day.ended());
        report(&Bench::new(), &["--prometheus", &*history.url, "--window", WINDOWS[3]])
    };
    // (100 + 200) × 3,600 × (0.75 − 0.5), whether of two engines or of two processes of one.
    let expected = "more tokens reloaded, at 2× +270 k tok/h";
    let workers = ["WorkerId=\"a\"", "WorkerId=\"b\""];
    told(workers, workers).says(0, &[expected]).is_silent_about(&["series stand"]);
    let replica = "ReplicaId=\"r\"";
    let processes = workers.map(|worker| format!("{replica},{worker}"));
    told(processes.each_ref().map(|text| &**text), [replica; 2]).says(0, &[expected]);
}

#[test]
fn a_prometheus_that_does_not_answer_as_one() {
    let bench = Bench::new();
    let run = |url: &str| report(&bench, &[&["--prometheus", url], &WINDOWS[..]].concat());
    let gone = run("http://127.0.0.1:1");
    assert!(
        gone.status == 2 && gone.err.contains("the Prometheus at http://127.0.0.1:1 cannot be reached"),
        "{}",
        gone.err
    );
    let other = Upstream::start(|_| vec![ok("up 1\n")]);
    let said = run(&format!("http://{}/prometheus/", other.address));
    assert!(said.status == 2 && said.err.contains("sent something else than JSON"), "{}", said.err);
    for answer in ["[]", "{}", "12", "{\"status\":\"success\"}", "{\"status\":\"ok\",\"data\":[]}"] {
        let other = Upstream::start(move |_| vec![ok(answer)]);
        let said = run(&format!("http://{}", other.address));
        assert_eq!(said.status, 2, "{answer}");
        for words in ["sent JSON that is no answer of a Prometheus", "--prometheus wants the address of a Prometheus"] {
            assert!(said.err.contains(words), "{answer}: {}", said.err);
        }
        assert!(!said.err.contains("refused"), "{answer}: {}", said.err);
    }
    assert!(other.requests()[0].path.starts_with("/prometheus/api/v1/query"), "{:?}", other.requests()[0].path);
}

#[test]
fn windows_that_make_no_sense_end_with_2() {
    for words in [
        &["--prometheus=http://127.0.0.1:1"][..],
        &["--window", "-2h..-1h"],
        &["--prometheus=http://127.0.0.1:1", "--before", "-2h..-1h"],
        &["--prometheus=http://127.0.0.1:1", "--after", "-2h..-1h"],
        &["--prometheus=http://127.0.0.1:1", "--window", "-2h..-1h", "--after", "-1h..now"],
        &["--prometheus=http://127.0.0.1:1", "--window", "-2h..-1h", "--before", "-2h..-1h", "--after", "-1h..now"],
        &["--before", "-2h..-1h", "--after", "-1h..now"],
        &["--prometheus=http://127.0.0.1:1", "--before", "yesterday", "--after", "-1h..now"],
        &["--prometheus=http://127.0.0.1:1", "--before", "-1h..-2h", "--after", "-1h..now"],
        &["--prometheus=http://127.0.0.1:1", "--before", "-2h..-1h", "--after", "-1h..2900-01-01T00:00:00Z"],
        &["--interval=0s"],
        &["--interval=1s", "--prometheus=http://127.0.0.1:1", "--before", "-2h..-1h", "--after", "-1h..now"],
    ] {
        let said = report(&Bench::new(), words);
        assert_eq!((said.status, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{words:?} {}", said.err);
        assert!(!said.err.contains("cannot be reached"), "nobody is asked: {words:?} {}", said.err);
    }
}

#[test]
fn the_json_has_the_documented_keys_and_kinds() {
    let answer = report(&Bench::serving(full()), &["--format=json"]).json();
    let column = json!({"name": "text", "from": "null", "to": "null"});
    let mut keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["columns", "command", "complete", "notes", "rows", "source", "version"]);
    assert_eq!((shape(&answer["columns"]), &answer["command"]), (json!([column]), &json!("report")));
    let units = ["ratio", "bytes", "bytes_per_second", "tokens", "tokens_per_second", "tokens_per_hour", "count"];
    for row in answer["rows"].as_array().unwrap() {
        let kinds = [shape(&row["id"]), shape(&row["what"]), shape(&row["values"])];
        assert_eq!(kinds, [json!("text"), json!("text"), json!(["number"])], "{row}");
        assert!(
            units.iter().any(|unit| row["unit"] == *unit) && (row["of"].is_null() || row["of"].is_string()),
            "{row}"
        );
        assert_eq!((row.as_object().unwrap().len(), &row["approximate"]), (6, &json!(false)), "{row}");
    }
    let unknown = report(&Bench::serving(full()).driver("init 9\n"), &["--format=json"]).json();
    assert_eq!(row(&unknown, "gpu_memory_free_bytes", None), [None]);
}

/// The history of an engine's address whose start time is this, beside a program elsewhere that is restarted all the time, and
/// what is told of it.
fn with_start(start: Option<Curve>) -> Said {
    let mut day = Writer::default();
    engine(&mut day);
    let other: Curve = Box::new(|second| AFTER as f64 - second);
    let starts =
        start.map(|start| (AFTER, "", start)).into_iter().chain([(AFTER, "instance=\"b:1\",job=\"node\"", other)]);
    day.family("gauge", "process_start_time_seconds", &starts.collect::<Vec<_>>());
    let history = History::of(&day.ended());
    report(&Bench::new(), &["--prometheus", &*history.url, "--window", WINDOWS[3]])
}

#[test]
fn a_history_of_several_replicas_in_turn_is_refused_and_a_restart_is_said() {
    let began = AFTER as f64 - 1000.0;
    with_start(Some(constant(began))).says(0, &["prompt tokens about 7.2 M"]).is_silent_about(&["restarted"]);
    // Each minute the other one of two answers.
    let in_turn: Curve = Box::new(move |second| if (second / 60.0) % 2.0 == 0.0 { began } else { began + 500.0 });
    let said = with_start(Some(in_turn));
    assert_eq!((said.status, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{}", said.err);
    for words in ["several processes in one series", "ran beside it", "several replicas", "an address of its own"] {
        assert!(said.err.contains(words), "{}", said.err);
    }
    // Two hours in, thirty seconds after the last sample of the one before.
    let restarted: Curve = Box::new(move |second| if second < 7200.0 { began } else { AFTER as f64 + 7170.0 });
    with_start(Some(restarted)).says(0, &["prompt tokens about", "was restarted once in the window"]);
    // Counters that fall, and nothing that says when a process began.
    with_start(None).says(0, &["prompt tokens about 7.2 M"]).is_silent_about(&["fell", "restarted"]);
}

#[test]
fn counters_that_fall_without_a_start_time_are_told() {
    let mut day = Writer::default();
    // 600 tokens a minute, from the beginning every ten minutes: 18,000 up in half an hour.
    let falling: Curve = Box::new(|second| 10.0 * (second % 600.0));
    day.family("counter", "vllm:prompt_tokens_total", &[(AFTER, ENGINE, falling)]);
    let history = History::of(&day.ended());
    let said = report(&Bench::new(), &["--prometheus", &*history.url, "--window", WINDOWS[3]]);
    said.says(
        0,
        &["the counters of prompt tokens fell", "neither process_start_time_seconds nor _created", "far too high"],
    );
}
