//! The whole program beside a real ZeroMQ publisher that replays what a real engine published.

#![allow(missing_docs, unreachable_pub, dead_code, reason = "a test crate has no readers, and shares its helpers")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper that panics is a failed test")]

#[path = "support/program/mod.rs"]
mod program;
#[path = "support/publisher.rs"]
mod publisher;
#[path = "support/stream.rs"]
mod stream;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvtier_exporter::events::transport::{Kind, Socket};
use program::exporter::Exporter;
use program::until;
use program::upstream::{Upstream, ok};
use publisher::{Publisher, Replay};
use serde_json::{Value, json};
use stream::{Message, messages, page, truth};

const RUN: &str = "r08/stream.bin.gz";
/// The families of events, as the documentation lists them.
const EVENTS: [&str; 19] = [
    "kvtier_tier_resident_bytes",
    "kvtier_tier_resident_ratio",
    "kvtier_tier_resident_exact",
    "kvtier_tier_stored_chunks_total",
    "kvtier_tier_evicted_chunks_total",
    "kvtier_tier_restored_chunks_total",
    "kvtier_tier_promoted_chunks_total",
    "kvtier_tier_age_at_eviction_seconds",
    "kvtier_tier_predicted_reload_ratio",
    "kvtier_tier_prediction_error_ratio",
    "kvtier_events_up",
    "kvtier_events_last_seq",
    "kvtier_events_gaps_total",
    "kvtier_events_batches_total",
    "kvtier_events_replayed_batches_total",
    "kvtier_events_resets_total",
    "kvtier_events_lag_seconds",
    "kvtier_events_sampling_ratio",
    "kvtier_events_errors_total",
];
/// Labels of the engine on the captured pages.
const ENGINE: &str = r#"model_name="tiny-llama",engine="0",tier="ram""#;

/// An upstream whose page can be changed.
struct Engine {
    upstream: Upstream,
    page: Arc<Mutex<String>>,
}

impl Engine {
    fn start(name: &str) -> Engine {
        let shown = Arc::new(Mutex::new(page(name)));
        let served = Arc::clone(&shown);
        Engine { upstream: Upstream::start(move |_| vec![ok(served.lock().unwrap().as_bytes())]), page: shown }
    }

    fn show(&self, name: &str) {
        self.show_with(name, str::to_owned);
    }

    /// The same with other lines.
    fn show_with(&self, name: &str, line: impl FnMut(&str) -> String) {
        let lines: Vec<String> = page(name).lines().map(line).collect();
        self.show_page(lines.join("\n") + "\n");
    }

    fn show_page(&self, page: String) {
        *self.page.lock().unwrap() = page;
    }
}

/// An exporter with these flags and a tier of 8 MiB, in front of an idle engine.
fn exporter(engine: &Engine, flags: &[&str]) -> Exporter {
    Exporter::start(&engine.upstream.url(), &[&["--tier.size=8MiB"][..], flags].concat())
}

