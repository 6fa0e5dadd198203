//! Streams and pages brought together, scrape by scrape: what a chunk has in bytes, and what other sizes would have
//! done over the window. Pure: it has no clock but the streams' own time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::fold::{Doubt, View};
use super::resets::Resets;
use super::resident::{Peers, chunk_bytes, counted};
use super::sizing::{Gauge, Mark, Prediction, Window};
use super::{Resident, Status};
use crate::model::{Engine, EngineId, ratio};
use crate::settings::{ChunkBytes, SinceRest, Stream};

/// Chunks that the stream must have told of before bytes are divided by them.
const ENOUGH: f64 = 16.0;

/// How long page and stream have to say the same before they are taken to be of one moment, in seconds: a batch is on its
/// way for a twentieth of one, and two scrapes may be closer than that.
const SETTLED: f64 = 1.0;

/// How long both have to stand still until nothing is on its way to either of them, in seconds: longer than any step of an
/// engine, at whose end they learn what it did.
const AT_REST: f64 = 10.0;

/// Before the last scrape but so many seconds of the stream's time a call that was counted since had not begun.
const CALL: f64 = 2.0;

/// What is remembered between scrapes, by endpoint.
#[derive(Debug, Default)]
pub struct Ledger {
    accounts: BTreeMap<String, Account>,
}

#[derive(Debug, Default)]
struct Account {
    /// The fold of the stream that this is about.
    fold: u64,
    window: Window,
    chunk: Option<ChunkBytes>,
    stated: Option<f64>,
    /// What page and stream have counted: at first, at the last scrape, and when both last stood still.
    first: Option<Counted>,
    last: Option<Counted>,
    still: Option<Counted>,
    /// What both had counted at rest, from where on they have to agree.
    rest: Option<Counted>,
    /// The same, but for that the stream is yet to go on without a loss; and after so many batches.
    surplus: Option<(Counted, u64)>,
    /// Bytes of a chunk by what both had counted at rest, after so many batches.
    quotient: Option<(f64, u64)>,
    /// Bytes of a chunk by the slots that the page counts, how many those were first, and whether others bear it out.
    slots: Option<(f64, f64)>,
    by_slots: Option<f64>,
    /// Times that the stream had lost batches by then: what was counted before is no measure for what comes after.
    losses: u64,
    /// Since when they have counted as at the last scrape.
    unchanged: f64,
    /// Bytes promoted into the tier: at first, and at the last scrape.
    promoted: Option<(f64, f64)>,
    /// The page's counters have begun anew since the fold did.
    fell: bool,
    /// They did, and the stream claims more than they have: it tells of an engine that is no more.
    outlived: bool,
    resets: Resets,
    doubt: Option<Doubt>,
    /// The stream's time at the last scrape.
    at: Option<f64>,
    evictions: Evictions,
}

/// What page and stream counted at one scrape.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    /// Bytes stored and promoted, by the page.
    bytes: f64,
    /// Chunks stored, by the stream.
    chunks: f64,
}

/// Whether the tier evicts with fewer chunks in it than its size has room for. One scrape may see the evictions of a
/// step and not yet what takes their place; later ones see it on its way.
#[derive(Debug, Default)]
struct Evictions {
    /// Since when it looks so.
    suspect: Option<f64>,
    at: Option<f64>,
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
    /// Why sizes below the present one are left out of it, where they are.
    pub no_smaller: Option<&'static str>,
}

const BEHIND: &str = "a tier lies behind this one: it would give back what a smaller one evicts";

impl Ledger {
    /// The streams that tell of what is `now`, in seconds of a clock of ours.
    pub fn streams(&self, statuses: &[Arc<Status>], now: f64) -> Vec<Stream> {
        statuses.iter().filter_map(|status| self.stream(status, statuses.len() == 1, now)).collect()
    }

