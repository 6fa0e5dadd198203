//! What there is to tell of a page and of the box, and what there is not.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "no test crate uses or exports all of it")]

mod support;

use std::collections::BTreeSet;
use std::path::PathBuf;

use bytes::Bytes;
use kvtier_exporter::advise::{Finding, check};
use kvtier_exporter::bound::resolve;
use kvtier_exporter::family::encode;
use kvtier_exporter::host::facts::BoxFacts;
use kvtier_exporter::notice::kinds::{KINDS, SKIP_VERIFY};
use kvtier_exporter::notice::spelling::Via;
use kvtier_exporter::notice::{InCheck, Notice, unverified};
use kvtier_exporter::pipeline::{Format, Outcome, Source, explain, process, survey};
use kvtier_exporter::settings::{HostFacts, LiveTierFile, Settings, SharedMemory};
use kvtier_exporter::upstream::Address;
use support::captures;
use support::page::{Page, run, run_with};

const RAY: &str = include_str!("fixtures/notices/ray-underscored.prom");
const RAY_COLON: &str = include_str!("fixtures/notices/ray-prefixed-colon.prom");
const PYTHON: &str = include_str!("fixtures/notices/python-only.prom");
const SHARED_STORAGE: &str = include_str!("fixtures/notices/shared-storage-connector.prom");
const NO_FAMILIES: &str = include_str!("fixtures/notices/no-offload-families-but-external-hits.prom");

const GIB: u64 = 1 << 30;

fn source(name: &str, page: &str) -> Source {
    Source { name: name.to_owned(), body: Bytes::from(page.to_owned()), format: Format::Text }
}

fn of(sources: &[Source]) -> Outcome {
    process(sources, &Settings::default(), &HostFacts::default())
}

fn told(notices: &[Notice]) -> Vec<(&'static str, &str, String)> {
    notices.iter().map(|notice| (notice.kind.id, notice.upstream.as_str(), notice.seen())).collect()
}

fn ids(notices: &[Notice]) -> Vec<&'static str> {
    notices.iter().map(|notice| notice.kind.id).collect()
}

/// What is told of a main page alone.
fn of_main(page: &str) -> Vec<String> {
    of(&[source("main", page)]).notices.iter().map(|notice| format!("{}: {}", notice.kind.id, notice.seen())).collect()
}

// A page of no known engine.

#[test]
fn a_page_of_no_known_engine_is_told_of_with_what_was_seen() {
    let ray = |prefix: &str, example: &str| {
        format!(
            "upstream-unknown-engine: the page has names of vLLM with {prefix} in front, such as {example}: something renamed \
             them on the way, and so spelled they are not read"
        )
    };
    assert!(of_main(RAY)[0].starts_with(&ray("ray_vllm_", "ray_vllm_kv_cache_usage_perc")), "{:?}", of_main(RAY));
    assert!(of_main(RAY_COLON)[0].starts_with(&ray("ray_vllm:", "ray_vllm:kv_cache_usage_perc")));
    // Two names of a GC's and of the interpreter's, one of the server's and one of the process.
    assert_eq!(
        of_main(PYTHON),
        [
            "upstream-unknown-engine: none of the page's names is of an engine; most begin with python_, http_, process_ (4 names)"
        ]
    );
    let router = "vllm:num_requests_running{server=\"http://10.0.0.5:8000\"} 2\n";
    assert!(
        of_main(router)[0].contains("names of vLLM, such as vllm:num_requests_running, and none that tells an engine")
    );
    assert!(of_main("kserve_sglang_page_size 1\n")[0].contains("names of SGLang with kserve_sglang_ in front"));
    assert_eq!(of_main("# nothing\n"), ["upstream-unknown-engine: the page has no names of metrics (0 names)"]);
}

#[test]
fn through_what_a_page_came_is_said_beside_what_it_is() {
    let via = |page: &str| of(&[source("main", page)]).reports[0].recognised.via;
    assert_eq!((via(RAY), via(RAY_COLON), via(PYTHON)), (Via::Prefixed, Via::Prefixed, Via::Direct));
    assert_eq!(via(SHARED_STORAGE), Via::Direct);
}

