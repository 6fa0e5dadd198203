//! The report's figures of a window in the history of a Prometheus: what to ask, and what the answers say.
//!
//! Rates and gauges are medians over the window, so that a restart or a pause does not decide; amounts are totals of
//! the window. A rate at a moment looks back over a part of the window only, never before its begin.

use serde_json::Value;

use super::predicted::{note, times};
use super::window::Window;
use super::{
    Cell, DECODE, FILL, GPU_FREE, GPU_FREE_LOWEST, PREDICTED, PREEMPTIONS, PREFILL, PROMPT, Quantity, RELOAD_SPEED,
    RELOADED, Readings, SERVED, STORE_SPEED, STORED, too_fast,
};

/// What is made of the series that a query gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summary {
    /// The median over the window.
    Median,
    /// One value at the window's end.
    AtEnd,
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

/// Everything that is asked of a window. Where an engine's own families are enough they come first: the time before
/// may have had no exporter.
pub const QUESTIONS: [Question; 13] = [
    Question {
        quantity: PREFILL,
        by: None,
        summary: Summary::Median,
        promql: r#"sum(rate(vllm:prompt_tokens_by_source_total{source="local_compute",MATCH}[RATE])) / sum(rate(vllm:prompt_tokens_total{MATCH}[RATE])) or sum(rate(kvtier_prompt_tokens_total{source="computed",MATCH}[RATE])) / sum(rate(kvtier_prompt_tokens_total{MATCH}[RATE]))"#,
    },
    Question {
        quantity: PROMPT,
        by: None,
        summary: Summary::AtEnd,
        promql: "sum(increase(vllm:prompt_tokens_total{MATCH}[WINDOW])) or sum(increase(kvtier_prompt_tokens_total{MATCH}[WINDOW]))",
    },
    Question {
        quantity: DECODE,
        by: None,
        summary: Summary::Median,
        promql: "1 / histogram_quantile(0.5, sum by (le) (rate(vllm:inter_token_latency_seconds_bucket{MATCH}[RATE]))) or 1 / histogram_quantile(0.5, sum by (le) (rate(sglang:inter_token_latency_seconds_bucket{MATCH}[RATE])))",
    },
    Question {
        quantity: RELOADED,
        by: Some("tier"),
        summary: Summary::AtEnd,
        promql: "sum by (tier) (increase(kvtier_tier_reloaded_bytes_total{MATCH}[WINDOW]))",
    },
    Question {
        quantity: STORED,
        by: Some("tier"),
        summary: Summary::AtEnd,
        promql: "sum by (tier) (increase(kvtier_tier_stored_bytes_total{MATCH}[WINDOW]))",
    },
    Question {
        quantity: RELOAD_SPEED,
        by: Some("tier"),
        summary: Summary::Median,
        promql: "sum by (tier) (rate(kvtier_tier_reloaded_bytes_total{MATCH}[RATE])) / sum by (tier) (rate(kvtier_tier_reload_seconds_total{MATCH}[RATE]))",
    },
    Question {
        quantity: STORE_SPEED,
        by: Some("tier"),
        summary: Summary::Median,
        promql: "sum by (tier) (rate(kvtier_tier_stored_bytes_total{MATCH}[RATE])) / sum by (tier) (rate(kvtier_tier_store_seconds_total{MATCH}[RATE]))",
    },
    Question {
        quantity: GPU_FREE,
        by: None,
        summary: Summary::Median,
        promql: "min(kvtier_gpu_memory_free_bytes{MATCH})",
    },
    Question {
        quantity: GPU_FREE_LOWEST,
        by: None,
        summary: Summary::AtEnd,
        promql: "min(min_over_time(kvtier_gpu_memory_free_bytes{MATCH}[WINDOW]))",
    },
    Question {
        quantity: PREEMPTIONS,
        by: None,
        summary: Summary::AtEnd,
        promql: "sum(increase(vllm:num_preemptions_total{MATCH}[WINDOW])) or sum(increase(sglang:num_retracted_requests_total{MATCH}[WINDOW]))",
    },
    Question {
        quantity: FILL,
        by: Some("tier"),
        summary: Summary::Median,
        promql: "sum by (tier) (kvtier_tier_fill_upper_bound_bytes{MATCH}) / sum by (tier) (kvtier_tier_size_bytes{MATCH} and kvtier_tier_fill_upper_bound_bytes{MATCH}) or avg by (tier) (kvtier_tier_fill_upper_bound_ratio{MATCH})",
    },
    Question {
        quantity: SERVED,
        by: Some("source"),
        summary: Summary::AtEnd,
        promql: "sum by (source) (increase(kvtier_tier_served_tokens_total{MATCH}[WINDOW]))",
    },
    Question {
        quantity: PREDICTED,
        by: Some("size"),
        summary: Summary::Median,
        promql: "avg by (size) (kvtier_tier_predicted_reload_ratio{MATCH})",
    },
];

