//! What is claimed of a tier is what page and stream together show of it: the situations in which they do not.
//!
//! A tier of 64 chunks, that is 1 MiB, unless a test says otherwise.

#![allow(missing_docs, unreachable_pub, dead_code, reason = "a test crate has no readers, and shares its helpers")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a helper that panics is a failed test")]

#[path = "support/made.rs"]
mod made;
#[path = "support/program/mod.rs"]
mod program;
#[path = "support/publisher.rs"]
mod publisher;
#[path = "support/stream.rs"]
mod stream;

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use made::Event::{Cleared, Entered, Evicted, Stored};
use made::{CHUNK, Engine, Event, Page, RAM, batch};
use program::exporter::Exporter;
use program::until;
use publisher::{Publisher, Replay};

/// What is said of the tier at one scrape.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Said {
    /// Chunks at least and at most.
    chunks: (Option<f64>, Option<f64>),
    exact: Option<f64>,
    ratio: Option<f64>,
    /// The bound, as a share.
    fill: Option<f64>,
    measured: bool,
}

fn value(page: &str, family: &str, labels: &str) -> Option<f64> {
    let series = format!("{family}{{{labels}}} ");
    page.lines().find_map(|line| line.strip_prefix(&series)?.parse().ok())
}

fn said(exporter: &Exporter) -> Said {
    let page = exporter.metrics().body;
    let of = |family: &str, more: &str| value(&page, &format!("kvtier_tier_{family}"), &format!("{RAM}{more}"));
    let chunks = |bound: &str| of("resident_bytes", &format!(",bound=\"{bound}\"")).map(|bytes| bytes / CHUNK as f64);
    Said {
        chunks: (chunks("low"), chunks("high")),
        exact: of("resident_exact", ""),
        ratio: of("resident_ratio", ",bound=\"high\""),
        fill: of("fill_upper_bound_ratio", ""),
        measured: page.contains(r#"bound_basis="measured""#),
    }
}

/// Of a tier of 64 chunks that is known to have so many.
fn exactly(chunks: f64) -> Said {
    let ratio = Some(chunks / 64.0);
    Said { chunks: (Some(chunks), Some(chunks)), exact: Some(1.0), ratio, fill: ratio, measured: true }
}

/// Of a tier of which nothing is told but that so many were stored, 64 at least.
const UNTOLD: Said = Said { chunks: (None, None), exact: None, ratio: None, fill: Some(1.0), measured: false };

/// Of a tier of 64 chunks of which so many may be there, and 64 at least were stored.
fn between(low: f64, high: f64) -> Said {
    let chunks = (Some(low), Some(high));
    Said { chunks, exact: Some(0.0), ratio: Some(high / 64.0), fill: Some(1.0), measured: false }
}

fn until_said(exporter: &Exporter, what: Said) {
    let mut last = said(exporter);
    let (began, mut streak) = (Instant::now(), 0);
    // It has to be said from then on, and not just once.
    while streak < 3 {
        streak = if last == what { streak + 1 } else { 0 };
        assert!(began.elapsed() < Duration::from_secs(20), "{last:?} instead of {what:?}");
        std::thread::sleep(Duration::from_millis(20));
        last = said(exporter);
    }
}

fn endpoint(exporter: &Exporter, family: &str) -> Option<f64> {
    let start = format!("kvtier_events_{family}{{endpoint=");
    exporter.metrics().body.lines().find(|line| line.starts_with(&start))?.rsplit(' ').next()?.parse().ok()
}

const SIZE: &str = "--tier.size=1MiB";

/// An engine and an exporter that follows it, with replay or without.
fn follow(page: Page, replay: bool, flags: &[&str]) -> (Publisher, Engine, Exporter) {
    let (publisher, engine) = (Publisher::bind(0, Replay::New), Engine::start(page));
    let exporter = exporter(&publisher, &engine, replay, flags);
    publisher.subscribed(1);
    (publisher, engine, exporter)
}

fn exporter(publisher: &Publisher, engine: &Engine, replay: bool, flags: &[&str]) -> Exporter {
    let (events, replays) = (publisher.address(), publisher.replay_address());
    let mut all = vec!["--events", &events];
    if replay {
        all.extend(["--events.replay", &replays]);
    }
    all.extend(flags);
    Exporter::start(&engine.upstream.url(), &all)
}

/// Publishes batches with these events, a second apart, from this number on.
fn publish(publisher: &mut Publisher, from: u64, batches: &[&[Event]]) {
    let made = batches.iter().zip(from..).map(|(events, seq)| batch(seq, seq as f64, events));
    publisher.publish(&made.collect::<Vec<_>>());
}

#[test]
fn a_reset_that_only_the_page_counts_leaves_nothing_sure() {
    let (mut publisher, engine, exporter) = follow(Page::after(64), true, &[SIZE]);
    publish(&mut publisher, 0, &[&[Stored(0, 64)]]);
    until_said(&exporter, exactly(64.0));
    let reset = Page { resets: 1, ..Page::after(64) };
    engine.show(reset);
    assert_eq!(said(&exporter), between(0.0, 64.0), "at once, and not only when the stream has been told");
    until_said(&exporter, between(0.0, 64.0));
    // The next request brings the clear, and a chunk that was there is stored again.
    publish(&mut publisher, 1, &[&[Cleared, Entered(0, 8)]]);
    until_said(&exporter, between(0.0, 64.0));
    publish(&mut publisher, 2, &[&[Stored(0, 8)]]);
    engine.show(Page { resets: 1, ..Page::after(72) });
    until_said(&exporter, exactly(8.0));
    // A second one, of the pool alone.
    publish(&mut publisher, 3, &[&[Stored(100, 156)]]);
    engine.show(Page { resets: 1, ..Page::after(128) });
    until_said(&exporter, exactly(64.0));
    engine.show(Page { resets: 2, ..Page::after(128) });
    until_said(&exporter, between(0.0, 64.0));
    publish(&mut publisher, 4, &[&[Cleared], &[Evicted(0, 1)]]);
    // It evicts what was there, so it was left alone and is full.
    until_said(&exporter, Said { fill: Some(1.0), ..exactly(63.0) });
}

#[test]
fn a_reset_that_was_never_announced_is_not_forgotten_by_other_clears() {
    // Only slots that the engine states show that a full tier was emptied.
    let page = |stored, resets| Page { size: 64 * CHUNK, resets, ..Page::after(stored) };
    let (mut publisher, engine, exporter) = follow(page(64, 0), false, &[]);
    publish(&mut publisher, 0, &[&[Stored(0, 64)]]);
    until_said(&exporter, exactly(64.0));
    // Announced with the step under way, and counted a moment later: judged as ever.
    publish(&mut publisher, 1, &[&[Cleared], &[Evicted(0, 1)], &[Stored(64, 65)]]);
    until_said(&exporter, exactly(64.0));
    engine.show(page(65, 1));
    until_said(&exporter, exactly(64.0));
    // Blocks were in use, so nothing is announced: the engine goes on storing what it did not have.
    engine.show(page(65, 2));
    until_said(&exporter, between(0.0, 64.0));
    // What was made before it may be on its way for a fifth of a second.
    std::thread::sleep(Duration::from_millis(300));
    // Four more in a full tier, and no eviction.
    publish(&mut publisher, 4, &[&[Stored(200, 204)]]);
    engine.show(page(69, 2));
    // It was emptied. Whether that was before the store of 64, which was shortly before it was counted, is open until 64
    // comes again.
    until_said(&exporter, Said { ratio: Some(5.0 / 64.0), ..between(4.0, 5.0) });
    publish(&mut publisher, 5, &[&[Stored(64, 65)]]);
    engine.show(page(70, 2));
    until_said(&exporter, exactly(5.0));
}

#[test]
fn an_exporter_that_starts_after_the_reset_does_not_believe_the_history() {
    let (mut publisher, engine) = (Publisher::bind(0, Replay::New), Engine::start(Page::after(64)));
    publish(&mut publisher, 0, &[&[Stored(0, 64)]]);
    engine.show(Page { resets: 1, ..Page::after(64) });
    let exporter = exporter(&publisher, &engine, true, &[SIZE]);
    until_said(&exporter, between(0.0, 64.0));
    publish(&mut publisher, 1, &[&[Cleared], &[Stored(0, 2)]]);
    engine.show(Page { resets: 1, ..Page::after(66) });
    until_said(&exporter, exactly(2.0));
}

#[test]
fn the_residents_of_a_dead_engine_do_not_come_back() {
    for replay in [true, false] {
        let (mut publisher, engine, exporter) = follow(Page::after(64), replay, &[SIZE]);
        publish(&mut publisher, 0, &[&[Stored(0, 32)], &[Stored(32, 64)]]);
        until_said(&exporter, exactly(64.0));
        engine.go_down();
        publisher.kill();
        until("the exporter has noticed", || endpoint(&exporter, "up") == Some(0.0));
        let mut again = publisher.again();
        again.subscribed(1);
        until("it is connected", || endpoint(&exporter, "up") == Some(1.0));
        // A replay that has nothing is over by then.
        std::thread::sleep(Duration::from_millis(300));
        engine.show(Page::after(0));
        assert_ne!(said(&exporter).exact, Some(1.0), "the first page of the new engine");
        let untold = Said { fill: Some(0.0), ..UNTOLD };
        until_said(&exporter, untold);
        publish(&mut again, 0, &[&[Stored(500, 504)]]);
        engine.show(Page::after(4));
        until_said(&exporter, exactly(4.0));
        assert_eq!(endpoint(&exporter, "gaps_total"), Some(0.0));
    }
}

#[test]
fn a_restarted_engine_of_as_many_batches_is_another_one() {
    let (mut publisher, engine, exporter) = follow(Page::after(64), true, &[SIZE]);
    publish(&mut publisher, 0, &[&[Stored(0, 32)], &[Stored(32, 64)]]);
    until_said(&exporter, exactly(64.0));
    let mut again = publisher.again();
    // It has published its batches 0 to 2 before it is connected to; its page is not looked at.
    let made: Vec<_> = (0..3).map(|seq| batch(seq, 100.0 + seq as f64, &[Stored(seq, seq + 1)])).collect();
    again.publish(&made);
    // The page is still the dead engine's, and has counted 61 that were never told.
    until_said(&exporter, Said { chunks: (Some(3.0), Some(64.0)), exact: Some(0.0), ..exactly(64.0) });
    assert_eq!(endpoint(&exporter, "gaps_total"), Some(0.0));
    assert!(exporter.log().iter().any(|line| line.contains("the engine has restarted")));
    drop(engine);
}

/// Connections to this port go to that one.
fn forward(from: u16, to: u16) {
    let listener = TcpListener::bind(("127.0.0.1", from)).unwrap();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let Ok(far) = TcpStream::connect(("127.0.0.1", to)) else { return };
            for (mut from, mut to) in [(near.try_clone(), far.try_clone()), (Ok(far), Ok(near))]
                .map(|(from, to)| (from.unwrap(), to.unwrap()))
            {
                std::thread::spawn(move || std::io::copy(&mut from, &mut to));
            }
        }
    });
}

