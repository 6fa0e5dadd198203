//! A batch as vLLM writes it (msgpack) into events. Pure and total: any bytes are a batch or [`Malformed`].
//!
//! Two encodings are read: events as arrays by position (up to 0.23) and as maps by key (from 0.24 on). What is not
//! known is skipped, and so is `token_ids`: it is prompt content, which is never copied out of the bytes.

use std::ops::Range;

pub use super::msgpack::Malformed;
use super::msgpack::{Bytes, Token};

/// Where the blocks of an event lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The KV pool on the GPU.
    Gpu,
    /// The RAM tier: medium `CPU` of a publisher that names no owner.
    Ram,
    /// A tier behind it, or another publisher on the same socket.
    Other,
}

/// One event. Hashes stand in the batch: see [`Batch::hashes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Blocks have become available.
    Stored {
        /// Where.
        medium: Medium,
        /// KV cache group; 0 where the engine has one or does not say.
        group: u32,
        /// Place of the hashes in the batch.
        hashes: Range<usize>,
        /// Hash of the block before the first one.
        parent: Option<u64>,
        /// Tokens of one block; 0 where the event does not describe its blocks.
        block_tokens: u32,
    },
    /// Blocks are gone.
    Removed {
        /// From where.
        medium: Medium,
        /// KV cache group.
        group: u32,
        /// Place of the hashes in the batch.
        hashes: Range<usize>,
    },
    /// The GPU pool was emptied; whether the tier was too is not said.
    Cleared,
}

/// Memory of a batch that is kept for the next one.
pub(super) const USUAL: usize = 64 << 10;
/// Hashes or events that the first memory is for.
const FEWEST: usize = 64;

/// The events of one engine step. It is filled anew by each [`Batch::decode`] and keeps its memory, unless that is large.
#[derive(Debug, Default)]
pub struct Batch {
    /// Seconds since 1970, by the engine's clock.
    pub at: f64,
    /// Data-parallel rank that published it.
    pub rank: u32,
    /// In the order of the wire.
    pub events: Vec<Event>,
    /// Events of a kind that is not known.
    pub unknown: usize,
    hashes: Vec<u64>,
    /// Bytes that it may take.
    room: usize,
}

impl Batch {
    /// The hashes of an event of this batch.
    pub fn hashes(&self, of: &Range<usize>) -> &[u64] {
        self.hashes.get(of.clone()).unwrap_or_default()
    }

    /// Number of hashes in all events.
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether no event has a hash.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// A batch of these events, whose hashes stand one after the other in `hashes`.
    #[cfg(test)]
    pub(super) fn made(at: f64, events: Vec<Event>, hashes: Vec<u64>) -> Batch {
        Batch { at, events, hashes, ..Batch::default() }
    }

    /// Reads a payload: `[ts, events, data_parallel_rank]`.
    ///
    /// # Errors
    /// [`Malformed`]; what the batch holds then is of no use.
    pub fn decode(&mut self, payload: &[u8]) -> Result<(), Malformed> {
        self.decode_within(payload, usize::MAX)
    }

    /// The same, in at most `room` bytes of memory: a hash takes eight, be it one on the wire.
    ///
    /// # Errors
    /// [`Malformed`]
    pub fn decode_within(&mut self, payload: &[u8], room: usize) -> Result<(), Malformed> {
        self.forget();
        (self.room, self.unknown, self.rank) = (room, 0, 0);
        let mut bytes = Bytes(payload);
        let fields = bytes.array("batch")?;
        self.at = bytes.token()?.number().filter(|at| at.is_finite()).ok_or(Malformed::Missing("time"))?;
        for _ in 0..bytes.array("list of events")? {
            self.event(&mut bytes)?;
        }
        if fields > 2 {
            self.rank = bytes.token()?.small().unwrap_or(0);
        }
        Ok(())
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        self.events.capacity() * size_of::<Event>() + self.hashes.capacity() * size_of::<u64>()
    }

    /// Forgets its events, and gives back what only a large batch needs.
    pub fn forget(&mut self) {
        self.events.clear();
        self.hashes.clear();
        if self.bytes() > USUAL {
            (self.events, self.hashes) = (Vec::new(), Vec::new());
        }
    }

    /// By how much a vector grows to take one more: to twice its size, and by no more than half of the memory that is left, so
    /// that the other one can grow too.
    fn grown(&self, length: usize, capacity: usize, size: usize) -> Result<usize, Malformed> {
        let more = capacity.max(FEWEST).min(self.room.saturating_sub(self.bytes()) / 2 / size);
        match () {
            () if length < capacity => Ok(0),
            () if more == 0 => Err(Malformed::TooMuch(self.events.len() + self.hashes.len())),
            () => Ok(more),
        }
    }

