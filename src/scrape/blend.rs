//! The pages of one scrape, taken through the pipeline together. All clients that got the same pages share one run.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

use bytes::Bytes;

use super::aside::Turn;
use super::target::Fetch;
use crate::events::{Events, ledger::Told};
use crate::exposition::Layout;
use crate::family::encode;
use crate::pipeline::{self, Outcome, PageReport, Source};
use crate::settings::{HostFacts, Settings};

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
    pub(super) derived: Bytes,
    /// Our own code panicked over these pages.
    pub(super) broke: bool,
    told_of: AtomicBool,
}

impl Round {
    /// Every fetch, the main one first.
    pub(super) fn fetches(&self) -> impl Iterator<Item = &Arc<Fetch>> {
        std::iter::once(&self.main).chain(&self.extras)
    }

    /// The turns that work on this round takes; none where all pages are small.
    pub(super) fn turns(&self) -> impl Iterator<Item = Turn> {
        self.fetches().filter_map(|fetch| fetch.turn())
    }

    /// What there is of this round, made now if nobody has.
    pub(super) fn blend(
        &self,
        settings: &Settings,
        events: Option<&Events>,
        facts: impl FnOnce() -> HostFacts,
    ) -> Arc<Blend> {
        if let Some(blend) = self.last().as_ref().filter(|blend| blend.is_of(&self.extras)) {
            return Arc::clone(blend);
        }
        let blend = Arc::new(Blend::new(self, settings, events, facts()));
        *self.last() = Some(Arc::clone(&blend));
        blend
    }

    /// What the pipeline makes of the pages, read beside the layout of the main upstream's. Where that page is another one
    /// now, the next is read beside this one.
    fn process(&self, sources: &[Source], settings: &Settings, facts: &HostFacts) -> Outcome {
        let layout = Arc::clone(&self.layout());
        let outcome = pipeline::process_beside(&layout, sources, settings, facts);
        if let Some(main) = sources.first().filter(|_| outcome.is_changed) {
            *self.layout() = Arc::new(pipeline::layout(main));
        }
        outcome
    }

    fn layout(&self) -> MutexGuard<'_, Arc<Layout>> {
        self.main.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Not to be held for long: the thread that answers everybody takes it too.
    fn last(&self) -> MutexGuard<'_, Option<Arc<Blend>>> {
        self.main.blend.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blend {
    fn new(round: &Round, settings: &Settings, events: Option<&Events>, mut facts: HostFacts) -> Blend {
        let statuses = events.map(Events::look).unwrap_or_default();
        facts.streams = events.map(|events| events.streams(&statuses)).unwrap_or_default();
        let sources: Vec<Source> = round.fetches().filter_map(|fetch| fetch.result.as_ref().ok()).cloned().collect();
        // The pipeline is pure: nothing of it is left half done behind a panic.
        let outcome = catch_unwind(AssertUnwindSafe(|| round.process(&sources, settings, &facts)));
        let (mut outcome, broke) = outcome.map_or_else(|_| (Outcome::default(), true), |outcome| (outcome, false));
        let mut told = Vec::new();
        if let Some(events) = events {
            told = events.meet(&statuses, &outcome.snapshot.engines, &outcome.residents);
            outcome.families.extend(events.engine_families(&told));
        }
        let derived = Bytes::from(encode(&outcome.families));
        let (extras, told_of) = (round.extras.clone(), AtomicBool::new(false));
        Blend { extras, sources, facts, outcome, told, derived, broke, told_of }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::pipeline::{Format, MAIN};
    use crate::scrape::target::Target;
    use crate::upstream::{Address, Client, Options, TlsOptions};

    fn target() -> Target {
        let options = Options {
            address: Address::parse("127.0.0.1:1").unwrap(),
            timeout: Duration::from_secs(1),
            max_bytes: 1000,
            min_interval: Duration::ZERO,
            secret: None,
            tls: TlsOptions::default(),
        };
        Target::new(MAIN.to_owned(), Client::new(options).unwrap())
    }

    #[test]
    fn a_page_is_read_beside_the_one_before_until_it_is_another_one() {
        let target = target();
        let is_changed = |page: &str| {
            let source = Source { name: MAIN.to_owned(), body: page.to_owned().into(), format: Format::Text };
            let main = Arc::new(target.fetched(tokio::time::Instant::now(), Ok(source)));
            let round = Round { main, extras: Vec::new() };
            round.blend(&Settings::default(), None, HostFacts::default).outcome.is_changed
        };
        assert!(is_changed("a 1\nb 1\n"));
        assert!(!is_changed("a 2\nb 2\n") && !is_changed("a 3\nb 3\n"));
        assert!(is_changed("a 3\nc 3\n") && !is_changed("a 4\nc 4\n"));
    }
}
