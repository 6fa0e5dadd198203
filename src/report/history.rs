//! The report's figures of a window in the history of a Prometheus: what to ask, and what the answers say.
//!
//! Rates and gauges are medians over the window, so that a restart or a pause does not decide; amounts are totals of
//! the window. A rate at a moment looks back over a part of the window only, never before its begin.

use std::collections::BTreeMap;

use serde_json::Value;

use super::activity::Activity;
use super::told::{beyond, note, times};
use super::window::Window;
use super::{
    CACHE_REQUESTED, CACHE_RETRIEVED, CACHE_STORED, Cell, DECODE, FILL, FILL_MEASURED, FOUND, GPU_FREE,
    GPU_FREE_LOWEST, MEASURED, MORE, PREDICTED, PREEMPTIONS, PREFILL, PROMPT, Quantity, RELOAD_SPEED, RELOADED,
    Readings, SERVED, STORE_SPEED, STORED, too_fast,
};
use crate::plain;

/// What is made of the series that a query gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// The median over the window.
    Median,
    /// One value at the window's end.
    AtEnd,
    /// The same, stretched to the window's ends (`increase`): its first digits are known.
    Total,
}

/// One quantity and how it is asked for.
pub struct Question {
    /// What the answer is.
    pub quantity: Quantity,
    /// The label that tells rows apart.
    pub by: Option<&'static str>,
    /// What is made of the series.
    pub summary: Summary,
    /// PromQL with `MATCH` for further matchers, `RATE` for the range of rates and `WINDOW` for the whole window.
    promql: &'static str,
}

const fn question(quantity: Quantity, by: Option<&'static str>, summary: Summary, promql: &'static str) -> Question {
    Question { quantity, by, summary, promql }
}

/// A function of an engine's own counter in either spelling: some pages have `_` for the colon of a name.
macro_rules! spelled {
    ($function:literal, $engine:literal, $rest:literal) => {
        concat!("(", $function, "(", $engine, ":", $rest, ") or ", $function, "(", $engine, "_", $rest, "))")
    };
}

/// A quotient of sums of rates, where its counters are told.
macro_rules! share {
    ($of:expr, $by:expr) => {
        concat!("sum(", $of, ") / sum(", $by, ")")
    };
}

/// The decode speed of a stream, from an engine's histogram.
macro_rules! decode {
    ($engine:literal) => {
        concat!(
            "1 / histogram_quantile(0.5, sum by (le) ",
            spelled!("rate", $engine, "inter_token_latency_seconds_bucket{MATCH}[RATE]"),
            ")"
        )
    };
}

/// How full the tiers of each name are, and which of them are measured now.
macro_rules! fill {
    ($set:literal) => {
        concat!(
            "(sum by (tier) (kvtier_tier_fill_upper_bound_bytes{MATCH}) / sum by (tier) (kvtier_tier_size_bytes{MATCH} and \
             kvtier_tier_fill_upper_bound_bytes{MATCH}) or avg by (tier) (kvtier_tier_fill_upper_bound_ratio{MATCH})) ",
            $set,
            r#" on (tier) (group by (tier) (kvtier_tier_info{bound_basis="measured",MATCH}) unless on (tier) group by (tier) (kvtier_tier_info{bound_basis!~"measured|none",MATCH}))"#
        )
    };
}

/// A function of vLLM's own counter, of the series with these matchers.
macro_rules! selected {
    ($function:literal, $name:literal, $matchers:literal, $range:literal) => {
        concat!(
            "(",
            concat!($function, "(vllm:", $name, "{", $matchers, ",MATCH}[", $range, "]) or "),
            concat!($function, "(vllm_", $name, "{", $matchers, ",MATCH}[", $range, "])"),
            ")"
        )
    };
}

