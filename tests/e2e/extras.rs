//! Extra upstreams: their families behind the main page's, and their failures their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::strict;
use crate::support::client::{get_aside, get_with};
use crate::support::exporter::{Exporter, command, field};
use crate::support::until;
use crate::support::upstream::{Gate, Step, Upstream, ok, response};
use crate::trust::Authority;

/// What vLLM's page and those of other Python servers have in common, and one family of its own.
const MAIN: &str = "\
# HELP python_info Python platform information.
# TYPE python_info gauge
python_info{version=\"3.12\"} 1.0
# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 57.0
# HELP http_requests_total Total number of requests.
# TYPE http_requests_total counter
http_requests_total{handler=\"/metrics\"} 9.0
# HELP shared_total Both have it.
# TYPE shared_total counter
shared_total 1.0
# HELP engine_total Ours alone.
# TYPE engine_total counter
engine_total 4.0
";

/// Colliding families, a family in two places, a histogram, and no line end at its end.
const EXTRA: &str = "\
# HELP process_open_fds Number of open file descriptors.
# TYPE process_open_fds gauge
process_open_fds 12.0
# HELP python_gc_objects_collected_total Objects collected.
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total 3.0
# HELP http_requests_total Total number of requests.
# TYPE http_requests_total counter
http_requests_total{handler=\"/metrics\"} 2.0
# HELP shared_total Both have it.
# TYPE shared_total counter
shared_total 100.0
# HELP cache_bytes In the cache.
# TYPE cache_bytes gauge
cache_bytes{level=\"1\"} 7.0
# HELP wait_seconds How long.
# TYPE wait_seconds histogram
wait_seconds_bucket{le=\"+Inf\"} 2.0
wait_seconds_count 2.0
wait_seconds_sum 0.5
# HELP cache_bytes In the cache.
# TYPE cache_bytes gauge
cache_bytes{level=\"2\"} 8.0";

/// What must be left of it: four families collide or are everybody's.
const ADDED: &str = "\
# HELP cache_bytes In the cache.
# TYPE cache_bytes gauge
cache_bytes{level=\"1\"} 7.0
cache_bytes{level=\"2\"} 8.0
# HELP wait_seconds How long.
# TYPE wait_seconds histogram
wait_seconds_bucket{le=\"+Inf\"} 2.0
wait_seconds_count 2.0
wait_seconds_sum 0.5
";

fn start(main: &Upstream, extras: &[(&str, &Upstream)], flags: &[&str]) -> Exporter {
    let extras: Vec<String> =
        extras.iter().map(|(name, upstream)| format!("--upstream.extra={name}={}", upstream.url())).collect();
    let flags: Vec<&str> = extras.iter().map(String::as_str).chain(flags.iter().copied()).collect();
    Exporter::start(&main.url(), &flags)
}

fn up(upstream: &str, value: u8) -> String {
    format!("kvtier_upstream_up{{upstream=\"{upstream}\"}} {value}")
}

#[test]
fn two_pages_become_one_that_even_a_strict_reader_takes() {
    let (main, extra) = (Upstream::start(|_| vec![ok(MAIN)]), Upstream::start(|_| vec![ok(EXTRA)]));
    let exporter = start(&main, &[("lmcache", &extra)], &[]);
    let body = exporter.metrics().body;
    assert!(body.starts_with(&format!("{MAIN}{ADDED}# HELP kvtier_")), "{body}");
    let verdict = strict::check(body.as_bytes());
    assert!(verdict.spotless(), "{:?} {:?}", verdict.refusal, verdict.findings);
    for (family, main, extra) in [("samples", 5, 5), ("opaque_lines", 0, 0), ("dropped_lines", 0, 0)] {
        for (upstream, value) in [("main", main), ("lmcache", extra)] {
            let line = format!("kvtier_upstream_{family}{{upstream=\"{upstream}\"}} {value}");
            assert!(body.contains(&line), "{line}: {body}");
        }
    }
    assert!(body.contains("kvtier_upstream_merged_out_families{upstream=\"lmcache\"} 4\n"), "{body}");
    assert!(!body.contains("kvtier_upstream_merged_out_families{upstream=\"main\"}"));
    assert!(body.contains(&up("main", 1)) && body.contains(&up("lmcache", 1)));
}

#[test]
fn two_extras_share_a_family_and_of_one_series_the_first_stays() {
    let page = |value: u8| {
        let page =
            format!("# TYPE cache_bytes gauge\ncache_bytes {value}\ncache_bytes{{worker=\"{value}\"}} {value}\n");
        Upstream::start(move |_| vec![ok(&page)])
    };
    let (main, first, second) = (Upstream::start(|_| vec![ok(MAIN)]), page(1), page(2));
    let body = start(&main, &[("a", &first), ("b", &second)], &[]).metrics().body;
    let joined = "# TYPE cache_bytes gauge\ncache_bytes 1\ncache_bytes{worker=\"1\"} 1\ncache_bytes{worker=\"2\"} 2\n";
    assert!(body.starts_with(&format!("{MAIN}{joined}# HELP kvtier_")), "{body}");
    assert!(strict::check(body.as_bytes()).spotless());
    assert!(body.contains("kvtier_upstream_samples{upstream=\"a\"} 2\n"));
    assert!(body.contains("kvtier_upstream_samples{upstream=\"b\"} 1\n"));
}

#[test]
fn an_extra_that_is_down_costs_nothing_but_its_own_page() {
    let (main, extra) = (Upstream::start(|_| vec![ok(MAIN)]), Upstream::start(|_| vec![Step::Close]));
    let exporter = start(&main, &[("lmcache", &extra)], &["--strict"]);
    for _ in 0..3 {
        let answer = exporter.metrics();
        assert_eq!(answer.status, 200);
        assert!(answer.body.starts_with(&format!("{MAIN}# HELP kvtier_")));
        assert!(answer.has(&up("main", 1)) && answer.has(&up("lmcache", 0)));
        assert!(answer.has("kvtier_upstream_error_info{upstream=\"lmcache\",reason=\"reset\"} 1"));
        assert!(!answer.body.contains("error_info{upstream=\"main\""));
    }
    let down = || exporter.log().into_iter().filter(|line| line.contains(" reason=")).collect::<Vec<_>>();
    until("the log says so", || !down().is_empty());
    assert_eq!((down().len(), field(&down()[0], "upstream")), (1, Some("lmcache")), "{:?}", down());
    let debug = exporter.get("/debug").body;
    let section = debug.split("\n\n").find(|section| section.starts_with("upstream lmcache\n")).unwrap();
    assert!(section.contains(&extra.url()) && section.contains("reason   reset"), "{debug}");
}

#[test]
fn without_the_main_page_the_extras_pass_and_nobodys_process_is_taken_for_the_engines() {
    let (main, extra) = (Upstream::start(|_| vec![Step::Close]), Upstream::start(|_| vec![ok(EXTRA)]));
    let exporter = start(&main, &[("lmcache", &extra)], &[]);
    let answer = exporter.metrics();
    let shared = "# HELP shared_total Both have it.\n# TYPE shared_total counter\nshared_total 100.0\n";
    assert!(answer.body.starts_with(&format!("{shared}{ADDED}# HELP kvtier_")), "{}", answer.body);
    assert!(answer.has(&up("main", 0)) && answer.has(&up("lmcache", 1)));
    assert!(strict::check(answer.body.as_bytes()).spotless());
    let strict = start(&main, &[("lmcache", &extra)], &["--strict"]);
    let answer = strict.metrics();
    assert_eq!((answer.status, answer.body.starts_with(shared)), (502, true));
}

#[test]
fn facts_of_a_cache_server_are_not_placed_while_its_engine_is_unknown() {
    const ENGINE: &str =
        "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine=\"0\",model_name=\"m\"} 1.0\n";
    const CACHE: &str = "# TYPE lmcache_mp_l1_memory_usage_bytes gauge\nlmcache_mp_l1_memory_usage_bytes 1048576.0\n";
    let main = Upstream::start(|request| if request.number == 1 { vec![ok(ENGINE)] } else { vec![Step::Close] });
    let cache = Upstream::start(|_| vec![ok(CACHE)]);
    let exporter = start(&main, &[("lmcache", &cache)], &[]);
    let both = exporter.metrics().body;
    let tier = "kvtier_tier_info{model_name=\"m\",engine=\"0\",tier=\"lmcache_cpu\"";
    assert!(both.contains(tier), "{both}");
    assert!(both.contains("kvtier_upstream_info{upstream=\"main\",engine_kind=\"vllm\""), "{both}");
    assert!(
        both.contains("kvtier_upstream_info{upstream=\"lmcache\",engine_kind=\"lmcache\",dialects=\"lmcache_mp\""),
        "{both}"
    );
    let alone = exporter.metrics().body;
    assert!(alone.contains(CACHE) && !alone.contains("kvtier_tier_"), "{alone}");
}

#[test]
fn both_are_asked_at_once() {
    // Each answers only once both have been asked.
    let (gate, opener) = (Gate::default(), Gate::default());
    let (shut, open) = (gate.clone(), gate);
    let main = Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(MAIN)]);
    let waiting = opener.clone();
    let extra = Upstream::start(move |_| {
        open.open();
        vec![Step::Wait(waiting.clone()), ok(EXTRA)]
    });
    let exporter = start(&main, &[("lmcache", &extra)], &[]);
    let scrape = get_aside(exporter.address, "/metrics", &[]);
    until("both are asked", || (main.requests().len(), extra.requests().len()) == (1, 1));
    opener.open();
    assert!(scrape.join().unwrap().body.starts_with(&format!("{MAIN}{ADDED}")));
}

#[test]
fn one_deadline_bounds_them_together() {
    let slow = || Upstream::start(|_| vec![Step::Hang]);
    let (main, a, b) = (slow(), slow(), slow());
    let exporter = start(&main, &[("a", &a), ("b", &b)], &["--upstream.timeout=1m"]);
    let began = Instant::now();
    let answer = get_with(exporter.address, "/metrics", &["X-Prometheus-Scrape-Timeout-Seconds: 1.5"]);
    let took = began.elapsed();
    for upstream in ["main", "a", "b"] {
        assert!(answer.has(&format!("kvtier_upstream_error_info{{upstream=\"{upstream}\",reason=\"timeout\"}} 1")));
    }
    // One after the other would be three seconds.
    assert!(took >= Duration::from_secs(1) && took < Duration::from_millis(2500), "{took:?}");
}

#[test]
fn an_extra_that_hangs_does_not_keep_the_main_page_back_beyond_the_deadline() {
    let (main, extra) = (Upstream::start(|_| vec![ok(MAIN)]), Upstream::start(|_| vec![Step::Hang]));
    let exporter = start(&main, &[("lmcache", &extra)], &["--upstream.timeout=300ms"]);
    let answer = exporter.metrics();
    assert!(answer.body.starts_with(MAIN));
    assert!(answer.has("kvtier_upstream_error_info{upstream=\"lmcache\",reason=\"timeout\"} 1"));
}

#[test]
fn many_scrapes_at_once_are_one_fetch_of_each() {
    let gate = Gate::default();
    let shut = gate.clone();
    let main = Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(MAIN)]);
    let extra = Upstream::start(|_| vec![ok(EXTRA)]);
    let exporter = start(&main, &[("lmcache", &extra)], &[]);
    let scrapes: Vec<_> = (0..20).map(|_| get_aside(exporter.address, "/metrics", &[])).collect();
    until("main is asked", || main.requests().len() == 1);
    gate.open();
    for scrape in scrapes {
        assert!(scrape.join().unwrap().body.starts_with(&format!("{MAIN}{ADDED}")));
    }
    assert_eq!(main.connections(), 1);
}

#[test]
fn extras_get_none_of_the_main_upstreams_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "s3cret").unwrap();
    let (main, extra) = (Upstream::start(|_| vec![ok(MAIN)]), Upstream::start(|_| vec![ok(EXTRA)]));
    let exporter = start(&main, &[("a", &extra)], &["--upstream.bearer-token-file", file.to_str().unwrap()]);
    exporter.metrics();
    assert!(main.requests()[0].head.contains("authorization: Bearer s3cret\r\n"));
    let head = extra.requests()[0].head.to_ascii_lowercase();
    assert!(!head.contains("authorization") && !head.contains("s3cret"), "{head}");
}

#[test]
fn extras_come_from_the_environment_too() {
    let (main, extra) = (Upstream::start(|_| vec![ok(MAIN)]), Upstream::start(|_| vec![ok("x 1\n")]));
    let mut exporter = command(&["--web.listen-address=127.0.0.1:0"]);
    exporter.env("KVTIER_UPSTREAM", main.url());
    exporter.env("KVTIER_UPSTREAM_EXTRA", format!("a={},b={}", extra.url(), extra.url()));
    let exporter = Exporter::spawn(&mut exporter);
    let answer = exporter.metrics();
    assert!(answer.has("x 1") && answer.has(&up("a", 1)) && answer.has(&up("b", 1)), "{}", answer.body);
}

#[test]
fn an_extra_that_hangs_lets_nobody_gather_pages_of_the_others() {
    const CLIENTS: usize = 30;
    let page = format!("x_total{{k=\"{}\"}} 1\n", "y".repeat(1000)).repeat(1000);
    let hanging = Arc::<AtomicBool>::default();
    let hangs = Arc::clone(&hanging);
    let main = Upstream::start({
        let page = page.clone();
        move |_| vec![ok(&page)]
    });
    let extra =
        Upstream::start(move |_| if hangs.load(Ordering::SeqCst) { vec![Step::Hang] } else { vec![ok("y_total 1\n")] });
    let exporter = start(&main, &[("slow", &extra)], &["--upstream.timeout=4s", "--upstream.max-bytes=2MiB"]);
    exporter.metrics();
    let (asked, before) = (main.requests().len(), exporter.peak());
    hanging.store(true, Ordering::SeqCst);
    // Each comes when the main page is there for those before it.
    let scrapes: Vec<_> = (0..CLIENTS)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(50));
            get_aside(exporter.address, "/metrics", &[])
        })
        .collect();
    for scrape in scrapes {
        let answer = scrape.join().unwrap();
        assert!(answer.body.starts_with(&page) && answer.has(&up("main", 1)) && answer.has(&up("slow", 0)));
    }
    // Two pages of 1 MB fit, and with a third they are held.
    let fetched = main.requests().len() - asked;
    assert!(fetched <= 4, "{fetched} pages");
    assert!(exporter.peak() - before < 16 << 20, "{} bytes", exporter.peak() - before);
}

