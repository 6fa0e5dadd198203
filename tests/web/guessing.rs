//! The right password among many guesses. Time is counted in hashes, measured while the guesses go on.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use crate::attack::Attack;
use crate::home::{Home, Running, cpu_seconds, hang_up};
use crate::prometheus::Prometheus;
use crate::support::client::{get, get_with, receive, send};
use crate::support::until;
use crate::users::authorization;
use crate::{SECOND, SESAME};

/// Of "open sesame", each twice as dear as the one before.
const COSTS: [(u32, &str); 4] = [
    (10, "$2b$10$vxDDxHrXz9byy.74oVvWp.M4cxMVV.9eHhUaPQYmKAOd8pmk3z6Pu"),
    (11, "$2b$11$vxDDxHrXz9byy.74oVvWp.laJIVKj3obe6P0A8nQTzTZ1uIF/CpMC"),
    (12, "$2b$12$vxDDxHrXz9byy.74oVvWp.5o3y2lsBub1jZe2QEKl.PjTcUdsyB86"),
    (13, "$2b$13$vxDDxHrXz9byy.74oVvWp.1hmYPNXmZFI/XUzklG/8RFEQX.qedEa"),
];
/// Clients that guess.
const CLIENTS: usize = 80;
/// Threads that work out hashes.
const THREADS: u32 = 1;

fn hash(cost: u32) -> &'static str {
    COSTS.iter().find(|(other, _)| *other == cost).unwrap().1
}

fn home_of(address: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, address)
}

fn one_address() -> Vec<Ipv4Addr> {
    vec![home_of(1)]
}

fn eighty_addresses() -> Vec<Ipv4Addr> {
    (1..=80).map(home_of).collect()
}

fn start(home: &Home, cost: u32) -> Running {
    home.start(&format!("basic_auth_users:\n  prom: {}\n", hash(cost)), &[])
}

/// Status of an answer to a client at 127.0.0.1 with all the time in the world, and how long it took.
fn ask(address: SocketAddr, user: &str, password: &str) -> (u16, Duration) {
    let began = Instant::now();
    let stream = send(address, "GET", "/metrics", &[&authorization(user, password)]);
    stream.set_read_timeout(Some(Duration::from_secs(600))).unwrap();
    (receive(stream).status, began.elapsed())
}

/// The right one is known: it waits for no hash. Of several times the least, which is what it costs on a busy machine.
fn is_answered_at_once(address: SocketAddr) -> bool {
    let least = (0..5).map(|_| ask(address, "prom", "open sesame")).min_by_key(|(_, took)| *took).unwrap();
    least.0 == 200 && least.1 < Duration::from_secs(1)
}

#[test]
fn the_right_password_waits_for_those_before_it_and_is_known_from_then_on() {
    for (cost, addresses) in [(10, one_address()), (10, eighty_addresses()), (12, one_address())] {
        let home = Home::new();
        let running = start(&home, cost);
        let address = running.exporter.address;
        let attack = Attack::start(address, CLIENTS, &addresses);
        let before = attack.refused();
        let (status, took) = ask(address, "prom", "open sesame");
        let (refused, hash) = (attack.refused() - before, attack.hash());
        let bound = hash * u32::try_from(CLIENTS + 1).unwrap() / THREADS + Duration::from_secs(1);
        let said = format!("cost {cost}, {} addresses: {took:?}, {refused} refused; a hash {hash:?}", addresses.len());
        println!("{said}");
        assert_eq!(status, 200, "{said}");
        // One more may be counted before the answer is read.
        assert!(refused <= CLIENTS + 1, "{said}");
        // What is counted in hashes cannot take longer, but for a machine whose pace changes meanwhile.
        assert!(took <= bound * 2, "{said}");
        assert!(is_answered_at_once(address), "{said}");

        home.write("web.yml", &format!("# The same.\nbasic_auth_users:\n  prom: {}\n", self::hash(cost)));
        hang_up(&running.exporter);
        until("it was read again", || running.logged("was read again") > 0);
        assert!(is_answered_at_once(address), "{said}");
    }
}

