//! `report`: from one page, from two, and from the history in a real Prometheus. Expected values are worked out by
//! hand beside them.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::bench::{Bench, MIB, Said, full, gpu, replaced, shape};
use crate::history::History;
use crate::program::upstream::{Upstream, ok};

fn report(bench: &Bench, words: &[&str]) -> Said {
    bench.run(&[&["report"], words].concat())
}

/// The values of a row.
fn row(answer: &Value, id: &str, of: Option<&str>) -> Vec<Option<f64>> {
    let of = of.map_or(Value::Null, Into::into);
    let rows = answer["rows"].as_array().unwrap();
    let found = rows.iter().find(|row| row["id"] == id && row["of"] == of);
    let found = found.unwrap_or_else(|| panic!("no row {id} of {of}: {answer}"));
    found["values"].as_array().unwrap().iter().map(Value::as_f64).collect()
}

fn assert_near(values: &[Option<f64>], expected: &[Option<f64>]) {
    assert_eq!(values.len(), expected.len());
    for (value, expected) in values.iter().zip(expected) {
        let near = match (value, expected) {
            (Some(value), Some(expected)) => (value - expected).abs() <= 1e-6 * expected.abs().max(1.0),
            (value, expected) => value == expected,
        };
        assert!(near, "{values:?}, expected {expected:?}");
    }
}

#[test]
fn a_share_that_can_be_none_is_left_out_and_said() {
    // 3,000 computed of 2,000 prompted.
    let page = "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} 2000\n\
                vllm:prompt_tokens_by_source_total{engine=\"0\",model_name=\"m\",source=\"local_compute\"} 3000\n";
    let said = report(&Bench::serving(page), &[]);
    said.says(
        0,
        &["prompt tokens 2,000", "prompt tokens computed by prefill would be 1.5; the page contradicts itself"],
    );
    assert!(!said.out.contains("150.0 %"), "{}", said.out);
}

#[test]
fn since_engine_start_from_one_page() {
    let said = report(&Bench::serving(full()).driver(&gpu(674 * MIB)), &[]);
    // 2,040,000 ÷ 17,000,000; 501,437,431,808 B ÷ 2^30 and ÷ 37.4207 s; 98.4e9 B and ÷ 7.51145 s.
    // Half of 2,000 steps lies between 830 at 25 ms and 2,000 at 50 ms: 25 + 25 × 170 ÷ 1,170 = 28.6325 ms.
    said.says(
        0,
        &[
            "since engine start prompt tokens computed by prefill 12.0 %",
            "prompt tokens 17,000,000",
            "decode per stream, p50 34.9 tok/s",
            "reloaded, ram 467.0 GiB",
            "stored, ram 91.6 GiB",
            "copy speed, reload, ram 13.4 GB/s",
            "copy speed, store, ram 13.1 GB/s",
            "GPU memory free 674.0 MiB",
            "preemptions 12",
            "tier fill, at most, ram 100.0 %",
            "prompt tokens served, ram 7,651,328",
        ],
    );
    assert_eq!(said.err, "");
    let markdown = report(&Bench::serving(full()), &["--format=markdown"]);
    markdown.says(0, &["| | since engine start | |---|---:|", "| copy speed, reload, ram | 13.4 GB/s |"]);
}

#[test]
fn a_median_below_the_first_bucket_is_called_a_guess() {
    let bucket = |le: &str, count: &str| {
        format!(
            "vllm:inter_token_latency_seconds_bucket{{engine=\"0\",le=\"{le}\",model_name=\"Qwen3.8-27B-NVFP4\"}} {count}"
        )
    };
    let fast = replaced(&full(), &bucket("0.01", "105.0"), &bucket("0.01", "1600.0"));
    let fast = replaced(&fast, &bucket("0.025", "830.0"), &bucket("0.025", "1900.0"));
    // 10 ms × 1,000 ÷ 1,600 = 6.25 ms.
    let said = report(&Bench::serving(fast), &[]);
    said.says(0, &["decode per stream, p50 160.0 tok/s", "shorter than 10 ms, the first bucket", "a guess"]);
    report(&Bench::serving(full()), &[]).is_silent_about(&["a guess"]);
}

const MODEL: &str = "engine=\"0\",model_name=\"Qwen3.8-27B-NVFP4\"";

