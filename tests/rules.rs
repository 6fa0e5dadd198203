//! The rules that are easy to get wrong, each on a page written by hand.
//!
//! Expected values are worked out in the comments, from the page and the contract, never from our own output.

#![allow(missing_docs, reason = "a test crate has no readers of its documentation")]

mod support;

use support::page::{Page, run, run_sized, run_with};

const GIB: f64 = 1_073_741_824.0;

/// The measured case of the reference box: a 32 GiB tier, 98.4 GB stored at 13.1 GB/s, 467 GiB reloaded at 13.4 GB/s,
/// raw gauge 0.0, 12 % of prompt tokens computed.
fn worked_case() -> Page {
    Page::vllm()
        .config(
            r#"kv_offloading_size="32.0",kv_offloading_backend="native",block_size="16",kv_cache_size_tokens="235074""#,
        )
        .sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "9.84e+10")
        // 98.4e9 B ÷ 13.1e9 B/s
        .sample("vllm:kv_offload_store_time_total", "", "7.511450381679389")
        // 467 × 2^30 B = 501,437,431,808 B
        .sample("vllm:kv_offload_load_bytes_total", "", "5.01437431808e+11")
        // 501,437,431,808 B ÷ 13.4e9 B/s
        .sample("vllm:kv_offload_load_time_total", "", "37.42070386626866")
        .sample("vllm:prompt_tokens_total", "", "1.7e+07")
        .sample("vllm:prompt_tokens_by_source_total", r#"source="local_compute""#, "2.04e+06")
        .sample("vllm:prompt_tokens_by_source_total", r#"source="local_cache_hit""#, "1.095115e+06")
        .sample("vllm:prompt_tokens_by_source_total", r#"source="external_kv_transfer""#, "1.3864885e+07")
        .sample("vllm:external_prefix_cache_hits_total", "", "1.3864885e+07")
        .sample("vllm:num_preemptions_total", "", "0")
}

#[test]
fn bytes_of_a_token_do_not_follow_from_reloads_that_something_else_moves() {
    let per_token = |page: &Page| -> Vec<String> {
        run(page).labels("kvtier_kv_bytes_per_token", "method").iter().map(ToString::to_string).collect()
    };
    assert_eq!(per_token(&worked_case()), ["loaded"]);
    // A resume reloads what is no hit. Where nobody counts preemptions there may have been some.
    let none = "vllm:num_preemptions_total{engine=\"0\",model_name=\"acme/m\"} 0\n";
    let instead = |line: &str| Page::vllm().text(&worked_case().written().replace(none, line));
    assert_eq!(per_token(&instead(&none.replace(" 0", " 1"))), [""; 0]);
    assert_eq!(per_token(&instead("")), [""; 0]);
    // Another connector, by any of its families, and a tier behind, by any of its own.
    for (other, labels) in [
        ("vllm:nixl_bytes_transferred_count", ""),
        ("vllm:nixl_xfer_time_seconds_sum", ""),
        ("vllm:mooncake_store_operation_time_seconds_count", ""),
        ("vllm:kv_offload_tiering_read_bytes_total", r#"tier="1:fs""#),
        ("vllm:kv_offload_tiering_read_bytes_total", r#"tier="2:obj""#),
        ("lmcache:local_storage_usage", r#"worker_id="0",role="worker""#),
    ] {
        assert_eq!(per_token(&worked_case().sample(other, labels, "0")), [""; 0], "{other}");
    }
    let declared = worked_case().text("# TYPE vllm:nixl_xfer_time_seconds histogram\n");
    assert_eq!(per_token(&declared), [""; 0]);
    // By tier: 501,437,431,808 ÷ 6,932,442 tokens of the host's. What a peer supplied tells of another connector.
    let by_tier =
        |source: &str, tokens: &str| {
            let labels = format!("source=\"{source}\"");
            worked_case()
                .sample("vllm:prompt_tokens_cached_by_source_total", r#"source="host""#, "6.932442e+06")
                .sample("vllm:prompt_tokens_cached_by_source_total", &labels, tokens)
        };
    assert_eq!(run(&by_tier("p2p", "0")).value("kvtier_kv_bytes_per_token"), 501_437_431_808.0 / 6_932_442.0);
    assert_eq!(per_token(&by_tier("p2p", "1")), [""; 0]);
    assert_eq!(per_token(&by_tier("external_unspecified", "1")), [""; 0]);
}

#[test]
fn the_worked_case_of_the_reference_box() {
    let by_flag = run_with(&worked_case(), |settings, _| settings.bytes_per_token = Some(36_166.0));
    let by_hits = run(&worked_case());
    for result in [&by_flag, &by_hits] {
        assert_eq!(result.upstream("vllm:kv_offload_cpu_cache_usage_perc"), ["1.0"]);
        assert_eq!(result.tier("kvtier_tier_size_bytes"), 34_359_738_368.0);
        // min(34,359,738,368, 98,400,000,000)
        assert_eq!(result.tier("kvtier_tier_fill_upper_bound_bytes"), 34_359_738_368.0);
        assert_eq!(result.tier("kvtier_tier_fill_upper_bound_ratio"), 1.0);
        assert_eq!(result.tier("kvtier_tier_pinned_ratio"), 0.0);
        // The quotients of the constants above, within the rounding of one division.
        assert!((result.tier("kvtier_tier_store_speed_bytes_per_second") / 13.1e9 - 1.0).abs() < 1e-15);
        assert!((result.tier("kvtier_tier_reload_speed_bytes_per_second") / 13.4e9 - 1.0).abs() < 1e-15);
        assert_eq!(result.value("kvtier_prefill_computed_ratio"), 0.12);
        // 34,359,738,368 ÷ 36,166 = 950,056.4…; 501,437,431,808 ÷ 13,864,885 = 36,166.0… gives the same whole number.
        assert_eq!(result.tier("kvtier_tier_size_tokens"), 950_056.0);
        assert_eq!(result.value("kvtier_gpu_pool_tokens"), 235_074.0);
        // 950,056 ÷ 235,074 = 4.0415…
        let pools = result.tier("kvtier_tier_size_tokens") / result.value("kvtier_gpu_pool_tokens");
        assert_eq!(format!("{pools:.2}"), "4.04");
    }
    assert_eq!(by_flag.labels("kvtier_kv_bytes_per_token", "method"), ["flag"]);
    assert_eq!(by_hits.labels("kvtier_kv_bytes_per_token", "method"), ["loaded"]);
}

// 1. Names.

#[test]
fn old_and_new_names_are_the_same_bytes_and_created_series_are_no_values() {
    let page = Page::vllm()
        .config(r#"kv_offloading_size="8.0",kv_offloading_backend="native""#)
        .sample("vllm:kv_offload_store_bytes_total", "", "3.429875712e+09")
        .sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="GPU_to_CPU""#, "3.429875712e+09")
        .sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="CPU_to_GPU""#, "7")
        .sample("vllm:kv_offload_total_bytes_created", r#"transfer_type="GPU_to_CPU""#, "1.795984744512269e+09")
        .sample("vllm:kv_offload_store_bytes_created", "", "1.795984744512269e+09");
    let result = run(&page);
    assert_eq!(result.tier("kvtier_tier_stored_bytes_total"), 3_429_875_712.0);
    // The new name says nothing of reloads here: the old one is the fallback, direction by direction.
    assert_eq!(result.tier("kvtier_tier_reloaded_bytes_total"), 7.0);
}

#[test]
fn the_new_name_wins_where_the_old_one_stands_still() {
    let page = Page::vllm().sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="gpu_TO_cpu""#, "0.0").sample(
        "vllm:kv_offload_store_bytes_total",
        "",
        "5e+09",
    );
    assert_eq!(run(&page).tier("kvtier_tier_stored_bytes_total"), 5e9);
}

#[test]
fn another_backends_transfers_make_no_ram_tier() {
    let page =
        Page::vllm().sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="GPU_to_SHARED_STORAGE""#, "5e+09");
    let result = run(&page);
    assert_eq!(result.labels("kvtier_tier_info", "tier"), ["shared_storage"]);
    assert!(result.absent("kvtier_tier_fill_upper_bound_bytes"));
}

// 2. One min for each engine, then sums.

#[test]
fn the_bound_is_taken_for_each_engine() {
    // 12.86e9 bytes each: bounds 8e9 and 12.86e9, in sum 20.86e9 and not min(25.72e9, 28e9).
    let mut page = Page::new();
    for (engine, stored) in [("0", "8e+09"), ("1", "2e+10")] {
        let labels = format!(r#"engine="{engine}",model_name="acme/m""#);
        page = page.raw("vllm:kv_offload_store_bytes_total", &labels, stored);
        page = page.raw("vllm:kv_offload_cpu_cache_usage_perc", &labels, "0.0");
    }
    let result = run_sized(&page, 12_860_000_000);
    assert_eq!(result.values("kvtier_tier_fill_upper_bound_bytes"), [8e9, 12.86e9]);
    // 8 ÷ 12.86
    assert_eq!(result.upstream("vllm:kv_offload_cpu_cache_usage_perc"), ["0.6220839813374806", "1.0"]);
}

#[test]
fn several_processes_of_one_engine_become_one_corrected_sample_without_pid() {
    let page = Page::vllm()
        .config(r#"kv_offloading_size="1.0",kv_offloading_backend="native""#)
        .sample("vllm:kv_offload_cpu_cache_usage_perc", r#"pid="271""#, "0.0")
        .sample("vllm:kv_offload_cpu_cache_usage_perc", r#"pid="273""#, "0.0225")
        .sample("vllm:kv_offload_cpu_cache_usage_perc", r#"pid="275""#, "0.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "5.36870912e+08");
    let result = run(&page);
    // 0.5 GiB of 1 GiB.
    assert_eq!(
        result.lines("vllm:kv_offload_cpu_cache_usage_perc"),
        [r#"vllm:kv_offload_cpu_cache_usage_perc{engine="0",model_name="acme/m"} 0.5"#]
    );
    assert_eq!(result.tier("kvtier_tier_pinned_ratio"), 0.0225);
}

#[test]
fn a_fact_without_model_joins_only_an_engine_with_one_model() {
    let two_models = Page::new()
        .raw("vllm:kv_offload_store_bytes_total", r#"engine="0",model_name="a""#, "1")
        .raw("vllm:kv_offload_store_bytes_total", r#"engine="0",model_name="b""#, "1")
        .raw("vllm:kv_offload_store_bytes_total", r#"engine="1",model_name="a""#, "1")
        .raw("vllm:cache_config_info", r#"engine="0",kv_offloading_backend="native",kv_offloading_size="2.0""#, "1.0")
        .raw("vllm:cache_config_info", r#"engine="1",kv_offloading_backend="native",kv_offloading_size="1.0""#, "1.0");
    let result = run(&two_models);
    // Engine 0 has two models: whose size that is nobody can say. Engine 1 has one.
    assert_eq!(result.values("kvtier_tier_size_bytes"), [GIB]);
    assert_eq!(result.values("kvtier_tier_stored_bytes_total").len(), 3);
}

#[test]
fn an_engine_that_is_missing_in_the_byte_family_has_stored_nothing_yet() {
    let page = Page::new()
        .raw("vllm:prompt_tokens_total", r#"engine="0",model_name="m""#, "10")
        .raw("vllm:prompt_tokens_total", r#"engine="1",model_name="m""#, "10")
        .raw("vllm:kv_offload_store_bytes_total", r#"engine="0",model_name="m""#, "9");
    assert_eq!(run(&page).values("kvtier_tier_stored_bytes_total"), [9.0, 0.0]);
}

#[test]
fn models_of_one_page_are_told_apart_and_one_without_the_connector_has_no_tier() {
    let page = Page::new()
        .raw("vllm:prompt_tokens_total", r#"engine="0",model_name="with""#, "10")
        .raw("vllm:prompt_tokens_total", r#"engine="0",model_name="without""#, "10")
        .raw("vllm:kv_offload_store_bytes_total", r#"engine="0",model_name="with""#, "9");
    assert_eq!(run(&page).labels("kvtier_tier_stored_bytes_total", "model_name"), ["with"]);
}

// 3. The terms of the bound.

fn ram_16_mib() -> Page {
    // 16 MiB in 1024 slots of 16 KiB, blocks of 32 tokens.
    Page::vllm().config(r#"block_size="32""#).sample(
        "vllm:kv_offload_config_info",
        r#"cpu_blocks_per_chunk="1",cpu_kv_cache_size_bytes="16777216",cpu_kv_cache_size_tokens="32768",cpu_num_chunks="1024""#,
        "1.0",
    )
}

#[test]
fn promotions_fill_the_tier_though_nothing_was_stored() {
    let page = Page::vllm().sample("vllm:kv_offload_store_bytes_total", "", "0.0").sample(
        "vllm:kv_offload_tiering_read_bytes_total",
        r#"tier="1:fs""#,
        "2.1e+10",
    );
    let result = run_sized(&page, 12_861_308_928);
    assert_eq!(result.values("kvtier_tier_fill_upper_bound_bytes"), [12_861_308_928.0]);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["stored+promoted", "none"]);
}

#[test]
fn wide_slots_bound_more_than_the_few_bytes_in_them() {
    // 264 slots handed out of 293 of 14,680,064 B each = 3,875,536,896 B, though only 240 MB were stored.
    let page = Page::vllm()
        .sample(
            "vllm:kv_offload_config_info",
            r#"cpu_blocks_per_chunk="1",cpu_kv_cache_size_bytes="4301258752",cpu_kv_cache_size_tokens="None",cpu_num_chunks="293""#,
            "1.0",
        )
        .sample("vllm:kv_offload_cpu_allocation_size_sum", "", "264")
        .sample("vllm:kv_offload_store_bytes_total", "", "2.4e+08");
    let result = run(&page);
    assert_eq!(result.tier("kvtier_tier_fill_upper_bound_bytes"), 3_875_536_896.0);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["stored+slots"]);
}

#[test]
fn refused_attempts_make_slots_useless_and_the_plain_rule_stays() {
    for refused in [
        ("vllm:kv_offload_allocation_failure_total", ""),
        ("vllm:kv_offload_tiering_promotion_allocation_failures_total", ""),
        ("vllm:kv_offload_tiering_promotion_job_failures_total", r#"tier="1:fs""#),
    ] {
        let page = ram_16_mib()
            .sample("vllm:kv_offload_cpu_allocation_size_sum", "", "900")
            .sample("vllm:kv_offload_store_bytes_total", "", "1638400")
            .sample(refused.0, refused.1, "1.0");
        let result = run(&page);
        assert_eq!(result.values("kvtier_tier_fill_upper_bound_bytes"), [1_638_400.0], "{}", refused.0);
        assert!(!result.labels("kvtier_tier_info", "bound_basis")[0].contains("slots"), "{}", refused.0);
    }
}

#[test]
fn stores_in_flight_are_added_once_however_many_processes_report_them() {
    // 16777216 × 0.25 + 4194304 = 8388608, half the tier.
    let page = ram_16_mib()
        .sample("vllm:kv_offload_cpu_cache_write_usage_perc", r#"pid="7""#, "0.25")
        .sample("vllm:kv_offload_cpu_cache_write_usage_perc", r#"pid="9""#, "0.0")
        .sample("vllm:kv_offload_cpu_cache_usage_perc", r#"pid="7""#, "0.25")
        .sample("vllm:kv_offload_store_bytes_total", "", "4194304");
    let result = run(&page);
    assert_eq!(result.tier("kvtier_tier_fill_upper_bound_ratio"), 0.5);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["stored+inflight"]);
    assert_eq!(result.upstream("vllm:kv_offload_cpu_cache_usage_perc"), ["0.5"]);
}

#[test]
fn all_terms_are_named_in_the_order_of_the_contract() {
    let page = ram_16_mib()
        .sample("vllm:kv_offload_cpu_cache_write_usage_perc", "", "0.0")
        .sample("vllm:kv_offload_cpu_allocation_size_sum", "", "100")
        .sample("vllm:kv_offload_store_bytes_total", "", "16384")
        .sample("vllm:kv_offload_tiering_read_bytes_total", r#"tier="1:fs""#, "16384");
    let result = run(&page);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis")[0], "stored+promoted+inflight+slots");
    // 100 slots of 16384 B outweigh the two that the bytes show.
    assert_eq!(result.values("kvtier_tier_fill_upper_bound_bytes"), [1_638_400.0]);
}

#[test]
fn promotions_that_no_family_counts_leave_the_fill_unknown() {
    // 0.26 and 0.27: lookups of secondary tiers are on the page, nothing of 0.28 is.
    let page = Page::vllm()
        .config(r#"kv_offloading_size="1.0",kv_offloading_backend="native""#)
        .sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "5e+08")
        .sample("vllm:kv_offload_tiering_lookup_sync_delay_seconds_count", r#"tier="1:fs""#, "12");
    let result = run(&page);
    assert!(result.absent("kvtier_tier_fill_upper_bound_ratio"));
    assert_eq!(result.upstream("vllm:kv_offload_cpu_cache_usage_perc"), ["0.0"]);
    // The secondary tier exists, but nothing counts its bytes: they are unknown and not 0.
    assert_eq!(result.labels("kvtier_tier_info", "tier"), ["ram", "1:fs"]);
    assert_eq!(result.labels("kvtier_tier_stored_bytes_total", "tier"), ["ram"]);
    // One family of 0.28 is enough for promotions to be counted, and the secondary tier then starts at 0.
    for family in ["active_promotion_jobs", "chunk_queries_total", "primary_read_usage_perc"] {
        let newer = page.clone().sample(&format!("vllm:kv_offload_tiering_{family}"), r#"tier="1:fs""#, "0.0");
        let result = run(&newer);
        assert_eq!(result.values("kvtier_tier_fill_upper_bound_bytes"), [5e8], "{family}");
        assert_eq!(result.values("kvtier_tier_reloaded_bytes_total"), [0.0, 0.0], "{family}");
    }
}

#[test]
fn a_measured_residency_wins_over_the_bound() {
    let page = Page::vllm()
        .config(r#"kv_offloading_size="1.0",kv_offloading_backend="native""#)
        .sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "9e+12")
        .sample("vllm:kv_offload_cpu_cache_occupied_bytes", "", "268435456");
    let result = run(&page);
    // A quarter of 1 GiB.
    assert_eq!(result.upstream("vllm:kv_offload_cpu_cache_usage_perc"), ["0.25"]);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["measured"]);
    assert!(
        result.help("vllm:kv_offload_cpu_cache_usage_perc").contains("as the engine or its KV cache events tell it")
    );
}

// 4. Zeros only where they are known.

#[test]
fn an_unconfigured_tier_does_not_exist() {
    let page = Page::vllm().config(r#"kv_offloading_size="None",kv_offloading_backend="native""#).sample(
        "vllm:prompt_tokens_total",
        "",
        "5",
    );
    let result = run(&page);
    for family in
        ["kvtier_tier_info", "kvtier_tier_size_bytes", "kvtier_tier_stored_bytes_total", "kvtier_tier_reset_hint"]
    {
        assert!(result.absent(family), "{family}");
    }
}

#[test]
fn a_size_without_the_connectors_families_gives_the_size_only() {
    for extra in ["", "# TYPE vllm:simple_kv_offload_info gauge\n"] {
        let page = Page::vllm().config(r#"kv_offloading_size="8.0",kv_offloading_backend="native""#).text(extra);
        let result = run(&page);
        assert_eq!(result.tier("kvtier_tier_size_bytes"), 8.0 * GIB);
        for family in
            ["kvtier_tier_stored_bytes_total", "kvtier_tier_fill_upper_bound_bytes", "kvtier_tier_reload_seconds_total"]
        {
            assert!(result.absent(family), "{family}");
        }
    }
}

#[test]
fn the_size_counts_only_with_backend_native() {
    let page = Page::vllm().config(r#"kv_offloading_size="8.0",kv_offloading_backend="lmcache""#);
    assert!(run(&page).absent("kvtier_tier_size_bytes"));
}

#[test]
fn a_type_line_alone_proves_the_connector() {
    let page = Page::vllm()
        .config(r#"kv_offloading_size="8.0",kv_offloading_backend="native""#)
        .text("# TYPE vllm:kv_offload_total_bytes_total counter\n");
    let result = run(&page);
    assert_eq!(result.tier("kvtier_tier_stored_bytes_total"), 0.0);
    assert_eq!(result.tier("kvtier_tier_reloaded_bytes_total"), 0.0);
    assert_eq!(result.tier("kvtier_tier_fill_upper_bound_ratio"), 0.0);
    assert!(result.absent("kvtier_tier_reload_speed_bytes_per_second"));
}

#[test]
fn bytes_without_a_size_have_counters_and_speeds_but_no_fill_and_that_is_said() {
    let page = Page::vllm()
        .config(r#"kv_offloading_size="None",kv_offloading_backend="native""#)
        .sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "2e+09")
        .sample("vllm:kv_offload_store_time_total", "", "0.5");
    let result = run(&page);
    assert_eq!(result.tier("kvtier_tier_store_speed_bytes_per_second"), 4e9);
    assert!(result.absent("kvtier_tier_fill_upper_bound_ratio"));
    assert_eq!(result.page, page.written());
    assert_eq!(result.value("kvtier_correction_active"), 0.0);
    assert!(result.warnings[0].contains("--tier.size"), "{:?}", result.warnings);
}

#[test]
fn the_simple_connectors_stored_outcomes_are_no_bytes_and_its_disk_is_no_ram() {
    let ram = Page::vllm()
        .config(r#"kv_offloading_size="8.0",kv_offloading_backend="native""#)
        .sample("vllm:simple_kv_offload_info", r#"backend="cpu",capacity_blocks="16384""#, "1.0")
        .sample("vllm:simple_kv_offload_save_outcomes_total", r#"outcome="stored""#, "46920");
    let result = run(&ram);
    assert_eq!(result.labels("kvtier_tier_info", "connector"), ["SimpleCPUOffloadConnector"]);
    assert!(result.absent("kvtier_tier_fill_upper_bound_bytes") && result.absent("kvtier_tier_stored_bytes_total"));
    let disk = Page::vllm().sample("vllm:simple_kv_offload_info", r#"backend="disk",capacity_blocks="9""#, "1.0");
    assert_eq!(run(&disk).labels("kvtier_tier_info", "tier"), ["disk"]);
}

#[test]
fn a_count_that_cannot_be_read_is_unknown_and_no_zero() {
    for bytes in ["NaN", "+Inf", "-100"] {
        let page = Page::vllm()
            .config(r#"kv_offloading_size="1.0",kv_offloading_backend="native""#)
            .sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.1")
            .sample("vllm:kv_offload_store_bytes_total", "", bytes)
            .sample("vllm:kv_offload_load_bytes_total", "", bytes);
        let result = run(&page);
        let families = [
            "kvtier_tier_stored_bytes_total",
            "kvtier_tier_reloaded_bytes_total",
            "kvtier_tier_fill_upper_bound_bytes",
        ];
        for family in families {
            assert!(result.absent(family), "{family} for {bytes}");
        }
        assert_eq!(result.page, page.written(), "{bytes}");
        assert_eq!(result.value("kvtier_correction_active"), 0.0, "{bytes}");
        // The old name says the same, where it can be read.
        let old = page.sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="GPU_to_CPU""#, "268435456");
        // A quarter of 1 GiB.
        assert_eq!(run(&old).tier("kvtier_tier_fill_upper_bound_ratio"), 0.25, "{bytes}");
    }
}

#[test]
fn promotions_that_cannot_be_read_leave_the_fill_unknown() {
    let page = Page::vllm()
        .config(r#"kv_offloading_size="1.0",kv_offloading_backend="native""#)
        .sample("vllm:kv_offload_store_bytes_total", "", "5")
        .sample("vllm:kv_offload_tiering_read_bytes_total", r#"tier="1:fs""#, "NaN");
    let result = run(&page);
    assert!(result.absent("kvtier_tier_fill_upper_bound_bytes"));
    assert_eq!(result.labels("kvtier_tier_reloaded_bytes_total", "tier"), ["ram"]);
}

#[test]
fn a_declared_size_that_fits_no_tier_is_said() {
    let page = Page::vllm().sample("vllm:kv_offload_store_bytes_total", "", "5");
    let said = |name: &str| {
        let result = run_with(&page, |settings, _| {
            settings.tier_sizes.insert(name.into(), 1);
        });
        result.warnings.iter().any(|line| line.contains("--tier.size") && line.contains(&format!("{name:?}")))
    };
    assert!(said("disc"));
    assert!(!said("ram"));
}

// The size's sources, in their order.

#[test]
fn the_size_is_found_in_the_order_of_trust() {
    let slots = r#"cpu_kv_cache_size_bytes="1000000",cpu_num_chunks="10""#;
    let page = Page::vllm().config(r#"kv_offloading_size="1.0",kv_offloading_backend="native""#).sample(
        "vllm:kv_offload_store_bytes_total",
        "",
        "1",
    );
    let informed = page.clone().sample("vllm:kv_offload_config_info", slots, "1.0");
    assert_eq!(run(&page).labels("kvtier_tier_info", "size_source"), ["cache_config"]);
    assert_eq!(run(&informed).labels("kvtier_tier_info", "size_source"), ["config_info"]);
    assert_eq!(run(&informed).tier("kvtier_tier_size_bytes"), 1e6);
    let told = |bytes| run_sized(&informed, bytes);
    assert_eq!(told(2_000_000).labels("kvtier_tier_info", "size_source"), ["flag"]);
    assert_eq!(told(2_000_000).tier("kvtier_tier_size_bytes"), 2e6);
    // One slot is 100,000 bytes: a difference of exactly one is no mismatch, one byte more is.
    assert_eq!(told(1_100_000).tier("kvtier_tier_size_mismatch"), 0.0);
    assert_eq!(told(1_100_001).tier("kvtier_tier_size_mismatch"), 1.0);
    assert!(run(&informed).absent("kvtier_tier_size_mismatch"));
}

#[test]
fn a_secondary_tiers_empty_info_labels_are_no_size() {
    let empty = r#"cpu_blocks_per_chunk="",cpu_kv_cache_size_bytes="",cpu_kv_cache_size_tokens="",cpu_num_chunks="",tier="1:fs""#;
    let primary = r#"cpu_kv_cache_size_bytes="4096",cpu_num_chunks="1",tier="0:primary""#;
    let page = Page::vllm()
        .text("# TYPE vllm:kv_offload_tiering_read_bytes_total counter\n")
        .sample("vllm:kv_offload_config_info", empty, "1.0")
        .sample("vllm:kv_offload_config_info", primary, "1.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "1");
    let result = run(&page);
    assert_eq!(result.labels("kvtier_tier_size_bytes", "tier"), ["ram"]);
    assert_eq!(result.labels("kvtier_tier_info", "medium"), ["ram", "disk"]);
}

#[test]
fn a_live_tier_file_gives_the_size_where_it_can_only_be_this_engines() {
    use kvtier_exporter::settings::LiveTierFile;
    let page = Page::vllm().sample("vllm:kv_offload_store_bytes_total", "", "1");
    let file = |id: &str| LiveTierFile { engine_id: id.into(), bytes: 4096 };
    let with = |files: Vec<LiveTierFile>| run_with(&page, move |_, host| host.live_tier_files = files);
    assert_eq!(with(vec![file("a")]).tier("kvtier_tier_size_bytes"), 4096.0);
    assert_eq!(with(vec![file("a")]).labels("kvtier_tier_info", "size_source"), ["shm_file"]);
    assert!(with(vec![file("a"), file("b")]).absent("kvtier_tier_size_bytes"));
    let two = page.clone().raw("vllm:prompt_tokens_total", r#"engine="1",model_name="acme/m""#, "1");
    assert!(run_with(&two, |_, host| host.live_tier_files = vec![file("a")]).absent("kvtier_tier_size_bytes"));
    // 0.16 to 0.19: their tiers do not lie in shared memory, so the file is a neighbour's.
    let old = Page::vllm().sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="GPU_to_CPU""#, "1").sample(
        "vllm:prompt_tokens_recomputed_total",
        "",
        "0",
    );
    let result = run_with(&old, |_, host| host.live_tier_files = vec![file("a")]);
    assert_eq!(result.outcome.snapshot.version_range.as_deref(), Some("0.16-0.19"));
    assert!(result.absent("kvtier_tier_size_bytes"));
}

// 5. and 6. Ratios and speeds.

#[test]
fn before_0_16_the_computed_share_is_of_finished_requests() {
    let old = Page::vllm()
        .sample("vllm:prompt_tokens_total", "", "1000")
        .sample("vllm:request_prompt_tokens_sum", "", "800")
        .sample("vllm:request_prefill_kv_computed_tokens_sum", "", "200");
    assert_eq!(run(&old).value("kvtier_prefill_computed_ratio"), 0.25);
    let new = old.sample("vllm:prompt_tokens_by_source_total", r#"source="local_compute""#, "100");
    assert_eq!(run(&new).value("kvtier_prefill_computed_ratio"), 0.1);
}

#[test]
fn the_share_is_of_prompt_tokens_and_not_of_the_sum_over_sources() {
    // 0.16 to 0.19 count one recomputed token more in the sources; a new source keeps its name.
    let page = Page::vllm()
        .sample("vllm:prompt_tokens_total", "", "1000")
        .sample("vllm:prompt_tokens_by_source_total", r#"source="local_compute""#, "500")
        .sample("vllm:prompt_tokens_by_source_total", r#"source="peer_transfer""#, "501");
    let result = run(&page);
    assert_eq!(result.value("kvtier_prefill_computed_ratio"), 0.5);
    assert_eq!(result.labels("kvtier_prompt_tokens_total", "source"), ["computed", "peer_transfer"]);
}

#[test]
fn nothing_divided_by_nothing_is_absent() {
    let page = Page::vllm()
        .sample("vllm:prompt_tokens_total", "", "0.0")
        .sample("vllm:prompt_tokens_by_source_total", r#"source="local_compute""#, "0.0")
        .sample("vllm:request_prefill_time_seconds_sum", "", "0.0")
        .sample("vllm:request_prefill_kv_computed_tokens_sum", "", "0.0")
        .sample("vllm:kv_offload_load_bytes_total", "", "0.0")
        .sample("vllm:kv_offload_load_time_total", "", "0.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "NaN");
    let result = run(&page);
    for family in [
        "kvtier_prefill_computed_ratio",
        "kvtier_prefill_seconds_per_token",
        "kvtier_tier_reload_speed_bytes_per_second",
        "kvtier_kv_bytes_per_token",
    ] {
        assert!(result.absent(family), "{family}");
    }
}

#[test]
fn reload_seconds_a_token_need_the_number_of_ranks() {
    let page = Page::vllm()
        .sample("vllm:kv_offload_load_time_total", "", "8")
        .sample("vllm:kv_offload_load_bytes_total", "", "1")
        .sample("vllm:prompt_tokens_cached_by_source_total", r#"source="host""#, "3000")
        .sample("vllm:prompt_tokens_cached_by_source_total", r#"source="disk""#, "1000")
        .sample("vllm:prompt_tokens_cached_by_source_total", r#"source="device""#, "5");
    assert!(run(&page).absent("kvtier_reload_seconds_per_token"));
    // 8 s ÷ 2 ranks ÷ 4000 tokens; tokens that the GPU held are no reload.
    let told = run_with(&page, |settings, _| settings.engine_ranks = Some(2));
    assert_eq!(told.value("kvtier_reload_seconds_per_token"), 0.001);
    let alone = |gpus, local| {
        run_with(&page, move |_, host| {
            host.gpus = gpus;
            host.upstream_is_local = local;
        })
    };
    assert_eq!(alone(Some(1), true).value("kvtier_reload_seconds_per_token"), 0.002);
    assert!(alone(Some(2), true).absent("kvtier_reload_seconds_per_token"));
    assert!(alone(Some(1), false).absent("kvtier_reload_seconds_per_token"));
}

// Bytes a token, in the order of the methods.

#[test]
fn bytes_a_token_come_from_the_first_method_that_has_its_inputs() {
    let page = ram_16_mib().sample("vllm:kv_offload_cpu_allocation_size_sum", "", "10").sample(
        "vllm:kv_offload_store_bytes_total",
        "",
        "163840",
    );
    // 16777216 B ÷ 32768 tokens
    assert_eq!(run(&page).value("kvtier_kv_bytes_per_token"), 512.0);
    assert_eq!(run(&page).tier("kvtier_tier_size_tokens"), 32_768.0);
    let no_tokens = |storing: &str, stored: &str| {
        Page::vllm()
            .config(r#"block_size="32""#)
            .sample(
                "vllm:kv_offload_config_info",
                r#"cpu_blocks_per_chunk="2",cpu_kv_cache_size_bytes="16777216",cpu_kv_cache_size_tokens="None",cpu_num_chunks="512""#,
                "1.0",
            )
            .sample("vllm:kv_offload_cpu_allocation_size_sum", "", "10")
            .sample("vllm:kv_offload_cpu_cache_write_usage_perc", "", storing)
            .sample("vllm:kv_offload_store_bytes_total", "", stored)
    };
    let all_stored = no_tokens("0", "327680");
    // 327680 B ÷ (10 slots × 2 blocks × 32 tokens)
    assert_eq!(run(&all_stored).value("kvtier_kv_bytes_per_token"), 512.0);
    assert_eq!(run(&all_stored).labels("kvtier_kv_bytes_per_token", "method"), ["stored"]);
    let promoted = all_stored.sample("vllm:kv_offload_tiering_read_bytes_total", r#"tier="1:fs""#, "1");
    assert!(run(&promoted).absent("kvtier_kv_bytes_per_token"));
    // Of ten slots four are still being filled: 307.2 bytes a token would be too few.
    assert!(run(&no_tokens("0.0078125", "196608")).absent("kvtier_kv_bytes_per_token"));
    // A reset may have given up some that were.
    let calls = r#"handler="/reset_prefix_cache",method="POST",status="2xx""#;
    let reset = no_tokens("0", "196608").sample("http_requests_total", calls, "1");
    assert!(run(&reset).absent("kvtier_kv_bytes_per_token"));
}

#[test]
fn the_gpu_pool_of_old_versions_is_split_over_the_engines_that_share_the_figure() {
    let page = Page::new()
        .raw("vllm:prompt_tokens_total", r#"engine="0",model_name="m""#, "1")
        .raw("vllm:prompt_tokens_total", r#"engine="1",model_name="m""#, "1")
        .raw("vllm:cache_config_info", r#"block_size="16",engine="0",num_gpu_blocks="2000""#, "1.0")
        .raw("vllm:cache_config_info", r#"block_size="16",engine="1",num_gpu_blocks="2000""#, "1.0");
    // 2000 blocks in all ÷ 2 engines × 16 tokens
    assert_eq!(run(&page).values("kvtier_gpu_pool_tokens"), [16_000.0, 16_000.0]);
}

// Resets.

#[test]
fn what_may_have_emptied_the_tier_sets_the_hint() {
    let page = Page::vllm().sample("vllm:kv_offload_store_bytes_total", "", "1");
    assert_eq!(run(&page).tier("kvtier_tier_reset_hint"), 0.0);
    let http = |handler: &str, method: &str, status: &str, count: &str| {
        let labels = format!(r#"handler="{handler}",method="{method}",status="{status}""#);
        run(&page.clone().raw("http_requests_total", &labels, count)).tier("kvtier_tier_reset_hint")
    };
    assert_eq!(http("/reset_prefix_cache", "POST", "2xx", "1.0"), 1.0);
    assert_eq!(http("/sleep", "POST", "2xx", "2.0"), 1.0);
    assert_eq!(http("/pause", "POST", "200", "2.0"), 1.0);
    assert_eq!(http("/sleep", "POST", "4xx", "1.0"), 0.0);
    assert_eq!(http("/sleep", "GET", "2xx", "1.0"), 0.0);
    assert_eq!(http("/sleep", "POST", "2xx", "0.0"), 0.0);
    assert_eq!(http("/is_sleeping", "POST", "2xx", "1.0"), 0.0);
    let asleep = page.clone().sample("vllm:engine_sleep_state", r#"sleep_state="awake""#, "0.0");
    assert_eq!(run(&asleep).tier("kvtier_tier_reset_hint"), 1.0);
    let slept = page.raw("vllm:sleep_mode_operation_duration_seconds_count", r#"operation="sleep""#, "1.0");
    assert_eq!(run(&slept).tier("kvtier_tier_reset_hint"), 1.0);
}

// 8. Text.

#[test]
fn label_values_with_escapes_find_their_engine_and_leave_as_they_came() {
    let name = r#"acme/q \"27b\" C:\\w, {x} # y = z"#;
    let labels = format!(r#"engine="0",model_name="{name}""#);
    let page = Page::new()
        .raw("vllm:kv_offload_cpu_cache_usage_perc", &labels, "0.0")
        .raw("vllm:kv_offload_store_bytes_total", &labels, "4096")
        .raw("vllm:cache_config_info", r#"engine="0",kv_offloading_backend="native",kv_offloading_size="1.0""#, "1.0");
    let result = run(&page);
    assert_eq!(result.labels("kvtier_tier_info", "model_name"), [r#"acme/q "27b" C:\w, {x} # y = z"#]);
    // 4096 ÷ 2^30
    let line = format!("vllm:kv_offload_cpu_cache_usage_perc{{{labels}}} 3.814697265625e-6");
    assert_eq!(result.lines("vllm:kv_offload_cpu_cache_usage_perc"), [line]);
}

#[test]
fn families_of_another_exporter_in_front_are_replaced() {
    let page = Page::vllm()
        .sample("vllm:kv_offload_store_bytes_total", "", "5")
        .text("# HELP kvtier_x y\n# TYPE kvtier_x gauge\nkvtier_x 1\nkvtier_tier_stored_bytes_total{tier=\"ram\"} 9\n");
    let result = run(&page);
    assert!(!result.page.contains("kvtier_"), "{}", result.page);
    assert_eq!(result.values("kvtier_tier_stored_bytes_total"), [5.0]);
}

#[test]
fn a_line_that_would_cost_the_scrape_goes_and_the_rest_stays() {
    let bad = "vllm:x{a=\"1\",a=\"2\"} 1\nvllm:cut{a=\"1\n";
    let good = Page::vllm().sample("vllm:kv_offload_store_bytes_total", "", "5");
    let result = run(&good.clone().text(bad).text("ok 1"));
    assert_eq!(result.page, good.text("ok 1\n").written());
    assert_eq!(result.outcome.reports[0].counts.dropped, 2);
    assert_eq!(result.outcome.reports[0].notes[0].reason, "a label name stands twice (the name itself is `__name__`)");
}

#[test]
fn openmetrics_constructs_in_a_text_page_become_text() {
    let page = Page::new().text(
        "# TYPE x unknown\nx 1 1795984744.512\n# TYPE i info\ni_info 1\nc_total{k=\"#\"} 5 # {trace_id=\"t\"} 1.0 1.7e9\nd 1 12 # {a=\"b\"} 1\n# EOF\n",
    );
    // 1795984744.512 s and 12 s in milliseconds.
    let text = "# TYPE x untyped\nx 1 1795984744512\n# TYPE i gauge\ni_info 1\nc_total{k=\"#\"} 5\nd 1 12000\n";
    assert_eq!(run(&page).page, text);
}

#[test]
fn line_ends_of_another_system_become_ours() {
    let page = Page::new().text("# HELP a b\r\n# TYPE a gauge\r\na{k=\"1\"} 1\r\n\r\n# TYPE u unknown\r\nu 1 1.5\r\n");
    assert_eq!(run(&page).page, "# HELP a b\n# TYPE a gauge\na{k=\"1\"} 1\n\n# TYPE u untyped\nu 1 1500\n");
}

#[test]
fn switched_off_the_gauge_passes_and_the_derived_families_stay() {
    let result = run_with(&worked_case(), |settings, _| settings.correct = false);
    assert_eq!(result.page, worked_case().written());
    assert_eq!(result.tier("kvtier_tier_fill_upper_bound_ratio"), 1.0);
    assert_eq!(result.value("kvtier_correction_active"), 0.0);
    assert!(result.warnings.is_empty());
}

#[test]
fn the_help_of_a_corrected_family_says_so_also_where_there_was_none() {
    let with_help = worked_case();
    let help = run(&with_help).help("vllm:kv_offload_cpu_cache_usage_perc");
    for word in ["Upper bound", "min(tier size, bytes stored", "kvtier_tier_pinned_ratio"] {
        assert!(help.contains(word), "{word} is missing in: {help}");
    }
    assert!(!help.contains("kvtier_correction_active"));
    let some = Page::new()
        .raw("vllm:kv_offload_cpu_cache_usage_perc", r#"engine="0",model_name="m""#, "0")
        .raw("vllm:kv_offload_cpu_cache_usage_perc", r#"engine="1",model_name="m""#, "0")
        .raw("vllm:kv_offload_store_bytes_total", r#"engine="0",model_name="m""#, "1")
        .raw("vllm:cache_config_info", r#"engine="0",kv_offloading_backend="native",kv_offloading_size="1.0""#, "1.0");
    let result = run(&some);
    assert!(result.help("vllm:kv_offload_cpu_cache_usage_perc").contains("kvtier_correction_active"));
    assert_eq!(result.values("kvtier_correction_active"), [1.0, 0.0]);
    assert_eq!(result.upstream("vllm:kv_offload_cpu_cache_usage_perc")[1], "0");
}
