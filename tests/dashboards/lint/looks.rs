//! Rules about what a reader sees: titles, descriptions, units, colours.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::board::{list, panels, panels_and_rows, queries, text};
use crate::query;

/// The units we use. The last two are our own, since Grafana has none for tokens; `bytes` counts in 1024, `Bps` in 1000.
const UNITS: [&str; 8] = ["none", "short", "bytes", "Bps", "s", "percentunit", "cps", "count:tok"];
const TOKENS_PER_SECOND: &str = "count:tok/s";

/// Every panel has a title, and no two have the same.
pub fn titles(board: &Value) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let all = panels_and_rows(board).into_iter().map(|panel| text(panel, "title"));
    all.filter(|title| title.is_empty() || !seen.insert(*title))
        .map(|title| format!("no title of its own: {title:?}"))
        .collect()
}

/// What it means; then, behind a blank line, exactly the families that it shows.
pub fn description(board: &Value) -> Vec<String> {
    panels(board).into_iter().filter_map(description_fault).collect()
}

fn description_fault(panel: &Value) -> Option<String> {
    let title = text(panel, "title");
    let Some((meaning, metrics)) = text(panel, "description").split_once("\n\nMetric: ") else {
        return Some(format!("{title}: no meaning, or no line that begins with Metric:"));
    };
    if meaning.len() < 20 || !meaning.ends_with('.') {
        return Some(format!("{title}: no sentence says what it means"));
    }
    let told: BTreeSet<&str> = metrics.split(", ").map(|name| name.trim_matches('`')).collect();
    let shown: BTreeSet<String> = queries(panel).into_iter().flat_map(families).collect();
    let same = told.iter().copied().eq(shown.iter().map(String::as_str));
    (!same).then(|| format!("{title}: it tells of {told:?} and shows {shown:?}"))
}

/// Families in a query: a histogram's parts count as the histogram.
fn families(text: &str) -> BTreeSet<String> {
    let Ok(expr) = query::parse(text) else { return BTreeSet::new() };
    let family = |name: &str| {
        let parts = ["_bucket", "_sum", "_count"];
        parts.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned()
    };
    query::selectors(&expr).iter().map(|selector| family(&selector.metric())).collect()
}

/// One of our units on every panel, and on every column that has one of its own.
pub fn units(board: &Value) -> Vec<String> {
    let known = |unit: &str| UNITS.contains(&unit) || unit == TOKENS_PER_SECOND;
    let mut found = Vec::new();
    for panel in panels(board) {
        let config = &panel["fieldConfig"];
        let own = list(&config["overrides"]).flat_map(|one| list(&one["properties"])).filter(|one| one["id"] == "unit");
        let all = own.map(|one| text(one, "value")).chain([text(&config["defaults"], "unit")]);
        found.extend(all.filter(|unit| !known(unit)).map(|unit| format!("{}: unit {unit:?}", text(panel, "title"))));
    }
    found
}

/// Steps of all thresholds of a panel.
fn threshold_steps(panel: &Value) -> Vec<&Vec<Value>> {
    let config = &panel["fieldConfig"];
    let own =
        list(&config["overrides"]).flat_map(|one| list(&one["properties"])).filter(|one| one["id"] == "thresholds");
    let all = own.map(|one| &one["value"]).chain([&config["defaults"]["thresholds"]]);
    all.filter_map(|thresholds| thresholds["steps"].as_array()).collect()
}

/// Given, so that Grafana's green and red at 80 do not come by themselves, and open below.
pub fn thresholds(board: &Value) -> Vec<String> {
    let fault = |panel: &&Value| {
        let steps = threshold_steps(panel);
        steps.is_empty() || steps.iter().any(|steps| !steps.first().is_some_and(|first| first["value"].is_null()))
    };
    panels(board).into_iter().filter(fault).map(|panel| format!("{}: thresholds", text(panel, "title"))).collect()
}

/// A full tier or a low share of hits is no fault, so no share turns red or orange by its value.
pub fn no_alarm_on_a_share(board: &Value) -> Vec<String> {
    let alarming = |steps: &&Vec<Value>| steps.iter().any(|step| step["color"] == "red" || step["color"] == "orange");
    let fault = |panel: &&Value| {
        text(&panel["fieldConfig"]["defaults"], "unit") == "percentunit" && threshold_steps(panel).iter().any(alarming)
    };
    panels(board)
        .into_iter()
        .filter(fault)
        .map(|panel| format!("{}: a share with an alarm", text(panel, "title")))
        .collect()
}
