//! The status page in a real browser: headless Chromium opens it, lets its clock run, and hands back the document
//! that it has made of it, a picture of it, and a log of what it fetched.
//!
//! The browser's time is virtual: it runs as fast as nothing is being waited for, so refreshing every few seconds
//! costs no seconds. Without a browser these tests fail; `tests/run` leaves them out then, and says so. Pictures are
//! kept in `tests/artefacts/`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]
#![allow(missing_docs, unreachable_pub, dead_code, reason = "no test crate uses or exports all of it")]

#[path = "support/browser.rs"]
mod browser;
#[path = "support/nvml.rs"]
mod nvml;
#[path = "support/program/mod.rs"]
mod program;
#[path = "support/publisher.rs"]
mod publisher;
#[path = "support/stream.rs"]
mod stream;

/// The name that `tests/run` leaves these tests out by.
mod in_chromium {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use crate::browser::visit;
    use crate::nvml::Stub;
    use crate::program::client::get;
    use crate::program::exporter::{Exporter, command};
    use crate::program::until;
    use crate::program::upstream::{Step, Upstream, ok, response};
    use crate::publisher::{Publisher, Replay};
    use crate::stream::{messages, page as page_of};

    /// One engine with a full RAM tier, `used` of its GPU pool in use.
    fn page(model: &str, used: &str) -> String {
        let labels = format!("{{engine=\"0\",model_name=\"{}\"", model.replace('"', "\\\""));
        [
            format!("vllm:kv_cache_usage_perc{labels}}} {used}\n"),
            format!("vllm:prompt_tokens_total{labels}}} 1000\n"),
            format!("vllm:prompt_tokens_by_source_total{labels},source=\"local_compute\"}} 120\n"),
            format!("vllm:prompt_tokens_by_source_total{labels},source=\"local_cache_hit\"}} 880\n"),
            format!("vllm:kv_offload_cpu_cache_usage_perc{labels}}} 0.0\n"),
            format!("vllm:kv_offload_store_bytes_total{labels}}} 98400000000\n"),
            format!("vllm:kv_offload_store_time_total{labels}}} 7.5\n"),
        ]
        .concat()
    }

    fn in_front_of(upstream: &Upstream) -> Exporter {
        Exporter::start(&upstream.url(), &["--tier.size=32GiB"])
    }

    #[test]
    fn the_demo_is_shown_with_both_pools_and_its_measured_tiers() {
        let root = tempfile::tempdir().unwrap();
        let card = "driver 580.95.05\ncount 1\ngpu0.uuid GPU-aaaa\ngpu0.name NVIDIA GeForce RTX 5090\n\
                    gpu0.memory 34190917632 32505856000 706740224 978321408\n";
        let stub = Stub::build(root.path(), &[], card);
        let library = format!("--nvml.library={}", stub.library().display());
        let flags = ["--collector.gpu", &library, "--web.listen-address=127.0.0.1:0", "demo"];
        let exporter = Exporter::spawn(&mut command(&flags));
        until("the demo shows a tier and the card", || {
            let status = exporter.get("/api/status").body;
            status.matches("\"measured\"").count() >= 2 && status.contains("RTX 5090")
        });
        let seen = visit(&format!("http://{}/", exporter.address), "demo");
        assert_eq!(seen.dom.matches("<article").count(), 2, "an article an engine");
        // The demo's pool of 235,248 tokens and its tier of 32 GiB and 950,272 tokens.
        for text in ["demo/simulated-27b", "engine 0", "engine 1", "235,248 tokens", "of 32.0 GiB", "950,272 tokens"] {
            assert!(seen.text.contains(text), "{text}: {}", seen.text);
        }
        // 706740224 ÷ 2^20
        assert!(seen.text.contains("674 MiB of 31.8 GiB"), "{}", seen.text);
        assert!(seen.text.contains("vllm:kv_offload_cpu_cache_usage_perc"));
        assert!(seen.dom.contains("<title>up · kvtier</title>"));
        // The demo publishes its events, so its tiers are measured and nothing is a bound.
        let measured = seen.text.matches("full measured").count();
        assert_eq!((measured, seen.text.matches('≤').count()), (2, 0), "two bars and two corrections");
        assert!(seen.dom.matches("<path class=\"stroke\"").count() >= 4, "charts of two samples and more");
        // Each bar is told in words too.
        for meter in seen.dom.split("role=\"meter\"").skip(1).map(|rest| rest.split_once('>').unwrap().0) {
            assert!(meter.contains("aria-label=\"") && meter.contains("aria-valuetext=\""), "{meter}");
        }
    }

