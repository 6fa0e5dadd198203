//! Where the bytes of `--events.max-bytes` go. Pure.
//!
//! They are divided once and for all: what is on its way can then never take what is known, nor one endpoint what is another's.

use super::sizing::WINDOW_BYTES;

/// With less than this no batch passes: messages get it even where it is more than their part.
const LEAST: usize = 256 << 10;

/// What one endpoint may hold, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// For what comes, until it is taken in: read buffers, the message on its way, the batch made of it, a replay, connections that
    /// are greeted. A quarter.
    pub(super) arrival: usize,
    /// For the identities that are kept of what came: the rest, but for the window of predictions, which takes up to half of that.
    pub(super) fold: usize,
}

impl Shares {
    /// Of so many bytes for so many endpoints.
    pub(super) fn of(bytes: usize, endpoints: usize) -> Shares {
        let share = bytes / endpoints.max(1);
        let rest = share - share / 4;
        Shares { arrival: (share / 4).max(LEAST), fold: rest - WINDOW_BYTES.min(rest / 2) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_are_the_whole() {
        // 128 marks of two curves of 928 numbers of eight bytes.
        let window = 128 * 2 * 928 * 8;
        let one = Shares::of(64 << 20, 1);
        assert_eq!(one, Shares { arrival: 16 << 20, fold: (48 << 20) - window });
        let eight = Shares::of(64 << 20, 8);
        assert_eq!(eight, Shares { arrival: 2 << 20, fold: (6 << 20) - window });
        assert_eq!(Shares::of(0, 1), Shares { arrival: LEAST, fold: 0 });
    }
}
