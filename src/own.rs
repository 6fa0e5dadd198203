//! The families about the exporter itself: how the upstream answered, what was built, what the process costs.
//!
//! Pure: facts in, families out. `kvtier_correction_active` is written where corrections are made.

use std::time::Duration;

use crate::family::{Desc, Family};
use crate::model::Snapshot;
use crate::pipeline::Counts;
use crate::process::ProcessFacts;

const UP: Desc = Desc::gauge(
    "kvtier_upstream_up",
    "1 if the engine's metrics page was fetched for this scrape, 0 if not: then kvtier_upstream_error_info says why.",
);
const ERROR_INFO: Desc = Desc::gauge(
    "kvtier_upstream_error_info",
    "1 with the reason why the engine's metrics page could not be fetched. Absent while it can.",
);
const DURATION: Desc =
    Desc::gauge("kvtier_upstream_scrape_duration_seconds", "How long the fetch took, or how long it took to fail.");
const AGE: Desc = Desc::gauge(
    "kvtier_upstream_age_seconds",
    "Time since the page was fetched. Scrapes at the same moment share one fetch; no page outlives them.",
);
const BODY: Desc = Desc::gauge("kvtier_upstream_body_bytes", "Size of the engine's metrics page, unpacked.");
const SAMPLES: Desc =
    Desc::gauge("kvtier_upstream_samples", "Samples of the engine's metrics page that were passed on.");
const OPAQUE: Desc =
    Desc::gauge("kvtier_upstream_opaque_lines", "Lines of the page that were passed on without being understood.");
const DROPPED: Desc = Desc::gauge(
    "kvtier_upstream_dropped_lines",
    "Lines of the page that were left out, because Prometheus would have refused the whole page for them. See /debug.",
);
const INFO: Desc = Desc::gauge(
    "kvtier_upstream_info",
    "1 with what the page was recognised as. The range of versions is inferred from the families on it.",
);
const BUILD_INFO: Desc = Desc::gauge("kvtier_exporter_build_info", "1 with what this exporter was built from.");
const START_TIME: Desc =
    Desc::gauge("kvtier_process_start_time_seconds", "When this exporter started, in seconds since 1970.");
const CPU_SECONDS: Desc = Desc::counter("kvtier_process_cpu_seconds_total", "CPU time that this exporter has used.");
const RESIDENT: Desc = Desc::gauge("kvtier_process_resident_memory_bytes", "Memory that this exporter holds.");
const OPEN_FDS: Desc = Desc::gauge("kvtier_process_open_fds", "File descriptors that this exporter has open.");
const THREADS: Desc = Desc::gauge("kvtier_process_threads", "Threads of this exporter.");

/// All of them.
pub const DESCS: [Desc; 15] = [
    UP,
    ERROR_INFO,
    DURATION,
    AGE,
    BODY,
    SAMPLES,
    OPAQUE,
    DROPPED,
    INFO,
    BUILD_INFO,
    START_TIME,
    CPU_SECONDS,
    RESIDENT,
    OPEN_FDS,
    THREADS,
];

/// What this program was built from.
#[derive(Clone, Copy, Debug)]
pub struct Build {
    /// Version of the package.
    pub version: &'static str,
    /// Commit, or `unknown` where the sources were no checkout.
    pub revision: &'static str,
    /// Version of the compiler.
    pub rustc: &'static str,
}

/// This build.
pub const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    revision: env!("KVTIER_BUILD_REVISION"),
    rustc: env!("KVTIER_BUILD_RUSTC"),
};

/// How one upstream answered one scrape.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// Value of the `upstream` label.
    pub upstream: &'static str,
    /// How long it took.
    pub took: Duration,
    /// The page, or the reason why there is none.
    pub result: Result<PageFacts<'a>, &'static str>,
}

/// What is said of a page that came.
#[derive(Clone, Copy, Debug)]
pub struct PageFacts<'a> {
    /// Time since it came.
    pub age: Duration,
    /// Its size.
    pub bytes: usize,
    /// What the scanner counted.
    pub counts: &'a Counts,
    /// What was read off it.
    pub snapshot: &'a Snapshot,
}

/// The families about one upstream.
pub fn upstream_families(visit: &Visit<'_>) -> Vec<Family> {
    let (page, reason) = (visit.result.as_ref().ok(), visit.result.as_ref().err());
    let label = || vec![("upstream", visit.upstream.to_owned())];
    let gauge = |desc, value: Option<f64>| {
        let mut family = Family::new(desc);
        family.push(label(), value);
        family
    };
    let info = |desc, labels: Option<Vec<(&'static str, String)>>| {
        let mut family = Family::new(desc);
        if let Some(labels) = labels {
            family.push([label(), labels].concat(), 1.0);
        }
        family
    };
    let count = |of: fn(&Counts) -> u64| page.map(|page| of(page.counts) as f64);
    vec![
        gauge(UP, Some(if page.is_some() { 1.0 } else { 0.0 })),
        info(ERROR_INFO, reason.map(|reason| vec![("reason", (*reason).to_owned())])),
        gauge(DURATION, Some(visit.took.as_secs_f64())),
        gauge(AGE, page.map(|page| page.age.as_secs_f64())),
        gauge(BODY, page.map(|page| page.bytes as f64)),
        gauge(SAMPLES, count(|counts| counts.samples)),
        gauge(OPAQUE, count(|counts| counts.opaque)),
        gauge(DROPPED, count(|counts| counts.dropped)),
        info(INFO, page.and_then(|page| recognised(page.snapshot))),
    ]
}