fn value(page: &str, family: &str, labels: &str) -> Option<f64> {
    let series = format!("{family}{{{labels}}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

/// A number about the only endpoint, whatever its address is.
fn endpoint(exporter: &Exporter, family: &str) -> Option<f64> {
    let start = format!("kvtier_events_{family}{{endpoint=");
    exporter.metrics().body.lines().find(|line| line.starts_with(&start))?.rsplit(' ').next()?.parse().ok()
}

fn until_last_seq(exporter: &Exporter, seq: i64) {
    until("the last batch is taken in", || endpoint(exporter, "last_seq") == Some(seq as f64));
}

fn of_tier(exporter: &Exporter, family: &str) -> Option<f64> {
    value(&exporter.metrics().body, &format!("kvtier_tier_{family}"), ENGINE)
}

/// Chunks that the real tier held ready when the batch was made; the time stands behind two bytes of head.
fn ready_at(run: &str, message: &Message) -> u64 {
    let at = f64::from_be_bytes(message.payload()[2..10].try_into().unwrap());
    let calls = truth(run);
    calls[..calls.partition_point(|call| call.at <= at)].last().map_or(0, stream::Call::ready)
}

/// Publishes the whole run to an exporter that saw the engine before it; what it answers when the engine is behind it.
fn after_the_run(publisher: &mut Publisher, engine: &Engine, exporter: &Exporter, all: &[Message]) -> String {
    publisher.subscribed(1);
    publisher.publish(&all[..1]);
    until_last_seq(exporter, 0);
    publisher.publish(&all[1..]);
    until_last_seq(exporter, 1238);
    engine.show("r08/after.prom.gz");
    // The engine was reset before the run, which may have given up stores: page and stream have to stand still together.
    until("the bytes of a chunk are known", || of_tier(exporter, "resident_exact") == Some(1.0));
    exporter.metrics().body
}

#[test]
fn a_stream_makes_the_fill_a_measurement_and_tells_what_other_sizes_would_reload() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter =
        exporter(&engine, &["--events", &publisher.address(), "--events.replay", &publisher.replay_address()]);
    let body = after_the_run(&mut publisher, &engine, &exporter, &all);
    let tier = |family: &str, more: &str| value(&body, &format!("kvtier_tier_{family}"), &format!("{ENGINE}{more}"));
    // At the end all 512 chunks of 16384 bytes are taken.
    assert_eq!(ready_at("r08", &all[1238]), 512);
    for bound in ["low", "high"] {
        assert_eq!(tier("resident_bytes", &format!(",bound=\"{bound}\"")), Some(8_388_608.0));
        assert_eq!(tier("resident_ratio", &format!(",bound=\"{bound}\"")), Some(1.0));
    }
    assert_eq!(tier("resident_exact", ""), Some(1.0));
    assert_eq!((tier("stored_chunks_total", ""), tier("evicted_chunks_total", "")), (Some(4533.0), Some(4021.0)));
    assert_eq!(tier("age_at_eviction_seconds_count", ""), Some(4021.0));
    assert!(body.contains("bound_basis=\"measured\""));
    // 831, 2225, 3682 and 4804 chunks of 32 tokens at half, one, two and four times, of 224,863 tokens asked.
    for (size, chunks) in [("0.5", 831.0), ("1", 2225.0), ("2", 3682.0), ("4", 4804.0)] {
        let share = tier("predicted_reload_ratio", &format!(",size=\"{size}\"")).unwrap();
        assert!((share - chunks * 32.0 / 224_863.0).abs() < 0.01, "{size}: {share}");
    }
    assert!(tier("prediction_error_ratio", "").unwrap().abs() < 0.01);
    told_as_status(&exporter);
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("8388608 to 8388608 bytes (exact)"), "{debug}");
    assert_eq!(endpoint(&exporter, "gaps_total"), Some(0.0));
    // Prompts never leave the socket: no list of numbers stands anywhere in what we say.
    assert!(!debug.contains("token_ids") && exporter.log().iter().all(|line| !line.contains("token_ids")));
}

/// The same in `/api/status`.
fn told_as_status(exporter: &Exporter) {
    let status: Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
    let stream = &status["event_streams"][0];
    assert_eq!((&stream["up"], &stream["last_seq"], &stream["gaps_total"]), (&json!(true), &json!(1238), &json!(0)));
    let events = &status["engines"][0]["events"];
    assert_eq!(events["endpoint"], stream["endpoint"]);
    assert_eq!((&events["resident_exact"], &events["resident_bytes_at_least"]), (&json!(true), &json!(8_388_608.0)));
    assert_eq!(events["resident_bytes_at_most"], json!(8_388_608.0));
    // Counted in the truth by another program.
    for (name, count) in [("stored", 4533), ("evicted", 4021), ("restored", 2583)] {
        assert_eq!(events[format!("{name}_chunks_total")], json!(count), "{name}");
    }
    assert_eq!((&events["stored_again_ratio"], &events["sampling_ratio"]), (&json!(2583.0 / 4533.0), &json!(1.0)));
    assert!(events["sizes_unknown_because"].is_null());
    let hour = 3600.0 / events["window_seconds"].as_f64().unwrap();
    for (at, multiple, chunks) in [(0, 0.5, 831.0), (1, 1.0, 2225.0), (3, 2.0, 3682.0), (4, 4.0, 4804.0)] {
        let size = &events["sizes"][at];
        assert_eq!(size["multiple"], multiple);
        let share = size["predicted_reload_ratio"].as_f64().unwrap();
        assert!((share - chunks * 32.0 / 224_863.0).abs() < 0.01, "{size}");
        // Both predictions may be off by a point of what was asked.
        let more = size["more_tokens_per_hour"].as_f64().unwrap();
        assert!((more - (chunks - 2225.0) * 32.0 * hour).abs() <= 0.02 * 224_863.0 * hour, "{size}");
    }
}