/// What log, `/debug` and `/api/status` tell an operator to do about an extra is what can be done about an extra.
#[test]
fn a_failing_extra_is_told_with_remedies_of_an_extra() {
    let (main, authority) = (Upstream::start(|_| vec![ok(MAIN)]), Authority::new());
    let answers = |status: &'static str| Upstream::start(move |_| vec![response(status, &[], "")]);
    let tls = |name: &str| Upstream::start_tls(authority.server(name), |_| vec![ok(EXTRA)]);
    let (closed, forbidden, absent, blank) =
        (answers("401 Unauthorized"), answers("403 Forbidden"), answers("404 Not Found"), answers("200 OK"));
    let (misnamed, secret) = (tls("gpu-9.internal"), tls("127.0.0.1"));
    let picky = authority.server_for("127.0.0.1", Some(&authority));
    let picky = Upstream::start_tls(picky, |_| vec![ok(EXTRA)]);
    let extras = [
        ("closed", closed.url(), "Extras are sent no credentials"),
        ("forbidden", forbidden.url(), "Extras are sent no credentials"),
        ("absent", absent.url(), "Give the address of its metrics after --upstream.extra"),
        ("blank", blank.url(), "Give the address of its metrics after --upstream.extra"),
        ("misnamed", format!("https://{}", misnamed.address), "--upstream.server-name is the main upstream's alone"),
        ("secret", secret.url(), "Write https:// in place of http:// after --upstream.extra"),
        ("picky", format!("https://{}", picky.address), "Extras are shown no client certificate"),
    ];
    let given: Vec<String> = extras.iter().map(|(name, url, _)| format!("--upstream.extra={name}={url}")).collect();
    let ca = format!("--upstream.ca-file={}", authority.file().display());
    let flags: Vec<&str> = given.iter().chain([&ca]).map(String::as_str).collect();
    let exporter = Exporter::start(&main.url(), &flags);
    exporter.metrics();
    let (debug, status, log) = (exporter.get("/debug").body, exporter.get("/api/status").body, exporter.log());
    let lines = |from: &[&str], with: &str| -> String {
        from.iter().filter(|line| line.contains(with)).map(|line| line.to_string() + "\n").collect()
    };
    let debug = lines(&debug.lines().collect::<Vec<_>>(), "  meaning  the upstream");
    let log = lines(&log.iter().map(String::as_str).collect::<Vec<_>>(), "msg=\"the upstream");
    // What comes after the upstreams tells of the main page.
    let status = status.split("\"notices\"").next().unwrap().to_owned();
    for text in [debug, log, status] {
        for (name, _, remedy) in &extras {
            assert!(text.contains(remedy), "{name}: {text}");
        }
        for of_main in ["bearer-token-file", "cert-file", "--enable-metrics", "the engine"] {
            assert!(!text.contains(of_main), "{of_main}: {text}");
        }
    }
}
