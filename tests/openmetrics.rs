//! OpenMetrics pages of real servers against the text pages that the same servers gave for the same state.

mod support;

use std::collections::BTreeMap;

use kvtier_exporter::openmetrics::to_text;
use kvtier_exporter::pipeline::Format;
use support::captures::{self, Capture};
use support::strict::{Verdict, check};

/// Samples by name and labels, the ones that differ between any two scrapes left out.
fn samples(verdict: &Verdict) -> BTreeMap<String, String> {
    let unsteady = |name: &str| name.starts_with("process_") || name.starts_with("python_gc_");
    let steady = verdict.samples.iter().filter(|sample| !unsteady(&sample.name));
    steady.map(|s| (format!("{} {:?}", s.name, s.labels), format!("{} {:?}", s.value, s.timestamp))).collect()
}

fn types(verdict: &Verdict) -> BTreeMap<String, Option<String>> {
    verdict.families.iter().map(|(name, meta)| (name.clone(), meta.kind.clone())).collect()
}

fn converted(capture: &Capture) -> Verdict {
    let page = to_text(&capture.body);
    let verdict = check(&page);
    assert!(verdict.accepted(), "{}: {:?}", capture.name, verdict.refusal);
    // With several API servers vLLM itself says `http_*` twice on this path.
    let known = |what: &str| capture.name.contains("api2") && what.contains("http_");
    let own: Vec<_> = verdict.findings.iter().filter(|finding| !known(&finding.what)).collect();
    assert!(own.is_empty(), "{}: {own:?}", capture.name);
    verdict
}

fn assert_same(text: &Capture, openmetrics: &Capture) {
    let (text, converted) = (check(&text.body), converted(openmetrics));
    assert_eq!(samples(&converted), samples(&text), "{}", openmetrics.name);
    assert_eq!(types(&converted), types(&text), "{}", openmetrics.name);
}

#[test]
fn a_converted_page_has_the_samples_and_types_of_the_text_page() {
    let pairs: Vec<(Capture, Capture)> = captures::all()
        .into_iter()
        .filter_map(|capture| Some((captures::named(capture.name.strip_suffix("-openmetrics")?), capture)))
        .filter(|(text, _)| !text.name.contains("server") && !text.name.contains("hostcopy"))
        .collect();
    assert!(pairs.len() >= 7, "only {} pairs", pairs.len());
    for (text, openmetrics) in pairs {
        assert_same(&text, &openmetrics);
    }
}

#[test]
fn a_half_escaped_page_agrees_with_itself() {
    let underscores = captures::named("vllm-0.32.0-offload-cpu-full-openmetrics-underscores");
    let verdict = converted(&underscores);
    let text = check(&captures::named("vllm-0.32.0-offload-cpu-full").body);
    assert_eq!(verdict.samples.len(), text.samples.len());
    assert!(verdict.families.keys().all(|name| !name.contains(':')));
    let expected: BTreeMap<String, Option<String>> =
        types(&text).into_iter().map(|(name, kind)| (name.replace(':', "_"), kind)).collect();
    assert_eq!(types(&verdict), expected);
}

#[test]
fn a_page_with_all_that_text_does_not_know() {
    let page = b"# TYPE x unknown\nx 1\n# TYPE c counter\nc_total{k=\"1\"} 5 1.5 # {trace_id=\"t\"} 1.0\n\
        # TYPE i info\ni_info{v=\"1\"} 1\n# TYPE s stateset\ns{s=\"on\"} 1\n{\"http.lat\",k=\"1\"} 4\n# EOF\n";
    let verdict = check(&to_text(page));
    assert!(verdict.spotless(), "{:?} {:?}", verdict.refusal, verdict.findings);
    let found: Vec<_> = verdict.samples.iter().map(|s| (s.name.as_str(), s.value, s.timestamp)).collect();
    let expected = [
        ("x", 1.0, None),
        ("c_total", 5.0, Some(1500)),
        ("i_info", 1.0, None),
        ("s", 1.0, None),
        ("http_lat", 4.0, None),
    ];
    assert_eq!(found, expected);
}

#[test]
fn every_openmetrics_capture_converts_without_a_new_blemish() {
    let pages: Vec<Capture> = captures::all().into_iter().filter(|c| c.format == Format::OpenMetrics).collect();
    assert!(pages.len() >= 10, "only {} pages", pages.len());
    for page in pages {
        let verdict = converted(&page);
        assert!(!verdict.samples.is_empty());
        assert!(kvtier_exporter::openmetrics::is_openmetrics(&page.body), "{}", page.name);
    }
}