#[test]
fn a_prediction_that_is_off_is_not_shown_and_says_so() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    // The replay of this run is off by less than a point, but not by nothing.
    let exporter = exporter(&engine, &["--events", &publisher.address(), "--events.max-error=0.001"]);
    let body = after_the_run(&mut publisher, &engine, &exporter, &all);
    let error = value(&body, "kvtier_tier_prediction_error_ratio", ENGINE).unwrap();
    assert!(error.abs() > 0.00001 && !body.contains("\nkvtier_tier_predicted_reload_ratio{"), "{error}");
    let status: Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
    let events = &status["engines"][0]["events"];
    assert_eq!(events["sizes"], json!([]));
    assert_eq!(events["prediction_error_ratio"].as_f64(), Some(error));
    assert!(events["sizes_unknown_because"].as_str().unwrap().contains("--events.max-error"), "{events}");
}

#[test]
fn the_measured_fill_replaces_the_gauge_while_the_tier_fills() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter = exporter(&engine, &["--events", &publisher.address()]);
    publisher.subscribed(1);
    publisher.publish(&all[..60]);
    until_last_seq(&exporter, 59);
    let ready = ready_at("r08", &all[59]) as f64;
    assert!(0.0 < ready && ready < 512.0);
    // The page of that moment: nothing was evicted yet, so what is ready is what was stored. Its bytes and slots tell the
    // bytes of a chunk.
    engine.show_with("r08/after.prom.gz", |line| {
        let family = line.split('{').next().unwrap_or_default();
        let counted = match family {
            "vllm:kv_offload_store_bytes_total" => ready * 16384.0,
            "vllm:kv_offload_cpu_allocation_size_sum" => ready,
            "vllm:kv_offload_total_bytes_total" if line.contains("GPU_to_CPU") => ready * 16384.0,
            _ => return line.to_owned(),
        };
        format!("{} {counted}", line.rsplit_once(' ').unwrap().0)
    });
    let body = exporter.metrics().body;
    assert_eq!(value(&body, "kvtier_tier_fill_upper_bound_bytes", ENGINE), Some(ready * 16384.0));
    let gauge = value(&body, "vllm:kv_offload_cpu_cache_usage_perc", r#"engine="0",model_name="tiny-llama""#);
    assert_eq!(gauge, Some(ready / 512.0));
}

#[test]
fn what_was_published_before_the_subscription_is_replayed_in_either_framing() {
    for framing in [Replay::Old, Replay::New] {
        let (mut publisher, engine, all) =
            (Publisher::bind(0, framing), Engine::start("r08/before.prom.gz"), messages(RUN));
        publisher.publish(&all[..200]);
        let exporter =
            exporter(&engine, &["--events", &publisher.address(), "--events.replay", &publisher.replay_address()]);
        until_last_seq(&exporter, 199);
        publisher.subscribed(1);
        publisher.publish(&all[200..300]);
        until_last_seq(&exporter, 299);
        assert_eq!(publisher.asked()[0], 0);
        assert_eq!(
            (endpoint(&exporter, "gaps_total"), endpoint(&exporter, "replayed_batches_total")),
            (Some(0.0), Some(200.0))
        );
        assert_eq!(of_tier(&exporter, "resident_exact"), Some(1.0));
    }
}

