//! An engine made by hand: the batches that it publishes and the page that it shows, in a few numbers.
//!
//! A chunk of it is one block of 32 tokens and 16,384 bytes.

use std::sync::{Arc, Mutex};

use super::program::upstream::{Upstream, ok, response};
use super::stream::Message;

/// Bytes of a chunk.
pub const CHUNK: u64 = 16_384;
/// Labels of the engine's RAM tier.
pub const RAM: &str = r#"model_name="m",engine="0",tier="ram""#;

/// One event of the tier, or of the pool.
#[derive(Clone, Copy)]
pub enum Event {
    /// Chunks of these numbers were stored.
    Stored(u64, u64),
    /// Chunks of these numbers were evicted.
    Evicted(u64, u64),
    /// A prompt whose blocks have these numbers entered the GPU pool.
    Entered(u64, u64),
    /// The GPU pool was cleared.
    Cleared,
}

/// A batch of that number, made so many seconds after the engine's start.
pub fn batch(seq: u64, at: f64, events: &[Event]) -> Message {
    let mut payload = vec![0x93, 0xcb];
    payload.extend((1.8e9 + at).to_be_bytes());
    payload.extend([0xdc, 0, events.len() as u8]);
    events.iter().for_each(|event| payload.extend(encoded(*event)));
    payload.push(0);
    Message { frames: vec![b"kv".to_vec(), seq.to_be_bytes().to_vec(), payload] }
}

fn text(word: &str) -> Vec<u8> {
    [&[0xa0 | word.len() as u8], word.as_bytes()].concat()
}

fn encoded(event: Event) -> Vec<u8> {
    let event_of = |kind: &str, medium: &str, (from, to): (u64, u64), more: &[(&str, Vec<u8>)]| {
        let mut bytes = vec![0x84 + more.len() as u8];
        bytes.extend([text("type"), text(kind), text("medium"), text(medium), text("group_idx"), vec![0]].concat());
        bytes.extend([text("block_hashes"), vec![0xdc], ((to - from) as u16).to_be_bytes().to_vec()].concat());
        (from..to).for_each(|hash| bytes.extend([&[0xcf][..], &hash.to_be_bytes()].concat()));
        more.iter().for_each(|(key, value)| bytes.extend([text(key), value.clone()].concat()));
        bytes
    };
    let none = ("parent_block_hash", vec![0xc0]);
    match event {
        Event::Stored(from, to) => event_of("BlockStored", "CPU", (from, to), &[none, ("block_size", vec![0])]),
        Event::Entered(from, to) => event_of("BlockStored", "GPU", (from, to), &[none, ("block_size", vec![32])]),
        Event::Evicted(from, to) => event_of("BlockRemoved", "CPU", (from, to), &[]),
        Event::Cleared => [vec![0x81], text("type"), text("AllBlocksCleared")].concat(),
    }
}

/// What a page says.
#[derive(Clone, Copy, Default)]
pub struct Page {
    /// Chunks whose store is finished.
    pub stored: u64,
    /// Slots that were handed out.
    pub allocated: u64,
    /// Share of the tier that unfinished stores pin.
    pub storing: f64,
    /// Calls that were told to reset the prefix cache.
    pub resets: u64,
    /// Tokens asked of the connector, and supplied by it.
    pub asked: (u64, u64),
    /// Bytes of the tier; 0 where the page does not state it.
    pub size: u64,
    /// Bytes that a disk behind the tier gave back, where there is one.
    pub promoted: Option<u64>,
}

impl Page {
    /// At rest after so many chunks were stored.
    pub fn after(stored: u64) -> Page {
        Page { stored, allocated: stored, ..Page::default() }
    }

    fn text(self) -> String {
        let labels = r#"engine="0",model_name="m""#;
        let size = if self.size == 0 { "None".to_owned() } else { (self.size as f64 / 1_073_741_824.0).to_string() };
        let mut lines = vec![
            "# TYPE vllm:kv_offload_store_bytes_total counter".to_owned(),
            format!("vllm:kv_offload_store_bytes_total{{{labels}}} {}", self.stored * CHUNK),
            format!("vllm:kv_offload_load_bytes_total{{{labels}}} {}", self.asked.1 / 32 * CHUNK),
            format!("vllm:kv_offload_cpu_cache_usage_perc{{{labels}}} {}", self.storing),
            format!("vllm:kv_offload_cpu_cache_write_usage_perc{{{labels}}} {}", self.storing),
            format!("vllm:kv_offload_cpu_allocation_size_sum{{{labels}}} {}", self.allocated),
            format!("vllm:external_prefix_cache_queries_total{{{labels}}} {}", self.asked.0),
            format!("vllm:external_prefix_cache_hits_total{{{labels}}} {}", self.asked.1),
            format!("vllm:num_preemptions_total{{{labels}}} 0"),
            format!(
                r#"vllm:cache_config_info{{engine="0",block_size="32",kv_offloading_backend="native",kv_offloading_size="{size}"}} 1"#
            ),
        ];
        if self.resets > 0 {
            let call = r#"handler="/reset_prefix_cache",method="POST",status="2xx""#;
            lines.push(format!("http_requests_total{{{call}}} {}", self.resets));
        }
        if let Some(bytes) = self.promoted {
            lines.push(format!(r#"vllm:kv_offload_tiering_read_bytes_total{{{labels},tier="1:fs"}} {bytes}"#));
        }
        lines.join("\n") + "\n"
    }
}

/// Its server, which shows one page until it is given another, and may be down.
pub struct Engine {
    pub upstream: Upstream,
    page: Arc<Mutex<Option<Page>>>,
}

impl Engine {
    pub fn start(page: Page) -> Engine {
        let shown = Arc::new(Mutex::new(Some(page)));
        let served = Arc::clone(&shown);
        let upstream = Upstream::start(move |_| match *served.lock().unwrap() {
            Some(page) => vec![ok(page.text())],
            None => vec![response("503 Service Unavailable", &[], "")],
        });
        Engine { upstream, page: shown }
    }

    pub fn show(&self, page: Page) {
        *self.page.lock().unwrap() = Some(page);
    }

    pub fn go_down(&self) {
        *self.page.lock().unwrap() = None;
    }
}