#[test]
fn a_further_upstream_may_be_anything_but_a_page_of_an_engine_in_another_spelling() {
    let main = source("main", SHARED_STORAGE);
    let nodes = of(&[main.clone(), source("nodes", "node_load1 0.5\nnode_vllm_x 1\n")]);
    assert!(nodes.notices.iter().all(|notice| notice.upstream == "main"), "{:?}", told(&nodes.notices));
    let ray = of(&[main, source("ray", RAY)]);
    assert_eq!(ray.notices.iter().filter(|notice| notice.upstream == "ray").count(), 1);
    assert_eq!(ray.reports[1].recognised.via, Via::Prefixed);
}

// Another exporter in front.

/// A tier of 8 GiB, that is 8,589,934,592 bytes, of which 2,147,483,648 bytes are stored: a quarter is filled, and copies pin
/// an eighth of it.
fn with_a_gauge() -> Page {
    Page::vllm()
        .sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.125")
        .sample("vllm:kv_offload_store_bytes_total", "", "2147483648")
        .config(r#"kv_offloading_size="8.0",kv_offloading_backend="native""#)
}

/// What an exporter makes of a page, as the next one gets it.
fn behind_an_exporter(page: &Page, change: impl FnOnce(&mut Settings)) -> Page {
    let first = run_with(page, |settings, _| change(settings));
    let version = "kvtier_exporter_build_info{version=\"0\",revision=\"0\",rustc=\"0\"} 1\n";
    Page::new().text(&first.page).text(&encode(&first.outcome.families)).text(version)
}

#[test]
fn what_an_exporter_in_front_has_corrected_is_no_share_that_is_pinned() {
    let first = run(&with_a_gauge());
    assert_eq!(first.values("kvtier_tier_pinned_ratio"), [0.125]);
    let second = run(&behind_an_exporter(&with_a_gauge(), |_| ()));
    assert!(second.absent("kvtier_tier_pinned_ratio"), "{:?}", second.values("kvtier_tier_pinned_ratio"));
    assert_eq!(second.values("kvtier_tier_fill_upper_bound_ratio"), [0.25]);
    assert_eq!(second.values("kvtier_correction_active"), [0.0], "the gauge came corrected, and passes");
    assert_eq!(second.page, first.page);
    assert_eq!(ids(&second.outcome.notices), ["upstream-is-exporter"]);
    assert!(second.warnings[0].contains("kvtier_correction_active is 1 there"), "{}", second.warnings[0]);
}

#[test]
fn what_an_exporter_in_front_has_left_alone_is_read_and_corrected() {
    for name in ["off", "unsized"] {
        let page = if name == "off" {
            behind_an_exporter(&with_a_gauge(), |settings| settings.correct = false)
        } else {
            // Without its size the first one has no fill to put in the gauge's place.
            let unsized_page = Page::vllm().sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.125").sample(
                "vllm:kv_offload_store_bytes_total",
                "",
                "2147483648",
            );
            behind_an_exporter(&unsized_page, |_| ())
        };
        let second = run_with(&page, |settings, _| {
            settings.tier_sizes.insert("ram".into(), 8 * GIB);
        });
        assert_eq!(second.values("kvtier_tier_pinned_ratio"), [0.125], "{name}");
        assert_eq!(second.values("kvtier_correction_active"), [1.0], "{name}");
        assert!(ids(&second.outcome.notices).contains(&"upstream-is-exporter"), "{name}");
    }
}

#[test]
fn an_extra_that_is_an_exporter_is_told_of_and_what_it_corrected_is_not_read() {
    let extra = behind_an_exporter(&with_a_gauge(), |_| ());
    let engine = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"acme/m\"} 5\n";
    let both = of(&[source("main", engine), source("second", extra.written())]);
    let told: Vec<_> = both.notices.iter().map(|notice| (notice.kind.id, notice.upstream.as_str())).collect();
    assert_eq!(told, [("upstream-is-exporter", "second")]);
    let pinned = both.families.iter().find(|family| family.desc.name == "kvtier_tier_pinned_ratio").unwrap();
    assert_eq!(pinned.samples, []);
    // A page of the box alone, and one of the same names' beginning.
    let boxed = of(&[source("main", engine), source("node", "kvtier_exporter_build_info{version=\"0\"} 1\n")]);
    assert_eq!(ids(&boxed.notices), ["upstream-is-exporter"]);
    assert_eq!(ids(&of(&[source("main", &format!("{engine}kvtier_other 1\n"))]).notices), [""; 0]);
}

