//! What answers to several clients have in common: a page of theirs, held once and packed once.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};
use tokio::sync::OnceCell;
use tokio::task::yield_now;

/// How much is packed before others have their turn: a page may be large, and all of us are one thread.
const STEP: usize = 64 * 1024;

/// The beginning of several answers.
#[derive(Debug)]
pub struct Common {
    id: u64,
    pieces: Vec<Bytes>,
    bytes: usize,
    packed: OnceCell<Packed>,
}

/// Bytes in packed form, as a part of a gzip stream.
#[derive(Debug)]
pub(super) struct Packed {
    /// Of the memory of these blocks, see [`Common::id`].
    pub(super) id: u64,
    /// Blocks of RFC 1951, to the end of a byte.
    pub(super) blocks: Bytes,
    /// Of the plain bytes.
    pub(super) crc: Crc,
}

impl Common {
    /// These pieces, one after the other.
    pub fn new(pieces: Vec<Bytes>) -> Common {
        let pieces: Vec<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let bytes = pieces.iter().map(Bytes::len).sum();
        Common { id: number(), pieces, bytes, packed: OnceCell::new() }
    }

    /// Tells this memory from any other's.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The pieces; each is another handle of the same memory.
    pub(super) fn pieces(&self) -> &[Bytes] {
        &self.pieces
    }

    /// Bytes of all pieces.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The same packed, for others to follow. Who asks while it is being packed waits for it.
    pub(super) async fn packed(&self) -> io::Result<&Packed> {
        self.packed.get_or_try_init(|| pack(&self.pieces, false)).await
    }
}

/// Packs with gzip at its fastest. Blocks that are not the last ones need others behind them, which do not refer to them.
pub(super) async fn pack(pieces: &[Bytes], are_last: bool) -> io::Result<Packed> {
    let (mut packer, mut crc) = (DeflateEncoder::new(Vec::new(), Compression::fast()), Crc::new());
    for part in pieces.iter().flat_map(|piece| piece.chunks(STEP)) {
        packer.write_all(part)?;
        crc.update(part);
        yield_now().await;
    }
    let blocks = if are_last {
        packer.finish()?
    } else {
        packer.flush()?;
        std::mem::take(packer.get_mut())
    };
    // Without what was asked for in advance: it may be held for long.
    Ok(Packed { id: number(), blocks: blocks.into_boxed_slice().into(), crc })
}

fn number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed)
}
