//! Answers that their clients have not taken yet: what they hold of our memory.
//!
//! What several have in common lies in memory once and counts once.

use std::collections::BTreeMap;

use tokio::time::Instant;

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