#[test]
fn a_hole_is_filled_by_replay_and_one_that_is_not_leaves_bounds() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter =
        exporter(&engine, &["--events", &publisher.address(), "--events.replay", &publisher.replay_address()]);
    publisher.subscribed(1);
    publisher.publish(&all[..100]);
    publisher.hide(&all[100..120]);
    publisher.publish(&all[120..200]);
    until_last_seq(&exporter, 199);
    assert_eq!((endpoint(&exporter, "gaps_total"), endpoint(&exporter, "batches_total")), (Some(0.0), Some(200.0)));
    assert_eq!(of_tier(&exporter, "resident_exact"), Some(1.0));
    assert!(publisher.asked().contains(&100));
    publisher.publish(&all[230..300]);
    until_last_seq(&exporter, 299);
    assert_eq!(endpoint(&exporter, "gaps_total"), Some(1.0));
    assert_eq!(of_tier(&exporter, "resident_exact"), Some(0.0));
}

#[test]
fn a_replay_with_a_hole_is_asked_again_from_there() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    publisher.publish(&all[..200]);
    publisher.lose(50);
    publisher.lose(120);
    let exporter =
        exporter(&engine, &["--events", &publisher.address(), "--events.replay", &publisher.replay_address()]);
    until_last_seq(&exporter, 199);
    assert_eq!(publisher.asked(), [0, 50]);
    assert_eq!((endpoint(&exporter, "gaps_total"), endpoint(&exporter, "batches_total")), (Some(0.0), Some(200.0)));
    until("it is told as being of now", || of_tier(&exporter, "resident_exact") == Some(1.0));
}

#[test]
fn a_late_start_is_exact_and_predicts_once_every_slot_is_known_and_was_never_a_strangers() {
    // The run begins with a reset of the tier at number 519, and nobody has the batches before.
    let (mut publisher, engine) = (Publisher::bind(0, Replay::New), Engine::start("r16/before.prom.gz"));
    let all = messages("r16/stream.bin.gz");
    // Only an engine that states its size says how many slots there are: 1/64 GiB are 16 MiB.
    let stating = |name: &str| page(name).replace("kv_offloading_size=\"None\"", "kv_offloading_size=\"0.015625\"");
    engine.show_page(stating("r16/before.prom.gz"));
    let flags = ["--events", &publisher.address(), "--events.replay", &publisher.replay_address()];
    let exporter = Exporter::start(&engine.upstream.url(), &flags);
    publisher.subscribed(1);
    publisher.publish(&all[..1]);
    until_last_seq(&exporter, 519);
    until("it is told as being of now", || of_tier(&exporter, "resident_exact") == Some(0.0));
    publisher.publish(&all[1..]);
    until_last_seq(&exporter, 1794);
    engine.show_page(stating("r16/after.prom.gz"));
    until("every slot is known", || of_tier(&exporter, "resident_exact") == Some(1.0));
    let body = exporter.metrics().body;
    // 2225, 3682 and 4804 chunks of 32 tokens at half, one and two times, of 224,863 tokens asked.
    for (size, chunks) in [("0.5", 2225.0), ("1", 3682.0), ("2", 4804.0)] {
        let labels = format!("{ENGINE},size=\"{size}\"");
        let share = value(&body, "kvtier_tier_predicted_reload_ratio", &labels).unwrap();
        assert!((share - chunks * 32.0 / 224_863.0).abs() < 0.01, "{size}: {share}");
    }
}

