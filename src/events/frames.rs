//! What a peer sends (ZMTP 3, RFC 23), taken apart into messages and commands as it comes. Pure.
//!
//! What is announced is held against the limits before a byte of it is kept; memory grows with what has come, never with what is
//! announced, and is given back after a large message. Each byte is looked at once, however it comes in pieces.

use super::fault::Fault;

/// The largest command. READY has the most to say: types of sockets and an identity of 255 bytes.
pub const LARGEST_COMMAND: usize = 2 << 10;
/// Most frames of a message: a replayed batch has four.
pub const MOST_FRAMES: usize = 8;
/// Memory beyond this is given back after the message that took it.
const USUAL: usize = 64 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Came {
    /// [`Frames::message`] has it.
    Message,
    /// [`Frames::command`] has it.
    Command,
}

/// One direction of a connection, from behind the greeting on.
#[derive(Debug)]
pub struct Frames {
    limit: usize,
    /// Bodies of the message's frames, one after the other.
    body: Vec<u8>,
    /// Where each of its frames ends.
    ends: [usize; MOST_FRAMES],
    count: usize,
    /// The message is whole: what comes next begins another one.
    whole: bool,
    command: Box<[u8; LARGEST_COMMAND]>,
    command_length: usize,
    /// The part of a frame's head that has come.
    head: [u8; 9],
    head_length: usize,
    /// The frame at hand.
    frame: Option<Frame>,
}

#[derive(Clone, Copy, Debug)]
struct Frame {
    is_command: bool,
    has_more: bool,
    /// Bytes that have not come yet.
    left: usize,
}

/// The frames of a message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'f> {
    body: &'f [u8],
    ends: &'f [usize],
}

impl<'f> Message<'f> {
    /// The frame at this place from the end, 0 being the last one.
    pub fn from_end(&self, place: usize) -> Option<&'f [u8]> {
        let at = self.ends.len().checked_sub(place + 1)?;
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.body.get(start..self.ends[at])
    }
}

impl Frames {
    /// Messages of at most `limit` bytes. With 0 only commands pass, as before the handshake has ended.
    pub fn within(limit: usize) -> Frames {
        Frames {
            limit,
            body: Vec::new(),
            ends: [0; MOST_FRAMES],
            count: 0,
            whole: false,
            command: Box::new([0; LARGEST_COMMAND]),
            command_length: 0,
            head: [0; 9],
            head_length: 0,
            frame: None,
        }
    }

    /// Another limit, from the next frame on.
    pub fn limit(&mut self, bytes: usize) {
        self.limit = bytes;
    }

    /// Bytes of memory that messages take now: never more than the limit.
    pub fn held(&self) -> usize {
        self.body.capacity()
    }

    /// A message has begun and has not come to its end.
    pub fn is_within_message(&self) -> bool {
        !self.whole && (self.count > 0 || self.head_length > 0 || self.frame.is_some())
    }

