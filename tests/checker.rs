//! The strict checker itself: against what the real Prometheus was seen to do, and against each rule by hand.

mod support;

use support::reader;
use support::strict::check;
use support::verdicts::pages;

#[test]
fn agrees_with_prometheus_on_every_odd_page() {
    let wrong: Vec<String> = pages()
        .iter()
        .filter_map(|(what, page, samples)| {
            let verdict = check(page);
            let ours = verdict.accepted().then_some(verdict.samples.len());
            (ours != *samples).then(|| format!("{what}: Prometheus {samples:?}, we {ours:?} {:?}", verdict.refusal))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn decodes_labels_values_and_timestamps() {
    let page = b"# HELP a:b some \\n text \n# TYPE a:b gauge\na:b {z=\"1, {x} # y = z\", a=\"q \\\"\\\\\\n\",e=\"\"}\t-1.5e3 1700 \n";
    let verdict = check(page);
    assert!(verdict.spotless(), "{verdict:?}");
    let sample = &verdict.samples[0];
    assert_eq!(sample.name, "a:b");
    assert_eq!(sample.labels, [("a".to_owned(), "q \"\\\n".to_owned()), ("z".to_owned(), "1, {x} # y = z".to_owned())]);
    assert_eq!((sample.value, sample.timestamp, sample.line), (-1500.0, Some(1700), 3));
    assert_eq!(verdict.families["a:b"].help.as_deref(), Some("some \\n text "));
    assert_eq!(verdict.families["a:b"].kind.as_deref(), Some("gauge"));
    assert_eq!(verdict.value("a:b", &[("z", "1, {x} # y = z")]), Some(-1500.0));
    assert_eq!(verdict.value("a:b", &[("z", "2")]), None);
}

#[test]
fn says_where_a_page_is_refused() {
    let verdict = check(b"a 1\n\n# x\nb{k=\"v\"} one\nc 1\n");
    assert_eq!(verdict.refusal.unwrap().line, 4);
    assert_eq!(verdict.samples.len(), 1);
}

/// Pages that Prometheus takes and a stricter reader does not, each with the words of its finding.
const TAKEN_BUT_ODD: &[(&str, &[u8])] = &[
    ("series twice", b"a 1\na 2\n"),
    ("series twice", b"a{x=\"1\",y=\"2\"} 1\na{y=\"2\",x=\"1\"} 7\n"),
    ("series twice", b"a 1\na{k=\"\"} 1\n"),
    ("HELP twice", b"# HELP a x\n# HELP a x\na 1\n"),
    ("TYPE twice", b"# TYPE a gauge\n# TYPE a gauge\na 1\n"),
    ("after its samples", b"a 1\n# TYPE a gauge\n"),
    ("after its samples", b"# TYPE h histogram\nh_sum 1\n# HELP h x\nh_count 0\nh_bucket{le=\"+Inf\"} 0\n"),
    ("in two places", b"a{k=\"1\"} 1\nb 1\na{k=\"2\"} 1\n"),
    ("in two places", b"# HELP a x\n# HELP b x\n# TYPE a gauge\n"),
    ("no final line end", b"a 1"),
    ("unknown escape", b"a{k=\"\\t\"} 1\n"),
    ("no comma", b"a{k=\"v\"l=\"w\"} 1\n"),
    ("NUL byte ends the page", b"a 1\n\0b 1\n"),
    ("inside a label value", b"a{k=\"x\ny\"} 1\n"),
    ("no blank behind the name", b"# TYPE a-gauge\n"),
    ("counter a_total is NaN", b"# TYPE a_total counter\na_total NaN\n"),
    ("counter a_total is -1", b"# TYPE a_total counter\na_total -1\n"),
    ("without _total", b"# TYPE a counter\na 1\n"),
    ("without +Inf", b"# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n"),
    ("buckets fall", b"# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"),
    ("count is not", b"# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 2\n"),
    ("without _sum or _count", b"# TYPE h histogram\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\n"),
    ("number in le", b"# TYPE h histogram\nh_bucket{le=\"x\"} 1\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"),
    ("plain sample", b"# TYPE h histogram\nh 1\n"),
];

#[test]
fn finds_what_only_a_strict_reader_minds() {
    for (words, page) in TAKEN_BUT_ODD {
        let verdict = check(page);
        assert!(verdict.accepted(), "{words}: {:?}", verdict.refusal);
        assert!(verdict.finds(words), "{words}: {:?}", verdict.findings);
    }
}

#[test]
fn has_nothing_to_say_of_a_good_page() {
    let page =
        b"# HELP a_total x\n# TYPE a_total counter\na_total{k=\"1\"} 1\na_total{k=\"2\"} 1\n# TYPE h histogram\n\
        h_bucket{k=\"1\",le=\"1\"} 1\nh_bucket{k=\"1\",le=\"+Inf\"} 2\nh_sum{k=\"1\"} 3\nh_count{k=\"1\"} 2\n\
        # TYPE s summary\ns{quantile=\"0.5\"} 1\ns_sum 2\ns_count 2\n# EOF\n";
    let verdict = check(page);
    assert!(verdict.spotless(), "{:?} {:?}", verdict.refusal, verdict.findings);
    assert!(check(b"").spotless());
}

proptest::proptest! {
    #[test]
    fn never_panics(body: Vec<u8>) {
        reader::read(&body);
        check(&body);
    }

    #[test]
    fn never_panics_on_nearly_good_pages(body in "(# (HELP|TYPE) [a-b\0]|[a-b:]|[{}=,\"\\\\ \n\t\0#0-9.]|NaN){0,60}") {
        check(body.as_bytes());
    }
}
