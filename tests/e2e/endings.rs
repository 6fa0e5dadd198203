//! Whatever keeps it busy or waiting: a probe is answered within a second, and SIGTERM obeyed within three.
//!
//! Files that hang have such tests of their own (`files`), and so have a reader of the log that stalls (`logs`) and passwords that
//! wait (`web guessing`).

use std::time::{Duration, Instant};

use crate::addresses::with_hosts;
use crate::files::{Held, ends};
use crate::hostile::{self, hostile};
use crate::support::client::send;
use crate::support::exporter::{Exporter, command};
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

fn stays_well(mut exporter: Exporter, state: &str) {
    for _ in 0..5 {
        let began = Instant::now();
        assert_eq!(exporter.get("/-/healthy").status, 200);
        assert!(began.elapsed() < Duration::from_secs(1), "{state}: healthy after {:?}", began.elapsed());
    }
    ends(&mut exporter, state);
}

#[test]
fn while_a_page_that_costs_seconds_is_worked_on() {
    let page = hostile();
    let upstream = Upstream::start(move |_| page.clone());
    let exporter = Exporter::start(&upstream.url(), &hostile::FLAGS);
    let threads = exporter.threads();
    let _scrape = send(exporter.address, "GET", "/metrics", &[]);
    until("the page is worked on", || exporter.threads() > threads);
    stays_well(exporter, "a page in work");
}

#[test]
fn while_a_name_is_looked_up() {
    let address = "http://unknown:8000/metrics";
    let program = command(&["--upstream", address, "--web.listen-address=127.0.0.1:0", "--upstream.timeout=1m"]);
    let (mut program, folder) = with_hosts("127.0.0.1 other\n", &program);
    let exporter = Exporter::spawn(&mut program);
    // The C library reads this file before it asks anybody.
    let _held = Held::take(&folder.path().join("hosts"));
    let threads = exporter.threads();
    let _scrape = send(exporter.address, "GET", "/metrics", &[]);
    until("the name is looked up", || exporter.threads() > threads);
    stays_well(exporter, "a name that is looked up");
}

#[test]
fn while_clients_do_not_take_their_answers() {
    // More than the sockets of both sides hold.
    let page = format!("x_total{{k=\"{}\"}} 1\n", "y".repeat(1000)).repeat(20_000);
    let upstream = Upstream::start(move |_| vec![ok(&page)]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.max-bytes=32MiB"]);
    let _stalled: Vec<_> = (0..60).map(|_| send(exporter.address, "GET", "/metrics", &[])).collect();
    until("answers are held", || {
        let debug =
            crate::support::client::get_with(exporter.address, "/debug", &["X-Prometheus-Scrape-Timeout-Seconds: 10"]);
        debug.status == 200 && !debug.body.contains("  unsent      0 of ")
    });
    stays_well(exporter, "clients that do not read");
}
