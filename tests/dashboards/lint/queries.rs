//! Rules about queries, in panels and in annotations.

use promql_parser::label::MatchOp;
use promql_parser::parser::{Expr, LabelModifier, token};
use serde_json::Value;

use crate::board::{list, panels, queries, text};
use crate::query::{IDENTITY, LINKS, Selector, is_guarded, parse, selectors, walk};

/// Functions that a counter may stand under.
const OF_COUNTERS: [&str; 4] = ["rate", "irate", "increase", "resets"];

/// Factors that turn one unit into another; that is the panel's unit to do.
const FACTORS: [f64; 12] =
    [60.0, 3600.0, 86400.0, 100.0, 1e3, 1e6, 1e9, 1e12, 1024.0, 1_048_576.0, 1_073_741_824.0, 8.0];

fn of_panels(board: &Value) -> Vec<&str> {
    panels(board).into_iter().flat_map(queries).collect()
}

fn of_annotations(board: &Value) -> Vec<&str> {
    list(&board["annotations"]["list"]).filter(|one| one["builtIn"] != 1).map(|one| text(one, "expr")).collect()
}

fn all(board: &Value) -> Vec<&str> {
    [of_panels(board), of_annotations(board)].concat()
}

/// Queries in which some node is at fault; those that do not parse are [`parses`]' to find.
fn with_fault(queries: Vec<&str>, fault: impl Fn(&Expr) -> bool) -> Vec<String> {
    let faulty = |query: &&str| parse(query).is_ok_and(|expr| walk(&expr).iter().any(|(node, _)| fault(node)));
    queries.into_iter().filter(faulty).map(str::to_owned).collect()
}

/// Queries in which some selector is at fault.
fn with_selector(queries: Vec<&str>, fault: impl Fn(&Selector<'_>) -> bool) -> Vec<String> {
    let faulty = |query: &&str| parse(query).is_ok_and(|expr| selectors(&expr).iter().any(&fault));
    queries.into_iter().filter(faulty).map(str::to_owned).collect()
}

/// Each panel asks for something, in PromQL.
pub fn parses(board: &Value) -> Vec<String> {
    let silent = panels(board).into_iter().filter(|panel| queries(panel).is_empty());
    let silent = silent.map(|panel| format!("{}: no query", text(panel, "title")));
    silent.chain(all(board).into_iter().filter_map(|query| parse(query).err())).collect()
}

/// Every selector follows the variables job and instance, and no selector names a machine by itself.
pub fn selects_by_the_variables(board: &Value) -> Vec<String> {
    with_selector(all(board), |selector| {
        let follows = |name: &str| {
            let variable = format!("${name}");
            selector.matchers().any(|one| one.name == name && one.value == variable && matches!(one.op, MatchOp::Re(_)))
        };
        let place = |name: &str| ["instance", "job", "pod", "endpoint", "namespace", "node"].contains(&name);
        let literal = selector.matchers().any(|one| place(&one.name) && !one.value.starts_with('$'));
        literal || selector.metric() != LINKS && !(follows("job") && follows("instance"))
    })
}

/// A counter's value says nothing but how long ago its engine started.
pub fn counters_under_rate(board: &Value) -> Vec<String> {
    let is_counter = |name: &str| ["_total", "_bucket", "_sum", "_count"].iter().any(|end| name.ends_with(end));
    with_selector(all(board), |selector| {
        is_counter(&selector.metric()) && !selector.around.iter().any(|name| OF_COUNTERS.contains(name))
    })
}

/// The range of a rate follows zoom and scrape interval; an amount of an hour looks back an hour.
pub fn rate_interval(board: &Value) -> Vec<String> {
    with_selector(of_panels(board), |selector| {
        selector.around.iter().any(|name| ["rate", "irate", "increase"].contains(name))
            && !selector.has_rate_interval()
            && !selector.is_of_an_hour()
    })
}

/// What is divided by is above 0, so that no traffic is a gap and not NaN.
pub fn guarded_division(board: &Value) -> Vec<String> {
    with_fault(of_panels(board), |node| match node {
        Expr::Binary(node) if node.op.id() == token::T_DIV => {
            !is_guarded(&node.rhs) && !matches!(&*node.rhs, Expr::NumberLiteral(_))
        }
        _ => false,
    })
}

/// Engines may be told apart by labels that no dashboard can know, so nothing is gathered or matched by naming the others.
/// Ray's worker tells them apart where there is no replica, so it is taken away only beside one.
pub fn engines_stay_apart(board: &Value) -> Vec<String> {
    let names_engine = |labels: &[String]| labels.iter().any(|label| label == "engine");
    with_fault(all(board), |node| match node {
        Expr::Aggregate(node) => match &node.modifier {
            Some(LabelModifier::Include(by)) => names_engine(&by.labels),
            Some(LabelModifier::Exclude(without)) => {
                without.labels.iter().any(|label| label == "WorkerId")
                    && !selectors(&node.expr).iter().all(of_a_replica)
            }
            None => false,
        },
        Expr::Binary(node) => {
            let matching = node.modifier.as_ref().and_then(|modifier| modifier.matching.as_ref());
            matches!(matching, Some(LabelModifier::Include(on)) if names_engine(&on.labels))
        }
        _ => false,
    })
}

/// Whether it selects series of replicas of Ray Serve only.
fn of_a_replica(selector: &Selector<'_>) -> bool {
    selector.matchers().any(|one| one.name == "ReplicaId" && one.op == MatchOp::NotEqual && one.value.is_empty())
}

/// A line of one engine says of which of the page, if its labels tell.
pub fn legends_tell_engines_apart(board: &Value) -> Vec<String> {
    let named = |legend: &str, label: &str| legend.contains(&format!("{{{{{label}}}}}"));
    let targets = panels(board).into_iter().flat_map(|panel| list(&panel["targets"]));
    let legends = targets.map(|target| text(target, "legendFormat")).filter(|legend| named(legend, "engine"));
    legends.filter(|legend| !IDENTITY.iter().all(|label| named(legend, label))).map(str::to_owned).collect()
}

/// A 0 that nothing was measured for hides that data is missing.
pub fn no_invented_zero(board: &Value) -> Vec<String> {
    with_fault(all(board), |node| matches!(node, Expr::Call(call) if call.func.name == "vector"))
}

/// Units are for the panel; only annotations must give Grafana milliseconds. There is no unit of tokens an hour, so a
/// panel that says "an hour" gives a rate × 3600.
pub fn no_unit_arithmetic(board: &Value) -> Vec<String> {
    let faults = |panel: &Value| {
        let hourly = text(panel, "title").ends_with("an hour");
        let factor = |node: &Expr| matches!(node, Expr::NumberLiteral(n) if FACTORS.contains(&n.val));
        let an_hour = |node: &Expr| hourly && matches!(node, Expr::NumberLiteral(n) if n.val == 3600.0);
        with_fault(queries(panel), |node| match node {
            Expr::Binary(node) if node.op.id() == token::T_MUL => {
                factor(&node.lhs) || (factor(&node.rhs) && !an_hour(&node.rhs))
            }
            Expr::Binary(node) if node.op.id() == token::T_DIV => factor(&node.rhs),
            _ => false,
        })
    };
    panels(board).into_iter().flat_map(faults).collect()
}
