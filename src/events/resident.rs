//! Chunks into bytes: what a stream says of a tier, in the units of the page. Pure.

use crate::bound::Fill;
use crate::model::{Engine, EngineId, Size, SizeSource, Tier, ratio};
use crate::settings::{ChunkBytes, SinceRest, Stream};

/// What is in a tier, in bytes and as a share of its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    /// Chunks that are surely there, and chunks at most; the latter unknown where strangers may be there and the
    /// number of slots is not known.
    pub chunks: (f64, Option<f64>),
    /// Nothing is left open, and the page has counted no store that the stream is yet to announce.
    pub exact: bool,
    /// Nothing is left open but such stores, and how many they are is known.
    complete: bool,
    /// Bytes of one chunk.
    pub chunk: Option<ChunkBytes>,
    /// Chunks that the tier holds.
    pub slots: Option<f64>,
    /// The engine says so, and not the operator.
    stated: bool,
    /// Chunks that the tier holds as the stream shows it, where the size that is known says something else.
    pub shown: Option<Shown>,
    /// The page counts a reset that the stream has not announced.
    pub doubted: bool,
    /// It has evicted since it was last cleared.
    full: bool,
    /// Bytes of the tier.
    size: Option<f64>,
    /// Bytes that unfinished stores pin.
    storing: f64,
}

/// Chunks that a tier holds, as its stream shows it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shown {
    /// So many were in it at once.
    AtLeast(f64),
    /// With so many in it, and nothing on its way in, it evicted.
    Evicting(f64),
}

impl Shown {
    /// Chunks.
    pub fn chunks(self) -> f64 {
        let (Shown::AtLeast(chunks) | Shown::Evicting(chunks)) = self;
        chunks
    }
}

impl Resident {
    /// Bytes at least and at most. The least is unknown while the bytes of a chunk are an estimate, which may be too large.
    pub fn bytes(&self) -> (Option<f64>, Option<f64>) {
        // Nothing is no bytes, however large a chunk is.
        let bytes = |chunks: f64, of_chunk: Option<ChunkBytes>| {
            if chunks == 0.0 { Some(0.0) } else { of_chunk.map(|chunk| chunks * chunk.bytes) }
        };
        let low = bytes(self.chunks.0, self.chunk.filter(|chunk| chunk.exact));
        (low, self.chunks.1.and_then(|chunks| bytes(chunks, self.chunk)))
    }

    /// The same as shares of the size, where the stream does not show another size.
    pub fn shares(&self) -> (Option<f64>, Option<f64>) {
        let size = self.size.filter(|_| self.shown.is_none());
        // A chunk more than fits is no proof of another size yet, and no share.
        let share = |bytes: Option<f64>| ratio(bytes?, size?).filter(|share| *share <= 1.0);
        let (low, high) = self.bytes();
        (share(low), share(high))
    }

    /// The fill where it is known to the last chunk; stores under way count, since their slots are taken. A tier that
    /// evicts is full: it announces an eviction before the store that takes the slot at once.
    pub fn fill(&self) -> Option<Fill> {
        let size = self.size.filter(|_| self.complete && self.shown.is_none())?;
        let bytes = if self.full { size } else { (self.bytes().1? + self.storing).min(size) };
        Some(Fill::Measured { bytes: Some(bytes), share: ratio(bytes, size)? })
    }

    /// Bytes of the tier as its stream shows it, where the size says something else.
    pub fn shown_bytes(&self) -> Option<f64> {
        Some(self.shown?.chunks() * self.chunk?.bytes)
    }

    /// Chunks that the tier holds, and whether the engine says so: for the stream, to tell what is missing.
    pub(super) fn room(&self) -> Option<(u64, bool)> {
        let slots = self.slots.filter(|_| self.shown.is_none())?;
        Some((slots as u64, self.stated))
    }
}

/// Which engines of a page a rank can mean, as far as matching streams needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// It is the only engine.
    None,
    /// There are others, and its `engine` label tells it from all of them.
    OtherRanks,
    /// Another engine has the same `engine` label: a stream, which knows a rank and no more, may be of either.
    SameRank,
}

impl Peers {
    /// Of one of these engines.
    pub fn of<'e>(id: &EngineId, engines: impl IntoIterator<Item = &'e EngineId>) -> Peers {
        let others = engines.into_iter().filter(|other| *other != id);
        others.fold(Peers::None, |known, other| match known {
            Peers::SameRank => known,
            _ if other.engine == id.engine => Peers::SameRank,
            _ => Peers::OtherRanks,
        })
    }
}