    fn stream(&self, status: &Status, alone: bool, now: f64) -> Option<Stream> {
        let view = status.view.as_ref().filter(|_| status.current)?;
        let nothing = Account::default();
        let account = self.accounts.get(&status.endpoint).filter(|account| account.fold == view.fold);
        let account = account.unwrap_or(&nothing);
        if account.outlived {
            return None;
        }
        let open = account.doubt.is_some_and(|doubt| doubt.number > view.doubts);
        Some(Stream {
            rank: view.rank,
            bounds: view.bounds,
            several_groups: view.gauge.several_groups,
            chunk: account.chunk,
            chunk_tokens: view.gauge.chunk_tokens.filter(|_| !view.gauge.several_groups),
            most: view.most,
            evicts_at: account.evictions.at,
            resets: (!open).then(|| account.resets.announced(view.clears, now)),
            counted: account.resets.counted(),
            alone,
            since_rest: account.since_rest(view),
        })
    }

    /// Takes in what a page says of an engine beside what its stream has told, and predicts.
    pub fn note(
        &mut self,
        engine: &Engine,
        status: &Arc<Status>,
        resident: Option<Resident>,
        limits: Limits,
        now: f64,
    ) -> Told {
        let account = self.accounts.entry(status.endpoint.clone()).or_default();
        account.note(engine, status, resident, limits, now);
        let mut prediction = account.predict(engine, status, resident);
        let behind = engine.tiers.iter().any(|tier| tier.name != "ram" && tier.connector == OFFLOADING);
        if let (Ok(prediction), true) = (&mut prediction, behind) {
            prediction.leave_out_smaller();
        }
        let no_smaller = (behind && prediction.is_ok()).then_some(BEHIND);
        let promoted = account.promoted_chunks();
        Told { engine: engine.id.clone(), status: Arc::clone(status), resident, promoted, prediction, no_smaller }
    }

    /// What the thread that follows the stream is to know: a reset that was not announced, and a fold whose engine is
    /// no more, each with the number of the fold.
    pub(super) fn hints(&self, status: &Status) -> (Option<(u64, Doubt)>, Option<u64>) {
        let Some(account) = self.accounts.get(&status.endpoint) else { return (None, None) };
        (account.doubt.map(|doubt| (account.fold, doubt)), account.outlived.then_some(account.fold))
    }
}

/// The connector whose tiers lie behind the RAM tier.
const OFFLOADING: &str = crate::dialect::OFFLOADING;

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

/// Why a stream that tells something belongs to no engine of the page.
pub fn unplaced(status: &Status, told: &[Told]) -> Option<String> {
    let rank = status.view.as_ref()?.rank;
    let is_placed = told.iter().any(|one| one.status.endpoint == status.endpoint);
    (!is_placed).then(|| {
        format!(
            "a stream knows its engine's rank ({rank}) and no more, and no engine of the page is certain to be meant: none \
             has engine=\"{rank}\", or several have, or another endpoint is of that rank too, or there is no page"
        )
    })
}

