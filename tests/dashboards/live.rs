//! Every panel of every dashboard, asked of a real Prometheus that scrapes the program in front of the demo engine.

use std::time::{Duration, Instant};

use kvtier_exporter::demo::simulation::Truth;
use serde_json::{Value, json};

use crate::board::{self, Board, legend, list, panels, substitute, text};
use crate::program::exporter::Exporter;
use crate::program::upstream::{Upstream, ok};
use crate::rig::{Engine, GPU_FREE, Rig};
use crate::support::captures;
use crate::support::peers::Prometheus;

/// The longest that a panel may take to show data. Rare events of the demo come once in some simulated hours.
const PATIENCE: Duration = Duration::from_secs(75);
/// Simulated seconds in one.
const SPEED: f64 = 60.0;
/// Stands for `$__rate_interval`, in seconds.
const WINDOW: f64 = 20.0;

/// Queries that may find nothing in front of the demo engine, by a part of their text, and why.
const MAY_BE_EMPTY: &[(&str, &str)] = &[
    ("kvtier_upstream_error_info", "the page can be read"),
    ("kvtier_lmcache_", "the demo engine has no LMCache"),
    ("kv_offload_stores_skipped_total", "the demo engine has no store threshold"),
    ("backpressure_stores_dropped_total", "its disk tier keeps up, so no store was ever dropped"),
    ("kvtier_events_errors_total", "its streams do not fail"),
    ("promotion_allocation_failures_total", "appears with the first refusal, which can take hours"),
];

/// Panels that only an engine with a tier can fill.
const ONLY_WITH_A_TIER: &[&str] = &[
    "Served by the tier",
    "Reload and store",
    "Tier fill, upper bound, and the raw gauge",
    "Bytes moved",
    "Mean size of a copy",
    "Turnover: time to write the tier over once",
    "Stores refused and skipped",
    "Secondary tiers: found there",
    "Secondary tiers: failed jobs",
    "Tier fill, upper bound",
    "Tier emptied?",
    "Bytes in the tier, upper bound",
    "Slots held by copies",
    "Time spent copying",
    "Promoted and written",
];

/// Panels that only an exporter with --events can fill.
const ONLY_WITH_EVENTS: &[&str] = &[
    "Predicted share reloaded, by size",
    "Worth of another size, tokens an hour",
    "Predicted share, over time",
    "Evicted, then wanted again",
    "Age at eviction",
    "Chunks stored and evicted",
    "Event streams",
    "Batches of events",
    "Gaps, failures and resets",
    "What lies in the tiers, by engine",
    "Streams",
];

/// A fleet of two: `tiered` with the demo engine, `plain` with an engine without a tier.
struct Fleet {
    engine: Engine,
    prometheus: Prometheus,
    boards: Vec<Board>,
    programs: (Rig, Exporter, Upstream),
}

