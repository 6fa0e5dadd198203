//! What rules, alerts, runbook, rule tests and deployment files promise one another.
//!
//! Reads them as data. Whether Prometheus, Alertmanager, kustomize and systemd accept them is for
//! `tests/deploy/check.sh`, which runs those programs; what the rules compute is for `tests/rules/`.
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which say what they expect.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use promql_parser::label::Matcher;
use promql_parser::parser::{self, Expr, LabelModifier, VectorSelector};
use promql_parser::util::{ExprVisitor, walk_expr};
use serde_json::Value;

const SEVERITIES: [&str; 4] = ["critical", "warning", "info", "none"];
const SCOPES: [&str; 3] = ["engine", "host", "exporter"];

/// Families that the exporter can write, as its catalogue lists them.
fn own_families() -> BTreeSet<&'static str> {
    kvtier_exporter::catalogue::catalogue().into_iter().map(|desc| desc.name).collect()
}

/// Families of vLLM that the rules read, as vLLM spells them on the wire.
fn upstream_families() -> BTreeSet<&'static str> {
    "vllm:prompt_tokens_total vllm:generation_tokens_total vllm:external_prefix_cache_queries_total
     vllm:external_prefix_cache_hits_total vllm:num_requests_waiting vllm:num_requests_running vllm:engine_sleep_state
     vllm:kv_offload_allocation_failure_total vllm:kv_offload_cpu_allocation_size_count
     vllm:simple_kv_offload_save_outcomes_total vllm:kv_offload_tiering_cascade_job_failures_total
     vllm:kv_offload_tiering_promotion_job_failures_total vllm:request_queue_time_seconds_sum
     vllm:request_queue_time_seconds_count vllm:request_queue_time_seconds_bucket"
        .split_whitespace()
        .collect()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// All documents of a YAML file.
fn documents(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    serde_saphyr::from_multiple(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn yaml(path: &str) -> Value {
    let mut documents = documents(&root().join(path));
    assert_eq!(documents.len(), 1, "{path} has one document");
    documents.remove(0)
}

fn list<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    value[key].as_array().map(|items| items.iter().collect()).unwrap_or_default()
}

fn string<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or_else(|| panic!("no text {key:?} in {value}"))
}

/// Files with one of these endings in a folder and below, in order.
fn files_below(folder: &str, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
            if path.is_dir() {
                folders.push(path);
            } else if endings.contains(&ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn groups() -> Vec<Value> {
    ["alerts/kvtier.rules.yml", "alerts/kvtier.alerts.yml"]
        .iter()
        .flat_map(|path| list(&yaml(path), "groups").into_iter().cloned().collect::<Vec<_>>())
        .collect()
}

fn rules() -> Vec<Value> {
    groups().iter().flat_map(|group| list(group, "rules").into_iter().cloned().collect::<Vec<_>>()).collect()
}

fn alerts() -> Vec<Value> {
    rules().into_iter().filter(|rule| rule.get("alert").is_some()).collect()
}

fn alert_names() -> BTreeSet<String> {
    alerts().iter().map(|alert| string(alert, "alert").to_owned()).collect()
}

fn rule_tests() -> Vec<Value> {
    files_below("tests/rules", &["yml"]).iter().flat_map(|path| documents(path)).collect()
}

/// Whether an expression gathers or matches by naming an engine's labels: there may be others, which no rule can know.
fn names_the_engine(expr: &str) -> bool {
    label_lists(expr).iter().flatten().any(|label| label == "engine")
}

#[test]
fn no_rule_merges_engines_that_other_labels_tell_apart() {
    for merged in ["sum by (job, engine) (a)", "a and on (instance, engine) b", "1 < (a * on (engine) group_left b)"] {
        assert!(names_the_engine(merged), "{merged}");
    }
    for rule in rules() {
        assert!(!names_the_engine(string(&rule, "expr")), "{rule}");
    }
}

/// Label lists of `by`, `on` and the like of an expression.
fn label_lists(expr: &str) -> Vec<Vec<String>> {
    struct Lists(Vec<Vec<String>>);
    impl ExprVisitor for Lists {
        type Error = String;
        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
            let modifier = match expr {
                Expr::Aggregate(node) => node.modifier.as_ref(),
                Expr::Binary(node) => node.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref()),
                _ => None,
            };
            if let Some(LabelModifier::Include(labels)) = modifier {
                self.0.push(labels.labels.clone());
            }
            Ok(true)
        }
    }
    let mut lists = Lists(Vec::new());
    walk_expr(&mut lists, &parser::parse(expr).unwrap()).unwrap();
    lists.0
}

