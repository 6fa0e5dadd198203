//! The body of an answer: sent in pieces, so that a page of many megabytes is never copied together, and with the turn
//! of its request inside, so that the turn ends when the last byte has gone.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use flate2::Crc;
use hyper::body::{Body, Frame, SizeHint};

use super::common::{Common, pack};
use super::place::Turn;
use super::unsent::Holding;

/// A body that fits into one packet of any network is not made faster by packing.
const SMALL: usize = 1024;
/// How a gzip stream begins: deflate, no name, no time, packed at its fastest, by an unknown system (RFC 1952).
const GZIP: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

/// Pieces to be sent. hyper sets Content-Length from the size hint, and takes them as one frame: as much of it goes in one
/// system call as the connection takes.
#[derive(Default)]
pub(crate) struct Pieces {
    left: VecDeque<Bytes>,
    bytes: usize,
    /// What its first pieces are, where others have the same.
    common: Option<Arc<Common>>,
    holding: Holding,
    /// Ends with the last byte.
    _turn: Option<Turn>,
}

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Pieces {
        Pieces::new(pieces, None)
    }
}

impl From<Arc<Common>> for Pieces {
    fn from(common: Arc<Common>) -> Pieces {
        Pieces::behind(common, Bytes::new())
    }
}

impl Pieces {
    /// What others get too, and behind it what is this client's own.
    pub(crate) fn behind(common: Arc<Common>, own: Bytes) -> Pieces {
        let pieces = [common.pieces(), &[own]].concat();
        let counted = (common.id(), common.bytes());
        Pieces { common: Some(common), ..Pieces::new(pieces, Some(counted)) }
    }

    fn new(pieces: Vec<Bytes>, common: Option<(u64, usize)>) -> Pieces {
        let left: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let bytes = left.iter().map(Bytes::len).sum();
        let holding = Holding { common, own: bytes - common.map_or(0, |(_, bytes)| bytes) };
        Pieces { left, bytes, common: None, holding, _turn: None }
    }

    /// The same body, which holds a turn until it has gone.
    pub(crate) fn on(self, turn: Turn) -> Pieces {
        turn.sending(self.holding);
        // Its pieces are enough from here on; what others wanted packed must not live as long as they.
        Pieces { _turn: Some(turn), common: None, ..self }
    }

    /// Whether packing it is worth while.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes > SMALL
    }

    /// The same, packed with gzip; before it has a turn.
    pub(crate) async fn packed(self) -> io::Result<Pieces> {
        let common = match &self.common {
            Some(common) => Some(common.packed().await?),
            None => None,
        };
        let own = self.left.iter().skip(self.common.as_ref().map_or(0, |common| common.pieces().len()));
        let own = pack(&own.cloned().collect::<Vec<_>>(), true).await?;
        let mut crc = Crc::new();
        common.iter().for_each(|common| crc.combine(&common.crc));
        crc.combine(&own.crc);
        // The length in the trailer is the one modulo 2^32.
        let trailer = [crc.sum().to_le_bytes(), (self.bytes as u32).to_le_bytes()].concat();
        let counted = common.map(|common| (common.id, common.blocks.len()));
        let blocks = common.iter().map(|common| &common.blocks).chain([&own.blocks]).cloned();
        let pieces = [Bytes::from_static(&GZIP)].into_iter().chain(blocks).chain([trailer.into()]);
        Ok(Pieces::new(pieces.collect(), counted))
    }
}

impl Body for Pieces {
    type Data = Pieces;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Pieces>, Infallible>>> {
        let frame = self.has_remaining().then(|| Frame::data(std::mem::take(&mut *self)));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        !self.has_remaining()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes as u64)
    }
}

impl Buf for Pieces {
    fn remaining(&self) -> usize {
        self.bytes
    }

    fn chunk(&self) -> &[u8] {
        self.left.front().map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let filled = slices.iter_mut().zip(&self.left).map(|(slice, piece)| *slice = IoSlice::new(piece));
        filled.count()
    }