    #[test]
    fn what_another_size_would_bring_is_shown_with_the_present_size_marked() {
        // A real engine's events and pages: 512 chunks of 16384 bytes, and what it reloaded at other sizes is known.
        let (mut publisher, all) = (Publisher::bind(0, Replay::New), messages("r08/stream.bin.gz"));
        let (before, after) = (page_of("r08/before.prom.gz"), page_of("r08/after.prom.gz"));
        let over = Arc::new(AtomicBool::new(false));
        let moved = Arc::clone(&over);
        let upstream = Upstream::start(move |_| vec![ok(if moved.load(Relaxed) { &after } else { &before })]);
        let exporter = Exporter::start(&upstream.url(), &["--tier.size=8MiB", "--events", &publisher.address()]);
        let last_seq = |seq: u32| {
            until("batches are taken in", || {
                exporter.get("/api/status").body.contains(&format!("\"last_seq\":{seq},"))
            });
        };
        publisher.subscribed(1);
        publisher.publish(&all[..1]);
        last_seq(0);
        publisher.publish(&all[1..]);
        last_seq(1238);
        over.store(true, Relaxed);
        let seen = visit(&format!("http://{}/", exporter.address), "sizes");
        // 831, 2225, 3682 and 4804 chunks of 32 tokens at half, one, two and four times, of 224,863 tokens asked.
        for (name, chunks) in [("½ ×", 831.0), ("1 ×, the present size", 2225.0), ("2 ×", 3682.0), ("4 ×", 4804.0)]
        {
            let bar = format!("aria-label=\"A tier of {name}\"");
            let bar = seen.dom.split_once(&bar).unwrap_or_else(|| panic!("no {bar}")).1;
            let share: f64 = bar.split_once("aria-valuenow=\"").unwrap().1.split_once('"').unwrap().0.parse().unwrap();
            assert!((share - chunks * 3200.0 / 224_863.0).abs() < 1.0, "{name}: {share}");
        }
        assert_eq!(seen.dom.matches("class=\"present\"").count(), 1);
        // 2583 of 4533 chunks were stored again, as another program counted.
        for text in
            ["Evicted, then wanted again 57% of the chunks stored", "Age at eviction ", "One step up is worth +"]
        {
            assert!(seen.text.contains(text), "{text}: {}", seen.text);
        }
    }

    #[test]
    fn events_that_do_not_come_are_told() {
        let upstream = Upstream::start(|_| vec![ok(page("m", "0.5"))]);
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let exporter = Exporter::start(&upstream.url(), &["--events", &format!("tcp://{nobody}")]);
        let seen = visit(&format!("http://{}/", exporter.address), "no-events");
        assert!(seen.text.contains(&format!("No events from tcp://{nobody}")), "{}", seen.text);
        assert!(!seen.text.contains("What would another size bring?") && !seen.text.contains("null"), "{}", seen.text);
    }

    #[test]
    fn it_refreshes_by_itself() {
        let upstream =
            Upstream::start(|request| vec![ok(page("m", if request.number == 1 { "0.11" } else { "0.22" }))]);
        let exporter = in_front_of(&upstream);
        let seen = visit(&format!("http://{}/", exporter.address), "refresh");
        assert!(seen.text.contains("22% in use") && !seen.text.contains("11% in use"), "{}", seen.text);
        // A bar and a correction that rest on stored bytes alone are called bounds.
        assert_eq!((seen.text.matches("full upper bound").count(), seen.text.matches('≤').count()), (1, 2));
        assert!(upstream.requests().len() >= 3, "16 seconds, one look every 5");
        // 98.4 ÷ 7.5 GB/s while copying; nothing has moved since.
        assert!(seen.text.contains("13.1 GB/s copy speed of one rank"), "{}", seen.text);
        assert!(seen.text.contains("12% computed by prefill since engine start"), "{}", seen.text);
    }

