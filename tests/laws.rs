//! What holds for every page: tried on odd pages, on captures with odd lines in them, and on bytes at random.

mod support;

use bytes::Bytes;
use kvtier_exporter::dialect::NAMES;
use kvtier_exporter::exposition::Exposition;
use kvtier_exporter::pipeline::{self, Format, MAIN, Source};
use kvtier_exporter::settings::{HostFacts, Settings};
use proptest::prelude::*;
use support::beside::difference;
use support::captures;
use support::exporter::{answer_of, families_of, page_of, process};
use support::own::Own;
use support::sameness::{ended, fault_of_ours, is_sound, mentions_kvtier, untouched};
use support::strict::check;
use support::verdicts::{self, LINES};

fn uncorrected() -> Settings {
    Settings { correct: false, ..Settings::default() }
}

/// A RAM tier of a known size, so that captures without one are corrected too.
fn sized() -> Settings {
    let mut settings = Settings::default();
    settings.tier_sizes.insert("ram".to_owned(), 16_777_216);
    settings
}

/// Pages of small captures, of both name generations and with several processes.
fn small_captures() -> Vec<Vec<u8>> {
    let names = [
        "vllm-0.16.0-offload-cpu-storeonly",
        "vllm-0.24.0-offload-cpu-multiproc-full",
        "vllm-0.32.0-hostcopy-api2-1-partial",
        "vllm-0.33.0-offload-cpu-full",
    ];
    names.iter().map(|name| captures::named(name).body).collect()
}

/// A capture with some lines taken out and some odd ones put in.
fn disturbed_capture() -> impl Strategy<Value = Vec<u8>> {
    let odd = prop_oneof![
        proptest::sample::select(LINES).prop_map(|row| row.text.to_vec()),
        "[ -~]{0,40}".prop_map(String::into_bytes),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    let edits = proptest::collection::vec((any::<proptest::sample::Index>(), proptest::option::of(odd)), 0..6);
    (proptest::sample::select(small_captures()), edits).prop_map(|(page, edits)| {
        let mut lines: Vec<Vec<u8>> = page.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        for (at, edit) in edits {
            let at = at.index(lines.len());
            match edit {
                Some(line) => lines.insert(at, line),
                None => drop(lines.remove(at)),
            }
            lines.extend(lines.is_empty().then(Vec::new));
        }
        lines.join(&b'\n')
    })
}

/// Text that is nearly an exposition: much of it is accepted, much of it is not.
fn nearly_a_page() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        "# (HELP|TYPE|UNIT|EOF) ?(kvtier_)?[a-c:]{0,3} ?(counter|gauge|histogram|untyped|info|x\\\\n)? ?",
        "[a-c:_]{1,3}(\\{([a-c]=\"[a-c,=#\\} ]{0,4}\",?){0,3}\\})? ?([-+]?[0-9]{1,3}(\\.5)?|\\.5|NaN|\\+Inf|x)( [0-9]{1,4})?",
        "kvtier_[a-z]{1,4}(\\{tier=\"ram\"\\})? 1",
        "[a-c]{0,1}\\{(\"[a-c:. ]{0,3}\",?)?(\"[a-c.]{0,2}\"=\"[a-c]{0,2}\",?){0,2}\\} ?1",
        "# (HELP|TYPE) \"[a-c:.]{0,3}\"? (gauge|x)",
        "[ -~\t]{0,30}",
    ];
    let end = prop_oneof![8 => Just("\n"), 1 => Just("\r\n"), 1 => Just("\n\n")];
    let lines = proptest::collection::vec((line, end), 0..12);
    lines.prop_map(|lines| lines.into_iter().map(|(line, end)| line + end).collect::<String>().into_bytes())
}

/// Lines that mostly repeat the one before them, as the buckets of a histogram do: wanted ones, ours, bad ones.
fn neighbours() -> impl Strategy<Value = Vec<String>> {
    let name = prop_oneof![
        3 => Just("vllm:kv_offload_store_bytes_total"),
        2 => Just("vllm:kv_offload_store_bytes_bucket"),
        1 => Just("kvtier_x"),
        1 => Just("a"),
    ];
    let labels = prop_oneof![
        4 => "engine=\"0\",le=\"(|1|10)\",model_name=\"(m|m2|x\\\\\"y)\"",
        1 => "engine=\"0\",(engine|l)=\"(|0|1|\\\\t)\"",
        1 => "",
    ];
    let value = prop_oneof![2 => "[0-9]{1,4}(\\.[0-9])?", 1 => "(bad|NaN|\\+Inf|1e999|1 1\\.5|0\\.0\\.0|7 9|)"];
    let line = (name, labels, value).prop_map(|(name, labels, value)| format!("{name}{{{labels}}} {value}"));
    proptest::collection::vec(line, 1..12)
}

