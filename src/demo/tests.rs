//! The laws of the simulated deployment, read off its page as a stranger would read it.

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use read::Read;

mod read;

const DATES: Dates = Dates { epoch: 1_796_000_000.0, speed: 1.0 };
const GIB32: u64 = 34_359_738_368;
const OFFLOAD: &str = "vllm:kv_offload_";
const TIERING: &str = "vllm:kv_offload_tiering_";

fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

fn state_after(time: Duration) -> State {
    let mut state = State::new(Setup::default());
    state.advance(time);
    state
}

fn read(state: &State) -> Read {
    Read::new(&page::page(state, DATES))
}

#[test]
fn each_prompt_token_has_one_source() {
    let mut state = State::new(Setup::default());
    for _ in 0..60 {
        state.advance(minutes(1));
        let page = read(&state);
        for engine in ["0", "1"] {
            let get = |name| page.get(name, engine);
            let cached = |source| page.labelled("prompt_tokens_cached_by_source_total", engine, source);
            let by = |source| page.labelled("prompt_tokens_by_source_total", engine, source);
            assert_eq!(get("prompt_tokens_by_source_total"), get("prompt_tokens_total"));
            assert_eq!(
                by("local_cache_hit") + by("external_kv_transfer"),
                get("prompt_tokens_cached_total"),
                "what is not computed is cached"
            );
            assert_eq!(cached("device"), get("prefix_cache_hits_total"));
            assert_eq!(cached("host") + cached("disk"), get("external_prefix_cache_hits_total"));
            assert_eq!(
                get("prefix_cache_queries_total") - get("prefix_cache_hits_total"),
                get("external_prefix_cache_queries_total"),
                "the connector is asked for what the GPU pool lacks"
            );
            assert!(get("prompt_tokens_total") <= get("prefix_cache_queries_total"), "admitted before answered");
            let steps = get("iteration_tokens_total_sum");
            let work = by("local_compute") + get("generation_tokens_total");
            assert!((steps - work).abs() < 1e-6 * work, "{steps} tokens in steps, {work} computed and generated");
        }
    }
}

#[test]
fn bytes_are_tokens_times_bytes_per_token() {
    let per_token = 16.0 * 1024.0 * 1024.0 / 464.0;
    let mut state = State::new(Setup::default());
    let mut settled = 0;
    for _ in 0..200 {
        state.advance(Duration::from_secs(3));
        let page = read(&state);
        for engine in ["0", "1"] {
            let get = |name: &str| page.get(name, engine);
            for (new, old) in [("load", "CPU_to_GPU"), ("store", "GPU_to_CPU")] {
                let bytes = get(&format!("kv_offload_{new}_bytes_total"));
                let seconds = get(&format!("kv_offload_{new}_time_total"));
                assert_eq!(bytes % 16_777_216.0, 0.0);
                assert_eq!(bytes, get(&format!("kv_offload_{new}_size_sum")));
                assert_eq!(bytes, page.labelled("kv_offload_total_bytes_total", engine, old));
                assert_eq!(seconds, page.labelled("kv_offload_total_time_total", engine, old));
            }
            let hits = get("external_prefix_cache_hits_total") * per_token;
            let loaded = get("kv_offload_load_bytes_total");
            let loading = page.labelled("num_requests_kv_fetch_by_stage", engine, "in_progress");
            if get("num_preemptions_total") == 0.0 && loading == 0.0 {
                assert!((hits - loaded).abs() < 1.0, "{hits} bytes hit, {loaded} loaded");
                settled += usize::from(loaded > 0.0);
            }
        }
    }
    assert!(settled > 30, "the equation was tried {settled} times only");
}

#[test]
fn occupancy_is_what_was_stored_and_promoted_up_to_the_size() {
    let mut state = State::new(Setup::default());
    let (mut exact_slots, mut in_flight) = (0, 0);
    for moment in 0..900 {
        state.advance(Duration::from_secs(if moment < 600 { 1 } else { 10 }));
        let page = read(&state);
        for truth in state.truth() {
            let get = |name| page.get(name, truth.engine);
            let stored = get("kv_offload_store_bytes_total");
            let promoted = get("kv_offload_tiering_read_bytes_total");
            let storing = get("kv_offload_cpu_cache_write_usage_perc") * GIB32 as f64;
            let bound = (stored + promoted + storing).min(GIB32 as f64) as u64;
            assert!(truth.occupied_bytes <= bound, "{truth:?} above its bound {bound}");
            if get("kv_offload_tiering_promotion_job_failures_total") == 0.0 {
                assert_eq!(truth.occupied_bytes, bound, "nothing but a failed promotion frees a slot");
                let came = truth.stored_bytes + truth.promoted_bytes + storing as u64;
                assert_eq!(came - truth.evicted_bytes, truth.occupied_bytes, "what came and did not go is there");
            }
            if truth.stores_refused == 0 && get("kv_offload_tiering_promotion_job_failures_total") == 0.0 {
                let slots = get("kv_offload_cpu_allocation_size_sum") as u64;
                assert_eq!(slots.min(2048) * 16_777_216, truth.occupied_bytes);
                exact_slots += 1;
            }
            in_flight += usize::from(storing > 0.0);
            let pinned = get("kv_offload_cpu_cache_usage_perc") * GIB32 as f64;
            assert_eq!(pinned as u64, truth.pinned_bytes);
        }
    }
    assert!(exact_slots > 1000 && in_flight > 50, "{exact_slots} {in_flight}");
}

