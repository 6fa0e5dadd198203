//! Whether the history of an address is that of one process: told by the start times that were scraped there. Pure.
//!
//! A process that was restarted goes on where its counters begin anew, and Prometheus adds that up well. Where several
//! processes answer behind one address in turn, each change of the one that answers is taken for a restart, and what all
//! of them have counted since their start is added up, again and again.

use serde_json::{Map, Value};

use super::history::result;
use super::window::{Window, rfc3339};

/// The targets that an engine was scraped from.
macro_rules! targets {
    () => {
        "group by (job, instance) (count_over_time(vllm:prompt_tokens_total{MATCH}[WINDOW]) or \
         count_over_time(vllm_prompt_tokens_total{MATCH}[WINDOW]) or count_over_time(sglang:prompt_tokens_total{MATCH}[WINDOW]) or \
         count_over_time(sglang_prompt_tokens_total{MATCH}[WINDOW]) or count_over_time(kvtier_prompt_tokens_total{MATCH}[WINDOW]))"
    };
}

/// A gauge that says when a process, or its counters, began.
pub struct Start {
    name: &'static str,
    /// How often it changed in the window, for each of its series of an engine.
    pub changes: &'static str,
}

macro_rules! created {
    ($name:literal) => {
        Start { name: $name, changes: concat!("changes(", $name, "{MATCH}[WINDOW])") }
    };
}

/// All that are asked for. The first that the history has decides.
pub const STARTS: [Start; 5] = [
    Start {
        name: "process_start_time_seconds",
        // It has none of an engine's labels that further matchers may name.
        changes: concat!("changes(process_start_time_seconds[WINDOW]) and on (job, instance) ", targets!()),
    },
    created!("vllm:prompt_tokens_created"),
    created!("vllm_prompt_tokens_created"),
    created!("sglang:prompt_tokens_created"),
    created!("sglang_prompt_tokens_created"),
];

/// How often counters fell, where no start time is in the history.
pub const FALLS: &str = "sum(resets(vllm:prompt_tokens_total{MATCH}[WINDOW]) or resets(vllm_prompt_tokens_total{MATCH}[WINDOW]) or \
                         resets(sglang:prompt_tokens_total{MATCH}[WINDOW]) or resets(sglang_prompt_tokens_total{MATCH}[WINDOW]))";

/// The series of a start time that changed, as selectors; `None` where the history has none at all.
///
/// # Errors
/// A sentence where it is no answer of a Prometheus.
pub fn changed(start: &Start, window: &Window, answer: &[u8]) -> Result<Option<Vec<Moved>>, String> {
    let result = result(answer)?;
    let has_changed = |series: &&Value| series["value"][1].as_str().is_some_and(|changes| changes != "0");
    let moved = |series: &Value| Moved::of(start, window, &series["metric"]);
    Ok((!result.is_empty()).then(|| result.iter().filter(has_changed).map(moved).collect()))
}

/// A series whose start time changed.
#[derive(Debug, PartialEq, Eq)]
pub struct Moved {
    /// A query for its samples in the window.
    pub samples: String,
    labels: Map<String, Value>,
}

/// What its samples show.
#[derive(Debug, PartialEq, Eq)]
pub enum History {
    /// One process, restarted that often: a sentence.
    Restarted(String),
    /// Several processes in turn: a sentence after "the Prometheus" and its address.
    InTurn(String),
}

/// Clocks of two boxes differ by less than this, in seconds.
const CLOCKS: f64 = 60.0;

impl Moved {
    fn of(start: &Start, window: &Window, labels: &Value) -> Moved {
        let (labels, seconds) = (nameless(labels), window.length().floor().max(1.0));
        Moved { samples: format!("{}{}[{seconds:.0}s]", start.name, selector(&labels)), labels }
    }