    fn event(&mut self, bytes: &mut Bytes<'_>) -> Result<(), Malformed> {
        let mut draft = Draft { start: self.hashes.len(), ..Draft::default() };
        match bytes.token()? {
            Token::Map(fields) => self.by_key(&mut draft, bytes, fields)?,
            Token::Array(fields) if fields > 0 => self.by_position(&mut draft, bytes, fields)?,
            _ => return Err(Malformed::Missing("event")),
        }
        match draft.finish(self.hashes.len()) {
            Some(event) => {
                let more = self.grown(self.events.len(), self.events.capacity(), size_of::<Event>())?;
                self.events.reserve_exact(more);
                self.events.push(event);
            }
            None => {
                self.hashes.truncate(draft.start);
                self.unknown += 1;
            }
        }
        Ok(())
    }

    fn by_key(&mut self, draft: &mut Draft, bytes: &mut Bytes<'_>, fields: usize) -> Result<(), Malformed> {
        for _ in 0..fields {
            let name = bytes.token()?;
            let Token::Text(name) = name else {
                bytes.skip_rest_of(&name)?;
                bytes.skip()?;
                continue;
            };
            let field = KEYS.iter().find(|(key, _)| *key == name).map_or(Field::Skipped, |(_, field)| *field);
            self.field(draft, field, bytes)?;
        }
        Ok(())
    }

    fn by_position(&mut self, draft: &mut Draft, bytes: &mut Bytes<'_>, fields: usize) -> Result<(), Malformed> {
        self.field(draft, Field::Tag, bytes)?;
        let places = match draft.tag {
            Tag::Stored => STORED,
            Tag::Removed => REMOVED,
            Tag::Cleared | Tag::Unknown => &[],
        };
        for place in 0..fields - 1 {
            self.field(draft, places.get(place).copied().unwrap_or(Field::Skipped), bytes)?;
        }
        Ok(())
    }

    fn field(&mut self, draft: &mut Draft, field: Field, bytes: &mut Bytes<'_>) -> Result<(), Malformed> {
        if field == Field::Skipped {
            return bytes.skip();
        }
        let token = bytes.token()?;
        match field {
            Field::Hashes => return self.take_hashes(&token, bytes),
            Field::Tag => draft.tag = Tag::of(&token),
            Field::Parent => draft.parent = hash(&token),
            Field::BlockTokens => draft.block_tokens = token.small().unwrap_or(0),
            Field::Medium => draft.medium = medium(&token),
            Field::Group => draft.group = token.small().unwrap_or(0),
            Field::Owner => draft.owned = !matches!(token, Token::Nil),
            Field::Skipped => {}
        }
        bytes.skip_rest_of(&token)
    }

    fn take_hashes(&mut self, token: &Token<'_>, bytes: &mut Bytes<'_>) -> Result<(), Malformed> {
        let Token::Array(count) = token else { return bytes.skip_rest_of(token) };
        for _ in 0..*count {
            let hash = hash(&bytes.token()?).ok_or(Malformed::Missing("block hash"))?;
            let more = self.grown(self.hashes.len(), self.hashes.capacity(), size_of::<u64>())?;
            self.hashes.reserve_exact(more);
            self.hashes.push(hash);
        }
        Ok(())
    }
}

/// What is read of an event.
#[derive(Clone, Copy, PartialEq)]
enum Field {
    Tag,
    Hashes,
    Parent,
    BlockTokens,
    Medium,
    Group,
    Owner,
    Skipped,
}

const KEYS: &[(&[u8], Field)] = &[
    (b"type", Field::Tag),
    (b"block_hashes", Field::Hashes),
    (b"parent_block_hash", Field::Parent),
    (b"block_size", Field::BlockTokens),
    (b"medium", Field::Medium),
    (b"group_idx", Field::Group),
    (b"ownership", Field::Owner),
];
/// Positions after the tag, up to 0.23: the fields of that time only.
const STORED: &[Field] =
    &[Field::Hashes, Field::Parent, Field::Skipped, Field::BlockTokens, Field::Skipped, Field::Medium];
const REMOVED: &[Field] = &[Field::Hashes, Field::Medium];

#[derive(Clone, Copy, Default, PartialEq)]
enum Tag {
    Stored,
    Removed,
    Cleared,
    #[default]
    Unknown,
}

impl Tag {
    fn of(token: &Token<'_>) -> Tag {
        match token {
            Token::Text(b"BlockStored") => Tag::Stored,
            Token::Text(b"BlockRemoved") => Tag::Removed,
            Token::Text(b"AllBlocksCleared") => Tag::Cleared,
            _ => Tag::Unknown,
        }
    }
}

