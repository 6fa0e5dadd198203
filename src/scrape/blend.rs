//! The pages of one scrape, taken through the pipeline together. All clients that got the same pages share one run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use bytes::Bytes;

use super::aside::{SMALL, Turn};
use super::beside::Beside;
use super::target::Fetch;
use crate::events::{Events, ledger::Told};
use crate::family::encode;
use crate::pipeline::{self, MAIN, Outcome, PageReport, Source};
use crate::settings::{HostFacts, Settings};
use crate::web::Common;

/// What the upstreams answered to one scrape, the main one first.
#[derive(Clone)]
pub(super) struct Round {
    pub(super) main: Arc<Fetch>,
    pub(super) extras: Vec<Arc<Fetch>>,
}

/// What was made of a round. The sources and the facts are kept for `/debug`.
pub(super) struct Blend {
    /// The extras of the round. The main fetch holds this blend, so it is not held here.
    extras: Vec<Arc<Fetch>>,
    pub(super) sources: Vec<Source>,
    pub(super) facts: HostFacts,
    pub(super) outcome: Outcome,
    /// What the event streams say of these pages' engines.
    pub(super) told: Vec<Told>,
    /// The corrected page and the families derived from it.
    pub(super) page: Arc<Common>,
    /// Our own code panicked over these pages.
    pub(super) broke: bool,
    told_of: AtomicBool,
}

impl Round {
    /// Every fetch, the main one first.
    pub(super) fn fetches(&self) -> impl Iterator<Item = &Arc<Fetch>> {
        std::iter::once(&self.main).chain(&self.extras)
    }

    /// The turns that work on this round takes: those of its large pages; or `together` where there are none, and yet the
    /// small ones are large together. None where they are not.
    pub(super) fn turns(&self, together: &Turn) -> Vec<Turn> {
        let large: Vec<_> = self.fetches().filter_map(|fetch| fetch.turn()).collect();
        let bytes: usize = self.fetches().map(|fetch| fetch.bytes()).sum();
        if large.is_empty() && bytes > SMALL { vec![together.clone()] } else { large }
    }

    /// Which of its pages are to be left out next, when work on it was not done in time: the large ones; where there are
    /// none, those for which there is no room beside the ones before them.
    pub(super) fn unfinished(&self) -> Vec<bool> {
        if self.fetches().any(|fetch| fetch.turn().is_some()) {
            return self.fetches().map(|fetch| fetch.turn().is_some()).collect();
        }
        let mut room = SMALL;
        let fits = |bytes| room.checked_sub(bytes).map(|left| room = left).is_some();
        self.fetches().map(|fetch| fetch.bytes()).map(fits).map(|fits| !fits).collect()
    }

    /// What there is of this round, made now if nobody has.
    pub(super) fn blend(
        &self,
        settings: &Settings,
        events: Option<&Events>,
        beside: &Beside,
        facts: impl FnOnce() -> HostFacts,
    ) -> Arc<Blend> {
        if let Some(blend) = self.last().as_ref().filter(|blend| blend.is_of(&self.extras)) {
            return Arc::clone(blend);
        }
        let blend = Arc::new(Blend::new(self, settings, events, beside, facts()));
        *self.last() = Some(Arc::clone(&blend));
        blend
    }

    /// Not to be held for long: the thread that answers everybody takes it too.
    fn last(&self) -> MutexGuard<'_, Option<Arc<Blend>>> {
        self.main.blend.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blend {
    fn new(
        round: &Round,
        settings: &Settings,
        events: Option<&Events>,
        beside: &Beside,
        mut facts: HostFacts,
    ) -> Blend {
        let statuses = events.map(Events::look).unwrap_or_default();
        facts.streams = events.map(|events| events.streams(&statuses)).unwrap_or_default();
        let sources: Vec<Source> = round.fetches().filter_map(|fetch| fetch.result.as_ref().ok()).cloned().collect();
        // The pipeline is pure: nothing of it is left half done behind a panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| process(&sources, settings, beside, &facts)));
        let (mut outcome, broke) = outcome.map_or_else(|_| (Outcome::default(), true), |outcome| (outcome, false));
        let mut told = Vec::new();
        if let Some(events) = events {
            told = events.meet(&statuses, &outcome.snapshot.engines, &outcome.residents);
            outcome.families.extend(events.engine_families(&told));
        }
        let derived = Bytes::from(encode(&outcome.families));
        let page = Arc::new(Common::new([std::mem::take(&mut outcome.page), vec![derived]].concat()));
        let (extras, told_of) = (round.extras.clone(), AtomicBool::new(false));
        Blend { extras, sources, facts, outcome, told, page, broke, told_of }
    }

    /// `true` for the first who asks.
    pub(super) fn is_news(&self) -> bool {
        !self.told_of.swap(true, Ordering::Relaxed)
    }

    fn is_of(&self, extras: &[Arc<Fetch>]) -> bool {
        self.extras.len() == extras.len()
            && self.extras.iter().zip(extras).all(|(ours, theirs)| Arc::ptr_eq(ours, theirs))
    }

    /// What the pipeline says of an upstream's page.
    pub(super) fn report(&self, upstream: &str) -> Option<&PageReport> {
        self.outcome.reports.iter().find(|report| report.name == upstream)
    }
}

fn process(sources: &[Source], settings: &Settings, beside: &Beside, facts: &HostFacts) -> Outcome {
    let outcome = pipeline::process_beside(&beside.layout(), sources, settings, facts);
    if let Some(main) = sources.first().filter(|source| source.name == MAIN) {
        beside.note(outcome.is_unfamiliar, || pipeline::layout(main));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Format;

    #[test]
    fn a_page_is_read_beside_those_before_it() {
        let beside = Beside::default();
        let is_unfamiliar = |name: &str, page: &str| {
            let source = Source { name: name.to_owned(), body: page.to_owned().into(), format: Format::Text };
            process(&[source], &Settings::default(), &beside, &HostFacts::default()).is_unfamiliar
        };
        assert!(is_unfamiliar(MAIN, "a 1\nb 1\n"));
        assert!(!is_unfamiliar(MAIN, "a 2\nb 2\n") && !is_unfamiliar(MAIN, "a 3\nb 3\n"));
        // A scrape without the main page leaves it as it is.
        assert!(!is_unfamiliar("cache", "c 1\n") && !is_unfamiliar("cache", "c 2\n"));
        assert!(!is_unfamiliar(MAIN, "a 4\nb 4\n"));
        assert!(is_unfamiliar(MAIN, "a 4\nc 4\n") && is_unfamiliar(MAIN, "a 5\nc 5\n"));
        assert!(!is_unfamiliar(MAIN, "a 6\nc 6\n"));
    }
}