    /// 30 tokens computed and 10 from the cache, and 100 bytes stored, between the first look and the second; then nothing.
    #[test]
    fn shares_stand_below_their_own_bar_and_a_rate_has_the_unit_of_its_chart() {
        let moved = page("m", "0.5")
            .replace("source=\"local_compute\"} 120", "source=\"local_compute\"} 150")
            .replace("source=\"local_cache_hit\"} 880", "source=\"local_cache_hit\"} 890")
            .replace("98400000000", "98400000100");
        let upstream = Upstream::start(move |request| {
            vec![ok(if request.number == 1 { page("m", "0.5") } else { moved.clone() })]
        });
        let exporter = in_front_of(&upstream);
        let seen = visit(&format!("http://{}/", exporter.address), "shares");
        let (_, sources) = seen.text.split_once("Where prompt tokens came from").unwrap();
        let (recent, since) = sources.split_once("Since engine start").unwrap();
        assert!(recent.trim().ends_with("40 tokens computed by prefill 75% GPU cache 25%"), "{recent}");
        // 150 and 890 of 1,040.
        assert!(since.trim().starts_with("1,040 tokens computed by prefill 14% GPU cache 86%"), "{since}");
        // 100 bytes in some hundredths of a second or more are kB/s, and so is the 0 that follows on the same scale.
        let (_, copies) = seen.text.split_once("Store, GPU → tier").unwrap();
        assert!(copies.trim().starts_with("0 kB/s"), "{copies}");
        assert!(!seen.text.contains("0 GB/s"), "{}", seen.text);
    }

    #[test]
    fn an_upstream_that_went_down_is_told_with_its_reason_and_the_last_values_are_called_so() {
        let upstream = Upstream::start(|request| match request.number {
            1 => vec![ok(page("m", "0.5"))],
            _ => vec![response("503 Service Unavailable", &[], "<script>document.title='owned'</script>")],
        });
        let exporter = in_front_of(&upstream);
        let seen = visit(&format!("http://{}/", exporter.address), "down");
        for text in [
            "The engine’s metrics cannot be read (status)",
            "The upstream answered with status 503.",
            "<script>document.title='owned'</script>",
            "Last values, from ",
            "50% in use",
        ] {
            assert!(seen.text.contains(text), "{text}: {}", seen.text);
        }
        assert!(seen.dom.contains("<title>down · kvtier</title>") && seen.dom.contains("engine old"));
    }

    #[test]
    fn nobody_at_the_upstreams_address_is_told_too() {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let exporter = Exporter::start(&format!("http://{nobody}/metrics"), &[]);
        let seen = visit(&format!("http://{}/", exporter.address), "nobody");
        assert!(seen.text.contains("(connect) The upstream cannot be reached: connection refused"), "{}", seen.text);
        assert!(!seen.dom.contains("<article"));
    }

    #[test]
    fn an_exporter_that_ends_is_missed() {
        let upstream = Upstream::start(|request| match request.number {
            1 => vec![ok(page("m", "0.5"))],
            _ => vec![Step::Hang],
        });
        let exporter = in_front_of(&upstream);
        let address = exporter.address;
        let seen = std::thread::scope(|scope| {
            let visited = scope.spawn(|| visit(&format!("http://{address}/"), "gone"));
            until("the page asks again", || upstream.requests().len() == 2);
            drop(exporter);
            visited.join().unwrap()
        });
        assert!(seen.text.contains("This exporter does not answer"), "{}", seen.text);
        assert!(seen.text.contains("What is shown is from ") && seen.text.contains("50% in use"), "{}", seen.text);
        assert!(seen.dom.contains("<title>no answer · kvtier</title>"));
    }

    #[test]
    fn what_an_engine_wrote_stays_text() {
        const NAME: &str = r#"<script>document.title="owned"</script><img src=x onerror="document.title='owned'">"#;
        let upstream = Upstream::start(|_| vec![ok(page(NAME, "0.5"))]);
        let exporter = in_front_of(&upstream);
        let seen = visit(&format!("http://{}/", exporter.address), "hostile");
        assert!(seen.text.contains(NAME), "{}", seen.text);
        assert!(!seen.dom.contains("<img") && seen.dom.matches("<script>").count() == 1, "{}", seen.dom);
        assert!(seen.dom.contains("<title>up · kvtier</title>"));
        assert_eq!(seen.foreign(exporter.address), Vec::<String>::new());
    }