#[test]
fn boxes_of_one_name_in_two_clusters_are_two() {
    for rule in rules() {
        for list in label_lists(string(&rule, "expr")) {
            let has = |name: &str| list.iter().any(|label| label == name);
            assert!(has("cluster") == has("instance"), "{list:?} in {rule}");
        }
    }
    for inhibition in list(&yaml("deploy/alertmanager/alertmanager.yml"), "inhibit_rules") {
        assert!(list(inhibition, "equal").iter().any(|label| *label == "cluster"), "{inhibition}");
    }
}

/// What pages call vLLM's families: as it writes them, as a collector of OpenTelemetry does, and behind Ray, old and new.
const SPELLINGS: [&str; 4] = ["vllm:", "vllm_", "ray_vllm:", "ray_vllm_"];

/// Of those the ones of pages that did not come through Ray, and the others.
const NOT_BEHIND_RAY: [&str; 2] = ["vllm:", "vllm_"];
const BEHIND_RAY: [&str; 2] = ["ray_vllm:", "ray_vllm_"];

/// How a name of vLLM is spelled, and its family; nothing of any other name.
fn spelled(name: &str) -> Option<(&'static str, &str)> {
    SPELLINGS.iter().find_map(|spelling| Some((*spelling, name.strip_prefix(spelling)?)))
}

/// All selectors of an expression, each with its range, if it has one.
fn selectors(expr: &str) -> Vec<(VectorSelector, Option<Duration>)> {
    struct Selectors(Vec<(VectorSelector, Option<Duration>)>);
    impl ExprVisitor for Selectors {
        type Error = String;
        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
            match expr {
                Expr::VectorSelector(selector) => self.0.push((selector.clone(), None)),
                Expr::MatrixSelector(range) => self.0.push((range.vs.clone(), Some(range.range))),
                _ => {}
            }
            Ok(true)
        }
    }
    let parsed = parser::parse(expr).unwrap_or_else(|error| panic!("{expr}: {error}"));
    let mut found = Selectors(Vec::new());
    walk_expr(&mut found, &parsed).unwrap_or_else(|error| panic!("{expr}: {error}"));
    found.0
}

/// Names that an expression asks for.
fn wire_names(expr: &str) -> BTreeSet<String> {
    let named = |(selector, _): (VectorSelector, _)| {
        selector.name.unwrap_or_else(|| panic!("a selector without a name: {expr}"))
    };
    selectors(expr).into_iter().map(named).collect()
}

/// Metric names of an expression; of a family of vLLM vLLM's own, whatever the spelling.
fn metric_names(expr: &str) -> BTreeSet<String> {
    let own = |name: &String| spelled(name).map_or_else(|| name.clone(), |(_, family)| format!("vllm:{family}"));
    wire_names(expr).iter().map(own).collect()
}

#[test]
fn every_yaml_file_parses() {
    let folders = ["alerts", "dashboards", "deploy", "tests/rules"];
    let files: Vec<_> = folders.iter().flat_map(|folder| files_below(folder, &["yml", "yaml"])).collect();
    assert!(files.len() >= 20, "{files:?}");
    for file in files {
        assert!(documents(&file).iter().all(|one| one.is_object() || one.is_array()), "{}", file.display());
    }
}

#[test]
fn every_alert_says_what_it_is_and_where_to_read_on() {
    for alert in alerts() {
        let name = string(&alert, "alert");
        assert!(name.starts_with("KVTier"), "{name}");
        assert!(alert["for"].is_string(), "{name} has no `for`");
        assert!(SEVERITIES.contains(&string(&alert["labels"], "severity")), "{name}");
        assert!(SCOPES.contains(&string(&alert["labels"], "scope")), "{name}");
        let said = &alert["annotations"];
        assert!(!string(said, "summary").contains("{{"), "{name}: a summary is constant");
        assert!(string(said, "description").len() > 40, "{name}");
        assert!(string(said, "runbook_url").ends_with(&format!("#{}", name.to_lowercase())), "{name}");
        assert!(string(said, "dashboard_url").contains("/d/kvtier-"), "{name}");
    }
}

