//! One upstream as a scrape sees it: its name, its shared fetch, and what was said of its health so far.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::aside::{SMALL, Turn, aside};
use super::blend::Blend;
use super::health::{Change, Health};
use super::held::{Held, Share};
use crate::pipeline::{self, MAIN, Source};
use crate::upstream::{Client, Flight, Page, Role, Ticket, UpstreamError};

/// How often the log is told that a client did not wait.
const IMPATIENCE_EVERY: Duration = Duration::from_secs(3600);

/// One upstream.
pub(super) struct Target {
    /// Value of the `upstream` label.
    pub(super) name: String,
    pub(super) client: Client,
    flight: Flight<Fetch>,
    turn: Turn,
    held: Held,
    health: Mutex<Health>,
    impatience_told: Mutex<Option<Instant>>,
}

/// One fetch.
pub(super) struct Fetch {
    pub(super) took: Duration,
    pub(super) ended: Instant,
    pub(super) result: Result<Source, UpstreamError>,
    /// What was last made of this fetch and those of the other upstreams. It lives where the first of them lives,
    /// so that all who wait for it share it and nobody else does.
    pub(super) blend: Mutex<Option<Arc<Blend>>>,
    turn: Turn,
    _held: Share,
}

impl Target {
    /// Its pages are counted in `held`.
    pub(super) fn new(name: String, client: Client, held: Held) -> Target {
        let flight = Flight::keeping(client.options().min_interval);
        let (health, impatience_told) = (Mutex::default(), Mutex::default());
        Target { name, client, flight, turn: Turn::new(), held, health, impatience_told }
    }

    /// What can be done about its failures depends on it.
    pub(super) fn role(&self) -> Role {
        if self.name == MAIN { Role::Main } else { Role::Extra }
    }

    /// Takes part in the fetch that is under way, or in one that is begun now.
    pub(super) fn join(self: &Arc<Target>) -> Ticket<Fetch> {
        let visitor = Arc::clone(self);
        self.flight.join(|| visitor.visit())
    }

    /// The page, or why there is none, at the end of `patience`, which began then.
    pub(super) async fn landed(&self, ticket: Ticket<Fetch>, began: Instant, patience: Duration) -> Arc<Fetch> {
        match timeout_at(began + patience, ticket.landed()).await {
            Ok(Some(fetch)) => fetch,
            Ok(None) => Arc::new(self.fetched(began, Err(self.told(UpstreamError::Broke)))),
            Err(_) => Arc::new(self.fetched(began, Err(self.gave_up(patience)))),
        }
    }

    async fn visit(self: Arc<Target>) -> Fetch {
        let began = Instant::now();
        let result = match self.client.fetch().await {
            Ok(page) => self.judged(page, began).await,
            Err(error) => Err(error),
        };
        if result.is_ok() {
            self.tell(None);
        }
        self.fetched(began, result.map_err(|error| self.told(error)))
    }

    /// The page, if it is one. A large one waits here until the one before it is worked through, and all who come
    /// meanwhile wait for it: so no more than two are held.
    async fn judged(&self, page: Page, began: Instant) -> Result<Source, UpstreamError> {
        let (body, format) = (page.body.clone(), page.format);
        let (is_large, begins_well) = (body.len() > SMALL, pipeline::begins_well(&body, format));
        let limit = self.client.options().timeout;
        let turn = is_large.then(|| self.turn.clone());
        let is_garbage = match (turn, begins_well) {
            (None, true) => Some(false),
            (Some(turn), true) => turn.comes(began + limit).await.then_some(false),
            // Many small pages that come at once are a large one.
            (turn, false) => aside(turn, began + limit, move || pipeline::is_garbage(&body, format)).await,
        };
        match is_garbage {
            Some(false) => Ok(Source { name: self.name.clone(), body: page.body, format }),
            Some(true) => Err(UpstreamError::without_sample(&page.body)),
            None => Err(UpstreamError::Unworked(limit)),
        }
    }

    fn fetched(&self, began: Instant, result: Result<Source, UpstreamError>) -> Fetch {
        let ended = Instant::now();
        self.fetch(ended - began, ended, result)
    }

    fn fetch(&self, took: Duration, ended: Instant, result: Result<Source, UpstreamError>) -> Fetch {
        let held = self.held.share(result.as_ref().map_or(0, |source| source.body.len()));
        Fetch { took, ended, result, blend: Mutex::default(), turn: self.turn.clone(), _held: held }
    }

    /// The same fetch, as one whose page was not worked through.
    pub(super) fn unfinished(&self, fetch: &Fetch, patience: Duration) -> Fetch {
        self.fetch(fetch.took, fetch.ended, Err(self.told(UpstreamError::Unworked(patience))))
    }

    /// The fetch goes on and tells how it ends. That a client could not wait for it is told once an hour: clients with
    /// different timeouts would fill the log in turn.
    fn gave_up(&self, patience: Duration) -> UpstreamError {
        if self.turn.is_taken() {
            return self.told(UpstreamError::Unworked(patience));
        }
        if patience < self.client.options().timeout && self.is_time_to_tell_of_impatience(Instant::now()) {
            tracing::warn!(
                upstream = self.name,
                ?patience,
                "a client did not wait for the upstream; give it a longer scrape timeout"
            );
        }
        self.client.late(patience)
    }

    fn is_time_to_tell_of_impatience(&self, now: Instant) -> bool {
        let mut told = self.impatience_told.lock().unwrap_or_else(PoisonError::into_inner);
        let is_time = told.is_none_or(|at| now.duration_since(at) >= IMPATIENCE_EVERY);
        if is_time {
            *told = Some(now);
        }
        is_time
    }

    pub(super) fn told(&self, error: UpstreamError) -> UpstreamError {
        self.tell(Some(&error));
        error
    }

    fn tell(&self, error: Option<&UpstreamError>) {
        let (upstream, url) = (&self.name, &self.client.options().address);
        let result = error.map_or(Ok(()), |error| Err(error.reason()));
        let change = self.health.lock().unwrap_or_else(PoisonError::into_inner).note(result, Instant::now());
        match (change, error) {
            (Some(Change::Down), Some(error)) => {
                let (told, body) = (error.told(self.role()), error.excerpt());
                tracing::warn!(upstream, %url, reason = error.reason(), body, "the upstream {told}");
            }
            (Some(Change::Up { failed: 0 }), _) => tracing::info!(upstream, %url, "the upstream answers"),
            (Some(Change::Up { failed }), _) => tracing::info!(upstream, %url, failed, "the upstream answers"),
            (_, Some(error)) => {
                tracing::debug!(upstream, %url, reason = error.reason(), "the upstream {}", error.told(self.role()));
            }
            (None | Some(Change::Down), None) => {}
        }
    }
}

impl Fetch {
    /// Of its page; 0 where there is none.
    pub(super) fn bytes(&self) -> usize {
        self.result.as_ref().map_or(0, |source| source.body.len())
    }

    /// The turn that is needed to work on its page, where that is large.
    pub(super) fn turn(&self) -> Option<Turn> {
        (self.bytes() > SMALL).then(|| self.turn.clone())
    }
}
