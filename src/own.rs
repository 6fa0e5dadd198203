//! The families about the exporter itself: how the upstream answered, what was built, what the process costs.
//!
//! Pure: facts in, families out. `kvtier_correction_active` is written where corrections are made.

use std::time::Duration;

use crate::exposition::Counts;
use crate::family::{Desc, Family, Labels};
use crate::model::Note;
use crate::notice::spelling::Via;
use crate::pipeline::{MAIN, Recognised};
use crate::process::ProcessFacts;

const UP: Desc = Desc::gauge(
    "kvtier_upstream_up",
    "1 if the upstream's metrics page came, 0 if not: then kvtier_upstream_error_info says why.",
);
const ERROR_INFO: Desc = Desc::gauge(
    "kvtier_upstream_error_info",
    "1 with the reason why the upstream's metrics page could not be fetched. Absent while it can.",
);
const DURATION: Desc =
    Desc::gauge("kvtier_upstream_scrape_duration_seconds", "How long the fetch took, or how long it took to fail.");
const AGE: Desc = Desc::gauge(
    "kvtier_upstream_age_seconds",
    "Time since the page was fetched. Scrapes at the same moment share one fetch, and those within --upstream.min-interval the last one.",
);
const BODY: Desc = Desc::gauge("kvtier_upstream_body_bytes", "Size of the upstream's metrics page, unpacked.");
const SAMPLES: Desc =
    Desc::gauge("kvtier_upstream_samples", "Samples of the upstream's metrics page that were passed on.");
const OPAQUE: Desc =
    Desc::gauge("kvtier_upstream_opaque_lines", "Lines of the page that were passed on without being understood.");
const DROPPED: Desc = Desc::gauge(
    "kvtier_upstream_dropped_lines",
    "Lines of the page that were left out, because Prometheus would have refused the whole page for them. See /debug.",
);
const MERGED_OUT: Desc = Desc::gauge(
    "kvtier_upstream_merged_out_families",
    "Families of an extra upstream that were left out: the main page has them, or they are process_, python_ or http_, which every server has.",
);
const INFO: Desc = Desc::gauge(
    "kvtier_upstream_info",
    "1 with what the page was recognised as (engine_kind unknown: nothing), and through what it came. The range of versions is inferred from the families on it.",
);
const BUILD_INFO: Desc = Desc::gauge("kvtier_exporter_build_info", "1 with what this exporter was built from.");
const START_TIME: Desc =
    Desc::gauge("kvtier_process_start_time_seconds", "When this exporter started, in seconds since 1970.");
const CPU_SECONDS: Desc = Desc::counter("kvtier_process_cpu_seconds_total", "CPU time that this exporter has used.");
const RESIDENT: Desc = Desc::gauge("kvtier_process_resident_memory_bytes", "Memory that this exporter holds.");
const OPEN_FDS: Desc = Desc::gauge("kvtier_process_open_fds", "File descriptors that this exporter has open.");
const THREADS: Desc = Desc::gauge("kvtier_process_threads", "Threads of this exporter.");

/// All of them.
pub const DESCS: [Desc; 16] = [
    UP,
    ERROR_INFO,
    DURATION,
    AGE,
    BODY,
    SAMPLES,
    OPAQUE,
    DROPPED,
    MERGED_OUT,
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
    pub upstream: &'a str,
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
    /// Families left out, where it is an extra's.
    pub merged_out: Option<usize>,
    /// What it was recognised as.
    pub recognised: &'a Recognised,
    /// What was read and could not be placed, in words.
    pub notes: &'a [Note],
}

impl<'a> Visit<'a> {
    fn page(&self) -> Option<&PageFacts<'a>> {
        self.result.as_ref().ok()
    }
}

