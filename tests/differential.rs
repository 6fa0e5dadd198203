//! The real Prometheus on thousands of bodies, and on the exporter's answers to them: every answer is taken, and of a
//! body that is taken as it comes every sample that is not corrected is stored the same, from the answer, in name,
//! labels, value and timestamp.

#![allow(clippy::print_stderr, clippy::unwrap_used, reason = "a test says what it expects, and how much it compared")]

mod support;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use kvtier_exporter::pipeline::Format;
use kvtier_exporter::settings::Settings;
use support::bodies::{Body, bodies};
use support::exporter::{answer_of, process};
use support::peers::{OPENMETRICS, Pages, Prometheus, TEXT, promtool};
use support::reader::{self, Entry, Sample};
use support::sameness::{identity, is_upstreams, untouched};
use support::strict::{Verdict, check};

const BODIES: usize = 8000;
const SEED: u64 = 1;

/// Behind each answer: it is read only if nothing before it ends the page early.
const SENTINEL: &[u8] = b"sentinel 1\n";

/// Seconds in which Prometheus has seen all pages once.
const INTERVAL: u32 = 30;

/// A body, the answer to it, and what Prometheus made of both.
struct Case<'a> {
    body: &'a Body,
    answer: &'a [u8],
    /// Samples that were read from them, where they were taken.
    before: Option<usize>,
    after: Option<usize>,
    /// What was stored.
    stored_before: &'a [String],
    stored_after: &'a [String],
}

#[test]
fn what_prometheus_takes_comes_out_the_same() {
    let now = milliseconds();
    let bodies = bodies(SEED, BODIES, now);
    let answers: Vec<Vec<u8>> = bodies.iter().map(answer).collect();
    let real = judged(&bodies, &answers, now);
    let cases: Vec<Case<'_>> = (0..BODIES)
        .map(|at| Case {
            body: &bodies[at],
            answer: &answers[at],
            before: real[at].0,
            after: real[BODIES + at].0,
            stored_before: &real[at].1,
            stored_after: &real[BODIES + at].1,
        })
        .collect();
    let faults: Vec<String> = cases.iter().flat_map(|case| faults(case).map(|fault| describe(case, &fault))).collect();
    say_and_check_how_much_that_was(&cases);
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults[..faults.len().min(20)].join("\n"));
}

fn milliseconds() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn answer(body: &Body) -> Vec<u8> {
    let mut settings = Settings::default();
    settings.tier_sizes.insert("ram".to_owned(), 16_777_216);
    [answer_of(&process(&body.bytes, body.format, &settings)), SENTINEL.to_vec()].concat()
}

/// The samples that Prometheus read and what it stored, for each body and then for each answer.
fn judged(bodies: &[Body], answers: &[Vec<u8>], now: u64) -> Vec<(Option<usize>, Vec<String>)> {
    let kind = |body: &Body| if body.format == Format::OpenMetrics { OPENMETRICS } else { TEXT };
    let raw = bodies.iter().map(|body| (kind(body), body.bytes.clone()));
    let pages: Vec<_> = raw.chain(answers.iter().map(|answer| (TEXT, answer.clone()))).collect();
    let count = pages.len();
    let served = Pages::serve_as(pages);
    let prometheus = Prometheus::scraping_every(INTERVAL, &served, count);
    let verdicts = prometheus.verdicts(count);
    let slowest = prometheus.instant("max(scrape_duration_seconds)").unwrap()[0].1;
    assert!(slowest < f64::from(INTERVAL) / 2.0, "a scrape took {slowest} s: nothing can be told on so slow a machine");
    let mut stored = stored(&prometheus.stored(), now);
    verdicts.into_iter().enumerate().map(|(page, read)| (read, stored.remove(&page).unwrap_or_default())).collect()
}

/// What was stored of each page, but for what may change. A timestamp counts only where the page itself said it.
fn stored(text: &[u8], now: u64) -> BTreeMap<usize, Vec<String>> {
    let reading = reader::read(text);
    assert_eq!(reading.refusal, None);
    let mut pages: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for mut sample in reading.entries.into_iter().filter_map(sample_of) {
        let page = sample.labels.iter().position(|(name, _)| name == "page").unwrap();
        let page: usize = sample.labels.remove(page).1.parse().unwrap();
        sample.timestamp = sample.timestamp.filter(|time| u64::try_from(*time).unwrap() < now);
        if is_upstreams(&sample.name) && sample.name != "sentinel" {
            pages.entry(page).or_default().push(identity(&sample));
        }
    }
    // They come in no order that both would share.
    pages.values_mut().for_each(|samples| samples.sort());
    pages
}

