//! Any bytes as what a peer of `--events` sends, in any pieces: greeting and handshake, or from behind them on, then messages and the
//! batches in them. Never more is held than is allowed, every byte is taken or refused, and the same bytes in one piece come to the
//! same end. `fuzz/run 60 socket`
//!
//! The first byte says where it begins, how much may be held, and how long the pieces are.
#![no_main]

use kvtier_exporter::events::frames::{Came, Frames};
use kvtier_exporter::events::handshake::{Handshake, Kind, Progress};
use kvtier_exporter::events::wire::Batch;
use libfuzzer_sys::fuzz_target;

/// What a peer has led to.
#[derive(Debug, Default, PartialEq)]
struct Outcome {
    greeted: bool,
    messages: usize,
    commands: usize,
    batches: usize,
    refused: Option<String>,
}

struct Peer {
    handshake: Option<Handshake>,
    frames: Frames,
    batch: Batch,
    limit: usize,
    outcome: Outcome,
}

fuzz_target!(|input: &[u8]| {
    let Some((choice, bytes)) = input.split_first() else { return };
    let limit = [0, 64, 1000, 1 << 16][usize::from(choice >> 1 & 3)];
    let piece = 1 + usize::from(choice >> 3);
    let end = |pieces: &mut dyn Iterator<Item = &[u8]>| {
        let mut peer = Peer::new(choice & 1 == 0, limit);
        while let Some(piece) = pieces.next() {
            if !peer.hear(piece) {
                break;
            }
        }
        peer.outcome
    };
    assert_eq!(end(&mut bytes.chunks(piece)), end(&mut std::iter::once(bytes)));
});

impl Peer {
    fn new(greets: bool, limit: usize) -> Peer {
        Peer {
            handshake: greets.then(|| Handshake::new(Kind::Sub)),
            frames: Frames::within(limit),
            batch: Batch::default(),
            limit,
            outcome: Outcome::default(),
        }
    }

    /// Takes all of a piece; whether there is more to be had from this peer.
    fn hear(&mut self, mut piece: &[u8]) -> bool {
        // What is complete without a further byte comes with the last one, so each step takes one at least.
        while !piece.is_empty() {
            let before = piece.len();
            if let Err(refused) = self.step(&mut piece) {
                self.outcome.refused = Some(refused);
                return false;
            }
            assert!(piece.len() < before, "it stands still");
            assert!(self.frames.held() <= self.limit, "{} of {}", self.frames.held(), self.limit);
        }
        true
    }

    fn step(&mut self, piece: &mut &[u8]) -> Result<(), String> {
        if let Some(handshake) = &mut self.handshake {
            if handshake.take(piece).map_err(|fault| fault.to_string())? == Progress::Done {
                (self.handshake, self.outcome.greeted) = (None, true);
            }
            return Ok(());
        }
        match self.frames.take(piece).map_err(|fault| fault.to_string())? {
            Some(Came::Message) => self.message(),
            Some(Came::Command) => self.outcome.commands += 1,
            None => assert!(piece.is_empty(), "what is not taken is not kept"),
        }
        Ok(())
    }

    fn message(&mut self) {
        self.outcome.messages += 1;
        let payload = self.frames.message().from_end(0).unwrap_or_default();
        let read = self.batch.decode_within(payload, self.limit);
        assert!(self.batch.bytes() <= self.limit, "{} of {}", self.batch.bytes(), self.limit);
        self.outcome.batches += usize::from(read.is_ok());
    }
}
