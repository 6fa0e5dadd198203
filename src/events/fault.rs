//! Why there is no connection any more.

use std::io;
use std::time::Duration;

use crate::plain;

/// What ended a connection, or kept it from being made.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It could not be made.
    #[error("cannot connect: {}", plain::io(.0))]
    Connect(io::Error),
    /// It broke.
    #[error("the connection broke: {}", plain::io(.0))]
    Broken(io::Error),
    /// The peer closed it.
    #[error("the peer closed the connection")]
    Closed,
    /// What came is not ZMTP 3 with the NULL mechanism, or nothing that a publisher sends.
    #[error("the peer speaks something else than ZeroMQ: {0}")]
    Protocol(&'static str),
    /// It is ZeroMQ, and nothing that a publisher of KV cache events sends.
    #[error("the peer sends what no publisher of KV cache events does: {0}")]
    Stranger(&'static str),
    /// It sends so many commands, and more, in so long.
    #[error("the peer sends commands without end: more than {} in {} seconds", .0, .1.as_secs())]
    Commands(u32, Duration),
    /// A socket of another kind answered.
    #[error("the peer is a {0} socket: are the event endpoint and the replay endpoint interchanged?")]
    Kind(String),
    /// A message has more bytes than may be held for it.
    #[error(
        "a message of {bytes} bytes is larger than the {limit} that are held for one: if it is a batch, give more --events.max-bytes"
    )]
    TooLarge {
        /// Bytes that its frames have, as far as they are announced.
        bytes: u64,
        /// The most.
        limit: usize,
    },
    /// Nothing was heard for so long, although the peer used to answer.
    #[error("the peer has not been heard of for {} seconds", .0.as_secs())]
    Silent(Duration),
    /// It does not take what is sent to it.
    #[error("the peer took nothing of what it was sent for {} seconds", .0.as_secs())]
    Untaken(Duration),
    /// A message had not come to its end after so long.
    #[error("a message was still on its way after {} seconds", .0.as_secs())]
    Slow(Duration),
    /// A replay had not come to its end after so long.
    #[error("the replay had not ended after {} seconds", .0.as_secs())]
    Endless(Duration),
    /// The greeting had not come to its end after so long.
    #[error("it accepted the connection and then did not greet within {} seconds", .0.as_secs())]
    NoGreeting(Duration),
    /// It gave way while it was greeted.
    #[error("{0} connections that came after it are greeted at a time: it had not greeted by then")]
    Crowded(usize),
}

impl Fault {
    /// One word for a label.
    pub fn reason(&self) -> &'static str {
        match self {
            Fault::Connect(_) => "connect",
            Fault::Broken(_) | Fault::Closed => "closed",
            Fault::Protocol(_)
            | Fault::Stranger(_)
            | Fault::Commands(..)
            | Fault::Kind(_)
            | Fault::NoGreeting(_)
            | Fault::Crowded(_) => "protocol",
            Fault::TooLarge { .. } => "too_large",
            Fault::Silent(_) | Fault::Untaken(_) | Fault::Slow(_) | Fault::Endless(_) => "silent",
        }
    }
}
