//! Facts of one engine that contradict each other on a page: which of them holds nobody knows, so none is read, and it is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "no test crate uses or exports all of it")]

mod support;

use kvtier_exporter::pipeline::{Format, Source, explain};
use kvtier_exporter::settings::{HostFacts, Settings};
use support::page::{Page, Result, run, run_sized, run_with};

const GAUGE: &str = "vllm:kv_offload_cpu_cache_usage_perc";
const STORED: &str = "vllm:kv_offload_store_bytes_total";
const FILL: &str = "kvtier_tier_fill_upper_bound_ratio";
const SIZE: &str = "kvtier_tier_size_bytes";
const POOL: &str = "kvtier_gpu_pool_tokens";
const ACTIVE: &str = "kvtier_correction_active";

/// What is told of contradictions.
fn told(result: &Result) -> Vec<String> {
    let of_kind = result.outcome.notices.iter().filter(|notice| notice.kind.id == "facts-contradict");
    of_kind.map(|notice| notice.seen()).collect()
}

/// An engine with 256 MiB of a tier stored, and these configurations.
fn configured(configs: &[&str]) -> Page {
    let page = Page::vllm().sample(STORED, "", "268435456").sample(GAUGE, "", "0.0");
    configs.iter().fold(page, |page, labels| page.config(labels))
}

const ONE_GIB: &str =
    r#"kv_offloading_size="1.0",kv_offloading_backend="native",block_size="16",num_gpu_blocks="1000""#;

#[test]
fn two_sizes_of_one_tier_are_none() {
    let result = run(&configured(&[ONE_GIB]));
    // 2^30 bytes, of which 2^28 are a quarter; 1000 blocks of 16 tokens.
    assert_eq!((result.value(SIZE), result.value(FILL), result.value(POOL)), (1_073_741_824.0, 0.25, 16000.0));
    let two = configured(&[ONE_GIB, &ONE_GIB.replace("1.0", "2.0")]);
    let result = run(&two);
    assert!(result.absent(SIZE) && result.absent(FILL));
    assert_eq!((result.values(ACTIVE), result.upstream(GAUGE)), (vec![0.0], vec!["0.0"]));
    // What they agree about is known, and two descriptions are no two engines.
    assert_eq!(result.value(POOL), 16000.0);
    let said = "of engine \"0\" of model \"acme/m\": vllm:cache_config_info describes it several times, with different values of kv_offloading_size; none of them is read";
    assert_eq!(told(&result), [said]);
    // A size that somebody else tells is one.
    assert_eq!(run_sized(&two, 1 << 30).value(FILL), 0.25);
    let text = explain(
        &[Source { name: "main".into(), body: two.written().to_owned().into(), format: Format::Text }],
        &Settings::default(),
        &HostFacts::default(),
    );
    assert!(text.contains(said), "{text}");
}