#[test]
fn a_replay_that_answers_later_than_the_stream_has_to_prove_the_engine_too() {
    let (mut publisher, engine, exporter) = follow(Page::after(64), true, &[SIZE]);
    publish(&mut publisher, 0, &[&[Stored(0, 32)], &[Stored(32, 64)]]);
    until_said(&exporter, exactly(64.0));
    publisher.kill();
    until("the exporter has noticed", || endpoint(&exporter, "up") == Some(0.0));
    // Another engine, whose replay cannot be asked at first. Its batches 0 to 2 come before the subscription.
    let mut again = Publisher::bind(publisher.port, Replay::New);
    let made: Vec<_> = (0..4).map(|seq| batch(seq, 100.0 + seq as f64, &[Stored(seq, seq + 1)])).collect();
    again.hide(&made[..3]);
    again.subscribed(1);
    until("the replay was asked in vain", || exporter.log().iter().any(|line| line.contains("no replay")));
    forward(publisher.replay_port, again.replay_port);
    engine.show(Page::after(4));
    again.publish(&made[3..]);
    until_said(&exporter, exactly(4.0));
}

#[test]
fn an_idle_engine_is_known_again_by_its_last_batch() {
    let (publisher, engine) = (Publisher::bind(0, Replay::New), Engine::start(Page::after(64)));
    let mut publisher = publisher;
    let (with, without) = (exporter(&publisher, &engine, true, &[SIZE]), exporter(&publisher, &engine, false, &[SIZE]));
    publisher.subscribed(2);
    publish(&mut publisher, 0, &[&[Stored(0, 64)]]);
    until_said(&with, exactly(64.0));
    until_said(&without, exactly(64.0));
    // As when a proxy between the two restarts: the same history is there.
    let mut again = publisher.again();
    again.hide(&[batch(0, 0.0, &[Stored(0, 64)])]);
    again.subscribed(2);
    until_said(&with, exactly(64.0));
    until_said(&without, UNTOLD);
    publish(&mut again, 1, &[&[Entered(900, 901)]]);
    until_said(&without, exactly(64.0));
    assert_eq!(again.asked(), [0], "from the last batch on");
}