    /// Takes bytes from the front, up to the end of the next message or command. What came before is forgotten.
    ///
    /// # Errors
    /// [`Fault::Protocol`], [`Fault::Stranger`] or [`Fault::TooLarge`]; it is of no use then.
    pub fn take(&mut self, bytes: &mut &[u8]) -> Result<Option<Came>, Fault> {
        self.forget();
        loop {
            let frame = match self.frame {
                Some(frame) => frame,
                None => match self.head(bytes)? {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            let frame = self.content(frame, bytes);
            self.frame = (frame.left > 0).then_some(frame);
            match frame {
                Frame { left: 1.., .. } => return Ok(None),
                Frame { is_command: true, .. } => return Ok(Some(Came::Command)),
                Frame { has_more, .. } => {
                    self.ends[self.count] = self.body.len();
                    self.count += 1;
                    if !has_more {
                        self.whole = true;
                        return Ok(Some(Came::Message));
                    }
                }
            }
        }
    }

    /// The message that has come, until the next bytes are taken.
    pub fn message(&self) -> Message<'_> {
        Message { body: &self.body, ends: &self.ends[..self.count] }
    }

    /// The command that has come, until the next bytes are taken.
    pub fn command(&self) -> &[u8] {
        &self.command[..self.command_length]
    }

    /// Forgets the message that has come, and gives back what only a large one needs.
    pub fn forget(&mut self) {
        if std::mem::take(&mut self.whole) {
            self.count = 0;
            self.body.clear();
            if self.body.capacity() > USUAL {
                self.body = Vec::new();
            }
        }
    }

    /// Reads the head of the next frame; `None` while it is not there.
    fn head(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, Fault> {
        while let Some((byte, rest)) = bytes.split_first() {
            *bytes = rest;
            self.head[self.head_length] = *byte;
            self.head_length += 1;
            let flags = self.head[0];
            if self.head_length == if flags & LONG == 0 { 2 } else { 9 } {
                self.head_length = 0;
                return self.admit(flags, length(flags, &self.head)).map(Some);
            }
        }
        Ok(None)
    }

    /// Lets a frame in, or not, by what its head announces.
    fn admit(&mut self, flags: u8, length: u64) -> Result<Frame, Fault> {
        let (is_command, has_more) = (flags & COMMAND != 0, flags & MORE != 0);
        if flags & !(MORE | LONG | COMMAND) != 0 || (is_command && has_more) {
            return Err(Fault::Protocol("a frame has flags that ZMTP 3 does not know"));
        }
        if is_command {
            if length > LARGEST_COMMAND as u64 {
                return Err(Fault::Protocol("a command is larger than any that there is"));
            }
            self.command_length = 0;
        } else {
            if self.count == MOST_FRAMES {
                return Err(Fault::Stranger("a message of more frames than any of its"));
            }
            let bytes = length.saturating_add(self.body.len() as u64);
            if bytes > self.limit as u64 {
                return Err(Fault::TooLarge { bytes, limit: self.limit });
            }
        }
        Ok(Frame { is_command, has_more, left: usize::try_from(length).unwrap_or(usize::MAX) })
    }

    /// Takes what there is of a frame's content.
    fn content(&mut self, mut frame: Frame, bytes: &mut &[u8]) -> Frame {
        let (piece, rest) = bytes.split_at(frame.left.min(bytes.len()));
        *bytes = rest;
        if frame.is_command {
            let end = self.command_length + piece.len();
            self.command[self.command_length..end].copy_from_slice(piece);
            self.command_length = end;
        } else {
            self.grow(piece.len(), frame.left);
            self.body.extend_from_slice(piece);
        }
        frame.left -= piece.len();
        frame
    }

    /// Room for a piece: twice what has come, so that the work stays linear, and no more than will come.
    fn grow(&mut self, piece: usize, left: usize) {
        let (length, room) = (self.body.len(), self.body.capacity());
        if length + piece > room {
            let wanted = (2 * room).clamp(length + piece, length + left);
            self.body.reserve_exact(wanted - length);
        }
    }
}

fn length(flags: u8, head: &[u8; 9]) -> u64 {
    let [_, short, ..] = *head;
    if flags & LONG == 0 {
        return u64::from(short);
    }
    head[1..].iter().fold(0, |length, byte| length << 8 | u64::from(*byte))
}

/// A message on its way to the peer.
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(frames.iter().map(|body| body.len() + 9).sum());
    for (at, body) in frames.iter().enumerate() {
        frame(&mut bytes, if at + 1 < frames.len() { MORE } else { 0 }, body);
    }
    bytes
}

/// A command on its way to the peer.
pub fn command(body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes, COMMAND, body);
    bytes
}

