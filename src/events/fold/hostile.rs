//! Streams that a peer may well send and no engine does: what they cost in bytes and in time.

use std::ops::Range;

use allocation_counter::measure;
use rustix::time::{ClockId, clock_gettime};

use super::*;

const BUDGET: usize = 1 << 20;
/// Beside the tables: the curves, the few eras, the batch's resets.
const BESIDE: u64 = 96 << 10;

/// Hashes that no other part of a stream has.
fn hashes(names: Range<u64>) -> Vec<u64> {
    names.map(|name| (name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)).collect()
}

fn stored(medium: Medium, group: u32, hashes: Range<usize>, parent: Option<u64>, block_tokens: u32) -> Event {
    Event::Stored { medium, group, hashes, parent, block_tokens }
}

fn removed(medium: Medium, hashes: Range<usize>) -> Event {
    Event::Removed { medium, group: 0, hashes }
}

/// A batch of events about all of these hashes.
fn about(at: u64, hashes: Vec<u64>, events: &[fn(Range<usize>) -> Event]) -> Batch {
    let all = 0..hashes.len();
    Batch::made(at as f64, events.iter().map(|event| event(all.clone())).collect(), hashes)
}

/// The most bytes that a fold of this budget had allocated at once while it took in these batches, and what it counted for
/// itself at the end.
fn peak(batches: impl Iterator<Item = Batch>) -> (u64, usize, View) {
    let mut fold = Fold::new(true, BUDGET);
    let (mut held, mut most) = (0, 0);
    for batch in batches {
        let taken = measure(|| fold.apply(&batch));
        most = most.max(held + taken.bytes_max as i64);
        held += taken.bytes_current;
    }
    (u64::try_from(most).unwrap(), fold.bytes(), fold.view())
}

const RAM: fn(Range<usize>) -> Event = |all| stored(Medium::Ram, 0, all, None, 0);
const POOL: fn(Range<usize>) -> Event = |all| stored(Medium::Gpu, 0, all, None, 16);
const GONE: fn(Range<usize>) -> Event = |all| removed(Medium::Ram, all);
const LEFT: fn(Range<usize>) -> Event = |all| removed(Medium::Gpu, all);
const CLEAR: fn(Range<usize>) -> Event = |_| Event::Cleared;

/// The events of each batch, which has 5000 hashes.
type Events = fn(u64) -> Vec<Event>;

#[test]
fn no_stream_takes_more_than_its_budget() {
    let each = |turn: u64| hashes(turn * 5000..turn * 5000 + 5000);
    let streams: [(&str, Events); 9] = [
        ("ever new chunks", |_| vec![RAM(0..5000)]),
        ("ever new blocks of one prompt", |turn| {
            let parent = turn.checked_sub(1).map(|turn| hashes(turn * 5000 + 4999..turn * 5000 + 5000)[0]);
            vec![stored(Medium::Gpu, 0, 0..5000, parent, 16)]
        }),
        ("ever new blocks and chunks", |_| vec![POOL(0..5000), RAM(0..5000)]),
        ("chunks that were never there leave", |_| vec![GONE(0..5000)]),
        ("chunks come and leave", |_| vec![POOL(0..5000), RAM(0..5000), GONE(0..5000), LEFT(0..5000)]),
        ("chunks come and leave, and all is cleared", |_| vec![RAM(0..5000), GONE(0..5000), Event::Cleared]),
        ("ever new groups", |turn| {
            (0..100).map(|at| stored(Medium::Ram, (turn * 100 + at) as u32, 0..50, None, 0)).collect()
        }),
        ("chunks of many blocks", |_| vec![stored(Medium::Ram, 0, 0..5000, None, 16), GONE(0..5000)]),
        ("the same again and again", |_| vec![RAM(0..5000), RAM(0..5000), GONE(0..5000), RAM(0..5000)]),
    ];
    for (name, events) in streams {
        let (most, own, view) = peak((0..60).map(|turn| Batch::made(turn as f64, events(turn), each(turn))));
        assert!(own <= BUDGET && most <= BUDGET as u64 + BESIDE, "{name}: {own}, {most}");
        assert!(view.one_in < 1 << 20, "{name}: one in {}", view.one_in);
    }
}

