//! A dashboard that every rule passes, and changes that one rule each must mind.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{RULES, findings};

/// One panel, all that it needs, and nothing else.
fn good() -> Value {
    let source = json!({"type": "prometheus", "uid": "${datasource}"});
    let variable = |name: &str, label: &str| {
        let all = if ["model_name", "engine"].contains(&name) { ".*" } else { ".+" };
        json!({"name": name, "label": label, "type": "query", "datasource": source, "refresh": 2, "multi": true, "includeAll": true,
            "allValue": all, "query": {"query": format!("label_values(kvtier_a{{job=~\"$job\"}}, {name})")}})
    };
    let expr = "sum(rate(kvtier_a_bytes_total{job=~\"$job\", instance=~\"$instance\"}[$__rate_interval])) / (sum(kvtier_b{job=~\"$job\", instance=~\"$instance\"}) > 0)";
    let panel = json!({
        "id": 2, "type": "timeseries", "title": "Bytes", "gridPos": {"x": 0, "y": 1, "w": 24, "h": 8}, "datasource": source,
        "description": "How many bytes there are.\n\nMetric: `kvtier_a_bytes_total`, `kvtier_b`",
        "targets": [{"expr": expr, "datasource": source}],
        "fieldConfig": {
            "defaults": {"unit": "percentunit", "thresholds": {"steps": [{"value": null, "color": "text"}, {"value": 1, "color": "blue"}]}},
            "overrides": [{"matcher": {}, "properties": [{"id": "unit", "value": "Bps"}]}],
        },
    });
    json!({
        "title": "T", "uid": "kvtier-t", "schemaVersion": 39, "editable": false, "graphTooltip": 1, "tags": ["kvtier"],
        "templating": {"list": [
            {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}},
            variable("job", "Job"), variable("model_name", "Model"), variable("instance", "Instance"), variable("engine", "Engine"),
            {"name": "filters", "label": "Filters", "type": "adhoc", "datasource": source},
        ]},
        "annotations": {"list": [
            {"builtIn": 1, "datasource": {"type": "grafana"}},
            {"name": "A", "datasource": source, "expr": "kvtier_b{job=~\"$job\", instance=~\"$instance\"} * 1000"},
        ]},
        "panels": [{"id": 1, "type": "row", "title": "R", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}, "panels": []}, panel],
    })
}

/// A rule, where to change the good dashboard, and to what. A null takes the member away.
type Bad = (&'static str, &'static str, fn() -> Value);

const EXPR: &str = "/panels/1/targets/0/expr";

