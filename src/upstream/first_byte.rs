//! The first byte that comes over a connection: TLS where plain HTTP was expected shows in it, and hyper keeps it to
//! itself.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The byte, once it has come.
#[derive(Clone, Default)]
pub(super) struct FirstByte(Arc<OnceLock<u8>>);

/// A stream whose first byte is noted.
pub(super) struct Noted<S> {
    stream: S,
    first: FirstByte,
}

impl FirstByte {
    /// The stream, and what its first byte will be.
    pub(super) fn of<S>(stream: S) -> (Noted<S>, FirstByte) {
        let first = FirstByte::default();
        (Noted { stream, first: first.clone() }, first)
    }

    /// Whether a TLS record came first: an alert or a handshake (RFC 8446, 5.1). No response begins with these.
    pub(super) fn begins_tls(&self) -> bool {
        matches!(self.0.get(), Some(21 | 22))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Noted<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if let Some(byte) = buf.filled().get(before) {
            self.first.0.get_or_init(|| *byte);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Noted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
