//! Captures of real engines through the pipeline: our numbers against those that another program worked out,
//! against the occupancy that was read from the engine itself, and against what we said last time.
//!
//! `golden.txt` in each folder pins everything else. `UPDATE_GOLDENS=1 cargo test --test golden` writes them
//! anew; read the diff before you commit it.

mod support;

use kvtier_exporter::pipeline::Outcome;
use kvtier_exporter::settings::Settings;
use serde_json::Value;
use support::captures::{self, Capture};
use support::exporter;
use support::own::Own;
use support::reader::Sample;
use support::strict::{Verdict, check};

const GAUGE: &str = "vllm:kv_offload_cpu_cache_usage_perc";

/// A capture and all that came of it.
struct Case {
    capture: Capture,
    outcome: Outcome,
    own: Own,
    page: Verdict,
    faults: Vec<String>,
}

impl Case {
    fn run(capture: Capture) -> Case {
        let settings = capture.settings();
        Case::run_with(capture, &settings)
    }

    fn run_with(capture: Capture, settings: &Settings) -> Case {
        let outcome = exporter::process(&capture.body, capture.format, settings);
        let own = Own::read(&exporter::families_of(&outcome));
        let page = check(&exporter::page_of(&outcome));
        Case { capture, outcome, own, page, faults: Vec::new() }
    }

    /// One of our samples must have this value, or must not be there.
    fn ours(&mut self, name: &str, labels: &[(&str, &str)], expected: Option<f64>) {
        let found = self.own.value(name, labels);
        self.compare(&format!("{name}{labels:?}"), found, expected);
    }

    /// A sample of the page must have this value, or must not be there.
    fn upstream(&mut self, name: &str, labels: &[(&str, &str)], expected: Option<f64>) {
        let found = self.page.value(&spelled(&self.capture, name), labels);
        self.compare(&format!("{name}{labels:?}"), found, expected);
    }

    fn compare(&mut self, what: &str, found: Option<f64>, expected: Option<f64>) {
        if !same(found, expected) {
            self.fault(format!("{what} is {found:?}, not {expected:?}"));
        }
    }

    fn fault(&mut self, what: impl Into<String>) {
        self.faults.push(format!("{}: {}", self.capture.name, what.into()));
    }

    /// Does something for each engine with its numbers.
    fn for_each_engine(&mut self, check: impl Fn(&mut Case, &str, &Value)) {
        let engines: Vec<(String, Value)> =
            self.capture.engines().map(|(engine, numbers)| (engine.to_owned(), numbers.clone())).collect();
        for (engine, numbers) in &engines {
            check(self, engine, numbers);
        }
    }
}

/// Equal but for the last bits, which depend on the order of a multiplication and a division.
fn same(found: Option<f64>, expected: Option<f64>) -> bool {
    match (found, expected) {
        (Some(found), Some(expected)) => (found - expected).abs() <= expected.abs() * 1e-12,
        (None, None) => true,
        _ => false,
    }
}

/// Runs a check on every capture and fails with all faults at once.
fn on_every_capture(wanted: impl Fn(&Capture) -> bool, check: impl Fn(&mut Case)) {
    let cases: Vec<Case> = captures::all().into_iter().filter(wanted).map(Case::run).collect();
    assert!(!cases.is_empty(), "no capture fits this test");
    let faults: Vec<String> = cases
        .into_iter()
        .flat_map(|mut case| {
            check(&mut case);
            case.faults
        })
        .collect();
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

/// A name of vLLM as this page spells it: some clients turn the colon into an underscore.
fn spelled(capture: &Capture, name: &str) -> String {
    if capture.name.ends_with("underscores") { name.replace(':', "_") } else { name.to_owned() }
}

fn is_offloading(capture: &Capture) -> bool {
    capture.flag("offloading_connector")
}

/// A number by its new name, by its old one, or 0: the connector is proven, so nothing counted is 0.
fn moved(numbers: &Value, new: &str) -> f64 {
    let old = format!("legacy_{new}");
    numbers[new].as_f64().or_else(|| numbers[&old].as_f64()).unwrap_or(0.0)
}

fn speed(bytes: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| bytes / seconds)
}

/// The fill worked out elsewhere; 0 where the connector is proven and nothing was stored.
fn expected_fill(capture: &Capture, numbers: &Value) -> Option<f64> {
    let unknowable = capture.expected["fill_unknowable"].as_bool() == Some(true);
    (!unknowable).then(|| numbers["expected_usage_from_counters"].as_f64().unwrap_or(0.0))
}

