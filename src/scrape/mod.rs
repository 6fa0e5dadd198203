//! The way of one scrape: fetch (shared), pipeline, host, own families. What a failure costs is decided here:
//! the upstream's part of the answer and nothing else.
//!
//! One fetch and one run of the pipeline serve all clients that wait for it; host and own families are looked
//! at for each client.

mod explanation;
mod health;

use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use self::explanation::Explanation;
use self::health::{Change, Health};
use crate::family::encode;
use crate::host::{self, Host};
use crate::own::{self, BUILD, PageFacts, Visit};
use crate::pipeline::{self, MAIN, Outcome, PageReport, Source};
use crate::process;
use crate::settings::{HostFacts, Settings};
use crate::status::{self, Exporter, Status, Upstream};
use crate::upstream::{Client, Flight, Page, UpstreamError};

/// Answers scrapes.
pub struct Scraper {
    ground: Arc<Ground>,
    flight: Flight<Fetch>,
    started: f64,
    impatience_told: AtomicBool,
}

/// What every fetch needs; it outlives the client that started the fetch.
struct Ground {
    client: Client,
    settings: Settings,
    host: Host,
    health: Mutex<Health>,
}

/// One fetch, taken through the pipeline.
struct Fetch {
    took: Duration,
    ended: Instant,
    result: Result<Understood, UpstreamError>,
}

/// A page and what was made of it. The source and the facts are kept for `/debug`.
struct Understood {
    source: Source,
    facts: HostFacts,
    outcome: Outcome,
    report: PageReport,
    derived: Bytes,
}

/// The answer to one scrape.
#[derive(Debug)]
pub struct Answer {
    /// Whether the upstream's part is in it.
    pub up: bool,
    /// Text 0.0.4, in pieces to be sent one after the other.
    pub pieces: Vec<Bytes>,
}

impl Scraper {
    /// A scraper of one upstream.
    pub fn new(client: Client, settings: Settings, host: Host) -> Scraper {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let ground = Arc::new(Ground { client, settings, host, health: Mutex::default() });
        Scraper { ground, flight: Flight::default(), started, impatience_told: AtomicBool::new(false) }
    }

    /// What is scraped, fit for people.
    pub fn upstream(&self) -> String {
        self.ground.client.options().address.to_string()
    }

    /// The longest that a scrape may take.
    pub fn timeout(&self) -> Duration {
        self.ground.client.options().timeout
    }

    /// The metrics, within `patience`.
    pub async fn answer(&self, patience: Duration) -> Answer {
        let fetch = self.fetch(patience).await;
        let look = self.ground.look();
        let claimed = fetch.result.as_ref().ok().and_then(|page| page.outcome.snapshot.disk_claimed);
        let difference = claimed.map(|fact| self.ground.host.lmcache_difference(fact.value, &look));
        let mut families = look.families;
        families.extend(difference);
        families.extend(own::upstream_families(&fetch.visit()));
        families.extend(own::process_families(&BUILD, self.started, &process::read()));
        let own = Bytes::from(encode(&families));
        match &fetch.result {
            Err(_) => Answer { up: false, pieces: vec![own] },
            Ok(page) => Answer { up: true, pieces: [&page.outcome.page[..], &[page.derived.clone(), own]].concat() },
        }
    }

    /// What `/debug` says, within `patience`.
    pub async fn explanation(&self, patience: Duration) -> String {
        let fetch = self.fetch(patience).await;
        let explained = fetch
            .result
            .as_ref()
            .ok()
            .map(|page| pipeline::explain(slice::from_ref(&page.source), &self.ground.settings, &page.facts));
        let (upstream, collectors) = (self.upstream(), self.ground.look().collectors);
        Explanation { upstream: &upstream, fetch: &fetch, explained: explained.as_deref(), collectors: &collectors }
            .to_string()
    }

