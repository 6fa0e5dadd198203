//! Streams and pages brought together, scrape by scrape: what a chunk has in bytes, and what other sizes would have
//! done over the window. Pure: it has no clock but the streams' own time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fold::View;
use super::resident::{Peers, chunk_bytes};
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
    /// Bytes promoted into the tier: at first, and at the last scrape.
    promoted: Option<(f64, f64)>,
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
    /// Chunks that a tier behind this one gave back since the stream is followed: to the stream they are stores.
    /// Unknown unless the page states the bytes of a chunk.
    pub promoted: Option<f64>,
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
            several_groups: view.gauge.several_groups,
        })
    }

    /// Takes in what a page says of an engine beside what its stream has told, and predicts.
    pub fn note(&mut self, engine: &Engine, status: &Arc<Status>, resident: Option<Resident>, limits: Limits) -> Told {
        let account = self.accounts.entry(status.endpoint.clone()).or_default();
        account.note(engine, status, limits);
        let prediction = account.predict(engine, status, resident);
        let promoted = account.promoted_chunks();
        Told { engine: engine.id.clone(), status: Arc::clone(status), resident, promoted, prediction }
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
pub(super) fn status_of(statuses: &[Arc<Status>], engine: &EngineId, peers: Peers) -> Option<usize> {
    match peers {
        Peers::None if statuses.len() == 1 => return Some(0),
        Peers::SameRank => return None,
        Peers::None | Peers::OtherRanks => {}
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
        let Some(stored) = tier.transfers.stored_bytes.map(|fact| fact.value) else { return };
        // To the stream a promotion is a store like any other; the page counts it apart.
        let promoted = tier.promoted.map(|fact| fact.value);
        let bytes = stored + promoted.unwrap_or(0.0);
        let chunks = view.stored as f64;
        if let Some((last_bytes, last_chunks)) = self.last {
            let outlived = bytes < last_bytes && chunks >= last_chunks && self.claims_more(view, bytes);
            if bytes < last_bytes || chunks < last_chunks {
                *self = Account { outlived: outlived.then_some(chunks), ..Account::default() };
            }
        }
        let origin = if view.from_start { (0.0, 0.0) } else { (bytes, chunks) };
        let first = *self.first.get_or_insert(origin);
        self.last = Some((bytes, chunks));
        let before = self.promoted.map(|(before, _)| before).or(view.from_start.then_some(0.0));
        self.promoted = promoted.map(|now| (before.unwrap_or(now), now));
        self.learn_chunk(chunk_bytes(tier), (bytes - first.0, chunks - first.1));
        if let (Some(asked), Some(supplied)) = (engine.external_queries, engine.external_hits) {
            let mark = Mark { at: view.at, asked: asked.value, supplied: supplied.value, gauge: view.gauge.clone() };
            self.window.push(mark, limits.window);
        }
    }

    /// Whether the stream tells of more than the page has stored: a stream that began with the engine never does, but
    /// for what is counted a moment later.
    fn claims_more(&self, view: &View, bytes: f64) -> bool {
        let chunk = self.chunk_bytes.unwrap_or(0.0);
        !view.from_start || view.stored as f64 * chunk > bytes * 1.1 + ENOUGH * chunk
    }

    /// The page's own figure wins, and is kept. Bytes and chunks are not counted at the same moment, so their quotient
    /// is taken anew as it rests on more.
    fn learn_chunk(&mut self, stated: Option<f64>, (bytes, chunks): (f64, f64)) {
        self.stated = stated.or(self.stated);
        let counted = || ratio(bytes, chunks).filter(|bytes| chunks >= ENOUGH && *bytes > 0.0);
        self.chunk_bytes = self.stated.or_else(counted).or(self.chunk_bytes);
    }

    /// A whole number, since bytes of a chunk that were only reckoned would let it fall.
    fn promoted_chunks(&self) -> Option<f64> {
        let (first, now) = self.promoted?;
        ratio(now - first, self.stated?).map(f64::round)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Bounds;
    use crate::events::resident::resident;
    use crate::model::{Fact, Medium, Size, SizeSource, Slots};

    const LIMITS: Limits = Limits { window: 3600.0, max_error: 0.03 };

    fn fact(value: f64) -> Option<Fact> {
        Some(Fact::new(value, "test"))
    }

    /// An engine whose RAM tier has so many bytes stored.
    fn engine(stored: f64) -> Engine {
        let mut engine = Engine::new(EngineId::new("m", "0"));
        (engine.external_queries, engine.external_hits) = (fact(100.0), fact(0.0));
        let tier = engine.tier_or_insert("ram", Medium::Ram, "OffloadingConnector");
        tier.bounded_by_stores = true;
        tier.transfers.stored_bytes = fact(stored);
        tier.storing = fact(0.25);
        engine
    }

    fn status(stored: u64, from_start: bool, bounds: Bounds) -> Arc<Status> {
        let view = View { stored, from_start, bounds, ..View::default() };
        Arc::new(Status {
            endpoint: "tcp://h:1".into(),
            up: true,
            current: true,
            view: Some(view),
            ..Status::default()
        })
    }

    fn size(bytes: f64) -> Option<Size> {
        Some(Size { fact: Fact::new(bytes, "test"), source: SizeSource::Flag })
    }

    fn exactly(chunks: u64) -> Bounds {
        Bounds { sure: chunks, possible: chunks, ..Bounds::default() }
    }

    #[test]
    fn bytes_of_a_chunk_follow_from_what_page_and_stream_counted() {
        let mut ledger = Ledger::default();
        let status = status(20, true, exactly(20));
        assert_eq!(ledger.streams(&[Arc::clone(&status)])[0].chunk_bytes, None);
        ledger.note(&engine(2000.0), &status, None, LIMITS);
        // 2000 bytes ÷ 20 chunks, both since the engine's start.
        assert_eq!(ledger.streams(&[status])[0].chunk_bytes, Some(100.0));
    }

    #[test]
    fn what_a_tier_behind_gave_back_was_stored_too() {
        let (mut ledger, status) = (Ledger::default(), status(20, true, exactly(20)));
        let mut engine = engine(1500.0);
        engine.tiers[0].promoted = fact(500.0);
        ledger.note(&engine, &status, None, LIMITS);
        // 15 chunks from the GPU and 5 promoted, of 100 bytes each.
        assert_eq!(ledger.streams(&[status])[0].chunk_bytes, Some(100.0));
    }

    #[test]
    fn promotions_are_told_from_stores_where_the_bytes_of_a_chunk_are_stated() {
        let stated = Slots {
            allocated: None,
            count: Fact::new(10.0, "test"),
            bytes: Fact::new(1000.0, "test"),
            blocks_per_slot: None,
        };
        for (from_start, first, then) in [(true, Some(2.0), Some(5.0)), (false, Some(0.0), Some(3.0))] {
            let (mut ledger, status) = (Ledger::default(), status(20, from_start, exactly(10)));
            let mut engine = engine(1500.0);
            let mut after = |bytes: f64| {
                engine.tiers[0].promoted = fact(bytes);
                ledger.note(&engine, &status, None, LIMITS).promoted
            };
            // Not stated: not known, though 20 chunks of 2000 bytes say as much.
            assert_eq!(after(200.0), None);
            engine.tiers[0].slots = Some(stated);
            let mut after = |bytes: f64| {
                engine.tiers[0].promoted = fact(bytes);
                ledger.note(&engine, &status, None, LIMITS).promoted
            };
            assert_eq!((after(200.0), after(500.0)), (first, then));
        }
    }

    #[test]
    fn of_a_late_stream_only_what_came_since_counts() {
        let mut ledger = Ledger::default();
        ledger.note(&engine(9000.0), &status(5, false, exactly(5)), None, LIMITS);
        let later = status(25, false, exactly(25));
        assert_eq!(ledger.streams(&[Arc::clone(&later)])[0].chunk_bytes, None);
        ledger.note(&engine(11_000.0), &later, None, LIMITS);
        assert_eq!(ledger.streams(&[later])[0].chunk_bytes, Some(100.0));
    }

    #[test]
    fn a_stream_that_outlived_its_engine_says_nothing_until_it_begins_anew() {
        let mut ledger = Ledger::default();
        let old = status(40, true, exactly(20));
        ledger.note(&engine(4000.0), &old, None, LIMITS);
        // The page's counters are back at the beginning, and the stream has not noticed.
        ledger.note(&engine(0.0), &old, None, LIMITS);
        assert_eq!(ledger.streams(&[old]), []);
        assert_eq!(ledger.streams(&[status(1, true, exactly(1))]).len(), 1);
    }

    #[test]
    fn a_stream_that_is_not_up_to_date_says_nothing() {
        let late = Status { current: false, ..(*status(20, true, exactly(20))).clone() };
        assert_eq!(Ledger::default().streams(&[Arc::new(late)]), []);
    }

    #[test]
    fn chunks_become_bytes_and_a_full_tier_with_strangers_has_a_known_number() {
        let engine = engine(0.0);
        let stream = |bounds| Stream { rank: 0, bounds, chunk_bytes: Some(100.0), several_groups: false };
        let told = |bounds| resident(&engine.tiers[0], size(1000.0), Some(&stream(bounds))).unwrap();
        // Four chunks of 100 bytes, and a quarter of 1000 bytes on its way in.
        let exact = told(exactly(4));
        assert_eq!(exact.bytes(), (Some(400.0), Some(400.0)));
        assert_eq!(exact.fill().and_then(|fill| fill.bytes()), Some(650.0));
        // Ten slots, of which a quarter is being filled: 7.5 are ready at least.
        let strangers = Bounds { strangers: true, full: true, ..exactly(4) };
        assert_eq!((told(strangers).chunks, told(strangers).fill()), ((7.5, Some(10.0)), None));
        let open = Bounds { sure: 1, possible: 4, ..Bounds::default() };
        assert_eq!((told(open).shares(), told(open).fill()), ((Some(0.1), Some(0.4)), None));
    }

    #[test]
    fn another_connector_and_another_tier_are_not_measured() {
        let mut engine = engine(0.0);
        let stream = Stream { rank: 0, bounds: exactly(4), chunk_bytes: Some(100.0), several_groups: false };
        engine.tiers[0].bounded_by_stores = false;
        assert_eq!(resident(&engine.tiers[0], size(1000.0), Some(&stream)), None);
        let disk = engine.tier_or_insert("1:fs", Medium::Disk, "OffloadingConnector");
        disk.bounded_by_stores = true;
        assert_eq!(resident(disk, size(1000.0), Some(&stream)), None);
    }

    #[test]
    fn a_stream_belongs_to_the_engine_of_its_rank() {
        let of = |rank| {
            let view = View { rank, ..View::default() };
            Arc::new(Status { view: Some(view), ..Status::default() })
        };
        let id = |engine: &str| EngineId::new("m", engine);
        let both = [of(1), of(0)];
        let others = Peers::OtherRanks;
        assert_eq!((status_of(&both, &id("0"), others), status_of(&both, &id("2"), others)), (Some(1), None));
        assert_eq!(status_of(&[of(1), of(1)], &id("1"), others), None, "two of one rank");
        assert_eq!(status_of(&[of(7)], &id("0"), Peers::None), Some(0), "one stream and one engine");
        assert_eq!(status_of(&both, &id("1"), Peers::SameRank), None, "another model's engine has that rank too");
    }
}
