//! Which secrets are known: what each source holds now, and what it held lately. A server that was asked with the former value
//! may repeat it after the rotation.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::finder::Finder;
use super::spellings::Secret;

/// How many former values of a source are known, and for how long.
const FORMER: usize = 4;
const KEPT: Duration = Duration::from_secs(3600);

/// What somebody learned who told of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It was known.
    Known,
    /// It was not, and is blanked from now on.
    Learned,
    /// It was not, and is too short to be blanked.
    Short,
}

/// The secrets.
pub(super) struct Secrets {
    sources: BTreeMap<String, Source>,
    /// `None` where it has to be made anew.
    finder: Option<Arc<Finder>>,
}

struct Source {
    current: Secret,
    /// The newest first, with when they were replaced.
    former: VecDeque<(Secret, Instant)>,
}

impl Secrets {
    pub(super) const fn new() -> Secrets {
        Secrets { sources: BTreeMap::new(), finder: None }
    }

    /// Takes note of what a source holds.
    pub(super) fn learn(&mut self, source: &str, secret: Secret, now: Instant) -> News {
        let news = if secret.is_short() { News::Short } else { News::Learned };
        match self.sources.get_mut(source) {
            Some(known) if known.current == secret => return News::Known,
            Some(known) => known.replace(secret, now),
            None => {
                self.sources.insert(source.to_owned(), Source { current: secret, former: VecDeque::new() });
            }
        }
        self.finder = None;
        news
    }

    /// What finds all that are known.
    pub(super) fn finder(&mut self, now: Instant) -> Arc<Finder> {
        let is_old = |(_, since): &(Secret, Instant)| now.saturating_duration_since(*since) >= KEPT;
        for source in self.sources.values_mut() {
            while source.former.back().is_some_and(is_old) {
                source.former.pop_back();
                self.finder = None;
            }
        }
        let sources = &self.sources;
        let make = || {
            let all = sources.values().flat_map(Source::secrets);
            Arc::new(Finder::new(all.flat_map(Secret::spellings).collect()))
        };
        Arc::clone(self.finder.get_or_insert_with(make))
    }
}

impl Source {
    fn replace(&mut self, secret: Secret, now: Instant) {
        self.former.retain(|(former, _)| *former != secret);
        self.former.push_front((std::mem::replace(&mut self.current, secret), now));
        self.former.truncate(FORMER);
    }

    fn secrets(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.current).chain(self.former.iter().map(|(secret, _)| secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Secrets that share no six characters.
    fn secret(number: usize) -> &'static str {
        ["aaaa-0000-a", "bbbb-1111-b", "cccc-2222-c", "dddd-3333-d", "eeee-4444-e", "ffff-5555-f"][number]
    }

    fn known(secrets: &mut Secrets, now: Instant) -> Vec<usize> {
        let finder = secrets.finder(now);
        (0..6).filter(|number| finder.blanked(secret(*number)) == "***").collect()
    }

    #[test]
    fn four_former_values_are_known_for_an_hour() {
        let (mut secrets, now) = (Secrets::new(), Instant::now());
        let minute = Duration::from_secs(60);
        for number in 0..6 {
            let at = now + minute * u32::try_from(number).unwrap();
            assert_eq!(secrets.learn("token", Secret::token(secret(number)), at), News::Learned);
            assert_eq!(secrets.learn("token", Secret::token(secret(number)), at), News::Known);
        }
        // Number 0 was replaced after a minute, 1 after two, 4 after five.
        assert_eq!(known(&mut secrets, now + 5 * minute), [1, 2, 3, 4, 5]);
        assert_eq!(known(&mut secrets, now + 62 * minute - Duration::from_secs(1)), [1, 2, 3, 4, 5]);
        assert_eq!(known(&mut secrets, now + 62 * minute), [2, 3, 4, 5]);
        assert_eq!(known(&mut secrets, now + 65 * minute), [5]);
    }

    #[test]
    fn one_that_comes_back_is_current_again() {
        let (mut secrets, now) = (Secrets::new(), Instant::now());
        for number in [0, 1, 0] {
            secrets.learn("token", Secret::token(secret(number)), now);
        }
        assert_eq!(known(&mut secrets, now), [0, 1]);
        assert_eq!(known(&mut secrets, now + KEPT), [0]);
    }

    #[test]
    fn sources_do_not_replace_each_other() {
        let (mut secrets, now) = (Secrets::new(), Instant::now());
        secrets.learn("a", Secret::token(secret(0)), now);
        secrets.learn("b", Secret::token(secret(1)), now);
        assert_eq!(known(&mut secrets, now + KEPT), [0, 1]);
        assert_eq!(secrets.learn("b", Secret::token("short"), now), News::Short);
    }
}
