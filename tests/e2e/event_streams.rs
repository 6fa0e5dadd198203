//! Streams of `--events` that are batches as an engine writes them, and that no engine writes: memory stays within
//! `--events.max-bytes` and 32 MiB more, and what a peer chooses makes no series.

use crate::event_peers::follows;

/// One msgpack text.
fn text(word: &str) -> Vec<u8> {
    [&[0xd9, u8::try_from(word.len()).unwrap()][..], word.as_bytes()].concat()
}

fn list(length: usize) -> Vec<u8> {
    [&[0xdd][..], &u32::try_from(length).unwrap().to_be_bytes()].concat()
}

fn number(value: u64) -> Vec<u8> {
    [&[0xcf][..], &value.to_be_bytes()].concat()
}

/// Hashes that no other name has: the factor is odd.
fn hashes(names: std::ops::Range<u64>) -> Vec<u8> {
    let all = list(usize::try_from(names.end - names.start).unwrap());
    let each = names.flat_map(|name| number(name.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    all.into_iter().chain(each).collect()
}

/// An event as vLLM writes it from 0.24 on: a map by name.
fn event(kind: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = vec![0x80 | u8::try_from(fields.len() + 1).unwrap()];
    bytes.extend([text("type"), text(kind)].concat());
    fields.iter().for_each(|(name, value)| bytes.extend([text(name), value.clone()].concat()));
    bytes
}

fn about(kind: &str, medium: &str, names: std::ops::Range<u64>) -> Vec<u8> {
    event(kind, &[("block_hashes", hashes(names)), ("medium", text(medium))])
}

/// `[time, events, rank]`, a second after the batch before.
fn batch(seq: u64, events: &[Vec<u8>], rank: u64) -> Vec<u8> {
    let time = [&[0xcb][..], &(1.8e9 + seq as f64).to_be_bytes()].concat();
    [vec![0x93], time, list(events.len()), events.concat(), number(rank)].concat()
}

fn sampled(page: &str) -> bool {
    let ratio = page.lines().find(|line| line.starts_with("kvtier_events_sampling_ratio{")).unwrap();
    !ratio.ends_with("} 1")
}

#[test]
fn ever_new_chunks_are_counted_and_few_of_them_followed() {
    let page = follows("new chunks", 60, |seq| {
        batch(seq, &[about("BlockStored", "CPU", seq * 20_000..(seq + 1) * 20_000)], 0)
    });
    assert!(sampled(&page));
}

#[test]
fn chunks_that_come_and_go_and_are_cleared_take_no_more() {
    follows("come, go, clear", 60, |seq| {
        let names = seq * 10_000..(seq + 1) * 10_000;
        let of = |kind, medium| about(kind, medium, names.clone());
        let events = [
            of("BlockStored", "GPU"),
            of("BlockStored", "CPU"),
            of("BlockRemoved", "CPU"),
            event("AllBlocksCleared", &[]),
            of("BlockStored", "CPU"),
        ];
        batch(seq, &events, 0)
    });
}

#[test]
fn what_a_peer_names_makes_no_table_and_no_series() {
    let page = follows("names", 60, |seq| {
        let one = |at: u64| {
            let name = format!("name-{}", seq * 1000 + at);
            let fields = [
                ("block_hashes", hashes(at..at + 4)),
                ("medium", text(if at.is_multiple_of(2) { "CPU" } else { &name })),
                ("group_idx", number(seq * 1000 + at)),
                ("lora_name", text(&name)),
                ("locality", text(&name)),
                (&name[..], text(&name)),
            ];
            event("BlockStored", &fields)
        };
        batch(seq, &(0..1000).map(one).collect::<Vec<_>>(), seq * 1_000_003)
    });
    assert!(!page.contains("name-"));
    // One endpoint, and of each family about it at most the series that its reasons and kinds make.
    assert!(page.lines().filter(|line| line.starts_with("kvtier_events_")).count() < 30, "{page}");
}

#[test]
fn prompts_of_any_length_are_passed_over() {
    follows("token ids", 40, |seq| {
        let tokens = [list(1_500_000), vec![1; 1_500_000]].concat();
        let fields = [("block_hashes", hashes(seq..seq + 1)), ("token_ids", tokens), ("medium", text("GPU"))];
        batch(seq, &[event("BlockStored", &fields)], 0)
    });
}

#[test]
fn a_batch_of_very_many_removals_leaves_nothing_behind() {
    for medium in ["GPU", "CPU"] {
        let page = follows(medium, 20, move |seq| {
            let (kind, names) =
                if seq.is_multiple_of(2) { ("BlockStored", 0..100) } else { ("BlockRemoved", 0..150_000) };
            batch(seq, &[about(kind, medium, names)], 0)
        });
        assert!(medium == "CPU" || !sampled(&page), "{medium}");
    }
}
