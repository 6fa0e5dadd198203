//! Recorded streams of KV cache events of a real vLLM 0.32.0, with the truth beside them: `fixtures/kv-events`.

use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;

/// One message as a socket gave it.
pub struct Message {
    /// Without the empty delimiter of a replay: topic, seq, payload.
    pub frames: Vec<Vec<u8>>,
}

impl Message {
    /// -1 ends a replay.
    pub fn seq(&self) -> i64 {
        i64::from_be_bytes(self.frames[1].as_slice().try_into().unwrap())
    }

    pub fn payload(&self) -> &[u8] {
        &self.frames[2]
    }
}

/// One call into the real tier manager, as it was after it.
pub struct Call {
    pub at: f64,
    /// Chunks that have a slot, and those of them whose store is under way.
    pub held: u64,
    pub pending: u64,
    /// Chunks that became ready, or were evicted, by this call.
    pub stored: u64,
    pub evicted: u64,
}

impl Call {
    /// Chunks that can be reloaded.
    pub fn ready(&self) -> u64 {
        self.held - self.pending
    }
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/kv-events").join(name)
}

/// A packed file of the fixtures, unpacked.
pub fn unpacked(name: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(std::fs::File::open(path(name)).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

/// A metrics page.
pub fn page(name: &str) -> String {
    String::from_utf8(unpacked(name)).unwrap()
}

/// When the run of this name began with a reset of the tier.
pub fn since(run: &str) -> f64 {
    std::fs::read_to_string(path(run).join("since")).unwrap().trim().parse().unwrap()
}

/// A whole stream. Record: arrival f64, channel u8, number of frames u8, then length u32 and bytes of each.
pub fn messages(name: &str) -> Vec<Message> {
    let bytes = unpacked(name);
    let (mut rest, mut messages) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let (head, mut tail) = rest.split_at(10);
        let mut frames = Vec::new();
        for _ in 0..head[9] {
            let (length, after) = tail.split_at(4);
            let (frame, after) = after.split_at(u32::from_be_bytes(length.try_into().unwrap()) as usize);
            frames.push(frame.to_vec());
            tail = after;
        }
        if head[8] == 1 {
            assert!(frames.remove(0).is_empty());
        }
        messages.push(Message { frames });
        rest = tail;
    }
    messages
}

/// All calls of a run, in their order.
pub fn truth(run: &str) -> Vec<Call> {
    let text = page(&format!("{run}/truth.jsonl.gz"));
    text.lines()
        .map(|line| {
            let call: Value = serde_json::from_str(line).unwrap();
            let number = |name: &str| call[name].as_u64().unwrap();
            let length = |name: &str| call[name].as_array().map_or(0, |list| list.len() as u64);
            let op = call["op"].as_str().unwrap().to_owned();
            let ready = op == "stored" && call["ok"] == true;
            Call {
                at: call["t"].as_f64().unwrap(),
                held: number("held"),
                pending: number("pend"),
                stored: if ready { length("keys") } else { 0 },
                evicted: length("ev"),
            }
        })
        .collect()
}
