//! Which batch comes next: the numbers of a stream judged. Pure.
//!
//! A publisher numbers its batches from 0. What falls is a new publisher; what stands still or overlaps with a
//! replay is known already; what jumps has lost something.

/// What a batch's number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The one that was expected.
    Next,
    /// Known already.
    Known,
    /// Batches before it are missing, from this number on.
    Missing(u64),
    /// The engine has restarted.
    Restart,
}

/// How far a stream was followed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Sequence {
    /// Number and time of the last batch taken in.
    last: Option<(u64, f64)>,
    /// Number of the last one before this connection.
    before: Option<u64>,
    /// Number of the last one that this connection brought.
    live: Option<u64>,
}

impl Sequence {
    /// A new connection begins.
    pub(super) fn connected(&mut self) {
        self.before = self.last();
        self.live = None;
    }

    /// The number that is expected.
    pub(super) fn next(&self) -> u64 {
        self.last.map_or(0, |(seq, _)| seq.saturating_add(1))
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.last.map(|(seq, _)| seq)
    }

    /// Whether the last batch taken in had this number and this time.
    pub(super) fn ended_with(&self, seq: u64, at: f64) -> bool {
        self.last == Some((seq, at))
    }

    /// The batch was taken in.
    pub(super) fn took(&mut self, seq: u64, at: f64) {
        self.last = Some((seq, at));
    }

    /// Judges a batch of the live stream.
    pub(super) fn live(&mut self, seq: u64, at: f64) -> Verdict {
        let fell = self.live.replace(seq).is_some_and(|live| seq < live);
        let next = self.next();
        let (Some((last, last_at)), false) = (self.last, seq == next) else {
            return if seq == next { Verdict::Next } else { Verdict::Missing(next) };
        };
        // A publisher does not send again what an earlier connection had brought.
        let again = self.before.is_some_and(|before| seq <= before);
        match () {
            () if seq > last => Verdict::Missing(next),
            () if seq == last && at == last_at => Verdict::Known,
            () if fell || again => Verdict::Restart,
            () => Verdict::Known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Judges, and takes in what is next.
    fn run(sequence: &mut Sequence, seqs: &[u64]) -> Vec<Verdict> {
        seqs.iter()
            .map(|seq| {
                let verdict = sequence.live(*seq, 100.0 + *seq as f64);
                if verdict == Verdict::Next {
                    sequence.took(*seq, 100.0 + *seq as f64);
                }
                verdict
            })
            .collect()
    }

    #[test]
    fn a_stream_from_its_beginning_is_all_next_and_a_late_one_misses_its_beginning() {
        assert_eq!(run(&mut Sequence::default(), &[0, 1, 2]), [Verdict::Next; 3]);
        assert_eq!(run(&mut Sequence::default(), &[7]), [Verdict::Missing(0)]);
    }

    #[test]
    fn a_jump_misses_a_repetition_is_known_and_a_fall_is_a_restart() {
        let mut sequence = Sequence::default();
        run(&mut sequence, &[0, 1, 2]);
        assert_eq!(run(&mut sequence, &[5]), [Verdict::Missing(3)]);
        let mut sequence = Sequence::default();
        run(&mut sequence, &[0, 1, 2]);
        assert_eq!(run(&mut sequence, &[2, 0]), [Verdict::Known, Verdict::Restart]);
    }

    #[test]
    fn what_overlaps_with_a_replay_is_known_and_what_was_there_before_the_connection_is_a_restart() {
        let mut sequence = Sequence::default();
        run(&mut sequence, &[0, 1, 2]);
        sequence.connected();
        // A replay brought 3 to 5; the live stream had begun with 4.
        (3..=5).for_each(|seq| sequence.took(seq, 0.0));
        assert_eq!(run(&mut sequence, &[4, 5, 6]), [Verdict::Known, Verdict::Known, Verdict::Next]);
        sequence.connected();
        assert_eq!(run(&mut sequence, &[1]), [Verdict::Restart]);
    }
}