#[test]
fn values_of_an_alert_are_said_and_humanised() {
    for alert in alerts() {
        let (name, description) = (string(&alert, "alert"), string(&alert["annotations"], "description"));
        assert!(!description.contains("{{ $value }}"), "{name} shows a raw value");
        if string(&alert["labels"], "scope") != "exporter" {
            assert!(description.contains("$labels.instance"), "{name} does not say where");
        }
    }
}

#[test]
fn the_runbook_has_a_heading_for_each_alert_and_no_other() {
    let runbook = text("alerts/runbook.md");
    let chapters: Vec<_> = runbook.split("\n## ").skip(1).collect();
    let headings: BTreeSet<_> = chapters.iter().map(|chapter| chapter.lines().next().unwrap().to_owned()).collect();
    assert_eq!(headings, alert_names());
    assert_eq!(chapters.len(), headings.len(), "a heading is there twice");
    for chapter in chapters {
        for part in ["**Means.**", "**Check.**", "**Do.**", "**Silence"] {
            assert!(chapter.contains(part), "{part} is missing in {chapter}");
        }
    }
}

/// Alerts whose tests expect them to fire, and those whose tests expect them to be silent.
fn tried() -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut firing, mut silent) = (BTreeSet::new(), BTreeSet::new());
    for file in rule_tests() {
        for case in list(&file, "tests").iter().flat_map(|test| list(test, "alert_rule_test")) {
            let fires = !list(case, "exp_alerts").is_empty();
            (if fires { &mut firing } else { &mut silent }).insert(string(case, "alertname").to_owned());
        }
    }
    (firing, silent)
}

#[test]
fn every_alert_is_tried_in_both_directions() {
    let (firing, silent) = tried();
    assert_eq!(firing, alert_names());
    // The watchdog is the one that never rests.
    let can_rest: BTreeSet<_> = alert_names().into_iter().filter(|name| name != "KVTierWatchdog").collect();
    assert_eq!(silent, can_rest);
}

#[test]
fn every_rule_test_evaluates_the_groups_in_the_order_of_the_files() {
    let names: Vec<_> = groups().iter().map(|group| group["name"].clone()).collect();
    for file in files_below("tests/rules", &["yml"]) {
        let order = documents(&file).remove(0)["group_eval_order"].clone();
        assert_eq!(order, Value::Array(names.clone()), "{}", file.display());
    }
}

#[test]
fn rules_read_only_what_somebody_writes() {
    let recorded: BTreeSet<_> = rules().iter().filter_map(|rule| rule["record"].as_str().map(str::to_owned)).collect();
    let (own, upstream) = (own_families(), upstream_families());
    for rule in rules() {
        for name in metric_names(string(&rule, "expr")) {
            let known = own.contains(name.as_str()) || upstream.contains(name.as_str()) || recorded.contains(&name);
            assert!(known || name == "up", "{name} is written by nobody: {rule}");
        }
    }
}

#[test]
fn everything_recorded_for_the_rules_is_read_by_one() {
    let read: BTreeSet<_> = rules().iter().flat_map(|rule| metric_names(string(rule, "expr"))).collect();
    for rule in rules() {
        let Some(name) = rule["record"].as_str().filter(|name| name.starts_with("kvtier:")) else { continue };
        // The links are read by the annotations.
        assert!(read.contains(name) || name == "kvtier:links:info", "{name} is a threshold of nothing");
    }
}

/// Families of vLLM that an expression asks for in some spellings of a page and not in the others. Each use counts: another
/// range or another label is another one.
fn half_asked(expr: &str) -> Vec<String> {
    let mut uses: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (selector, range) in selectors(expr) {
        let name = selector.name.clone().unwrap_or_default();
        if let Some((spelling, family)) = spelled(&name) {
            let of = VectorSelector { name: Some(family.to_owned()), ..selector };
            uses.entry(format!("{of} {range:?}")).or_default().insert(spelling);
        }
    }
    let whole = [&SPELLINGS[..], &NOT_BEHIND_RAY, &BEHIND_RAY].map(|those| those.iter().copied().collect());
    uses.into_iter().filter(|(_, spellings)| !whole.contains(spellings)).map(|(of, _)| of).collect()
}