impl Fleet {
    fn start() -> Fleet {
        let engine = Engine::start(SPEED);
        let tiered = Rig::following(&engine);
        let page = captures::named("vllm-0.33.0-no-offload").body;
        let upstream = Upstream::start(move |_| vec![ok(&page)]);
        let plain = Exporter::start(&upstream.url(), &[]);
        let target = |address: String, name: &str| json!({"targets": [address], "labels": {"instance": name}});
        let targets =
            [target(tiered.exporter.address.to_string(), "tiered"), target(plain.address.to_string(), "plain")];
        let prometheus = Prometheus::running(&json!({
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "kvtier", "static_configs": targets}],
        }));
        Fleet { engine, prometheus, boards: board::all(), programs: (tiered, plain, upstream) }
    }

    /// Asks as Grafana does with this instance chosen. NaN is no data.
    fn ask(&self, query: &str, instance: &str) -> Vec<(Value, f64)> {
        let window = format!("{WINDOW}s");
        let values = [
            ("instance", instance),
            ("job", ".+"),
            ("model_name", ".*"),
            ("engine", ".*"),
            ("__rate_interval", &window),
        ];
        let query = substitute(query, &values);
        let all = self.prometheus.instant(&query).unwrap_or_else(|| panic!("Prometheus refuses {query}"));
        all.into_iter().filter(|(_, value)| !value.is_nan()).collect()
    }

    /// All panels with their titles; of those that two dashboards share, both.
    fn panels(&self) -> Vec<&Value> {
        self.boards.iter().flat_map(|board| panels(&board.json)).collect()
    }

    /// What the panels of that title show of an instance: legend with its labels, and value.
    fn shows(&self, title: &str, instance: &str) -> Vec<(String, f64)> {
        let panels: Vec<_> = self.panels().into_iter().filter(|panel| text(panel, "title") == title).collect();
        assert!(!panels.is_empty(), "no panel {title}");
        let one = |target: &Value| {
            let found = self.ask(text(target, "expr"), instance).into_iter();
            found.map(|(labels, value)| (legend(text(target, "legendFormat"), &labels), value)).collect::<Vec<_>>()
        };
        panels.into_iter().flat_map(|panel| list(&panel["targets"])).flat_map(one).collect()
    }

    /// Values under a legend; several where both dashboards have a panel of that title.
    fn values(&self, title: &str, legend: &str) -> Vec<f64> {
        let shown = self.shows(title, "tiered");
        let found: Vec<f64> = shown.iter().filter(|(name, _)| name == legend).map(|(_, value)| *value).collect();
        assert!(!found.is_empty(), "{title} shows no {legend}: {shown:?}");
        found
    }

    /// The panel shows this, give or take a share of it.
    fn near(&self, title: &str, legend: &str, expected: f64, tolerance: f64) {
        for value in self.values(title, legend) {
            let off = (value - expected).abs() / expected;
            assert!(off <= tolerance, "{title}: {legend} shows {value}, not {expected}");
        }
    }

    /// Waits for a moment at which the panel shows what the truth says. Both move on with every scrape.
    fn agrees(&self, title: &str, legend: &str, truth: impl Fn(&[Truth]) -> f64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (shown, truth) = (self.values(title, legend), truth(&self.engine.truth()));
            if shown.iter().all(|value| (value - truth).abs() <= 1e-9 * truth.abs()) {
                return;
            }
            assert!(Instant::now() < deadline, "{title}: {legend} shows {shown:?}, the truth is {truth}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn every_panel_has_data_and_the_truth_explains_it() {
    let fleet = Fleet::start();
    every_query_finds_something(&fleet);
    what_stands_still(&fleet);
    what_moves(&fleet);
    what_is_measured_over_a_window(&fleet);
    tokens_an_hour_are_those_of_the_status_page(&fleet);
    an_engine_without_a_tier(&fleet);
}

fn every_query_finds_something(fleet: &Fleet) {
    let may_be_empty = |query: &str| MAY_BE_EMPTY.iter().any(|(part, _)| query.contains(part));
    let panels = fleet.panels();
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let mut missing: Vec<&str> =
        targets.map(|target| text(target, "expr")).filter(|query| !may_be_empty(query)).collect();
    let deadline = Instant::now() + PATIENCE;
    while !missing.is_empty() {
        assert!(Instant::now() < deadline, "no data: {missing:#?}");
        std::thread::sleep(Duration::from_millis(200));
        missing.retain(|query| fleet.ask(query, "tiered").is_empty());
    }
    for panel in panels {
        let sure = board::queries(panel).into_iter().any(|query| !may_be_empty(query));
        assert!(sure, "{} may be empty", text(panel, "title"));
    }
    let notes = fleet.boards.iter().flat_map(|board| list(&board.json["annotations"]["list"]));
    let restarts: Vec<_> =
        notes.filter(|one| one["builtIn"] != 1).map(|one| fleet.ask(text(one, "expr"), "tiered")).collect();
    assert!(!restarts[0].is_empty(), "both engines of the demo have started once");
}

/// Figures that were given to the demo and the stub, or follow from them by hand.
fn what_stands_still(fleet: &Fleet) {
    let servers: Vec<f64> = fleet.shows("Engine servers", ".+").into_iter().map(|(_, value)| value).collect();
    assert_eq!(servers, [2.0, 0.0, 0.0], "up, down, lost");
    // Two engines, each with 32 GiB in chunks of 16 MiB, of 464 tokens each; and 507 GPU blocks of 464 tokens.
    fleet.near("Room in tokens", "ram tier", 2.0 * 2048.0 * 464.0, 0.0);
    fleet.near("Room in tokens", "GPU", 2.0 * 507.0 * 464.0, 0.0);
    fleet.near("Room in bytes", "ram tier", 2.0 * 34_359_738_368.0, 0.0);
    fleet.near("Room in bytes", "GPU", 2.0 * 507.0 * 16_777_216.0, 0.0);
    let gpus: Vec<f64> = fleet.shows("GPUs that answer", "tiered").into_iter().map(|(_, value)| value).collect();
    assert_eq!(gpus, [1.0, 0.0, 1.0, 0.0], "read and lost, of both dashboards");
    fleet.near("Least GPU memory free", "tiered GPU 0", GPU_FREE, 0.0);
    // 32 GT/s, 16 lanes, 128 of 130 bits: 63.0 GB/s.
    fleet.near("Copy speed of one rank", "PCIe maximum", 32e9 * 16.0 * 128.0 / 130.0 / 8.0, 0.001);
    // Speeds that the demo gives its links.
    fleet.near("Copy speed of one rank", "reload ram", 13.4e9, 0.03);
    fleet.near("Copy speed of one rank", "store ram", 13.1e9, 0.03);
}

/// Figures of the last scrape.
fn what_moves(fleet: &Fleet) {
    let occupied = |truth: &Truth| truth.occupied_bytes as f64;
    fleet.agrees("Bytes in the tier, upper bound", "tiered engine 0 ram", |truths| occupied(&truths[0]));
    fleet.agrees("Bytes in the tier, upper bound", "tiered engine 1 ram", |truths| occupied(&truths[1]));
    let filled = |truth: &Truth| truth.occupied_bytes as f64 / truth.size_bytes as f64;
    let title = "Tier fill, upper bound, and the raw gauge";
    fleet.agrees(title, "emptiest ram", |truths| filled(&truths[0]).min(filled(&truths[1])));
    let pinned = |truth: &Truth| truth.pinned_bytes as f64 / truth.size_bytes as f64;
    fleet.agrees(title, "pinned ram (raw gauge)", |truths| pinned(&truths[0]).max(pinned(&truths[1])));
    let computed = |truth: &Truth| truth.computed_tokens as f64 / truth.prompt_tokens as f64;
    fleet.agrees("Share computed by prefill, now and before", "since start", |t| {
        (computed(&t[0]) + computed(&t[1])) / 2.0
    });
}

/// Rates: what went on between two moments a window apart. Scrapes do not fall on the window's ends.
fn what_is_measured_over_a_window(fleet: &Fleet) {
    let before = fleet.engine.truth();
    let deadline = Instant::now() + PATIENCE;
    let mut after = fleet.engine.truth();
    while after[0].age_seconds < before[0].age_seconds + WINDOW * SPEED {
        assert!(Instant::now() < deadline, "the demo's clock stands still");
        std::thread::sleep(Duration::from_millis(20));
        after = fleet.engine.truth();
    }
    let passed = (after[0].age_seconds - before[0].age_seconds) / SPEED;
    let grown =
        |of: fn(&Truth) -> u64| after.iter().map(of).sum::<u64>() as f64 - before.iter().map(of).sum::<u64>() as f64;
    let (computed, prompt) = (grown(|t| t.computed_tokens), grown(|t| t.prompt_tokens));
    fleet.near("Computed by prefill", "__auto", computed / prompt, 0.25);
    fleet.near("Bytes moved", "reload ram", grown(|t| t.reloaded_bytes) / passed, 0.25);
    fleet.near("Bytes moved", "store ram", grown(|t| t.stored_bytes) / passed, 0.25);
}

/// Both are a rate × 3600, over the last hour as far back as it is known: here a minute or two.
fn tokens_an_hour_are_those_of_the_status_page(fleet: &Fleet) {
    let status = || -> Value { serde_json::from_str(&fleet.programs.0.exporter.get("/api/status").body).unwrap() };
    let lost = |status: &Value| {
        let half = list(&status["engines"]).map(|engine| engine["events"]["sizes"][0].clone());
        let half: Vec<Value> = half.collect();
        assert!(half.iter().all(|size| size["multiple"] == 0.5), "{half:?}");
        -half.iter().filter_map(|size| size["more_tokens_per_hour"].as_f64()).sum::<f64>()
    };
    let deadline = Instant::now() + PATIENCE;
    loop {
        let expected = lost(&status());
        let shown = fleet.values("Worth of another size, tokens an hour", "lost with half")[0];
        if expected > 0.0 && (shown - expected).abs() <= 0.4 * expected {
            return;
        }
        assert!(Instant::now() < deadline, "the dashboard shows {shown}, the status page {expected}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Nothing was stored and nothing could be: no 0, no 100 %, no line.
fn an_engine_without_a_tier(fleet: &Fleet) {
    for title in ONLY_WITH_A_TIER.iter().chain(ONLY_WITH_EVENTS) {
        assert_eq!(fleet.shows(title, "plain"), [], "{title}");
    }
    let room: Vec<String> = fleet.shows("Room in tokens", "plain").into_iter().map(|(legend, _)| legend).collect();
    assert_eq!(room, ["GPU"]);
    let up: Vec<f64> = fleet.shows("Engine servers", "plain").into_iter().map(|(_, value)| value).collect();
    assert_eq!(up, [1.0, 0.0, 0.0]);
}
