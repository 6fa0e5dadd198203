//! The traps of LMCache's and SGLang's families, each on a page of its own.
//!
//! Expected values are worked out in the comments, from the page and the contract, never from our own output.

#![allow(missing_docs, reason = "a test crate has no readers of its documentation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]

mod support;

use bytes::Bytes;
use kvtier_exporter::pipeline::{Format, Source, explain, process};
use kvtier_exporter::settings::{HostFacts, Settings};
use support::page::{Page, Result, run, run_with};

const GIB: u64 = 1 << 30;
const LOOKUP_RATIO: &str = "kvtier_lmcache_lookup_hit_ratio";
const FILL: &str = "kvtier_tier_fill_upper_bound_ratio";
const FILL_BYTES: &str = "kvtier_tier_fill_upper_bound_bytes";

/// A page of tests/fixtures.
fn fixture(name: &str) -> Page {
    let path = format!("{}/tests/fixtures/{name}/page.prom", env!("CARGO_MANIFEST_DIR"));
    Page::new().text(&std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}")))
}

/// Runs a page with tier sizes in bytes.
fn declared(page: &Page, sizes: &[(&str, u64)]) -> Result {
    run_with(page, |settings, _| {
        settings.tier_sizes = sizes.iter().map(|(tier, bytes)| ((*tier).to_owned(), *bytes)).collect();
    })
}

/// The samples of a family that have these labels, and no other value of them.
fn with(result: &Result, family: &str, label: &str, value: &str) -> Vec<f64> {
    let labels = result.labels(family, label);
    let all = labels.into_iter().zip(result.values(family));
    all.filter(|(found, _)| *found == value).map(|(_, sample)| sample).collect()
}

/// The one sample of a tier.
fn tier(result: &Result, family: &str, name: &str) -> f64 {
    match with(result, family, "tier", name).as_slice() {
        [value] => *value,
        others => panic!("{family} of tier {name}: {others:?}"),
    }
}

fn tiers(result: &Result) -> Vec<&str> {
    result.labels("kvtier_tier_info", "tier")
}

fn source(name: &str, page: &Page) -> Source {
    Source { name: name.to_owned(), body: Bytes::from(page.written().to_owned()), format: Format::Text }
}

/// Runs a page with another one behind it.
fn run_beside(main: &Page, extra: &Page) -> Result {
    let sources = [source("main", main), source("extra", extra)];
    let outcome = process(&sources, &Settings::default(), &HostFacts::default());
    let page = String::from_utf8(outcome.page.concat()).unwrap();
    Result { page, warnings: outcome.notices.iter().map(|notice| notice.detail.clone()).collect(), outcome }
}

fn explained(page: &Page) -> String {
    explain(&[source("main", page)], &Settings::default(), &HostFacts::default())
}

// LMCache inside the engine: where the facts belong.

#[test]
fn facts_of_lmcache_belong_to_the_only_engine_that_serves_the_model() {
    let result = declared(&fixture("lmcache-0.5.6-vllm-page-tp2"), &[("lmcache_cpu", 16 * GIB)]);
    assert_eq!(tiers(&result), ["lmcache_cpu", "lmcache_disk"]);
    assert_eq!(result.labels("kvtier_tier_info", "engine"), ["0", "0"]);
    assert_eq!(result.labels("kvtier_tier_info", "model_name"), ["acme/m", "acme/m"]);
    assert_eq!(result.labels(LOOKUP_RATIO, "model_name"), ["acme/m"]);
    assert_eq!(result.labels(LOOKUP_RATIO, "engine"), [""]);
    // What vLLM says of its prompts stays: 800,000 of 2,000,000.
    assert_eq!(result.value("kvtier_prefill_computed_ratio"), 0.4);
    assert_eq!(result.labels("kvtier_tier_served_tokens_total", "source"), ["unspecified"]);
    assert_eq!(result.outcome.snapshot.engine_kind, Some("vllm"));
    assert_eq!(result.outcome.snapshot.dialects, ["vllm", "lmcache"]);
}

#[test]
fn an_engine_is_found_by_the_name_it_was_loaded_by_too() {
    let page = Page::vllm().sample("vllm:prompt_tokens_total", "", "1").raw(
        "lmcache:local_storage_usage",
        r#"model_name="acme/m",served_model_name="another",worker_id="0""#,
        "5",
    );
    assert_eq!(run(&page).labels("kvtier_tier_info", "engine"), ["0"]);
}

