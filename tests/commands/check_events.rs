//! `check` beside a real ZeroMQ publisher: each reason why events do not come, and none where they do.

use std::net::TcpListener;

use crate::bench::{Bench, Said, capture, full, replaced};
use crate::program::upstream::ok;
use crate::publisher::{Publisher, Replay};
use crate::stream::messages;

const FINE: &str = "No findings, no remarks.";

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What `check` says while a batch is published to whoever has subscribed.
fn while_a_batch_comes(mut publisher: Publisher, bench: &Bench, words: &[&str]) -> Said {
    let batches = messages("r08/stream.bin.gz");
    std::thread::scope(|scope| {
        let said = scope.spawn(|| bench.check(words));
        publisher.subscribed(1);
        publisher.publish(&batches[..1]);
        said.join().unwrap()
    })
}

#[test]
fn events_that_come_give_no_finding() {
    let publisher = Publisher::bind(0, Replay::New);
    let events = format!("--events={}", publisher.address());
    let said = while_a_batch_comes(publisher, &Bench::serving(full()), &[&events, "--events.topic=k"]);
    said.says(0, &[FINE, "a batch of rank 0 came"]);
    let port = free_port();
    let events = format!("--events.bind=tcp://127.0.0.1:{port}");
    let said = while_a_batch_comes(Publisher::connect(port), &Bench::serving(full()), &[&events]);
    said.says(0, &[FINE, "a batch of rank 0 came"]);
}

#[test]
fn a_wrong_topic_is_told_with_the_right_one() {
    let publisher = Publisher::bind(0, Replay::New);
    let events = format!("--events={}", publisher.address());
    let said = while_a_batch_comes(publisher, &Bench::serving(full()), &[&events, "--events.topic=other"]);
    said.says(1, &["FINDING events-wrong-topic", "their topic is \"kv\"", "--events.topic=\"kv\""]);
    said.says(1, &[": a batch came under the topic \"kv\""]);
}

#[test]
fn an_engine_that_connects_where_it_was_to_be_connected_to() {
    let port = free_port();
    let _engine = Publisher::connect(port);
    let said = Bench::serving(full()).check(&[&format!("--events=tcp://127.0.0.1:{port}")]);
    said.says(1, &["FINDING events-wrong-side", &format!("Say --events.bind=tcp://127.0.0.1:{port}")]);
    said.says(1, &[&format!("events of tcp://127.0.0.1:{port}: nobody listens there, and a publisher connects")]);
}

#[test]
fn an_engine_that_binds_where_it_was_waited_for() {
    let publisher = Publisher::bind(0, Replay::New);
    let said = Bench::serving(full()).check(&[&format!("--events.bind={}", publisher.address())]);
    said.says(0, &["remark events-port-taken", "say --events instead of --events.bind", ": the port is taken"]);
    let said = Bench::serving(full()).check(&[&format!("--events.bind=tcp://127.0.0.1:{}", free_port())]);
    said.says(1, &["FINDING events-wrong-side", "Nobody connected to", ": nobody connected within 5 s"]);
}

#[test]
fn nobody_at_all() {
    let said = Bench::serving(full()).check(&[&format!("--events=tcp://127.0.0.1:{}", free_port())]);
    said.says(1, &["FINDING events-unreachable", "cannot connect: connection refused", "enable_kv_cache_events"]);
    said.is_silent_about(&["events-wrong-side"]);
}

#[test]
fn the_replay_is_looked_at_too() {
    let publisher = Publisher::bind(0, Replay::New);
    let (events, replay) = (format!("--events={}", publisher.address()), publisher.replay_address());
    let said = Bench::serving(full()).check(&[&events, &format!("--events.replay={replay}")]);
    said.says(0, &[FINE, &format!("replay of {replay}: it is there")]);
    let nobody = format!("tcp://127.0.0.1:{}", free_port());
    let said = Bench::serving(full()).check(&[&events, &format!("--events.replay={nobody}")]);
    said.says(
        1,
        &[
            "FINDING events-replay-unreachable",
            &format!("The replay at {nobody}: cannot connect: "),
            "replay_endpoint",
            &format!("replay of {nobody}: cannot connect: "),
        ],
    );
}

#[test]
fn ports_of_two_ranks_that_meet() {
    // Where rank 1 publishes, rank 0 answers replays.
    let publisher = Publisher::bind(0, Replay::New);
    let (events, replay) = (publisher.address(), publisher.replay_address());
    let page = capture("vllm-0.33.0-offload-cpu-dp2-full");
    let words = [format!("--events={events},{replay}"), format!("--events.replay={replay},{events}")];
    let bench = || Bench::serving(page.clone()).shm("100g");
    let said = bench().check(&[&words[0], &words[1]]);
    said.says(
        1,
        &[
            "FINDING events-ports-collide",
            &format!("The socket on {replay} is of type ROUTER and does not publish."),
            &format!("{events} is given both as an endpoint of events and as one of a replay."),
            &format!("events of {replay}: the socket there is of type ROUTER and does not publish"),
            &format!("replay of {events}: the socket there is of type XPUB and answers no replay"),
        ],
    );
    let said = bench().check(&[&format!("--events={events}")]);
    said.says(0, &["remark events-ranks-missing", "2 engines on the page, and 1 endpoint of events."]);
    // Both of rank 0, in pods of their own: a second endpoint would not help.
    let in_pods =
        page.replace("engine=\"0\"", "engine=\"0\",pod=\"a\"").replace("engine=\"1\"", "engine=\"0\",pod=\"b\"");
    let said = Bench::serving(in_pods).shm("100g").check(&[&format!("--events={events}")]);
    said.says(0, &["remark events-engine-ambiguous", "2 of 2 engines on the page", "an exporter of its own"]);
    assert!(!said.out.contains("events-ranks-missing"), "{}", said.out);
}

#[test]
fn silence_is_a_finding_where_engines_store_and_unknown_where_they_do_not() {
    let publisher = Publisher::bind(0, Replay::New);
    let events = format!("--events={}", publisher.address());
    let said = Bench::serving(full()).check(&[&events]);
    said.says(0, &[FINE, "Not known", "nothing came from", "not every engine stored"]);
    said.says(0, &[&format!("events of {}: a publisher is there, and nothing came within 5 s", publisher.address())]);
    let before = full();
    let line = before.lines().find(|line| line.starts_with("vllm:kv_offload_store_bytes_total{")).unwrap();
    let more = format!("{} 9.99e+11", line.rsplit_once(' ').unwrap().0);
    let after = replaced(&before, line, &more);
    let bench = Bench::new().upstream(move |request| vec![ok(if request.number == 1 { &before } else { &after })]);
    let said = bench.check(&[&events]);
    said.says(1, &["FINDING events-silent", "no event came from", "under any topic"]);
    said.is_silent_about(&["Not known"]);
}
