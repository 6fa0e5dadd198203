//! A dashboard as data: its panels, its queries, and what stands in for Grafana's variables.

use std::path::Path;

use serde_json::Value;

/// One dashboard file.
pub struct Board {
    /// Name of the file.
    pub name: String,
    /// Its content.
    pub json: Value,
}

/// All dashboards of the folder, by name.
pub fn all() -> Vec<Board> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("dashboards");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
    files.sort();
    assert!(files.len() >= 2);
    files.iter().map(|file| Board::read(file)).collect()
}

impl Board {
    fn read(file: &Path) -> Board {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(file).unwrap();
        Board { json: serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}")), name }
    }
}

/// Members of an array; none where there is no array.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A string member; empty where there is none.
pub fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Panels and rows in order, those inside collapsed rows included.
pub fn panels_and_rows(board: &Value) -> Vec<&Value> {
    list(&board["panels"]).flat_map(|panel| std::iter::once(panel).chain(list(&panel["panels"]))).collect()
}

/// Panels without the rows.
pub fn panels(board: &Value) -> Vec<&Value> {
    panels_and_rows(board).into_iter().filter(|panel| !is_row(panel)).collect()
}

/// Whether it is the header of a row.
pub fn is_row(panel: &Value) -> bool {
    panel["type"] == "row"
}

/// Queries of a panel.
pub fn queries(panel: &Value) -> Vec<&str> {
    list(&panel["targets"]).map(|target| text(target, "expr")).collect()
}

/// Puts values in the place of `$name`, as Grafana does. Longer names first: `$job` begins `$job_name` too.
pub fn substitute(query: &str, values: &[(&str, &str)]) -> String {
    let mut values = values.to_vec();
    values.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    values.iter().fold(query.to_owned(), |query, (name, value)| query.replace(&format!("${name}"), value))
}

/// A legend with its labels put in, as Grafana does and a browser shows it: a label that is not there leaves nothing, and several
/// spaces are one.
pub fn legend(format: &str, labels: &Value) -> String {
    let (head, rest) = format.split_once("{{").unwrap_or((format, ""));
    let put = rest
        .split("{{")
        .filter_map(|part| part.split_once("}}"))
        .map(|(name, after)| format!("{}{after}", text(labels, name.trim())));
    let line = std::iter::once(head.to_owned()).chain(put).collect::<String>();
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_legend_has_the_labels_that_are_there() {
    let labels = serde_json::json!({"instance": "a", "engine": "0"});
    assert_eq!(legend("{{instance}} {{pod}}{{WorkerId}} engine {{ engine }} ", &labels), "a engine 0");
    assert_eq!(legend("p50", &labels), "p50");
}

#[test]
fn longer_names_are_substituted_first() {
    let values = [("job", "a"), ("job_name", "b"), ("__rate_interval", "1m")];
    assert_eq!(substitute("$job_name $job [$__rate_interval]", &values), "b a [1m]");
}