/// The families about the upstreams.
pub fn upstream_families(visits: &[Visit<'_>]) -> Vec<Family> {
    let gauge = |desc, value: &dyn Fn(&Visit<'_>) -> Option<f64>| {
        let mut family = Family::new(desc);
        for visit in visits {
            family.push(label(visit), value(visit));
        }
        family
    };
    let page = |desc, value: fn(&PageFacts<'_>) -> f64| gauge(desc, &|visit| visit.page().map(value));
    vec![
        gauge(UP, &|visit| Some(if visit.result.is_ok() { 1.0 } else { 0.0 })),
        info(ERROR_INFO, visits, |visit| visit.result.err().map(|reason| [("reason", reason.to_owned())].into())),
        gauge(DURATION, &|visit| Some(visit.took.as_secs_f64())),
        page(AGE, |page| page.age.as_secs_f64()),
        page(BODY, |page| page.bytes as f64),
        page(SAMPLES, |page| page.counts.samples as f64),
        page(OPAQUE, |page| page.counts.opaque as f64),
        page(DROPPED, |page| page.counts.dropped as f64),
        gauge(MERGED_OUT, &|visit| visit.page()?.merged_out.map(|families| families as f64)),
        info(INFO, visits, |visit| labels(visit.upstream, visit.page()?.recognised)),
    ]
}

fn label(visit: &Visit<'_>) -> Labels {
    [("upstream", visit.upstream.to_owned())].into()
}

/// A family of ones with further labels, for the upstreams that have any.
fn info(desc: Desc, visits: &[Visit<'_>], further: fn(&Visit<'_>) -> Option<Labels>) -> Family {
    let mut family = Family::new(desc);
    for visit in visits {
        if let Some(further) = further(visit) {
            family.push(label(visit).and(&further), 1.0);
        }
    }
    family
}

/// Labels of `kvtier_upstream_info`. A further upstream of which nothing is known may be anything: it has none, unless names of
/// an engine stand on its page in another spelling.
fn labels(upstream: &str, recognised: &Recognised) -> Option<Labels> {
    let known = recognised.engine_kind.is_some() || !recognised.dialects.is_empty();
    (known || upstream == MAIN || recognised.via != Via::Direct).then(|| {
        [
            ("engine_kind", recognised.engine_kind.unwrap_or("unknown").to_owned()),
            ("dialects", recognised.dialects.join(",")),
            ("version_range", recognised.version_range.clone().unwrap_or_default()),
            ("via", recognised.via.to_string()),
        ]
        .into()
    })
}

/// The families about this program: `started` is seconds since 1970.
pub fn process_families(build: &Build, started: f64, facts: &ProcessFacts) -> Vec<Family> {
    let mut info = Family::new(BUILD_INFO);
    let labels = [("version", build.version), ("revision", build.revision), ("rustc", build.rustc)];
    info.push(Labels::from(labels.map(|(name, text)| (name, text.to_owned()))), 1.0);
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
            samples(&upstream_families(&[visit])),
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
        let recognised = Recognised {
            engine_kind: Some("vllm"),
            dialects: vec!["vllm", "vllm_offload"],
            version_range: Some("0.26-0.27".to_owned()),
            via: Via::Direct,
        };
        let age = Duration::from_millis(500);
        let page = PageFacts { age, bytes: 40, counts: &counts, merged_out: None, recognised: &recognised, notes: &[] };
        let visit = Visit { upstream: "main", took: Duration::from_secs(1), result: Ok(page) };
        assert_eq!(
            samples(&upstream_families(&[visit])),
            [
                "kvtier_upstream_up{upstream=\"main\"} 1",
                "kvtier_upstream_scrape_duration_seconds{upstream=\"main\"} 1",
                "kvtier_upstream_age_seconds{upstream=\"main\"} 0.5",
                "kvtier_upstream_body_bytes{upstream=\"main\"} 40",
                "kvtier_upstream_samples{upstream=\"main\"} 3",
                "kvtier_upstream_opaque_lines{upstream=\"main\"} 2",
                "kvtier_upstream_dropped_lines{upstream=\"main\"} 1",
                "kvtier_upstream_info{upstream=\"main\",engine_kind=\"vllm\",dialects=\"vllm,vllm_offload\",version_range=\"0.26-0.27\",via=\"direct\"} 1",
            ]
        );
    }

    #[test]
    fn every_upstream_has_its_own_samples_in_one_family() {
        let (counts, recognised) = (Counts::default(), Recognised::default());
        let page = PageFacts {
            age: Duration::ZERO,
            bytes: 7,
            counts: &counts,
            merged_out: Some(4),
            recognised: &recognised,
            notes: &[],
        };
        let down = Visit { upstream: "main", took: Duration::ZERO, result: Err("reset") };
        let up = Visit { upstream: "lmcache", took: Duration::ZERO, result: Ok(page) };
        let text = encode(&upstream_families(&[down, up]));
        assert_eq!(text.matches("# TYPE kvtier_upstream_up gauge").count(), 1);
        assert!(text.contains("kvtier_upstream_up{upstream=\"main\"} 0\nkvtier_upstream_up{upstream=\"lmcache\"} 1\n"));
        assert!(text.contains("kvtier_upstream_merged_out_families{upstream=\"lmcache\"} 4\n"));
        assert!(!text.contains("kvtier_upstream_merged_out_families{upstream=\"main\""));
    }

    fn info_of(upstream: &str, recognised: &Recognised) -> Vec<String> {
        let counts = Counts::default();
        let page =
            PageFacts { age: Duration::ZERO, bytes: 0, counts: &counts, merged_out: None, recognised, notes: &[] };
        let visit = Visit { upstream, took: Duration::ZERO, result: Ok(page) };
        samples(&upstream_families(&[visit])).into_iter().filter(|line| line.contains("_info")).collect()
    }

    #[test]
    fn a_page_of_no_known_engine_says_so_and_a_further_one_only_where_it_has_names_of_an_engine() {
        let (nothing, prefixed) = (Recognised::default(), Recognised { via: Via::Prefixed, ..Recognised::default() });
        assert_eq!(
            info_of("main", &nothing),
            ["kvtier_upstream_info{upstream=\"main\",engine_kind=\"unknown\",via=\"direct\"} 1"]
        );
        assert_eq!(info_of("nodes", &nothing), [""; 0]);
        assert_eq!(
            info_of("ray", &prefixed),
            ["kvtier_upstream_info{upstream=\"ray\",engine_kind=\"unknown\",via=\"prefixed\"} 1"]
        );
    }

    #[test]
    fn unknown_process_facts_are_absent() {
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