    /// What `/api/status` says, within `patience`: the same look at the same page as a scrape's.
    pub async fn status(&self, patience: Duration) -> Status {
        let fetch = self.fetch(patience).await;
        let (page, error) = (fetch.result.as_ref().ok(), fetch.result.as_ref().err());
        let (settings, now) = (&self.ground.settings, SystemTime::now().duration_since(SystemTime::UNIX_EPOCH));
        Status {
            schema: status::SCHEMA,
            time_unix_seconds: now.unwrap_or_default().as_secs_f64(),
            exporter: Exporter::new(&BUILD, self.started, settings.correct),
            upstreams: vec![Upstream::new(&fetch.visit(), self.upstream(), error)],
            engines: page
                .map(|page| pipeline::review(slice::from_ref(&page.source), settings, &page.facts, status::engines))
                .unwrap_or_default(),
            host: status::Host::new(&self.ground.look()),
        }
    }

    async fn fetch(&self, patience: Duration) -> Arc<Fetch> {
        let began = Instant::now();
        let shared = self.flight.join(|| Arc::clone(&self.ground).fetch());
        match timeout(patience, shared).await {
            Ok(Some(fetch)) => fetch,
            Ok(None) => Arc::new(Fetch::new(began, Err(self.ground.told(UpstreamError::Broke)))),
            Err(_) => Arc::new(Fetch::new(began, Err(self.gave_up(patience)))),
        }
    }

    /// The fetch goes on and tells how it ends. That a client could not wait for it is told once: clients with
    /// different timeouts would fill the log in turn.
    fn gave_up(&self, patience: Duration) -> UpstreamError {
        if patience < self.timeout() && !self.impatience_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(?patience, "a client did not wait for the upstream; give it a longer scrape timeout");
        }
        UpstreamError::Timeout(patience)
    }
}

impl Ground {
    async fn fetch(self: Arc<Ground>) -> Fetch {
        let began = Instant::now();
        let result = self.client.fetch().await.and_then(|page| self.understand(page));
        let result = result.map_err(|error| self.told(error));
        if let Ok(page) = &result {
            self.tell(None);
            self.warn(&page.outcome.warnings);
        }
        Fetch::new(began, result)
    }

    fn understand(&self, page: Page) -> Result<Understood, UpstreamError> {
        let facts = HostFacts { upstream_is_local: self.client.options().address.is_local(), ..self.look().facts };
        let source = Source { name: MAIN.to_owned(), body: page.body, format: page.format };
        let mut outcome = pipeline::process(slice::from_ref(&source), &self.settings, &facts);
        let report = outcome.reports.pop().unwrap_or_default();
        // Not one good line: an error page in plain text, or something binary.
        if report.counts.samples == 0 && report.counts.dropped > 0 {
            return Err(UpstreamError::Content("text that holds no sample".to_owned()));
        }
        let derived = Bytes::from(encode(&outcome.families));
        Ok(Understood { source, facts, outcome, report, derived })
    }

    fn look(&self) -> host::Look {
        self.host.look(std::time::Instant::now())
    }

    fn told(&self, error: UpstreamError) -> UpstreamError {
        self.tell(Some(&error));
        error
    }

    fn tell(&self, error: Option<&UpstreamError>) {
        let upstream = &self.client.options().address;
        let result = error.map_or(Ok(()), |error| Err(error.reason()));
        let change = self.health().note(result);
        match (change, error) {
            (Some(Change::Down), Some(error)) => {
                tracing::warn!(%upstream, reason = error.reason(), body = error.excerpt(), "the upstream {error}");
            }
            (Some(Change::Up { failed }), _) => tracing::info!(%upstream, failed, "the upstream answers"),
            (_, Some(error)) => tracing::debug!(%upstream, reason = error.reason(), "the upstream {error}"),
            (None | Some(Change::Down), None) => {}
        }
    }

    fn warn(&self, warnings: &[String]) {
        let mut health = self.health();
        for warning in warnings.iter().filter(|warning| health.is_new(warning)) {
            tracing::warn!("{warning}");
        }
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetch {
    fn new(began: Instant, result: Result<Understood, UpstreamError>) -> Fetch {
        let ended = Instant::now();
        Fetch { took: ended - began, ended, result }
    }

    fn visit(&self) -> Visit<'_> {
        let result = match &self.result {
            Ok(page) => Ok(PageFacts {
                age: self.ended.elapsed(),
                bytes: page.source.body.len(),
                counts: &page.report.counts,
                snapshot: &page.outcome.snapshot,
            }),
            Err(error) => Err(error.reason()),
        };
        Visit { upstream: MAIN, took: self.took, result }
    }
}