#[test]
fn two_pools_of_one_engine_are_none_and_its_size_is_known() {
    let result = run(&configured(&[ONE_GIB, &ONE_GIB.replace("1000", "900")]));
    assert!(result.absent(POOL));
    assert_eq!(result.value(FILL), 0.25);
    assert!(told(&result)[0].contains("different values of num_gpu_blocks;"), "{:?}", told(&result));
    let both = run(&configured(&[ONE_GIB, r#"kv_offloading_size="4",kv_offloading_backend="native",block_size="32""#]));
    assert!(both.absent(SIZE) && both.absent(POOL));
    assert!(told(&both)[0].contains("different values of block_size and kv_offloading_size;"), "{:?}", told(&both));
}

#[test]
fn descriptions_that_say_the_same_or_nothing_do_not_contradict() {
    for other in [
        ONE_GIB.to_owned(),
        ONE_GIB.replace("1.0", "1"),
        ONE_GIB.replace("\"1.0\"", "\"None\"").replace("\"1000\"", "\"\""),
        format!("{ONE_GIB},numa=\"1\""),
    ] {
        let result = run(&configured(&[ONE_GIB, &other]));
        assert_eq!((result.value(FILL), result.value(POOL)), (0.25, 16000.0), "{other}");
        assert_eq!(told(&result), [""; 0], "{other}");
    }
}

#[test]
fn two_descriptions_of_the_tier_that_was_built_are_none_of_what_they_differ_in() {
    let built = r#"cpu_kv_cache_size_bytes="1000000",cpu_num_chunks="10",cpu_kv_cache_size_tokens="500""#;
    let page = |built: &[&str]| {
        let page = Page::vllm().sample(STORED, "", "250000");
        built.iter().fold(page, |page, labels| page.sample("vllm:kv_offload_config_info", labels, "1"))
    };
    let one = run(&page(&[built]));
    assert_eq!((one.value(SIZE), one.value("kvtier_tier_size_tokens")), (1e6, 500.0));
    let two = run(&page(&[built, &built.replace("1000000", "2000000")]));
    assert!(two.absent(SIZE) && two.absent(FILL));
    assert_eq!(two.value("kvtier_tier_size_tokens"), 500.0);
    assert_eq!(told(&two).len(), 1);
}

#[test]
fn a_series_that_has_two_values_has_none() {
    let page = |other: &str| configured(&[ONE_GIB]).sample(STORED, "", other);
    let twice = run(&page("268435456"));
    assert_eq!((twice.value(FILL), twice.upstream(GAUGE), told(&twice)), (0.25, vec!["0.25"], vec![]));
    let torn = page("134217728");
    let result = run(&torn);
    assert!(result.absent("kvtier_tier_stored_bytes_total") && result.absent(FILL));
    assert_eq!((result.values(ACTIVE), result.upstream(GAUGE)), (vec![0.0], vec!["0.0"]));
    assert_eq!(
        told(&result),
        [
            "of engine \"0\" of model \"acme/m\": vllm:kv_offload_store_bytes_total has one series several times, with different values; none of them is read"
        ]
    );
    // Both lines pass: which of them Prometheus keeps is not ours to say.
    assert_eq!(result.lines(STORED).len(), 2);
}

#[test]
fn a_series_is_the_same_in_another_order_of_its_labels_and_of_another_engine_it_is_not() {
    let page = Page::new()
        .text("vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 5\n")
        .text("vllm:prompt_tokens_total{model_name=\"m\",engine=\"0\"} 6\n")
        .text("vllm:prompt_tokens_total{engine=\"1\",model_name=\"m\"} 7\n");
    let engines = run(&page).outcome.snapshot.engines;
    assert_eq!((engines[0].prompt_total, engines[1].prompt_total.unwrap().value), (None, 7.0));
}

#[test]
fn a_torn_gauge_is_corrected_and_what_it_said_itself_is_not_told() {
    let result = run(&configured(&[ONE_GIB]).sample(GAUGE, "", "0.5"));
    assert!(result.absent("kvtier_tier_pinned_ratio"));
    // Whose it is is certain, and so is the fill.
    assert_eq!((result.upstream(GAUGE), result.values(ACTIVE)), (vec!["0.25", "0.25"], vec![1.0]));
    assert_eq!(told(&result).len(), 1);
}

#[test]
fn many_engines_with_many_series_are_looked_through_too() {
    let mut page = Page::new();
    for engine in 0..100 {
        page = page.text(&format!("vllm:prompt_tokens_total{{engine=\"{engine}\",model_name=\"m\"}} {engine}\n"));
    }
    let page = page.text("vllm:prompt_tokens_total{engine=\"42\",model_name=\"m\"} 43\n");
    let engines = run(&page).outcome.snapshot.engines;
    let unknown: Vec<_> = engines.iter().filter(|engine| engine.prompt_total.is_none()).collect();
    assert_eq!((engines.len(), unknown.len(), unknown[0].id.engine.as_str()), (100, 1, "42"));
}

#[test]
fn lmcache_and_sglang_are_read_alike() {
    let lookups = |hits: &str| {
        Page::new().text(&format!(
            "lmcache:num_lookup_tokens_total{{model_name=\"m\",worker_id=\"0\"}} 10\n\
             lmcache:num_lookup_hits_total{{model_name=\"m\",worker_id=\"0\"}} 4\n\
             lmcache:num_lookup_hits_total{{model_name=\"m\",worker_id=\"0\"}} {hits}\n"
        ))
    };
    assert_eq!(run(&lookups("4")).value("kvtier_lmcache_lookup_hit_ratio"), 0.4);
    let torn = run(&lookups("5"));
    assert!(torn.absent("kvtier_lmcache_lookup_hit_ratio"));
    assert!(told(&torn)[0].contains("LMCache says of model \"m\": lmcache:num_lookup_hits_total"), "{:?}", told(&torn));

    let server = |bytes: &str| {
        Page::new().text(&format!(
            "lmcache_mp_l1_memory_usage_bytes{{l1_tag=\"a\"}} 100\nlmcache_mp_l1_memory_usage_bytes{{l1_tag=\"a\"}} {bytes}\n"
        ))
    };
    let declared = |page: &Page| {
        run_with(page, |settings, _| {
            settings.tier_sizes.insert("lmcache_cpu".into(), 1000);
        })
    };
    // Once, and not 200.
    assert_eq!(declared(&server("100")).value("kvtier_tier_fill_upper_bound_bytes"), 100.0);
    let torn = declared(&server("101"));
    assert!(torn.absent("kvtier_tier_fill_upper_bound_bytes"));
    assert_eq!(told(&torn).len(), 1);

    let hicache = |bytes: &str| {
        Page::new().text(&format!(
            "sglang:num_running_reqs{{model_name=\"m\"}} 1\nsglang:hicache_host_total_tokens{{model_name=\"m\"}} 10\n\
             sglang:load_back_bytes_total{{model_name=\"m\"}} 100\nsglang:load_back_bytes_total{{model_name=\"m\"}} {bytes}\n"
        ))
    };
    assert_eq!(run(&hicache("100")).value("kvtier_tier_reloaded_bytes_total"), 100.0);
    let torn = run(&hicache("101"));
    assert!(torn.absent("kvtier_tier_reloaded_bytes_total"));
    assert_eq!(told(&torn).len(), 1);
}

/// A replica that was started again: each series of its dead worker is there too.
#[test]
fn one_engine_in_doubt_is_one_warning_for_each_cause() {
    const FAMILIES: usize = 7;
    let names = ["num_requests_running", "num_requests_waiting", "prompt_tokens_total", "generation_tokens_total"];
    let names =
        names.into_iter().chain(["num_preemptions_total", "kv_offload_store_bytes_total", "kv_cache_usage_perc"]);
    let mut page = Page::new();
    let mut count = 0;
    for name in names {
        count += 1;
        for worker in ["w1", "w2"] {
            let labels = format!("engine=\"0\",model_name=\"m\",ReplicaId=\"r\",WorkerId=\"{worker}\"");
            page = page.text(&format!("vllm:{name}{{{labels}}} 1\n"));
        }
    }
    assert_eq!(count, FAMILIES);
    let outcome = run(&page).outcome;
    let doubts: Vec<_> = outcome.notices.iter().filter(|one| one.kind.id == "identity-uncertain").collect();
    assert_eq!(doubts.len(), 1, "{doubts:?}");
    let seen = doubts[0].seen();
    assert!(seen.starts_with("of engine \"0\" of model \"m\", ReplicaId=\"r\": vllm:"), "{seen}");
    assert!(seen.contains(" and 2 more have several series for it, and label \"WorkerId\" tells them apart"), "{seen}");
}