#[test]
fn the_missing_beginning_of_a_restarted_engine_is_a_gap() {
    let (mut publisher, engine, exporter) = follow(Page::after(64), false, &[SIZE]);
    publish(&mut publisher, 5, &[&[Stored(0, 64)]]);
    until("the first batch is there", || endpoint(&exporter, "last_seq") == Some(5.0));
    assert_eq!(endpoint(&exporter, "gaps_total"), Some(0.0), "the exporter came late");
    let mut again = publisher.again();
    again.subscribed(1);
    publish(&mut again, 3, &[&[Stored(0, 1)]]);
    engine.show(Page::after(1));
    until("its first batch is there", || endpoint(&exporter, "last_seq") == Some(3.0));
    assert_eq!(endpoint(&exporter, "gaps_total"), Some(1.0));
}

#[test]
fn an_engine_whose_page_answers_is_connected_to_at_once() {
    let (mut publisher, engine, exporter) = follow(Page::after(64), false, &[SIZE]);
    publish(&mut publisher, 0, &[&[Stored(0, 64)]]);
    until_said(&exporter, exactly(64.0));
    engine.go_down();
    publisher.kill();
    // Nobody scrapes meanwhile. After 0.25, 0.75, 1.75 and 3.75 s it has tried, and would again after 7.75 s.
    std::thread::sleep(Duration::from_millis(4500));
    let again = publisher.again();
    engine.show(Page::after(0));
    let back = Instant::now();
    until("it is connected", || endpoint(&exporter, "up") == Some(1.0));
    assert!(back.elapsed() < Duration::from_millis(1500), "{:?}", back.elapsed());
    drop(again);
}