#[test]
fn an_engine_that_restarts_begins_anew() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter = exporter(&engine, &["--events", &publisher.address()]);
    publisher.subscribed(1);
    publisher.publish(&all[..300]);
    until_last_seq(&exporter, 299);
    let stored = of_tier(&exporter, "stored_chunks_total").unwrap();
    publisher.kill();
    until("the exporter has noticed", || endpoint(&exporter, "up") == Some(0.0));
    let mut again = Publisher::bind(publisher.port, Replay::New);
    again.subscribed(1);
    again.publish(&all[..100]);
    until_last_seq(&exporter, 99);
    assert_eq!(endpoint(&exporter, "up"), Some(1.0));
    assert!(of_tier(&exporter, "stored_chunks_total").unwrap() < stored);
    until("its page and its stream are those of the new engine", || of_tier(&exporter, "resident_exact") == Some(1.0));
    assert!(exporter.log().iter().any(|line| line.contains("the engine has restarted")));
}

#[test]
fn a_publisher_that_comes_back_where_it_was_is_followed_without_a_gap() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter =
        exporter(&engine, &["--events", &publisher.address(), "--events.replay", &publisher.replay_address()]);
    publisher.subscribed(1);
    publisher.publish(&all[..100]);
    until_last_seq(&exporter, 99);
    // The connection alone breaks, as when a proxy between the two restarts: a new publisher goes on at 130.
    publisher.kill();
    until("the exporter has noticed", || endpoint(&exporter, "up") == Some(0.0));
    let mut again = Publisher::bind(publisher.port, Replay::New);
    again.subscribed(1);
    again.publish_once(&all[100..140]);
    until_last_seq(&exporter, 139);
    assert_eq!((endpoint(&exporter, "gaps_total"), of_tier(&exporter, "resident_exact")), (Some(0.0), Some(1.0)));
}

#[test]
fn a_replay_that_says_nothing_is_told_with_the_time_that_it_had() {
    let greets = |kind| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp://{}", listener.local_addr().unwrap());
        // It lives as long as the test.
        std::thread::spawn(move || {
            let _socket = Socket::over(listener.accept().unwrap().0, kind);
            std::thread::park();
        });
        address
    };
    let (events, replay) = (greets(Kind::Pub), greets(Kind::Router));
    let engine = Engine::start("r08/before.prom.gz");
    let exporter = exporter(&engine, &["--events", &events, "--events.replay", &replay]);
    // vLLM looks after its replays ten times a second; five seconds are waited for it.
    let told = "no replay: the peer has not been heard of for 5 seconds";
    until("the log tells of it", || exporter.log().iter().any(|line| line.contains(told)));
}

#[test]
fn a_wrong_topic_is_silence_that_debug_explains() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    let flags = ["--events", &publisher.address(), "--events.topic", "other"];
    let wrong = exporter(&engine, &flags);
    let right = exporter(&engine, &["--events", &publisher.address(), "--events.topic", "k"]);
    publisher.subscribed(2);
    publisher.publish(&all[..50]);
    until_last_seq(&right, 49);
    assert_eq!((endpoint(&wrong, "up"), endpoint(&wrong, "last_seq")), (Some(1.0), None));
    assert_eq!(of_tier(&wrong, "resident_exact"), None);
    assert!(wrong.get("/debug").body.contains("does its topic begin with --events.topic?"));
}

#[test]
fn an_engine_that_connects_is_waited_for_and_may_come_again() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (engine, all) = (Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter = exporter(&engine, &["--events.bind", &format!("tcp://127.0.0.1:{free}")]);
    for _ in 0..2 {
        let mut publisher = Publisher::connect(free);
        publisher.subscribed(1);
        publisher.publish(&all[..100]);
        until_last_seq(&exporter, 99);
        publisher.publish(&all[100..150]);
        until_last_seq(&exporter, 149);
        assert_eq!(of_tier(&exporter, "resident_exact"), Some(1.0));
        publisher.kill();
    }
    assert_eq!(endpoint(&exporter, "batches_total"), Some(300.0));
}