impl Account {
    fn note(&mut self, engine: &Engine, status: &Status, resident: Option<Resident>, limits: Limits, time: f64) {
        let (Some(view), Some(tier)) = (status.view.as_ref().filter(|_| status.current), engine.tier("ram")) else {
            return;
        };
        if view.fold != self.fold {
            *self = Account { fold: view.fold, ..Account::default() };
        }
        self.note_resets(engine, view, time);
        let Some(stored) = tier.transfers.stored_bytes.map(|fact| fact.value) else { return };
        // To the stream a promotion is a store like any other; the page counts it apart.
        let promoted = tier.promoted.map(|fact| fact.value);
        let now = Counted { bytes: stored + promoted.unwrap_or(0.0), chunks: view.stored as f64 };
        if self.last.is_some_and(|last| now.bytes < last.bytes) {
            let outlived = self.claims_more(view, now.bytes);
            *self = Account { fold: self.fold, fell: true, outlived, ..Account::default() };
        }
        if std::mem::replace(&mut self.losses, view.losses) != view.losses {
            (self.first, self.still, self.rest, self.surplus, self.quotient) = (None, None, None, None, None);
        }
        let origin = if view.from_start { Counted::default() } else { now };
        let first = *self.first.get_or_insert(origin);
        let before = self.promoted.map(|(before, _)| before).or(view.from_start.then_some(0.0));
        self.promoted = promoted.map(|now| (before.unwrap_or(now), now));
        let storing = tier.storing_share().unwrap_or(0.0);
        if self.last.replace(now) != Some(now) {
            self.unchanged = time;
        }
        // Both stand still, and nothing is on its way.
        let still = time - self.unchanged >= SETTLED && storing == 0.0;
        // Where promotions are not counted the stream tells of more than the page.
        let still = still && !tier.promotions_unseen;
        self.learn_by_slots(counted(tier), now, still);
        self.learn_chunk(chunk_bytes(engine, tier), first, now, still, status.batches);
        if still && time - self.unchanged >= AT_REST {
            self.note_rest(now, status.batches);
        }
        // Without the stores under way nobody can tell a tier that is full from one that is smaller.
        if let Some(storing) = tier.storing_share() {
            // Nor without knowing that no batch is missing, which would have told of chunks that are there.
            let is_whole = self.since_rest(view).is_some();
            let told =
                |resident: &Resident| resident.chunk.is_none_or(|chunk| !chunk.exact) || resident.exact && is_whole;
            self.evictions.note(view, resident.filter(told), storing, time);
        }
        if let (Some(asked), Some(supplied)) = (engine.external_queries, engine.external_hits) {
            self.begin_window(view);
            let mark = Mark { at: view.at, asked: asked.value, supplied: supplied.value, gauge: view.gauge.clone() };
            self.window.push(mark, limits.window);
        }
    }

    fn since_rest(&self, view: &View) -> Option<SinceRest> {
        // Before the first page of a stream that began with its engine, all that it counted is since then.
        let unmet = (self.first.is_none() && view.from_start && !self.fell).then(Counted::default);
        let rest = self.rest.or(self.beginning()).or(unmet).filter(|_| self.losses == view.losses)?;
        Some(SinceRest { page_bytes: rest.bytes, chunks: view.stored as f64 - rest.chunks })
    }

    /// What the page alone has counted at rest is either nothing that the stream will ever announce (a store that failed, say)
    /// or a batch that was lost, of which the next one tells. So it is put down to the former once both have gone on, without
    /// a loss, and are as far apart as before. A page may well be behind at rest, until the engine's next step.
    fn note_rest(&mut self, now: Counted, batches: u64) {
        if !self.page_is_ahead(now) {
            self.surplus = None;
            return;
        }
        match self.surplus {
            Some((_, at)) if at == batches => {}
            Some((then, _)) if self.is_as_far_apart(then, now) => (self.rest, self.surplus) = (Some(now), None),
            _ => self.surplus = Some((now, batches)),
        }
    }

    fn is_as_far_apart(&self, then: Counted, now: Counted) -> bool {
        let (bytes, chunks) = (now.bytes - then.bytes, now.chunks - then.chunks);
        let chunk = self.chunk.filter(|chunk| chunk.exact);
        bytes == 0.0 && chunks == 0.0 || chunk.is_some_and(|chunk| bytes == chunks * chunk.bytes)
    }

    fn page_is_ahead(&self, now: Counted) -> bool {
        let Some(rest) = self.rest.or(self.beginning()) else { return true };
        let chunk = self.chunk.filter(|chunk| chunk.exact);
        chunk.is_some_and(|chunk| (now.bytes - rest.bytes) / chunk.bytes > now.chunks - rest.chunks)
    }

    /// An engine that began with the stream stood still at its beginning.
    fn beginning(&self) -> Option<Counted> {
        self.first.filter(|first| *first == Counted::default())
    }

    fn note_resets(&mut self, engine: &Engine, view: &View, now: f64) {
        if self.resets.note(engine.reset_calls.total(), view.clears, now) {
            let since = self.at.map_or(f64::NEG_INFINITY, |at| at - CALL);
            // One that the stream has not taken in yet goes on in this one.
            let before = self.doubt.filter(|doubt| doubt.number > view.doubts);
            let since =
                before.filter(|doubt| doubt.clears == view.clears).map_or(since, |doubt| doubt.since.min(since));
            let number = before.map_or(view.doubts, |doubt| doubt.number) + 1;
            self.doubt = Some(Doubt { number, since, clears: view.clears });
        }
        self.at = Some(view.at);
    }

