//! Whether two pages are of one engine: told by when its process, or else its counters, began. Pure.
//!
//! Behind one address several replicas may answer in turn. What one has counted less what another has is a number, and
//! means nothing.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::window::rfc3339;
use crate::exposition::{Exposition, Names};

const PROCESS: &str = "process_start_time_seconds";

/// When counters of the engines were made. Clients in Python write them, except in their mode for several processes.
const COUNTERS: [&str; 7] = [
    "vllm:prompt_tokens_created",
    "vllm:generation_tokens_created",
    "vllm:num_preemptions_created",
    "vllm:kv_offload_total_bytes_created",
    "sglang:prompt_tokens_created",
    "lmcache:num_lookup_tokens_created",
    "lmcache:num_requested_tokens_created",
];

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new(COUNTERS.into_iter().chain([PROCESS])));

/// What a page says of beginnings, in seconds since 1970, by name and labels of the sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Starts {
    process: BTreeMap<String, f64>,
    counters: BTreeMap<String, f64>,
}

/// Reads a page in text 0.0.4.
pub fn read(page: &[u8]) -> Starts {
    let page = Exposition::scan(page, &NAMES);
    let of = |name: &str| {
        let samples = page.samples(name).iter().filter(|sample| sample.value.is_finite());
        let key = |series: &[u8]| String::from_utf8_lossy(series).trim().to_owned();
        samples.map(|s| (key(&page.body[s.line.start..s.value_at.start]), s.value)).collect::<Vec<_>>()
    };
    Starts { process: of(PROCESS).into_iter().collect(), counters: COUNTERS.iter().flat_map(|name| of(name)).collect() }
}

/// Two pages that are not of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Apart {
    /// When what the first page tells of began, in seconds since 1970.
    pub earlier: f64,
    /// The same of the second page.
    pub later: f64,
}

/// What two pages tell of the processes that they are of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// One process answered both times.
    One,
    /// Two did.
    Apart(Apart),
    /// Neither page, or only one, says when anything of it began: in vLLM's mode for several processes, for example.
    Untold,
}

/// Whether two pages are of different processes. Start times decide; where a page tells none, the counters' own do, and
/// then all of them: one that was cleared and made anew is no other engine.
pub fn compare(first: &Starts, second: &Starts) -> Verdict {
    let both = |first: &BTreeMap<String, f64>, second: &BTreeMap<String, f64>| {
        let pair = |(series, earlier): (&String, &f64)| Some(Apart { earlier: *earlier, later: *second.get(series)? });
        first.iter().filter_map(pair).collect::<Vec<_>>()
    };
    let differ = |pair: &Apart| pair.earlier != pair.later;
    let processes = both(&first.process, &second.process);
    if !processes.is_empty() {
        return processes.into_iter().find(differ).map_or(Verdict::One, Verdict::Apart);
    }
    let counters = both(&first.counters, &second.counters);
    match counters.first() {
        None => Verdict::Untold,
        Some(first) if counters.iter().all(differ) => Verdict::Apart(*first),
        Some(_) => Verdict::One,
    }
}

/// What to know of figures from pages that do not tell whether one process answered both times.
pub const UNTOLD: &str = "Whether one process answered both times cannot be told: the page has neither \
                          process_start_time_seconds nor _created series, and no counter fell when it was looked at again. Where \
                          several replicas answer behind this address, these figures are of none of them: give --upstream \
                          the address of one.";

/// Why no report can be given of an address that counts up and down, after "the upstream" and the address.
pub const IN_TURN: &str = "answers for several processes in turn: looked at again and again, its counters fall. What one has \
                           counted less what another has means nothing: give --upstream the address of one of them";

impl Apart {
    /// Whether the second process began between the two fetches, by our clock: then the engine was restarted. One that
    /// began before runs beside the first.
    pub fn is_restart(&self, first_fetch: f64, second_fetch: f64) -> bool {
        first_fetch < self.later && self.later <= second_fetch
    }

