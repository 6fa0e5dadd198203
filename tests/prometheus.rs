//! The real Prometheus on odd pages: what it refuses, that our checker refuses the same, and that the exporter's
//! answer to each of them is taken.

mod support;

use support::captures::{self, Capture};
use support::exporter;
use support::peers::{Pages, Prometheus, promtool};
use support::reader::Sample;
use support::strict::check;
use support::verdicts::{self, Row};

/// Added behind each answer: it is read only if nothing before it ends the page early.
const SENTINEL: &[u8] = b"sentinel 1\n";

#[test]
fn odd_pages_and_the_answers_to_them() {
    let rows = verdicts::pages();
    let odd = rows.iter().map(|(_, page, _)| page.clone());
    let answers = rows.iter().map(|(_, page, _)| [&exporter::answer(page)[..], SENTINEL].concat());
    let pages: Vec<Vec<u8>> = odd.chain(answers).collect();
    let count = pages.len();
    let served = Pages::serve(pages.clone());
    let real = Prometheus::scraping(&served, count).verdicts(count);
    let mut wrong = Vec::new();
    for (at, (what, page, expected)) in rows.iter().enumerate() {
        let answer = &pages[rows.len() + at];
        wrong.extend(odd_page_faults(page, *expected, real[at]).map(|fault| format!("{what}: {fault}")));
        // A line with a NUL byte may be left out even where Prometheus would take it.
        let kept = expected.filter(|_| !page.contains(&0));
        wrong.extend(answer_faults(answer, at, kept, real[rows.len() + at]).map(|f| format!("{what}: {f}")));
    }
    assert!(wrong.is_empty(), "{} faults\n{}", wrong.len(), wrong.join("\n"));
}

/// Prometheus against the table, and our checker against Prometheus.
fn odd_page_faults(page: &[u8], expected: Option<usize>, real: Option<usize>) -> impl Iterator<Item = String> {
    let verdict = check(page);
    let checker = verdict.accepted().then_some(verdict.samples.len());
    let table = (real != expected).then(|| format!("the table says {expected:?}, Prometheus {real:?}"));
    let strict = (real != checker).then(|| format!("the checker says {checker:?}, Prometheus {real:?}"));
    table.into_iter().chain(strict)
}

/// An answer must be taken, and must keep every sample that Prometheus would have read from the page itself.
/// Of a page with one odd line the samples around that line must be kept, whatever the line was.
fn answer_faults(answer: &[u8], at: usize, taken: Option<usize>, real: Option<usize>) -> impl Iterator<Item = String> {
    let around: usize = if at < verdicts::LINES.len() { 2 } else { 0 };
    let least = 1 + around.max(taken.unwrap_or(0));
    let checker = check(answer);
    let refused = (real.is_none()).then(|| format!("the answer is refused: {:?}", checker.refusal));
    let lost = real.filter(|samples| *samples < least).map(|n| format!("{n} samples of the answer, not {least}"));
    let disagrees = (checker.accepted() != real.is_some())
        .then(|| format!("checker and Prometheus disagree on the answer: {:?} {real:?}", checker.refusal));
    refused.into_iter().chain(lost).chain(disagrees)
}

/// Exit status of promtool where it cannot read the page. 3, which every page of vLLM gets, only says that it
/// does not like colons in names.
const UNREADABLE: Option<i32> = Some(1);

#[test]
fn names_in_quotes_are_taken_without_them() {
    // What Prometheus 3 reads of each page, under the names that Prometheus 2 knows; and of those that become one, one.
    let pages: [(&[u8], &[&str]); 4] = [
        (b"{\"http.lat\",k=\"1\"} 4\nok{\"l.d\"=\"v\"} 1\nok 2\n", &["http_lat{k=1}", "ok{l_d=v}", "ok{}"]),
        (b"{\"a.b\"} 1\n{\"a-b\"} 2\na_b{k=\"1\"} 3\nx{\"k.l\"=\"1\",k_l=\"2\"} 4\n", &["a_b{k=1}"]),
        (
            b"# HELP \"h.s\" X.\n# TYPE \"h.s\" histogram\n{\"h.s_bucket\",le=\"1\"} 1\n{\"h.s_bucket\",le=\"+Inf\"} 2\n\
              {\"h.s_sum\"} 3\n{\"h.s_count\"} 2\n",
            &["h_s_bucket{le=+Inf}", "h_s_bucket{le=1}", "h_s_count{}", "h_s_sum{}"],
        ),
        (b"{\"vllm:x_total\",\"\xc3\xa4\"=\"\xc3\xa4\"} 1 1700000000000\r\n", &["vllm:x_total{_=ä}"]),
    ];
    let answers: Vec<Vec<u8>> = pages.iter().map(|(page, _)| exporter::answer(page)).collect();
    let served = Pages::serve(answers.clone());
    let real = Prometheus::scraping(&served, answers.len()).verdicts(answers.len());
    for (((page, expected), answer), real) in pages.iter().zip(&answers).zip(real) {
        let verdict = check(answer);
        assert!(verdict.spotless(), "{}: {:?} {:?}", page.escape_ascii(), verdict.refusal, verdict.findings);
        let upstream = verdict.samples.iter().filter(|sample| !sample.name.starts_with("kvtier_"));
        let mut found: Vec<String> = upstream.map(named).collect();
        found.sort();
        assert_eq!(found, *expected, "{}", page.escape_ascii());
        assert_eq!(real, Some(verdict.samples.len()), "{}", page.escape_ascii());
        assert_ne!(promtool(answer).0, UNREADABLE, "{}", page.escape_ascii());
    }
}

fn named(sample: &Sample) -> String {
    let labels: Vec<String> = sample.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    format!("{}{{{}}}", sample.name, labels.join(","))
}

#[test]
fn answers_to_captures_are_taken_and_promtool_reads_them() {
    let captures = captures::all();
    let answers: Vec<Vec<u8>> = captures.iter().map(answer_to).collect();
    let served = Pages::serve(answers.clone());
    let real = Prometheus::scraping(&served, answers.len()).verdicts(answers.len());
    let mut wrong = Vec::new();
    for ((capture, answer), real) in captures.iter().zip(&answers).zip(real) {
        let samples = check(answer).samples.len();
        if real != Some(samples) {
            wrong.push(format!("{}: Prometheus reads {real:?} samples, not {samples}", capture.name));
        }
        let (status, words) = promtool(answer);
        // Pages that promtool refuses as they come (HELP twice) pass as they come.
        if status == UNREADABLE && promtool(&capture.text()).0 != UNREADABLE {
            wrong.push(format!("{}: promtool says {words}", capture.name));
        }
    }
    assert!(wrong.is_empty(), "{} faults\n{}", wrong.len(), wrong.join("\n"));
}

fn answer_to(capture: &Capture) -> Vec<u8> {
    exporter::answer_of(&exporter::process(&capture.body, capture.format, &capture.settings()))
}

#[test]
fn the_table_names_each_row_once() {
    let mut names: Vec<&str> = verdicts::LINES.iter().map(name).collect();
    names.sort_unstable();
    assert_eq!(names.windows(2).find(|pair| pair[0] == pair[1]), None);
}

fn name(row: &Row) -> &'static str {
    row.what
}
