//! What is worth a log line, and when: each change of the upstream's state, each warning of the pipeline once,
//! and never a line for each scrape.

use std::collections::BTreeSet;

/// Warnings that are remembered. Their texts hold label values, so an upstream could make up ever new ones.
const WARNINGS: usize = 100;

/// What was seen of an upstream so far.
#[derive(Debug, Default)]
pub(super) struct Health {
    up: bool,
    failed: u64,
    told: BTreeSet<&'static str>,
    warned: BTreeSet<String>,
}

/// A change of state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It answers, after this many failed fetches.
    Up {
        /// Failed fetches since it last answered.
        failed: u64,
    },
    /// It fails, or fails for a reason that this outage has not seen before.
    Down,
}

impl Health {
    /// Takes note of one fetch, `Err` with the reason of its failure.
    pub(super) fn note(&mut self, result: Result<(), &'static str>) -> Option<Change> {
        match result {
            Ok(()) => {
                let failed = std::mem::take(&mut self.failed);
                self.told.clear();
                let changed = !std::mem::replace(&mut self.up, true);
                changed.then_some(Change::Up { failed })
            }
            Err(reason) => {
                self.up = false;
                self.failed += 1;
                self.told.insert(reason).then_some(Change::Down)
            }
        }
    }

    /// Whether a warning is new.
    pub(super) fn is_new(&mut self, warning: &str) -> bool {
        self.warned.len() < WARNINGS && self.warned.insert(warning.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_one_line_a_reason_and_one_at_its_end() {
        let mut health = Health::default();
        assert_eq!(health.note(Ok(())), Some(Change::Up { failed: 0 }));
        assert_eq!(health.note(Ok(())), None);
        assert_eq!(health.note(Err("connect")), Some(Change::Down));
        assert_eq!(health.note(Err("connect")), None);
        assert_eq!(health.note(Err("status")), Some(Change::Down));
        assert_eq!(health.note(Err("connect")), None);
        assert_eq!(health.note(Ok(())), Some(Change::Up { failed: 4 }));
        assert_eq!(health.note(Err("connect")), Some(Change::Down));
    }

    #[test]
    fn a_warning_is_new_once_and_memory_is_bounded() {
        let mut health = Health::default();
        assert!(health.is_new("a"));
        assert!(!health.is_new("a"));
        let told = (0..1000).filter(|number| health.is_new(&number.to_string())).count();
        assert_eq!(told, WARNINGS - 1);
    }
}