#[test]
fn between_two_pages() {
    let first = full();
    let counter = |name: &str, labels: &str| format!("vllm:{name}{{{MODEL}{labels}}} ");
    let mut second = first.clone();
    for (name, labels, from, to) in [
        ("prompt_tokens_total", "", "1.7e+07", "1.7001e+07"),
        ("prompt_tokens_by_source_total", ",source=\"local_compute\"", "2.04e+06", "2.04025e+06"),
        ("kv_offload_load_bytes_total", "", "5.01437431808e+11", "5.02437431808e+11"),
        ("kv_offload_load_time_total", "", "37.42070386626866", "37.52070386626866"),
        ("num_preemptions_total", "", "12.0", "15.0"),
    ] {
        let start = counter(name, labels);
        second = replaced(&second, &format!("{start}{from}"), &format!("{start}{to}"));
    }
    let (one, two) = (first.clone(), second.clone());
    let bench = Bench::new().upstream(move |request| vec![ok(if request.number == 1 { &one } else { &two })]);
    let said = report(&bench, &["--interval=1s", "--format=json"]);
    let answer = said.json();
    // 250 of 1,000 tokens; 1e9 bytes in 0.1 s; 15 − 12; nothing stored and no step in between.
    assert_near(&row(&answer, "prefill_computed_ratio", None), &[Some(0.25)]);
    assert_near(&row(&answer, "prompt_tokens", None), &[Some(1000.0)]);
    assert_near(&row(&answer, "reloaded_bytes", Some("ram")), &[Some(1e9)]);
    assert_near(&row(&answer, "stored_bytes", Some("ram")), &[Some(0.0)]);
    assert_near(&row(&answer, "reload_speed_bytes_per_second", Some("ram")), &[Some(1e10)]);
    assert_near(&row(&answer, "preemptions", None), &[Some(3.0)]);
    assert_near(&row(&answer, "decode_tokens_per_second_p50", None), &[None]);
    assert_eq!((said.status, &answer["columns"][0]["name"], said.err.as_str()), (0, &json!("in 1s"), ""));

    let restarted = Bench::new().upstream(move |request| vec![ok(if request.number == 1 { &second } else { &first })]);
    let said = report(&restarted, &["--interval=1s"]);
    said.says(1, &["No data: the counters of engine \"0\" of \"Qwen3.8-27B-NVFP4\" fell", "restarted"]);
    report(&Bench::serving(full()), &["--interval=1s"]).says(1, &["No data: no prompt was served", "in 1s"]);
}

/// Two engines, told by an exporter's page.
const PREDICTED: &str = r#"
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="0.5"} 0.25
kvtier_tier_predicted_reload_ratio{model_name="m",engine="1",tier="ram",size="0.5"} 0.35
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="1"} 0.5
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="2"} 0.625
kvtier_tier_predicted_reload_ratio{model_name="m",engine="0",tier="ram",size="4"} NaN
"#;

#[test]
fn what_other_sizes_would_reload_is_told_where_the_page_is_an_exporters() {
    let said = report(&Bench::serving(full() + PREDICTED), &[]);
    // (0.25 + 0.35) ÷ 2
    said.says(
        0,
        &[
            "predicted share reloaded at 0.5× 30.0 %",
            "predicted share reloaded at 1× 50.0 %",
            "predicted share reloaded at 2× 62.5 %",
            "1× is the present size",
        ],
    );
    said.is_silent_about(&["4×"]);
    report(&Bench::serving(full()), &[]).is_silent_about(&["predicted", "Predicted"]);
    let said = report(&Bench::serving(full() + PREDICTED), &["--format=json"]);
    assert_near(&row(&said.json(), "predicted_reload_ratio", Some("2×")), &[Some(0.625)]);
}

#[test]
fn without_an_engine_there_is_no_report() {
    let said = report(&Bench::new(), &[]);
    assert_eq!((said.status, said.out.as_str()), (2, ""));
    assert!(said.err.contains("cannot be reached") && said.err.lines().count() == 1, "{}", said.err);
    report(&Bench::serving("node_load1 1\n"), &[]).says(1, &["No data"]);
}

/// 2024-05-01T06:00:00Z and the day after. The windows begin an hour later and end an hour before the samples do.
const BEFORE: u64 = 1_714_543_200;
const AFTER: u64 = BEFORE + 86_400;
const WINDOWS: [&str; 4] = [
    "--before",
    "2024-05-01T07:00:00Z..2024-05-01T08:00:00Z",
    "--after",
    "2024-05-02T09:00:00+02:00..2024-05-02T10:00:00+02:00",
];

/// A value as a function of seconds since the begin of its day's samples.
type Curve = Box<dyn Fn(f64) -> f64>;

/// Rises with one rate.
fn line(rate: f64) -> Curve {
    Box::new(move |second| rate * second)
}