#[test]
fn a_caller_that_is_no_publisher_does_not_take_the_place_of_the_engine() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (engine, all) = (Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter = exporter(&engine, &["--events.bind", &format!("tcp://127.0.0.1:{free}")]);
    let call = || TcpStream::connect(("127.0.0.1", free)).unwrap();
    until("it listens", || TcpStream::connect(("127.0.0.1", free)).is_ok());
    // Some are there before the engine, and stay.
    let silent: Vec<TcpStream> = (0..5).map(|_| call()).collect();
    let mut publisher = Publisher::connect(free);
    publisher.subscribed(1);
    publisher.publish(&all[..50]);
    until_last_seq(&exporter, 49);
    let mut kept = Vec::new();
    for (at, messages) in all[50..150].chunks(10).enumerate() {
        // One says nothing, one closes, one speaks of something else.
        kept.push(call());
        drop(call());
        call().write_all(&[b'x'; 64]).unwrap();
        // One is a subscriber, as the exporter is itself.
        if at % 4 == 0 {
            drop(Socket::over(call(), Kind::Sub));
        }
        publisher.publish(messages);
    }
    until_last_seq(&exporter, 149);
    assert_eq!((endpoint(&exporter, "gaps_total"), endpoint(&exporter, "batches_total")), (Some(0.0), Some(150.0)));
    assert_eq!((endpoint(&exporter, "up"), of_tier(&exporter, "resident_exact")), (Some(1.0), Some(1.0)));
    let log = exporter.log();
    let count = |words: &str| log.iter().filter(|line| line.contains(words)).count();
    // Each kind of line once: the engine was followed from its only connection on.
    assert_eq!((count("following events"), count("was no publisher's")), (1, 1), "{log:?}");
    drop((silent, kept));
}

#[test]
fn a_port_at_which_nobody_is_followed_says_who_called() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let engine = Engine::start("r08/before.prom.gz");
    let exporter = exporter(&engine, &["--events.bind", &format!("tcp://127.0.0.1:{free}")]);
    until("it listens", || {
        TcpStream::connect(("127.0.0.1", free)).is_ok_and(|mut caller| caller.write_all(&[b'x'; 64]).is_ok())
    });
    let told =
        "down (protocol): a connection to the port was no publisher's: the peer speaks something else than ZeroMQ";
    until("it is told", || exporter.get("/debug").body.contains(told));
}