    /// Judges the answer to [`Moved::samples`]. A process that began after the last sample of the one before took its place;
    /// one that had begun before ran beside it.
    ///
    /// # Errors
    /// As [`changed`].
    pub fn history(&self, answer: &[u8]) -> Result<History, String> {
        // A label that a series lacks is one that others may have.
        let is_it = |series: &&Value| nameless(&series["metric"]) == self.labels;
        let samples: Vec<(f64, f64)> = result(answer)?.iter().filter(is_it).flat_map(points).collect();
        let changes = || samples.windows(2).filter(|pair| pair[0].1 != pair[1].1);
        let beside = changes().find(|pair| pair[1].1 + CLOCKS < pair[0].0);
        let who = selector(&self.labels);
        Ok(match beside {
            None => History::Restarted(format!(
                "The engine behind {who} was restarted {} in the window, as far as its samples show: what it counted \
                 between the last scrape and its end is in no total.",
                times(changes().count())
            )),
            Some(pair) => History::InTurn(format!(
                "has several processes in one series: behind {who} one that started at {} answered, and at {} one that started at {} and \
                 so ran beside it. Totals over both mean nothing. Most likely several replicas answer behind one address in turn: have \
                 each scraped at an address of its own, and tell of a window after that",
                rfc3339(pair[0].1),
                rfc3339(pair[1].0),
                rfc3339(pair[1].1)
            )),
        })
    }
}

/// Labels without the metric's name, which functions take away.
fn nameless(labels: &Value) -> Map<String, Value> {
    let mut labels = labels.as_object().cloned().unwrap_or_default();
    labels.remove("__name__");
    labels
}

fn selector(labels: &Map<String, Value>) -> String {
    let matchers: Vec<String> = labels.iter().map(|(label, value)| format!("{label}={value}")).collect();
    format!("{{{}}}", matchers.join(", "))
}

fn times(count: usize) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

/// Time and value of each sample.
fn points(series: &Value) -> Vec<(f64, f64)> {
    let point = |point: &Value| Some((point[0].as_f64()?, point[1].as_str()?.parse().ok()?));
    series["values"].as_array().into_iter().flatten().filter_map(point).collect()
}

/// What to know where counters fell and nothing says when a process began.
pub fn fell(column: &str, falls: f64) -> Option<String> {
    (falls > 0.0).then(|| {
        format!(
            "{column}: the counters of prompt tokens fell {}, and the history has neither process_start_time_seconds nor \
             _created series of the engine: it was restarted that often, or several replicas answer behind its address in turn. In \
             the latter case all totals are far too high.",
            times(falls as usize)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { from: 1000.0, to: 4600.0 };

    fn moved() -> Moved {
        let answer = br#"{"status":"success","data":{"result":[
            {"metric":{"instance":"a:1","job":"x \"y\""},"value":[4600,"1"]},{"metric":{"instance":"b:1"},"value":[4600,"0"]}]}}"#;
        changed(&STARTS[0], &WINDOW, answer).unwrap().unwrap().pop().unwrap()
    }

    fn history(samples: &[(u32, u32)]) -> History {
        let values: Vec<_> = samples.iter().map(|(time, start)| serde_json::json!([time, start.to_string()])).collect();
        let labels = serde_json::json!({"__name__": "process_start_time_seconds", "instance": "a:1", "job": "x \"y\""});
        let beside = serde_json::json!({"metric": {"instance": "a:1", "job": "x \"y\"", "pod": "p"}, "values": [[1000, "1"], [1060, "2"]]});
        let result = [beside, serde_json::json!({"metric": labels, "values": values})];
        let answer = serde_json::json!({"status": "success", "data": {"result": result}});
        moved().history(answer.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_series_that_changed_is_asked_for_its_samples() {
        assert_eq!(moved().samples, r#"process_start_time_seconds{instance="a:1", job="x \"y\""}[3600s]"#);
        assert_eq!(changed(&STARTS[0], &WINDOW, br#"{"status":"success","data":{"result":[]}}"#), Ok(None));
    }

    #[test]
    fn a_process_that_began_after_the_last_sample_of_the_one_before_is_a_restart() {
        let said = history(&[(1000, 500), (1060, 500), (1120, 1090), (1180, 1090), (2000, 1990)]);
        assert!(matches!(&said, History::Restarted(text) if text.contains("restarted 2 times")), "{said:?}");
        // A clock that is half a minute behind.
        assert!(matches!(history(&[(1060, 500), (1120, 1030)]), History::Restarted(_)));
    }

    #[test]
    fn one_that_had_begun_before_ran_beside_it() {
        for samples in [[(1000, 500), (1060, 700), (1120, 500)], [(1000, 700), (1060, 500), (1120, 500)]] {
            assert!(matches!(history(&samples), History::InTurn(_)), "{samples:?}");
        }
        // A younger replica that took over, and does not go back.
        assert!(matches!(history(&[(2000, 500), (2060, 700), (2120, 700)]), History::InTurn(_)));
    }
}