#[test]
fn a_family_of_vllm_is_asked_for_in_each_spelling() {
    assert_eq!(half_asked("rate(vllm:a[5m]) or rate(vllm_a[5m])"), [""; 0]);
    assert_eq!(half_asked("rate(vllm:a[5m]) or rate(vllm_a[1m])").len(), 2);
    assert_eq!(half_asked("vllm:a or vllm_a or ray_vllm_a").len(), 1);
    for (place, query) in queries() {
        assert_eq!(half_asked(&query), [""; 0], "{place}: {query}");
    }
}

/// Whether a text asks for a range of whatever has a name of some pattern.
fn asks_for_a_range_by_a_pattern(text: &str) -> bool {
    let asked = |rest: &str| rest.split_once('}').is_some_and(|(_, after)| after.starts_with('['));
    ["__name__=~", "__name__!~", "__name__!="].iter().any(|by| text.split(by).skip(1).any(asked))
}

/// A function drops the name. Where one page has two names that the pattern matches, the rest may be alike, and the query fails for every
/// engine. Without a function a sum counts both.
#[test]
fn nothing_is_asked_for_by_a_pattern_of_names() {
    assert!(asks_for_a_range_by_a_pattern("rate({job=\"a\", __name__=~\"a|b\", c=\"d\"}[5m])"));
    assert!(!asks_for_a_range_by_a_pattern("count by (__name__) ({__name__=~\"a|b\"}) + rate(a{b=\"c\"}[5m])"));
    for (place, query) in queries() {
        let by_name =
            |(selector, _): &(VectorSelector, _)| selector.matchers.matchers.iter().any(|one| one.name == "__name__");
        assert!(!selectors(&query).iter().any(by_name), "{place}: {query}");
    }
    let folders = ["alerts", "dashboards", "deploy", "docs"];
    let below = folders.iter().flat_map(|folder| files_below(folder, &["md", "yml", "yaml", "json"]));
    for file in below.chain([root().join("README.md")]) {
        assert!(!asks_for_a_range_by_a_pattern(&fs::read_to_string(&file).unwrap()), "{}", file.display());
    }
}

/// Ray makes a histogram's sum of the middles of its buckets, so nothing may rest on one, nor on its count beside a sum.
#[test]
fn no_sum_behind_ray_is_asked_for() {
    for (place, query) in queries() {
        let names = wire_names(&query);
        let sums: Vec<_> = names.iter().filter_map(|name| spelled(name)?.1.strip_suffix("_sum")).collect();
        for (spelling, end) in BEHIND_RAY.iter().flat_map(|spelling| [(spelling, "_sum"), (spelling, "_count")]) {
            let mixed = sums.iter().find(|of| names.contains(&format!("{spelling}{of}{end}")));
            assert_eq!(mixed, None, "{place}: {query}");
        }
    }
}

/// Whether Prometheus takes a name to match a pattern: in whole.
fn matches(pattern: &str, name: &str) -> bool {
    let Ok(Expr::VectorSelector(selector)) = parser::parse(&format!("{{a=~{pattern:?}, b=\"1\"}}")) else {
        panic!("{pattern} is no pattern");
    };
    selector.matchers.matchers.iter().find(|one| one.name == "a").unwrap().is_match(name)
}

/// Every query that is shipped, with where it stands: of rules, of panels, of their annotations and variables.
fn queries() -> Vec<(String, String)> {
    fn expressions(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => members.iter().for_each(|(key, value)| match value {
                Value::String(text) if key == "expr" => found.push(text.clone()),
                Value::String(text) if key == "query" && text.starts_with("label_values(") => {
                    found.push(text["label_values(".len()..].rsplit_once(',').unwrap().0.to_owned());
                }
                _ => expressions(value, found),
            }),
            Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
            _ => {}
        }
    }
    let mut all = Vec::new();
    for path in files_below("dashboards", &["json"]) {
        let mut found = Vec::new();
        expressions(&serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap(), &mut found);
        let place = path.file_name().unwrap().to_string_lossy().into_owned();
        // What Grafana puts in for its variable.
        all.extend(found.into_iter().map(|query| (place.clone(), query.replace("$__rate_interval", "1m"))));
    }
    assert!(all.len() > 100, "{}", all.len());
    all.extend(rules().iter().map(|rule| ("a rule".to_owned(), string(rule, "expr").to_owned())));
    all
}