/// What may happen to a line from one page of a server to the next.
#[derive(Clone, Debug)]
enum Change {
    Value(&'static str),
    /// What stands before the last number, or the first byte of that, goes or comes.
    Start(usize, Option<u8>),
    Byte(proptest::sample::Index, u8),
    Gone,
    Twice,
    Behind(Vec<u8>),
}

/// Two pages of one server, one after the other.
fn pages_in_turn() -> impl Strategy<Value = (Page, Page)> {
    let page = prop_oneof![
        6 => nearly_a_page(),
        4 => neighbours().prop_map(|lines| lines.join("\n").into_bytes()),
        1 => disturbed_capture(),
    ];
    let value =
        proptest::sample::select(&["7", "0.0", "123456789.25", "NaN", "-1", "2 1700000000000", "3 1.5", ""][..]);
    let change = prop_oneof![
        6 => value.prop_map(Change::Value),
        6 => (0_usize..2, proptest::option::of(proptest::sample::select(&b" +-.1"[..])))
            .prop_map(|(before, byte)| Change::Start(before, byte)),
        2 => (any::<proptest::sample::Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        1 => Just(Change::Gone),
        1 => Just(Change::Twice),
        1 => proptest::sample::select(LINES).prop_map(|row| Change::Behind(row.text.to_vec())),
    ];
    let changes = proptest::collection::vec((any::<proptest::sample::Index>(), change), 0..8);
    (page, changes).prop_map(|(page, changes)| (Page(changed(&page, changes)), Page(page)))
}

fn changed(page: &[u8], changes: Vec<(proptest::sample::Index, Change)>) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = page.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
    for (at, change) in changes {
        let at = at.index(lines.len());
        match change {
            Change::Value(value) => {
                let head = lines[at].iter().rposition(|byte| *byte == b' ').map_or(0, |blank| blank + 1);
                lines[at].truncate(head);
                lines[at].extend(value.bytes());
            }
            Change::Start(before, byte) => {
                let digits = lines[at].iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
                let place = (lines[at].len() - digits).saturating_sub(before);
                match byte {
                    Some(byte) => lines[at].insert(place, byte),
                    None if place < lines[at].len() => drop(lines[at].remove(place)),
                    None => {}
                }
            }
            Change::Byte(place, byte) if !lines[at].is_empty() => {
                let place = place.index(lines[at].len());
                lines[at][place] = byte;
            }
            Change::Byte(_, byte) => lines[at].push(byte),
            Change::Gone if lines.len() > 1 => drop(lines.remove(at)),
            Change::Gone => lines[at].clear(),
            Change::Twice => lines.insert(at, lines[at].clone()),
            Change::Behind(line) => lines.insert(at + 1, line),
        }
    }
    lines.join(&b'\n')
}

fn any_page() -> impl Strategy<Value = Page> {
    let page = prop_oneof![
        1 => proptest::collection::vec(any::<u8>(), 0..300),
        4 => nearly_a_page(),
        1 => disturbed_capture(),
    ];
    page.prop_map(Page)
}

/// A page that is printed as text when it fails.
#[derive(Clone)]
struct Page(Vec<u8>);

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

fn any_format() -> impl Strategy<Value = Format> {
    proptest::sample::select(&[Format::Text, Format::OpenMetrics, Format::Unsaid][..])
}

#[test]
fn without_corrections_every_page_that_prometheus_takes_stays_byte_for_byte() {
    let odd = verdicts::pages().into_iter().map(|(what, page, _)| (what, page));
    let texts = captures::all().into_iter().filter(|capture| capture.format == Format::Text);
    let pages = odd.chain(texts.map(|capture| (capture.name.clone(), capture.body)));
    let mut faults = Vec::new();
    for (what, page) in pages {
        if is_sound(&page, &check(&page)) && page_of(&process(&page, Format::Text, &uncorrected())) != ended(&page) {
            faults.push(what);
        }
    }
    assert!(faults.is_empty(), "{} pages were changed:\n{}", faults.len(), faults.join("\n"));
}

const ACTIVE: &str = "kvtier_correction_active{";

#[test]
fn an_answer_fed_back_in_comes_out_again() {
    for capture in captures::all() {
        let settings = capture.settings();
        let first = process(&capture.body, capture.format, &settings);
        let second = process(&answer_of(&first), Format::Text, &settings);
        let (first_page, second_page) = (page_of(&first), page_of(&second));
        assert!(first_page == second_page, "{}: the page was changed again", capture.name);
        // The raw gauge is gone from the page, so what was pinned cannot be told a second time, and nothing is corrected again.
        let corrected = families_of(&first).lines().any(|line| line.starts_with(ACTIVE) && line.ends_with("} 1"));
        let again = families_of(&second);
        assert!(!corrected || !again.contains("\nkvtier_tier_pinned_ratio{"), "{}: {again}", capture.name);
        assert!(!corrected || !again.lines().any(|line| line.starts_with(ACTIVE) && line.ends_with("} 1")));
        let steady = |outcome| {
            let text = families_of(outcome);
            Own::read(&text);
            text.lines()
                .filter(|line| !line.contains("kvtier_tier_pinned_ratio") && !line.starts_with(ACTIVE))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(steady(&first), steady(&second), "{}", capture.name);
    }
}

#[test]
fn families_of_an_exporter_before_this_one_are_dropped() {
    let page =
        b"# HELP kvtier_x_bytes Old.\n# TYPE kvtier_x_bytes gauge\nkvtier_x_bytes{tier=\"ram\"} 1\na 1\nkvtier_y 2\n";
    assert_eq!(page_of(&process(page, Format::Text, &Settings::default())), b"a 1\n");
}

#[test]
fn a_page_begins_well_where_its_first_lines_have_a_sample_that_is_not_ours() {
    let begins = |page: &str| pipeline::begins_well(&Bytes::from(page.to_owned()), Format::Text);
    let far = "# TYPE x gauge\n".repeat(400);
    assert!(begins("# HELP x y\n\nno sample\nx 1\n") && begins("kvtier_a 1\nx{k=\"1\"} 2\n"));
    for page in ["", "x 1", "oops\n", "# TYPE x gauge\n", "kvtier_a 1\n", &(far + "x 1\n")] {
        assert!(!begins(page), "{page:?}");
    }
}

#[test]
fn an_engine_whose_gauge_stands_on_two_pages_in_two_spellings_is_told_of_once() {
    let page = |name: &str| format!("{name}{{engine=\"0\",model_name=\"m\"}} 0.0\n");
    let source = |name: &str, page: String| Source { name: name.to_owned(), body: page.into(), format: Format::Text };
    let sources = [
        source(MAIN, page("vllm:kv_offload_cpu_cache_usage_perc")),
        source("cache", page("vllm_kv_offload_cpu_cache_usage_perc")),
    ];
    let outcome = pipeline::process(&sources, &sized(), &HostFacts::default());
    let verdict = check(&answer_of(&outcome));
    assert_eq!(fault_of_ours(&verdict), None);
    assert_eq!(verdict.value("kvtier_correction_active", &[("engine", "0")]), Some(1.0));
}

/// Prometheus needs no blank between them where the value begins with a sign or a point.
#[test]
fn a_value_right_behind_its_name_is_replaced_behind_a_blank() {
    for name in ["vllm:kv_offload_cpu_cache_usage_perc", "vllm_kv_offload_cpu_cache_usage_perc"] {
        for value in [".25", "+1", "-0"] {
            let page = format!("vllm:kv_offload_store_bytes_total 8388608\n{name}{value}\n");
            let verdict = check(&page_of(&process(page.as_bytes(), Format::Text, &sized())));
            assert_eq!((verdict.value(name, &[]), verdict.samples.len()), (Some(0.5), 2), "{page}");
            assert!(verdict.families[name].help.is_some(), "{page}");
        }
    }
}

/// The page of each capture beside its own layout, and beside those of two others: that is what comes when an engine
/// starts again with other flags or in another version.
#[test]
fn a_capture_reads_the_same_beside_itself_and_others() {
    let captures = captures::all();
    for (at, page) in captures.iter().enumerate() {
        for other in [page, &captures[(at + 1) % captures.len()], &captures[(at + 7) % captures.len()]] {
            let difference = difference(&page.body, &other.body);
            assert!(difference.is_none(), "{} beside {}: {difference:?}", page.name, other.name);
        }
        let source =
            |body: &[u8]| Source { name: MAIN.to_owned(), body: Bytes::copy_from_slice(body), format: page.format };
        let layout = pipeline::layout(&source(&page.body));
        let later: Vec<u8> = page.body.iter().map(|byte| if *byte == b'1' { b'2' } else { *byte }).collect();
        let settings = page.settings();
        let beside = pipeline::process_beside(&layout, &[source(&later)], &settings, &HostFacts::default());
        let alone = process(&later, page.format, &settings);
        assert!(answer_of(&beside) == answer_of(&alone) && beside.notices == alone.notices, "{}", page.name);
    }
}

proptest! {
    // A failing page is printed whole; a file of seeds beside the tests would say less.
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_give_an_answer_that_prometheus_takes(Page(page) in any_page(), format in any_format()) {
        for settings in [Settings::default(), sized(), uncorrected()] {
            let outcome = process(&page, format, &settings);
            let verdict = check(&answer_of(&outcome));
            prop_assert!(verdict.accepted(), "{:?}", verdict.refusal);
            prop_assert!(!verdict.finds("ends the page"));
            let page = page_of(&outcome);
            prop_assert!(page.is_empty() || page.ends_with(b"\n"));
        }
    }

    #[test]
    fn without_corrections_a_sound_page_stays_byte_for_byte(Page(page) in any_page()) {
        let sound = is_sound(&page, &check(&page)) && !mentions_kvtier(&page);
        if sound {
            prop_assert_eq!(page_of(&process(&page, Format::Text, &uncorrected())), ended(&page));
        }
    }

    #[test]
    fn what_is_not_corrected_keeps_name_labels_value_and_timestamp(Page(page) in any_page()) {
        let before = check(&page);
        if is_sound(&page, &before) {
            let after = check(&page_of(&process(&page, Format::Text, &sized())));
            prop_assert_eq!(untouched(&before), untouched(&after));
        }
    }

    #[test]
    fn our_families_stand_together(Page(page) in any_page()) {
        let verdict = check(&answer_of(&process(&page, Format::Text, &sized())));
        let torn = fault_of_ours(&verdict);
        prop_assert!(torn.is_none(), "{:?}", torn);
    }

    #[test]
    fn an_answer_is_a_page_that_stays(Page(page) in any_page()) {
        let once = answer_of(&process(&page, Format::Text, &sized()));
        let again = process(&once, Format::Text, &sized());
        let first = page_of(&process(&page, Format::Text, &sized()));
        prop_assert_eq!(first, page_of(&again));
    }

    /// Names without quotes are nobody's business but their own, and no name becomes theirs.
    #[test]
    fn names_in_quotes_leave_those_without_alone(
        lines in proptest::collection::vec(
            prop_oneof![
                ("[ab_]{1,3}", "[ab]?").prop_map(|(name, value)| format!("{name}{{x=\"{value}\"}} 1\n")),
                ("[ab_.-]{1,3}", "[ab._]{1,2}").prop_map(|(name, label)| format!("{{\"{name}\",\"{label}\"=\"1\",q=\"1\"}} 1\n")),
            ],
            0..12,
        ),
        format in any_format(),
    ) {
        let is_plain = |line: &&String| !line.starts_with('{');
        let plain: String = lines.iter().filter(is_plain).cloned().collect();
        let all: Vec<u8> = page_of(&process(lines.concat().as_bytes(), format, &sized()));
        let all = String::from_utf8(all).unwrap();
        let name = |line: &str| line[..line.find('{').unwrap()].to_owned();
        let (quoted, others): (Vec<_>, Vec<_>) = all.split_inclusive('\n').partition(|line| line.contains("q=\"1\""));
        prop_assert_eq!(others.concat(), plain.as_str());
        let allowed = |name: &str| lines.iter().any(|line| line.starts_with(&format!("{{\"{name}\"")));
        let taken = quoted.iter().find(|line| others.iter().any(|other| name(other) == name(line)) && !allowed(&name(line)));
        prop_assert!(taken.is_none(), "{:?}", taken);
    }

    #[test]
    fn edits_stand_in_order_and_apart(Page(page) in any_page()) {
        let edits = Exposition::scan(&page, &NAMES).edits;
        let torn = edits.windows(2).find(|pair| pair[0].span.end > pair[1].span.start);
        prop_assert!(torn.is_none(), "{:?}", torn);
    }

    #[test]
    fn a_page_that_begins_well_is_no_garbage(Page(page) in any_page(), format in any_format()) {
        let page = Bytes::from(page);
        prop_assert!(!(pipeline::begins_well(&page, format) && pipeline::is_garbage(&page, format)));
    }

    /// What a line shares with the one before is not checked twice: that must never show.
    #[test]
    fn a_line_fares_the_same_among_its_neighbours_as_alone(lines in neighbours()) {
        let alone: Vec<u8> = lines.iter().flat_map(|line| page_of(&process(line.as_bytes(), Format::Text, &uncorrected()))).collect();
        let together = process(lines.join("\n").as_bytes(), Format::Text, &uncorrected());
        let together = page_of(&together);
        prop_assert_eq!(String::from_utf8_lossy(&together), String::from_utf8_lossy(&alone));
        let stored = |page: &str| {
            let own = families_of(&process(page.as_bytes(), Format::Text, &uncorrected()));
            let sample = own.lines().filter(|line| line.starts_with("kvtier_tier_stored_bytes_total")).map(str::to_owned);
            sample.collect::<Vec<_>>()
        };
        // A plain comment between two lines parts the neighbours and means nothing.
        prop_assert_eq!(stored(&lines.join("\n")), stored(&lines.join("\n#\nzz 1\n")));
    }
}

proptest! {
    // Two pages have to fit each other for anything to show: most do not.
    #![proptest_config(ProptestConfig { cases: 2500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_page_reads_the_same_beside_the_one_before((Page(page), Page(before)) in pages_in_turn()) {
        prop_assert_eq!(difference(&page, &before), None);
    }
}
