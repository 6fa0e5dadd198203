//! One upstream as a scrape sees it: its name, its shared fetch, and what was said of its health so far.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::blend::Blend;
use super::health::{Change, Health};
use crate::pipeline::{self, Source};
use crate::upstream::{Client, Flight, UpstreamError};

/// One upstream.
pub(super) struct Target {
    /// Value of the `upstream` label.
    pub(super) name: String,
    pub(super) client: Client,
    flight: Flight<Fetch>,
    health: Mutex<Health>,
    impatience_told: AtomicBool,
}

/// One fetch.
pub(super) struct Fetch {
    pub(super) took: Duration,
    pub(super) ended: Instant,
    pub(super) result: Result<Source, UpstreamError>,
    /// What was last made of this fetch and those of the other upstreams. It lives where the first of them lives,
    /// so that all who wait for it share it and nobody else does.
    pub(super) blend: Mutex<Option<Arc<Blend>>>,
}

impl Target {
    pub(super) fn new(name: String, client: Client) -> Target {
        let flight = Flight::keeping(client.options().min_interval);
        Target { name, client, flight, health: Mutex::default(), impatience_told: AtomicBool::new(false) }
    }

    /// The page, or why there is none, within `patience`. The fetch is under way when this returns.
    pub(super) fn fetch(self: &Arc<Target>, patience: Duration) -> impl Future<Output = Arc<Fetch>> + use<> {
        let (target, visitor, began) = (Arc::clone(self), Arc::clone(self), Instant::now());
        let shared = self.flight.join(|| visitor.visit());
        async move {
            match timeout(patience.saturating_sub(began.elapsed()), shared).await {
                Ok(Some(fetch)) => fetch,
                Ok(None) => Arc::new(Fetch::new(began, Err(target.told(UpstreamError::Broke)))),
                Err(_) => Arc::new(Fetch::new(began, Err(target.gave_up(patience)))),
            }
        }
    }

    async fn visit(self: Arc<Target>) -> Fetch {
        let began = Instant::now();
        let result = match self.client.fetch().await {
            Ok(page) if pipeline::is_garbage(&page.body, page.format) => {
                Err(UpstreamError::Content("text that holds no sample".to_owned()))
            }
            Ok(page) => Ok(Source { name: self.name.clone(), body: page.body, format: page.format }),
            Err(error) => Err(error),
        };
        if result.is_ok() {
            self.tell(None);
        }
        Fetch::new(began, result.map_err(|error| self.told(error)))
    }

    /// The fetch goes on and tells how it ends. That a client could not wait for it is told once: clients with
    /// different timeouts would fill the log in turn.
    fn gave_up(&self, patience: Duration) -> UpstreamError {
        if patience < self.client.options().timeout && !self.impatience_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                upstream = self.name,
                ?patience,
                "a client did not wait for the upstream; give it a longer scrape timeout"
            );
        }
        UpstreamError::Timeout(patience)
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
                tracing::warn!(upstream, %url, reason = error.reason(), body = error.excerpt(), "the upstream {error}");
            }
            (Some(Change::Up { failed }), _) => tracing::info!(upstream, %url, failed, "the upstream answers"),
            (_, Some(error)) => tracing::debug!(upstream, %url, reason = error.reason(), "the upstream {error}"),
            (None | Some(Change::Down), None) => {}
        }
    }
}

impl Fetch {
    fn new(began: Instant, result: Result<Source, UpstreamError>) -> Fetch {
        let ended = Instant::now();
        Fetch { took: ended - began, ended, result, blend: Mutex::default() }
    }
}