fn constant(value: f64) -> Curve {
    Box::new(move |_| value)
}

/// 20 minutes into the window, a third of it.
const BEND: f64 = 3600.0 + 1200.0;

/// Rises with one rate until the bend, and with another then.
fn bent(first: f64, then: f64) -> Curve {
    Box::new(move |second| first * second.min(BEND) + then * (second - BEND).max(0.0))
}

/// A history under construction: OpenMetrics with one sample a minute for three hours of each day.
#[derive(Default)]
struct Writer(String);

impl Writer {
    /// A family: its samples' name, and day, labels and curve of each series.
    fn family(&mut self, kind: &str, name: &str, series: &[(u64, &str, Curve)]) {
        // In OpenMetrics a counter's family is named without the ending of its samples.
        let family = if kind == "counter" { name.strip_suffix("_total").unwrap() } else { name };
        writeln!(self.0, "# TYPE {family} {kind}").unwrap();
        for (start, labels, curve) in series {
            for minute in 0..=180_u32 {
                let value = curve(f64::from(60 * minute));
                writeln!(self.0, "{name}{{{labels}}} {value} {}", start + u64::from(60 * minute)).unwrap();
            }
        }
    }

    fn ended(self) -> String {
        self.0 + "# EOF\n"
    }
}

const ENGINE: &str = "engine=\"0\",model_name=\"m\"";
const RAM: &str = "engine=\"0\",model_name=\"m\",tier=\"ram\"";

/// One day without the tier and one with it. For the first third of each window things are worse, so that a mean
/// would not be the median.
fn two_days() -> String {
    let mut days = Writer::default();
    engine(&mut days);
    tier(&mut days);
    // 674 MiB, and once 400 MiB.
    let dip: Curve = Box::new(|second| if second == 5400.0 { 419_430_400.0 } else { 706_740_224.0 });
    let gpu = "gpu=\"0\",uuid=\"GPU-aaaa\"";
    let free = [(BEFORE, gpu, constant(3_221_225_472.0)), (AFTER, gpu, dip)];
    days.family("gauge", "kvtier_gpu_memory_free_bytes", &free);
    days.ended()
}

/// Prompt tokens: 90 % and then 60 % computed; on the other day 50 % and then 12 %. Preemptions: 12 an hour, and none.
fn engine(days: &mut Writer) {
    let prompt = [(BEFORE, ENGINE, line(1000.0)), (AFTER, ENGINE, line(2000.0))];
    days.family("counter", "vllm:prompt_tokens_total", &prompt);
    let source = format!("{ENGINE},source=\"local_compute\"");
    let computed = [(BEFORE, &*source, bent(900.0, 600.0)), (AFTER, &*source, bent(1000.0, 240.0))];
    days.family("counter", "vllm:prompt_tokens_by_source_total", &computed);
    let preemptions = [(BEFORE, ENGINE, line(12.0 / 3600.0)), (AFTER, ENGINE, constant(7.0))];
    days.family("counter", "vllm:num_preemptions_total", &preemptions);
    // Before: of 100 steps a second 75 take 50 to 75 ms, so half take at most 50 + 25 × (50 ÷ 75) = 66.7 ms.
    // After: 75 take 10 to 25 ms: 10 + 15 × (50 ÷ 75) = 20 ms.
    let bounds = ["0.01", "0.025", "0.05", "0.075", "+Inf"].map(|le| format!("{ENGINE},le=\"{le}\""));
    let rates = [(BEFORE, [0.0, 0.0, 0.0, 75.0, 100.0]), (AFTER, [0.0, 75.0, 90.0, 100.0, 100.0])];
    let day = |(day, rates): (u64, [f64; 5])| bounds.iter().zip(rates).map(move |(le, rate)| (day, &**le, line(rate)));
    let buckets: Vec<_> = rates.into_iter().flat_map(day).collect();
    days.family("gauge", "vllm:inter_token_latency_seconds_bucket", &buckets);
}

