//! The event stream of one simulated engine, published as vLLM does: a PUB socket, and a ROUTER that replays.
//!
//! Both listen on free ports of the loopback interface for as long as the process lives, a thread for each of them
//! and for each connection: there are a few, and they mostly wait.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::events::Address;
use crate::events::transport::{Fault, Kind, Socket};

/// Batches kept for replay, as vLLM keeps them.
const KEPT: usize = 10_000;
const TOPIC: &[u8] = b"kv-events";
/// How often a connection is looked after while nothing happens.
const PAUSE: Duration = Duration::from_millis(100);

/// A batch with its number.
type Numbered = Arc<(u64, Vec<u8>)>;

/// The publisher of one engine.
pub(super) struct Publisher {
    /// Where it publishes.
    pub(super) events: Address,
    /// Where it replays.
    pub(super) replay: Address,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    kept: Mutex<VecDeque<Numbered>>,
    subscribers: Mutex<Vec<Sender<Numbered>>>,
}

impl Publisher {
    /// Listens.
    pub(super) fn start() -> io::Result<Publisher> {
        let shared = Arc::<Shared>::default();
        let events = listen(&shared, publish)?;
        let replay = listen(&shared, replay)?;
        Ok(Publisher { events, replay, shared })
    }

    /// Publishes the next batch; the first one again if the engine has restarted.
    pub(super) fn send(&self, payload: Vec<u8>, restarted: bool) {
        let mut kept = lock(&self.shared.kept);
        if restarted {
            kept.clear();
        }
        let seq = kept.back().map_or(0, |last| last.0 + 1);
        let batch = Arc::new((seq, payload));
        kept.push_back(Arc::clone(&batch));
        if kept.len() > KEPT {
            kept.pop_front();
        }
        lock(&self.shared.subscribers).retain(|subscriber| subscriber.send(Arc::clone(&batch)).is_ok());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves each connection of a new port on a thread of its own.
fn listen(shared: &Arc<Shared>, serve: fn(TcpStream, &Shared) -> Result<(), Fault>) -> io::Result<Address> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let shared = Arc::clone(shared);
    thread::Builder::new().name("demo-events".to_owned()).spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else {
                thread::sleep(PAUSE);
                continue;
            };
            let shared = Arc::clone(&shared);
            let served = thread::Builder::new().name("demo-events".to_owned()).spawn(move || {
                if let Err(fault) = serve(stream, &shared) {
                    tracing::debug!(%fault, "a connection to the demo's events ended");
                }
            });
            if let Err(error) = served {
                tracing::warn!(%error, "the demo engine could not serve a connection to its events");
            }
        }
    })?;
    Ok(Address { host: Ipv4Addr::LOCALHOST.to_string(), port })
}

fn publish(stream: TcpStream, shared: &Shared) -> Result<(), Fault> {
    let mut socket = Socket::over(stream, Kind::Pub)?;
    if !subscribed(&mut socket)? {
        return Ok(());
    }
    let (sender, batches): (Sender<Numbered>, Receiver<Numbered>) = mpsc::channel();
    lock(&shared.subscribers).push(sender);
    loop {
        match batches.recv_timeout(PAUSE) {
            Ok(batch) => socket.send(&[TOPIC, &batch.0.to_be_bytes(), &batch.1])?,
            // Signs of life are answered on the way.
            Err(_) => drop(socket.receive(Duration::from_millis(1))?),
        }
    }
}

/// Waits for the first subscription; whether it fits our topic.
fn subscribed(socket: &mut Socket) -> Result<bool, Fault> {
    loop {
        if let Some(message) = socket.receive(PAUSE)? {
            let prefix = message.from_end(0).and_then(|frame| frame.strip_prefix(&[1]));
            return Ok(prefix.is_some_and(|prefix| TOPIC.starts_with(prefix)));
        }
    }
}

fn replay(stream: TcpStream, shared: &Shared) -> Result<(), Fault> {
    let mut socket = Socket::over(stream, Kind::Router)?;
    loop {
        let Some(message) = socket.receive(PAUSE)? else { continue };
        let Some(start) = message.from_end(0).and_then(|frame| frame.try_into().ok()) else { continue };
        let start = u64::from_be_bytes(start);
        let wanted: Vec<Numbered> = lock(&shared.kept).iter().filter(|batch| batch.0 >= start).cloned().collect();
        for batch in wanted {
            socket.send(&[b"", TOPIC, &batch.0.to_be_bytes(), &batch.1])?;
        }
        socket.send(&[b"", b"", &u64::MAX.to_be_bytes(), b""])?;
    }
}
