//! Pages that are real and odd: older than all that is known, of hybrid models, with names in quotes, with figures that
//! contradict each other. The traps of each, with values worked out by hand.

#![allow(missing_docs, reason = "a test crate has no readers of its documentation")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests say what they expect")]

mod support;

use support::captures;
use support::page::{Page, run};

// Versions: told by families that came and left, and no further than they tell.

fn version(page: &Page) -> Option<String> {
    run(page).outcome.snapshot.version_range
}

/// What every version since 0.9 has.
fn base() -> Page {
    Page::vllm().sample("vllm:num_requests_running", "", "0").sample("vllm:prompt_tokens_total", "", "32")
}

#[test]
fn a_page_older_than_all_that_are_known_says_so() {
    // 0.10: both spellings of the GPU pool's gauge, and a configuration that knows nothing of offloading.
    let page_0_10 = base()
        .sample("vllm:gpu_cache_usage_perc", "", "9.7e-06")
        .sample("vllm:kv_cache_usage_perc", "", "9.7e-06")
        .sample("vllm:gpu_prefix_cache_queries_total", "", "32")
        .config(r#"block_size="16",num_gpu_blocks="6410",swap_space="4",swap_space_bytes="4294967296""#);
    assert_eq!(version(&page_0_10).as_deref(), Some("<0.14"));
    // 0.12: the flags are there and nothing is their default; no count of computed tokens for finished requests.
    let page_0_12 = base()
        .sample("vllm:request_prompt_tokens_sum", "", "32")
        .config(r#"block_size="16",kv_offloading_backend="None",kv_offloading_size="None""#);
    assert_eq!(version(&page_0_12).as_deref(), Some("<0.14"));
    // 0.13 counts them, and has no default yet.
    let page_0_13 = page_0_12.clone().sample("vllm:request_prefill_kv_computed_tokens_sum", "", "32");
    assert_eq!(version(&page_0_13).as_deref(), Some("<0.14"));
    // Another vLLM, without a configuration: the histograms tell.
    let histograms = base().sample("vllm:request_prompt_tokens_sum", "", "32");
    assert_eq!(version(&histograms).as_deref(), Some("<0.14"));
}

#[test]
fn a_page_of_the_oldest_known_version_is_none_older() {
    let page = |backend: &str| {
        base()
            .sample("vllm:request_prompt_tokens_sum", "", "32")
            .sample("vllm:request_prefill_kv_computed_tokens_sum", "", "32")
            .config(&format!(r#"block_size="16",kv_offloading_backend="{backend}",kv_offloading_size="None""#))
    };
    assert_eq!(version(&page("native")).as_deref(), Some("0.14-0.15"));
    // With LMCache in the place of the default 0.13 looks the same.
    assert_eq!(version(&page("lmcache")).as_deref(), Some("0.13-0.15"));
    let text = String::from_utf8(captures::named("vllm-0.14.0-offload-cpu").text()).unwrap();
    assert_eq!(version(&Page::new().text(&text)).as_deref(), Some("0.14-0.15"));
}

#[test]
fn what_no_family_tells_is_not_told() {
    let running = |page: Page| page.sample("vllm:num_requests_running", "", "1");
    assert_eq!(version(&running(Page::vllm())), None);
    // Since 0.16 prompt tokens stand beside their sources; how old a page without them is, nothing says.
    assert_eq!(version(&base()).as_deref(), Some("<0.16"));
    // Since 0.20 waiting requests stand beside their reasons.
    assert_eq!(version(&running(Page::vllm()).sample("vllm:num_requests_waiting", "", "0")).as_deref(), Some("<0.20"));
    // A configuration without default backend is older than 0.14, tokens by source are not.
    let torn = base().sample("vllm:prompt_tokens_by_source_total", r#"source="local_compute""#, "3").config("x=\"1\"");
    assert_eq!(version(&torn), None);
}
