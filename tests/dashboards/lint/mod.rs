//! The rules that our dashboards keep, each a function that returns what it finds wrong.
//!
//! A rule is a row in [`RULES`] and at least one row in [`cases::BAD`]: a change to a good dashboard that only this rule
//! minds. The good dashboard passes all rules, so each is tried in both directions.

mod cases;
mod looks;
mod queries;
mod shape;

use serde_json::Value;

use crate::board;

/// A rule: its name, and what it finds.
type Rule = (&'static str, fn(&Value) -> Vec<String>);

const RULES: &[Rule] = &[
    ("provisioned", shape::provisioned),
    ("variables", shape::variables),
    ("data source", shape::data_source),
    ("ids", shape::ids),
    ("grid", shape::grid),
    ("titles", looks::titles),
    ("description", looks::description),
    ("units", looks::units),
    ("thresholds", looks::thresholds),
    ("no alarm on a share", looks::no_alarm_on_a_share),
    ("parses", queries::parses),
    ("selects by the variables", queries::selects_by_the_variables),
    ("counters under rate", queries::counters_under_rate),
    ("rate interval", queries::rate_interval),
    ("guarded division", queries::guarded_division),
    ("engines stay apart", queries::engines_stay_apart),
    ("legends tell engines apart", queries::legends_tell_engines_apart),
    ("no invented zero", queries::no_invented_zero),
    ("no unit arithmetic", queries::no_unit_arithmetic),
];

/// Everything that the rules mind.
fn findings(board: &Value) -> Vec<(&'static str, String)> {
    RULES.iter().flat_map(|(name, rule)| rule(board).into_iter().map(move |finding| (*name, finding))).collect()
}

#[test]
fn the_dashboards_keep_the_rules() {
    let boards = board::all();
    let found: Vec<_> =
        boards.iter().flat_map(|board| findings(&board.json).into_iter().map(|f| (&board.name, f))).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn each_dashboard_has_an_address_of_its_own() {
    let mut uids: Vec<String> = board::all().iter().map(|board| board::text(&board.json, "uid").to_owned()).collect();
    uids.sort();
    assert_eq!(uids, ["kvtier-engine", "kvtier-overview"]);
}