/// The pieces of YAML in a document.
fn yaml_in(path: &str) -> Vec<Value> {
    let text = text(path);
    let pieces = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    pieces
        .map(|piece| serde_saphyr::from_str(piece).unwrap_or_else(|error| panic!("{path}: {error}\n{piece}")))
        .collect()
}

/// Patterns of names that the shipped configurations of Prometheus drop, those of the documents included.
fn dropped() -> Vec<(String, String)> {
    fn drops(value: &Value, found: &mut Vec<String>) {
        let by_name = value["source_labels"].as_array().or(value["sourceLabels"].as_array());
        if value["action"] == "drop" && by_name.is_some_and(|labels| labels.iter().any(|label| label == "__name__")) {
            found.push(string(value, "regex").to_owned());
        }
        let inner = value.as_object().into_iter().flat_map(|members| members.values());
        inner.chain(value.as_array().into_iter().flatten()).for_each(|value| drops(value, found));
    }
    let mut all = Vec::new();
    for path in files_below("deploy", &["yml", "yaml"]) {
        let mut found = Vec::new();
        documents(&path).iter().for_each(|document| drops(document, &mut found));
        all.extend(found.into_iter().map(|pattern| (path.display().to_string(), pattern)));
    }
    for path in ["README.md", "deploy/README.md"] {
        let mut found = Vec::new();
        yaml_in(path).iter().for_each(|piece| drops(piece, &mut found));
        all.extend(found.into_iter().map(|pattern| (path.to_owned(), pattern)));
    }
    all
}

#[test]
fn nothing_shipped_asks_for_what_a_shipped_configuration_drops() {
    let dropped = dropped();
    assert!(dropped.len() >= 3, "{dropped:?}");
    for (place, query) in queries() {
        for name in wire_names(&query) {
            for (file, pattern) in &dropped {
                assert!(!matches(pattern, &name), "{file} drops {name} of {place}: {query}");
            }
        }
    }
}

#[test]
fn no_rule_knows_a_job_by_its_name() {
    struct Jobs(BTreeSet<String>);
    impl ExprVisitor for Jobs {
        type Error = String;
        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
            let matchers: &[Matcher] = match expr {
                Expr::VectorSelector(selector) => &selector.matchers.matchers,
                Expr::MatrixSelector(range) => &range.vs.matchers.matchers,
                _ => &[],
            };
            self.0.extend(matchers.iter().filter(|one| one.name == "job").map(|one| one.value.clone()));
            Ok(true)
        }
    }
    for rule in rules() {
        let mut jobs = Jobs(BTreeSet::new());
        walk_expr(&mut jobs, &parser::parse(string(&rule, "expr")).unwrap()).unwrap();
        assert_eq!(jobs.0, BTreeSet::new(), "{rule}");
    }
}

/// Whether two sides of an operation are ours and upstream's. A recorded name has a prefix of its own.
fn joins_ours_with_upstreams(expr: &str) -> bool {
    struct Joins(bool);
    impl ExprVisitor for Joins {
        type Error = String;
        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
            if let Expr::Binary(node) = expr {
                let sides = [&node.lhs, &node.rhs].map(|side| metric_names(&side.to_string()));
                let any = |side: &BTreeSet<String>, start: &str| side.iter().any(|name| name.starts_with(start));
                let [left, right] = &sides;
                self.0 |= any(left, "kvtier_") && any(right, "vllm:") || any(left, "vllm:") && any(right, "kvtier_");
            }
            Ok(true)
        }
    }
    let mut joins = Joins(false);
    walk_expr(&mut joins, &parser::parse(expr).unwrap()).unwrap();
    joins.0
}

#[test]
fn no_rule_joins_ours_with_upstreams() {
    for joined in ["kvtier_a / (vllm:b or ray_vllm_b)", "rate(vllm:a[5m]) > 0 and on (job) kvtier_b"] {
        assert!(joins_ours_with_upstreams(joined), "{joined}");
    }
    for rule in rules() {
        assert!(!joins_ours_with_upstreams(string(&rule, "expr")), "{rule}: record upstream's side by itself");
    }
}