/// An aggregation over vLLM's own counter that keeps an engine's labels, whichever they are, and takes from upstream's
/// those of the way that they came; further ones first. A worker of Ray is a process of its replica, and where none is
/// named it is the engine.
macro_rules! of_engines {
    ($aggregation:literal, $further:literal, $function:literal, $name:literal, $range:literal) => {
        concat!(
            "(",
            concat!($aggregation, " without (", $further, "WorkerId, ", transport!(), ") "),
            selected!($function, $name, r#"ReplicaId!="""#, $range),
            " or ",
            concat!($aggregation, " without (", $further, transport!(), ") "),
            selected!($function, $name, r#"ReplicaId="""#, $range),
            ")"
        )
    };
}

/// The labels that say by which way a series came.
macro_rules! transport {
    () => {
        "otel_scope_name, otel_scope_version, otel_scope_schema_url, SessionName, Version, Component, NodeAddress"
    };
}

/// Tokens that LMCache counts in each process of an engine alike.
macro_rules! cached {
    ($rest:literal) => {
        concat!("sum(max without (worker_id, role, pid) ", spelled!("increase", "lmcache", $rest), ")")
    };
}

/// The prediction of an engine for its sizes.
macro_rules! predicted {
    ($sizes:literal) => {
        concat!("avg without (tier) (kvtier_tier_predicted_reload_ratio{size", $sizes, ",MATCH})")
    };
}

/// Everything that is asked of a window. Where an engine's own families are enough they come first, in both spellings:
/// the time before may have had no exporter.
pub const QUESTIONS: [Question; 20] = [
    question(
        PREFILL,
        None,
        Summary::Median,
        concat!(
            share!(
                spelled!("rate", "vllm", r#"prompt_tokens_by_source_total{source="local_compute",MATCH}[RATE]"#),
                spelled!("rate", "vllm", "prompt_tokens_total{MATCH}[RATE]")
            ),
            " or ",
            share!(
                r#"rate(kvtier_prompt_tokens_total{source="computed",MATCH}[RATE])"#,
                "rate(kvtier_prompt_tokens_total{MATCH}[RATE])"
            )
        ),
    ),
    question(
        PROMPT,
        None,
        Summary::Total,
        concat!(
            "sum",
            spelled!("increase", "vllm", "prompt_tokens_total{MATCH}[WINDOW]"),
            " or sum(increase(kvtier_prompt_tokens_total{MATCH}[WINDOW]))"
        ),
    ),
    question(DECODE, None, Summary::Median, concat!(decode!("vllm"), " or ", decode!("sglang"))),
    question(
        RELOADED,
        Some("tier"),
        Summary::Total,
        "sum by (tier) (increase(kvtier_tier_reloaded_bytes_total{MATCH}[WINDOW]))",
    ),
    question(
        STORED,
        Some("tier"),
        Summary::Total,
        "sum by (tier) (increase(kvtier_tier_stored_bytes_total{MATCH}[WINDOW]))",
    ),
    question(
        RELOAD_SPEED,
        Some("tier"),
        Summary::Median,
        "sum by (tier) (rate(kvtier_tier_reloaded_bytes_total{MATCH}[RATE])) / sum by (tier) (rate(kvtier_tier_reload_seconds_total{MATCH}[RATE]))",
    ),
    question(
        STORE_SPEED,
        Some("tier"),
        Summary::Median,
        "sum by (tier) (rate(kvtier_tier_stored_bytes_total{MATCH}[RATE])) / sum by (tier) (rate(kvtier_tier_store_seconds_total{MATCH}[RATE]))",
    ),
    question(GPU_FREE, None, Summary::Median, "min(kvtier_gpu_memory_free_bytes{MATCH})"),
    question(GPU_FREE_LOWEST, None, Summary::AtEnd, "min(min_over_time(kvtier_gpu_memory_free_bytes{MATCH}[WINDOW]))"),
    question(
        PREEMPTIONS,
        None,
        Summary::Total,
        concat!(
            "sum",
            spelled!("increase", "vllm", "num_preemptions_total{MATCH}[WINDOW]"),
            " or sum",
            spelled!("increase", "sglang", "num_retracted_requests_total{MATCH}[WINDOW]")
        ),
    ),
    question(FILL, Some("tier"), Summary::Median, fill!("unless")),
    question(FILL_MEASURED, Some("tier"), Summary::Median, fill!("and")),
    question(
        SERVED,
        Some("source"),
        Summary::Total,
        "sum by (source) (increase(kvtier_tier_served_tokens_total{MATCH}[WINDOW]))",
    ),
    question(
        FOUND,
        None,
        Summary::Median,
        concat!(
            share!(
                spelled!("rate", "lmcache", "num_lookup_hits_total{MATCH}[RATE]"),
                spelled!("rate", "lmcache", "num_lookup_tokens_total{MATCH}[RATE]")
            ),
            " or ",
            share!(
                "rate(lmcache_mp_lookup_hit_tokens_total{MATCH}[RATE])",
                "rate(lmcache_mp_lookup_requested_tokens_total{MATCH}[RATE])"
            )
        ),
    ),
    question(CACHE_STORED, None, Summary::Total, cached!("num_stored_tokens_total{MATCH}[WINDOW]")),
    question(CACHE_REQUESTED, None, Summary::Total, cached!("num_requested_tokens_total{MATCH}[WINDOW]")),
    question(CACHE_RETRIEVED, None, Summary::Total, cached!("num_hit_tokens_total{MATCH}[WINDOW]")),
    question(
        MEASURED,
        None,
        Summary::Median,
        r#"avg(kvtier_tier_predicted_reload_ratio{size="1",MATCH} - ignoring (size) kvtier_tier_prediction_error_ratio{MATCH})"#,
    ),
    question(PREDICTED, Some("size"), Summary::Median, "avg by (size) (kvtier_tier_predicted_reload_ratio{MATCH})"),
    question(
        MORE,
        Some("size"),
        Summary::Median,
        concat!(
            "sum by (size) ((",
            predicted!(r#"!="1""#),
            " - ignoring (size) group_left ",
            predicted!(r#"="1""#),
            ") * ignoring (size) group_left () ",
            of_engines!("sum", "", "rate", "external_prefix_cache_queries_total", "RATE"),
            ") * 3600"
        ),
    ),
];

/// How often the same engine stands in the history: more than once where it is scraped directly and through us. Then only
/// the labels of the targets differ.
pub const TWICE: &str = concat!(
    "max(",
    of_engines!(
        "count",
        "job, instance, endpoint, service, container, ",
        "count_over_time",
        "prompt_tokens_total",
        "WINDOW"
    ),
    ")"
);

/// Something where the events of an engine were followed.
pub const FOLLOWED: &str = "max(count_over_time(kvtier_events_up{MATCH}[WINDOW])) or \
                            max(count_over_time(kvtier_tier_stored_chunks_total{MATCH}[WINDOW]))";

/// How many engines have a prediction for each size.
pub const SIZES: &str = "count by (size) (count_over_time(kvtier_tier_predicted_reload_ratio{MATCH}[WINDOW]))";

/// How far predictions for the present size were above what was measured.
pub const ERROR: &str = "avg(avg_over_time(kvtier_tier_prediction_error_ratio{MATCH}[WINDOW]))";

/// Why a window has no predictions although events were followed in it.
pub fn withheld(column: &str, followed: bool, error: Option<f64>) -> Option<String> {
    let why = match error {
        Some(error) => format!("on average, {}", beyond(error)),
        None => "the history does not tell why; the exporter's status page does at the time".to_owned(),
    };
    (followed || error.is_some()).then(|| format!("What other sizes would reload is not told ({column}): {why}."))
}

/// The longest look back of a rate.
const RATE: f64 = 300.0;
/// As many points as say enough of a median.
const POINTS: f64 = 240.0;
/// Points closer than a usual scrape interval say nothing new.
const CLOSEST: f64 = 15.0;

/// Puts a window and further matchers (`job="kvtier"`) into a query.
pub fn filled(promql: &str, window: &Window, matchers: &str) -> String {
    let range = |seconds: f64| format!("{:.0}s", seconds.floor().max(1.0));
    let timed = promql.replace("RATE", &range(rate(window))).replace("WINDOW", &range(window.length()));
    timed.replace("MATCH", matchers)
}

fn rate(window: &Window) -> f64 {
    RATE.min(window.length())
}

impl Question {
    /// Path and query of the request that answers it.
    pub fn request(&self, window: &Window, matchers: &str) -> String {
        let query = filled(self.promql, window, matchers);
        if self.summary != Summary::Median {
            return instant(&query, window.to);
        }
        let looks_back = self.promql.contains("RATE");
        let start = if looks_back { window.from + rate(window) } else { window.from };
        let step = (window.length() / POINTS).ceil().max(CLOSEST);
        let pairs = [
            ("query", query),
            ("start", start.to_string()),
            ("end", window.to.to_string()),
            ("step", step.to_string()),
        ];
        format!("/api/v1/query_range?{}", form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish())
    }

    /// The cells that the answer gives.
    ///
    /// # Errors
    /// A sentence where it is no answer of a Prometheus.
    pub fn cells(&self, answer: &[u8]) -> Result<Vec<Cell>, String> {
        let mut cells = Vec::new();
        for series in series(answer)? {
            let value = match self.summary {
                Summary::Median => median(series.values),
                Summary::AtEnd | Summary::Total => series.values.last().copied(),
            };
            let of = self.by.and_then(|label| series.labels[label].as_str());
            let of = of.map(|of| if self.by == Some("size") { times(of) } else { of.to_owned() });
            let approximate = self.summary == Summary::Total;
            cells.extend(value.map(|value| Cell { quantity: self.quantity, of, value, approximate }));
        }
        Ok(cells)
    }
}

/// Path and query of a request for one moment.
pub fn instant(query: &str, time: f64) -> String {
    let pairs = [("query", query.to_owned()), ("time", time.to_string())];
    format!("/api/v1/query?{}", form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish())
}

/// The first number of an answer.
///
/// # Errors
/// As [`Question::cells`].
pub fn number(answer: &[u8]) -> Result<Option<f64>, String> {
    Ok(series(answer)?.first().and_then(|series| series.values.first().copied()))
}

/// The number of each size, from the answer to [`SIZES`].
///
/// # Errors
/// As [`Question::cells`].
pub fn sizes(answer: &[u8]) -> Result<BTreeMap<String, f64>, String> {
    let size = |one: &Series| Some((one.labels["size"].as_str()?.to_owned(), *one.values.first()?));
    Ok(series(answer)?.iter().filter_map(size).collect())
}

/// What was served, looked up and copied in a window.
pub fn activity(readings: &Readings) -> Activity {
    const COUNTS: [Quantity; 8] =
        [PROMPT, DECODE, RELOADED, STORED, SERVED, CACHE_STORED, CACHE_REQUESTED, CACHE_RETRIEVED];
    let count = |cell: &Cell| match cell.quantity {
        // A share of nothing has no value, so something was looked up.
        FOUND => Some(1.0),
        quantity => COUNTS.contains(&quantity).then_some(cell.value),
    };
    Activity::of(readings.cells.iter().filter_map(count))
}

/// The sentence of a Prometheus that refuses a query, from the beginning of its answer; `None` where that is none of its.
pub fn refusal(beginning: &str) -> Option<String> {
    const ERROR: &str = "\"error\":";
    let text = beginning.split_once(ERROR).filter(|_| beginning.contains("\"status\":\"error\""))?.1.trim_start();
    let mut whole = serde_json::Deserializer::from_str(text).into_iter::<String>();
    // An answer that was cut has no end: what is there is closed.
    let cut = || serde_json::from_str::<String>(&format!("{}…\"", text.trim_end_matches('\\'))).ok();
    Some(refused(&whole.next().and_then(Result::ok).or_else(cut)?))
}

fn refused(why: &str) -> String {
    format!("refused a query: {}", why.trim_end_matches('.'))
}

struct Series {
    labels: Value,
    /// Finite ones only: 0 ÷ 0 is no value.
    values: Vec<f64>,
}

/// The series of an answer as they came.
pub(super) fn result(answer: &[u8]) -> Result<Vec<Value>, String> {
    let not_prometheus =
        |sent: String| format!("{sent}: --prometheus wants the address of a Prometheus, such as http://127.0.0.1:9090");
    let answer: Value =
        serde_json::from_slice(answer).map_err(|error| not_prometheus(plain::no_json(answer, &error)))?;
    let result = answer["data"]["result"].as_array();
    match (answer["status"].as_str(), result) {
        (Some("success"), Some(result)) => Ok(result.clone()),
        (Some("error"), _) => Err(refused(answer["error"].as_str().unwrap_or("it does not say why"))),
        _ => Err(not_prometheus("sent JSON that is no answer of a Prometheus".to_owned())),
    }
}

fn series(answer: &[u8]) -> Result<Vec<Series>, String> {
    let result = result(answer)?;
    let value = |point: &Value| point[1].as_str()?.parse::<f64>().ok().filter(|value| value.is_finite());
    let values = |one: &Value| match one["values"].as_array() {
        Some(points) => points.iter().filter_map(value).collect(),
        None => value(&one["value"]).into_iter().collect(),
    };
    Ok(result.iter().map(|one| Series { labels: one["metric"].clone(), values: values(one) }).collect())
}

/// The middle value, or the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// The first bucket of vLLM's histogram ends here.
const FIRST_BUCKET: f64 = 0.01;

const UNCONTROLLED: &str = "This is before against after, and no controlled A/B: the load, the prompts and the versions \
                            may have changed as well.";

/// What to know of one window, or of two side by side.
pub fn notes(readings: &[Readings], windows: &[Window]) -> Vec<String> {
    let mut notes = vec![
        "Shares, speeds, fill and GPU memory are medians over the window; bytes, tokens and preemptions are its totals, \
         about: Prometheus stretches what its samples show to the window's ends."
            .to_owned(),
    ];
    if let [before, after] = windows {
        notes.insert(0, UNCONTROLLED.to_owned());
        if (before.length() - after.length()).abs() > 0.01 * before.length() {
            notes.push(format!(
                "The windows are {} and {} seconds long: compare totals only by the hour.",
                before.length().round(),
                after.length().round()
            ));
        }
    }
    for one in readings {
        let decode = one.cells.iter().find(|cell| cell.quantity == DECODE);
        if decode.is_some_and(|cell| cell.value > 1.0 / FIRST_BUCKET) {
            notes.push(too_fast(&one.column.name, FIRST_BUCKET));
        }
    }
    let cells: Vec<Cell> = readings.iter().flat_map(|one| one.cells.iter().cloned()).collect();
    notes.extend(note(&cells));
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(vec![]), None);
    }

    #[test]
    fn a_rate_never_looks_before_the_window() {
        let window = Window { from: 1000.0, to: 4600.0 };
        let request = QUESTIONS[0].request(&window, "");
        assert!(request.starts_with("/api/v1/query_range?query=sum%28%28rate%28vllm%3A"), "{request}");
        assert!(request.ends_with("&start=1300&end=4600&step=15"), "{request}");
        assert!(request.contains("%5B300s%5D") && !request.contains("RATE") && !request.contains("MATCH"));
        let short = QUESTIONS[0].request(&Window { from: 1000.0, to: 1060.0 }, "");
        assert!(short.contains("%5B60s%5D") && short.ends_with("&start=1060&end=1060&step=15"), "{short}");
        let total = QUESTIONS[1].request(&window, r#"job="a b""#);
        assert!(total.contains("%5B3600s%5D") && total.ends_with("&time=4600"), "{total}");
        assert!(total.contains("%7Bjob%3D%22a+b%22%7D"), "{total}");
    }

    #[test]
    fn answers_are_read_and_what_is_no_number_is_dropped() {
        let answer = br#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"tier":"ram"},"values":[[1,"NaN"],[2,"4"],[3,"2"],[4,"+Inf"],[5,"3"]]},
            {"metric":{"tier":"1:fs"},"values":[[1,"NaN"]]}]}}"#;
        let cells = QUESTIONS[5].cells(answer).unwrap();
        assert_eq!(cells, [Cell::new(RELOAD_SPEED, Some("ram"), 3.0)]);
        let one = br#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"12.5"]}]}}"#;
        assert_eq!(QUESTIONS[1].cells(one).unwrap()[0].value, 12.5);
        assert_eq!(number(one), Ok(Some(12.5)));
        let refused = br#"{"status":"error","error":"parse error"}"#;
        assert!(QUESTIONS[0].cells(refused).unwrap_err().contains("parse error"));
        assert!(QUESTIONS[0].cells(b"<html>").is_err());
    }
}