#[test]
fn clients_that_guess_keep_neither_a_probe_nor_the_end_waiting() {
    let home = Home::new();
    let mut running = start(&home, 10);
    let address = running.exporter.address;
    assert_eq!(ask(address, "prom", "open sesame").0, 200);
    let _attack = Attack::start(address, CLIENTS, &eighty_addresses());
    for _ in 0..5 {
        let began = Instant::now();
        // A probe that has no password is told so at once.
        let known = get_with(address, "/-/healthy", &[&authorization("prom", "open sesame")]).status;
        assert_eq!((known, get(address, "/-/healthy").status), (200, 401));
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
    let began = Instant::now();
    running.exporter.terminate();
    let (status, ended) = running.exporter.wait();
    assert!(status.success() && ended - began < Duration::from_secs(3), "{status} after {:?}", ended - began);
}

#[test]
fn an_address_that_guesses_delays_another_by_one_hash() {
    let home = Home::new();
    let running = start(&home, 10);
    let attack = Attack::start(running.exporter.address, CLIENTS, &[home_of(2)]);
    for wrong in 0..5 {
        let before = attack.refused();
        assert_eq!(ask(running.exporter.address, "prom", &format!("wrong {wrong}")).0, 401);
        // The one that is worked out, one before it, and one that may be counted before the answer is read.
        let refused = attack.refused() - before;
        assert!(refused <= 3, "{refused}");
    }
}

#[test]
fn more_guesses_than_connections_keep_out_nobody_from_elsewhere() {
    let home = Home::new();
    let running = start(&home, 10);
    let address = running.exporter.address;
    let attack = Attack::start(address, 600, &[home_of(2)]);
    until("guesses are refused", || attack.refused() > 0);
    assert_eq!(ask(address, "prom", "open sesame").0, 200);
    assert!(is_answered_at_once(address));
}

/// The scrape after next is answered: the turn of one that was given up is kept, and what was right is known from then on.
#[test]
fn a_real_prometheus_comes_in_within_three_scrapes() {
    for addresses in [one_address(), eighty_addresses()] {
        let home = Home::new();
        let cost = one_that_outlasts_a_scrape(&home);
        let running = start(&home, cost);
        let _attack = Attack::start(running.exporter.address, CLIENTS, &addresses);
        let prometheus = Prometheus::scraping(running.exporter.address, "prom", "open sesame");
        let ups = prometheus.until_up(4);
        println!("cost {cost}, {} addresses: up at each scrape: {ups:?}", addresses.len());
        assert!(ups.len() <= 3 && ups.last() == Some(&true), "cost {cost}, {ups:?}");
    }
}

/// The least cost of which a hash for each client takes longer than a scrape may.
fn one_that_outlasts_a_scrape(home: &Home) -> u32 {
    let running = start(home, 10);
    let attack = Attack::start(running.exporter.address, 2, &one_address());
    let hashes = attack.hash() * u32::try_from(CLIENTS).unwrap();
    COSTS
        .into_iter()
        .find(|(cost, _)| hashes * 2_u32.pow(cost - 10) > Duration::from_secs(12))
        .map_or(13, |(cost, _)| cost)
}

/// CPU seconds that ten refusals cost, of each kind.
#[test]
fn a_refusal_costs_the_same_whoever_is_asked_for() {
    let (cheap, dear) = (SESAME, hash(10));
    let config = format!("basic_auth_users:\n  cheap: {cheap}\n  dear: {dear}\n");
    let running = Home::new().start(&config, &[]);
    let cost = |user: &str| {
        let before = cpu_seconds(&running.exporter);
        for guess in 0..10 {
            assert_eq!(ask(running.exporter.address, user, &format!("guess {guess}")).0, 401);
        }
        cpu_seconds(&running.exporter) - before
    };
    let costs = ["cheap", "dear", "nobody"].map(cost);
    let (least, most) = (costs.iter().copied().fold(f64::MAX, f64::min), costs.iter().copied().fold(0.0, f64::max));
    // They differ 64 times in what their own hashes cost.
    assert!(most < least * 1.4 + 0.03, "{costs:?}");
}

#[test]
fn who_is_taken_off_the_list_while_its_password_waits_does_not_come_in() {
    let home = Home::new();
    let running = home.start(&format!("basic_auth_users:\n  prom: {}\n  gone: {}\n", hash(10), hash(10)), &[]);
    let address = running.exporter.address;
    let attack = Attack::start(address, CLIENTS, &one_address());
    let waiting = std::thread::spawn(move || ask(address, "gone", "open sesame").0);
    let before = attack.refused();
    until("some were refused", || attack.refused() > before + 3);
    home.write("web.yml", &format!("basic_auth_users:\n  prom: {SECOND}\n"));
    hang_up(&running.exporter);
    until("it was read again", || running.logged("was read again") > 0);
    assert!(!waiting.is_finished());
    assert_eq!(waiting.join().unwrap(), 401);
}