fn frame(bytes: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => bytes.extend([flags, length]),
        Err(_) => {
            bytes.push(flags | LONG);
            bytes.extend((body.len() as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(body);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 4096;

    /// Everything that comes of these bytes, and the fault that ends it.
    fn taken(frames: &mut Frames, mut bytes: &[u8]) -> (Vec<(Came, Vec<u8>)>, Option<Fault>) {
        let mut all = Vec::new();
        loop {
            match frames.take(&mut bytes) {
                Ok(Some(Came::Message)) => {
                    let message = frames.message();
                    let bodies = (0..message.ends.len()).rev().filter_map(|at| message.from_end(at));
                    all.push((Came::Message, bodies.flat_map(|body| [body, b"|"].concat()).collect()));
                }
                Ok(Some(Came::Command)) => all.push((Came::Command, frames.command().to_vec())),
                Ok(None) => return (all, None),
                Err(fault) => return (all, Some(fault)),
            }
        }
    }

    fn all(bytes: &[u8]) -> (Vec<(Came, Vec<u8>)>, Option<Fault>) {
        taken(&mut Frames::within(LIMIT), bytes)
    }

    /// By hand from RFC 23: flags, a length of one byte or of eight, the body.
    #[test]
    fn frames_make_messages_and_commands_may_stand_between_them() {
        let bytes = b"\x04\x03abc\x01\x02kv\x04\x00\x03\0\0\0\0\0\0\0\x01x\x00\x00\x00\x01y";
        let (came, fault) = all(bytes);
        let expected: [(Came, &[u8]); 4] =
            [(Came::Command, b"abc"), (Came::Command, b""), (Came::Message, b"kv|x||"), (Came::Message, b"y|")];
        assert_eq!(came, expected.map(|(what, bytes)| (what, bytes.to_vec())));
        assert!(fault.is_none());
    }

    #[test]
    fn what_is_announced_is_judged_before_it_comes() {
        let announced = |flags: u8, length: u64| all(&[&[flags | LONG][..], &length.to_be_bytes()].concat()).1;
        assert!(matches!(announced(0, u64::MAX), Some(Fault::TooLarge { bytes: u64::MAX, limit: LIMIT })));
        assert!(matches!(announced(0, 4097), Some(Fault::TooLarge { bytes: 4097, .. })));
        assert!(announced(0, 4096).is_none());
        assert!(matches!(announced(COMMAND, 2049), Some(Fault::Protocol(_))));
        assert!(announced(COMMAND, 2048).is_none());
        for flags in [0x80, 0x08, COMMAND | MORE] {
            assert!(matches!(all(&[flags, 0]).1, Some(Fault::Protocol(_))), "{flags}");
        }
        // 3000 bytes have come, so that 1097 are one too many.
        let second = [&message(&[&[0; 3000], b""])[..3009], &[LONG], &1097_u64.to_be_bytes()].concat();
        assert!(matches!(all(&second).1, Some(Fault::TooLarge { bytes: 4097, .. })));
        assert!(matches!(all(&[MORE, 0].repeat(9)).1, Some(Fault::Stranger(_))));
        assert!(all(&[MORE, 0].repeat(8)).1.is_none());
    }

    #[test]
    fn what_is_announced_and_does_not_come_takes_nothing() {
        let mut frames = Frames::within(1 << 30);
        let (_, fault) = taken(&mut frames, &[&[LONG][..], &(1_u64 << 30).to_be_bytes(), b"abc"].concat());
        assert!(fault.is_none() && frames.is_within_message());
        assert!(frames.held() < 64, "{}", frames.held());
    }

    #[test]
    fn a_large_message_leaves_nothing_behind() {
        let mut frames = Frames::within(1 << 20);
        let large = message(&[&[7; 1 << 20]]);
        assert_eq!(taken(&mut frames, &large).0.len(), 1);
        assert_eq!((frames.held(), frames.is_within_message()), (0, false));
    }

    proptest! {
        /// The law of the fuzz target `socket`, on bytes that are frames more often than not: whatever comes in whatever pieces,
        /// the same comes of it as in one piece, and no more is held than is allowed.
        #[test]
        fn any_pieces_are_the_same_messages_within_the_limit(
            parts in proptest::collection::vec((0_u8..10, 0_u64..3000, any::<u8>()), 0..12),
            cuts in proptest::collection::vec(1_usize..900, 1..20),
        ) {
            let mut bytes = Vec::new();
            for (flags, length, byte) in parts {
                let known = flags & 7;
                match u8::try_from(length).ok().filter(|_| known & LONG == 0) {
                    Some(short) => bytes.extend([flags, short]),
                    None => bytes.extend([&[flags | LONG][..], &length.to_be_bytes()].concat()),
                }
                bytes.extend(vec![byte; length as usize]);
            }
            let (whole, end) = all(&bytes);
            let (mut frames, mut pieces, mut rest, mut stopped) = (Frames::within(LIMIT), Vec::new(), &bytes[..], None);
            for cut in cuts.iter().cycle() {
                let (piece, after) = rest.split_at((*cut).min(rest.len()));
                rest = after;
                let (came, fault) = taken(&mut frames, piece);
                pieces.extend(came);
                prop_assert!(frames.held() <= LIMIT, "{}", frames.held());
                stopped = fault.map(|fault| fault.to_string());
                if stopped.is_some() || rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(pieces, whole);
            prop_assert_eq!(stopped, end.map(|fault| fault.to_string()));
        }
    }
}
