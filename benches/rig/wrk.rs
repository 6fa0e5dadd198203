//! wrk as the client: the one that others' figures were taken with. It parses an answer byte by byte, as a scraper
//! has to do in one way or another, so that a way to itself is not all that is measured.

use std::process::Command;

use super::Place;

/// What a turn brought.
pub struct Turn {
    /// Median seconds of a scrape.
    pub p50: f64,
    pub scrapes: f64,
    pub per_second: f64,
}

/// Scrapes over so many connections for so many seconds, as fast as answers come.
pub fn turn(place: &Place, connections: usize, seconds: usize) -> Turn {
    let (connections, seconds) = (format!("-c{connections}"), format!("-d{seconds}s"));
    let mut wrk = Command::new("wrk");
    let output =
        wrk.args(["-t1", &connections, &seconds, "--timeout", "30s", "--latency", &place.url()]).output().unwrap();
    understand(&String::from_utf8(output.stdout).unwrap())
}

/// The report looks like this: `50%  153.00us`, `4359 requests in 1.01s, 0.96GB read`, `Requests/sec: 4315.84`.
fn understand(report: &str) -> Turn {
    assert!(!report.contains("Non-2xx") && !report.contains("Socket errors"), "{report}");
    let after = |start: &str| report.lines().find_map(|line| line.trim().strip_prefix(start)).unwrap().trim();
    let scrapes = report.lines().find_map(|line| line.trim().split_once(" requests in ")).unwrap().0;
    Turn {
        p50: seconds(after("50%")),
        scrapes: scrapes.parse().unwrap(),
        per_second: after("Requests/sec:").parse().unwrap(),
    }
}

fn seconds(text: &str) -> f64 {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let (number, unit) = units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor))).unwrap();
    number.parse::<f64>().unwrap() * unit
}