#[test]
fn a_tier_that_evicts_is_full_although_its_stores_are_under_way() {
    let (mut publisher, engine, exporter) = follow(Page::after(64), false, &[SIZE]);
    publish(&mut publisher, 0, &[&[Stored(0, 64)], &[Evicted(0, 16)]]);
    // 16 slots are taken by stores that are not announced yet; the page is still that of the step before.
    until_said(&exporter, Said { fill: Some(1.0), ..exactly(48.0) });
    publish(&mut publisher, 2, &[&[Stored(64, 80)]]);
    engine.show(Page::after(80));
    until_said(&exporter, exactly(64.0));
}

#[test]
fn a_size_that_nobody_gave_leaves_bytes_and_no_share() {
    let (mut publisher, engine, exporter) = follow(Page { asked: (3200, 320), ..Page::after(40) }, false, &[]);
    publish(&mut publisher, 0, &[&[Stored(0, 40)]]);
    let bytes_alone =
        Said { chunks: (Some(40.0), Some(40.0)), exact: Some(1.0), ratio: None, fill: None, measured: false };
    until_said(&exporter, bytes_alone);
    let page = exporter.metrics().body;
    assert!(!page.contains("\nkvtier_tier_prediction_error_ratio{") && !page.contains("\nkvtier_tier_predicted_"));
    let why = "the size of the tier is not known: give it with --tier.size";
    assert!(exporter.get("/debug").body.contains(why));
    let status: serde_json::Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
    assert_eq!(status["engines"][0]["events"]["sizes_unknown_because"], why);
    drop(engine);
}