/// Labels of `kvtier_upstream_info`; none while nothing on the page is known to us.
fn recognised(snapshot: &Snapshot) -> Option<Vec<(&'static str, String)>> {
    let known = snapshot.engine_kind.is_some() || !snapshot.dialects.is_empty();
    known.then(|| {
        vec![
            ("engine_kind", snapshot.engine_kind.unwrap_or_default().to_owned()),
            ("dialects", snapshot.dialects.join(",")),
            ("version_range", snapshot.version_range.clone().unwrap_or_default()),
        ]
    })
}

/// The families about this program: `started` is seconds since 1970.
pub fn process_families(build: &Build, started: f64, facts: &ProcessFacts) -> Vec<Family> {
    let mut info = Family::new(BUILD_INFO);
    let labels = [("version", build.version), ("revision", build.revision), ("rustc", build.rustc)];
    info.push(labels.map(|(name, text)| (name, text.to_owned())).into(), 1.0);
    vec![
        info,
        Family::single(START_TIME, started),
        Family::single(CPU_SECONDS, facts.cpu_seconds),
        Family::single(RESIDENT, facts.resident_bytes),
        Family::single(OPEN_FDS, facts.open_fds),
        Family::single(THREADS, facts.threads),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;

    fn samples(families: &[Family]) -> Vec<String> {
        encode(families).lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn a_failure_is_a_zero_and_its_reason() {
        let visit = Visit { upstream: "main", took: Duration::from_millis(250), result: Err("timeout") };
        assert_eq!(
            samples(&upstream_families(&visit)),
            [
                "kvtier_upstream_up{upstream=\"main\"} 0",
                "kvtier_upstream_error_info{upstream=\"main\",reason=\"timeout\"} 1",
                "kvtier_upstream_scrape_duration_seconds{upstream=\"main\"} 0.25",
            ]
        );
    }

    #[test]
    fn a_page_is_described_and_has_no_reason() {
        let counts = Counts { samples: 3, opaque: 2, dropped: 1 };
        let snapshot = Snapshot {
            engine_kind: Some("vllm"),
            dialects: vec!["vllm", "vllm_offload"],
            version_range: Some("0.26-0.27".to_owned()),
            ..Snapshot::default()
        };
        let page = PageFacts { age: Duration::from_millis(500), bytes: 40, counts: &counts, snapshot: &snapshot };
        let visit = Visit { upstream: "main", took: Duration::from_secs(1), result: Ok(page) };
        assert_eq!(
            samples(&upstream_families(&visit)),
            [
                "kvtier_upstream_up{upstream=\"main\"} 1",
                "kvtier_upstream_scrape_duration_seconds{upstream=\"main\"} 1",
                "kvtier_upstream_age_seconds{upstream=\"main\"} 0.5",
                "kvtier_upstream_body_bytes{upstream=\"main\"} 40",
                "kvtier_upstream_samples{upstream=\"main\"} 3",
                "kvtier_upstream_opaque_lines{upstream=\"main\"} 2",
                "kvtier_upstream_dropped_lines{upstream=\"main\"} 1",
                "kvtier_upstream_info{upstream=\"main\",engine_kind=\"vllm\",dialects=\"vllm,vllm_offload\",version_range=\"0.26-0.27\"} 1",
            ]
        );
    }

    #[test]
    fn an_unknown_engine_has_no_info_and_unknown_process_facts_are_absent() {
        let (counts, snapshot) = (Counts::default(), Snapshot::default());
        let page = PageFacts { age: Duration::ZERO, bytes: 0, counts: &counts, snapshot: &snapshot };
        let visit = Visit { upstream: "main", took: Duration::ZERO, result: Ok(page) };
        assert!(!encode(&upstream_families(&visit)).contains("kvtier_upstream_info"));
        let build = Build { version: "1", revision: "2", rustc: "3" };
        assert_eq!(
            samples(&process_families(&build, 5.0, &ProcessFacts { threads: Some(2.0), ..Default::default() })),
            [
                "kvtier_exporter_build_info{version=\"1\",revision=\"2\",rustc=\"3\"} 1",
                "kvtier_process_start_time_seconds 5",
                "kvtier_process_threads 2",
            ]
        );
    }
}