#[test]
fn bytes_seconds_and_speeds_are_those_worked_out_elsewhere() {
    on_every_capture(is_offloading, |case| {
        case.for_each_engine(|case, engine, numbers| {
            let ram = [("engine", engine), ("tier", "ram")];
            for (ours, theirs) in [("store", "store"), ("reload", "load")] {
                let bytes = moved(numbers, &format!("{theirs}_bytes"));
                let seconds = moved(numbers, &format!("{theirs}_seconds"));
                let past = if ours == "store" { "stored" } else { "reloaded" };
                case.ours(&format!("kvtier_tier_{past}_bytes_total"), &ram, Some(bytes));
                case.ours(&format!("kvtier_tier_{ours}_seconds_total"), &ram, Some(seconds));
                case.ours(&format!("kvtier_tier_{ours}_speed_bytes_per_second"), &ram, speed(bytes, seconds));
            }
        });
    });
}

#[test]
fn size_and_fill_are_those_worked_out_elsewhere() {
    on_every_capture(is_offloading, |case| {
        let size = case.capture.tier_bytes();
        case.for_each_engine(|case, engine, numbers| {
            let ram = [("engine", engine), ("tier", "ram")];
            let fill = expected_fill(&case.capture, numbers);
            case.ours("kvtier_tier_size_bytes", &ram, size);
            case.ours("kvtier_tier_fill_upper_bound_ratio", &ram, fill);
            case.ours("kvtier_tier_fill_upper_bound_bytes", &ram, size.and_then(|size| Some(fill? * size)));
        });
    });
}

#[test]
fn the_gauge_says_the_fill_and_its_own_value_moves_to_pinned() {
    on_every_capture(is_offloading, |case| {
        case.for_each_engine(|case, engine, numbers| {
            let raw = numbers["gauge"].as_f64();
            let fill = expected_fill(&case.capture, numbers);
            let labels = [("engine", engine)];
            case.upstream(GAUGE, &labels, raw.map(|raw| fill.unwrap_or(raw)));
            case.ours("kvtier_tier_pinned_ratio", &[("engine", engine), ("tier", "ram")], raw);
            if raw.is_some() {
                let active = if fill.is_some() { 1.0 } else { 0.0 };
                case.ours("kvtier_correction_active", &[("engine", engine), ("family", GAUGE)], Some(active));
            }
        });
        let gauge = spelled(&case.capture, GAUGE);
        let corrected = case.page.samples.iter().filter(|sample| sample.name == gauge).count();
        let has_pid = |sample: &Sample| sample.labels.iter().any(|(name, _)| name == "pid");
        let with_pid = case.page.samples.iter().any(|sample| sample.name == gauge && has_pid(sample));
        let engines = case.capture.engines().filter(|(_, numbers)| numbers["gauge"].is_number()).count();
        if with_pid || corrected != engines {
            case.fault(format!("the corrected gauge should have {engines} samples, none with a pid"));
        }
    });
}

#[test]
fn the_bound_is_the_true_occupancy_at_rest_and_never_below_it() {
    let known =
        |capture: &Capture| is_offloading(capture) && capture.engines().any(|(_, n)| n["true_occupancy"].is_number());
    on_every_capture(known, |case| {
        let after_reset = case.capture.flag("after_reset");
        case.for_each_engine(|case, engine, numbers| {
            let ram = [("engine", engine), ("tier", "ram")];
            let truth = numbers["true_occupancy"].as_f64().unwrap();
            let fill = case.own.value("kvtier_tier_fill_upper_bound_ratio", &ram);
            if after_reset {
                if !fill.is_some_and(|fill| fill >= truth) {
                    case.fault(format!("the bound {fill:?} is below the truth {truth}"));
                }
            } else {
                case.compare("the bound at rest", fill, Some(truth));
            }
        });
    });
}

#[test]
fn the_hint_is_there_after_a_reset_and_only_then() {
    on_every_capture(is_offloading, |case| {
        let hint = if case.capture.flag("after_reset") { 1.0 } else { 0.0 };
        case.for_each_engine(|case, engine, _| {
            case.ours("kvtier_tier_reset_hint", &[("engine", engine), ("tier", "ram")], Some(hint));
        });
    });
}