#[test]
fn counters_only_rise() {
    let mut state = State::new(Setup::default());
    let mut before = read(&state);
    for _ in 0..60 {
        state.advance(minutes(1));
        let now = read(&state);
        for (series, old) in &before.samples {
            let name = series.split('{').next().expect("name");
            let is_gauge = now.kinds.get(name).is_some_and(|kind| kind == "gauge");
            let new = now.samples.get(series).unwrap_or_else(|| panic!("{series} is gone"));
            assert!(is_gauge || new >= old, "{series} fell from {old} to {new}");
        }
        before = now;
    }
}

#[test]
fn it_looks_like_the_measured_node() {
    let mut state = state_after(minutes(20));
    let early = read(&state);
    let mut idle = 0;
    for _ in 0..240 {
        state.advance(Duration::from_secs(10));
        let pinned = read(&state).get("kv_offload_cpu_cache_usage_perc", "0");
        idle += usize::from(pinned < 0.01);
    }
    let late = read(&state);
    assert!(idle > 200, "the usage gauge is near 0 most of the time: {idle} of 240");
    for engine in ["0", "1"] {
        let get = |name| late.get(name, engine);
        let since = |name, label| late.labelled(name, engine, label) - early.labelled(name, engine, label);
        let computed = since("prompt_tokens_by_source_total", "local_compute") / since("prompt_tokens_total", "");
        assert!((0.08..0.16).contains(&computed), "engine {engine} computed {computed}");
        let reload = get("kv_offload_load_bytes_total") / get("kv_offload_load_time_total");
        let store = get("kv_offload_store_bytes_total") / get("kv_offload_store_time_total");
        assert!((13.2e9..13.6e9).contains(&reload) && (12.9e9..13.3e9).contains(&store), "{reload} {store}");
        // histogram_quantile(0.5): between the bounds 0.01 and 0.025 s it is a straight line.
        let below = |bound| since("inter_token_latency_seconds_bucket", bound);
        let (low, high) = (below("le=\"0.01\""), below("le=\"0.025\""));
        let middle = since("inter_token_latency_seconds_count", "") / 2.0;
        let p50 = 0.01 + 0.015 * (middle - low) / (high - low);
        assert!(middle <= high && (44.0..54.0).contains(&(1.0 / p50)), "engine {engine} decodes {} tok/s", 1.0 / p50);
        for name in ["num_preemptions_total", "kv_offload_allocation_failure_total"] {
            assert!(get(name) > 0.0, "engine {engine}: {name}");
        }
    }
    for name in ["read_bytes", "write_bytes", "cascade_job_failures", "chunk_hits"] {
        assert!(late.get(&format!("kv_offload_tiering_{name}_total"), "0") > 0.0, "{name}");
    }
    assert!(late.labelled("prompt_tokens_cached_by_source_total", "0", "disk") > 0.0);
    assert_eq!(late.labelled("prompt_tokens_cached_by_source_total", "1", "disk"), 0.0);
}

#[test]
fn both_tiers_are_full_within_ten_minutes_and_stay_full() {
    let mut state = state_after(minutes(10));
    for _ in 0..50 {
        for truth in state.truth() {
            assert_eq!((truth.occupied_bytes, truth.size_bytes), (GIB32, GIB32), "{truth:?}");
        }
        state.advance(minutes(1));
    }
}

#[test]
fn a_page_before_the_first_request_has_no_event_in_it() {
    let page = read(&State::new(Setup::default()));
    for name in ["config_info", "cpu_cache_usage_perc", "store_bytes_total", "allocation_failure_total"] {
        let name = format!("{OFFLOAD}{name}");
        assert!(page.kinds.contains_key(&name), "TYPE of {name} tells that the connector is there");
        assert_eq!(page.find(&name, "0", ""), None, "{name}");
    }
    for way in ["CPU_to_GPU", "GPU_to_CPU"] {
        assert_eq!(page.find(&format!("{OFFLOAD}total_bytes_total"), "1", way), Some(0.0));
    }
    assert!(!page.samples.keys().any(|series| series.starts_with("http_requests")));
}

