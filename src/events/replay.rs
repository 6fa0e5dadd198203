//! The answers to a replay judged: in which order they come, and that they come to an end. Pure.
//!
//! A publisher gives back what it has kept, each batch once, its numbers rising from the one that was asked for, and then an end mark.
//! Whatever does not go on like that is no replay, and is not read any further.

use std::time::{Duration, Instant};

use super::fault::Fault;

/// The longest that all replays of one question take together. vLLM keeps 10,000 batches: some seconds.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Batches of one replay: a hundred times what vLLM keeps.
const MOST: u64 = 1_000_000;
/// A message whose numbers say that the replay is over.
const END: u64 = u64::MAX;

/// How a replay is, or ended.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Replay {
    /// None was asked for.
    #[default]
    None,
    /// It is being read.
    Running,
    /// It gave everything up to its moment.
    Whole,
    /// It did not: why.
    Broken(String),
}

/// What an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// A batch of this number.
    Batch(u64),
    /// There are no more.
    End,
}

/// One question, and how far the answers have come.
#[derive(Debug)]
pub(super) struct Answers {
    /// The least number that the next one may have.
    next: u64,
    count: u64,
    until: Instant,
}

impl Answers {
    /// Answers to a question for everything from `start` on.
    pub(super) fn to(start: u64, until: Instant) -> Answers {
        Answers { next: start, count: 0, until }
    }

    /// How long may be waited for the next one.
    ///
    /// # Errors
    /// [`Fault::Endless`] when the time is over.
    pub(super) fn left(&self, now: Instant) -> Result<Duration, Fault> {
        let left = self.until.saturating_duration_since(now);
        if left.is_zero() { Err(Fault::Endless(PATIENCE)) } else { Ok(left) }
    }

    /// Judges the next answer by its number.
    ///
    /// # Errors
    /// [`Fault::Stranger`] where it does not go on.
    pub(super) fn judge(&mut self, seq: u64, payload: &[u8]) -> Result<Answer, Fault> {
        if seq == END && payload.is_empty() {
            return Ok(Answer::End);
        }
        if seq < self.next || seq == END {
            return Err(Fault::Stranger("a replay that goes back, or answers what was not asked"));
        }
        if self.count == MOST {
            return Err(Fault::Stranger("a replay of more than a million batches"));
        }
        (self.next, self.count) = (seq + 1, self.count + 1);
        Ok(Answer::Batch(seq))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise_from_the_one_that_was_asked_for_up_to_the_mark() {
        let now = Instant::now();
        let mut answers = Answers::to(5, now + PATIENCE);
        for seq in [5, 6, 9] {
            assert_eq!(answers.judge(seq, b"x").unwrap(), Answer::Batch(seq));
        }
        assert_eq!(answers.judge(u64::MAX, b"").unwrap(), Answer::End);
        for seq in [9, 4, u64::MAX] {
            assert!(answers.judge(seq, b"x").unwrap_err().to_string().contains("goes back"), "{seq}");
        }
        assert!(Answers::to(5, now).judge(4, b"x").is_err());
    }

    #[test]
    fn a_replay_without_an_end_has_one() {
        let now = Instant::now();
        let mut answers = Answers::to(0, now + PATIENCE);
        assert_eq!(answers.left(now + Duration::from_secs(59)).unwrap(), Duration::from_secs(1));
        let told = answers.left(now + PATIENCE).unwrap_err().to_string();
        assert_eq!(told, "the replay had not ended after 60 seconds");
        let end = (0..).find(|seq| answers.judge(*seq, b"x").is_err());
        assert_eq!(end, Some(1_000_000));
    }
}
