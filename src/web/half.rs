//! A client that has said all it wants to say (`shutdown` of its half, as `nc -N` does) still gets its answer.
//!
//! hyper takes the end of what a client says for the end of the client. So that end is kept from it while an answer is owed,
//! and passed on as soon as it was given.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::place::Place;

/// A connection whose client may fall silent.
pub(crate) struct HalfClose<S> {
    stream: S,
    place: Arc<Place>,
}

impl<S> HalfClose<S> {
    /// The stream of the client at this place.
    pub(crate) fn new(stream: S, place: Arc<Place>) -> HalfClose<S> {
        HalfClose { stream, place }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for HalfClose<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (before, room) = (buffer.filled().len(), buffer.remaining() > 0);
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        let ended = room && matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before;
        if ended && self.place.falls_silent(cx.waker()) { Poll::Pending } else { read }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for HalfClose<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