#[test]
fn prompt_tokens_and_the_computed_share_are_those_worked_out_elsewhere() {
    on_every_capture(
        |_| true,
        |case| {
            case.for_each_engine(|case, engine, numbers| {
                let (computed, all) = (numbers["prefill_computed_tokens"].as_f64(), numbers["prompt_tokens"].as_f64());
                let finished = || {
                    Some(numbers["finished_computed_tokens"].as_f64()? / numbers["finished_prompt_tokens"].as_f64()?)
                };
                let share = all.filter(|all| *all > 0.0).and_then(|all| Some(computed? / all)).or_else(finished);
                let of = |source| [("engine", engine), ("source", source)];
                case.ours("kvtier_prefill_computed_ratio", &[("engine", engine)], share);
                case.ours("kvtier_prompt_tokens_total", &of("computed"), computed);
                case.ours("kvtier_prompt_tokens_total", &of("external"), numbers["external_tokens"].as_f64());
                // Worked out elsewhere and rounded to four places there.
                let rounded = numbers["prefill_share"].as_f64();
                let worked_out = computed.is_some() && share.is_some_and(|share| share > 0.0);
                if worked_out && rounded.is_none_or(|rounded| (share.unwrap_or(0.0) - rounded).abs() > 0.5e-4) {
                    case.fault(format!("the share {share:?} is not {rounded:?}"));
                }
            });
        },
    );
}

#[test]
fn the_range_of_versions_told_from_the_families_holds_the_captures_version() {
    let of_vllm = |capture: &Capture| capture.name.starts_with("vllm-0.");
    on_every_capture(of_vllm, |case| {
        let minor = |text: &str| text.strip_prefix("0.")?.split('.').next()?.parse::<u32>().ok();
        let version = minor(&case.capture.name["vllm-".len()..]).unwrap();
        let range = case.outcome.snapshot.version_range.clone().unwrap_or_default();
        let (from, to) = match (range.strip_suffix('+'), range.split_once('-')) {
            (Some(from), _) => (minor(from), Some(u32::MAX)),
            (None, Some((from, to))) => (minor(from), minor(to)),
            (None, None) => (minor(&range), minor(&range)),
        };
        if !(from..=to).contains(&Some(version)) {
            case.fault(format!("{range:?} does not hold version 0.{version}"));
        }
    });
}

#[test]
fn every_dialect_is_recognised_on_some_capture() {
    let captures = captures::all().into_iter().map(Case::run);
    let seen: std::collections::BTreeSet<_> = captures.flat_map(|case| case.outcome.snapshot.dialects).collect();
    let all: std::collections::BTreeSet<_> =
        kvtier_exporter::dialect::DIALECTS.iter().map(|dialect| dialect.name).collect();
    assert_eq!(seen, all);
}

#[test]
fn what_we_do_not_correct_passes_with_its_value() {
    on_every_capture(
        |_| true,
        |case| {
            case.for_each_engine(|case, engine, numbers| {
                let preemptions = numbers["preemptions"].as_f64();
                case.upstream("vllm:num_preemptions_total", &[("engine", engine)], preemptions);
            });
        },
    );
}

#[test]
fn without_an_offloading_connector_nothing_is_stated_but_a_size() {
    let other = |capture: &Capture| capture.name.starts_with("vllm-") && !is_offloading(capture);
    on_every_capture(other, |case| {
        let size = case.capture.tier_bytes();
        case.for_each_engine(|case, engine, _| {
            case.ours("kvtier_tier_size_bytes", &[("engine", engine), ("tier", "ram")], size);
        });
        for family in ["stored", "reloaded", "store_", "reload_", "fill", "pinned", "reset_hint"] {
            if !case.own.names(&format!("kvtier_tier_{family}")).is_empty() {
                case.fault(format!("kvtier_tier_{family}… is stated without a connector that says it"));
            }
        }
        // Which tier served tokens is a fact about prompts and needs no tier of ours.
        let tiers = case.own.names("kvtier_tier_").iter().any(|name| *name != "kvtier_tier_served_tokens_total");
        if case.capture.tier_bytes().is_none() && tiers {
            case.fault("a tier that is not there is stated");
        }
    });
}