/// An event whose fields come in any order.
#[derive(Default)]
struct Draft {
    tag: Tag,
    start: usize,
    parent: Option<u64>,
    block_tokens: u32,
    medium: Option<Medium>,
    group: u32,
    owned: bool,
}

impl Draft {
    fn finish(&self, end: usize) -> Option<Event> {
        let hashes = self.start..end;
        let medium = if self.owned { Medium::Other } else { self.medium.unwrap_or(Medium::Other) };
        let Draft { group, parent, block_tokens, .. } = *self;
        match self.tag {
            Tag::Stored => Some(Event::Stored { medium, group, hashes, parent, block_tokens }),
            Tag::Removed => Some(Event::Removed { medium, group, hashes }),
            Tag::Cleared => Some(Event::Cleared),
            Tag::Unknown => None,
        }
    }
}

/// A hash is an integer, or raw bytes of which vLLM's integers are the last eight.
fn hash(token: &Token<'_>) -> Option<u64> {
    match token {
        Token::Unsigned(value) => Some(*value),
        Token::Negative(value) => Some(value.cast_unsigned()),
        Token::Binary(bytes) if !bytes.is_empty() => {
            let low = &bytes[bytes.len().saturating_sub(8)..];
            Some(low.iter().fold(0, |hash, byte| hash << 8 | u64::from(*byte)))
        }
        _ => None,
    }
}