/// 467 GiB an hour, at 6.7 and then at 13.4 GB/s; half full and then full; 1,000 tokens a second.
fn tier(days: &mut Writer) {
    let rate = 467.0 * 1_073_741_824.0 / 3600.0;
    days.family("counter", "kvtier_tier_reloaded_bytes_total", &[(AFTER, RAM, line(rate))]);
    days.family("counter", "kvtier_tier_reload_seconds_total", &[(AFTER, RAM, bent(rate / 6.7e9, rate / 13.4e9))]);
    days.family("gauge", "kvtier_tier_size_bytes", &[(AFTER, RAM, constant(1000.0))]);
    let filling: Curve = Box::new(|second| if second < BEND { 500.0 } else { 1000.0 });
    days.family("gauge", "kvtier_tier_fill_upper_bound_bytes", &[(AFTER, RAM, filling)]);
    let served = format!("{ENGINE},source=\"ram\"");
    days.family("counter", "kvtier_tier_served_tokens_total", &[(AFTER, &*served, line(1000.0))]);
    let size = format!("{RAM},size=\"2\"");
    let better: Curve = Box::new(|second| if second < BEND { 0.5 } else { 0.75 });
    days.family("gauge", "kvtier_tier_predicted_reload_ratio", &[(AFTER, &*size, better)]);
}

#[test]
fn before_and_after_from_the_history_of_a_prometheus() {
    let history = History::of(&two_days());
    let bench = Bench::new();
    let words = [&["--prometheus", &*history.url], &WINDOWS[..]].concat();
    let said = report(&bench, &[&words[..], &["--format=json"]].concat());
    assert_eq!((said.status, said.err.as_str()), (0, ""), "{}", said.out);
    let answer = said.json();
    assert_near(&row(&answer, "prefill_computed_ratio", None), &[Some(0.6), Some(0.12)]);
    assert_near(&row(&answer, "prompt_tokens", None), &[Some(3.6e6), Some(7.2e6)]);
    assert_near(&row(&answer, "decode_tokens_per_second_p50", None), &[Some(15.0), Some(50.0)]);
    assert_near(&row(&answer, "preemptions", None), &[Some(12.0), Some(0.0)]);
    assert_near(&row(&answer, "reloaded_bytes", Some("ram")), &[None, Some(467.0 * 1_073_741_824.0)]);
    assert_near(&row(&answer, "reload_speed_bytes_per_second", Some("ram")), &[None, Some(13.4e9)]);
    assert_near(&row(&answer, "store_speed_bytes_per_second", None), &[None, None]);
    assert_near(&row(&answer, "tier_fill_upper_bound_ratio", Some("ram")), &[None, Some(1.0)]);
    assert_near(&row(&answer, "served_tokens", Some("ram")), &[None, Some(3.6e6)]);
    assert_near(&row(&answer, "predicted_reload_ratio", Some("2×")), &[None, Some(0.75)]);
    assert_near(&row(&answer, "gpu_memory_free_bytes", None), &[Some(3_221_225_472.0), Some(706_740_224.0)]);
    assert_near(&row(&answer, "gpu_memory_free_lowest_bytes", None), &[Some(3_221_225_472.0), Some(419_430_400.0)]);
    let column = json!({"name": "after", "from": "2024-05-02T07:00:00Z", "to": "2024-05-02T08:00:00Z"});
    assert_eq!((&answer["columns"][1], &answer["complete"]), (&column, &json!(true)));

    let markdown = report(&bench, &[&words[..], &["--format=markdown"]].concat());
    markdown.says(
        0,
        &[
            "| | before | after | |---|---:|---:| | prompt tokens computed by prefill | 60.0 % | 12.0 % |",
            "| decode per stream, p50 | 15.0 tok/s | 50.0 tok/s |",
            "| reloaded, ram | – | 467.0 GiB |",
            "| GPU memory free | 3.0 GiB | 674.0 MiB |",
            "- This is before against after, and no controlled A/B",
        ],
    );
    no_data(&bench, &history);
    matched(&bench, &history);
}

/// A window that has nothing says so, in whatever place.
fn no_data(bench: &Bench, history: &History) {
    let words = ["--prometheus", &*history.url, "--before", "-2h..-1h", "--after", WINDOWS[3]];
    let said = report(bench, &words);
    said.says(
        1,
        &[
            &format!("No data for before: {} has nothing from", history.url),
            "prompt tokens computed by prefill – 12.0 %",
        ],
    );
    let halves = [
        "--prometheus",
        &*history.url,
        "--before",
        "2024-05-01T07:00:00Z..2024-05-01T07:30:00Z",
        "--after",
        WINDOWS[3],
    ];
    report(bench, &halves).says(0, &["The windows are 1800 and 3600 seconds long"]);
}