    /// Why no report can be given of one engine, and what to do, after "the upstream" and its address.
    pub fn replicas(&self) -> String {
        format!(
            "answered twice for two processes: the first page is of one that started at {}, the second of one that started \
             at {}. What one has counted less what the other has means nothing. Most likely several replicas answer behind \
             this address in turn: give --upstream the address of one of them. If there is only one, it was restarted and \
             its clock is not ours: run this again",
            rfc3339(self.earlier),
            rfc3339(self.later)
        )
    }

    /// What to say where the engine was restarted.
    pub fn restarted(&self) -> String {
        format!(
            "No data: the second page is of a process that started at {}, between the two pages, so what the first one \
             counted is gone. The engine was restarted: run this again. If several replicas answer behind this address, \
             one of them was: give --upstream the address of one.",
            rfc3339(self.later)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(first: &str, second: &str) -> Option<(f64, f64)> {
        match compare(&read(first.as_bytes()), &read(second.as_bytes())) {
            Verdict::Apart(apart) => Some((apart.earlier, apart.later)),
            Verdict::One => None,
            Verdict::Untold => panic!("nothing tells"),
        }
    }

    fn is_untold(first: &str, second: &str) -> bool {
        compare(&read(first.as_bytes()), &read(second.as_bytes())) == Verdict::Untold
    }

    #[test]
    fn pages_of_one_process_have_its_start_time() {
        let (a, b) = ("process_start_time_seconds 1700000000.25\n", "process_start_time_seconds 1700000000.26\n");
        assert_eq!(between(a, a), None);
        assert_eq!(between(a, b), Some((1_700_000_000.25, 1_700_000_000.26)));
        // A counter that was made anew in the same process is no other engine.
        let counter = |at: &str| format!("{a}vllm:prompt_tokens_created{{engine=\"0\",model_name=\"m\"}} {at}\n");
        assert_eq!(between(&counter("1.70000001e+09"), &counter("1.70000002e+09")), None);
    }

    #[test]
    fn without_it_the_counters_tell_if_they_all_do() {
        let page = |name: &str, one: &str, other: &str| {
            format!("{name}{{engine=\"0\"}} {one}\n{name}{{engine=\"1\"}} {other}\nvllm:prompt_tokens_total 1\n")
        };
        for name in ["vllm:prompt_tokens_created", "vllm_prompt_tokens_created", "lmcache:num_lookup_tokens_created"] {
            assert_eq!(between(&page(name, "1.5", "2.5"), &page(name, "1.5", "2.5")), None, "{name}");
            assert_eq!(between(&page(name, "1.5", "2.5"), &page(name, "3.5", "4.5")), Some((1.5, 3.5)), "{name}");
            assert_eq!(between(&page(name, "1.5", "2.5"), &page(name, "1.5", "4.5")), None, "{name}");
        }
        assert!(is_untold("up 1\n", "up 1\n") && is_untold("process_start_time_seconds 1\n", "up 1\n"));
    }

    #[test]
    fn of_several_processes_on_a_page_each_counts() {
        let page = |other: &str| {
            format!("process_start_time_seconds{{pod=\"a\"}} 1\nprocess_start_time_seconds{{pod=\"b\"}} {other}\n")
        };
        assert_eq!(between(&page("2"), &page("2")), None);
        assert_eq!(between(&page("2"), &page("3")), Some((2.0, 3.0)));
        assert!(is_untold(&page("2"), "process_start_time_seconds{pod=\"c\"} 9\n"));
    }

    #[test]
    fn a_process_that_began_in_between_is_a_restart() {
        let apart = Apart { earlier: 100.0, later: 250.0 };
        assert!(apart.is_restart(200.0, 300.0));
        // It ran already when the first page came; or its clock is ahead of ours, which proves nothing.
        assert!(!apart.is_restart(260.0, 300.0) && !apart.is_restart(200.0, 240.0));
    }
}
