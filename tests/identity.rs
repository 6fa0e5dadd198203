//! Engines that other labels than `model_name` and `engine` tell apart: pages that came through something.

#![allow(missing_docs, reason = "a test crate has no readers of its documentation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]

mod support;

use std::collections::BTreeSet;

use kvtier_exporter::derive::OWN_LABELS;
use kvtier_exporter::events::Bounds;
use kvtier_exporter::model::{Engine, EngineId, MAX_ENGINES};
use kvtier_exporter::pipeline::{Format, Source, explain};
use kvtier_exporter::settings::{ChunkBytes, HostFacts, Settings, SinceRest, Stream};
use support::captures;
use support::exporter::{answer_of, families_of};
use support::page::{Page, Result, run, run_sized, run_with};
use support::strict::check;

const GAUGE: &str = "vllm:kv_offload_cpu_cache_usage_perc";
const FILL: &str = "kvtier_tier_fill_upper_bound_ratio";
const STORED: &str = "kvtier_tier_stored_bytes_total";
const ACTIVE: &str = "kvtier_correction_active";
const MIB: u64 = 1 << 20;

/// A page of engines of one model and one `engine` label, each with these further labels and bytes stored into a tier.
fn page(engines: &[(&str, &str)]) -> Page {
    engines.iter().fold(Page::vllm(), |page, (labels, stored)| {
        page.sample("vllm:num_requests_running", labels, "1.0")
            .sample("vllm:prompt_tokens_total", labels, "100.0")
            .sample("vllm:kv_offload_store_bytes_total", labels, stored)
            .sample(GAUGE, labels, "0.25")
    })
}

/// The same with tiers of 8 MiB.
fn sized(engines: &[(&str, &str)]) -> Result {
    run_sized(&page(engines), 8 * MIB)
}

fn fixture(name: &str) -> Page {
    Page::new().text(&String::from_utf8(captures::named(name).text()).unwrap())
}

/// The values of the gauge, in page order.
fn gauges(result: &Result) -> Vec<&str> {
    result.lines(GAUGE).iter().map(|line| line.split("} ").nth(1).unwrap().split(' ').next().unwrap()).collect()
}

/// What Prometheus would say of the whole answer.
fn is_sound(result: &Result) {
    assert_eq!(check(&answer_of(&result.outcome)).refusal, None);
    assert!(check(families_of(&result.outcome).as_bytes()).spotless());
}

#[test]
fn of_two_pods_one_is_full_and_one_is_empty() {
    let result = run(&fixture("pods-vllm-0.33.0-one-full-one-empty"));
    assert_eq!(gauges(&result), ["1.0", "0.0"]);
    assert_eq!((result.labels(FILL, "pod"), result.values(FILL)), (vec!["a-0", "b-0"], vec![1.0, 0.0]));
    assert_eq!((result.labels(ACTIVE, "pod"), result.values(ACTIVE)), (vec!["a-0", "b-0"], vec![1.0, 1.0]));
    // 7,150 blocks of 32 tokens each; the configuration of each says its own.
    assert_eq!(result.values("kvtier_gpu_pool_tokens"), [228_800.0, 228_800.0]);
    is_sound(&result);
}

#[test]
fn any_label_tells_engines_apart() {
    for label in ["pod", "worker_addr", "dp_rank", "instance", "dynamo_component", "a", "zz", "Namespace"] {
        let (one, two) = (format!("{label}=\"x\""), format!("{label}=\"y\""));
        // 8 MiB and 2 MiB of 8.
        let result = sized(&[(&one, "8388608.0"), (&two, "2097152.0")]);
        assert_eq!((result.labels(FILL, label), result.values(FILL)), (vec!["x", "y"], vec![1.0, 0.25]), "{label}");
        assert_eq!(gauges(&result), ["1.0", "0.25"], "{label}");
        is_sound(&result);
    }
}