#[test]
fn a_batch_of_any_size_takes_no_more_than_the_budget() {
    for (name, events) in [
        ("leave the pool", &[LEFT][..]),
        ("leave the tier", &[GONE]),
        ("enter the tier", &[RAM]),
        ("enter the pool", &[POOL]),
        ("enter both, and leave", &[POOL, RAM, GONE, LEFT]),
        ("enter it twice", &[RAM, RAM]),
    ] {
        let (most, own, _) = peak([about(0, hashes(0..500_000), events)].into_iter());
        assert!(own <= BUDGET && most <= BUDGET as u64 + BESIDE, "{name}: {own}, {most}");
        // One hash, half a million times.
        let (most, own, view) = peak([about(0, vec![7; 500_000], events)].into_iter());
        assert!(own <= 32 << 10 && most <= BESIDE + (64 << 10), "{name}, one: {own}, {most}");
        assert_eq!(view.one_in, 1, "{name}");
    }
}

#[test]
fn hashes_that_a_known_sample_would_keep_are_as_any_others() {
    let known = Sampling::default().one_in(8);
    let chosen: Vec<u64> = (1..).filter(|key| known.takes(*key)).take(40_000).collect();
    let (_, own, view) = peak([about(0, chosen, &[RAM])].into_iter());
    assert!(own <= BUDGET && view.one_in <= 64, "{own}: one in {}", view.one_in);
}

/// The least CPU time of three runs, in seconds.
fn seconds(mut run: impl FnMut()) -> f64 {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let mut once = || {
        let start = now();
        run();
        now() - start
    };
    (0..3).map(|_| once()).fold(f64::INFINITY, f64::min)
}

/// By how much four times the work takes longer: 4 where work is linear, 16 where it is the square.
fn growth(name: &str, few: u64, mut run: impl FnMut(u64)) -> f64 {
    let times = [few, 2 * few, 4 * few].map(|count| seconds(|| run(count)));
    println!("{name}: {few} to {} take {:.4}, {:.4}, {:.4} s", 4 * few, times[0], times[1], times[2]);
    times[2] / times[0]
}

fn folded(batches: impl Iterator<Item = Batch>) -> Fold {
    let mut fold = Fold::new(false, 64 << 20);
    batches.for_each(|batch| fold.apply(&batch));
    fold
}

#[test]
fn four_times_the_events_take_four_times_the_time() {
    let chunk = |at: u64, name: u64, events: &[fn(Range<usize>) -> Event]| about(at, hashes(name..name + 1), events);
    let growths = [
        growth("keys named twice in a batch", 10_000, |count| {
            let twice: Vec<u64> = hashes(0..count).repeat(2);
            folded([about(0, twice, &[RAM])].into_iter());
        }),
        growth("blocks that leave and were never there", 100_000, |count| {
            folded([about(0, hashes(0..count), &[LEFT])].into_iter());
        }),
        growth("one chunk that is stored once more in each batch, beside many others", 2_000, |count| {
            let others = about(0, hashes(1..10 * count), &[RAM]);
            folded([others].into_iter().chain((1..count).map(|at| chunk(at, 0, &[RAM]))));
        }),
        growth("clears beside many chunks", 2_000, |count| {
            let others = about(0, hashes(1..10 * count), &[RAM]);
            folded([others].into_iter().chain((1..count).map(|at| chunk(at, 0, &[CLEAR, RAM, GONE]))));
        }),
        growth("clears that are judged beside many blocks", 2_000, |count| {
            let others = about(0, hashes(1..10 * count), &[POOL, RAM, LEFT]);
            let turns = (1..count).flat_map(|at| [chunk(2 * at, 0, &[RAM]), chunk(2 * at + 1, 0, &[CLEAR])]);
            folded([others].into_iter().chain(turns));
        }),
        growth("rings of two blocks, and then fewer are followed", 5_000, |count| {
            let ring = |at: u64| {
                let pair = hashes(2 * at..2 * at + 2);
                let (one, other) = (pair[0], pair[1]);
                let after = |hashes: Range<usize>, parent| stored(Medium::Gpu, 0, hashes, Some(parent), 16);
                let events = vec![after(0..1, other), after(1..2, one), removed(Medium::Gpu, 0..1), after(0..1, other)];
                Batch::made(at as f64, [events, vec![stored(Medium::Ram, 0, 0..2, None, 0)]].concat(), pair)
            };
            folded((0..count).map(ring)).sample(3);
        }),
    ];
    assert!(growths.iter().all(|growth| *growth < 9.0), "{growths:.1?}");
}

#[test]
fn clears_without_end_cost_the_same_each() {
    let clears = |count: u64| {
        let turn = |at: u64| about(at, hashes(0..1), &[CLEAR, RAM, GONE]);
        folded([about(0, hashes(1..3), &[RAM])].into_iter().chain((1..=count).map(turn))).view()
    };
    let growth = growth("clears", 10_000, |count| drop(clears(count)));
    assert!(growth < 6.0, "{growth}");
    assert_eq!((clears(100).bounds.sure, clears(100).bounds.possible), (0, 2));
}