#[test]
fn the_stated_sizes_agree_with_each_other() {
    let page = read(&state_after(minutes(1)));
    let number = |name: &str, engine, label| page.told(name, engine, label).parse::<u64>().expect("a number");
    for engine in ["0", "1"] {
        let tier = |label| number("vllm:kv_offload_config_info", engine, label);
        assert_eq!(tier("cpu_kv_cache_size_bytes"), GIB32);
        assert_eq!(tier("cpu_num_chunks") * 16_777_216, GIB32);
        let pool = |label| number("vllm:cache_config_info", engine, label);
        assert_eq!(tier("cpu_kv_cache_size_tokens"), tier("cpu_num_chunks") * pool("block_size"));
        assert_eq!(tier("cpu_blocks_per_chunk"), 1);
        assert_eq!(pool("num_gpu_blocks") / 2 * pool("block_size"), pool("kv_cache_size_tokens"));
        assert_eq!(pool("num_gpu_blocks") / 2 * 16_777_216, pool("kv_cache_memory_bytes"));
    }
    assert_eq!(page.told("vllm:cache_config_info", "0", "kv_offloading_size"), "None");
    assert_eq!(page.told("vllm:cache_config_info", "1", "kv_offloading_size"), "32.0");
}

#[test]
fn only_engine_0_has_a_second_tier() {
    let page = read(&state_after(minutes(30)));
    let of = |engine: &str| {
        let own = format!("engine=\"{engine}\"");
        page.samples.keys().filter(|series| series.contains(&own)).cloned().collect::<Vec<_>>()
    };
    assert!(of("0").iter().any(|series| series.starts_with(TIERING)));
    assert!(!of("1").iter().any(|series| series.starts_with(TIERING) || series.contains("tier=")));
    let second = "cpu_num_chunks=\"\",engine=\"0\",model_name=\"demo/simulated-27b\",tier=\"1:fs\"";
    assert!(of("0").iter().any(|series| series.contains(second)), "a second tier's facts are empty labels");
}

#[test]
fn a_restarted_engine_begins_at_zero_and_the_other_goes_on() {
    let mut state = state_after(minutes(20));
    let before = read(&state);
    state.restart(0);
    let after = read(&state);
    for (series, value) in &after.samples {
        let name = series.split('{').next().expect("name");
        if after.kinds.get(name).is_some_and(|kind| kind == "gauge") {
            continue;
        }
        let expected = if series.contains("engine=\"0\"") { 0.0 } else { before.samples[series] };
        assert_eq!(*value, expected, "{series}");
    }
    assert_eq!(after.find("vllm:kv_offload_config_info", "0", ""), None);
    assert_eq!(after.find("vllm:prompt_tokens_created", "0", ""), Some(DATES.epoch + 1200.0));
    assert_eq!(after.find("vllm:prompt_tokens_created", "1", ""), Some(DATES.epoch));
    assert_eq!((state.truth()[0].occupied_bytes, state.truth()[1].occupied_bytes), (0, GIB32));
}

#[test]
fn after_a_restart_the_files_on_disk_fill_the_ram_tier_again() {
    let mut state = state_after(minutes(20));
    state.restart(0);
    state.restart(1);
    state.advance(minutes(2));
    let [with_disk, without] = state.truth().try_into().expect("two engines");
    assert!(with_disk.promoted_bytes > 2 * with_disk.stored_bytes, "{with_disk:?}");
    assert_eq!(without.promoted_bytes, 0);
    assert!(without.computed_tokens > 3 * with_disk.computed_tokens, "{with_disk:?} {without:?}");
}

#[test]
fn engines_restart_by_turns() {
    let setup = Setup { restart_every: Some(Duration::from_secs(300)), ..Setup::default() };
    let mut state = State::new(setup);
    let mut ages = Vec::new();
    for _ in 0..4 {
        state.advance(Duration::from_secs(300));
        ages.push(state.truth().iter().map(|truth| truth.age_seconds).collect::<Vec<_>>());
    }
    assert_eq!(ages, [[0.0, 300.0], [300.0, 0.0], [0.0, 300.0], [300.0, 0.0]]);
    assert!(read(&state).find("http_requests_total", "", "").is_none(), "HTTP series carry no engine");
    assert!(state.finished() > 0);
}

#[test]
fn the_same_seed_tells_the_same_story_however_time_is_cut() {
    let whole = state_after(minutes(15));
    let mut cut = State::new(Setup::default());
    for _ in 0..9000 {
        cut.advance(Duration::from_millis(100));
    }
    assert_eq!(page::page(&whole, DATES), page::page(&cut, DATES));
    let mut other = State::new(Setup { seed: 1, ..Setup::default() });
    other.advance(minutes(15));
    assert_ne!(page::page(&whole, DATES), page::page(&other, DATES));
}

