//! What an engine has announced of its GPU pool, and what it will announce next.

use std::collections::BTreeSet;
use std::ops::Range;

use super::news::News;
use super::pool::{Chunk, Pool};
use super::request::Session;

/// Blocks that were announced, and the news since the last ones were taken.
#[derive(Debug, Default)]
pub(super) struct Announced {
    blocks: BTreeSet<Chunk>,
    news: Vec<News>,
}

impl Announced {
    /// The news since the last call.
    pub(super) fn take(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Blocks have left the GPU pool.
    pub(super) fn left(&mut self, chunks: impl IntoIterator<Item = Chunk>) {
        for chunk in chunks {
            if self.blocks.remove(&chunk) {
                self.news.push(News::Left(chunk));
            }
        }
    }

    /// Blocks of a session's history are whole in the GPU pool: those that are new are announced, each run at once.
    pub(super) fn entered(&mut self, session: &Session, blocks: Range<u64>, gpu: &Pool) {
        for index in blocks {
            let chunk = session.chunk(index);
            if !gpu.contains(chunk) || !self.blocks.insert(chunk) {
                continue;
            }
            let parent = index.checked_sub(1).map(|before| session.chunk(before));
            match self.news.last_mut() {
                Some(News::Entered { chunks, .. }) if chunks.last().copied() == parent => chunks.push(chunk),
                _ => self.news.push(News::Entered { chunks: vec![chunk], parent }),
            }
        }
    }
}
