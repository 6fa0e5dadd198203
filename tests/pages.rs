//! Pages that are real and odd: older than all that is known, of hybrid models, with names in quotes, with figures that
//! contradict each other. The traps of each, with values worked out by hand.

#![allow(missing_docs, reason = "a test crate has no readers of its documentation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]

mod support;

use kvtier_exporter::events::Bounds;
use kvtier_exporter::family::encode;
use kvtier_exporter::pipeline::{Format, MAIN, Source, explain, is_garbage, process, survey};
use kvtier_exporter::settings::{ChunkBytes, HostFacts, Settings, SinceRest, Stream};
use support::captures;
use support::page::{Page, Result, run, run_sized, run_with};
use support::strict::check;

// Versions: told by families that came and left, and no further than they tell.

fn version(page: &Page) -> Option<String> {
    run(page).outcome.snapshot.version_range
}

/// What every version since 0.9 has.
fn base() -> Page {
    Page::vllm().sample("vllm:num_requests_running", "", "0").sample("vllm:prompt_tokens_total", "", "32")
}

#[test]
fn a_page_older_than_all_that_are_known_says_so() {
    // 0.10: both spellings of the GPU pool's gauge, and a configuration that knows nothing of offloading.
    let page_0_10 = base()
        .sample("vllm:gpu_cache_usage_perc", "", "9.7e-06")
        .sample("vllm:kv_cache_usage_perc", "", "9.7e-06")
        .sample("vllm:gpu_prefix_cache_queries_total", "", "32")
        .config(r#"block_size="16",num_gpu_blocks="6410",swap_space="4",swap_space_bytes="4294967296""#);
    assert_eq!(version(&page_0_10).as_deref(), Some("<0.14"));
    // 0.12: the flags are there and nothing is their default; no count of computed tokens for finished requests.
    let page_0_12 = base()
        .sample("vllm:request_prompt_tokens_sum", "", "32")
        .config(r#"block_size="16",kv_offloading_backend="None",kv_offloading_size="None""#);
    assert_eq!(version(&page_0_12).as_deref(), Some("<0.14"));
    // 0.13 counts them, and has no default yet.
    let page_0_13 = page_0_12.clone().sample("vllm:request_prefill_kv_computed_tokens_sum", "", "32");
    assert_eq!(version(&page_0_13).as_deref(), Some("<0.14"));
    // Another vLLM, without a configuration: the histograms tell.
    let histograms = base().sample("vllm:request_prompt_tokens_sum", "", "32");
    assert_eq!(version(&histograms).as_deref(), Some("<0.14"));
}

#[test]
fn a_page_of_the_oldest_known_version_is_none_older() {
    let page = |backend: &str| {
        base()
            .sample("vllm:request_prompt_tokens_sum", "", "32")
            .sample("vllm:request_prefill_kv_computed_tokens_sum", "", "32")
            .config(&format!(r#"block_size="16",kv_offloading_backend="{backend}",kv_offloading_size="None""#))
    };
    assert_eq!(version(&page("native")).as_deref(), Some("0.14-0.15"));
    // With LMCache in the place of the default 0.13 looks the same.
    assert_eq!(version(&page("lmcache")).as_deref(), Some("0.13-0.15"));
    let text = String::from_utf8(captures::named("vllm-0.14.0-offload-cpu").text()).unwrap();
    assert_eq!(version(&Page::new().text(&text)).as_deref(), Some("0.14-0.15"));
}

#[test]
fn what_no_family_tells_is_not_told() {
    let running = |page: Page| page.sample("vllm:num_requests_running", "", "1");
    assert_eq!(version(&running(Page::vllm())), None);
    // Since 0.16 prompt tokens stand beside their sources; how old a page without them is, nothing says.
    assert_eq!(version(&base()).as_deref(), Some("<0.16"));
    // Since 0.20 waiting requests stand beside their reasons.
    assert_eq!(version(&running(Page::vllm()).sample("vllm:num_requests_waiting", "", "0")).as_deref(), Some("<0.20"));
    // A configuration without default backend is older than 0.14, tokens by source are not.
    let torn = base().sample("vllm:prompt_tokens_by_source_total", r#"source="local_compute""#, "3").config("x=\"1\"");
    assert_eq!(version(&torn), None);
}

#[test]
fn a_label_that_is_empty_once_is_none_of_our_families() {
    // Prometheus takes such a page, and takes out the label with all its values.
    let page = Page::vllm().sample("vllm:kv_offload_store_bytes_total", r#"pod="",pod="b",pod="c",zone="z""#, "250");
    let result = sized(&page);
    assert_eq!(result.labels(FILL, "pod"), [""]);
    assert_eq!(result.labels(FILL, "zone"), ["z"]);
    assert!(check(encode(&result.outcome.families).as_bytes()).accepted());
}

// Shares that can be none: withheld and said, never cut to 0 or 1.

const USAGE: &str = "vllm:kv_offload_cpu_cache_usage_perc";
const FILL: &str = "kvtier_tier_fill_upper_bound_ratio";
const FILL_BYTES: &str = "kvtier_tier_fill_upper_bound_bytes";
const PINNED: &str = "kvtier_tier_pinned_ratio";
const COMPUTED: &str = "kvtier_prefill_computed_ratio";
const LOOKUPS: &str = "kvtier_lmcache_lookup_hit_ratio";
const ACTIVE: &str = "kvtier_correction_active";

/// A tier of 1000 bytes with 250 of them stored, so that its bound is 0.25.
fn quarter() -> Page {
    Page::vllm().sample("vllm:kv_offload_store_bytes_total", "", "250")
}

fn sized(page: &Page) -> Result {
    run_sized(page, 1000)
}

fn explained(page: &Page) -> String {
    let source = Source { name: MAIN.into(), body: page.written().to_owned().into(), format: Format::Text };
    let mut settings = Settings::default();
    settings.tier_sizes.insert("ram".into(), 1000);
    explain(&[source], &settings, &HostFacts::default())
}

/// The log names the family, and `/debug` the value and where it is from.
fn says(page: &Page, family: &str, value: &str, from: &[&str]) {
    let warnings = sized(page).warnings;
    let told = warnings.iter().filter(|line| line.contains(family) && line.contains("acme/m")).count();
    assert_eq!(told, 1, "{warnings:?}");
    let debug = explained(page);
    let line = debug.lines().find(|line| line.contains("withheld") && line.contains(family));
    let line = line.unwrap_or_else(|| panic!("nothing of {family} in\n{debug}"));
    assert!(line.contains(&format!("it would be {value},")), "{line}");
    assert!(from.iter().all(|from| line.contains(from)), "{line}");
}

#[test]
fn more_tokens_computed_than_prompted_are_no_share() {
    let page = |computed: &str| {
        Page::vllm().sample("vllm:prompt_tokens_total", "", "1000").sample(
            "vllm:prompt_tokens_by_source_total",
            r#"source="local_compute""#,
            computed,
        )
    };
    // 2500 ÷ 1000.
    assert!(sized(&page("2500")).absent(COMPUTED));
    says(&page("2500"), COMPUTED, "2.5", &["vllm:prompt_tokens_by_source_total", "vllm:prompt_tokens_total"]);
    // The counters stay: they are readings.
    assert_eq!(sized(&page("2500")).values("kvtier_prompt_tokens_total"), [2500.0]);
    // One token too many is a contradiction too; as many as there are is none.
    assert!(sized(&page("1001")).absent(COMPUTED));
    assert_eq!(sized(&page("1000")).value(COMPUTED), 1.0);
    assert!(sized(&page("1000")).warnings.iter().all(|line| !line.contains(COMPUTED)));
}

#[test]
fn the_log_says_the_same_of_a_contradiction_with_each_scrape() {
    let page = |computed: &str| {
        Page::vllm().sample("vllm:prompt_tokens_total", "", "1000").sample(
            "vllm:prompt_tokens_by_source_total",
            r#"source="local_compute""#,
            computed,
        )
    };
    assert_eq!(sized(&page("2500")).warnings, sized(&page("2600")).warnings);
}

#[test]
fn more_found_than_looked_up_is_no_share() {
    let page = |found: &str| {
        Page::vllm()
            .sample("vllm:prompt_tokens_total", "", "1")
            .raw("lmcache:num_lookup_tokens_total", r#"model_name="acme/m",worker_id="0""#, "40")
            .raw("lmcache:num_lookup_hits_total", r#"model_name="acme/m",worker_id="0""#, found)
    };
    assert!(sized(&page("50")).absent(LOOKUPS));
    says(&page("50"), LOOKUPS, "1.25", &["lmcache:num_lookup_hits_total", "lmcache:num_lookup_tokens_total"]);
    assert_eq!(sized(&page("10")).value(LOOKUPS), 0.25);
}

#[test]
fn a_tier_pinned_three_times_over_is_not_told_and_its_gauge_passes() {
    let page = quarter().sample(USAGE, "", "3.0");
    let result = sized(&page);
    assert!(result.absent(PINNED));
    says(&page, PINNED, "3", &[USAGE]);
    // What the gauge means nobody knows then: it passes, and that is said. The bound does not come of it.
    assert_eq!(result.upstream(USAGE), ["3.0"]);
    assert_eq!(result.value(ACTIVE), 0.0);
    assert!(
        result.warnings.iter().any(|line| line.contains(USAGE) && line.contains("no share")),
        "{:?}",
        result.warnings
    );
    assert!(explained(&page).contains("not corrected: the engine's own value is no share"));
    assert_eq!(result.tier(FILL), 0.25);
    // Below 0 and without end it is none either.
    for (impossible, shown) in [("-0.5", "-0.5"), ("+Inf", "inf")] {
        let page = quarter().sample(USAGE, "", impossible);
        let result = sized(&page);
        assert_eq!((result.upstream(USAGE), result.value(ACTIVE)), (vec![impossible], 0.0));
        assert!(result.absent(PINNED));
        says(&page, PINNED, shown, &[USAGE]);
    }
    // What rounding adds is no contradiction, and NaN claims nothing.
    for possible in ["1.0000000000000002", "NaN"] {
        assert_eq!(sized(&quarter().sample(USAGE, "", possible)).upstream(USAGE), ["0.25"], "{possible}");
    }
    assert_eq!(sized(&quarter().sample(USAGE, "", "1.0000000000000002")).tier(PINNED), 1.0);
}

#[test]
fn one_process_that_is_wrong_leaves_the_gauge_of_its_engine_alone() {
    let page = quarter().sample(USAGE, r#"pid="7""#, "0.0").sample(USAGE, r#"pid="8""#, "40.0");
    assert_eq!(sized(&page).upstream(USAGE), ["0.0", "40.0"]);
    // The engine beside it is corrected.
    let other = r#"engine="1",model_name="acme/m""#;
    let page = page.raw("vllm:kv_offload_store_bytes_total", other, "500").raw(USAGE, other, "0.0");
    assert_eq!(sized(&page).upstream(USAGE), ["0.0", "40.0", "0.5"]);
    assert_eq!(sized(&page).values(ACTIVE), [0.0, 1.0]);
}

#[test]
fn stores_under_way_in_more_than_the_whole_tier_bound_nothing() {
    let page = |share: &str| {
        quarter().sample(USAGE, "", "0.0").sample("vllm:kv_offload_cpu_cache_write_usage_perc", "", share)
    };
    let result = sized(&page("3.0"));
    assert!(result.absent(FILL) && result.absent(FILL_BYTES));
    assert_eq!(result.upstream(USAGE), ["0.0"]);
    says(&page("3.0"), FILL, "3", &["vllm:kv_offload_cpu_cache_write_usage_perc"]);
    // Less than nothing is as impossible, and is not taken for nothing.
    assert!(sized(&page("-0.5")).absent(FILL));
    says(&page("-0.5"), FILL, "-0.5", &["vllm:kv_offload_cpu_cache_write_usage_perc"]);
    // 250 stored and 0.5 × 1000 on their way.
    assert_eq!(sized(&page("0.5")).tier(FILL), 0.75);
}

#[test]
fn a_count_of_stored_bytes_that_cannot_be_read_leaves_the_gauge_alone() {
    for stored in ["-1", "NaN", "+Inf"] {
        let page = Page::vllm().sample("vllm:kv_offload_store_bytes_total", "", stored).sample(USAGE, "", "0.0");
        let result = sized(&page);
        assert!(result.absent(FILL));
        assert_eq!((result.upstream(USAGE), result.value(ACTIVE)), (vec!["0.0"], 0.0));
        assert!(explained(&page).contains("the bytes stored cannot be read"), "{}", explained(&page));
    }
}

#[test]
fn more_resident_than_the_size_is_no_share() {
    // A fork that measures: 1200 of 1000 bytes.
    let page = quarter().sample(USAGE, "", "0.0").sample("vllm:kv_offload_cpu_cache_occupied_bytes", "", "1200");
    let result = sized(&page);
    assert!(result.absent(FILL) && result.absent(FILL_BYTES));
    assert_eq!(result.upstream(USAGE), ["0.0"]);
    says(&page, FILL, "1.2", &["vllm:kv_offload_cpu_cache_occupied_bytes", "--tier.size"]);
    // SGLang's pool: 11 of 10 tokens.
    let labels = r#"model_name="acme/m""#;
    let pool = Page::new().raw("sglang:hicache_host_total_tokens", labels, "10");
    let pool = pool.raw("sglang:hicache_host_used_tokens", labels, "11");
    assert!(run(&pool).absent(FILL));
    says(&pool, FILL, "1.1", &["sglang:hicache_host_used_tokens", "sglang:hicache_host_total_tokens"]);
}

// Hybrid models: chunks of several KV groups take whole slots, so that bytes bound nothing before slots are counted.

/// A tier of 1000 bytes, 250 of them stored, of an engine with these settings.
fn configured(labels: &str) -> Page {
    quarter().sample(USAGE, "", "0.0").config(labels)
}

fn pool(tokens: &str, blocks: &str, block_size: &str, concurrency: &str) -> String {
    format!(
        r#"block_size="{block_size}",kv_cache_max_concurrency="{concurrency}",kv_cache_size_tokens="{tokens}",num_gpu_blocks="{blocks}""#
    )
}

/// Nothing is said of the fill, and the gauge passes.
fn assert_shared(page: &Page, shown: &str) {
    let result = sized(page);
    assert!(result.absent(FILL) && result.absent(FILL_BYTES));
    assert_eq!((result.upstream(USAGE), result.value(ACTIVE)), (vec!["0.0"], 0.0));
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["none"]);
    assert!(result.warnings.iter().any(|line| line.contains("several KV groups")), "{:?}", result.warnings);
    let debug = explained(page);
    assert!(debug.contains(&format!("KV groups: several ({shown})")), "{debug}");
    assert!(debug.contains("fill: unknown: layers of several kinds share the tier"), "{debug}");
    // What is counted stays.
    assert_eq!(result.tier("kvtier_tier_stored_bytes_total"), 250.0);
    assert_eq!(result.tier("kvtier_tier_size_bytes"), 1000.0);
}

#[test]
fn mambas_settings_show_a_hybrid_model() {
    assert_shared(&configured(r#"mamba_block_size="32768",mamba_cache_mode="align""#), "mamba_block_size is set");
    assert_shared(
        &configured(r#"mamba_block_size="None",mamba_page_size_padded="2162688""#),
        "mamba_page_size_padded is set",
    );
    // As many bytes as fit have taken all slots.
    let full = configured(r#"mamba_block_size="512""#).text("").written().replace(" 250\n", " 1000\n");
    assert_eq!(sized(&Page::new().text(&full)).upstream(USAGE), ["1.0"]);
    // What every model has of them shows nothing.
    let plain = configured(
        r#"mamba_block_size="None",mamba_cache_dtype="auto",mamba_cache_mode="none",mamba_page_size_padded="None""#,
    );
    assert_eq!(sized(&plain).upstream(USAGE), ["0.25"]);
    assert!(explained(&plain).contains("assumed: one KV group"), "{}", explained(&plain));
}

#[test]
fn a_pool_that_holds_fewer_tokens_than_its_blocks_shows_several_groups() {
    let shown = "the pool holds fewer tokens than its blocks do";
    // Requests of 32,768 tokens in blocks of 16: 2,048 of full attention and 65 of a window of 1,024. Of 6,000 blocks
    // 2.8396 such requests fit, 93,047 tokens; one group would hold 96,000.
    assert_shared(&configured(&pool("93047", "6000", "16", "2.84")), shown);
    // Two groups that share the blocks half and half.
    assert_shared(&configured(&pool("48000", "6000", "16", "1.46")), shown);
    // One group, requests of 32,768 tokens; of 1,000 tokens, which take 63 blocks: 6,000 ÷ 63 × 1,000.
    for one in [pool("96000", "6000", "16", "2.93"), pool("95238", "6000", "16", "95.24")] {
        assert_eq!(sized(&configured(&one)).upstream(USAGE), ["0.25"], "{one}");
    }
    // Windows alone: a request of full length takes few blocks, and the pool holds more tokens than its blocks.
    assert_eq!(sized(&configured(&pool("3024738", "6000", "16", "92.31"))).upstream(USAGE), ["0.25"]);
    // What is not stated shows nothing.
    assert_eq!(sized(&configured(&pool("48000", "None", "16", "1.46"))).upstream(USAGE), ["0.25"]);
    assert_eq!(sized(&configured(r#"block_size="16",num_gpu_blocks="6000""#)).upstream(USAGE), ["0.25"]);
}

#[test]
fn the_blocks_of_the_page_are_those_of_all_its_engines() {
    // Engines of 7,150 and 7,140 blocks of 32 tokens, each with the sum of both.
    let page = |first: &str, second: &str| {
        let [first, second] = [first, second].map(|tokens| pool(tokens, "14290", "32", "3.49"));
        let other = r#"engine="1",model_name="acme/m""#;
        configured(&first).raw("vllm:kv_offload_store_bytes_total", other, "500").raw(USAGE, other, "0.0").raw(
            "vllm:cache_config_info",
            &format!(r#"engine="1",{second}"#),
            "1.0",
        )
    };
    assert_eq!(sized(&page("228800", "228480")).upstream(USAGE), ["0.25", "0.5"]);
    assert_eq!(sized(&page("114400", "114240")).upstream(USAGE), ["0.0", "0.0"]);
}

#[test]
fn of_two_engines_the_hybrid_one_is_left_alone() {
    let other = r#"engine="1",model_name="acme/hybrid""#;
    let page = configured(r#"mamba_block_size="None""#)
        .raw("vllm:kv_offload_store_bytes_total", other, "500")
        .raw(USAGE, other, "0.0")
        .raw("vllm:cache_config_info", r#"engine="1",mamba_block_size="512""#, "1.0");
    let result = sized(&page);
    assert_eq!(result.upstream(USAGE), ["0.25", "0.0"]);
    assert_eq!(result.labels(FILL, "engine"), ["0"]);
    assert!(result.help(USAGE).contains("Replaced only where kvtier_correction_active is 1"));
}

#[test]
fn slots_bound_a_hybrid_model_too_while_none_was_refused() {
    // 4 slots of 250 bytes; 3 handed out for 250 bytes.
    let info = r#"cpu_blocks_per_chunk="1",cpu_kv_cache_size_bytes="1000",cpu_num_chunks="4""#;
    let page = configured(r#"mamba_block_size="512""#).sample("vllm:kv_offload_config_info", info, "1.0");
    let counted = page.clone().sample("vllm:kv_offload_cpu_allocation_size_sum", "", "3");
    assert_eq!(sized(&counted).upstream(USAGE), ["0.75"]);
    assert!(!explained(&counted).contains("assumed"));
    let refused = counted.sample("vllm:kv_offload_allocation_failure_total", "", "1");
    assert_shared(&refused, "mamba_block_size is set");
    // The hybrid of 0.33 among the captures says so with Mamba's settings filled in as well.
    let text = String::from_utf8(captures::named("vllm-0.33.0-offload-hybrid-slots").text()).unwrap();
    let hybrid = text.replace("mamba_block_size=\"None\"", "mamba_block_size=\"512\"");
    assert_ne!(text, hybrid);
    assert_eq!(run(&Page::new().text(&hybrid)).upstream(USAGE), ["0.75"]);
}

#[test]
fn a_page_of_0_32_is_left_alone_as_a_hybrids_and_corrected_as_anothers() {
    let text = String::from_utf8(captures::named("vllm-0.32.0-offload-cpu-storeonly").text()).unwrap();
    // 10,000,000,000 of 34,359,738,368 bytes stored.
    let plain = Page::new().text(&text);
    assert_eq!(run(&plain).tier(FILL), 10_000_000_000.0 / 34_359_738_368.0);
    let hybrid =
        Page::new().text(&text.replace("mamba_page_size_padded=\"None\"", "mamba_page_size_padded=\"1081344\""));
    assert!(run(&hybrid).absent(FILL));
    assert_eq!(run(&hybrid).upstream(USAGE), ["0.0"]);
    // Bytes by slot mean nothing there, so none are told for a token.
    assert!(run(&hybrid).absent("kvtier_kv_bytes_per_token"));
}

#[test]
fn events_of_several_groups_show_a_hybrid_model_and_tell_no_bytes() {
    let page = configured(r#"mamba_block_size="None""#);
    let with = |page: &Page, several_groups: bool| {
        run_with(page, |settings, host| {
            settings.tier_sizes.insert("ram".into(), 1000);
            let bounds = Bounds { sure: 4, possible: 4, ..Bounds::default() };
            host.streams.push(Stream {
                rank: 0,
                bounds,
                several_groups,
                chunk: Some(ChunkBytes { bytes: 100.0, exact: true, by_page: true }),
                chunk_tokens: None,
                most: 0,
                evicts_at: None,
                resets: Some(0.0),
                counted: 0.0,
                alone: true,
                since_rest: Some(SinceRest { page_bytes: 0.0, chunks: 4.0 }),
            });
        })
    };
    // 4 chunks of 100 bytes of 1000.
    assert_eq!(with(&page, false).tier(FILL), 0.4);
    assert!(with(&page, true).absent(FILL));
    assert_eq!(with(&page, true).upstream(USAGE), ["0.0"]);
    assert!(with(&page, true).outcome.residents.is_empty());
    // Slots that the engine states are all alike: 4 of 4 × 250 bytes.
    let info = r#"cpu_blocks_per_chunk="1",cpu_kv_cache_size_bytes="1000",cpu_num_chunks="4""#;
    let stated = page.sample("vllm:kv_offload_config_info", info, "1.0");
    assert_eq!(with(&stated, true).tier(FILL), 1.0);
}

// Names in quotes: text 1.0.0, for Prometheus 2 and 3 alike.

/// What became of the page, and how many lines were dropped.
fn plain(page: &str) -> (String, u64) {
    let result = run(&Page::new().text(page));
    (result.page.clone(), result.outcome.reports[0].counts.dropped)
}

#[track_caller]
fn becomes(page: &str, text: &str, dropped: u64) {
    assert_eq!(plain(page), (text.to_owned(), dropped), "{page}");
}

#[test]
fn a_name_in_quotes_loses_them_and_what_was_never_allowed() {
    becomes(
        "# HELP \"http.lat\" Latency.\n# TYPE \"http.lat\" gauge\n{\"http.lat\",k=\"1\"} 4\n# TYPE ok gauge\nok{\"label.with.dot\"=\"v\"} 1\nok 2\n",
        "# HELP http_lat Latency.\n# TYPE http_lat gauge\nhttp_lat{k=\"1\"} 4\n# TYPE ok gauge\nok{label_with_dot=\"v\"} 1\nok 2\n",
        0,
    );
    // Names that were always allowed only lose the quotes; a label's name may hold no colon.
    becomes("{\"vllm:x_total\",\"a:b\"=\"c\"} 1\n", "vllm:x_total{a_b=\"c\"} 1\n", 0);
    // What is behind the braces stays: timestamps of text are milliseconds.
    becomes("{\"a.b\"} 1e+06 1700000000000\n", "a_b 1e+06 1700000000000\n", 0);
    becomes("{\"a.b\"}4\n", "a_b 4\n", 0);
    becomes(
        "{\"a.b\", \"c d\" = \"x \\\"y\\\" {z}, \\\\ \\n\" , }\t4\n",
        "a_b{c_d=\"x \\\"y\\\" {z}, \\\\ \\n\"} \t4\n",
        0,
    );
    becomes("{\"ä.1\"} 1\n{\"1.a\"} 2\n", "__1 1\n__a 2\n", 0);
    becomes("{\"a.b\"} 1\r\n", "a_b 1\n", 0);
    becomes("#  TYPE\t\"a.b\" gauge\n{\"a.b\"} 1", "# TYPE a_b gauge\na_b 1\n", 0);
    // A type or an exemplar that only OpenMetrics has.
    becomes("# TYPE \"a.b\" unknown\n{\"a.b\"} 1 # {t=\"x\"} 1\n", "# TYPE a_b untyped\na_b 1\n", 0);
}

#[test]
fn a_name_that_would_become_anothers_is_dropped_and_counted() {
    // One that was always allowed comes first, wherever it stands.
    becomes("{\"a.b\"} 1\n# TYPE a_b gauge\na_b 2\n", "# TYPE a_b gauge\na_b 2\n", 1);
    becomes("# TYPE \"a.b\" gauge\n{\"a.b\"} 1\n{\"a_b\"} 2\n", "a_b 2\n", 2);
    // Of two that were not the first on the page, with all its samples.
    becomes("{\"a.b\",k=\"1\"} 1\n{\"a-b\"} 2\n{\"a.b\",k=\"2\"} 3\n", "a_b{k=\"1\"} 1\na_b{k=\"2\"} 3\n", 1);
    // Names of labels that become one, and one that does not.
    becomes("x{\"a.b\"=\"1\",a_b=\"2\"} 1\nx{\"a.b\"=\"1\",a_c=\"2\"} 1\n", "x{a_b=\"1\",a_c=\"2\"} 1\n", 1);
    becomes("x{\"a.b\"=\"1\",\"a-b\"=\"2\"} 1\nx 2\n", "x 2\n", 1);
    // Prometheus would take out both for the empty one.
    becomes("x{\"a.b\"=\"\",a_b=\"2\"} 1\nx 2\n", "x 2\n", 1);
    let notes = run(&Page::new().text("a_b 1\n{\"a.b\"} 1\n")).outcome.reports.remove(0).notes;
    assert_eq!((notes.len(), notes[0].number), (1, 2));
    assert!(notes[0].reason.contains("another's without them"), "{notes:?}");
}

#[test]
fn what_is_malformed_in_quotes_is_dropped_and_the_rest_stays() {
    for bad in [
        "{\"a.b} 1",
        "{\"a.b\"",
        "{\"a.b\"} ",
        "{\"a.b\"} x",
        "{\"a.b\",\"c.d\"} 1",
        "{\"a.b\" 1",
        "{\"\"} 1",
        "{x=\"1\"} 1",
        "a{\"b.c\"} 1",
        "a{\"b.c\"=} 1",
        "# TYPE \"a.b gauge",
        "# TYPE \"a.b\" nonsense",
        "{\"a.b\"} 1 2 3",
        "{\"a.b\",\"\"=\"x\"} 1",
    ] {
        becomes(&format!("ok{{\"k.l\"=\"1\"}} 1\n{bad}\nok 2\n"), "ok{k_l=\"1\"} 1\nok 2\n", 1);
    }
    let page = [&b"ok 1\n{\"a.\xff\"} 1\n{\"a.b\"} 1\n"[..]].concat();
    let source = Source { name: MAIN.into(), body: page.into(), format: Format::Text };
    let outcome = process(&[source], &Settings::default(), &HostFacts::default());
    assert_eq!(outcome.page.concat(), b"ok 1\na_b 1\n");
    assert_eq!(outcome.reports[0].counts.dropped, 1);
}

#[test]
fn a_page_without_names_in_quotes_stays_whatever_its_values_look_like() {
    let page = "a{k=\"{\\\"x.y\\\"} 1\"} 1\na{k=\"\n{\\\"x.y\\\"} 1\n\"} 2\n# {\"x.y\"} 1\n# HELP a {\"x.y\"}\n";
    becomes(page, page, 0);
    // The same where another line has such a name.
    becomes(&format!("{page}{{\"b.c\"}} 1\n"), &format!("{page}b_c 1\n"), 0);
}

#[test]
fn vllms_families_in_quotes_are_recognised_and_corrected() {
    let page = Page::new().text(
        "# HELP \"vllm:kv_offload_cpu_cache_usage_perc\" Usage.\n\
         # TYPE \"vllm:kv_offload_cpu_cache_usage_perc\" gauge\n\
         {\"vllm:kv_offload_cpu_cache_usage_perc\",engine=\"0\",model_name=\"acme/m\"} 0.0\n\
         {\"vllm:kv_offload_store_bytes_total\",engine=\"0\",\"model_name\"=\"acme/m\"} 250\n\
         {\"kvtier_tier_info\",tier=\"ram\"} 1\n",
    );
    let result = sized(&page);
    assert_eq!(result.lines(USAGE), [format!("{USAGE}{{engine=\"0\",model_name=\"acme/m\"}} 0.25")]);
    assert!(result.help(USAGE).starts_with("Upper bound"));
    assert_eq!((result.tier(FILL), result.value(ACTIVE)), (0.25, 1.0));
    // What stands there of ours in quotes goes as it does without them.
    assert!(result.page.lines().all(|line| !line.starts_with("kvtier_")));
    assert_eq!(result.outcome.reports[0].counts.dropped, 0);
    assert!(explained(&page).contains("after: 0.25"));
}

#[test]
fn openmetrics_has_no_name_twice_either() {
    let run = |page: &str| {
        let source = Source { name: MAIN.into(), body: page.to_owned().into(), format: Format::OpenMetrics };
        let outcome = process(&[source], &Settings::default(), &HostFacts::default());
        (String::from_utf8(outcome.page.concat()).unwrap(), outcome.reports[0].counts.dropped)
    };
    let page = "# TYPE a_b counter\na_b_total 1\n# TYPE \"a.b\" counter\n{\"a.b_total\"} 2\n# TYPE \"c.d\" gauge\n{\"c.d\"} 3\n\
                {\"c-d\"} 4\nx{\"k.l\"=\"\",k_l=\"1\"} 5\n# EOF\n";
    let text = "# TYPE a_b_total counter\na_b_total 1\n# TYPE c_d gauge\nc_d 3\n";
    assert_eq!(run(page), (text.to_owned(), 4));
}

#[test]
fn quotes_on_a_further_page_and_on_the_main_page_beside_it() {
    let source =
        |name: &str, page: &str| Source { name: name.into(), body: page.to_owned().into(), format: Format::Text };
    let pages = [source(MAIN, "{\"a.b\"} 1\n"), source("extra", "{\"a.b\"} 2\n{\"c.d\"} 3\n")];
    let outcome = process(&pages, &Settings::default(), &HostFacts::default());
    assert_eq!(String::from_utf8(outcome.page.concat()).unwrap(), "a_b 1\nc_d 3\n");
    assert_eq!(outcome.reports[1].merged_out, 1);
    assert!(survey(&pages, &Settings::default()).names.iter().eq(["a_b", "c_d"]));
}

#[test]
fn a_page_of_names_in_quotes_alone_is_no_garbage() {
    let is_garbage = |page: &str| is_garbage(&page.to_owned().into(), Format::Text);
    assert!(!is_garbage("# TYPE \"a.b\" gauge\n{\"a.b\"} 1\n"));
    assert!(is_garbage("{\"detail\":\"Not Found\"}\n"));
}