    fn advance(&mut self, mut sent: usize) {
        self.bytes -= sent;
        while let Some(piece) = self.left.front_mut().filter(|_| sent > 0) {
            let here = sent.min(piece.len());
            piece.advance(here);
            sent -= here;
            if piece.is_empty() {
                self.left.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::task::Waker;

    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use crate::web::source::Source;
    use crate::web::{Crowd, Limits, Place};

    fn here() -> Source {
        IpAddr::from(Ipv4Addr::LOCALHOST).into()
    }

    async fn has_none(place: &Place) -> bool {
        place.turn(Duration::ZERO).await.is_none()
    }

    fn pieces(texts: &[&'static str]) -> Pieces {
        Pieces::from(texts.iter().map(|text| Bytes::from_static(text.as_bytes())).collect::<Vec<_>>())
    }

    /// The only frame, once it is taken.
    fn frame(body: &mut Pieces) -> Option<Pieces> {
        match Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(frame) => frame?.unwrap().into_data().ok(),
            Poll::Pending => unreachable!("everything is there"),
        }
    }

    fn slices(frame: &Pieces) -> Vec<String> {
        let mut slices = [IoSlice::new(&[]); 3];
        let filled = frame.chunks_vectored(&mut slices);
        slices[..filled].iter().map(|slice| String::from_utf8(slice.to_vec()).unwrap()).collect()
    }

    #[test]
    fn an_answer_knows_its_length_and_is_one_frame() {
        let mut body = pieces(&["abc", "", "de"]);
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
        let frame_of_all = frame(&mut body).unwrap();
        assert_eq!((frame_of_all.remaining(), slices(&frame_of_all)), (5, vec!["abc".to_owned(), "de".to_owned()]));
        assert_eq!((body.size_hint().exact(), body.is_end_stream(), frame(&mut body).is_none()), (Some(0), true, true));
    }

    #[test]
    fn a_frame_goes_on_where_the_connection_stopped() {
        let mut frame = pieces(&["abc", "de", "fghi", "j"]);
        frame.advance(4);
        assert_eq!((frame.remaining(), slices(&frame)), (6, vec!["e".to_owned(), "fghi".to_owned(), "j".to_owned()]));
        frame.advance(1);
        assert_eq!(frame.chunk(), b"fghi");
        frame.advance(5);
        assert_eq!((frame.has_remaining(), frame.chunk().len(), slices(&frame).len()), (false, 0, 0));
    }

    #[tokio::test]
    async fn a_packed_answer_is_the_same_and_knows_its_length() {
        let page = b"x{k=\"1\"} 5\n".repeat(20_000);
        let (one, other) = page.split_at(150_000);
        let plain = Pieces::from(vec![Bytes::copy_from_slice(one), Bytes::copy_from_slice(other)]);
        let mut packed = plain.packed().await.unwrap();
        let announced = packed.size_hint().exact();
        let mut packed = frame(&mut packed).unwrap();
        let bytes = packed.copy_to_bytes(packed.remaining());
        assert_eq!(announced, Some(bytes.len() as u64));
        let mut unpacked = Vec::new();
        flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut unpacked).unwrap();
        assert!(unpacked == page && bytes.len() < page.len() / 10);
    }

    #[tokio::test]
    async fn a_packed_answer_keeps_its_turn() {
        let crowd = Crowd::new(Limits { requests: 1, ..Limits::default() });
        let (one, other) = (crowd.enter(here()).unwrap(), crowd.enter(here()).unwrap());
        let mut packed = pieces(&["a"]).packed().await.unwrap().on(one.free_turn());
        assert!(has_none(&other).await);
        drop(frame(&mut packed));
        assert!(!has_none(&other).await);
    }

    #[tokio::test]
    async fn the_turn_ends_when_all_has_gone() {
        let crowd = Crowd::new(Limits { requests: 1, ..Limits::default() });
        let (one, other) = (crowd.enter(here()).unwrap(), crowd.enter(here()).unwrap());
        let mut body = pieces(&["a", "b"]).on(one.free_turn());
        let mut sent = frame(&mut body).unwrap();
        drop(body);
        sent.advance(1);
        assert!(has_none(&other).await, "the rest is still on its way");
        drop(sent);
        assert!(!has_none(&other).await);
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_ends_its_turn() {
        let crowd = Crowd::new(Limits { requests: 1, ..Limits::default() });
        let (one, other) = (crowd.enter(here()).unwrap(), crowd.enter(here()).unwrap());
        drop(pieces(&["a"]).on(one.free_turn()));
        assert!(!has_none(&other).await);
    }
}
