//! What has to be the same behind the exporter as before it, and for which pages.

use super::reader::{Remark, Sample};
use super::strict::Verdict;

/// The only upstream family that is ever replaced, in both its spellings.
const CORRECTED: [&str; 2] = ["vllm:kv_offload_cpu_cache_usage_perc", "vllm_kv_offload_cpu_cache_usage_perc"];

/// Whether a sample of this name passes as it came: it is neither corrected nor one of ours.
pub fn is_upstreams(name: &str) -> bool {
    !CORRECTED.contains(&name) && !name.starts_with("kvtier_")
}

/// Everything that tells one sample from another, but for where it stands. NaN is NaN here.
pub fn identity(sample: &Sample) -> String {
    format!("{} {:?} {} {:?}", sample.name, sample.labels, sample.value, sample.timestamp)
}

/// The samples that pass as they came, in order.
pub fn untouched(verdict: &Verdict) -> Vec<String> {
    verdict.samples.iter().filter(|sample| is_upstreams(&sample.name)).map(identity).collect()
}

/// A page that Prometheus takes and that has nothing in it that we turn into something else: line ends of DOS, the
/// end mark of OpenMetrics, and NUL bytes, which Prometheus takes in some places and stops or stumbles at in others.
pub fn is_sound(page: &[u8], verdict: &Verdict) -> bool {
    verdict.accepted() && !holds(page, b"\r\n") && !holds(page, b"# EOF") && !holds(page, b"\0")
}

/// Whether there may be families of ours in a page.
pub fn mentions_kvtier(page: &[u8]) -> bool {
    holds(page, b"kvtier_")
}

/// Whether the bytes stand somewhere in a page.
pub fn holds(page: &[u8], what: &[u8]) -> bool {
    page.windows(what.len()).any(|part| part == what)
}

/// What the page part of an answer may differ in even if nothing is corrected: the last line end.
pub fn ended(page: &[u8]) -> Vec<u8> {
    let mut page = page.to_vec();
    if !page.is_empty() && !page.ends_with(b"\n") {
        page.push(b'\n');
    }
    page
}

/// What a strict reader minds about our own families.
pub fn fault_of_ours(verdict: &Verdict) -> Option<&Remark> {
    verdict.findings.iter().find(|finding| finding.what.split(' ').any(|word| word.starts_with("kvtier_")))
}