    /// A stream that was followed from the engine's start on, or replayed from there, has a beginning of which the page
    /// is known too: nothing was asked.
    fn begin_window(&mut self, view: &View) {
        if let (true, Some(at)) = (self.window.is_empty() && view.from_start && !self.fell, view.began) {
            let gauge = Gauge { whole: true, ..Gauge::default() };
            self.window.push(Mark { at, asked: 0.0, supplied: 0.0, gauge }, f64::INFINITY);
        }
    }

    /// Whether the stream tells of more than the page has stored: a stream that began with the engine never does, but
    /// for what is counted a moment later.
    fn claims_more(&self, view: &View, bytes: f64) -> bool {
        let chunk = self.chunk.map_or(0.0, |chunk| chunk.bytes);
        !view.from_start || view.stored as f64 * chunk > bytes * 1.1 + ENOUGH * chunk
    }

    /// Stores that a reset gave up make the quotient too low, by less with each further slot. So it is right once it stays
    /// the same while more are handed out; and where the stream has told of as many chunks as slots were, at rest.
    fn learn_by_slots(&mut self, counted: Option<(f64, f64)>, now: Counted, still: bool) {
        let Some((bytes, slots)) = counted else { return };
        let (_, before) = *self.slots.insert(self.slots.filter(|(known, _)| *known == bytes).unwrap_or((bytes, slots)));
        let are_all_told = still && self.beginning().is_some() && now.chunks == slots && slots >= ENOUGH;
        if slots - before >= ENOUGH || are_all_told {
            self.by_slots = Some(bytes);
        }
    }

    /// The page's own figure wins, and is kept. Bytes and chunks are not counted at the same moment, so their quotient
    /// is exact only between two times at which both stood still, and once a further batch shows that none was lost by then;
    /// else it is an estimate, and is taken anew as it rests on more.
    fn learn_chunk(&mut self, stated: Option<f64>, first: Counted, now: Counted, still: bool, batches: u64) {
        self.stated = stated.or(self.stated);
        let exactly = |by_page| move |bytes| ChunkBytes { bytes, exact: true, by_page };
        let between = |from: Counted| {
            ratio(now.bytes - from.bytes, now.chunks - from.chunks)
                .filter(|bytes| now.chunks - from.chunks >= ENOUGH && *bytes > 0.0)
        };
        let whole = |from| between(from).filter(|bytes| still && bytes.fract() == 0.0);
        let at_rest = self.still.and_then(whole).or_else(|| self.beginning().and_then(whole));
        let shown = self.quotient.take_if(|(_, at)| *at != batches).map(|(bytes, _)| bytes);
        self.quotient = at_rest.map(|bytes| (bytes, batches)).or(self.quotient);
        if still {
            self.still = Some(now);
        }
        let known = self.chunk.filter(|chunk| chunk.exact);
        let estimate = || between(first).map(|bytes| ChunkBytes { bytes, exact: false, by_page: false });
        // What the stream has missed makes it larger, and nothing makes it smaller.
        let counted = known.map(|chunk| chunk.bytes).into_iter().chain(shown).reduce(f64::min);
        let by_page = self.stated.or(self.by_slots).map(exactly(true));
        self.chunk = by_page.or_else(|| counted.map(exactly(false))).or_else(estimate).or(self.chunk);
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
        let resident = resident.ok_or("nothing is told of the tier: see /debug")?;
        if resident.shown.is_some() {
            return Err("the event stream shows another size of the tier than the one that was given");
        }
        self.window.predict(resident.slots.ok_or(match resident.chunk {
            Some(_) => "the size of the tier is not known: give it with --tier.size",
            None => "the bytes of a chunk are not known yet",
        })?)
    }
}

