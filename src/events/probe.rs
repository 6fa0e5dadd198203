//! One short look at an endpoint, for `check`: who is there, and what comes. I/O.
//!
//! It subscribes to everything, so that a topic that is another one shows. Nothing of a batch is kept but its topic
//! and its rank.

use std::time::{Duration, Instant};

use super::address::Address;
use super::port::Port;
use super::transport::{Fault, Kind, Socket};
use super::wire::Batch;
use super::{Endpoint, Link};

/// The longest wait for an engine that connects. ZeroMQ tries ten times a second.
const ENGINE_CONNECTS: Duration = Duration::from_secs(2);
/// Bytes of a topic that are shown.
const SHOWN: usize = 256;
/// Pause between two looks at a port.
const PAUSE: Duration = Duration::from_millis(20);

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A batch under the wanted topic, of this rank.
    Batch(u32),
    /// Batches come, but under this topic.
    OtherTopic(String),
    /// A publisher is there, and nothing came.
    Nothing,
    /// Nobody listens there; an engine connected when this side did.
    EngineConnects,
    /// This side listens, and nobody connected.
    NobodyConnects,
    /// This side was to listen, and the port is taken.
    PortTaken,
    /// The socket there is none that publishes, but this one.
    AnotherSocket(String),
    /// No connection, or what came was no batch: why.
    Failed(String),
}

/// What answers replays at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replays {
    /// A socket that answers.
    There,
    /// The socket there answers nothing: it is this one.
    AnotherSocket(String),
    /// No connection: why.
    Failed(String),
}

/// Looks who is at the address of a replay, without asking for one.
pub fn probe_replay(at: &Address) -> Replays {
    match Socket::connect(at, Kind::Dealer) {
        Ok(_) => Replays::There,
        Err(Fault::Kind(kind)) => Replays::AnotherSocket(kind),
        Err(fault) => Replays::Failed(fault.to_string()),
    }
}

/// Looks for as long as `patience`, or until something comes. Where nobody listens it may listen itself for a moment,
/// if `may_listen`: an engine that is about to bind that port could not meanwhile.
pub fn probe(endpoint: &Endpoint, patience: Duration, may_listen: bool) -> Heard {
    let until = Instant::now() + patience;
    let connected = match &endpoint.link {
        Link::Connect(to) => match Socket::connect(to, Kind::Sub) {
            Err(Fault::Connect(_)) if may_listen && engine_connects(to) => return Heard::EngineConnects,
            connected => connected,
        },
        Link::Bind(at) => match Port::open(at) {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => return Heard::PortTaken,
            Err(error) => Err(Fault::Connect(error)),
            Ok(mut port) => match caller(&mut port, until) {
                None => return Heard::NobodyConnects,
                Some(connected) => connected,
            },
        },
    };
    match connected {
        Ok(socket) => {
            listen_to(socket, &endpoint.topic, until).unwrap_or_else(|fault| Heard::Failed(fault.to_string()))
        }
        Err(Fault::Kind(kind)) => Heard::AnotherSocket(kind),
        Err(fault) => Heard::Failed(fault.to_string()),
    }
}

/// The publisher that calls; what kept the last caller from being one, if there is none.
fn caller(port: &mut Port, until: Instant) -> Option<Result<Socket, Fault>> {
    let mut failure = None;
    while Instant::now() < until {
        if let Some(socket) = port.publisher(|fault| failure = Some(fault)) {
            return Some(Ok(socket));
        }
        std::thread::sleep(PAUSE);
    }
    failure.map(Err)
}

/// Whether a publisher comes to this address. It is another machine's where it cannot be listened on.
fn engine_connects(at: &Address) -> bool {
    let until = Instant::now() + ENGINE_CONNECTS;
    Port::open(at).is_ok_and(|mut port| caller(&mut port, until).is_some_and(|caller| caller.is_ok()))
}

fn listen_to(mut socket: Socket, wanted: &str, until: Instant) -> Result<Heard, Fault> {
    socket.subscribe("")?;
    let (mut batch, mut heard) = (Batch::default(), Heard::Nothing);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(heard);
        }
        let Some(message) = socket.receive(left)? else { continue };
        let topic = message.from_end(2).unwrap_or_default();
        if !topic.starts_with(wanted.as_bytes()) {
            heard = Heard::OtherTopic(String::from_utf8_lossy(&topic[..topic.len().min(SHOWN)]).into_owned());
            continue;
        }
        return Ok(match batch.decode(message.from_end(0).unwrap_or_default()) {
            Ok(()) => Heard::Batch(batch.rank),
            Err(malformed) => Heard::Failed(format!("what comes is no batch of KV cache events: {malformed}")),
        });
    }
}