#[test]
fn any_model_name_makes_a_valid_page() {
    let setup = Setup { model_name: "<script>\"\\,{}\n=# é</script>".to_owned(), ..Setup::default() };
    let mut state = State::new(setup);
    state.advance(minutes(1));
    let page = read(&state);
    let written = "model_name=\"<script>\\\"\\\\,{}\\n=# é</script>\"";
    assert!(page.samples.keys().any(|series| series.contains(written)));
}

/// One request on a connection of its own: head and body of the answer.
async fn ask(address: SocketAddr, method: &str, path: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).await.expect("the demo engine listens");
    let request = format!("{method} {path} HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("request sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answer read");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer has a head");
    (head.to_ascii_lowercase(), body.to_owned())
}

#[tokio::test]
async fn it_answers_like_vllm() {
    let options = Options { speed: 1000.0, ..Options::default() };
    let (address, server) = start(options).await.expect("a free port");
    let server = tokio::spawn(server);

    let (head, body) = ask(address, "GET", "/metrics").await;
    assert!(
        head.starts_with("http/1.1 200") && head.contains("content-type: text/plain; version=1.0.0; charset=utf-8")
    );
    let (_, truth) = ask(address, "GET", "/truth").await;
    let truth: serde_json::Value = serde_json::from_str(&truth).expect("truth is JSON");
    let stored = Read::new(&body).get("kv_offload_store_bytes_total", "1");
    assert_eq!(truth[1]["stored_bytes"].as_f64(), Some(stored), "the truth is that of the last page");
    assert_eq!(truth[0]["size_bytes"].as_u64(), Some(GIB32));

    assert_eq!(ask(address, "GET", "/version").await.1, "{\"version\":\"0.33.0+demo\"}");
    assert!(ask(address, "GET", "/health").await.0.starts_with("http/1.1 200"));
    assert!(ask(address, "GET", "/elsewhere").await.0.starts_with("http/1.1 404"));
    assert!(ask(address, "POST", "/metrics").await.0.starts_with("http/1.1 405"));

    let deadline = Instant::now() + Duration::from_secs(20);
    while Read::new(&ask(address, "GET", "/metrics").await.1).get("prompt_tokens_total", "0") == 0.0 {
        assert!(Instant::now() < deadline, "simulated time does not pass");
    }
    server.abort();
    assert!(server.await.is_err_and(|error| error.is_cancelled()));
    assert!(TcpStream::connect(address).await.is_err(), "the port is free again");
}

#[test]
fn a_long_silence_is_made_up_for_only_in_part() {
    for speed in [1e15, f64::INFINITY] {
        let demo = Demo::new(Options { speed, ..Options::default() });
        let (_, truth) = demo.page();
        assert_eq!(truth[0].age_seconds, 3600.0, "at speed {speed}");
    }
}

#[test]
fn the_greeting_names_both_addresses_and_three_commands() {
    let (engine, exporter) = (([127, 0, 0, 1], 4001).into(), ([127, 0, 0, 1], 4002).into());
    let text = greeting(engine, exporter);
    let commands: Vec<&str> = text.lines().filter_map(|line| line.trim().strip_prefix("curl -s ")).collect();
    assert_eq!(
        commands,
        [
            "http://127.0.0.1:4001/metrics http://127.0.0.1:4002/metrics | grep '^vllm:kv_offload_cpu_cache_usage_perc'",
            "http://127.0.0.1:4002/metrics | grep '^kvtier_tier_'",
            "http://127.0.0.1:4002/debug",
        ]
    );
    assert!(text.contains("engine    http://127.0.0.1:4001/metrics\n  exporter  http://127.0.0.1:4002/metrics\n"));
}

#[test]
fn what_an_engine_announces_is_what_its_tier_holds() {
    use crate::events::fold::Fold;
    use crate::events::wire::Batch;

    let mut state = State::new(Setup::default());
    state.listen();
    let mut folds = [Fold::new(false, 1 << 30), Fold::new(false, 1 << 30)];
    let mut batch = Batch::default();
    for _ in 0..60 {
        state.advance(Duration::from_secs(30));
        for news in state.take_batches() {
            batch.decode(&super::news::encode(&news, news.seconds)).unwrap();
            assert_eq!(batch.rank as usize, news.engine);
            folds[news.engine].apply(&batch);
        }
        for (fold, (truth, engine)) in folds.iter().zip(state.truth().iter().zip(&state.engines)) {
            let (view, filling) = (fold.view(), engine.tier.storing() + engine.tier.promoting());
            assert!(view.bounds.is_exact());
            assert_eq!((view.bounds.sure + filling as u64) * CHUNK_BYTES, truth.occupied_bytes);
            assert_eq!(view.evicted * CHUNK_BYTES, truth.evicted_bytes);
            assert_eq!(view.resets, [0; 4]);
        }
    }
    assert!(folds.iter().all(|fold| fold.view().evicted > 1000 && fold.view().restored > 100));
}
