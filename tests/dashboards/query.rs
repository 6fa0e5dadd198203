//! What a query says, read off its syntax tree by a parser that is not ours.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::time::Duration;

use promql_parser::label::Matcher;
use promql_parser::parser::{self, Expr, VectorSelector, token};

use crate::board::substitute;

/// What stands for `$__rate_interval`: a time that nobody would write.
const RATE_INTERVAL: (&str, Duration) = ("7m7s", Duration::from_secs(427));

/// Parses a query with Grafana's variables in it. Those between quotes stay as they are.
pub fn parse(query: &str) -> Result<Expr, String> {
    let query = substitute(query, &[("__rate_interval", RATE_INTERVAL.0)]);
    parser::parse(&query).map_err(|error| format!("{query}: {error}"))
}

/// The parts that an expression is made of.
fn parts(expr: &Expr) -> Vec<&Expr> {
    match expr {
        Expr::Aggregate(node) => std::iter::once(&*node.expr).chain(node.param.as_deref()).collect(),
        Expr::Unary(node) => vec![&node.expr],
        Expr::Binary(node) => vec![&node.lhs, &node.rhs],
        Expr::Paren(node) => vec![&node.expr],
        Expr::Subquery(node) => vec![&node.expr],
        Expr::Call(node) => node.args.args.iter().map(|part| &**part).collect(),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::VectorSelector(_) | Expr::MatrixSelector(_) => vec![],
        Expr::Extension(_) => vec![],
    }
}

/// An expression and everything in it, each with the names of the functions around it.
pub fn walk(expr: &Expr) -> Vec<(&Expr, Vec<&str>)> {
    fn visit<'a>(expr: &'a Expr, around: &[&'a str], found: &mut Vec<(&'a Expr, Vec<&'a str>)>) {
        found.push((expr, around.to_vec()));
        let mut inner = around.to_vec();
        if let Expr::Call(call) = expr {
            inner.push(call.func.name);
        }
        parts(expr).into_iter().for_each(|part| visit(part, &inner, found));
    }
    let mut found = Vec::new();
    visit(expr, &[], &mut found);
    found
}

/// Labels beside model_name and engine that tell engines of one page apart, of those that are known. The last three are of a
/// page that was gathered from others: Prometheus keeps its own pod and instance, and renames the page's.
pub const IDENTITY: [&str; 7] =
    ["pod", "worker_addr", "ReplicaId", "WorkerId", "dp_rank", "exported_instance", "exported_pod"];

/// What the rules record for links: it is of no job and no instance.
pub const LINKS: &str = "kvtier:links:info";

/// What pages may call the engine's families instead of `vllm:`: a collector of OpenTelemetry, and Ray, old and new.
const OTHER_SPELLINGS: [&str; 3] = ["vllm_", "ray_vllm:", "ray_vllm_"];

/// A selector and what is around it.
pub struct Selector<'a> {
    /// What it selects.
    pub of: &'a VectorSelector,
    /// Functions around it, the outermost first.
    pub around: Vec<&'a str>,
    /// Its range, if it has one.
    range: Option<Duration>,
}

impl Selector<'_> {
    /// Name of the metric; of one in another spelling than the engine's, the engine's own.
    pub fn metric(&self) -> Cow<'_, str> {
        let name = self.of.name.as_deref().unwrap_or_default();
        match OTHER_SPELLINGS.iter().find_map(|start| name.strip_prefix(start)) {
            Some(family) => format!("vllm:{family}").into(),
            None => name.into(),
        }
    }

    /// Whether its range is `$__rate_interval`.
    pub fn has_rate_interval(&self) -> bool {
        self.range == Some(RATE_INTERVAL.1)
    }

    /// Whether it is an amount of the last hour: what is told by the hour looks back one.
    pub fn is_of_an_hour(&self) -> bool {
        self.around.contains(&"increase") && self.range == Some(Duration::from_secs(3600))
    }

    /// Its matchers.
    pub fn matchers(&self) -> impl Iterator<Item = &Matcher> {
        self.of.matchers.matchers.iter()
    }
}

/// All selectors of an expression.
pub fn selectors(expr: &Expr) -> Vec<Selector<'_>> {
    let found = walk(expr).into_iter().filter_map(|(expr, around)| match expr {
        Expr::VectorSelector(of) => Some(Selector { of, around, range: None }),
        Expr::MatrixSelector(matrix) => Some(Selector { of: &matrix.vs, around, range: Some(matrix.range) }),
        _ => None,
    });
    found.collect()
}

/// Labels that a query names: in matchers, `by`, `without`, `on`, `ignoring` and `group_left`.
pub fn labels(expr: &Expr) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for (expr, _) in walk(expr) {
        match expr {
            Expr::Aggregate(node) => labels.extend(node.modifier.iter().flat_map(|by| by.labels().labels.clone())),
            Expr::Binary(node) => {
                let on = node.modifier.iter().filter_map(|modifier| modifier.matching.as_ref());
                labels.extend(on.flat_map(|on| on.labels().labels.clone()));
            }
            _ => {}
        }
    }
    labels
}

/// Whether a node is `something > 0`, in parentheses or not.
pub fn is_guarded(expr: &Expr) -> bool {
    match expr {
        Expr::Paren(node) => is_guarded(&node.expr),
        Expr::Binary(node) => {
            node.op.id() == token::T_GTR && matches!(&*node.rhs, Expr::NumberLiteral(n) if n.val == 0.0)
        }
        _ => false,
    }
}

#[test]
fn selectors_come_with_the_functions_around_them() {
    let expr = parse(r#"sum by (a) (rate(x_total{job=~"$job"}[$__rate_interval])) / on (b) y"#).unwrap();
    let found: Vec<_> = selectors(&expr).iter().map(|s| (s.metric().into_owned(), s.around.join(" "))).collect();
    assert_eq!(found, [("x_total".to_owned(), "rate".to_owned()), ("y".to_owned(), String::new())]);
    assert_eq!(labels(&expr).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    let expr = parse(r#"vllm:x_total{job=~"$job"} or ray_vllm_x_total"#).unwrap();
    let found: Vec<_> = selectors(&expr).iter().map(|s| (s.metric().into_owned(), s.matchers().count())).collect();
    assert_eq!(found, [("vllm:x_total".to_owned(), 1), ("vllm:x_total".to_owned(), 0)]);
    assert!(parse("sum(").is_err());
}
