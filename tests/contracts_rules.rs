//! What rules, alerts, runbook, rule tests and deployment files promise one another.
//!
//! Reads them as data. Whether Prometheus, Alertmanager, kustomize and systemd accept them is for
//! `tests/deploy/check.sh`, which runs those programs; what the rules compute is for `tests/rules/`.
#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, which say what they expect.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use promql_parser::parser::{self, Expr, LabelModifier};
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
     vllm:kv_offload_tiering_promotion_job_failures_total"
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
    struct Named(bool);
    impl ExprVisitor for Named {
        type Error = String;
        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
            let modifier = match expr {
                Expr::Aggregate(node) => node.modifier.as_ref(),
                Expr::Binary(node) => node.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref()),
                _ => None,
            };
            if let Some(LabelModifier::Include(labels)) = modifier {
                self.0 |= labels.labels.iter().any(|label| label == "engine");
            }
            Ok(true)
        }
    }
    let mut named = Named(false);
    walk_expr(&mut named, &parser::parse(expr).unwrap()).unwrap();
    named.0
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

/// Metric names of an expression.
fn metric_names(expr: &str) -> BTreeSet<String> {
    struct Names(BTreeSet<String>);
    impl ExprVisitor for Names {
        type Error = String;
        fn pre_visit(&mut self, expr: &Expr) -> Result<bool, String> {
            let selector = match expr {
                Expr::VectorSelector(selector) => selector,
                Expr::MatrixSelector(range) => &range.vs,
                _ => return Ok(true),
            };
            self.0.insert(selector.name.clone().ok_or("a selector without a name")?);
            Ok(true)
        }
    }
    let parsed = parser::parse(expr).unwrap_or_else(|error| panic!("{expr}: {error}"));
    let mut names = Names(BTreeSet::new());
    walk_expr(&mut names, &parsed).unwrap_or_else(|error| panic!("{expr}: {error}"));
    names.0
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
