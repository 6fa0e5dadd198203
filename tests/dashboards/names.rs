//! Every name in a query is on a page of the running program, and every family of the program is on a dashboard.
//!
//! A dashboard that asks for a name that is gone shows an empty panel and no error.

use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use kvtier_exporter::catalogue::catalogue;
use serde_json::Value;

use crate::board::{self, list, panels, text};
use crate::program::exporter::Exporter;
use crate::program::upstream::{Upstream, ok};
use crate::query::{IDENTITY, LINKS, labels, parse, selectors};
use crate::rig::{Engine, Rig};
use crate::support::strict::check;

/// Names that no page below has, and why they are asked for all the same.
const ELSEWHERE: &[(&str, &str)] = &[
    ("vllm:kv_offload_stores_skipped_total", "only with a store threshold of 2 or more"),
    ("up", "Prometheus' own"),
    ("ALERTS", "Prometheus' own"),
    (LINKS, "recorded by the rules that lie beside the dashboards"),
];

/// Labels of the record of links, of which a panel takes one.
const OF_LINKS: [&str; 1] = ["notices"];

/// Families that no panel shows, and why.
const UNSHOWN: &[(&str, &str)] = &[
    ("kvtier_process_open_fds", "for somebody who already looks into the exporter itself"),
    ("kvtier_process_threads", "for somebody who already looks into the exporter itself"),
    ("kvtier_upstream_merged_out_families", "the log says it once, with the families' names"),
];

/// Labels that Prometheus gives to every series.
const TARGET: [&str; 2] = ["job", "instance"];

/// Labels that upstream's families may have from the way they came. Queries take them away, so that what is left is told
/// apart as ours is (a WorkerId only beside a ReplicaId); no page below has been that way.
const WAY: [&str; 9] = [
    "otel_scope_name",
    "otel_scope_version",
    "otel_scope_schema_url",
    "SessionName",
    "Version",
    "Component",
    "NodeAddress",
    "WorkerId",
    "pid",
];

/// What pages have: each metric with the labels seen on it; none where only its TYPE line was seen.
#[derive(Debug, Default)]
struct Known(BTreeMap<String, BTreeSet<String>>);

impl Known {
    fn add(&mut self, page: &str) {
        let verdict = check(page.as_bytes());
        assert!(verdict.accepted(), "{:?}", verdict.refusal);
        for family in verdict.families.into_keys() {
            self.0.entry(family).or_default();
        }
        for sample in verdict.samples {
            self.0.entry(sample.name).or_default().extend(sample.labels.into_iter().map(|(name, _)| name));
        }
    }

    /// Labels of a metric; `None` where it is not known.
    fn labels(&self, metric: &str) -> Option<BTreeSet<&str>> {
        Some(self.0.get(metric)?.iter().map(String::as_str).chain(TARGET).collect())
    }

    /// Names in a query, and labels in its legend, that are nowhere.
    fn faults(&self, query: &str, legend: &str) -> Vec<String> {
        let expr = parse(query).unwrap();
        let mut found = Vec::new();
        let mut all = BTreeSet::from(TARGET);
        let elsewhere = |metric: &str| ELSEWHERE.iter().any(|(name, _)| *name == metric);
        let selectors = selectors(&expr);
        for selector in selectors.iter().filter(|selector| !elsewhere(&selector.metric())) {
            let Some(own) = self.labels(&selector.metric()) else {
                found.push(format!("no metric {}", selector.metric()));
                continue;
            };
            let unsampled = own.len() == TARGET.len();
            let strange = |name: &str| !unsampled && !own.contains(name) && !IDENTITY.contains(&name);
            let odd = selector.matchers().filter(|one| strange(&one.name));
            found.extend(odd.map(|one| format!("no label {} on {}", one.name, selector.metric())));
            all.extend(own);
        }
        let shown =
            legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next()).map(|name| name.trim().to_owned());
        let may_be_absent: &[&[&str]] = &[&WAY, &IDENTITY, &OF_LINKS];
        let odd = labels(&expr)
            .into_iter()
            .chain(shown)
            .filter(|name| !all.contains(&**name) && !may_be_absent.iter().any(|list| list.contains(&name.as_str())));
        found.extend(odd.map(|name| format!("no label {name} in {query}")));
        found
    }
}