fn sample_of(entry: Entry) -> Option<Sample> {
    match entry {
        Entry::Sample(sample) => Some(sample),
        Entry::Help { .. } | Entry::Type { .. } => None,
    }
}

fn faults(case: &Case<'_>) -> impl Iterator<Item = String> {
    let (before, after) = (check(&case.body.bytes), check(case.answer));
    let mut faults = Vec::new();
    if case.after != Some(after.samples.len()) {
        faults.push(format!(
            "{:?} samples of the answer, not {}: {:?}",
            case.after,
            after.samples.len(),
            after.refusal
        ));
    }
    let read_by_checker = case.body.format == Format::Text && !was_thrown_away_first(&before);
    if read_by_checker && case.before != before.accepted().then_some(before.samples.len()) {
        faults.push(format!("Prometheus says {:?} of the body, our checker {:?}", case.before, before.refusal));
    }
    if is_compared(case) {
        faults.extend(differences("stored", case.stored_before, case.stored_after));
        if read_by_checker {
            let answered = untouched(&after);
            faults.extend(differences("written", &untouched(&before), &answered[..answered.len() - 1]));
        }
    }
    faults.into_iter()
}

/// Only the storage notices that a label name stands twice, and a sample whose time is too far from now it throws away
/// before it looks. So a body may be taken that has such a label in it.
fn was_thrown_away_first(verdict: &Verdict) -> bool {
    let words = verdict.refusal.as_ref().map_or("", |refusal| &refusal.what);
    words.ends_with(" twice") || words.contains("__name__")
}

/// A line with a NUL byte may be left out even where Prometheus would take it.
fn is_compared(case: &Case<'_>) -> bool {
    case.before.is_some() && !case.body.bytes.contains(&0)
}

fn differences(what: &str, before: &[String], after: &[String]) -> Option<String> {
    let lost: Vec<_> = before.iter().filter(|sample| !after.contains(sample)).collect();
    let new: Vec<_> = after.iter().filter(|sample| !before.contains(sample)).collect();
    (before != after).then(|| format!("{what}, and no longer: {lost:?}; not before: {new:?}"))
}

fn describe(case: &Case<'_>, fault: &str) -> String {
    format!("{} {fault}\n  {:?}\n  b\"{}\"", case.body.how.join(", "), case.body.format, case.body.bytes.escape_ascii())
}

/// A comparison of little would prove little.
fn say_and_check_how_much_that_was(cases: &[Case<'_>]) {
    let taken = |case: &&Case<'_>| case.before.is_some();
    let count = |format| cases.iter().filter(|case| case.body.format == format).filter(taken).count();
    let (text, openmetrics) = (count(Format::Text), count(Format::OpenMetrics));
    let after = cases.iter().filter(|case| case.after.is_some()).count();
    let compared = || cases.iter().filter(|case| is_compared(case)).flat_map(|case| case.stored_before);
    let timed = compared().filter(|sample| sample.ends_with(')')).count();
    eprintln!(
        "{} bodies; Prometheus takes {text} in text and {openmetrics} in OpenMetrics as they come, and {after} answers; \
        {} stored samples compared, {timed} of them with a timestamp",
        cases.len(),
        compared().count(),
    );
    assert!(text > BODIES / 4 && openmetrics > BODIES / 50, "too few bodies are taken as they come");
    assert!(text + openmetrics < BODIES * 3 / 4, "too few bodies are refused as they come");
    assert!(compared().count() > 2 * BODIES && timed > 100, "too few samples were compared");
}

/// promtool, whose parser is another and a stricter one, reads every answer that it could read before.
#[test]
fn what_promtool_reads_it_reads_again() {
    const UNREADABLE: Option<i32> = Some(1);
    let bodies = bodies(SEED + 1, BODIES / 10, milliseconds());
    let mut read = 0;
    for body in bodies.iter().filter(|body| check(&body.bytes).spotless()) {
        let (status, words) = promtool(&answer(body));
        if status == UNREADABLE {
            let before = promtool(&body.bytes).0;
            assert_eq!(before, UNREADABLE, "{words}: b\"{}\"", body.bytes.escape_ascii());
        } else {
            read += 1;
        }
    }
    eprintln!("promtool reads {read} answers");
    assert!(read > BODIES / 100);
}