// Directions.

#[test]
fn an_unknown_direction_is_a_tier_of_its_other_end_and_is_said() {
    let outcome = of(&[source("main", SHARED_STORAGE)]);
    let tier = outcome.snapshot.engines[0].tier("shared_storage").unwrap();
    let value = |fact: Option<kvtier_exporter::model::Fact>| fact.unwrap().value;
    // As they stand on the page.
    let moved = tier.transfers;
    assert_eq!((value(moved.stored_bytes), value(moved.reloaded_bytes)), (8e11, 3e11));
    assert_eq!((value(moved.store_seconds), value(moved.reload_seconds)), (400.0, 100.0));
    assert_eq!(ids(&outcome.notices), ["unknown-transfer-direction"; 2]);
    assert_eq!(
        outcome.notices[0].detail,
        "transfer_type \"GPU_to_SHARED_STORAGE\" of engine \"0\" of model \"acme/m\" is shown as tier \"shared_storage\""
    );
    let page = Page::new().text(SHARED_STORAGE);
    let result = run(&page);
    assert_eq!(result.labels("kvtier_tier_info", "medium"), ["unknown"]);
    assert_eq!(result.labels("kvtier_tier_info", "bound_basis"), ["none"]);
    assert!(result.absent("kvtier_tier_fill_upper_bound_bytes") && result.absent("kvtier_tier_size_bytes"));
    assert_eq!(result.page, SHARED_STORAGE);
}