    #[test]
    fn what_is_told_of_an_extra_names_it() {
        const RENAMED: &str = "my_vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\nbroken{ 1\n";
        let main = Upstream::start(|_| vec![ok(format!("{}broken{{ 1\n", page("m", "0.5")))]);
        let extra = Upstream::start(|_| vec![ok(RENAMED)]);
        let flag = format!("--upstream.extra=r={}", extra.url());
        let exporter = Exporter::start(&main.url(), &["--tier.size=32GiB", &flag]);
        let seen = visit(&format!("http://{}/", exporter.address), "extra");
        for said in [
            "1 line of the engine’s page left out",
            "1 line of upstream r’s page left out",
            "Upstream main: Lines of the page were left out",
            "Upstream r: Lines of the page were left out",
            "Upstream r: The upstream serves metrics, and no engine known here",
        ] {
            assert!(seen.text.contains(said), "{said}: {}", seen.text);
        }
    }

    #[test]
    fn a_tier_of_unknown_size_says_what_to_do() {
        let upstream = Upstream::start(|_| vec![ok(page("m", "0.5"))]);
        let exporter = Exporter::start(&upstream.url(), &[]);
        let seen = visit(&format!("http://{}/", exporter.address), "unknown-size");
        let say =
            ["Fill unknown: the size is not known: give it with --tier.size", "Not corrected: the size is not known"];
        assert!(say.iter().all(|text| seen.text.contains(text)), "{}", seen.text);
        assert!(!seen.text.contains('≤') && !seen.text.contains("NaN") && !seen.text.contains("null"), "{}", seen.text);
    }

    #[test]
    fn engines_without_a_tier_and_pages_without_an_engine_say_what_to_do() {
        const LONE: &str = "vllm:kv_cache_usage_perc{engine=\"1\",model_name=\"m\"} 0.25\n";
        for (page, name, said) in [
            (LONE, "no-tier", "Offload tier none seen The page shows no tier for this engine."),
            ("node_load1 1\n", "no-engine", "No engine recognised Of the 1 samples on the page"),
        ] {
            let upstream = Upstream::start(move |_| vec![ok(page)]);
            let exporter = Exporter::start(&upstream.url(), &[]);
            let seen = visit(&format!("http://{}/", exporter.address), name);
            assert!(seen.text.contains(said), "{}", seen.text);
        }
    }

    /// A page that does what ours must not, to see that the log would show it.
    #[test]
    fn the_log_of_requests_shows_a_page_that_looks_elsewhere() {
        let upstream = Upstream::start(|_| {
            let html = "<title>x</title><img src=\"http://elsewhere.test/pixel\">";
            vec![response("200 OK", &["Content-Type: text/html"], html)]
        });
        let seen = visit(&format!("http://{}/", upstream.address), "control");
        assert_eq!(seen.foreign(upstream.address), ["http://elsewhere.test/pixel"]);
    }

    #[test]
    fn no_request_of_the_page_leaves_its_host_and_a_path_prefix_changes_nothing() {
        let upstream = Upstream::start(|_| vec![ok(page("m", "0.5"))]);
        let exporter = in_front_of(&upstream);
        let address = exporter.address;
        // A proxy that serves the exporter below /kv/ and nothing else.
        let proxy = Upstream::start(move |request| {
            let Some(path) = request.path.strip_prefix("/kv/") else { return vec![response("404 Not Found", &[], "")] };
            let answer = get(address, &format!("/{path}"));
            let headers: Vec<String> = ["content-type", "content-security-policy"]
                .iter()
                .filter_map(|name| Some(format!("{name}: {}", answer.header(name)?)))
                .collect();
            vec![response("200 OK", &headers.iter().map(String::as_str).collect::<Vec<_>>(), &answer.body)]
        });
        let seen = visit(&format!("http://{}/kv/", proxy.address), "prefix");
        assert!(seen.text.contains("≤ 100% full upper bound"), "{}", seen.text);
        assert_eq!(seen.foreign(proxy.address), Vec::<String>::new());
        let mut paths: Vec<String> = proxy.requests().into_iter().map(|request| request.path).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths, ["/kv/", "/kv/api/status"]);
        for link in ["./metrics", "./debug", "./api/status"] {
            assert!(seen.dom.contains(&format!("href=\"{link}\"")), "{link}");
        }
    }
}