#[test]
fn what_is_no_batch_costs_the_connection_and_nothing_else() {
    let (mut publisher, engine, all) =
        (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"), messages(RUN));
    let exporter =
        exporter(&engine, &["--events", &publisher.address(), "--events.replay", &publisher.replay_address()]);
    publisher.subscribed(1);
    publisher.publish(&all[..10]);
    until_last_seq(&exporter, 9);
    for (times, frames) in
        [(2, &[&b"kv"[..], &10_u64.to_be_bytes(), b"\x93\xc1"][..]), (3, &[b"kv", b"short", b"\x90"]), (4, &[b"alone"])]
    {
        publisher.raw(frames);
        publisher.subscribed(times);
    }
    publisher.publish(&all[10..20]);
    until_last_seq(&exporter, 19);
    let body = exporter.metrics().body;
    let errors = |reason: &str| {
        let end = format!("reason=\"{reason}\"}} ");
        let line = body.lines().find(|line| line.starts_with("kvtier_events_errors_total") && line.contains(&end));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
    };
    assert_eq!((errors("malformed"), errors("protocol")), (Some(1.0), Some(2.0)));
    assert_eq!(of_tier(&exporter, "resident_exact"), Some(1.0));
}

#[test]
fn interchanged_endpoints_are_said() {
    let (publisher, engine) = (Publisher::bind(0, Replay::New), Engine::start("r08/before.prom.gz"));
    let exporter = exporter(&engine, &["--events", &publisher.replay_address()]);
    until("the failure is told", || exporter.get("/debug").body.contains("interchanged?"));
    assert_eq!(endpoint(&exporter, "up"), Some(0.0));
}

/// A batch of so many evictions, written by hand: `[time, [{...}, ...], 0]`.
fn evictions(count: u32) -> Vec<u8> {
    let text = |word: &str| [&[0xa0 | word.len() as u8], word.as_bytes()].concat();
    let pair = |key: &str, value: &str| [text(key), text(value)].concat();
    let head = [vec![0x84], pair("type", "BlockRemoved"), pair("medium", "CPU"), text("group_idx"), vec![0]].concat();
    let mut payload = vec![0x93, 0xcb];
    payload.extend(1.8e9_f64.to_be_bytes());
    payload.push(0xdd);
    payload.extend(count.to_be_bytes());
    for hash in 0..u64::from(count) {
        payload.extend([&head[..], &text("block_hashes"), &[0x91, 0xcf], &hash.to_be_bytes()].concat());
    }
    payload.push(0);
    payload
}

#[test]
fn a_scrape_does_not_wait_for_a_batch_that_is_being_folded() {
    let (listener, engine) = (TcpListener::bind("127.0.0.1:0").unwrap(), Engine::start("r08/before.prom.gz"));
    let events = format!("--events=tcp://{}", listener.local_addr().unwrap());
    // A batch of 29 MB, in a quarter of them.
    let exporter = exporter(&engine, &[&events, "--events.max-bytes=512MiB"]);
    let mut socket = Socket::over(listener.accept().unwrap().0, Kind::Pub).unwrap();
    until("it has subscribed", || socket.receive(Duration::from_millis(20)).unwrap().is_some());
    socket.send(&[b"", &0_u64.to_be_bytes(), &evictions(1)]).unwrap();
    until_last_seq(&exporter, 0);
    // Most of a second of work and more, in one piece; it is on its way when this returns.
    socket.send(&[b"", &1_u64.to_be_bytes(), &evictions(450_000)]).unwrap();
    let mut answered = 0;
    while endpoint(&exporter, "last_seq") == Some(0.0) {
        answered += 1;
    }
    assert_eq!(endpoint(&exporter, "last_seq"), Some(1.0));
    // One that waited would have seen the batch.
    assert!(answered >= 5, "{answered}");
}

/// Threads that follow events, and sockets, of the program.
fn threads_and_sockets(exporter: &Exporter) -> (usize, usize) {
    let entries = |folder: &str| fs::read_dir(format!("/proc/{}/{folder}", exporter.pid())).unwrap().flatten();
    let events = |task: &fs::DirEntry| fs::read_to_string(task.path().join("comm")).is_ok_and(|it| it == "events\n");
    let socket =
        |fd: &fs::DirEntry| fs::read_link(fd.path()).is_ok_and(|it| it.to_string_lossy().starts_with("socket:"));
    (entries("task").filter(events).count(), entries("fd").filter(socket).count())
}

#[test]
fn without_the_flag_there_is_no_thread_no_socket_and_no_family() {
    let (publisher, engine) = (Publisher::bind(0, Replay::New), Engine::start("r08/after.prom.gz"));
    let (plain, with) = (exporter(&engine, &[]), exporter(&engine, &["--events", &publisher.address()]));
    publisher.subscribed(1);
    let pages = [&plain, &with].map(|exporter| exporter.metrics().body);
    // Connections of the scrapes above may linger for a moment.
    until("only the stream is between them", || {
        let ((no_threads, sockets), (threads, more)) = (threads_and_sockets(&plain), threads_and_sockets(&with));
        (no_threads, threads, more) == (0, 1, sockets + 1)
    });
    let families = |page: &str| -> BTreeSet<String> {
        page.lines().filter_map(|line| Some(line.strip_prefix("# TYPE ")?.split_once(' ')?.0.to_owned())).collect()
    };
    let [plain, with] = pages.map(|page| families(&page));
    assert!(plain.iter().all(|family| !family.starts_with("kvtier_events_")), "{plain:?}");
    let added: Vec<_> = with.difference(&plain).collect();
    assert!(plain.is_subset(&with) && added.iter().any(|family| *family == "kvtier_events_up"), "{added:?}");
    assert!(added.iter().all(|family| EVENTS.contains(&&***family)), "{added:?}");
}