/// Spelled exactly: `cpu` in lower case is another project's.
fn medium(token: &Token<'_>) -> Option<Medium> {
    match token {
        Token::Text(b"GPU") => Some(Medium::Gpu),
        Token::Text(b"CPU") => Some(Medium::Ram),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Worked out by hand from the msgpack specification.
    fn text(word: &str) -> Vec<u8> {
        [&[0xa0 | u8::try_from(word.len()).unwrap()], word.as_bytes()].concat()
    }

    /// `[1.5, [event …], 3]`.
    fn batch(events: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0x93, 0xcb, 0x3f, 0xf8, 0, 0, 0, 0, 0, 0, 0x90 | u8::try_from(events.len()).unwrap()];
        bytes.extend(events.concat());
        bytes.push(3);
        bytes
    }

    fn decoded(bytes: &[u8]) -> Batch {
        let mut batch = Batch::default();
        batch.decode(bytes).unwrap();
        batch
    }

    #[test]
    fn an_event_is_read_by_key_in_any_order_and_what_is_unknown_is_skipped() {
        let event = [
            vec![0x88],
            text("medium"),
            text("CPU"),
            text("token_ids"),
            vec![0x93, 1, 2, 0xcd, 1, 0],
            text("later"),
            vec![0x81, 0x91, 0xc0, 0xd5, 7, 1, 2],
            text("block_hashes"),
            // The largest integer, and 9 raw bytes of which the last eight count.
            vec![0x92, 0xcf, 255, 255, 255, 255, 255, 255, 255, 255, 0xc4, 9, 9, 0, 0, 0, 0, 0, 0, 1, 2],
            text("type"),
            text("BlockStored").into_iter().collect(),
            text("parent_block_hash"),
            vec![7],
            text("group_idx"),
            vec![1],
            text("block_size"),
            vec![32],
        ]
        .concat();
        let batch = decoded(&batch(&[event]));
        assert_eq!((batch.at, batch.rank, batch.unknown), (1.5, 3, 0));
        let [Event::Stored { medium, group, hashes, parent, block_tokens }] = &batch.events[..] else { panic!() };
        assert_eq!((*medium, *group, *parent, *block_tokens), (Medium::Ram, 1, Some(7), 32));
        assert_eq!(batch.hashes(hashes), [u64::MAX, 258]);
    }

    #[test]
    fn an_event_is_read_by_position_and_further_positions_are_skipped() {
        let stored =
            [vec![0x98], text("BlockStored"), vec![0x91, 5, 0xc0, 0x92, 1, 2, 16, 0xc0], text("GPU"), vec![0x91, 9]]
                .concat();
        let removed = [vec![0x93], text("BlockRemoved"), vec![0x92, 5, 6], text("CPU")].concat();
        let cleared = [vec![0x91], text("AllBlocksCleared")].concat();
        let other = [vec![0x92], text("BlockMoved"), vec![0x91, 1]].concat();
        let batch = decoded(&batch(&[stored, other, removed, cleared]));
        assert_eq!(batch.unknown, 1);
        let [stored, Event::Removed { medium, hashes, .. }, Event::Cleared] = &batch.events[..] else { panic!() };
        assert!(matches!(stored, Event::Stored { medium: Medium::Gpu, parent: None, block_tokens: 16, .. }));
        assert_eq!((*medium, batch.hashes(hashes)), (Medium::Ram, &[5, 6][..]));
    }

    #[test]
    fn another_publisher_on_the_socket_is_not_the_tier() {
        let stored = |medium: &str, owner: &[Vec<u8>]| {
            let mut event = vec![0x83 + u8::from(!owner.is_empty())];
            for part in
                [text("type"), text("BlockStored"), text("block_hashes"), vec![0x91, 1], text("medium"), text(medium)]
            {
                event.extend(part);
            }
            event.extend(owner.concat());
            event
        };
        let owned = [text("ownership"), text("kvcr")];
        let batch =
            decoded(&batch(&[stored("CPU", &[]), stored("cpu", &[]), stored("STORAGE", &[]), stored("CPU", &owned)]));
        let mediums: Vec<Medium> = batch
            .events
            .iter()
            .map(|event| match event {
                Event::Stored { medium, .. } => *medium,
                _ => panic!(),
            })
            .collect();
        assert_eq!(mediums, [Medium::Ram, Medium::Other, Medium::Other, Medium::Other]);
    }

    #[test]
    fn what_is_no_batch_is_refused() {
        let mut batch = Batch::default();
        assert_eq!(batch.decode(&[]), Err(Malformed::Truncated));
        assert_eq!(batch.decode(&[0xc0]), Err(Malformed::Missing("batch")));
        assert_eq!(batch.decode(&[0x92, 0xc0]), Err(Malformed::Missing("time")));
        // A list that claims four billion events.
        assert_eq!(batch.decode(&[0x92, 1, 0xdd, 255, 255, 255, 255]), Err(Malformed::Truncated));
        let not_a_number = [&[0x92, 0xcb][..], &f64::NAN.to_be_bytes(), &[0x90]].concat();
        assert_eq!(batch.decode(&not_a_number), Err(Malformed::Missing("time")));
    }

    #[test]
    fn a_batch_takes_no_more_memory_than_there_is_for_it() {
        let hashes = |count: u32| {
            let head = [&[0x92][..], &text("BlockRemoved"), &[0xdd], &count.to_be_bytes()].concat();
            batch(&[[head, vec![1; count as usize]].concat()])
        };
        let mut batch = Batch::default();
        // 100,000 one-byte hashes take 800,000 bytes.
        assert!(matches!(batch.decode_within(&hashes(100_000), 700_000), Err(Malformed::TooMuch(_))));
        assert!(batch.bytes() <= 700_000, "{}", batch.bytes());
        assert_eq!(batch.decode_within(&hashes(100_000), 810_000), Ok(()));
        assert!(batch.len() == 100_000 && batch.bytes() <= 810_000, "{}", batch.bytes());
        batch.forget();
        assert_eq!(batch.bytes(), 0);
        assert_eq!(batch.decode(&hashes(3)), Ok(()));
        let kept = batch.bytes();
        batch.forget();
        assert!(kept > 0 && batch.bytes() == kept, "a usual batch leaves its memory for the next");
        // Each event is 18 bytes on the wire and three times as many here.
        let cleared = [vec![0x91], text("AllBlocksCleared")].concat();
        let many = [&[0x92, 1, 0xdd][..], &100_000_u32.to_be_bytes(), &cleared.repeat(100_000)].concat();
        assert!(matches!(batch.decode_within(&many, 1_000_000), Err(Malformed::TooMuch(_))));
        assert!(batch.bytes() <= 1_000_000, "{}", batch.bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_end_in_a_batch_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200), room in 0_usize..10_000) {
            let mut batch = Batch::default();
            if batch.decode_within(&bytes, room).is_ok() {
                prop_assert!(batch.at.is_finite());
            }
            prop_assert!(batch.bytes() <= room);
            prop_assert!(batch.len() <= bytes.len() && batch.events.len() <= bytes.len());
        }

        #[test]
        fn a_damaged_batch_ends_in_a_batch_or_an_error(
            at in 0_usize..60,
            byte in any::<u8>(),
            cut in 0_usize..60,
            room in 0_usize..20_000,
        ) {
            let event = [vec![0x83], text("type"), text("BlockRemoved"), text("block_hashes"), vec![0x92, 5, 6], text("medium"), text("CPU")].concat();
            let mut bytes = batch(&[event]);
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(length - cut % length);
            let mut batch = Batch::default();
            // Either way.
            let _ = batch.decode_within(&bytes, room);
            prop_assert!(batch.bytes() <= room);
        }
    }
}