/// Whether the mismatch is told, whether anything is said to be measured, and how many chunks are said to be there.
fn mismatch(exporter: &Exporter) -> (Option<f64>, Said) {
    (value(&exporter.metrics().body, "kvtier_tier_size_mismatch", RAM), said(exporter))
}

#[test]
fn a_size_that_is_too_small_is_told_by_what_is_in_the_tier() {
    let (mut publisher, engine, exporter) = follow(Page::after(33), false, &["--tier.size=512KiB"]);
    publish(&mut publisher, 0, &[&[Stored(0, 33)]]);
    // 33 of 32 chunks: less than a chunk may be rounding.
    until("it is known", || said(&exporter).exact == Some(1.0));
    assert_eq!(mismatch(&exporter).0, Some(0.0));
    publish(&mut publisher, 1, &[&[Stored(33, 64)]]);
    engine.show(Page::after(64));
    until("it is told", || mismatch(&exporter).0 == Some(1.0));
    let all =
        Said { chunks: (Some(64.0), Some(64.0)), exact: Some(1.0), ratio: None, fill: Some(1.0), measured: false };
    assert_eq!(mismatch(&exporter).1, all);
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("64 chunks (1048576 bytes) were in the tier at once: it is larger"), "{debug}");
    let warned = || exporter.log().iter().filter(|line| line.contains("it is larger")).count();
    until("the log says it", || warned() > 0);
    assert_eq!(warned(), 1);
    drop(engine);
}

#[test]
fn a_size_that_is_too_large_is_told_by_evictions() {
    let (mut publisher, engine, exporter) = follow(Page::after(60), false, &["--tier.size=2MiB"]);
    publish(&mut publisher, 0, &[&[Stored(0, 60)]]);
    until("it is known", || said(&exporter).exact == Some(1.0));
    assert_eq!(mismatch(&exporter).0, Some(0.0));
    // It evicts for 20 that are on their way: a tier of 128 could be full with 68 of them.
    engine.show(Page { storing: 0.6, allocated: 80, ..Page::after(60) });
    publish(&mut publisher, 1, &[&[Evicted(0, 16)]]);
    until_said(&exporter, Said { chunks: (Some(44.0), Some(44.0)), ratio: Some(44.0 / 128.0), ..exactly(64.0) });
    assert_eq!(mismatch(&exporter).0, Some(0.0));
    publish(&mut publisher, 2, &[&[Stored(60, 80)]]);
    engine.show(Page::after(80));
    until("it is told", || mismatch(&exporter).0 == Some(1.0));
    let Said { ratio, measured, chunks, .. } = mismatch(&exporter).1;
    assert_eq!((ratio, measured, chunks), (None, false, (Some(64.0), Some(64.0))));
    assert!(exporter.get("/debug").body.contains("evicts with 64 chunks (1048576 bytes) in it: it is smaller"));
}

#[test]
fn a_late_stream_is_not_exact_for_a_size_that_the_operator_gave() {
    // As many are known as --tier.size has room for, of a tier of twice as many.
    let (mut publisher, engine, exporter) = follow(Page::after(128), false, &[SIZE]);
    publish(&mut publisher, 7, &[&[Stored(0, 64)], &[Entered(0, 1)]]);
    until_said(&exporter, between(64.0, 64.0));
    // The stream is told of the slots by the first scrape, and acts upon it within a quarter of a second.
    std::thread::sleep(Duration::from_millis(600));
    until_said(&exporter, between(64.0, 64.0));
    engine.show(Page { size: 64 * CHUNK, ..Page::after(128) });
    let stating = exporter_of_its_own(&publisher, &engine);
    publisher.subscribed(2);
    publish(&mut publisher, 9, &[&[Stored(200, 264)], &[Entered(1, 2)]]);
    // Page and stream have not stood still twice, as far as the late one knows.
    until_said(&stating, Said { measured: false, ..exactly(64.0) });
}

