//! Streams and pages brought together, scrape by scrape: what a chunk has in bytes, and what other sizes would have
//! done over the window. Pure: it has no clock but the streams' own time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::resident::chunk_bytes;
use super::sizing::{Mark, Prediction, Window};
use super::{Resident, Status};
use crate::model::{Engine, EngineId, ratio};
use crate::settings::Stream;

/// Chunks that the stream must have told of before bytes are divided by them.
const ENOUGH: f64 = 16.0;

/// What is remembered between scrapes, by endpoint.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<String, Account>,
}

#[derive(Debug, Default)]
struct Account {
    window: Window,
    chunk_bytes: Option<f64>,
    stated: Option<f64>,
    /// Bytes stored by the page and chunks stored by the stream: at first, and at the last scrape.
    first: Option<(f64, f64)>,
    last: Option<(f64, f64)>,
    /// The page's counters fell when the stream had stored so many chunks: until it begins anew, it tells of an
    /// engine that is no more.
    outlived: Option<f64>,
}

/// What one engine's stream and page say together.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// The engine of the page.
    pub engine: EngineId,
    /// How its stream is, and what it knows.
    pub status: Arc<Status>,
    /// What is in its tier.
    pub resident: Option<Resident>,
    /// What other sizes would have done, or why that is not known.
    pub prediction: Result<Prediction, &'static str>,
}

impl Ledger {
    /// The streams that tell of what is now.
    pub fn streams(&self, statuses: &[Arc<Status>]) -> Vec<Stream> {
        statuses.iter().filter_map(|status| self.stream(status)).collect()
    }

    fn stream(&self, status: &Status) -> Option<Stream> {
        let view = status.view.as_ref().filter(|_| status.current)?;
        let account = self.accounts.get(&status.endpoint);
        let outlived = account.and_then(|account| account.outlived);
        if outlived.is_some_and(|stored| view.stored as f64 >= stored) {
            return None;
        }
        Some(Stream {
            rank: view.rank,
            bounds: view.bounds,
            chunk_bytes: account.and_then(|account| account.chunk_bytes),
        })
    }

    /// Takes in what a page says of an engine beside what its stream has told, and predicts.
    pub fn note(&mut self, engine: &Engine, status: &Arc<Status>, resident: Option<Resident>, limits: Limits) -> Told {
        let account = self.accounts.entry(status.endpoint.clone()).or_default();
        account.note(engine, status, limits);
        let prediction = account.predict(engine, status, resident);
        Told { engine: engine.id.clone(), status: Arc::clone(status), resident, prediction }
    }
}

/// Within which predictions are made.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Seconds of the stream's time.
    pub window: f64,
    /// Share of the tokens asked by which the prediction for the present size may be off.
    pub max_error: f64,
}

/// The place of an engine's endpoint, as [`super::resident::stream_of`] finds a stream.
pub(super) fn status_of(statuses: &[Arc<Status>], engine: &EngineId, alone: bool) -> Option<usize> {
    if statuses.len() == 1 && alone {
        return Some(0);
    }
    let rank = |status: &Status| status.view.as_ref().map(|view| view.rank.to_string());
    let mut fitting = statuses.iter().enumerate().filter(|(_, status)| rank(status).as_ref() == Some(&engine.engine));
    let first = fitting.next().map(|(at, _)| at);
    if fitting.next().is_some() { None } else { first }
}

impl Account {
    fn note(&mut self, engine: &Engine, status: &Status, limits: Limits) {
        let (Some(view), Some(tier)) = (status.view.as_ref().filter(|_| status.current), engine.tier("ram")) else {
            return;
        };
        let Some(bytes) = tier.transfers.stored_bytes.map(|fact| fact.value) else { return };
        let chunks = view.stored as f64;
        if let Some((last_bytes, last_chunks)) = self.last {
            let outlived = (bytes < last_bytes && chunks >= last_chunks).then_some(chunks);
            if bytes < last_bytes || chunks < last_chunks {
                *self = Account { outlived, ..Account::default() };
            }
        }
        let origin = if view.from_start { (0.0, 0.0) } else { (bytes, chunks) };
        let first = *self.first.get_or_insert(origin);
        self.last = Some((bytes, chunks));
        self.learn_chunk(chunk_bytes(tier), (bytes - first.0, chunks - first.1));
        if let (Some(asked), Some(supplied)) = (engine.external_queries, engine.external_hits) {
            let mark = Mark { at: view.at, asked: asked.value, supplied: supplied.value, gauge: view.gauge.clone() };
            self.window.push(mark, limits.window);
        }
    }

    /// The page's own figure wins, and is kept. Bytes and chunks are not counted at the same moment, so their quotient
    /// is taken anew as it rests on more.
    fn learn_chunk(&mut self, stated: Option<f64>, (bytes, chunks): (f64, f64)) {
        self.stated = stated.or(self.stated);
        let counted = || ratio(bytes, chunks).filter(|bytes| chunks >= ENOUGH && *bytes > 0.0);
        self.chunk_bytes = self.stated.or_else(counted).or(self.chunk_bytes);
    }

    fn predict(
        &self,
        engine: &Engine,
        status: &Status,
        resident: Option<Resident>,
    ) -> Result<Prediction, &'static str> {
        if !status.current {
            return Err("the stream is not up to date");
        }
        if engine.external_queries.is_none() || engine.external_hits.is_none() {
            return Err("the page does not count the tokens that the connector was asked for");
        }
        let slots = resident.and_then(|resident| resident.slots);
        self.window
            .predict(slots.ok_or("the slots of the tier are not known: they need its size and the bytes of a chunk")?)
    }
}