#[test]
fn data_parallel_engines_share_the_lookups_and_get_no_bytes() {
    let mut page = Page::new();
    for engine in ["0", "1"] {
        page = page.raw("vllm:prompt_tokens_total", &format!(r#"engine="{engine}",model_name="acme/m""#), "1");
    }
    let own = r#"model_name="acme/m",role="worker",served_model_name="acme/m",worker_id="0""#;
    let page = page
        .raw("lmcache:num_lookup_tokens_total", own, "1000")
        .raw("lmcache:num_lookup_hits_total", own, "250")
        .raw("lmcache:local_storage_usage", own, "4096");
    let result = run(&page);
    assert_eq!(result.values(LOOKUP_RATIO), [0.25]);
    assert!(result.absent("kvtier_tier_info"));
    assert!(explained(&page).contains("2 engines serve it"), "{}", explained(&page));
    // A declared tier is each engine's; what is in it stays unknown.
    let sized = declared(&page, &[("lmcache_cpu", GIB)]);
    assert_eq!(sized.labels("kvtier_tier_size_bytes", "engine"), ["0", "1"]);
    assert!(sized.absent(FILL));
}

#[test]
fn a_page_of_lmcache_alone_is_one_engine_without_label() {
    let result = run(&fixture("lmcache-0.5.6-disk"));
    assert_eq!(tiers(&result), ["lmcache_disk"]);
    assert_eq!(result.labels("kvtier_tier_info", "engine"), [""]);
    assert_eq!(result.labels("kvtier_tier_info", "model_name"), ["Qwen3.8-27B-NVFP4"]);
    assert_eq!(result.outcome.snapshot.engine_kind, Some("lmcache"));
    // 7,651,200 ÷ 17,000,000
    assert_eq!(result.value(LOOKUP_RATIO), 0.450_070_588_235_294_1);
    for family in ["kvtier_prompt_tokens_total", "kvtier_tier_served_tokens_total", "kvtier_prefill_computed_ratio"] {
        assert!(result.absent(family), "{family}");
    }
}

#[test]
fn lmcaches_own_page_beside_vllms_adds_to_the_same_engine() {
    let own = fixture("lmcache-0.5.6-disk");
    let labels = r#"engine="0",model_name="Qwen3.8-27B-NVFP4""#;
    let result = run_beside(&Page::new().raw("vllm:prompt_tokens_total", labels, "1"), &own);
    assert_eq!(result.labels("kvtier_tier_info", "engine"), ["0"]);
    assert_eq!(result.value(LOOKUP_RATIO), 0.450_070_588_235_294_1);
    assert_eq!(result.outcome.snapshot.engines.len(), 1);
    assert!(result.page.contains("lmcache:local_storage_usage{"));
}

#[test]
fn what_the_main_page_has_of_lmcache_is_not_counted_again_from_its_own_page() {
    let main = fixture("lmcache-0.5.6-vllm-page-tp2");
    let own = Page::new().text(&fixture("lmcache-0.5.6-disk").written().replace("Qwen3.8-27B-NVFP4", "acme/m"));
    let result = run_beside(&main, &own);
    assert_eq!(result.value(LOOKUP_RATIO), 0.625);
    assert_eq!(result.outcome.snapshot.disk_claimed.unwrap().value, 21_474_836_480.0);
}

// LMCache inside the engine: lookups.

#[test]
fn one_worker_counts_the_lookups_and_the_scheduler_is_none() {
    // Worker 2 looked up the most: 400 ÷ 1000. Both workers together would say 1300 ÷ 1900.
    let page = Page::new()
        .raw("lmcache:num_lookup_tokens_total", r#"model_name="m",role="scheduler",worker_id="0""#, "0.0")
        .raw("lmcache:num_lookup_tokens_total", r#"model_name="m",role="worker",worker_id="10""#, "900")
        .raw("lmcache:num_lookup_tokens_total", r#"model_name="m",role="worker",worker_id="2""#, "1000")
        .raw("lmcache:num_lookup_hits_total", r#"model_name="m",role="worker",worker_id="10""#, "900")
        .raw("lmcache:num_lookup_hits_total", r#"model_name="m",role="worker",worker_id="2""#, "400")
        .raw("lmcache:num_lookup_hits_total", r#"model_name="m",role="scheduler",worker_id="0""#, "0.0");
    assert_eq!(run(&page).value(LOOKUP_RATIO), 0.4);
    // 1,200,000 ÷ 1,920,000 on each of two ranks.
    assert_eq!(run(&fixture("lmcache-0.5.6-vllm-page-tp2")).value(LOOKUP_RATIO), 0.625);
}

#[test]
fn of_the_processes_that_could_look_up_the_one_that_did_speaks() {
    let page = |processes: &[(&str, &str, &str)]| {
        processes.iter().fold(Page::new(), |page, (process, hits, tokens)| {
            let labels = format!(r#"model_name="m",{process}"#);
            page.raw("lmcache:num_lookup_hits_total", &labels, hits).raw(
                "lmcache:num_lookup_tokens_total",
                &labels,
                tokens,
            )
        })
    };
    let [worker_0, worker_1, scheduler] =
        [r#"role="worker",worker_id="0""#, r#"role="worker",worker_id="1""#, r#"role="scheduler",worker_id="0""#];
    let ratio = |processes: &[(&str, &str, &str)]| run(&page(processes)).value(LOOKUP_RATIO);
    // Lookups at the scheduler: 510,000 ÷ 900,000.
    assert_eq!(ratio(&[(worker_0, "0", "0"), (worker_1, "0", "0"), (scheduler, "510000", "900000")]), 0.51 / 0.9);
    // Only the second worker counts: 30 ÷ 40.
    assert_eq!(ratio(&[(worker_0, "0", "0"), (worker_1, "30", "40")]), 0.75);
    // Workers that disagree, the second is ahead: 60 ÷ 120; the hits of the first say nothing of its lookups.
    assert_eq!(ratio(&[(worker_0, "90", "100"), (worker_1, "60", "120")]), 0.5);
    // Of two that counted alike the worker speaks: 1 ÷ 4.
    assert_eq!(ratio(&[(scheduler, "2", "4"), (worker_0, "1", "4")]), 0.25);
    // A worker that was started again counts anew: 600 ÷ 800 of the one before it, and not 600 ÷ 800 with 9 ÷ 10 mixed in.
    let restarted = [(r#"pid="9",worker_id="0""#, "9", "10"), (r#"pid="7",worker_id="0""#, "600", "800")];
    assert_eq!(ratio(&restarted), 0.75);
    // Its hits may be all that the dead process left: 9 ÷ 10.
    let left =
        page(&restarted[..1]).raw("lmcache:num_lookup_hits_total", r#"model_name="m",pid="7",worker_id="0""#, "600");
    assert_eq!(run(&left).value(LOOKUP_RATIO), 0.9);
    // What cannot be read is none that counted most: 1 ÷ 2.
    assert_eq!(ratio(&[(worker_0, "1", "2"), (worker_1, "5", "-7"), (scheduler, "5", "NaN")]), 0.5);
}

#[test]
fn each_model_has_a_process_that_speaks_for_it() {
    let page = Page::new()
        .raw("lmcache:num_lookup_hits_total", r#"model_name="a",role="worker",worker_id="0""#, "1")
        .raw("lmcache:num_lookup_tokens_total", r#"model_name="a",role="worker",worker_id="0""#, "4")
        .raw("lmcache:num_lookup_hits_total", r#"model_name="b",role="scheduler",worker_id="0""#, "30")
        .raw("lmcache:num_lookup_tokens_total", r#"model_name="b",role="scheduler",worker_id="0""#, "40");
    assert_eq!(run(&page).values(LOOKUP_RATIO), [0.25, 0.75]);
}

#[test]
fn an_idle_cache_has_no_hit_ratio_although_its_gauge_reads_one() {
    for page in ["lmcache-0.5.6-fresh", "lmcache-0.5.6-real-storage-2-full"] {
        let page = fixture(page);
        assert!(page.written().contains("lmcache:retrieve_hit_rate{"));
        assert!(run(&page).absent(LOOKUP_RATIO));
    }
    let only_gauges = Page::new().raw("lmcache:retrieve_hit_rate", r#"model_name="m",worker_id="0""#, "1.0").raw(
        "lmcache:lookup_hit_rate",
        r#"model_name="m",worker_id="0""#,
        "0.5",
    );
    assert!(run(&only_gauges).absent(LOOKUP_RATIO));
    assert!(run(&only_gauges).outcome.snapshot.dialects.is_empty());
}

#[test]
fn hits_of_another_worker_are_not_divided() {
    let page = Page::new().raw("lmcache:num_lookup_tokens_total", r#"model_name="m",worker_id="0""#, "100").raw(
        "lmcache:num_lookup_hits_total",
        r#"model_name="m",worker_id="1""#,
        "50",
    );
    assert!(run(&page).absent(LOOKUP_RATIO));
}

// LMCache inside the engine: the CPU pool.

#[test]
fn the_cpu_pool_is_a_tier_only_where_its_size_is_declared() {
    let page = fixture("lmcache-0.5.6-real-storage-cpu-1-partial");
    assert!(run(&page).absent("kvtier_tier_info"));
    assert!(explained(&page).contains("\"lmcache_cpu\" is not counted"), "{}", explained(&page));
    let result = declared(&page, &[("lmcache_cpu", 67_108_864)]);
    assert_eq!(tiers(&result), ["lmcache_cpu"]);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["measured"]);
    assert_eq!(result.labels("kvtier_tier_info", "size_source"), ["flag"]);
    // 20,971,520 ÷ 67,108,864
    assert_eq!(tier(&result, FILL, "lmcache_cpu"), 0.3125);
    assert_eq!(tier(&result, FILL_BYTES, "lmcache_cpu"), 20_971_520.0);
    let full = declared(&fixture("lmcache-0.5.6-real-storage-cpu-2-full"), &[("lmcache_cpu", 67_108_864)]);
    assert_eq!(tier(&full, FILL, "lmcache_cpu"), 1.0);
}

#[test]
fn each_rank_holds_its_own_bytes() {
    // 6 GiB + 6 GiB of 16 GiB; 10 GiB + 10 GiB on disk.
    let result = declared(&fixture("lmcache-0.5.6-vllm-page-tp2"), &[("lmcache_cpu", 16 * GIB)]);
    assert_eq!(tier(&result, FILL, "lmcache_cpu"), 0.75);
    assert_eq!(result.outcome.snapshot.disk_claimed.unwrap().value, 21_474_836_480.0);
}

#[test]
fn of_several_processes_of_one_worker_the_largest_counts() {
    let page = Page::new()
        .raw("lmcache:local_cache_usage", r#"model_name="m",pid="1",worker_id="0""#, "0.0")
        .raw("lmcache:local_cache_usage", r#"model_name="m",pid="2",worker_id="0""#, "2048")
        .raw("lmcache:local_cache_usage", r#"model_name="m",pid="3",worker_id="0""#, "1024");
    assert_eq!(tier(&declared(&page, &[("lmcache_cpu", 4096)]), FILL, "lmcache_cpu"), 0.5);
}

#[test]
fn the_schedulers_zero_is_no_empty_tier() {
    let labels = r#"model_name="m",role="scheduler",worker_id="0""#;
    let page =
        Page::new().raw("lmcache:local_cache_usage", labels, "0.0").raw("lmcache:local_storage_usage", labels, "0.0");
    let result = declared(&page, &[("lmcache_cpu", GIB), ("lmcache_disk", GIB)]);
    assert!(result.absent("kvtier_tier_info"));
    assert_eq!(result.outcome.snapshot.disk_claimed, None);
}

#[test]
fn no_bytes_are_made_of_tokens() {
    let result = declared(&fixture("lmcache-0.5.6-cpu"), &[("lmcache_cpu", 32 * GIB)]);
    assert_eq!(tier(&result, FILL, "lmcache_cpu"), 1.0);
    for family in [
        "kvtier_tier_stored_bytes_total",
        "kvtier_tier_reloaded_bytes_total",
        "kvtier_tier_store_seconds_total",
        "kvtier_tier_reload_seconds_total",
        "kvtier_tier_store_speed_bytes_per_second",
        "kvtier_tier_reload_speed_bytes_per_second",
        "kvtier_tier_reset_hint",
        "kvtier_kv_bytes_per_token",
    ] {
        assert!(result.absent(family), "{family}");
    }
}

// LMCache inside the engine: the disk.

#[test]
fn what_lmcache_believes_of_its_disk_is_never_a_fill() {
    let result = declared(&fixture("lmcache-0.5.6-disk"), &[("lmcache_disk", 32 * GIB)]);
    assert_eq!(tier(&result, "kvtier_tier_size_bytes", "lmcache_disk"), 34_359_738_368.0);
    assert_eq!(result.labels("kvtier_tier_info", "medium"), ["disk"]);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["none"]);
    assert!(result.absent(FILL) && result.absent(FILL_BYTES));
    assert_eq!(result.outcome.snapshot.disk_claimed.unwrap().value, 34_359_738_368.0);
}

#[test]
fn a_disk_of_which_nothing_is_claimed_is_a_tier_only_where_declared() {
    let page = fixture("lmcache-0.5.6-real-storage-0-fresh");
    assert!(run(&page).absent("kvtier_tier_info"));
    assert_eq!(tiers(&declared(&page, &[("lmcache_disk", 33_554_432)])), ["lmcache_disk"]);
    // The belief of 0 is kept: after a restart it stands beside old files.
    assert_eq!(run(&page).outcome.snapshot.disk_claimed.unwrap().value, 0.0);
    assert_eq!(tiers(&run(&fixture("lmcache-0.5.6-real-storage-1-partial"))), ["lmcache_disk"]);
}

#[test]
fn a_declared_tier_exists_on_vllms_page_also_where_lmcache_shows_nothing() {
    let page = Page::vllm().sample("vllm:prompt_tokens_total", "", "1");
    let result = declared(&page, &[("lmcache_disk", 250 * GIB)]);
    // 250 × 2^30
    assert_eq!(tier(&result, "kvtier_tier_size_bytes", "lmcache_disk"), 268_435_456_000.0);
    assert_eq!(result.labels("kvtier_tier_info", "connector"), ["unknown"]);
    assert!(result.absent(FILL));
}

// LMCache inside the engine: names.

#[test]
fn the_oldest_names_have_bytes_and_no_lookups() {
    let result = declared(&fixture("lmcache-0.3.3-tp2"), &[("lmcache_cpu", 8 * GIB)]);
    // (3 GiB + 1 GiB) ÷ 8 GiB
    assert_eq!(tier(&result, FILL, "lmcache_cpu"), 0.5);
    assert!(result.absent(LOOKUP_RATIO));
}

#[test]
fn an_underscore_for_the_colon_is_the_same_name() {
    let page = fixture("lmcache-0.5.6-cpu");
    let underscores = Page::new().text(&page.written().replace("lmcache:", "lmcache_"));
    let (colon, underscore) = (run(&page), run(&underscores));
    assert_eq!(underscore.value(LOOKUP_RATIO), colon.value(LOOKUP_RATIO));
    let sglang = Page::new().text(&fixture("sglang-0.5.23-hicache").written().replace("sglang:", "sglang_"));
    assert_eq!(tiers(&run(&sglang)), ["hicache_host"]);
}

#[test]
fn created_series_are_no_values() {
    let page = fixture("lmcache-0.5.6-disk");
    assert!(page.written().contains("lmcache:num_lookup_hits_created{"));
    assert_eq!(run(&page).value(LOOKUP_RATIO), 0.450_070_588_235_294_1);
}

// LMCache as a server.

#[test]
fn the_servers_pool_is_a_tier_without_being_declared() {
    let idle = run(&fixture("lmcache_mp-0.5.6-idle"));
    assert_eq!(tiers(&idle), ["lmcache_cpu"]);
    assert_eq!(idle.labels("kvtier_tier_info", "bound_basis"), ["none"]);
    assert_eq!(idle.outcome.snapshot.dialects, ["lmcache_mp"]);
    // Without a size its own ratio, which is relative to a pool that grows, is not taken instead.
    assert!(idle.absent(FILL));
    // 0.0625 GiB; a counter that has not started is no 0.
    let sized = declared(&fixture("lmcache_mp-0.5.6-idle"), &[("lmcache_cpu", 67_108_864)]);
    assert_eq!(tier(&sized, FILL, "lmcache_cpu"), 0.0);
    assert!(sized.absent("kvtier_tier_stored_bytes_total") && sized.absent(LOOKUP_RATIO));
}

#[test]
fn the_servers_fill_is_its_bytes_by_the_declared_size() {
    // 12 GiB ÷ 20 GiB; the page's own ratio says 0.6 too, so another size shows which is used: 12 ÷ 48.
    let page = fixture("lmcache_mp-0.5.6-busy");
    assert_eq!(tier(&declared(&page, &[("lmcache_cpu", 48 * GIB)]), FILL, "lmcache_cpu"), 0.25);
}

#[test]
fn of_the_servers_copies_the_phase_that_crosses_the_bus_counts() {
    let result = run(&fixture("lmcache_mp-0.5.6-busy"));
    // 6e9 + 4e9 B in 0.5 + 0.5 s of two devices; 2.4e10 B in 2 s.
    assert_eq!(tier(&result, "kvtier_tier_stored_bytes_total", "lmcache_cpu"), 1e10);
    assert_eq!(tier(&result, "kvtier_tier_store_seconds_total", "lmcache_cpu"), 1.0);
    assert_eq!(tier(&result, "kvtier_tier_store_speed_bytes_per_second", "lmcache_cpu"), 1e10);
    assert_eq!(tier(&result, "kvtier_tier_reloaded_bytes_total", "lmcache_cpu"), 2.4e10);
    assert_eq!(tier(&result, "kvtier_tier_reload_speed_bytes_per_second", "lmcache_cpu"), 1.2e10);
}

#[test]
fn the_servers_lookups_are_those_of_all_tenants_of_a_model() {
    let result = run(&fixture("lmcache_mp-0.5.6-busy"));
    // (450,000 + 50,000) ÷ (600,000 + 200,000)
    assert_eq!(with(&result, LOOKUP_RATIO, "model_name", "acme/m"), [0.625]);
    // What its levels found includes what the GPU held.
    assert!(result.absent("kvtier_tier_served_tokens_total"));
}

#[test]
fn only_files_are_claimed_on_disk() {
    let result = run(&fixture("lmcache_mp-0.5.6-busy"));
    assert_eq!(tiers(&result), ["lmcache_cpu", "lmcache_disk"]);
    // 8 GiB in files; the 0.5 GiB of the remote store are not there.
    assert_eq!(result.outcome.snapshot.disk_claimed.unwrap().value, 8_589_934_592.0);
    assert!(with(&result, FILL, "tier", "lmcache_disk").is_empty());
}

#[test]
fn the_server_belongs_to_the_only_engine_beside_it() {
    let server = fixture("lmcache_mp-0.5.6-busy");
    let engine = |engine| format!(r#"engine="{engine}",model_name="acme/m""#);
    let one = run_beside(&Page::new().raw("vllm:prompt_tokens_total", &engine("0"), "1"), &server);
    assert_eq!(one.labels("kvtier_tier_info", "engine"), ["0", "0"]);
    assert_eq!(one.values(LOOKUP_RATIO), [0.625]);
    // Shared by two engines it is neither's; its lookups are still the model's.
    let two = Page::new()
        .raw("vllm:prompt_tokens_total", &engine("0"), "1")
        .raw("vllm:prompt_tokens_total", &engine("1"), "1")
        .text(server.written());
    let result = declared(&two, &[("lmcache_cpu", 24 * GIB)]);
    assert_eq!(result.labels("kvtier_tier_info", "engine"), ["", ""]);
    assert_eq!(tier(&result, FILL, "lmcache_cpu"), 0.5);
    assert_eq!(result.labels(LOOKUP_RATIO, "model_name"), ["acme/m"]);
    assert_eq!(result.values(LOOKUP_RATIO), [0.625]);
}

#[test]
fn one_engine_and_one_model_of_the_server_belong_together_under_any_name() {
    let server = fixture("lmcache_mp-0.5.6-busy");
    let served = Page::new().raw("vllm:prompt_tokens_total", r#"engine="0",model_name="assistant""#, "1");
    let result = run(&served.clone().text(server.written()));
    assert_eq!(result.labels(LOOKUP_RATIO, "model_name"), ["assistant"]);
    let other = r#"cache_salt="",model_name="acme/other""#;
    let two = served.text(server.written()).raw("lmcache_mp_lookup_requested_tokens_total", other, "10");
    assert_eq!(run(&two).labels(LOOKUP_RATIO, "model_name"), ["acme/m"]);
}

#[test]
fn a_ram_tier_declared_for_vllm_is_not_the_servers() {
    let page = Page::vllm()
        .sample("vllm:prompt_tokens_total", "", "1")
        .raw("vllm:prompt_tokens_total", r#"engine="1",model_name="acme/m""#, "1")
        .text(fixture("lmcache_mp-0.5.6-busy").written());
    let result = declared(&page, &[("ram", GIB)]);
    assert_eq!(with(&result, "kvtier_tier_size_bytes", "tier", "ram").len(), 2);
    assert_eq!(result.labels("kvtier_tier_size_bytes", "engine"), ["0", "1"]);
}

#[test]
fn the_server_and_a_client_in_the_engine_are_one_use_of_ram() {
    let page = Page::new().raw("lmcache:local_cache_usage", r#"model_name="acme/m",worker_id="0""#, "4.93e+09").raw(
        "lmcache_mp_l1_memory_usage_bytes",
        r#"lmcache_instance_id="i1""#,
        "4.93e+09",
    );
    let result = declared(&page, &[("lmcache_cpu", 9_860_000_000)]);
    assert_eq!(tier(&result, FILL_BYTES, "lmcache_cpu"), 4.93e9);
    assert_eq!(tier(&result, FILL, "lmcache_cpu"), 0.5);
}

#[test]
fn the_servers_names_of_each_version_are_known() {
    for page in ["lmcache_mp-0.4.1-busy", "lmcache_mp-0.4.4-busy"] {
        let result = declared(&fixture(page), &[("lmcache_cpu", 20 * GIB)]);
        assert_eq!(tiers(&result), ["lmcache_cpu"], "{page}");
        assert!(result.absent(FILL) && result.absent(LOOKUP_RATIO), "{page}");
    }
    let result = declared(&fixture("lmcache_mp-0.4.7-busy"), &[("lmcache_cpu", 20 * GIB)]);
    // 10 GiB ÷ 20 GiB, although the page says 0.9 of the pool so far; 768,000 ÷ 1,024,000.
    assert_eq!(tier(&result, FILL, "lmcache_cpu"), 0.5);
    assert_eq!(result.value(LOOKUP_RATIO), 0.75);
    assert_eq!(result.outcome.snapshot.disk_claimed.unwrap().value, 21_474_836_480.0);
    assert!(result.absent("kvtier_tier_stored_bytes_total"));
}

// SGLang.

#[test]
fn without_hicache_there_is_no_tier_and_no_zero_of_one() {
    let result = run(&fixture("sglang-0.5.23-no-tier"));
    assert_eq!(result.outcome.snapshot.engine_kind, Some("sglang"));
    assert!(result.absent("kvtier_tier_info"));
    assert!(result.absent("kvtier_tier_served_tokens_total"));
    assert_eq!(result.labels("kvtier_prompt_tokens_total", "source"), ["computed", "gpu_cache"]);
    // 400,000 ÷ (400,000 + 600,000 + 0 + 0); the gauge of the last batch says 0.9.
    assert_eq!(result.value("kvtier_prefill_computed_ratio"), 0.4);
    assert_eq!(result.value("kvtier_gpu_pool_tokens"), 200_000.0);
    assert_eq!(result.labels("kvtier_gpu_pool_tokens", "engine"), [""]);
    assert_eq!(result.labels("kvtier_gpu_pool_tokens", "model_name"), ["acme/m"]);
}

#[test]
fn a_size_declared_for_vllm_makes_no_tier_of_sglang() {
    let sizes = [("ram", GIB), ("lmcache_cpu", GIB), ("hicache_host", GIB)];
    assert!(declared(&fixture("sglang-0.5.23-no-tier"), &sizes).absent("kvtier_tier_info"));
}

#[test]
fn the_host_pool_is_measured_in_tokens() {
    let result = run(&fixture("sglang-0.5.23-hicache"));
    assert_eq!(tiers(&result), ["hicache_host"]);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["measured"]);
    // 300,000 ÷ 400,000
    assert_eq!(tier(&result, FILL, "hicache_host"), 0.75);
    assert!(result.absent(FILL_BYTES) && result.absent("kvtier_tier_size_bytes"));
    assert_eq!(tier(&result, "kvtier_tier_size_tokens", "hicache_host"), 400_000.0);
    // 200,000 ÷ 1,000,000
    assert_eq!(result.value("kvtier_prefill_computed_ratio"), 0.2);
    assert_eq!(with(&result, "kvtier_prompt_tokens_total", "source", "external"), [300_000.0]);
    assert_eq!(result.labels("kvtier_tier_served_tokens_total", "source"), ["ram"]);
    assert_eq!(result.values("kvtier_tier_served_tokens_total"), [300_000.0]);
    // 2.4e10 B ÷ 2 s and 3e10 B ÷ 3 s
    assert_eq!(tier(&result, "kvtier_tier_reload_speed_bytes_per_second", "hicache_host"), 1.2e10);
    assert_eq!(tier(&result, "kvtier_tier_store_speed_bytes_per_second", "hicache_host"), 1e10);
}

#[test]
fn the_engines_own_tokens_stay_where_the_flag_has_no_size_to_divide() {
    let page = fixture("sglang-0.5.23-hicache");
    let flag = run_with(&page, |settings, _| settings.bytes_per_token = Some(1024.0));
    assert_eq!(tier(&flag, "kvtier_tier_size_tokens", "hicache_host"), 400_000.0);
    let both = run_with(&page, |settings, _| {
        settings.bytes_per_token = Some(1024.0);
        settings.tier_sizes = [("hicache_host".to_owned(), GIB)].into();
    });
    // 2^30 ÷ 2^10
    assert_eq!(tier(&both, "kvtier_tier_size_tokens", "hicache_host"), 1_048_576.0);
}

#[test]
fn ranks_share_tokens_and_split_bytes() {
    let result = run(&fixture("sglang-0.5.23-hicache-tp2"));
    assert_eq!(tier(&result, "kvtier_tier_size_tokens", "hicache_host"), 400_000.0);
    assert_eq!(tier(&result, FILL, "hicache_host"), 0.75);
    assert_eq!(result.value("kvtier_gpu_pool_tokens"), 200_000.0);
    assert_eq!(result.values("kvtier_tier_served_tokens_total"), [300_000.0]);
    // 1.2e10 + 1.2e10 B in 1 + 1.5 s, summed over ranks: 9.6e9 B/s of one of them.
    assert_eq!(tier(&result, "kvtier_tier_reloaded_bytes_total", "hicache_host"), 2.4e10);
    assert_eq!(tier(&result, "kvtier_tier_reload_seconds_total", "hicache_host"), 2.5);
    assert_eq!(tier(&result, "kvtier_tier_reload_speed_bytes_per_second", "hicache_host"), 9.6e9);
    assert_eq!(tier(&result, "kvtier_tier_stored_bytes_total", "hicache_host"), 3e10);
}

#[test]
fn replicas_are_engines_and_each_speaks_through_its_first_rank() {
    let mut page = Page::new();
    // Attention data parallelism: ranks 0 and 1 are replica 0, ranks 2 and 3 are replica 1.
    for (dp, tp, used) in [("0", "1", "7"), ("0", "0", "100"), ("1", "3", "7"), ("1", "2", "200")] {
        let labels = format!(r#"dp_rank="{dp}",model_name="m",pp_rank="0",priority="",tp_rank="{tp}""#);
        page = page
            .raw("sglang:hicache_host_used_tokens", &labels, used)
            .raw("sglang:hicache_host_total_tokens", &labels, "400")
            .raw("sglang:max_total_num_tokens", &labels, "50");
    }
    // The cache's families name no model.
    for (dp, tp, bytes) in [("0", "0", "3"), ("0", "1", "4"), ("1", "2", "5"), ("1", "3", "6")] {
        let labels = format!(r#"cache_type="HiRadixCache",dp_rank="{dp}",pp_rank="0",tp_rank="{tp}""#);
        page = page.raw("sglang:hicache_backup_bytes_total", &labels, bytes);
    }
    let result = run(&page);
    // 100 ÷ 400 and 200 ÷ 400; 3 + 4 and 5 + 6 bytes.
    assert_eq!((result.labels(FILL, "dp_rank"), result.values(FILL)), (vec!["0", "1"], vec![0.25, 0.5]));
    assert_eq!(result.values("kvtier_gpu_pool_tokens"), [50.0, 50.0]);
    assert_eq!(result.values("kvtier_tier_stored_bytes_total"), [7.0, 11.0]);
}

#[test]
fn a_part_by_priority_is_not_the_whole() {
    let page = Page::new().raw("sglang:max_total_num_tokens", r#"model_name="m",priority="5",tp_rank="0""#, "1").raw(
        "sglang:max_total_num_tokens",
        r#"model_name="m",priority="",tp_rank="0""#,
        "400",
    );
    assert_eq!(run(&page).value("kvtier_gpu_pool_tokens"), 400.0);
}

#[test]
fn copies_that_were_never_counted_are_unknown_and_no_zero() {
    let result = run(&fixture("sglang-0.5.23-hicache-storage-file"));
    for family in [
        "kvtier_tier_stored_bytes_total",
        "kvtier_tier_reloaded_bytes_total",
        "kvtier_tier_store_seconds_total",
        "kvtier_tier_reload_seconds_total",
        "kvtier_tier_reset_hint",
    ] {
        assert!(result.absent(family), "{family}");
    }
}

#[test]
fn a_tier_that_has_served_nothing_yet_says_zero() {
    let page = fixture("sglang-0.5.23-hicache");
    let fresh = page.written().replace("300000.0", "0.0");
    let result = run(&Page::new().text(&fresh));
    assert_eq!(with(&result, "kvtier_tier_served_tokens_total", "source", "ram"), [0.0]);
    assert_eq!(with(&result, "kvtier_prompt_tokens_total", "source", "external"), [0.0]);
    // 200,000 ÷ (200,000 + 500,000 + 0)
    assert!((result.value("kvtier_prefill_computed_ratio") - 2.0 / 7.0).abs() < 1e-15);
}

#[test]
fn of_two_models_on_a_page_neither_owns_what_names_none() {
    let page = fixture("sglang-0.5.23-hicache");
    let page = page.raw("sglang:max_total_num_tokens", r#"model_name="acme/other",tp_rank="0""#, "5");
    let result = run(&page);
    assert_eq!(result.values("kvtier_gpu_pool_tokens"), [200_000.0, 5.0]);
    assert!(result.absent("kvtier_tier_reloaded_bytes_total"));
    assert_eq!(tier(&result, FILL, "hicache_host"), 0.75);
}

#[test]
fn a_storage_behind_the_pool_is_a_tier_of_its_own() {
    let page = fixture("sglang-0.5.23-hicache-storage-file");
    let result = run(&page);
    assert_eq!(tiers(&result), ["hicache_host", "hicache_storage"]);
    assert_eq!(result.labels("kvtier_tier_info", "medium"), ["ram", "disk"]);
    assert!(with(&result, FILL, "tier", "hicache_storage").is_empty());
    assert_eq!(with(&result, "kvtier_tier_served_tokens_total", "source", "ram"), [300_000.0]);
    assert_eq!(with(&result, "kvtier_tier_served_tokens_total", "source", "disk"), [200_000.0]);
    // 300,000 + 200,000; 100,000 ÷ 1,000,000
    assert_eq!(with(&result, "kvtier_prompt_tokens_total", "source", "external"), [500_000.0]);
    assert_eq!(result.value("kvtier_prefill_computed_ratio"), 0.1);
    let remote =
        Page::new().text(&page.written().replace(r#"storage_backend="file""#, r#"storage_backend="mooncake""#));
    assert_eq!(run(&remote).labels("kvtier_tier_info", "medium"), ["ram", "remote"]);
    assert_eq!(run(&remote).labels("kvtier_tier_served_tokens_total", "source"), ["ram", "unspecified"]);
}

#[test]
fn hits_of_a_tier_that_the_page_does_not_show_are_counted_without_its_name() {
    let result = run(&fixture("sglang-0.5.23-lmcache"));
    assert!(result.absent("kvtier_tier_info"));
    assert_eq!(result.labels("kvtier_tier_served_tokens_total", "source"), ["unspecified"]);
    assert_eq!(result.values("kvtier_tier_served_tokens_total"), [400_000.0]);
    // Its tier is on the page of the LMCache server, which then belongs to it.
    let both = run_beside(&fixture("sglang-0.5.23-lmcache"), &fixture("lmcache_mp-0.5.6-busy"));
    assert_eq!(both.labels("kvtier_tier_info", "model_name"), ["acme/m", "acme/m"]);
    assert_eq!(both.outcome.snapshot.engine_kind, Some("sglang"));
}

#[test]
fn before_the_first_prefill_there_is_no_share() {
    let mut page = Page::new();
    for mode in ["input", "device_hit", "host_hit", "storage_hit"] {
        page = page.raw("sglang:prefill_effective_tokens_total", &format!(r#"mode="{mode}",model_name="m""#), "0.0");
    }
    assert!(run(&page).absent("kvtier_prefill_computed_ratio"));
}

#[test]
fn pages_of_other_engines_pass_unchanged() {
    for name in ["lmcache-0.5.6-disk", "lmcache_mp-0.5.6-busy", "sglang-0.5.23-hicache-tp2"] {
        let page = fixture(name);
        assert_eq!(run(&page).page, page.written(), "{name}");
    }
}