/// Queries of a dashboard with their legends: of panels, annotations and variables.
fn asked(board: &Value) -> Vec<(String, String)> {
    let targets = panels(board).into_iter().flat_map(|panel| list(&panel["targets"]));
    let targets = targets.map(|target| (text(target, "expr").to_owned(), text(target, "legendFormat").to_owned()));
    let notes = list(&board["annotations"]["list"]).filter(|one| one["builtIn"] != 1);
    let notes = notes.map(|one| (text(one, "expr").to_owned(), String::new()));
    let series = |one: &Value| {
        text(&one["query"], "query").strip_prefix("label_values(")?.rsplit_once(", ").map(|(s, _)| s.to_owned())
    };
    let variables = list(&board["templating"]["list"]).filter_map(series).map(|series| (series, String::new()));
    targets.chain(notes).chain(variables).collect()
}

#[test]
fn every_name_in_a_query_is_on_a_page() {
    let engine = Engine::start(240.0);
    let page = "tests/fixtures/lmcache-0.5.6-disk/page.prom";
    let lmcache = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    let lmcache = Upstream::start(move |_| vec![ok(&lmcache)]);
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let rigs = [Rig::following(&engine), Rig::start(&lmcache.url())];
    let down = Exporter::start(&nobody.to_string(), &["--events", &format!("tcp://{nobody}")]);
    let queries: Vec<_> = board::all().iter().flat_map(|board| asked(&board.json)).collect();
    // Some series appear with their first event, and collectors take their time.
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut known = Known::default();
    loop {
        rigs.iter().map(|one| &one.exporter).chain([&down]).for_each(|one| known.add(&one.metrics().body));
        let found: Vec<String> = queries.iter().flat_map(|(query, legend)| known.faults(query, legend)).collect();
        if found.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "{found:#?}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn every_family_of_ours_is_shown() {
    let mut shown = BTreeSet::new();
    for board in board::all() {
        for (query, _) in asked(&board.json) {
            shown.extend(selectors(&parse(&query).unwrap()).iter().map(|selector| selector.metric().into_owned()));
        }
    }
    // A histogram is shown by its parts.
    let parts = |name: &String| {
        ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part)).map(str::to_owned)
    };
    shown.extend(shown.iter().filter_map(parts).collect::<Vec<_>>());
    let ours: BTreeSet<String> = catalogue().iter().map(|desc| desc.name.to_owned()).collect();
    let excused: BTreeSet<String> = UNSHOWN.iter().map(|(name, _)| (*name).to_owned()).collect();
    let left_out: Vec<_> = ours.difference(&shown).filter(|name| !excused.contains(*name)).collect();
    assert_eq!(left_out, [""; 0], "on no panel, and not excused");
    assert_eq!(excused.intersection(&shown).collect::<Vec<_>>(), [""; 0], "excused, and on a panel all the same");
}

#[test]
fn a_name_that_is_nowhere_is_found() {
    let mut known = Known::default();
    known.add("# TYPE a gauge\na{x=\"1\"} 1\n# TYPE unsampled gauge\n");
    let faults = |query: &str| known.faults(query, "{{instance}} {{x}}");
    assert_eq!(faults("sum by (x) (a{x=\"1\", job=~\"$job\"}) and on (job) unsampled{y=\"1\"}"), [""; 0]);
    assert_eq!(faults("b + a"), ["no metric b"]);
    assert_eq!(faults("a{y=\"1\"}"), ["no label y on a"]);
    assert_eq!(faults("sum by (y) (a)"), ["no label y in sum by (y) (a)"]);
    assert_eq!(known.faults("a", "{{z}}"), ["no label z in a"]);
}
