//! Chunks into bytes: what a stream says of a tier, in the units of the page. Pure.

use crate::bound::Fill;
use crate::model::{EngineId, Size, Tier, ratio};
use crate::settings::Stream;

/// What is in a tier, in bytes and as a share of its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resident {
    /// Chunks that are surely there, and chunks at most; the latter unknown where strangers may be there and the
    /// number of slots is not known.
    pub chunks: (f64, Option<f64>),
    /// Nothing is left open.
    pub exact: bool,
    /// Bytes of one chunk.
    pub chunk_bytes: Option<f64>,
    /// Chunks that the tier holds.
    pub slots: Option<f64>,
    /// Bytes of the tier.
    size: Option<f64>,
    /// Bytes that unfinished stores pin.
    storing: f64,
}

impl Resident {
    /// Bytes at least and at most.
    pub fn bytes(&self) -> (Option<f64>, Option<f64>) {
        // Nothing is no bytes, however large a chunk is.
        let bytes = |chunks: Option<f64>| Some(chunks? * self.chunk_bytes.or((chunks? == 0.0).then_some(0.0))?);
        (bytes(Some(self.chunks.0)), bytes(self.chunks.1))
    }

    /// The same as shares of the size.
    pub fn shares(&self) -> (Option<f64>, Option<f64>) {
        let share = |bytes: Option<f64>| ratio(bytes?, self.size?);
        let (low, high) = self.bytes();
        (share(low), share(high))
    }

    /// The fill where it is known to the last chunk; stores under way count, since their slots are taken.
    pub fn fill(&self) -> Option<Fill> {
        let (size, high) = (self.size?, self.bytes().1.filter(|_| self.exact)?);
        let bytes = (high + self.storing).min(size);
        Some(Fill::Measured { bytes: Some(bytes), share: ratio(bytes, size)? })
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
        ([stream], Peers::None) => return Some(stream),
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
pub fn resident(tier: &Tier, size: Option<Size>, stream: Option<&Stream>) -> Option<Resident> {
    let stream = stream.filter(|_| tier.name == "ram" && tier.bounded_by_stores)?;
    let size = size.map(|size| size.fact.value).filter(|bytes| *bytes > 0.0);
    let chunk_bytes = chunk_bytes(tier).or(stream.chunk_bytes);
    let slots = ratio(size.unwrap_or(0.0), chunk_bytes.unwrap_or(0.0)).map(|slots| (slots + 0.01).floor());
    let storing = tier.storing.map_or(0.0, |share| share.value);
    let bounds = stream.bounds;
    let most = |chunks: f64| slots.map_or(chunks, |slots| chunks.min(slots));
    let (sure, possible) = (most(bounds.sure as f64), most(bounds.possible as f64));
    // Full but for stores under way, whoever else is in there.
    let known_number = slots.filter(|_| bounds.full && bounds.strangers && tier.storing.is_some());
    let low = known_number.map_or(sure, |slots| sure.max(slots * (1.0 - storing)));
    let high = if bounds.strangers { slots } else { Some(possible) };
    let exact = bounds.is_exact();
    Some(Resident { chunks: (low, high), exact, chunk_bytes, slots, size, storing: storing * size.unwrap_or(0.0) })
}

/// Bytes of one chunk as the page tells them: stated; or what was stored for each slot handed out, while none of
/// them was refused, promoted into or is still being filled.
pub fn chunk_bytes(tier: &Tier) -> Option<f64> {
    let stated = tier.slots.and_then(|slots| ratio(slots.bytes.value, slots.count.value));
    let idle = |share: Option<crate::model::Fact>| share.is_none_or(|share| share.value == 0.0);
    let undisturbed =
        tier.refusals == 0.0 && !tier.doubtful && idle(tier.promoted) && idle(tier.storing) && tier.storing.is_some();
    let counted = || ratio(tier.transfers.stored_bytes?.value, tier.allocated?.value).filter(|_| undisturbed);
    stated.or_else(counted).filter(|bytes| *bytes > 0.0)
}
