//! vLLM's KV cache events: what is really in the offload tier, and what a tier of another size would have reloaded.
//!
//! The stream is followed by one thread an endpoint; a scrape looks at what the thread told last and never waits for
//! it. Unlike all else that is computed from upstream, what is told here outlives a scrape: it is a fold over a
//! stream, and the families of [`families`] say how whole that stream is.
//!
//! | room | what it is | kind |
//! |---|---|---|
//! | [`address`] | `tcp://HOST:PORT` | pure |
//! | `msgpack` | bytes into values, or over them | pure |
//! | [`wire`] | a batch into events | pure |
//! | [`frames`] | what a peer sends, taken apart within bounds | pure |
//! | [`handshake`] | how a connection begins | pure |
//! | `fault` | why a connection ended | pure |
//! | [`transport`] | ZMTP 3 over TCP | I/O |
//! | `port` | a port at which publishers call | I/O |
//! | [`probe`] | one short look at an endpoint, for `check` | I/O |
//! | `sequence` | the numbers of a stream judged | pure |
//! | `replay` | the answers to a replay judged: their order, and when there is an end | pure |
//! | `shares` | where the bytes of `--events.max-bytes` go | pure |
//! | `reader` | one endpoint followed: connect, replay, reconnect | I/O |
//! | [`fold`] | all that one engine's stream tells | pure |
//! | `residency` | which chunks are in the tier, and what resets leave open | pure |
//! | `ghosts` | evicted chunks, in order | pure |
//! | `chains` | the LRU of every size, replayed from the GPU's events | pure |
//! | `ranks`, `identity` | order of last use; keys, sampling, sizes of tables | pure |
//! | [`sizing`] | from distances to predicted shares, over a window | pure |
//! | [`resident`] | chunks into bytes and shares | pure |
//! | `resets` | resets of the page held against clears of the stream | pure |
//! | [`ledger`] | stream and pages brought together, scrape by scrape | pure |
//! | [`explain`] | the paragraphs of `/debug` | pure |
//! | [`families`] | the families of all this | pure |
//!
//! `token_ids` are prompt content: [`wire`] walks over them, and nothing keeps, logs or shows them.

pub mod address;
mod chains;
pub mod explain;
pub mod families;
mod fault;
pub mod fold;
pub mod frames;
mod ghosts;
pub mod handshake;
mod identity;
pub mod ledger;
mod msgpack;
mod port;
pub mod probe;
mod ranks;
mod reader;
mod replay;
mod resets;
mod residency;
pub mod resident;
mod sequence;
mod shares;
pub mod sizing;
pub mod transport;
pub mod wire;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use address::Address;
pub use replay::Replay;
pub use residency::{Bounds, Reset};
use resident::Peers;
pub use resident::{Resident, Shown};

use crate::family::Family;
use crate::model::{Engine, EngineId};
use crate::plain;
use crate::settings::Stream;
use fold::{Doubt, View};
use ledger::{Ledger, Limits, Told};
use reader::Reader;
use shares::Shares;

/// What to follow, and within which limits.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// One endpoint for each data-parallel rank.
    pub endpoints: Vec<Endpoint>,
    /// `--events.window`: over which predictions are made, in the stream's own time.
    pub window: Duration,
    /// `--events.max-error`: how far the prediction for the present size may be off, as a share of the tokens asked.
    pub max_error: f64,
    /// `--events.max-bytes`: for all that is held for all endpoints together, on its way or known.
    pub max_bytes: usize,
}

/// One publisher.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// How it is reached.
    pub link: Link,
    /// Where it answers what was missed.
    pub replay: Option<Address>,
    /// What its topics begin with.
    pub topic: String,
}

/// Which side connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// We do.
    Connect(Address),
    /// The engine does: vLLM connects wherever its endpoint names a host.
    Bind(Address),
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Link::Connect(address) | Link::Bind(address)) = self;
        address.fmt(f)
    }
}

/// How one endpoint is, and what its stream has told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Status {
    /// The endpoint, as it was given.
    pub endpoint: String,
    /// Connected and subscribed.
    pub up: bool,
    /// The view is of now: what came over this connection, or what was replayed, goes on where the view ended. Between a
    /// connection and that proof another engine may be behind the address.
    pub current: bool,
    /// Why not, as one word and in words.
    pub failure: Option<(&'static str, String)>,
    /// How the last replay is, or ended.
    pub replay: Replay,
    /// Number of the last batch.
    pub last_seq: Option<u64>,
    /// Batches taken in, live or replayed.
    pub batches: u64,
    /// Those of them that were replayed.
    pub replayed: u64,
    /// Times that batches were lost for good.
    pub gaps: u64,
    /// Failures by reason.
    pub errors: BTreeMap<&'static str, u64>,
    /// Seconds from the making of the last live batch to its arrival.
    pub lag: Option<f64>,
    /// What the fold knows; `None` before the first batch.
    pub view: Option<View>,
}

