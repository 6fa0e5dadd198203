//! The memory limits that we ship hold for the worst pages that the caps beside them let in.

use std::path::Path;
use std::sync::Mutex;

use crate::support::client::get_patiently;
use crate::support::exporter::{Exporter, command};
use crate::support::upstream::{Upstream, response};

const TEXT: &str = "Content-Type: text/plain; version=0.0.4";
const OPENMETRICS: &str = "Content-Type: application/openmetrics-text; version=1.0.0";

/// How a page is made that costs more memory than others: its notation, and what it repeats.
/// Of many kinds that were tried, the two that cost most.
const PAGES: [(&str, &str, &[u8]); 2] = [
    ("every second line is refused", TEXT, b"a 1\n\xff\n"),
    ("OpenMetrics whose every second line is refused", OPENMETRICS, b"a 1\n\xff\n"),
];

fn deployed(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)).unwrap()
}

/// What follows `key` in a file, up to the end of the line or of the braces around it.
fn shipped<'a>(text: &'a str, key: &str) -> &'a str {
    let mut found =
        text.lines().filter(|line| !line.trim_start().starts_with('#')).filter_map(|line| line.split_once(key));
    let (_, value) = found.next().unwrap_or_else(|| panic!("no {key}"));
    assert!(found.next().is_none(), "{key} twice");
    value.trim().trim_end_matches('}')
}

fn mebibytes(size: &str) -> u64 {
    let digits = size.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    assert!(["M", "m", "Mi", "MiB"].contains(&&size[digits.len()..]), "{size}");
    digits.parse::<u64>().unwrap() << 20
}

/// A page and what explains it, at once: one is worked on, and the next waits for its turn.
fn peak(cap: &str, notation: &str, unit: &'static [u8]) -> u64 {
    let end = if notation == OPENMETRICS { &b"# EOF\n"[..] } else { b"" };
    let times = (usize::try_from(mebibytes(cap)).unwrap() - end.len()) / unit.len();
    let body = [&unit.repeat(times), end].concat();
    let header = notation.to_owned();
    let upstream = Upstream::start(move |_| vec![response("200 OK", &[&header], &body)]);
    let mut program = command(&["--upstream", &upstream.url(), "--web.listen-address=127.0.0.1:0"]);
    // A slow machine must come to the peak, too.
    program.env("KVTIER_UPSTREAM_MAX_BYTES", cap).args([
        "--upstream.timeout=10m",
        "--collector.memory",
        "--collector.shm",
    ]);
    let exporter = Exporter::spawn(&mut program);
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for path in ["/metrics", "/debug"] {
            scope.spawn(|| answers.lock().unwrap().push(get_patiently(exporter.address, path)));
        }
    });
    let answers = answers.into_inner().unwrap();
    assert!(answers.iter().all(|answer| answer.status == 200) && !answers.iter().any(|a| a.body.contains("too_large")));
    exporter.peak()
}

fn holds(what: &str, limit: &str, cap: &str) {
    for (name, notation, unit) in PAGES {
        let (peak, limit) = (peak(cap, notation, unit), mebibytes(limit));
        println!("{what}, cap {cap}, {name}: {} of {} MiB", peak >> 20, limit >> 20);
        assert!(peak < limit, "{what}: {name} of {cap} takes {peak} bytes, the limit is {limit}");
    }
}

#[test]
fn the_systemd_units_limit_holds() {
    let (unit, settings) = (deployed("systemd/kvtier-exporter.service"), deployed("systemd/kvtier-exporter.env"));
    holds("systemd", shipped(&unit, "MemoryMax="), shipped(&settings, "KVTIER_UPSTREAM_MAX_BYTES="));
}

#[test]
fn the_containers_limits_hold() {
    let compose = deployed("compose/compose.yml");
    let of_compose = (shipped(&compose, "mem_limit: "), shipped(&compose, "KVTIER_UPSTREAM_MAX_BYTES: "));
    let kubernetes = deployed("kubernetes/vllm.yaml");
    let limits = "limits: {cpu: 500m, memory: ";
    let of_kubernetes = (shipped(&kubernetes, limits), shipped(&kubernetes, "KVTIER_UPSTREAM_MAX_BYTES, value: "));
    holds("compose", of_compose.0, of_compose.1);
    if (mebibytes(of_compose.0), of_compose.1) != (mebibytes(of_kubernetes.0), of_kubernetes.1) {
        holds("kubernetes", of_kubernetes.0, of_kubernetes.1);
    }
}