#[test]
fn a_label_that_all_share_is_carried_too() {
    let result = sized(&[(r#"job="vllm",pod="a",instance="10.0.0.1:8000""#, "8388608.0")]);
    for (label, value) in [("instance", "10.0.0.1:8000"), ("job", "vllm"), ("pod", "a")] {
        for family in [FILL, STORED, ACTIVE, "kvtier_tier_info"] {
            assert_eq!(result.labels(family, label), [value], "{family}");
        }
    }
}

#[test]
fn values_are_taken_over_as_they_are_meant() {
    let result = sized(&[(r#"pod="a \"b\" c:\\d\n""#, "8388608.0"), (r#"pod="ä""#, "0.0")]);
    assert_eq!(result.labels(FILL, "pod"), ["a \"b\" c:\\d\n", "ä"]);
    assert_eq!(gauges(&result), ["1.0", "0.0"]);
    is_sound(&result);
}

#[test]
fn an_empty_value_is_no_label() {
    let result = sized(&[(r#"pod="""#, "8388608.0")]);
    assert_eq!((result.labels(FILL, "pod"), gauges(&result)), (vec![""], vec!["1.0"]));
    // Beside one that has the label it is another engine.
    let result = sized(&[(r#"pod="""#, "8388608.0"), (r#"pod="b""#, "0.0")]);
    assert_eq!((result.labels(FILL, "pod"), gauges(&result)), (vec!["", "b"], vec!["1.0", "0.0"]));
    is_sound(&result);
}

#[test]
fn processes_of_one_pod_are_one_engine() {
    let mut page = page(&[(r#"pod="a""#, "8388608.0"), (r#"pod="b""#, "2097152.0")]).written().to_owned();
    page = page.lines().filter(|line| !line.starts_with(GAUGE)).map(|line| format!("{line}\n")).collect();
    for (pod, pid, value) in [("a", 1, "0.1"), ("b", 2, "0.2"), ("a", 3, "0.3"), ("b", 4, "0.4")] {
        let labels = format!(r#"engine="0",model_name="acme/m",pid="{pid}",pod="{pod}""#);
        page.push_str(&format!("{GAUGE}{{{labels}}} {value}\n"));
    }
    let result = run_sized(&Page::new().text(&page), 8 * MIB);
    assert_eq!(gauges(&result), ["1.0", "0.25"]);
    assert_eq!(result.values("kvtier_tier_pinned_ratio"), [0.3, 0.4]);
}

#[test]
fn replicas_behind_ray_are_told_apart_with_their_gauges_and_without() {
    let stored = run_sized(&fixture("ray-2.60.0-vllm-0.32.0-plain-stored"), 4 * MIB);
    // bey6hd32 stored 1,638,400 of 4,194,304 bytes; yjj79l8y 13,107,200.
    let replicas = vec!["bey6hd32", "yjj79l8y"];
    assert_eq!((stored.labels(FILL, "ReplicaId"), stored.values(FILL)), (replicas.clone(), vec![0.390625, 1.0]));
    assert_eq!(gauges(&stored), ["1.0", "0.390625"]);
    let idle = run_sized(&fixture("ray-2.60.0-vllm-0.32.0-plain-idle"), 4 * MIB);
    assert_eq!((idle.labels(FILL, "ReplicaId"), idle.values(FILL)), (replicas.clone(), vec![1.0, 1.0]));
    assert!(idle.lines(GAUGE).is_empty());
    let start = run(&fixture("ray-2.60.0-vllm-0.32.0-plain-start"));
    assert_eq!(start.labels("kvtier_gpu_pool_tokens", "ReplicaId"), replicas);
    for result in [stored, idle, start] {
        for transport in ["WorkerId", "SessionName", "NodeAddress", "Component", "Version", "otel_scope_name"] {
            let engines = &result.outcome.snapshot.engines;
            assert!(engines.iter().all(|engine| engine.id.labels.iter().all(|(name, _)| name != transport)));
        }
        assert_eq!(result.outcome.snapshot.notes, []);
        is_sound(&result);
    }
}

#[test]
fn outside_ray_serve_the_worker_tells_engines_apart() {
    let labels = |worker| format!(r#"ReplicaId="",WorkerId="{worker}",SessionName="s{worker}""#);
    let result = sized(&[(&labels("w1"), "8388608.0"), (&labels("w2"), "0.0")]);
    assert_eq!((result.labels(FILL, "WorkerId"), gauges(&result)), (vec!["w1", "w2"], vec!["1.0", "0.0"]));
    assert_eq!(result.labels(FILL, "SessionName"), ["", ""]);
    // A page of both kinds: the worker is no part of the replica's identity.
    let replica = r#"ReplicaId="r",WorkerId="w3""#;
    let result = sized(&[(&labels("w1"), "8388608.0"), (replica, "0.0")]);
    assert_eq!(result.labels(FILL, "WorkerId"), ["", "w1"]);
    assert_eq!(result.labels(FILL, "ReplicaId"), ["r", ""]);
    assert_eq!(result.outcome.snapshot.notes, []);
}

#[test]
fn two_series_that_only_their_way_tells_apart_are_in_doubt() {
    // A replica that was started again, with its dead worker still on the page; a collector of two versions.
    let ways = [[r#"WorkerId="w1""#, r#"WorkerId="w2""#], [r#"otel_scope_version="1""#, r#"otel_scope_version="2""#]];
    for [dead, alive] in ways {
        let labels = |way| format!(r#"ReplicaId="r",{way}"#);
        let (one, two) = (labels(dead), labels(alive));
        let other = (r#"ReplicaId="s",WorkerId="w3""#, "2097152.0");
        let result = sized(&[(&one, "1048576.0"), (&two, "8388608.0"), other]);
        // To take the first would bound a full tier by an eighth.
        assert_eq!((result.labels(FILL, "ReplicaId"), result.values(FILL)), (vec!["s"], vec![0.25]), "{dead}");
        assert_eq!(gauges(&result), ["0.25", "0.25", "0.25"]);
        assert_eq!((result.labels(ACTIVE, "ReplicaId"), result.values(ACTIVE)), (vec!["r", "s"], vec![0.0, 1.0]));
        assert_eq!(result.labels(STORED, "ReplicaId"), ["s"]);
        let label = dead.split('=').next().unwrap();
        assert!(result.warnings.iter().any(|warning| warning.contains(label) && warning.contains(GAUGE)), "{dead}");
        is_sound(&result);
        // One way alone is no doubt.
        assert_eq!(sized(&[(&one, "1048576.0"), other]).values(FILL), [0.125, 0.25]);
    }
}

#[test]
fn federated_targets_are_told_apart_and_keep_their_timestamps() {
    let result = run(&fixture("federated-vllm-0.33.0-two-targets"));
    // 98.4 GB and 10,000,000,000 of 34,359,738,368 bytes.
    assert_eq!(gauges(&result), ["1.0", "0.29103830456733704"]);
    assert!(result.lines(GAUGE)[0].ends_with(" 1796099420969"));
    assert_eq!(result.labels(FILL, "instance"), ["127.0.0.1:18101", "127.0.0.1:18103"]);
    is_sound(&result);
}

#[test]
fn series_that_nothing_accounts_for_are_not_corrected_and_that_is_said() {
    let page = page(&[(r#"pod="a""#, "8388608.0"), (r#"pod="b""#, "0.0")]).written().to_owned();
    let odd = format!("{GAUGE}{{engine=\"0\",model_name=\"acme/m\",pod=\"a\",numa=\"1\"}} 0.125\n");
    let result = run_sized(&Page::new().text(&(page.clone() + &odd)), 8 * MIB);
    // Byte for byte: the two of pod a. Pod b is corrected.
    assert_eq!(gauges(&result), ["0.25", "0.0", "0.125"]);
    assert!(result.page.ends_with(&odd));
    assert_eq!((result.labels(ACTIVE, "pod"), result.values(ACTIVE)), (vec!["a", "b"], vec![0.0, 1.0]));
    assert_eq!(result.labels("kvtier_tier_pinned_ratio", "pod"), ["b"]);
    // What does not rest on the gauge is known.
    assert_eq!(result.values(FILL), [1.0, 0.0]);
    let said = |text: &str| text.contains(GAUGE) && text.contains("\"numa\"") && text.contains("pod=\"a\"");
    assert!(result.outcome.snapshot.notes.iter().any(|note| said(&note.text)), "{:?}", result.outcome.snapshot.notes);
    assert!(result.warnings.iter().any(|warning| said(warning)), "{:?}", result.warnings);
    let source = Source { name: "main".into(), body: (page + &odd).into(), format: Format::Text };
    let debug = explain(&[source], &Settings::default(), &HostFacts::default());
    assert!(said(&debug) && debug.contains("labels that tell engines apart (vllm): pod"), "{debug}");
    // The gauge passes, and not for want of a fill: it is known.
    assert!(!debug.contains("fill is not known"), "{debug}");
}

#[test]
fn one_series_with_an_odd_label_is_certain_and_duplicates_are_no_doubt() {
    let odd = r#"pod="a""#;
    let page = page(&[(odd, "8388608.0")]).written().replace(&format!("{GAUGE}{{"), &format!("{GAUGE}{{numa=\"1\","));
    let twice = page.clone() + page.lines().last().unwrap() + "\n";
    for text in [page, twice] {
        let result = run_sized(&Page::new().text(&text), 8 * MIB);
        assert_eq!(result.values(ACTIVE), [1.0], "{text}");
        assert_eq!(result.outcome.snapshot.notes, []);
    }
}

#[test]
fn a_doubt_about_the_bounds_inputs_leaves_the_fill_unknown() {
    for family in ["vllm:kv_offload_cpu_cache_write_usage_perc", "vllm:kv_offload_allocation_failure_total"] {
        let page = page(&[(r#"pod="a""#, "8388608.0"), (r#"pod="b""#, "2097152.0")])
            .sample(family, r#"pod="a",numa="0""#, "0.0")
            .sample(family, r#"pod="a",numa="1""#, "0.0")
            .sample(family, r#"pod="b""#, "0.0");
        let result = run_sized(&page, 8 * MIB);
        assert_eq!((result.labels(FILL, "pod"), result.values(FILL)), (vec!["b"], vec![0.25]), "{family}");
        assert_eq!(gauges(&result), ["0.25", "0.25"], "{family}");
        assert_eq!(result.values(ACTIVE), [0.0, 1.0], "{family}");
    }
}

#[test]
fn series_with_fewer_labels_join_where_one_engine_fits() {
    let fewer = |page: Page| page.sample("vllm:kv_offload_cpu_cache_write_usage_perc", "", "0.5");
    // One engine: 2 MiB stored and half of 8 MiB on its way.
    let result = run_sized(&fewer(page(&[(r#"pod="a""#, "2097152.0")])), 8 * MIB);
    assert_eq!(result.values(FILL), [0.75]);
    // Two: whose it is nobody knows.
    let result = run_sized(&fewer(page(&[(r#"pod="a""#, "2097152.0"), (r#"pod="b""#, "0.0")])), 8 * MIB);
    assert!(result.absent(FILL));
    assert_eq!(gauges(&result), ["0.25", "0.25"]);
    assert_eq!(result.outcome.snapshot.notes.len(), 2);
}

#[test]
fn a_gauge_that_lacks_the_label_is_left_alone_and_bytes_that_lack_it_are_no_zero() {
    for family in [GAUGE, "vllm:kv_offload_store_bytes_total"] {
        let page = page(&[(r#"pod="a""#, "8388608.0"), (r#"pod="b""#, "8388608.0")]).written().to_owned();
        let others: String = page.lines().filter(|line| !line.starts_with(family)).map(|l| format!("{l}\n")).collect();
        let result =
            run_sized(&Page::new().text(&others).text(Page::vllm().sample(family, "", "0.5").written()), 8 * MIB);
        assert_eq!(result.values(ACTIVE), [0.0, 0.0], "{family}");
        if family == GAUGE {
            assert_eq!((gauges(&result), result.values(FILL)), (vec!["0.5"], vec![1.0, 1.0]));
        } else {
            assert!(result.absent(FILL) && result.absent(STORED));
        }
    }
}

#[test]
fn a_configuration_without_a_model_joins_the_engine_of_its_other_labels() {
    let config = |page: Page, pod: &str, gib: &str| {
        page.config(&format!(r#"kv_offloading_backend="native",kv_offloading_size="{gib}",pod="{pod}",num_gpu_blocks="10",block_size="16""#))
    };
    let page = config(config(page(&[(r#"pod="a""#, "8388608.0"), (r#"pod="b""#, "0.0")]), "a", "1.0"), "b", "2.0");
    let result = run(&page);
    assert_eq!(result.values("kvtier_tier_size_bytes"), [1_073_741_824.0, 2_147_483_648.0]);
    // Each server counts its own blocks.
    assert_eq!(result.values("kvtier_gpu_pool_tokens"), [160.0, 160.0]);
    // Two models with one `engine` label, and a configuration that names neither.
    let two = Page::new()
        .raw("vllm:num_requests_running", r#"engine="0",model_name="m""#, "1.0")
        .raw("vllm:num_requests_running", r#"engine="0",model_name="n""#, "1.0")
        .config(r#"kv_offloading_backend="native",kv_offloading_size="1.0""#);
    assert!(run(&two).absent("kvtier_tier_size_bytes"));
}

#[test]
fn what_may_have_emptied_a_tier_is_the_servers() {
    let page = page(&[(r#"pod="a""#, "8388608.0"), (r#"pod="b""#, "0.0")]);
    let call = r#"handler="/reset_prefix_cache",method="POST",status="2xx""#;
    let hints =
        |labels: &str| run(&page.clone().raw("http_requests_total", labels, "1.0")).values("kvtier_tier_reset_hint");
    assert_eq!(hints(&format!(r#"{call},pod="b""#)), [0.0, 1.0]);
    assert_eq!(hints(call), [1.0, 1.0], "it does not say whose");
}

#[test]
fn a_label_of_ours_is_written_under_another_name() {
    let labels = r#"tier="gold",source="x",method="y",family="z",le="1",size="s",bound="b""#;
    let page = page(&[(labels, "8388608.0")]).sample(
        "vllm:prompt_tokens_by_source_total",
        r#"source="local_compute""#,
        "100.0",
    );
    let result = run_sized(&page, 8 * MIB);
    assert_eq!((result.labels(FILL, "tier"), result.labels(FILL, "exported_tier")), (vec!["ram"], vec!["gold"]));
    // A label that a family has of its own is the family's, and the sample joins by the others.
    let tokens = "kvtier_prompt_tokens_total";
    assert_eq!(
        (result.labels(tokens, "source"), result.labels(tokens, "exported_source")),
        (vec!["computed"], vec!["x"])
    );
    assert_eq!(result.labels(ACTIVE, "exported_family"), ["z"]);
    assert_eq!(gauges(&result), ["1.0"]);
    is_sound(&result);
    let both = sized(&[(r#"tier="a",exported_tier="b""#, "0.0")]);
    assert_eq!(both.labels(FILL, "exported_tier"), ["b"]);
    assert_eq!(both.labels(FILL, "exported_exported_tier"), ["a"]);
    is_sound(&both);
}

#[test]
fn every_label_of_an_engines_families_is_known_as_ours() {
    let known = |name: &str| OWN_LABELS.contains(&name) || name.starts_with("exported_");
    for capture in captures::all() {
        let result = run(&Page::new().text(&String::from_utf8_lossy(&capture.text())));
        let identity: BTreeSet<String> =
            result.outcome.snapshot.engines.iter().flat_map(|e| e.id.labels.iter().map(|l| l.0.clone())).collect();
        for family in result.outcome.families.iter().filter(|family| family.desc.name != "kvtier_notice_active") {
            for (name, _) in family.samples.iter().flat_map(|(labels, _)| labels.iter()) {
                assert!(known(name) || identity.contains(name), "{name} on {}", family.desc.name);
            }
        }
    }
}

#[test]
fn many_engines_are_told_apart_up_to_a_limit() {
    let labels: Vec<String> = (0..MAX_ENGINES + 100).map(|pod| format!("pod=\"{pod}\"")).collect();
    let engines: Vec<(&str, &str)> = labels.iter().map(|labels| (labels.as_str(), "8388608.0")).collect();
    let result = sized(&engines);
    assert_eq!(result.values(FILL), vec![1.0; MAX_ENGINES]);
    assert_eq!(result.outcome.snapshot.notes.len(), 1);
    assert_eq!(gauges(&result).iter().filter(|value| **value == "1.0").count(), MAX_ENGINES);
    is_sound(&result);
}

#[test]
fn pages_straight_from_an_engine_have_no_further_labels() {
    let through = ["pods-", "ray-", "federated-"];
    for capture in captures::all() {
        if through.iter().any(|start| capture.name.starts_with(start)) {
            continue;
        }
        let result = run(&Page::new().text(&String::from_utf8_lossy(&capture.text())));
        let labelled = |engine: &&Engine| !engine.id.labels.is_empty();
        assert_eq!(
            result.outcome.snapshot.engines.iter().find(labelled).map(|engine| &engine.id),
            None,
            "{}",
            capture.name
        );
        assert!(result.outcome.snapshot.engines.iter().all(|engine| engine.doubts.is_empty()), "{}", capture.name);
    }
}

// SGLang and LMCache.

#[test]
fn tensor_parallel_ranks_are_one_engine_and_servers_behind_a_router_are_two() {
    let ranks = fixture("sglang-0.5.23-hicache-tp2");
    assert_eq!(run(&ranks).outcome.snapshot.engines.len(), 1);
    let behind = |addr: &str| -> String {
        let add = |line: &str| line.replacen('{', &format!("{{worker_addr=\"{addr}\","), 1) + "\n";
        ranks.written().lines().filter(|line| !line.starts_with('#')).map(add).collect()
    };
    let two = run(&Page::new().text(&(behind("http://a:1") + &behind("http://b:1"))));
    assert_eq!(two.labels(FILL, "worker_addr"), ["http://a:1", "http://b:1"]);
    // Each is what it is alone, ranks summed within it.
    let alone = run(&ranks);
    for family in [FILL, STORED, "kvtier_gpu_pool_tokens", "kvtier_prompt_tokens_total"] {
        let (one, both) = (alone.values(family), two.values(family));
        assert_eq!(both, [&one[..], &one[..]].concat(), "{family}");
    }
    is_sound(&two);
}

#[test]
fn lmcache_joins_the_engine_of_its_model_and_labels() {
    let engines = page(&[(r#"pod="a""#, "0.0"), (r#"pod="b""#, "0.0")]);
    let cache = |page: Page, labels: &str, found: &str| {
        let labels = format!(r#"model_name="acme/m",role="worker",worker_id="0"{labels}"#);
        page.raw("lmcache:num_lookup_tokens_total", &labels, "100.0").raw(
            "lmcache:num_lookup_hits_total",
            &labels,
            found,
        )
    };
    let family = "kvtier_lmcache_lookup_hit_ratio";
    let result = run(&cache(cache(engines.clone(), r#",pod="a""#, "75.0"), r#",pod="b""#, "25.0"));
    assert_eq!((result.labels(family, "pod"), result.values(family)), (vec!["a", "b"], vec![0.75, 0.25]));
    let unclear = run(&cache(engines, "", "75.0"));
    assert!(unclear.absent(family) && unclear.outcome.snapshot.notes.len() == 1);
}

// Events.

/// A page of two engines with that `engine` label, and a stream of rank 0.
fn with_stream(one: &str, two: &str) -> Result {
    let page = [one, two].into_iter().fold(Page::new(), |page, labels| {
        page.raw("vllm:num_requests_running", labels, "1.0")
            .raw("vllm:kv_offload_store_bytes_total", labels, "8388608.0")
            .raw(GAUGE, labels, "0.0")
    });
    run_with(&page, |settings, host| {
        settings.tier_sizes.insert("ram".into(), 8 * MIB);
        let bounds = Bounds { sure: 2, possible: 2, ..Bounds::default() };
        host.streams = vec![Stream {
            rank: 0,
            bounds,
            several_groups: false,
            chunk: Some(ChunkBytes { bytes: 1_048_576.0, exact: true, by_page: true }),
            chunk_tokens: None,
            most: 2,
            evicts_at: None,
            resets: Some(0.0),
            counted: 0.0,
            alone: true,
            since_rest: Some(SinceRest { page_bytes: 8_388_608.0, chunks: 0.0 }),
        }];
    })
}

#[test]
fn a_stream_is_nobodys_where_two_engines_have_its_rank() {
    // Two chunks of 1 MiB in 8 MiB: engine 0's, as nobody else has that rank.
    let ranks = with_stream(r#"engine="0",model_name="m""#, r#"engine="1",model_name="m""#);
    assert_eq!(ranks.values(FILL), [0.25, 1.0]);
    for (one, two) in [
        (r#"engine="0",model_name="m""#, r#"engine="0",model_name="n""#),
        (r#"engine="0",model_name="m",pod="a""#, r#"engine="0",model_name="m",pod="b""#),
    ] {
        let result = with_stream(one, two);
        assert_eq!((result.values(FILL), result.outcome.residents.len()), (vec![1.0, 1.0], 0), "{one}");
    }
}

#[test]
fn an_id_reads_as_people_name_an_engine() {
    let id = EngineId { labels: vec![("pod".into(), "a-0".into())], ..EngineId::new("m", "0") };
    assert_eq!(id.to_string(), r#""0" of model "m", pod="a-0""#);
}
