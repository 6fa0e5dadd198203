//! Answers that their clients have not taken yet: what they hold of our memory, and who has to go for it.
//!
//! What several have in common lies in memory once and counts once.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use tokio::time::Instant;

use super::crowd::{Guest, Limits, Places};
use super::source::Source;

/// What one answer holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    /// The number and the bytes of what it has in common with others.
    pub(super) common: Option<(u64, usize)>,
    /// Bytes that nobody else holds.
    pub(super) own: usize,
}

/// An answer on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsent {
    /// The turn that it is sent on.
    pub(super) turn: u64,
    /// When its first byte could go.
    pub(super) since: Instant,
    pub(super) holding: Holding,
}

/// Bytes that these hold together.
pub(super) fn bytes<'a>(answers: impl IntoIterator<Item = &'a Unsent>) -> usize {
    let (mut own, mut common) = (0, BTreeMap::new());
    for Unsent { holding, .. } in answers {
        own += holding.own;
        common.extend(holding.common);
    }
    own + common.values().sum::<usize>()
}

impl Places {
    /// Cuts off answers that have not been taken for too long, until the rest holds little enough. None where that would not
    /// help.
    pub(super) fn cut_unsent(&mut self, limits: &Limits) -> bool {
        let now = Instant::now();
        let others = self.taken.values().filter(|guest| !guest.is_late(now, limits)).flat_map(|guest| &guest.unsent);
        if bytes(others) >= limits.unsent {
            return false;
        }
        let before = self.cut;
        while self.unsent() >= limits.unsent
            && let Some(number) = self.holds_most(now, limits)
        {
            self.tell_cutting(limits.unsent);
            self.send_away(number);
        }
        self.cut > before
    }

    /// Of those that have not taken an answer for too long, who holds most: of the source that does.
    fn holds_most(&self, now: Instant, limits: &Limits) -> Option<u64> {
        let mut by_source = BTreeMap::<Source, Vec<Unsent>>::new();
        self.taken.values().for_each(|guest| by_source.entry(guest.source).or_default().extend(&guest.unsent));
        let by_source: BTreeMap<_, _> = by_source.into_iter().map(|(source, all)| (source, bytes(&all))).collect();
        let rank = |guest: &Guest| {
            (by_source.get(&guest.source).copied(), bytes(&guest.unsent), Reverse(guest.unsent_since()))
        };
        let late = self.taken.iter().filter(|(_, guest)| guest.is_late(now, limits));
        late.max_by_key(|(_, guest)| rank(guest)).map(|(number, _)| *number)
    }

    /// Bytes of all answers that are not taken.
    pub(super) fn unsent(&self) -> usize {
        bytes(self.taken.values().flat_map(|guest| &guest.unsent))
    }

    /// An answer is on its way.
    pub(super) fn hold(&mut self, number: u64, answer: Unsent) {
        if let Some(guest) = self.taken.get_mut(&number) {
            guest.unsent.push(answer);
        }
    }

    /// The answer of a turn is gone.
    pub(super) fn let_go(&mut self, number: u64, turn: u64) {
        if let Some(guest) = self.taken.get_mut(&number) {
            guest.unsent.retain(|answer| answer.turn != turn);
        }
    }

    fn tell_cutting(&mut self, limit: usize) {
        if self.cut == 0 {
            tracing::warn!(
                limit,
                "answers that their clients do not take hold too much memory: those that hold most are cut off"
            );
        }
        self.cut += 1;
    }
}

impl Guest {
    /// Since when it could take the oldest answer that it has not taken.
    pub(super) fn unsent_since(&self) -> Option<Instant> {
        self.unsent.iter().map(|answer| answer.since).min()
    }

    /// It has not taken an answer for too long.
    fn is_late(&self, now: Instant, limits: &Limits) -> bool {
        self.unsent_since().is_some_and(|since| now - since >= limits.stalled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_common_counts_once() {
        let unsent = |common, own| Unsent { turn: 0, since: Instant::now(), holding: Holding { common, own } };
        let answers = [unsent(Some((1, 100)), 7), unsent(Some((1, 100)), 8), unsent(Some((2, 50)), 1), unsent(None, 3)];
        // 100 and 50 of two pages, and 7 + 8 + 1 + 3.
        assert_eq!(bytes(&answers), 169);
        assert_eq!(bytes(&[]), 0);
    }
}
