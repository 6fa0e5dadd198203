//! A process that has run out of descriptors: it says so, and serves again as soon as it gets some.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::PAGE;
use crate::support::client::get_aside;
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Step, Upstream, ok};

/// Leaves the exporter this many free descriptors; returns what takes the limit away again.
fn leave(exporter: &Exporter, free: usize) -> impl FnOnce() + use<> {
    let pid = Pid::from_raw(i32::try_from(exporter.pid()).unwrap());
    let folder = std::fs::read_dir(format!("/proc/{}/fd", exporter.pid())).unwrap();
    let open: Vec<u64> = folder.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    // The limit is one on numbers: the lowest that is free is given out, and must be below it.
    let current = (0..).filter(|number| !open.contains(number)).nth(free);
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let before = prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    move || {
        prlimit(pid, Resource::Nofile, before).unwrap();
    }
}

#[test]
fn without_descriptors_clients_wait_and_are_served_within_a_second_of_their_return() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let at_rest = exporter.descriptors();
    exporter.metrics();
    until("only the upstream's connection is left", || exporter.descriptors() <= at_rest + 1);
    let unlimit = leave(&exporter, 0);
    let waiting: Vec<_> = (0..3).map(|_| get_aside(exporter.address, "/metrics", &[])).collect();
    until("the log says so", || exporter.log().iter().any(|line| line.contains("cannot accept connections")));
    assert!(!waiting.iter().any(thread::JoinHandle::is_finished));
    unlimit();
    let back = Instant::now();
    for scrape in waiting {
        assert!(scrape.join().unwrap().body.starts_with(PAGE));
    }
    assert!(back.elapsed() < Duration::from_secs(1), "{:?}", back.elapsed());
    let said = exporter.log().iter().filter(|line| line.contains("cannot accept connections")).count();
    assert_eq!(said, 1, "once, however long it lasts");
}

#[test]
fn without_a_descriptor_for_the_upstream_the_answer_says_so_and_the_next_is_whole() {
    // No connection to it stays open, so that each scrape needs a descriptor for one.
    let upstream = Upstream::start(|_| vec![ok(PAGE), Step::Close]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let at_rest = exporter.descriptors();
    exporter.metrics();
    until("all connections are gone", || exporter.descriptors() <= at_rest);
    // One for the client, none for the upstream.
    let unlimit = leave(&exporter, 1);
    let answer = exporter.metrics();
    assert!(answer.has("kvtier_upstream_error_info{upstream=\"main\",reason=\"connect\"} 1"), "{}", answer.body);
    assert!(exporter.get("/debug").body.contains("too many open files"));
    unlimit();
    assert!(exporter.metrics().body.starts_with(PAGE));
}