/// The stream of an engine: the one of its rank, where no other engine has that rank; or the only one, where there is
/// only one engine.
pub fn stream_of<'a>(streams: &'a [Stream], engine: &EngineId, peers: Peers) -> Option<&'a Stream> {
    match (streams, peers) {
        ([stream], Peers::None) if stream.alone => return Some(stream),
        (_, Peers::SameRank) => return None,
        _ => {}
    }
    let mut fitting = streams.iter().filter(|stream| engine.engine == stream.rank.to_string());
    let first = fitting.next();
    // Two endpoints of one rank: nobody can say which one is meant.
    if fitting.next().is_some() { None } else { first }
}

/// What the stream says of this tier. Only vLLM's own connector says all that it stores and evicts, and only its RAM
/// tier does.
pub fn resident(engine: &Engine, tier: &Tier, size: Option<Size>, stream: Option<&Stream>) -> Option<Resident> {
    let stream = stream.filter(|_| tier.name == "ram" && tier.bounded_by_stores)?;
    let size = size.filter(|size| size.fact.value > 0.0);
    let told = chunk_bytes(engine, tier).map(|bytes| ChunkBytes { bytes, exact: true, by_page: true });
    let chunk = told.or(stream.chunk);
    let Room { slots, stated } = room(tier, size, chunk);
    let calls = engine.reset_calls.total();
    let begun_anew = calls > 0.0 && calls < stream.counted;
    let reset = begun_anew || stream.resets.is_none_or(|announced| calls > announced);
    // What the stream takes for resident may be what a reset emptied and what came after it.
    let shown = slots.filter(|_| !stated && !reset).and_then(|slots| shown(tier, stream, slots, chunk));
    let slots_to_go_by = slots.filter(|_| shown.is_none());
    let storing = tier.storing_share().unwrap_or(0.0);
    let bounds = stream.bounds;
    // More than the engine has room for: it was emptied, and nobody has said so.
    let overfull = stated && slots.is_some_and(|slots| bounds.sure as f64 > slots);
    let doubted = overfull || reset;
    let sure = bounds.sure as f64;
    let most = |chunks: f64| slots_to_go_by.map_or(chunks, |slots| chunks.min(slots).max(sure));
    // A tier of which every slot is known, or that has evicted, is full but for the stores under way: that shows a batch that is
    // missing even where page and stream have agreed about no moment yet.
    let filled = slots.filter(|slots| stated && (bounds.full || sure >= *slots) && tier.storing_share().is_some());
    let short = |slots: f64| ((slots * (1.0 - storing)).round() - sure).max(0.0);
    let unannounced = match (stream.since_rest, filled) {
        (None, Some(slots)) => Some(short(slots)),
        (since_rest, _) => unannounced(tier, since_rest, chunk),
    };
    let possible = most(bounds.possible as f64 + unannounced.unwrap_or(0.0));
    // Full but for stores under way, whoever else is in there.
    let known_number = slots_to_go_by.filter(|_| bounds.full && bounds.strangers && tier.storing_share().is_some());
    let low = if doubted { 0.0 } else { known_number.map_or(sure, |slots| sure.max(slots * (1.0 - storing))) };
    // What nobody can compare may have become more meanwhile.
    let high = if bounds.strangers || unannounced.is_none() { slots_to_go_by.map(most) } else { Some(possible) };
    // Where nothing was stored nothing is there, whatever a chunk has.
    let nothing = || entered(tier).is_none_or(|bytes| bytes == 0.0);
    let complete = bounds.is_exact() && !doubted && chunk.map_or_else(nothing, |chunk| chunk.exact);
    Some(Resident {
        chunks: (low, high),
        exact: complete && unannounced == Some(0.0),
        // A batch may be on its way: how many chunks it has shows only beside what page and stream agreed about.
        complete: complete && (bounds.full || stream.since_rest.is_some()),
        chunk,
        slots,
        stated,
        shown,
        doubted,
        full: bounds.full,
        size: size.map(|size| size.fact.value),
        storing: storing * size.map_or(0.0, |size| size.fact.value),
    })
}

/// Bytes stored and promoted since the engine's start.
fn entered(tier: &Tier) -> Option<f64> {
    Some(tier.transfers.stored_bytes?.value + tier.promoted.map_or(0.0, |fact| fact.value))
}

