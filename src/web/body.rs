//! The body of an answer: sent piece by piece, so that a page of many megabytes is never copied together, and
//! with the turn of its request inside, so that the turn ends when the last byte has gone.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, Write};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Body, Frame, SizeHint};
use tokio::task::yield_now;

use super::crowd::Turn;

/// Largest frame. hyper takes a frame whole before it looks how much a slow client has left unread.
const FRAME: usize = 64 * 1024;
/// A body that fits into one packet of any network is not made faster by packing.
const SMALL: u64 = 1024;

/// Pieces to be sent. hyper sets Content-Length from the size hint.
#[derive(Default)]
pub(crate) struct Pieces {
    left: VecDeque<Bytes>,
    bytes: u64,
    turn: Option<Turn>,
}

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Pieces {
        let left: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let bytes = left.iter().map(|piece| piece.len() as u64).sum();
        Pieces { left, bytes, turn: None }
    }
}

impl Pieces {
    /// The same body, which holds a turn until it has gone.
    pub(crate) fn on(self, turn: Turn) -> Pieces {
        turn.sending();
        Pieces { turn: Some(turn), ..self }
    }

    /// Whether packing it is worth while.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes > SMALL
    }

    /// The same, packed with gzip at its fastest. Others have their turn in between: a body may be large, and all of
    /// us are one thread.
    pub(crate) async fn packed(self) -> io::Result<Pieces> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        for part in self.left.iter().flat_map(|piece| piece.chunks(FRAME)) {
            packer.write_all(part)?;
            yield_now().await;
        }
        let packed = Pieces::from(vec![packer.finish()?.into()]);
        Ok(Pieces { turn: self.turn, ..packed })
    }

    fn next(&mut self) -> Option<Bytes> {
        let piece = self.left.front_mut()?;
        let frame = if piece.len() > FRAME { Some(piece.split_to(FRAME)) } else { self.left.pop_front() }?;
        self.bytes -= frame.len() as u64;
        match self.turn.take_if(|_| self.left.is_empty()) {
            Some(turn) => Some(Bytes::from_owner(Last { frame, _turn: turn })),
            None => Some(frame),
        }
    }
}

/// The last frame. Whoever sends it drops it when it has gone, and the turn with it.
struct Last {
    frame: Bytes,
    _turn: Turn,
}

impl AsRef<[u8]> for Last {
    fn as_ref(&self) -> &[u8] {
        &self.frame
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    use crate::web::{Crowd, Limits};

    #[test]
    fn an_answer_knows_its_length_while_it_is_sent() {
        let mut pieces = Pieces::from(vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"de")]);
        assert_eq!((pieces.size_hint().exact(), pieces.is_end_stream()), (Some(5), false));
        assert_eq!(pieces.next().as_deref(), Some(&b"abc"[..]));
        assert_eq!(pieces.size_hint().exact(), Some(2));
        assert_eq!(pieces.next().as_deref(), Some(&b"de"[..]));
        assert!(pieces.is_end_stream());
        assert_eq!(pieces.next(), None);
    }

    #[test]
    fn large_pieces_are_sent_in_parts() {
        let mut pieces = Pieces::from(vec![Bytes::from(vec![7; 150_000])]);
        let parts: Vec<usize> = std::iter::from_fn(|| pieces.next()).map(|part| part.len()).collect();
        assert_eq!(parts, [65_536, 65_536, 18_928]);
    }

    #[tokio::test]
    async fn a_packed_answer_is_the_same_and_knows_its_length() {
        let page = b"x{k=\"1\"} 5\n".repeat(20_000);
        let (one, other) = page.split_at(150_000);
        let pieces = Pieces::from(vec![Bytes::copy_from_slice(one), Bytes::copy_from_slice(other)]);
        let mut packed = pieces.packed().await.unwrap();
        let (announced, mut bytes) = (packed.size_hint().exact(), Vec::new());
        while let Some(frame) = packed.next() {
            bytes.extend_from_slice(&frame);
        }
        assert_eq!(announced, Some(bytes.len() as u64));
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == page && bytes.len() < page.len() / 10);
    }

    #[tokio::test]
    async fn a_packed_answer_keeps_its_turn() {
        let crowd = Crowd::new(Limits { requests: 1, ..Limits::default() });
        let (one, other) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        let pieces = Pieces::from(vec![Bytes::from_static(b"a")]).on(one.turn().unwrap());
        let mut packed = pieces.packed().await.unwrap();
        assert!(other.turn().is_none());
        drop(packed.next());
        assert!(other.turn().is_some());
    }

    #[tokio::test]
    async fn the_turn_ends_with_the_last_frame() {
        let crowd = Crowd::new(Limits { requests: 1, ..Limits::default() });
        let (one, other) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        let mut pieces = Pieces::from(vec![Bytes::from_static(b"a"), Bytes::from_static(b"b")]).on(one.turn().unwrap());
        drop(pieces.next());
        assert!(other.turn().is_none());
        let last = pieces.next().unwrap();
        drop(pieces);
        assert!(other.turn().is_none(), "the last frame is still on its way");
        drop(last);
        assert!(other.turn().is_some());
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_ends_its_turn() {
        let crowd = Crowd::new(Limits { requests: 1, ..Limits::default() });
        let (one, other) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        drop(Pieces::from(vec![Bytes::from_static(b"a")]).on(one.turn().unwrap()));
        assert!(other.turn().is_some());
    }
}