#[test]
fn the_cpus_tier_is_as_it_was_beside_another_one_and_nobody_takes_its_name() {
    let page = |kind: &str| {
        Page::vllm()
            .config(r#"kv_offloading_size="1.0",kv_offloading_backend="native""#)
            .sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="GPU_to_CPU""#, "1e+06")
            .sample("vllm:kv_offload_total_bytes_total", &format!("transfer_type=\"{kind}\""), "5e+09")
    };
    for (kind, tiers) in [("OBJ_to_GPU", vec!["ram", "obj"]), ("GPU_to_RAM", vec!["ram"]), ("CPU_to_DISK", vec!["ram"])]
    {
        let result = run(&page(kind));
        assert_eq!(result.labels("kvtier_tier_info", "tier"), tiers, "{kind}");
        assert_eq!(result.values("kvtier_tier_fill_upper_bound_bytes"), [1e6], "{kind}");
        assert_eq!(ids(&result.outcome.notices), ["unknown-transfer-direction"], "{kind}");
    }
    assert_eq!(run(&page("CPU_to_GPU")).outcome.notices, []);
}

// Tiers of which the page says nothing.

#[test]
fn a_tier_without_metrics_is_told_of_with_the_tokens_that_came_from_it() {
    // 64 GiB = 68,719,476,736 bytes.
    assert_eq!(
        of_main(NO_FAMILIES),
        [
            "tier-without-transfer-metrics: engine \"0\" of model \"acme/m\" has a RAM tier of 64.0 GiB (68,719,476,736 bytes), \
          connector native, and its page counts no bytes of it (1,200,000 tokens were supplied)"
        ]
    );
    let served = |source: &str| {
        let labels = format!("source=\"{source}\"");
        run(&Page::vllm().sample("vllm:prompt_tokens_cached_by_source_total", &labels, "4096")).outcome.notices
    };
    assert_eq!(ids(&served("host")), ["tokens-served-by-no-tier"]);
    assert_eq!(served("p2p"), [], "another engine is no tier");
    assert_eq!(served("device"), [], "nor is the GPU");
    let none_yet = Page::vllm().sample("vllm:external_prefix_cache_hits_total", "", "0");
    assert_eq!(run(&none_yet).outcome.notices, []);
}

// The box.

fn tier_of(gib: u64, versions: &str) -> Page {
    // A family that came with 0.33, one that left with 0.20, or a label that came with 0.24.
    let config = format!(r#"kv_offloading_size="{gib}.0",kv_offloading_backend="native""#);
    let moved = |page: Page| page.sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="GPU_to_CPU""#, "0");
    let built = format!(r#"cpu_kv_cache_size_bytes="{}""#, gib * GIB);
    match versions {
        "0.33+" => moved(Page::vllm().config(&format!(r#"{config},kv_cache_size_tokens="1000""#))).sample(
            "vllm:kv_offload_config_info",
            &built,
            "1",
        ),
        "0.24+" => moved(Page::vllm().config(&format!(r#"{config},kv_cache_size_tokens="1000""#))),
        "0.16-0.19" => moved(Page::vllm().config(&config)).sample("vllm:prompt_tokens_recomputed_total", "", "0"),
        _ => panic!("{versions}"),
    }
}

fn mount(size: Option<u64>, is_tmpfs: bool) -> Option<SharedMemory> {
    Some(SharedMemory { path: PathBuf::from("/dev/shm"), size, is_tmpfs })
}

fn on(page: &Page, shm: impl Into<Option<SharedMemory>>, live: &[LiveTierFile]) -> Vec<String> {
    let shm = shm.into();
    let result = run_with(page, |_, host| {
        host.shm = shm;
        host.live_tier_files = live.to_vec();
    });
    result.outcome.notices.iter().filter(|one| one.kind.id == "shm-wrong-mount").map(Notice::seen).collect()
}

#[test]
fn a_mount_that_cannot_hold_the_tier_is_not_the_engines() {
    let small = mount(Some(64 << 20), true);
    assert_eq!(
        on(&tier_of(32, "0.33+"), small.clone(), &[]),
        ["the RAM tier takes 32.0 GiB (34,359,738,368 bytes); /dev/shm has 64.0 MiB (67,108,864 bytes) in all"]
    );
    // A version that may or may not lay it there: 64 MiB are nobody's choice, 16 GiB may well be.
    assert_eq!(on(&tier_of(32, "0.24+"), small.clone(), &[]).len(), 1);
    assert_eq!(on(&tier_of(32, "0.24+"), mount(Some(16 * GIB), true), &[]), [""; 0]);
    assert_eq!(on(&tier_of(32, "0.33+"), mount(Some(16 * GIB), true), &[]).len(), 1);
    assert_eq!(on(&tier_of(32, "0.16-0.19"), small.clone(), &[]), [""; 0], "each rank pins memory of its own");
    assert_eq!(on(&tier_of(32, "0.33+"), mount(Some(47 * GIB), false), &[]).len(), 1, "no tmpfs");
}

#[test]
fn a_mount_that_may_be_the_engines_is_not_told_of() {
    let page = tier_of(32, "0.33+");
    assert_eq!(on(&page, mount(Some(47 * GIB), true), &[]), [""; 0]);
    assert_eq!(on(&page, mount(None, true), &[]), [""; 0], "it has no limit");
    assert_eq!(on(&page, None, &[]), [""; 0], "nobody looks");
    let live = [LiveTierFile { engine_id: "a".into(), bytes: 32 * GIB }];
    assert_eq!(on(&page, mount(Some(16 * GIB), true), &live), [""; 0], "its file lies there");
    // 32 GiB that were asked for may be one slot of 17 GiB.
    let asked = tier_of(32, "0.24+");
    let slot = [LiveTierFile { engine_id: "a".into(), bytes: 17 * GIB }];
    assert_eq!(on(&asked, mount(Some(64 << 20), true), &slot), [""; 0]);
    let simple = Page::vllm().sample("vllm:simple_kv_offload_info", r#"backend="cpu",capacity_blocks="16384""#, "1.0");
    assert_eq!(on(&simple, mount(Some(64 << 20), true), &[]), [""; 0], "another connector's tier lies elsewhere");
}

#[test]
fn a_file_of_another_size_is_of_another_tier() {
    let file = |bytes| [LiveTierFile { engine_id: "a".into(), bytes }];
    let (page, small) = (tier_of(32, "0.33+"), mount(Some(16 * GIB), true));
    // A neighbour's tier of 8 GiB, and one of 15 GiB: no 32 GiB are rounded down to less than half.
    assert_eq!(on(&page, small.clone(), &file(8 * GIB)).len(), 1);
    assert_eq!(on(&page, small.clone(), &file(15 * GIB)).len(), 1);
    assert_eq!(
        on(&page, small.clone(), &[file(8 * GIB), file(32 * GIB)].concat()),
        [""; 0],
        "one of them is the tier's"
    );
    // Where --tier.size is all that is known, the file may show that it is wrong.
    let declared = Page::vllm().sample("vllm:kv_offload_total_bytes_total", r#"transfer_type="GPU_to_CPU""#, "0");
    let told = |live: Vec<LiveTierFile>| {
        let result = run_with(&declared, |settings, host| {
            settings.tier_sizes.insert("ram".into(), 32 * GIB);
            host.shm = mount(Some(64 << 20), true);
            host.live_tier_files = live;
        });
        result.outcome.notices.iter().filter(|one| one.kind.id == "shm-wrong-mount").count()
    };
    assert_eq!([told(vec![]), told(file(1 << 20).to_vec())], [1, 0]);
}

// Lines.

#[test]
fn dropped_lines_are_told_of_by_their_reasons_and_counted_beside_them() {
    let bad = |lines: usize| format!("a 1\n{}", "a{b=\"c\" 1\n".repeat(lines));
    let line =
        |lines: usize| of_main(&bad(lines)).into_iter().find(|line| line.starts_with("upstream-dropped")).unwrap();
    let detail = |lines: usize| {
        let outcome = of(&[source("main", &bad(lines))]);
        outcome.notices.into_iter().find(|one| one.kind.id == "upstream-dropped-lines").unwrap().detail
    };
    assert!(line(40).contains("40 lines in the last scrape, first line 2: a{b=\\\"c\\\" 1"), "{}", line(40));
    assert!(line(1).contains("1 line in the last scrape"), "{}", line(1));
    assert_eq!(detail(40), detail(1), "another count is no news");
    // Odd lines that pass do not hide the reason of one that does not.
    let odd = "a{b=\"\\x\"} 1\n".repeat(100);
    let outcome = of(&[source("main", &format!("{odd}a{{b=\"c\" 1\n"))]);
    let notice = outcome.notices.iter().find(|one| one.kind.id == "upstream-dropped-lines").unwrap();
    assert_eq!(notice.detail, detail(1));
}

// The gauge and the declared size: which engine of which model.

#[test]
fn what_is_told_of_an_engine_names_its_model() {
    let page = Page::vllm().sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.0").sample(
        "vllm:kv_offload_store_bytes_total",
        "",
        "5e+09",
    );
    assert_eq!(
        run(&page).warnings,
        [
            "vllm:kv_offload_cpu_cache_usage_perc of engine \"0\" of model \"acme/m\": the size is not known: give it with --tier.size"
        ]
    );
    let sized = run_with(&tier_of(32, "0.24+"), |settings, _| {
        settings.tier_sizes.insert("ram".into(), GIB);
        settings.tier_sizes.insert("lmcache_dsk".into(), GIB);
    });
    assert_eq!(ids(&sized.outcome.notices), ["tier-size-unused", "tier-size-mismatch"]);
    assert!(sized.warnings[1].contains("for tier ram of engine \"0\" of model \"acme/m\"; the engine says 32.0 GiB"));
}

#[test]
fn a_size_of_a_tier_of_lmcaches_is_told_of_where_no_page_shows_lmcache() {
    let sized = |page: &Page, tier: &str| {
        let sized = run_with(page, |settings, _| settings.tier_sizes = [(tier.to_owned(), 3 * GIB)].into());
        (ids(&sized.outcome.notices), sized)
    };
    let without = Page::vllm().sample("vllm:prompt_tokens_total", "", "1");
    for tier in ["lmcache_disk", "lmcache_cpu"] {
        let (told, sized) = sized(&without, tier);
        assert_eq!(told, ["tier-size-unused"], "{tier}");
        assert!(sized.warnings[0].contains("no page shows LMCache so far"), "{}", sized.warnings[0]);
        assert_eq!(sized.values("kvtier_tier_size_bytes"), [3221225472.0]);
    }
    assert_eq!(sized(&without, "foo").0, ["tier-size-unused"]);
    // A RAM tier has a notice of its own, and LMCache's own page shows its disk.
    assert_eq!(sized(&without, "ram").0, ["tier-without-transfer-metrics"]);
    let lmcache = include_str!("fixtures/lmcache-0.5.6-real-storage-1-partial/page.prom");
    assert_eq!(sized(&Page::new().text(lmcache), "lmcache_disk").0, [""; 0]);
}

#[test]
fn notices_of_pages_in_words_are_those_of_the_explanation_too() {
    let text = explain(&[source("main", SHARED_STORAGE)], &Settings::default(), &HostFacts::default());
    assert!(text.contains("noted: transfer_type \"GPU_to_SHARED_STORAGE\""), "{text}");
    assert!(text.contains("tier \"shared_storage\"") && !text.contains("not placed"), "it is shown: {text}");
}

/// Pages of real engines are as their makers meant them, so there is nothing to tell but what is true of their connector.
#[test]
fn of_pages_of_real_engines_nothing_is_told_but_what_their_connector_lacks() {
    let mut told = BTreeSet::new();
    for capture in captures::all() {
        let source = Source { name: "main".into(), body: capture.body.clone().into(), format: capture.format };
        let outcome = process(&[source], &capture.settings(), &HostFacts::default());
        told.extend(outcome.notices.iter().map(|notice| (capture.name.clone(), notice.kind.id)));
    }
    let lacks = |name: &str| match name {
        // It shows no pool of its own.
        "sglang-0.5.23-lmcache" => "tokens-served-by-no-tier",
        // Promotions are in no family of that version.
        "vllm-0.27.0-offload-tiering-full" => "gauge-not-corrected",
        "vllm-0.14.0-offload-cpu" => "tier-without-transfer-metrics",
        // Neither the page nor anybody else tells its size.
        ray if ray.starts_with("ray-") => "gauge-not-corrected",
        simple if simple.contains("-offload-simple-") => "tier-without-transfer-metrics",
        _ => "",
    };
    assert!(!told.is_empty());
    for (name, id) in told {
        assert_eq!(id, lacks(&name), "{name}");
    }
}

// Everything that is told at run time is told by `check`.

/// What `check` finds in the same pages, and nothing else of the box.
fn found(sources: &[Source], settings: &Settings, notices: &[Notice]) -> Vec<Finding> {
    let survey = survey(sources, settings);
    let engines = resolve(&survey.snapshot, settings, &HostFacts::default());
    let page = check::Page { survey: &survey, main: &survey, engines: &engines };
    check::check(&check::Facts {
        upstream: "http://h",
        page: Ok(page),
        idle_skip_verify: false,
        extras: &[],
        notices,
        settings,
        engines: 1,
        boxed: &BoxFacts::default(),
        said_unified: false,
        disks: &[],
        lmcache: None,
        under_load: None,
        events: &[],
        stored_meanwhile: None,
    })
}

/// A page for each kind of notice that follows from a page or from what the operator says.
fn of_each_kind() -> Vec<(Vec<Source>, Settings, HostFacts)> {
    let lines = |lines: &[String]| vec![source("main", &lines.concat())];
    let plain = |page: &str| (vec![source("main", page)], Settings::default(), HostFacts::default());
    let pods = ["1", "2"].map(|numa| {
        format!("vllm:prompt_tokens_total{{engine=\"0\",model_name=\"m\"}} 5\nvllm:num_preemptions_total{{engine=\"0\",model_name=\"m\",numa=\"{numa}\"}} 1\n")
    });
    let engines: Vec<String> =
        (0..1100).map(|n| format!("vllm:prompt_tokens_total{{engine=\"{n}\",model_name=\"m\"}} 1\n")).collect();
    let two_of_one_cache = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 1\n\
                            vllm:prompt_tokens_total{engine=\"1\",model_name=\"m\"} 1\n\
                            lmcache:local_cache_usage{model_name=\"m\",worker_id=\"0\"} 1\n";
    let impossible = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 10\n\
                      vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_compute\"} 20\n";
    let of_nobody = Page::vllm().sample("vllm:prompt_tokens_cached_by_source_total", "source=\"host\"", "4096");
    let unsized_gauge = Page::vllm().sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.0").sample(
        "vllm:kv_offload_store_bytes_total",
        "",
        "5e+09",
    );
    let two_values =
        Page::vllm().sample("vllm:prompt_tokens_total", "", "1").sample("vllm:prompt_tokens_total", "", "2");
    let sizes =
        Settings { tier_sizes: [("ram".to_owned(), GIB), ("disc".to_owned(), GIB)].into(), ..Settings::default() };
    let small = HostFacts { shm: mount(Some(64 << 20), true), ..HostFacts::default() };
    vec![
        plain(PYTHON),
        plain(RAY),
        plain(SHARED_STORAGE),
        (lines(&pods), Settings::default(), HostFacts::default()),
        plain(impossible),
        plain(&format!("{SHARED_STORAGE}a{{b=\"c\" 1\n")),
        (vec![source("main", tier_of(32, "0.33+").written())], Settings::default(), small),
        plain(NO_FAMILIES),
        plain(of_nobody.written()),
        plain(behind_an_exporter(&with_a_gauge(), |_| ()).written()),
        plain(unsized_gauge.written()),
        (vec![source("main", tier_of(32, "0.24+").written())], sizes, HostFacts::default()),
        plain(two_of_one_cache),
        plain(two_values.written()),
        (lines(&engines), Settings::default(), HostFacts::default()),
        (
            vec![source("main", SHARED_STORAGE), source("ray", RAY), source("bad", "a{b=\"c\" 1\nx 1\n")],
            Settings::default(),
            HostFacts::default(),
        ),
    ]
}

#[test]
fn whatever_is_told_at_run_time_is_found_by_check_and_once() {
    let mut kinds = BTreeSet::from([SKIP_VERIFY.id]);
    for (sources, settings, host) in of_each_kind() {
        let mut notices = process(&sources, &settings, &host).notices;
        notices.push(unverified("main", &Address::parse("https://h").unwrap()));
        let findings = found(&sources, &settings, &notices);
        for notice in &notices {
            kinds.insert(notice.kind.id);
            let of = if notice.upstream == "main" { "" } else { notice.upstream.as_str() };
            let is_it = |finding: &&Finding| match notice.kind.check {
                InCheck::Better(ids, _) if of.is_empty() => ids.contains(&finding.id) || finding.id == notice.kind.id,
                _ => finding.id == notice.kind.id && finding.seen.contains(&notice.seen()) && finding.seen.contains(of),
            };
            assert_eq!(findings.iter().filter(is_it).count(), 1, "{}: {findings:#?}", notice.seen());
        }
    }
    let all: BTreeSet<_> = KINDS.iter().filter(|kind| kind.check != InCheck::Never).map(|kind| kind.id).collect();
    assert_eq!(kinds, all, "each kind has a page here");
}

/// A gauge that passes since something else is wrong is no second finding; at run time both are told.
#[test]
fn what_only_follows_is_not_found_beside_its_cause() {
    let hybrid = Page::vllm()
        .sample("vllm:prompt_tokens_total", "", "5")
        .config(r#"kv_offloading_size="8.0",kv_offloading_backend="native",mamba_block_size="512""#)
        .sample("vllm:kv_offload_cpu_cache_usage_perc", "", "0.0")
        .sample("vllm:kv_offload_store_bytes_total", "", "5e+06");
    let sources = [source("main", hybrid.written())];
    let notices = of(&sources).notices;
    assert_eq!(ids(&notices), ["gauge-not-corrected"]);
    let findings = found(&sources, &Settings::default(), &notices);
    assert_eq!(findings.iter().map(|finding| finding.id).collect::<Vec<_>>(), ["tier-of-several-kv-groups"]);
}