/// One that was told no size.
fn exporter_of_its_own(publisher: &Publisher, engine: &Engine) -> Exporter {
    exporter(publisher, engine, false, &[])
}

#[test]
fn an_estimated_chunk_is_not_exact_until_everything_stands_still() {
    // A promotion spoils the quotient of the page, and under load page and stream are not of one moment.
    let page = |stored| Page { promoted: Some(16 * CHUNK), ..Page::after(stored) };
    let (mut publisher, engine, exporter) = follow(page(24), false, &[SIZE]);
    publish(&mut publisher, 0, &[&[Stored(0, 38)]]);
    // 40 chunks by the page, 38 by the stream.
    until("bounds are told", || said(&exporter).exact == Some(0.0));
    let moving = said(&exporter);
    // An estimate may be too large, so nothing is said to be there at least.
    assert!(!moving.measured && moving.chunks == (None, Some(40.0)), "{moving:?}");
    publish(&mut publisher, 1, &[&[Stored(38, 40)]]);
    let began = Instant::now();
    until("both stand still", || said(&exporter).exact.is_some() && began.elapsed() > Duration::from_secs(2));
    // A batch may have been lost; the next one shows that none was.
    assert_eq!(said(&exporter).exact, Some(0.0));
    publish(&mut publisher, 2, &[&[Entered(100, 101)]]);
    until_said(&exporter, exactly(40.0));
    drop(engine);
}

#[test]
fn with_a_tier_behind_no_smaller_size_is_told() {
    for (promoted, smaller) in [(None, true), (Some(0), false)] {
        let page = |stored, asked| Page { asked, promoted, ..Page::after(stored) };
        let (mut publisher, engine, exporter) = follow(page(0, (0, 0)), false, &[SIZE]);
        publish(&mut publisher, 0, &[&[Entered(0, 64)], &[Stored(0, 64)]]);
        engine.show(page(64, (2048, 0)));
        until_said(&exporter, exactly(64.0));
        // The pool forgets them and asks again: all but one are there.
        publish(&mut publisher, 2, &[&[Cleared], &[Evicted(0, 1)], &[Entered(1, 64)]]);
        engine.show(page(64, (4064, 2016)));
        let predicted = |size: &str| {
            let labels = format!("{RAM},size=\"{size}\"");
            value(&exporter.metrics().body, "kvtier_tier_predicted_reload_ratio", &labels)
        };
        // 63 chunks of 32 tokens, of 4064 tokens since the engine's start.
        until("it is predicted", || predicted("1") == Some(2016.0 / 4064.0));
        assert_eq!((predicted("0.5").is_some(), predicted("2").is_some()), (smaller, true));
        let status: serde_json::Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
        let events = &status["engines"][0]["events"];
        assert_eq!(events["smaller_sizes_unknown_because"].is_string(), !smaller, "{events}");
        assert_eq!(exporter.get("/debug").body.contains("a tier lies behind this one"), !smaller);
    }
}

#[test]
fn a_window_begins_with_the_history_that_a_replay_brought() {
    let (mut publisher, engine) = (Publisher::bind(0, Replay::New), Engine::start(Page::after(64)));
    let history = [&[Entered(0, 64)][..], &[Stored(0, 64)], &[Cleared], &[Evicted(0, 1)], &[Entered(1, 64)]];
    publish(&mut publisher, 0, &history);
    engine.show(Page { asked: (4064, 2016), ..Page::after(64) });
    let exporter = exporter(&publisher, &engine, true, &[SIZE]);
    // The exporter has seen no page before this one: the engine had been asked for nothing when it started.
    let error = || value(&exporter.metrics().body, "kvtier_tier_prediction_error_ratio", RAM);
    until("it is predicted", || error() == Some(0.0));
    let status: serde_json::Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
    assert_eq!(status["engines"][0]["events"]["window_seconds"], 4.0);
    // A chunk of 16,384 bytes is one block of 32 tokens.
    let labels = r#"model_name="m",engine="0",method="events""#;
    assert_eq!(value(&exporter.metrics().body, "kvtier_kv_bytes_per_token", labels), Some(512.0));
}