const BAD: &[Bad] = &[
    ("provisioned", "/schemaVersion", || json!(22)),
    ("provisioned", "/editable", || json!(true)),
    ("provisioned", "/__inputs", || json!([{"name": "DS_PROMETHEUS"}])),
    ("provisioned", "/id", || json!(17)),
    ("provisioned", "/uid", || json!("")),
    ("provisioned", "/title", || json!("")),
    ("provisioned", "/tags", || json!([])),
    ("provisioned", "/graphTooltip", || json!(0)),
    ("variables", "/templating/list/0/current", || json!({"text": "Mine", "value": "abc123"})),
    ("variables", "/templating/list/1/allValue", || json!(null)),
    ("variables", "/templating/list/4/allValue", || json!(".+")),
    ("variables", "/templating/list/1/multi", || json!(false)),
    ("variables", "/templating/list/2/refresh", || json!(1)),
    ("variables", "/templating/list/3/label", || json!("instance")),
    ("variables", "/templating/list/1/query/query", || json!("label_values(kvtier_a, model_name)")),
    ("variables", "/templating/list/1/query/query", || json!("label_values(vllm:a, job)")),
    ("variables", "/templating/list/1/query/query", || json!("label_values(kvtier_a{, job)")),
    ("data source", "/panels/1/datasource/uid", || json!("abc123")),
    ("data source", "/panels/1/targets/0/datasource/uid", || json!("${DS_PROMETHEUS}")),
    (
        "variables",
        "/templating/list/5",
        || json!({"name": "pod", "label": "Pod", "type": "adhoc", "datasource": {"type": "prometheus", "uid": "${datasource}"}}),
    ),
    ("data source", "/templating/list/1/datasource/uid", || json!("abc123")),
    ("data source", "/templating/list/5/datasource/uid", || json!("abc123")),
    ("data source", "/annotations/list/1/datasource", || json!(null)),
    ("ids", "/panels/1/id", || json!(1)),
    ("ids", "/panels/1/id", || json!(null)),
    ("grid", "/panels/1/gridPos/w", || json!(12)),
    ("grid", "/panels/1/gridPos/x", || json!(12)),
    ("grid", "/panels/1/gridPos/y", || json!(0)),
    ("grid", "/panels/0/panels", || {
        let mut inner = good()["panels"][1].clone();
        (inner["id"], inner["title"], inner["gridPos"]["y"]) = (json!(3), json!("More bytes"), json!(5));
        json!([inner])
    }),
    ("titles", "/panels/1/title", || json!("")),
    ("titles", "/panels/1/title", || json!("R")),
    ("description", "/panels/1/description", || json!(null)),
    ("description", "/panels/1/description", || json!("How many bytes there are.")),
    ("description", "/panels/1/description", || json!("Bytes.\n\nMetric: `kvtier_a_bytes_total`, `kvtier_b`")),
    ("description", "/panels/1/description", || json!("How many bytes there are.\n\nMetric: `kvtier_b`")),
    ("units", "/panels/1/fieldConfig/defaults/unit", || json!(null)),
    ("units", "/panels/1/fieldConfig/defaults/unit", || json!("decbytes")),
    ("units", "/panels/1/fieldConfig/overrides/0/properties/0/value", || json!("percent")),
    ("thresholds", "/panels/1/fieldConfig/defaults/thresholds", || json!(null)),
    ("thresholds", "/panels/1/fieldConfig/defaults/thresholds/steps/0/value", || json!(0)),
    ("no alarm on a share", "/panels/1/fieldConfig/defaults/thresholds/steps/1/color", || json!("red")),
    ("parses", EXPR, || json!("sum(")),
    ("parses", "/panels/1/targets", || json!([])),
    ("parses", "/annotations/list/1/expr", || json!("kvtier_b{")),
    ("selects by the variables", EXPR, || json!("kvtier_b")),
    ("selects by the variables", EXPR, || json!("kvtier_b{job=\"$job\", instance=~\"$instance\"}")),
    ("selects by the variables", EXPR, || json!("kvtier_b{job=~\"$job\", instance=~\"$instance\", pod=\"a\"}")),
    ("selects by the variables", "/annotations/list/1/expr", || json!("kvtier_b{job=~\"$job\"}")),
    ("counters under rate", EXPR, || json!("kvtier_a_bytes_total{job=~\"$job\", instance=~\"$instance\"}")),
    ("counters under rate", EXPR, || json!("vllm:a_sum{job=~\"$job\", instance=~\"$instance\"}")),
    ("rate interval", EXPR, || json!("rate(kvtier_a_bytes_total{job=~\"$job\", instance=~\"$instance\"}[5m])")),
    ("rate interval", EXPR, || json!("rate(kvtier_a_bytes_total{job=~\"$job\", instance=~\"$instance\"}[1h])")),
    ("rate interval", EXPR, || json!("increase(kvtier_a_bytes_total{job=~\"$job\", instance=~\"$instance\"}[2h])")),
    ("guarded division", EXPR, || {
        json!("kvtier_b{job=~\"$job\", instance=~\"$instance\"} / kvtier_b{job=~\"$job\", instance=~\"$instance\"}")
    }),
    ("engines stay apart", EXPR, || json!("sum by (engine) (kvtier_b{job=~\"$job\", instance=~\"$instance\"})")),
    ("engines stay apart", EXPR, || {
        json!(
            "kvtier_b{job=~\"$job\", instance=~\"$instance\"} and on (job, engine) kvtier_b{job=~\"$job\", instance=~\"$instance\"}"
        )
    }),
    ("engines stay apart", EXPR, || {
        json!("sum without (WorkerId) (kvtier_b{ReplicaId=\"\", job=~\"$job\", instance=~\"$instance\"})")
    }),
    ("legends tell engines apart", "/panels/1/targets/0/legendFormat", || {
        json!("{{instance}} {{pod}} engine {{engine}}")
    }),
    ("no invented zero", EXPR, || json!("kvtier_b{job=~\"$job\", instance=~\"$instance\"} or vector(0)")),
    ("no unit arithmetic", EXPR, || json!("kvtier_b{job=~\"$job\", instance=~\"$instance\"} / 1e9")),
    ("no unit arithmetic", EXPR, || json!("kvtier_b{job=~\"$job\", instance=~\"$instance\"} * 3600")),
    ("no unit arithmetic", EXPR, || json!("100 * kvtier_b{job=~\"$job\", instance=~\"$instance\"}")),
];

/// The good dashboard with one change.
fn changed(path: &str, value: Value) -> Value {
    let mut board = good();
    let (parent, key) = path.rsplit_once('/').unwrap();
    let parent = board.pointer_mut(parent).unwrap_or_else(|| panic!("nothing at {path}"));
    match (parent, key.parse::<usize>()) {
        (Value::Array(items), Ok(at)) => items[at] = value,
        (Value::Object(members), _) if value.is_null() => drop(members.remove(key)),
        (parent, _) => parent[key] = value,
    }
    board
}

#[test]
fn the_good_dashboard_passes_every_rule() {
    assert_eq!(findings(&good()), []);
}

#[test]
fn each_change_is_minded_by_its_rule() {
    for (rule, path, value) in BAD {
        let found = findings(&changed(path, value()));
        assert!(found.iter().any(|(name, _)| name == rule), "{rule}: {path} = {}: {found:?}", value());
        // A panel that asks for something else no longer shows what its description tells, which is not the point here.
        let others = found.iter().filter(|(name, _)| name != rule && *name != "description");
        assert_eq!(others.collect::<Vec<_>>(), Vec::<&(&str, String)>::new(), "{rule}: {path} = {}", value());
    }
}

#[test]
fn every_rule_has_been_seen_to_fail() {
    let tried: BTreeSet<_> = BAD.iter().map(|(rule, ..)| *rule).collect();
    let rules: BTreeSet<_> = RULES.iter().map(|(name, _)| *name).collect();
    assert_eq!(tried, rules);
}