/// Chunks that the page has counted as stored and the stream is yet to announce. Both learn of them at the end of a step of
/// the engine, on two ways; the stream is looked at after the page, so that it is behind where it has told less. `None` where
/// the page counts them, and page and stream have not agreed about any moment yet: then the last batch may be lost.
fn unannounced(tier: &Tier, since_rest: Option<SinceRest>, chunk: Option<ChunkBytes>) -> Option<f64> {
    let Some(entered) = entered(tier).filter(|bytes| *bytes > 0.0) else { return Some(0.0) };
    let rest = since_rest?;
    let counted = |chunk: ChunkBytes| ratio(entered - rest.page_bytes, chunk.bytes);
    let ahead = chunk.filter(|chunk| chunk.exact).and_then(counted).map(|chunks| (chunks - rest.chunks).floor());
    Some(ahead.unwrap_or(0.0).max(0.0))
}

struct Room {
    slots: Option<f64>,
    stated: bool,
}

/// The engine's own count; else as many whole chunks as the size has. What the engine's own size and the page's own bytes of
/// a chunk make is its count or, where it pads chunks, more: never less. What the operator says may be wrong, and what the
/// stream told of a chunk may be too large, so that too few would seem to fit: nothing is shown by those.
fn room(tier: &Tier, size: Option<Size>, chunk: Option<ChunkBytes>) -> Room {
    let is_own = size.is_some_and(|size| size.source != SizeSource::Flag);
    let own = tier.slots.map(|slots| slots.count.value).filter(|_| is_own);
    let by_page = chunk.is_some_and(|chunk| chunk.by_page);
    let whole = || ratio(size?.fact.value, chunk?.bytes).map(|slots| (slots + 0.01).floor());
    Room { slots: own.or_else(whole), stated: is_own && (own.is_some() || by_page) }
}

/// Chunks that may be on their way to us while the page has counted them.
const UNDER_WAY: f64 = 16.0;

/// What the stream shows of the slots of a tier, where it contradicts what follows from its size. Where the bytes of a
/// chunk are an estimate it has to be off by a twentieth more, and by what page and stream may be apart; where they are
/// those copied, a slot may be some larger.
fn shown(tier: &Tier, stream: &Stream, slots: f64, chunk: Option<ChunkBytes>) -> Option<Shown> {
    let off = 1.0 + if chunk.is_some_and(|chunk| chunk.exact) { 0.0 } else { slots / 20.0 + UNDER_WAY };
    let padded = if tier.slots.is_some() { 0.0 } else { slots / 50.0 };
    let at_least = Some(stream.most as f64).filter(|most| *most > slots + off).map(Shown::AtLeast);
    let evicting = || stream.evicts_at.filter(|held| *held < slots - off - padded).map(Shown::Evicting);
    at_least.or_else(evicting)
}

/// Bytes of one chunk as the page tells them: stated; or what was stored for each slot handed out, where each of them was
/// filled by a store.
pub fn chunk_bytes(engine: &Engine, tier: &Tier) -> Option<f64> {
    let stated = tier.slots.and_then(|slots| ratio(slots.bytes.value, slots.count.value));
    let counted = || Some(counted(tier).filter(|_| engine.reset_calls.total() == 0.0)?.0);
    stated.or_else(counted).filter(|bytes| *bytes > 0.0)
}

/// Bytes stored for each slot handed out, a whole number, and how many those are. A reset may have given up stores under way:
/// then it is too low, and another one with each slot handed out.
pub(super) fn counted(tier: &Tier) -> Option<(f64, f64)> {
    let allocated = tier.allocated?.value;
    let bytes = ratio(tier.transfers.stored_bytes?.value, allocated).filter(|bytes| bytes.fract() == 0.0)?;
    is_filled(tier).then_some((bytes, allocated))
}

/// Whether each slot that was ever handed out was filled by one store: none was refused or promoted into, none is still being
/// filled, and no reset has given up a store that was under way.
pub fn is_stored_throughout(engine: &Engine, tier: &Tier) -> bool {
    is_filled(tier) && engine.reset_calls.total() == 0.0
}

fn is_filled(tier: &Tier) -> bool {
    let is_idle = tier.storing_share() == Some(0.0);
    let never_promoted = tier.promoted.is_none_or(|bytes| bytes.value == 0.0) && !tier.promotions_unseen;
    is_idle && never_promoted && tier.refusals == 0.0 && !tier.doubtful
}
