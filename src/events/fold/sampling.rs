//! Fewer identities are followed where there is no room, and more again once there is.

use super::*;

const BUDGET: usize = 1 << 20;

fn hashes(names: std::ops::Range<u64>) -> Vec<u64> {
    names.map(|name| (name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17)).collect()
}

/// One batch: these enter or leave pool or tier.
fn batch(at: u64, names: std::ops::Range<u64>, event: impl Fn(std::ops::Range<usize>) -> Event) -> Batch {
    let hashes = hashes(names);
    Batch::made(at as f64, vec![event(0..hashes.len())], hashes)
}

fn stored(medium: Medium) -> impl Fn(std::ops::Range<usize>) -> Event {
    move |hashes| Event::Stored { medium, group: 0, hashes, parent: None, block_tokens: 0 }
}

fn removed(medium: Medium) -> impl Fn(std::ops::Range<usize>) -> Event {
    move |hashes| Event::Removed { medium, group: 0, hashes }
}

#[test]
fn blocks_that_leave_the_pool_need_no_room() {
    let mut fold = Fold::new(false, BUDGET);
    fold.apply(&batch(0, 0..1000, stored(Medium::Gpu)));
    fold.apply(&batch(1, 0..1000, stored(Medium::Ram)));
    fold.apply(&batch(2, 0..200_000, removed(Medium::Gpu)));
    assert_eq!(fold.view().one_in, 1);
}

fn assert_exactly(fold: &Fold, chunks: u64) {
    let bounds = fold.view().bounds;
    assert_eq!((bounds.sure, bounds.possible, bounds.is_exact()), (chunks, chunks, true));
}

#[test]
fn more_are_followed_again_once_there_is_room() {
    let mut fold = Fold::new(false, BUDGET);
    // 100,000 chunks of some 256 bytes each are 25 MiB: of the bound one in 16 at most.
    for turn in 0..100 {
        fold.apply(&batch(turn, turn * 1000..turn * 1000 + 1000, stored(Medium::Ram)));
        assert_exactly(&fold, (turn + 1) * 1000);
    }
    let (few, full) = (fold.view().one_in, fold.bytes());
    assert!(few >= 16, "one in {few}");
    // The tier is emptied, which shows in that chunks come again.
    fold.apply(&Batch::made(100.0, vec![Event::Cleared], Vec::new()));
    fold.apply(&batch(101, 0..300, stored(Medium::Ram)));
    assert_exactly(&fold, 300);
    // A step or two, as the lot has it.
    for turn in 102..106 {
        fold.apply(&batch(turn, 0..0, stored(Medium::Ram)));
    }
    assert_eq!(fold.view().one_in, 1);
    assert!(fold.bytes() * 8 < full, "{} of {full}", fold.bytes());
    assert_exactly(&fold, 300);
}

#[test]
fn counts_stay_exact_while_some_of_them_were_never_kept() {
    let mut fold = Fold::new(false, 64 << 20);
    fold.sample(3);
    fold.apply(&batch(0, 0..500, stored(Medium::Ram)));
    fold.sample(0);
    assert_exactly(&fold, 500);
    // Of those that were not kept nothing is known but their number: they leave among others that are known, in any order.
    fold.apply(&batch(1, 1000..1300, stored(Medium::Ram)));
    assert_exactly(&fold, 800);
    fold.apply(&batch(2, 100..400, removed(Medium::Ram)));
    assert_exactly(&fold, 500);
    fold.apply(&batch(3, 1000..1300, removed(Medium::Ram)));
    assert_exactly(&fold, 200);
    fold.apply(&batch(4, 400..500, removed(Medium::Ram)));
    fold.apply(&batch(5, 0..100, removed(Medium::Ram)));
    assert_exactly(&fold, 0);
    // A stranger is told from them once they are gone: one that leaves was never there, and nothing is missing.
    fold.apply(&batch(6, 0..10, stored(Medium::Ram)));
    fold.apply(&batch(7, 2000..2001, removed(Medium::Ram)));
    assert_exactly(&fold, 10);
    // And one that comes again without a word tells of a reset.
    fold.apply(&batch(8, 0..1, stored(Medium::Ram)));
    assert_eq!(fold.view().resets, [0, 0, 1, 0]);
}

#[test]
fn what_was_followed_before_is_no_part_of_what_other_sizes_would_do() {
    let mut fold = Fold::new(false, BUDGET);
    for turn in 0..50 {
        fold.apply(&batch(turn, turn * 1000..turn * 1000 + 1000, stored(Medium::Ram)));
    }
    assert!(fold.view().gauge.whole && fold.view().gauge.reach > 30_000.0);
    for turn in 0..50 {
        fold.apply(&batch(100 + turn, turn * 1000..turn * 1000 + 1000, removed(Medium::Ram)));
    }
    // The list of last uses is too long to follow more, and begins anew where more are followed.
    let before = fold.view();
    assert!(before.one_in > 1);
    fold.sample(5);
    fold.sample(0);
    let after = fold.view();
    assert_eq!((after.one_in, after.gauge.reach, after.gauge.whole), (1, 0.0, false));
    assert_eq!(after.gauge.begun, before.gauge.begun + 1);
}

#[test]
fn a_tier_that_works_at_the_bound_is_not_followed_by_ever_other_samples() {
    let mut fold = Fold::new(false, BUDGET);
    let mut changes = 0;
    let mut one_in = 1;
    for turn in 0..2000_u64 {
        fold.apply(&batch(2 * turn, turn * 100..turn * 100 + 100, stored(Medium::Ram)));
        if let Some(oldest) = turn.checked_sub(100) {
            fold.apply(&batch(2 * turn + 1, oldest * 100..oldest * 100 + 100, removed(Medium::Ram)));
        }
        changes += u32::from(std::mem::replace(&mut one_in, fold.view().one_in) != one_in);
    }
    assert!(changes <= 6, "{changes} changes, now one in {one_in}");
}
