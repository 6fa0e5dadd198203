//! What the exporter has to tell: in the log once, and in metric, `/debug` and `/api/status` as long as it lasts.

use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Upstream, ok};

const ACTIVE: &str = "kvtier_notice_active{id=\"upstream-unknown-engine\",upstream=\"main\"} 1";

fn notices(exporter: &Exporter) -> Vec<String> {
    exporter.log().into_iter().filter(|line| line.contains(" notice=")).collect()
}

#[test]
fn a_page_of_no_known_engine_is_told_of_everywhere_and_in_the_log_once() {
    let upstream = Upstream::start(|_| vec![ok("ray_vllm_num_requests_running{ReplicaId=\"x\"} 4\n")]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for _ in 0..100 {
        let page = exporter.metrics().body;
        assert!(page.contains(ACTIVE), "{page}");
        let info = "kvtier_upstream_info{upstream=\"main\",engine_kind=\"unknown\",via=\"prefixed\"} 1\n";
        assert!(page.contains(info), "{page}");
    }
    until("it is told", || !notices(&exporter).is_empty());
    let log = notices(&exporter);
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].contains("level=warn") && log[0].contains("ray_vllm_ in front") && log[0].contains("--upstream"));
    let debug = exporter.get("/debug").body;
    assert!(debug.contains("notice upstream-unknown-engine of upstream main\n  seen     the page has names of vLLM"));
    let status: serde_json::Value = serde_json::from_str(&exporter.get("/api/status").body).unwrap();
    let told = &status["notices"][0];
    assert_eq!((&told["id"], &told["upstream"]), (&"upstream-unknown-engine".into(), &"main".into()));
    assert!(told["do"].as_str().unwrap().contains("--upstream"));
    assert_eq!(status["upstreams"][0]["engine_kind"], serde_json::Value::Null);
}

#[test]
fn a_page_that_gives_much_to_tell_does_not_fill_the_log() {
    // Engines whose gauge stays uncorrected, each named: fifty are told one by one, and of those eighteen have room beside the two lines
    // of what is left out.
    let engines = (0..300).map(|engine| {
        format!(
            "vllm:kv_offload_store_bytes_total{{engine=\"{engine}\",model_name=\"m\"}} 5\n\
             vllm:kv_offload_cpu_cache_usage_perc{{engine=\"{engine}\",model_name=\"m\"}} 0\n"
        )
    });
    let page: String = engines.collect();
    let upstream = Upstream::start(move |_| vec![ok(&page)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for _ in 0..20 {
        exporter.metrics();
    }
    let left_out = |line: &String| line.contains("more to tell than is logged");
    until("it is told", || exporter.log().iter().any(left_out));
    assert_eq!((notices(&exporter).len(), exporter.log().iter().filter(|line| left_out(line)).count()), (18, 1));
    let named = |line: &String| line.contains(r#"of engine \"0\" of model \"m\""#);
    assert!(notices(&exporter).iter().any(named), "{:?}", notices(&exporter));
    let debug = exporter.get("/debug").body;
    assert_eq!(debug.matches("notice gauge-not-corrected of upstream main").count(), 51);
    assert!(debug.contains("(250 more)"));
}

#[test]
fn a_fine_page_gives_nothing_to_tell() {
    let upstream = Upstream::start(|_| vec![ok("vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1\n")]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let page = exporter.metrics().body;
    assert!(!page.contains("kvtier_notice_active"), "{page}");
    assert_eq!(notices(&exporter), [""; 0]);
}