/// The followed streams, and what scrapes have met them.
pub struct Events {
    slots: Vec<Slot>,
    ledger: Mutex<Ledger>,
    limits: Limits,
    began: Instant,
}

struct Slot {
    shared: Arc<Shared>,
    /// Its thread ends once this is gone; what is sent wakes it where it waits to connect again.
    alive: Sender<()>,
}

/// What thread and scrapes share: each side takes the lock for the time of a pointer.
#[derive(Default)]
struct Shared {
    status: Mutex<Arc<Status>>,
    hints: Mutex<Hints>,
}

/// What the pages tell the thread that follows the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Hints {
    /// Slots of the tier, and whether the engine says so, for the fold of that number: another engine may have others.
    slots: Option<(u64, (u64, bool))>,
    /// A reset that the page counted, for the fold of that number.
    doubt: Option<(u64, Doubt)>,
    /// The fold of that number is of an engine that is no more.
    outlived: Option<u64>,
}

impl Shared {
    fn tell(&self, status: Status) {
        *lock(&self.status) = Arc::new(status);
    }

    fn hints(&self) -> Hints {
        *lock(&self.hints)
    }
}

/// No code panics while it holds one of these locks; should one do so, what is in it is still whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Events {
    /// Starts to follow all endpoints.
    pub fn start(options: &Options) -> Events {
        let shares = Shares::of(options.max_bytes, options.endpoints.len());
        Events {
            slots: options.endpoints.iter().map(|endpoint| Slot::start(endpoint, shares)).collect(),
            ledger: Mutex::default(),
            limits: Limits { window: options.window.as_secs_f64(), max_error: options.max_error },
            began: Instant::now(),
        }
    }

    fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// What is known now, one for each endpoint. Never waits for a stream.
    pub fn look(&self) -> Vec<Arc<Status>> {
        self.slots.iter().map(|slot| Arc::clone(&lock(&slot.shared.status))).collect()
    }

    /// What the streams say of now, for the page that is about to be read.
    pub fn streams(&self, statuses: &[Arc<Status>]) -> Vec<Stream> {
        lock(&self.ledger).streams(statuses, self.now())
    }

    /// Brings a page and the streams together, one for each engine that has a stream.
    pub fn meet(&self, statuses: &[Arc<Status>], engines: &[Engine], residents: &[(EngineId, Resident)]) -> Vec<Told> {
        let (mut ledger, now) = (lock(&self.ledger), self.now());
        let mut told = Vec::new();
        if !engines.is_empty() {
            self.wake(statuses);
        }
        for engine in engines {
            let Some(at) = ledger::status_of(statuses, &engine.id, peers_of(engine, engines)) else { continue };
            let resident = residents.iter().find(|(id, _)| *id == engine.id).map(|(_, resident)| *resident);
            told.push(ledger.note(engine, &statuses[at], resident, self.limits, now));
            let fold = statuses[at].view.as_ref().map(|view| view.fold);
            let slots = fold.zip(resident.and_then(|resident| resident.room()));
            let (doubt, outlived) = ledger.hints(&statuses[at]);
            *lock(&self.slots[at].shared.hints) = Hints { slots, doubt, outlived };
        }
        told
    }

    /// An engine whose page answers publishes too: streams that are down are tried again at once.
    fn wake(&self, statuses: &[Arc<Status>]) {
        for (slot, _) in self.slots.iter().zip(statuses).filter(|(_, status)| !status.up) {
            // A thread that could not be started hears nothing.
            let _ = slot.alive.send(());
        }
    }

    /// By how much predictions may be off to be shown.
    pub fn max_error(&self) -> f64 {
        self.limits.max_error
    }

    /// What `/debug` says.
    pub fn explain(&self, statuses: &[Arc<Status>], told: &[Told]) -> String {
        explain::explain(statuses, told, self.limits)
    }

    /// The families of these engines.
    pub fn engine_families(&self, told: &[Told]) -> Vec<Family> {
        families::engine_families(told, self.limits.max_error)
    }
}

fn peers_of(engine: &Engine, engines: &[Engine]) -> Peers {
    Peers::of(&engine.id, engines.iter().map(|other| &other.id))
}

impl Slot {
    fn start(endpoint: &Endpoint, shares: Shares) -> Slot {
        let (alive, stop) = mpsc::channel();
        let shared = Arc::new(Shared::default());
        let reader = Reader::new(endpoint.clone(), Arc::clone(&shared), shares);
        let thread = thread::Builder::new().name("events".to_owned()).spawn(move || reader.run(&stop));
        if let Err(error) = thread {
            tracing::error!(error = plain::io(&error), endpoint = %endpoint.link, "events have no thread");
            let failure = Some(("internal", format!("no thread could be started: {}", plain::io(&error))));
            shared.tell(Status { endpoint: endpoint.link.to_string(), failure, ..Status::default() });
        }
        Slot { shared, alive }
    }
}
