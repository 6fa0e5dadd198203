//! Rules about the file as a whole: what provisioning needs, variables, data sources, ids, the grid.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::board::{is_row, list, panels, panels_and_rows, text};
use crate::query;

const COLUMNS: u64 = 24;

/// A file that Grafana loads as it lies, under an address that stays.
pub fn provisioned(board: &Value) -> Vec<String> {
    let uid = text(board, "uid");
    let slug = !uid.is_empty() && uid.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let wanted = [
        (board["schemaVersion"] == 39, "schemaVersion is not 39"),
        (board["editable"] == false, "editable is not false"),
        (board.get("__inputs").is_none(), "__inputs are resolved by hand only"),
        (board.get("id").is_none(), "a numeric id belongs to one Grafana"),
        (slug, "the uid is no plain word"),
        (!text(board, "title").is_empty(), "no title"),
        (board["graphTooltip"] == 1, "no shared crosshair"),
        (list(&board["tags"]).any(|tag| tag == "kvtier"), "the tag kvtier is missing"),
    ];
    wanted.into_iter().filter(|(kept, _)| !kept).map(|(_, finding)| finding.to_owned()).collect()
}

/// The variables that every dashboard has, in this order: name and label.
const VARIABLES: [(&str, &str); 6] = [
    ("datasource", "Data source"),
    ("job", "Job"),
    ("model_name", "Model"),
    ("instance", "Instance"),
    ("engine", "Engine"),
    ("filters", "Filters"),
];

/// Data source first, then from wide to narrow; several values each, and All is one regular expression, which takes an
/// engine without that label too: SGLang's have no engine, and others no model. Last, filters on any label:
/// what else tells engines apart has no variable of its own.
pub fn variables(board: &Value) -> Vec<String> {
    let all: Vec<_> = list(&board["templating"]["list"]).collect();
    let names: Vec<_> = all.iter().map(|one| (text(one, "name"), text(one, "label"))).collect();
    let mut found = Vec::new();
    if names != VARIABLES {
        found.push(format!("variables are {names:?}"));
    }
    let source = all.iter().filter(|one| one["type"] == "datasource");
    if source.filter(|one| one["query"] == "prometheus" && one["current"] == serde_json::json!({})).count() != 1 {
        found.push("no data source variable without a saved choice".to_owned());
    }
    found.extend(all.iter().filter(|one| one["type"] == "query").flat_map(|one| query_variable(one)));
    found
}

fn query_variable(one: &Value) -> Vec<String> {
    let query = text(&one["query"], "query");
    let series = query.strip_prefix("label_values(").and_then(|rest| rest.rsplit_once(", "));
    let (series, label) = series.unwrap_or_default();
    let all = if ["model_name", "engine"].contains(&text(one, "name")) { ".*" } else { ".+" };
    let wanted = [
        (
            one["multi"] == true && one["includeAll"] == true && one["allValue"] == all,
            "All is not one regular expression",
        ),
        (one["refresh"] == 2, "its values do not follow the time range"),
        (label.trim_end_matches(')') == text(one, "name"), "its query is for another label"),
        (series.starts_with("kvtier_"), "its values come from another program's metric"),
        (query::parse(series).is_ok(), "its query does not parse"),
    ];
    let name = text(one, "name");
    wanted.into_iter().filter(|(kept, _)| !kept).map(|(_, finding)| format!("${name}: {finding}")).collect()
}

/// Everything that asks for data asks the chosen data source; but for Grafana's own annotations.
pub fn data_source(board: &Value) -> Vec<String> {
    let chosen = |one: &Value| one["datasource"]["type"] == "prometheus" && one["datasource"]["uid"] == "${datasource}";
    let variables = list(&board["templating"]["list"]).filter(|one| one["type"] != "datasource");
    let annotations = list(&board["annotations"]["list"]).filter(|one| one["builtIn"] != 1);
    let panels = panels(board);
    let targets = panels.iter().flat_map(|panel| list(&panel["targets"]));
    let asking = variables.chain(annotations).chain(panels.iter().copied()).chain(targets);
    asking.filter(|one| !chosen(one)).map(|one| format!("another data source: {}", name_of(one))).collect()
}

fn name_of(one: &Value) -> &str {
    ["title", "name", "expr"].iter().map(|key| text(one, key)).find(|text| !text.is_empty()).unwrap_or("?")
}

/// Links and drawn panels are found by these.
pub fn ids(board: &Value) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let again = |panel: &&Value| !panel["id"].as_u64().is_some_and(|id| seen.insert(id));
    panels_and_rows(board)
        .into_iter()
        .filter(again)
        .map(|panel| format!("no id of its own: {}", name_of(panel)))
        .collect()
}

/// x, y, width, height.
fn place(panel: &Value) -> [u64; 4] {
    ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap_or(0))
}

/// Each cell of the grid from the first line to the last belongs to exactly one panel. What is in a closed row takes no room
/// until it is opened: it lies below its row, on a grid of its own.
pub fn grid(board: &Value) -> Vec<String> {
    let all: Vec<_> = list(&board["panels"]).collect();
    let closed = all.iter().filter(|row| list(&row["panels"]).next().is_some());
    let inner = closed.flat_map(|row| {
        let inner: Vec<_> = list(&row["panels"]).collect();
        let first = inner.iter().map(|panel| place(panel)[1]).min();
        let lies = first == Some(place(row)[1] + 1);
        let astray = (!lies).then(|| format!("not below its row: {}", name_of(row)));
        one_grid(&inner).into_iter().chain(astray)
    });
    one_grid(&all).into_iter().chain(inner).collect()
}

fn one_grid(all: &[&Value]) -> Vec<String> {
    let mut found = Vec::new();
    let mut taken = BTreeSet::new();
    for panel in all {
        let [x, y, w, h] = place(panel);
        if w == 0 || h == 0 || x + w > COLUMNS || (is_row(panel) && (x, w) != (0, COLUMNS)) {
            found.push(format!("outside of the grid: {}", name_of(panel)));
        }
        let cells = (y..y + h).flat_map(|y| (x..x + w).map(move |x| (y, x)));
        if cells.filter(|cell| !taken.insert(*cell)).count() > 0 {
            found.push(format!("on top of another: {}", name_of(panel)));
        }
    }
    let lines: BTreeSet<u64> = taken.iter().map(|(y, _)| *y).collect();
    let gaps = lines.iter().filter(|y| taken.range((**y, 0)..(**y + 1, 0)).count() as u64 != COLUMNS);
    found.extend(gaps.map(|y| format!("line {y} is not filled")));
    found
}