/// Matchers reach every query.
fn matched(bench: &Bench, history: &History) {
    let words = [&["--prometheus", &*history.url], &WINDOWS[..], &["--match", "model_name=\"m\""]].concat();
    report(bench, &words).says(0, &["prompt tokens computed by prefill 60.0 % 12.0 %"]);
    let other = [&["--prometheus", &*history.url], &WINDOWS[..], &["--match", "model_name=\"other\""]].concat();
    report(bench, &other).says(1, &["No data for before", "No data for after"]);
    let broken = report(bench, &[&["--prometheus", &*history.url], &WINDOWS[..], &["--match", "model_name="]].concat());
    assert_eq!((broken.status, broken.out.as_str(), broken.err.lines().count()), (2, "", 1), "{}", broken.err);
    assert!(broken.err.contains("answered with status 400") && broken.err.contains("parse error"), "{}", broken.err);
}

#[test]
fn an_engine_that_is_scraped_twice_is_noticed() {
    let mut day = Writer::default();
    let (direct, through) = (format!("{ENGINE},job=\"vllm\""), format!("{ENGINE},job=\"kvtier\""));
    let series = [(BEFORE, &*direct, line(10.0)), (BEFORE, &*through, line(10.0))];
    day.family("counter", "vllm:prompt_tokens_total", &series);
    let history = History::of(&day.ended());
    let window = ["--before", WINDOWS[1], "--after", WINDOWS[1]];
    let words = [&["--prometheus", &*history.url], &window[..]].concat();
    // 3,600 s × 10, twice.
    report(&Bench::new(), &words).says(0, &["prompt tokens 72,000 72,000", "before: 2 series stand for one engine"]);
    let one = [&words[..], &["--match", "job=\"kvtier\""]].concat();
    report(&Bench::new(), &one).says(0, &["prompt tokens 36,000 36,000"]).is_silent_about(&["series stand"]);
}

#[test]
fn a_prometheus_that_does_not_answer_as_one() {
    let bench = Bench::new();
    let run = |url: &str| report(&bench, &[&["--prometheus", url], &WINDOWS[..]].concat());
    let gone = run("http://127.0.0.1:1");
    assert!(
        gone.status == 2 && gone.err.contains("the Prometheus at http://127.0.0.1:1 cannot be reached"),
        "{}",
        gone.err
    );
    let other = Upstream::start(|_| vec![ok("up 1\n")]);
    let said = run(&format!("http://{}/prometheus/", other.address));
    assert!(said.status == 2 && said.err.contains("answered no JSON"), "{}", said.err);
    assert!(other.requests()[0].path.starts_with("/prometheus/api/v1/query"), "{:?}", other.requests()[0].path);
}

#[test]
fn windows_that_make_no_sense_end_with_2() {
    for words in [
        &["--prometheus=http://127.0.0.1:1"][..],
        &["--before", "-2h..-1h", "--after", "-1h..now"],
        &["--prometheus=http://127.0.0.1:1", "--before", "yesterday", "--after", "-1h..now"],
        &["--prometheus=http://127.0.0.1:1", "--before", "-1h..-2h", "--after", "-1h..now"],
        &["--prometheus=http://127.0.0.1:1", "--before", "-2h..-1h", "--after", "-1h..2900-01-01T00:00:00Z"],
        &["--interval=0s"],
        &["--interval=1s", "--prometheus=http://127.0.0.1:1", "--before", "-2h..-1h", "--after", "-1h..now"],
    ] {
        let said = report(&Bench::new(), words);
        assert_eq!((said.status, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{words:?} {}", said.err);
    }
}

#[test]
fn the_json_has_the_documented_keys_and_kinds() {
    let answer = report(&Bench::serving(full()), &["--format=json"]).json();
    let column = json!({"name": "text", "from": "null", "to": "null"});
    let mut keys: Vec<&String> = answer.as_object().unwrap().keys().collect();
    keys.sort();
    assert_eq!(keys, ["columns", "command", "complete", "notes", "rows", "source", "version"]);
    assert_eq!((shape(&answer["columns"]), &answer["command"]), (json!([column]), &json!("report")));
    let units = ["ratio", "bytes", "bytes_per_second", "tokens", "tokens_per_second", "count"];
    for row in answer["rows"].as_array().unwrap() {
        let kinds = [shape(&row["id"]), shape(&row["what"]), shape(&row["values"])];
        assert_eq!(kinds, [json!("text"), json!("text"), json!(["number"])], "{row}");
        assert!(
            units.iter().any(|unit| row["unit"] == *unit) && (row["of"].is_null() || row["of"].is_string()),
            "{row}"
        );
        assert_eq!(row.as_object().unwrap().len(), 5, "{row}");
    }
    let unknown = report(&Bench::serving(full()).driver("init 9\n"), &["--format=json"]).json();
    assert_eq!(row(&unknown, "gpu_memory_free_bytes", None), [None]);
}
