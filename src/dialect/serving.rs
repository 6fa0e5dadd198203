//! How an engine serves: what runs, how fast it decodes, what it asked its tier for, and what it was told to do.
//!
//! Only the commands around a launch read this. The scrape passes these families on as they are, so they are no part
//! of the snapshot and cost it nothing.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::identity::{Kind, Whose};
use super::vllm::CACHE_CONFIG;
use super::{first, largest, lmcache_tokens};
use crate::exposition::{Exposition, Names};
use crate::model::{EngineId, Fact, Histogram, Owner, Snapshot};

/// What one engine says of its serving.
#[derive(Clone, Debug, PartialEq)]
pub struct Serving {
    /// Its labels.
    pub id: EngineId,
    /// Requests that run now.
    pub running: Option<Fact>,
    /// Requests that had to give their place in the GPU pool back, since engine start.
    pub preemptions: Option<Fact>,
    /// Tokens that the tier's connector was asked for, since engine start.
    pub asked: Option<Fact>,
    /// Tokens that it wrote, since engine start.
    pub generated: Option<Fact>,
    /// Seconds between two tokens of a stream, since engine start.
    pub decode: Histogram,
}

/// How an engine was told to offload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    /// Value of its `engine` label.
    pub engine: String,
    /// `native`, `lmcache` …
    pub backend: String,
    /// Size in GiB as it is written, where one was given.
    pub gib: Option<String>,
}

/// The names by which an engine says it.
struct Spelling {
    kind: Kind,
    running: &'static str,
    preemptions: &'static str,
    asked: Option<&'static str>,
    generated: &'static str,
    bucket: &'static str,
    sum: &'static str,
    count: &'static str,
}

const SPELLINGS: [Spelling; 2] = [
    Spelling {
        kind: Kind::Vllm,
        running: "vllm:num_requests_running",
        preemptions: "vllm:num_preemptions_total",
        asked: Some("vllm:external_prefix_cache_queries_total"),
        generated: "vllm:generation_tokens_total",
        bucket: "vllm:inter_token_latency_seconds_bucket",
        sum: "vllm:inter_token_latency_seconds_sum",
        count: "vllm:inter_token_latency_seconds_count",
    },
    Spelling {
        kind: Kind::Sglang,
        running: "sglang:num_running_reqs",
        preemptions: "sglang:num_retracted_requests_total",
        asked: None,
        generated: "sglang:generation_tokens_total",
        bucket: "sglang:inter_token_latency_seconds_bucket",
        sum: "sglang:inter_token_latency_seconds_sum",
        count: "sglang:inter_token_latency_seconds_count",
    },
];

/// Every name that is read here.
pub static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let each = |s: &Spelling| [s.running, s.preemptions, s.generated, s.bucket, s.sum, s.count];
    let asked = SPELLINGS.iter().filter_map(|spelling| spelling.asked);
    Names::new(SPELLINGS.iter().flat_map(each).chain(asked).chain(lmcache_tokens::READS).chain([CACHE_CONFIG]))
});

/// The engines of a page that was scanned for [`NAMES`], in the order of their labels. The snapshot is of the same page:
/// a sample that may be of several of its engines is nobody's.
pub fn read(page: &Exposition<'_>, snapshot: &Snapshot) -> Vec<Serving> {
    let mut engines = BTreeMap::new();
    for spelling in &SPELLINGS {
        spelling.read(page, snapshot, &mut engines);
    }
    engines.into_values().collect()
}

/// How the engines of the page were told to offload.
pub fn configured(page: &Exposition<'_>) -> Vec<Configured> {
    let told = |text: &str| !matches!(text, "" | "None");
    let samples = page.samples(CACHE_CONFIG).iter().map(|sample| sample.labels);
    samples
        .filter_map(|labels| {
            let gib = labels.raw("kv_offloading_size").filter(|text| told(text)).map(str::to_owned);
            let backend = labels.raw("kv_offloading_backend").filter(|text| told(text))?.to_owned();
            // vLLM names its default backend even where nothing is offloaded.
            (gib.is_some() || backend != "native").then(|| Configured {
                engine: labels.value("engine").into_owned(),
                backend,
                gib,
            })
        })
        .collect()
}

impl Spelling {
    fn read(&self, page: &Exposition<'_>, snapshot: &Snapshot, engines: &mut BTreeMap<EngineId, Serving>) {
        let mut each = |name: &'static str, set: &mut dyn FnMut(&mut Serving, Fact, &str)| {
            let whose = Whose::of(snapshot, self.kind, name);
            for sample in page.samples(name).iter().filter(|sample| sample.value.is_finite()) {
                let named = whose.named(sample.labels);
                let id = match named.owner(snapshot) {
                    Owner::One(at) => snapshot.engines[at].id.clone(),
                    Owner::Several => continue,
                    Owner::Nobody => named.id(),
                };
                let serving = engines.entry(id.clone()).or_insert_with(|| Serving::new(id));
                set(serving, Fact::new(sample.value, name), &sample.labels.value("le"));
            }
        };
        each(self.running, &mut |serving, fact, _| largest(&mut serving.running, fact));
        each(self.preemptions, &mut |serving, fact, _| largest(&mut serving.preemptions, fact));
        each(self.generated, &mut |serving, fact, _| largest(&mut serving.generated, fact));
        if let Some(asked) = self.asked {
            each(asked, &mut |serving, fact, _| first(&mut serving.asked, fact));
        }
        each(self.bucket, &mut |serving, fact, le| serving.decode.add_bucket(le, fact.value));
        each(self.sum, &mut |serving, fact, _| serving.decode.sum += fact.value);
        each(self.count, &mut |serving, fact, _| serving.decode.count += fact.value);
    }
}

impl Serving {
    fn new(id: EngineId) -> Serving {
        Serving { id, running: None, preemptions: None, asked: None, generated: None, decode: Histogram::default() }
    }
}