#[test]
fn every_threshold_is_watched() {
    let rules = rules();
    let recorded: BTreeSet<_> = rules.iter().filter_map(|rule| rule["record"].as_str()).collect();
    let recorded: BTreeSet<_> =
        recorded.into_iter().filter(|name| name.starts_with("kvtier:")).map(str::to_owned).collect();
    let guard = alerts().into_iter().find(|alert| string(alert, "alert") == "KVTierThresholdBroken").unwrap();
    let expr = string(&guard, "expr");
    assert_eq!(metric_names(expr), recorded);
    for name in recorded {
        assert!(expr.contains(&format!("\"threshold\", \"{name}\"")), "{name} is not named");
    }
}

/// The number of a threshold written as `vector(512 * 1024^2)`.
fn threshold(name: &str) -> f64 {
    let rule = rules().into_iter().find(|rule| rule["record"] == name).unwrap();
    let (factor, power) = string(&rule, "expr")
        .strip_prefix("vector(")
        .and_then(|rest| rest.strip_suffix(')')?.split_once(" * 1024^"))
        .unwrap_or_else(|| panic!("{name}: {rule}"));
    factor.parse::<f64>().unwrap() * 1024f64.powi(power.parse().unwrap())
}

#[test]
fn the_lines_of_a_panel_are_the_limits_of_the_alerts() {
    let limits = ["kvtier:gpu_memory_free_bytes:critical", "kvtier:gpu_memory_free_bytes:warning"].map(threshold);
    assert_eq!(limits, [256.0 * 1_048_576.0, 512.0 * 1_048_576.0]);
    let board: Value = serde_json::from_str(&text("dashboards/kvtier-overview.json")).unwrap();
    let panel = list(&board, "panels").into_iter().find(|panel| panel["title"] == "GPU memory free").unwrap();
    let steps = list(&panel["fieldConfig"]["defaults"]["thresholds"], "steps");
    let lines: Vec<f64> = steps.iter().filter_map(|step| step["value"].as_f64()).collect();
    assert_eq!(lines, limits);
    assert!(string(panel, "description").contains("the limits of the alerts: 512 MiB and 256 MiB."));
}

#[test]
fn every_notice_has_an_alert_and_no_other_is_named() {
    let (mut named, mut own) = (BTreeSet::new(), BTreeSet::new());
    for alert in alerts() {
        for part in string(&alert, "expr").split("id").skip(1) {
            let Some(ids) = part.trim_start_matches(['=', '!', '~']).strip_prefix('"') else { continue };
            let ids = ids.split('"').next().unwrap().split('|').map(str::to_owned);
            if string(&alert, "alert") == "KVTierNotice" { named.extend(ids) } else { own.extend(ids) }
        }
    }
    let document = text("docs/notices.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: BTreeSet<String> = rows.map(str::to_owned).collect();
    assert_eq!(named.difference(&known).collect::<Vec<_>>(), [""; 0], "no such notice");
    assert_eq!(own.difference(&named).collect::<Vec<_>>(), [""; 0], "told twice");
}

#[test]
fn the_kubernetes_rule_is_the_rules() {
    let rule = yaml("deploy/kubernetes/prometheusrule.yaml");
    assert_eq!(rule["kind"], "PrometheusRule");
    let advice = "run deploy/kubernetes/prometheusrule.sh > deploy/kubernetes/prometheusrule.yaml";
    assert_eq!(rule["spec"]["groups"], Value::Array(groups()), "{advice}");
}

#[test]
fn every_environment_variable_in_the_deployment_files_is_spelled_like_a_flag() {
    let command = <kvtier_exporter::cli::Cli as clap::CommandFactory>::command();
    let flags = command.get_arguments().filter_map(clap::Arg::get_long);
    let known: Vec<String> = flags.map(|flag| flag.to_ascii_uppercase().replace(['.', '-'], "_")).collect();
    for file in files_below("deploy", &["yml", "yaml", "env"]).iter().chain([&root().join("deploy/Dockerfile")]) {
        let text = fs::read_to_string(file).unwrap();
        for rest in text.split("KVTIER_").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            assert!(name.is_empty() || known.contains(&name), "KVTIER_{name} in {}", file.display());
        }
    }
}