impl Evictions {
    fn note(&mut self, view: &View, resident: Option<Resident>, storing: f64, time: f64) {
        let slots = resident.and_then(|resident| resident.slots).filter(|_| view.bounds.full && view.bounds.is_exact());
        let room = slots.map_or(0.0, |slots| slots * (1.0 - storing) - 1.0);
        let since = (room > view.most as f64).then(|| self.suspect.unwrap_or(time));
        if since.is_some_and(|since| time - since >= SETTLED) {
            self.at = Some(view.most as f64);
        } else if slots.is_some() && since.is_none() {
            self.at = None;
        }
        self.suspect = since;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Bounds;
    use crate::events::resident::{resident, stream_of};
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

    /// What is known of the bytes of a chunk, and whether exactly.
    fn chunk(ledger: &Ledger, status: &Arc<Status>) -> (f64, bool) {
        let chunk = ledger.streams(&[Arc::clone(status)], 0.0)[0].chunk.unwrap();
        (chunk.bytes, chunk.exact)
    }

    /// A stream that leaves nothing open, of chunks of 100 bytes.
    fn stream(bounds: Bounds) -> Stream {
        let chunk = Some(ChunkBytes { bytes: 100.0, exact: true, by_page: true });
        Stream {
            rank: 0,
            bounds,
            several_groups: false,
            chunk,
            chunk_tokens: None,
            most: 0,
            evicts_at: None,
            resets: Some(0.0),
            counted: 0.0,
            alone: true,
            since_rest: Some(SinceRest { page_bytes: 0.0, chunks: 1e9 }),
        }
    }

    fn exactly(chunks: u64) -> Bounds {
        Bounds { sure: chunks, possible: chunks, ..Bounds::default() }
    }

    #[test]
    fn bytes_of_a_chunk_follow_from_what_page_and_stream_counted() {
        let mut ledger = Ledger::default();
        let status = status(20, true, exactly(20));
        assert_eq!(ledger.streams(&[Arc::clone(&status)], 0.0)[0].chunk, None);
        ledger.note(&engine(2000.0), &status, None, LIMITS, 0.0);
        // 2000 bytes ÷ 20 chunks, both since the engine's start.
        assert_eq!(chunk(&ledger, &status), (100.0, false));
    }

    #[test]
    fn bytes_of_a_chunk_are_exact_once_a_further_batch_shows_that_none_was_lost() {
        let told = |stored: u64, batches: u64| {
            Arc::new(Status { batches, ..(*status(stored, true, exactly(stored))).clone() })
        };
        let mut ledger = Ledger::default();
        let mut after = |bytes: f64, status: &Arc<Status>, time: f64| {
            ledger.note(&engine_at_rest(bytes), status, None, LIMITS, time);
            chunk(&ledger, status)
        };
        // 17 chunks of 160 bytes were stored, and of one nobody told: a whole number all the same.
        assert_eq!(
            (after(2720.0, &told(16, 1), 0.0), after(2720.0, &told(16, 1), 20.0)),
            ((170.0, false), (170.0, false))
        );
        // Another story: 16 of 16, and another one.
        let mut ledger = Ledger::default();
        let mut after = |bytes: f64, status: &Arc<Status>, time: f64| {
            ledger.note(&engine_at_rest(bytes), status, None, LIMITS, time);
            chunk(&ledger, status)
        };
        assert_eq!(
            (after(2560.0, &told(16, 1), 0.0), after(2560.0, &told(16, 1), 20.0)),
            ((160.0, false), (160.0, false))
        );
        assert_eq!(after(2720.0, &told(17, 2), 21.0), (160.0, true));
    }

    #[test]
    fn after_a_reset_bytes_by_slots_are_those_that_stay_the_same_or_that_the_stream_bears_out() {
        let after = |pages: &[(f64, f64, u64)]| {
            let mut ledger = Ledger::default();
            for (at, (bytes, slots, told)) in pages.iter().enumerate() {
                let mut engine = engine_at_rest(*bytes);
                engine.reset_calls.others = 1.0;
                engine.tiers[0].allocated = fact(*slots);
                let status = status(*told, true, exactly(*told));
                for second in [0.0, 2.0] {
                    ledger.note(&engine, &status, None, LIMITS, 10.0 * at as f64 + second);
                }
            }
            let last = status(pages[pages.len() - 1].2, true, exactly(1));
            ledger.streams(&[last], 0.0)[0].chunk.map_or((0.0, false), |chunk| (chunk.bytes, chunk.exact))
        };
        // Of 20 slots one was given up: 1900 ÷ 20 is a whole number and too low, and so is 9900 ÷ 100.
        assert!(!after(&[(1900.0, 20.0, 10)]).1 && !after(&[(1900.0, 20.0, 10), (9900.0, 100.0, 90)]).1);
        // The same after 16 slots more; or as many chunks as slots.
        assert_eq!(after(&[(2000.0, 20.0, 10), (3600.0, 36.0, 26)]), (100.0, true));
        assert_eq!(after(&[(2000.0, 20.0, 20)]), (100.0, true));
        assert!(!after(&[(2000.0, 20.0, 10)]).1);
    }

    #[test]
    fn what_a_tier_behind_gave_back_was_stored_too() {
        let (mut ledger, status) = (Ledger::default(), status(20, true, exactly(20)));
        let mut engine = engine(1500.0);
        engine.tiers[0].promoted = fact(500.0);
        ledger.note(&engine, &status, None, LIMITS, 0.0);
        // 15 chunks from the GPU and 5 promoted, of 100 bytes each.
        assert_eq!(chunk(&ledger, &status), (100.0, false));
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
                ledger.note(&engine, &status, None, LIMITS, 0.0).promoted
            };
            // Not stated: not known, though 20 chunks of 2000 bytes say as much.
            assert_eq!(after(200.0), None);
            engine.tiers[0].slots = Some(stated);
            let mut after = |bytes: f64| {
                engine.tiers[0].promoted = fact(bytes);
                ledger.note(&engine, &status, None, LIMITS, 0.0).promoted
            };
            assert_eq!((after(200.0), after(500.0)), (first, then));
        }
    }

    #[test]
    fn of_a_late_stream_only_what_came_since_counts() {
        let mut ledger = Ledger::default();
        ledger.note(&engine(9000.0), &status(5, false, exactly(5)), None, LIMITS, 0.0);
        let later = status(25, false, exactly(25));
        assert_eq!(ledger.streams(&[Arc::clone(&later)], 0.0)[0].chunk, None);
        ledger.note(&engine(11_000.0), &later, None, LIMITS, 0.0);
        assert_eq!(chunk(&ledger, &later), (100.0, false));
    }

    #[test]
    fn a_stream_that_outlived_its_engine_says_nothing_until_it_begins_anew() {
        let mut ledger = Ledger::default();
        let old = status(40, true, exactly(20));
        ledger.note(&engine(4000.0), &old, None, LIMITS, 0.0);
        // The page's counters are back at the beginning, and the stream has not noticed.
        ledger.note(&engine(0.0), &old, None, LIMITS, 0.0);
        assert_eq!(ledger.streams(&[old], 0.0), []);
        let View { fold, .. } = View::default();
        let mut anew = (*status(1, true, exactly(1))).clone();
        anew.view.as_mut().unwrap().fold = fold + 1;
        assert_eq!(ledger.streams(&[Arc::new(anew)], 0.0).len(), 1);
    }

    #[test]
    fn a_stream_that_is_not_up_to_date_says_nothing() {
        let late = Status { current: false, ..(*status(20, true, exactly(20))).clone() };
        assert_eq!(Ledger::default().streams(&[Arc::new(late)], 0.0), []);
    }

    #[test]
    fn chunks_become_bytes_and_a_full_tier_with_strangers_has_a_known_number() {
        let engine = engine(0.0);
        let told = |bounds| resident(&engine, &engine.tiers[0], size(1000.0), Some(&stream(bounds))).unwrap();
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
    fn a_stream_that_is_behind_its_page_is_not_exact_and_bounds_what_the_page_has_counted() {
        let engine = engine(600.0);
        let told = |rest: (f64, f64)| {
            let since_rest = Some(SinceRest { page_bytes: rest.0, chunks: rest.1 });
            resident(&engine, &engine.tiers[0], size(1000.0), Some(&Stream { since_rest, ..stream(exactly(4)) }))
                .unwrap()
        };
        // The page has stored 6 chunks of 100 bytes since both began, the stream has told of 4. A quarter is on its way.
        let behind = told((0.0, 4.0));
        assert_eq!((behind.exact, behind.bytes()), (false, (Some(400.0), Some(600.0))));
        assert_eq!(behind.fill().and_then(|fill| fill.bytes()), Some(850.0));
        // Both have counted 6; or the page is the older one.
        assert!(told((0.0, 6.0)).exact && told((0.0, 7.0)).exact);
        // Of two chunks nobody was told, and both stood still since: a store that failed, say.
        assert!(told((200.0, 4.0)).exact);
    }

    #[test]
    fn where_page_and_stream_agreed_about_no_moment_only_a_tier_that_is_full_is_exact() {
        let told = |sure: u64, full: bool, storing: f64| {
            let mut engine = engine(600.0);
            engine.tiers[0].slots = Some(slots_of_100_bytes());
            engine.tiers[0].storing = fact(storing);
            let late = Stream { since_rest: None, ..stream(Bounds { full, ..exactly(sure) }) };
            let stated = size(1000.0).map(|size| Size { source: SizeSource::CacheConfig, ..size });
            resident(&engine, &engine.tiers[0], stated, Some(&late)).unwrap()
        };
        // It has not evicted: what the page has counted may be a batch that was lost.
        assert_eq!((told(4, false, 0.0).exact, told(4, false, 0.0).chunks), (false, (4.0, Some(10.0))));
        // Ten slots, all of them known; three being filled; and a batch of three that is missing.
        assert!(told(10, false, 0.0).exact && told(10, true, 0.0).exact && told(7, true, 0.3).exact);
        assert_eq!((told(7, true, 0.0).exact, told(7, true, 0.0).chunks), (false, (7.0, Some(10.0))));
    }

    #[test]
    fn what_page_and_stream_have_to_agree_about_begins_anew_where_the_page_stays_ahead_at_rest() {
        let mut ledger = Ledger::default();
        let since = |ledger: &Ledger, status: &Arc<Status>| ledger.streams(&[Arc::clone(status)], 0.0)[0].since_rest;
        let begun = Some(SinceRest { page_bytes: 0.0, chunks: 20.0 });
        let told = status(20, true, exactly(10));
        assert_eq!(since(&ledger, &told), begun);
        // 20 chunks of 100 bytes, then a page that is behind the stream by two of them, and at rest.
        for (bytes, time) in [(2000.0, 0.0), (2000.0, 2.0), (1800.0, 3.0), (1800.0, 20.0)] {
            let mut engine = engine_at_rest(bytes);
            engine.tiers[0].slots = Some(slots_of_100_bytes());
            if bytes == 1800.0 {
                // Its counters have not fallen: it never showed more.
                ledger = Ledger::default();
                ledger.note(&engine, &told, None, LIMITS, time - 1.0);
            }
            ledger.note(&engine, &told, None, LIMITS, time);
            assert_eq!(since(&ledger, &told), begun, "{bytes} at {time}");
        }
        // Ahead by two: a step's work at first, after ten seconds a store that failed or a batch that was lost.
        let mut after = |told: &Arc<Status>, bytes: f64, time: f64| {
            let mut engine = engine_at_rest(bytes);
            engine.tiers[0].slots = Some(slots_of_100_bytes());
            ledger.note(&engine, told, None, LIMITS, time);
            since(&ledger, told)
        };
        for time in [21.0, 30.0, 32.0, 3600.0] {
            assert_eq!(after(&told, 2200.0, time), begun, "{time}");
        }
        // Both go on, by three chunks, and nothing was lost: of the two nobody will be told.
        let mut later = (*status(23, true, exactly(10))).clone();
        later.batches = 1;
        let later = Arc::new(later);
        let expected = SinceRest { page_bytes: 2500.0, chunks: 0.0 };
        assert_eq!(after(&later, 2500.0, 3601.0), Some(SinceRest { page_bytes: 0.0, chunks: 23.0 }));
        assert_eq!(after(&later, 2500.0, 3612.0), Some(expected));
    }

    #[test]
    fn what_the_page_is_ahead_by_is_put_down_to_nothing_while_the_stream_says_no_more_or_another_number() {
        let begun = |chunks| Some(SinceRest { page_bytes: 0.0, chunks });
        let mut ledger = Ledger::default();
        let mut after = |(batches, stored, losses): (u64, u64, u64), bytes: f64, time: f64| {
            let mut told = (*status(stored, true, exactly(10))).clone();
            told.batches = batches;
            let view = told.view.as_mut().unwrap();
            (view.losses, view.from_start) = (losses, losses == 0);
            let (told, mut engine) = (Arc::new(told), engine_at_rest(bytes));
            engine.tiers[0].slots = Some(slots_of_100_bytes());
            ledger.note(&engine, &told, None, LIMITS, time);
            ledger.streams(&[Arc::clone(&told)], 0.0)[0].since_rest
        };
        assert_eq!((after((1, 20, 0), 2200.0, 0.0), after((1, 20, 0), 2200.0, 20.0)), (begun(20.0), begun(20.0)));
        // The two come, and two more of the next batch are missing: the difference is the same, and not of the same chunks.
        assert_eq!((after((2, 22, 0), 2300.0, 30.0), after((2, 22, 0), 2300.0, 50.0)), (begun(22.0), begun(22.0)));
        // A loss ends it: nothing is known of what the page had counted by then.
        assert_eq!(after((3, 23, 1), 2500.0, 60.0), None);
    }

    fn slots_of_100_bytes() -> Slots {
        let fact = |value| Fact::new(value, "test");
        Slots { allocated: None, count: fact(10.0), bytes: fact(1000.0), blocks_per_slot: None }
    }

    fn engine_at_rest(stored: f64) -> Engine {
        let mut engine = engine(stored);
        engine.tiers[0].storing = fact(0.0);
        engine
    }

    #[test]
    fn a_reset_that_is_counted_before_the_stream_took_in_another_is_a_doubt_of_its_own() {
        let (mut ledger, mut engine, status) = (Ledger::default(), engine(2000.0), status(20, true, exactly(20)));
        let mut after = |resets: f64| {
            engine.reset_calls.others = resets;
            ledger.note(&engine, &status, None, LIMITS, resets);
            ledger.hints(&status).0.map(|(_, doubt)| (doubt.number, doubt.since))
        };
        assert_eq!(after(0.0), None);
        // The stream's time is 0 at each page, and a call takes 2 s at most.
        assert_eq!((after(1.0), after(2.0)), (Some((1, -2.0)), Some((2, -2.0))));
    }

    #[test]
    fn another_connector_and_another_tier_are_not_measured() {
        let mut engine = engine(0.0);
        let stream = stream(exactly(4));
        engine.tiers[0].bounded_by_stores = false;
        assert_eq!(resident(&engine, &engine.tiers[0], size(1000.0), Some(&stream)), None);
        engine.tier_or_insert("1:fs", Medium::Disk, "OffloadingConnector").bounded_by_stores = true;
        assert_eq!(resident(&engine, &engine.tiers[1], size(1000.0), Some(&stream)), None);
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
        // Of two endpoints only that of rank 1 is up to date: it is not of the only engine on the page, which is rank 0.
        let mut ranks = both.map(|status| Status { current: true, ..(*status).clone() });
        ranks[1].current = false;
        let streams = Ledger::default().streams(&ranks.map(Arc::new), 0.0);
        assert_eq!(streams.len(), 1);
        assert_eq!(stream_of(&streams, &id("0"), Peers::None), None);
        assert!(stream_of(&streams, &id("1"), Peers::None).is_some());
    }

    #[test]
    fn a_stream_that_is_nobodys_says_so_once_it_tells_something() {
        let told = status(20, true, exactly(20));
        let silent = Arc::new(Status { endpoint: "tcp://h:2".into(), ..Status::default() });
        assert_eq!(unplaced(&silent, &[]), None);
        assert!(unplaced(&told, &[]).is_some_and(|why| why.contains("several have")));
        let one = Ledger::default().note(&engine(2000.0), &told, None, LIMITS, 0.0);
        assert_eq!(unplaced(&told, &[one]), None);
    }
}