/// How often the same engine stands in the history: more than once where it is scraped directly and through us.
pub const TWICE: &str = "max(count by (model_name, engine) (count_over_time(vllm:prompt_tokens_total{MATCH}[WINDOW])))";

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
        if self.summary == Summary::AtEnd {
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
                Summary::AtEnd => series.values.last().copied(),
            };
            let of = self.by.and_then(|label| series.labels[label].as_str());
            let of = of.map(|of| if self.quantity == PREDICTED { times(of) } else { of.to_owned() });
            cells.extend(value.map(|value| Cell { quantity: self.quantity, of, value }));
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

struct Series {
    labels: Value,
    /// Finite ones only: 0 ÷ 0 is no value.
    values: Vec<f64>,
}

fn series(answer: &[u8]) -> Result<Vec<Series>, String> {
    let answer: Value = serde_json::from_slice(answer).map_err(|error| format!("answered no JSON: {error}"))?;
    if answer["status"] != "success" {
        return Err(format!("refused a query: {}", answer["error"]));
    }
    let result = answer["data"]["result"].as_array().ok_or("answered without a result")?;
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

/// What to know of two windows side by side.
pub fn notes(readings: &[Readings], windows: &[Window]) -> Vec<String> {
    let mut notes = vec![
        "This is before against after, and no controlled A/B: the load, the prompts and the versions may have changed \
         as well."
            .to_owned(),
        "Shares, speeds, fill and GPU memory are medians over the window; bytes, tokens and preemptions are its totals."
            .to_owned(),
    ];
    if let [before, after] = windows
        && (before.length() - after.length()).abs() > 0.01 * before.length()
    {
        notes.push(format!(
            "The windows are {} and {} seconds long: compare totals only by the hour.",
            before.length().round(),
            after.length().round()
        ));
    }
    for one in readings {
        let decode = one.cells.iter().find(|cell| cell.quantity == DECODE);
        if decode.is_some_and(|cell| cell.value > 1.0 / FIRST_BUCKET) {
            notes.push(too_fast(&one.column.name, FIRST_BUCKET));
        }
    }
    notes.extend(readings.iter().find_map(|one| note(&one.cells)));
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
        assert!(request.starts_with("/api/v1/query_range?query=sum%28rate%28vllm%3A"), "{request}");
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
        assert_eq!(cells, [Cell { quantity: RELOAD_SPEED, of: Some("ram".into()), value: 3.0 }]);
        let one = br#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"12.5"]}]}}"#;
        assert_eq!(QUESTIONS[1].cells(one).unwrap()[0].value, 12.5);
        assert_eq!(number(one), Ok(Some(12.5)));
        let refused = br#"{"status":"error","error":"parse error"}"#;
        assert!(QUESTIONS[0].cells(refused).unwrap_err().contains("parse error"));
        assert!(QUESTIONS[0].cells(b"<html>").is_err());
    }
}