#[test]
fn without_a_size_fill_is_absent_and_the_gauge_is_left_alone() {
    let mut faults = Vec::new();
    let unsized_pages =
        captures::all().into_iter().filter(|capture| is_offloading(capture) && !capture.tells_its_size());
    for capture in unsized_pages {
        let mut case = Case::run_with(capture, &Settings::default());
        case.for_each_engine(|case, engine, numbers| {
            let ram = [("engine", engine), ("tier", "ram")];
            case.ours("kvtier_tier_stored_bytes_total", &ram, Some(moved(numbers, "store_bytes")));
            case.ours("kvtier_tier_fill_upper_bound_bytes", &ram, None);
            case.ours("kvtier_tier_fill_upper_bound_ratio", &ram, None);
            case.ours("kvtier_tier_size_bytes", &ram, None);
            case.upstream(GAUGE, &[("engine", engine)], numbers["gauge"].as_f64());
            if numbers["gauge"].is_number() {
                case.ours("kvtier_correction_active", &[("engine", engine), ("family", GAUGE)], Some(0.0));
            }
        });
        if !changes(&case).is_empty() {
            case.fault(format!("lines were changed:\n{}", changes(&case).join("\n")));
        }
        faults.extend(case.faults);
    }
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn answers_are_without_a_new_blemish() {
    on_every_capture(
        |_| true,
        |case| {
            let text = case.capture.text();
            let before = check(&text).findings.into_iter().map(|finding| finding.what).collect::<Vec<_>>();
            let answer = check(&exporter::answer_of(&case.outcome));
            if let Some(refusal) = &answer.refusal {
                case.fault(format!("refused: {refusal:?}"));
            }
            for finding in answer.findings.iter().filter(|finding| !before.contains(&finding.what)) {
                case.fault(format!("{finding:?}"));
            }
        },
    );
}

#[test]
fn the_rest_is_as_it_was_last_time() {
    let update = std::env::var_os("UPDATE_GOLDENS").is_some();
    on_every_capture(
        |_| true,
        |case| {
            let path = case.capture.folder.join("golden.txt");
            let now = golden(case);
            if update {
                std::fs::write(&path, &now).unwrap();
                return;
            }
            match std::fs::read_to_string(&path) {
                Err(_) => case.fault("no golden.txt yet: UPDATE_GOLDENS=1 cargo test --test golden writes it"),
                Ok(before) if before != now => {
                    let changed = difference(&lines(before.as_bytes()), &lines(now.as_bytes())).join("\n");
                    case.fault(format!("golden.txt says something else\n{changed}"));
                }
                Ok(_) => {}
            }
        },
    );
}

/// What a golden file holds: the lines of the page that were changed, and the samples of our families. Their HELP
/// and TYPE are the same for every capture; the table of the README pins them.
fn golden(case: &Case) -> String {
    let changed: String = changes(case).iter().map(|line| format!("{line}\n")).collect();
    let families = exporter::families_of(&case.outcome);
    let samples: String = families.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect();
    format!("== page: - upstream, + ours\n{changed}== samples\n{samples}")
}

fn changes(case: &Case) -> Vec<String> {
    difference(&lines(&case.capture.text()), &lines(&exporter::page_of(&case.outcome)))
}

fn lines(text: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(text).lines().map(str::to_owned).collect()
}

/// Lines that went (`-`) and came (`+`). Where the two go apart, the nearest line that both have is where they
/// meet again: enough for pages that differ in a few places.
fn difference(old: &[String], new: &[String]) -> Vec<String> {
    let (mut at, mut to) = (0, 0);
    let mut out = Vec::new();
    while at < old.len() || to < new.len() {
        if at < old.len() && to < new.len() && old[at] == new[to] {
            (at, to) = (at + 1, to + 1);
            continue;
        }
        let (gone, come) = next_meeting(&old[at..], &new[to..]);
        out.extend(old[at..at + gone].iter().map(|line| format!("-{line}")));
        out.extend(new[to..to + come].iter().map(|line| format!("+{line}")));
        (at, to) = (at + gone, to + come);
    }
    out
}

/// How many lines of each side to skip until both go on with the same line.
fn next_meeting(old: &[String], new: &[String]) -> (usize, usize) {
    let farthest = old.len() + new.len();
    (1..=farthest)
        .flat_map(|distance| (0..=distance).map(move |gone| (gone, distance - gone)))
        .find(|(gone, come)| matches!((old.get(*gone), new.get(*come)), (Some(a), Some(b)) if a == b))
        .unwrap_or((old.len(), new.len()))
}

#[test]
fn differences_are_told_line_by_line() {
    let of = |old: &str, new: &str| difference(&lines(old.as_bytes()), &lines(new.as_bytes()));
    assert_eq!(of("a\nb\nc", "a\nb\nc"), [""; 0]);
    assert_eq!(of("a\nb\nc", "a\nx\nc"), ["-b", "+x"]);
    assert_eq!(of("a\nb\nc", "a\nc"), ["-b"]);
    assert_eq!(of("a", "a\nb"), ["+b"]);
    assert_eq!(of("", "a"), ["+a"]);
    assert_eq!(of("a\nb", "c\nd"), ["-a", "-b", "+c", "+d"]);
}
