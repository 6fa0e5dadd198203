//! Engines of one page that other labels than model_name and engine tell apart, asked of a real Prometheus: each has a line and
//! a row of its own, and none is counted into another.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::board::{self, legend, list, panels, substitute, text};
use crate::program::upstream::{Upstream, ok};
use crate::support::peers::Prometheus;

/// What tells the engines of the page apart, and how a legend does: two pods, two replicas of Ray Serve in their workers, and two
/// workers of no replica.
const ENGINES: [(&str, &str, &str); 6] = [
    ("vllm:", r#"pod="a""#, "here a engine 0"),
    ("vllm:", r#"pod="b""#, "here b engine 0"),
    ("ray_vllm_", r#"ReplicaId="r1",WorkerId="w1",SessionName="s""#, "here r1 engine 0"),
    ("ray_vllm_", r#"ReplicaId="r2",WorkerId="w2",SessionName="s""#, "here r2 engine 0"),
    ("ray_vllm_", r#"WorkerId="w3",SessionName="s""#, "here w3 engine 0"),
    ("ray_vllm_", r#"WorkerId="w4",SessionName="s""#, "here w4 engine 0"),
];

/// Of each engine its number in this list, in every family, of the first one in two spellings; and a tier of an engine that has
/// neither of the labels.
fn page() -> String {
    let families = ["num_preemptions_total", "kv_cache_usage_perc", "num_requests_running", "num_requests_waiting"];
    let of = |family: &str| {
        let sample = |(at, (spelling, labels, _)): (usize, &(&str, &str, &str))| {
            format!("{spelling}{family}{{engine=\"0\",model_name=\"m\",{labels}}} {at}\n")
        };
        let twice = ("vllm_", ENGINES[0].1, ENGINES[0].2);
        ENGINES.iter().enumerate().chain([(0, &twice)]).map(sample).collect::<String>()
    };
    families.map(of).concat() + "kvtier_tier_size_tokens{tier=\"hicache_host\"} 7\n"
}

/// Waits for two scrapes of the page, so that there are rates.
fn scraped(page: &Upstream) -> Prometheus {
    let target = json!({"targets": [page.address.to_string()], "labels": {"instance": "here"}});
    let prometheus = Prometheus::running(&json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "kvtier", "static_configs": [target]}],
    }));
    let deadline = Instant::now() + Duration::from_secs(30);
    while prometheus.instant("count_over_time(up[1m]) > 2").is_none_or(|found| found.is_empty()) {
        assert!(Instant::now() < deadline, "the page is not scraped");
        std::thread::sleep(Duration::from_millis(100));
    }
    prometheus
}

/// The queries of all panels of a title, with their legends.
fn targets(title: &str) -> Vec<Value> {
    let boards = board::all();
    let panels = boards.iter().flat_map(|board| panels(&board.json)).filter(|panel| text(panel, "title") == title);
    panels.flat_map(|panel| list(&panel["targets"]).cloned().collect::<Vec<_>>()).collect()
}

/// Two engines that are asked alike. Half of the first one's tier is not predicted, since another tier lies behind it.
fn predictions(asked: usize) -> String {
    let engine = |engine: &str, predicted: &[(&str, f64)]| {
        let labels = format!("engine=\"{engine}\",model_name=\"m\"");
        let asked = format!("vllm:external_prefix_cache_queries_total{{{labels}}} {}\n", asked * 1000);
        let one = |(size, share): &(&str, f64)| {
            format!("kvtier_tier_predicted_reload_ratio{{{labels},tier=\"ram\",size=\"{size}\"}} {share}\n")
        };
        asked + &predicted.iter().map(one).collect::<String>()
    };
    engine("0", &[("1", 0.9), ("2", 1.0)]) + &engine("1", &[("0.5", 0.6), ("1", 0.7), ("2", 0.75)])
}

#[test]
fn a_size_is_of_the_engines_for_which_it_is_predicted() {
    let scrapes = AtomicUsize::new(0);
    let upstream = Upstream::start(move |_| vec![ok(predictions(scrapes.fetch_add(1, Relaxed)))]);
    let prometheus = scraped(&upstream);
    // Half is the second engine's alone; of the others each is the mean of two.
    for (line, share) in [("half", 0.6), ("present size", 0.8), ("2 ×", 0.875)] {
        let shown =
            targets("Predicted share reloaded, by size").into_iter().find(|one| text(one, "legendFormat") == line);
        let values = [("instance", ".+"), ("job", ".+"), ("model_name", ".*"), ("engine", ".*")];
        let found = prometheus.instant(&substitute(text(&shown.unwrap(), "expr"), &values)).unwrap();
        assert!(found.len() == 1 && (found[0].1 - share).abs() < 1e-9, "{line}: {found:?}");
    }
}

#[test]
fn a_notice_has_one_row_with_or_without_the_address_of_what_it_means() {
    for (links, told) in [("", ""), ("kvtier:links:info{runbook=\"r\",notices=\"n\",grafana=\"g\"} 1\n", "n")] {
        let page = "kvtier_notice_active{id=\"value-withheld\",upstream=\"main\"} 1\n".to_owned() + links;
        let upstream = Upstream::start(move |_| vec![ok(&page)]);
        let prometheus = scraped(&upstream);
        let query = targets("Notices").iter().map(|target| text(target, "expr").to_owned()).next().unwrap();
        let rows = prometheus.instant(&substitute(&query, &[("instance", ".+"), ("job", ".+")])).unwrap();
        let rows: Vec<_> = rows
            .iter()
            .map(|(row, _)| ["instance", "upstream", "id", "notices"].map(|label| text(row, label)))
            .collect();
        assert_eq!(rows, [["here", "main", "value-withheld", told]]);
    }
}

#[test]
fn engines_of_one_page_have_lines_and_rows_of_their_own() {
    let upstream = Upstream::start(|_| vec![ok(page())]);
    let prometheus = scraped(&upstream);
    let ask = |query: &str| -> Vec<(Value, f64)> {
        let values =
            [("instance", ".+"), ("job", ".+"), ("model_name", ".*"), ("engine", ".*"), ("__rate_interval", "20s")];
        prometheus.instant(&substitute(query, &values)).unwrap_or_else(|| panic!("Prometheus refuses {query}"))
    };
    let numbered: Vec<_> =
        ENGINES.iter().enumerate().map(|(at, (_, _, line))| ((*line).to_owned(), at as f64)).collect();
    let still: Vec<_> = ENGINES.iter().map(|(_, _, line)| ((*line).to_owned(), 0.0)).collect();
    for (title, expected) in [("GPU KV pool in use", &numbered), ("Preemptions", &still)] {
        for target in targets(title) {
            let found = ask(text(&target, "expr")).into_iter();
            let mut lines: Vec<_> =
                found.map(|(labels, value)| (legend(text(&target, "legendFormat"), &labels), value)).collect();
            lines.sort_by(|one, other| one.0.cmp(&other.0));
            assert_eq!(lines, *expected, "{title}");
        }
    }
    let room = targets("Room in tokens").into_iter().flat_map(|target| {
        let found = ask(text(&target, "expr")).into_iter();
        found.map(move |(labels, value)| (legend(text(&target, "legendFormat"), &labels), value)).collect::<Vec<_>>()
    });
    assert_eq!(room.collect::<Vec<_>>(), [("hicache_host tier".to_owned(), 7.0)]);
    for target in targets("Engines") {
        if ["num_requests_running\"", "num_requests_waiting\""]
            .iter()
            .any(|family| text(&target, "expr").contains(family))
            && !text(&target, "expr").contains("group")
        {
            let mut values: Vec<f64> = ask(text(&target, "expr")).into_iter().map(|(_, value)| value).collect();
            values.sort_by(f64::total_cmp);
            assert_eq!(values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "{target}");
        }
    }
}
