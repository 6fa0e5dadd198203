//! One endpoint followed for as long as the exporter runs, on a thread of its own: connect or wait to be connected
//! to, subscribe, ask for what was missed, fold, and tell. A fault costs the connection and nothing else.
//!
//! After each connection, and at each gap, the replay endpoint is asked for everything from the next number on. The
//! replay itself may have holes (a full queue drops messages): it is asked again from the first one. What no replay
//! gives back is a gap, and the fold goes on with bounds.
//!
//! Behind an address that is connected to again there may be another engine, whose tier is empty. So after a connection
//! nothing is told as being of now until something shows that the stream goes on: a batch that came over it; or the
//! replay, which is asked from the last batch that is known on and has to give that very batch, with its time, back.
//! One that has nothing from there on is another engine's, since a publisher keeps its last batches.

use std::any::Any;
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use super::address::Address;
use super::fold::Fold;
use super::sequence::{Sequence, Verdict};
use super::transport::{Fault, Kind, Message, Socket};
use super::wire::{Batch, Malformed};
use super::{Endpoint, Link, Shared, Status};

/// How long the reader sleeps at most while nothing comes, and while something waits to be told.
const QUIET: Duration = Duration::from_millis(250);
const BUSY: Duration = Duration::from_millis(20);
/// Waits between attempts to connect.
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(10);
/// The longest silence within a replay; vLLM looks after its requests ten times a second.
const REPLAY_SILENCE: Duration = Duration::from_secs(5);
/// How often a replay is asked again for its first hole.
const REPLAY_ROUNDS: u32 = 8;
/// How long after a page told of a reset a batch may come that was made before it.
const ON_ITS_WAY: Duration = Duration::from_millis(200);
/// A message whose numbers say that the replay is over.
const REPLAY_END: u64 = u64::MAX;

/// What a replay was.
enum Replayed {
    /// Everything up to now.
    Whole,
    /// Something was lost on the way.
    Holes,
    /// The history of another publisher than the one that was followed.
    Another,
}

/// Why a session ended.
enum End {
    /// The exporter ends.
    Stop,
    Fault(Fault),
    /// A message that is no batch.
    Malformed(Malformed),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> End {
        End::Fault(fault)
    }
}

/// The state of one endpoint's thread.
pub(super) struct Reader {
    endpoint: Endpoint,
    shared: Arc<Shared>,
    budget: usize,
    fold: Option<Fold>,
    sequence: Sequence,
    /// Folds that were begun.
    folds: u64,
    /// An engine was followed before this one: what it had published when it was first met is missing.
    succeeds: bool,
    batch: Batch,
    status: Status,
    told: Instant,
    dirty: bool,
    /// When the page last told of a reset, while what was made before it may be on its way.
    doubted: Option<Instant>,
}

impl Reader {
    pub(super) fn new(endpoint: Endpoint, shared: Arc<Shared>, budget: usize) -> Reader {
        let status = Status { endpoint: endpoint.link.to_string(), ..Status::default() };
        Reader {
            endpoint,
            shared,
            budget,
            fold: None,
            sequence: Sequence::default(),
            folds: 0,
            succeeds: false,
            batch: Batch::default(),
            status,
            told: Instant::now(),
            dirty: true,
            doubted: None,
        }
    }

    /// Runs until `stop` hangs up.
    pub(super) fn run(mut self, stop: &Receiver<()>) {
        let mut wait = FIRST_WAIT;
        self.tell();
        loop {
            let batches = self.status.batches;
            let end = catch_unwind(AssertUnwindSafe(|| self.session(stop)));
            let End::Stop = end.unwrap_or_else(|panic| self.broken(panic.as_ref())) else {
                wait = if self.status.batches > batches { FIRST_WAIT } else { (wait * 2).min(LONGEST_WAIT) };
                if !rest(stop, wait) {
                    return;
                }
                continue;
            };
            return;
        }
    }

    /// A panic is ours. What was folded may be half done, so it is not kept.
    fn broken(&mut self, panic: &(dyn Any + Send)) -> End {
        let text = panic.downcast_ref::<&str>().copied().unwrap_or("a panic");
        self.fold = None;
        self.sequence = Sequence::default();
        self.fail("internal", text);
        End::Malformed(Malformed::Truncated)
    }

    fn session(&mut self, stop: &Receiver<()>) -> End {
        let end = match self.follow(stop) {
            Ok(never) => match never {},
            Err(end) => end,
        };
        match &end {
            End::Stop => {}
            End::Fault(fault) => self.fail(fault.reason(), &fault.to_string()),
            End::Malformed(malformed) => self.fail("malformed", &malformed.to_string()),
        }
        end
    }

    fn fail(&mut self, reason: &'static str, text: &str) {
        let endpoint = &self.status.endpoint;
        let news = self.status.up || self.status.failure.as_ref().is_none_or(|(known, _)| *known != reason);
        if news {
            tracing::warn!(endpoint, reason, "no events: {text}");
        }
        *self.status.errors.entry(reason).or_default() += 1;
        (self.status.up, self.status.current) = (false, false);
        self.status.failure = Some((reason, text.to_owned()));
        self.tell();
    }

    fn follow(&mut self, stop: &Receiver<()>) -> Result<std::convert::Infallible, End> {
        let listener = self.listen()?;
        let mut socket = match &listener {
            None => self.connect()?,
            Some(listener) => Socket::over(accept(listener, stop)?, Kind::Sub)?,
        };
        loop {
            self.begin(&mut socket)?;
            loop {
                if stop.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected) {
                    return Err(End::Stop);
                }
                // A publisher that comes anew has left its old connection behind, whether or not that shows.
                if let Some(Ok((stream, _))) = listener.as_ref().map(TcpListener::accept) {
                    socket = Socket::over(stream, Kind::Sub)?;
                    break;
                }
                self.step(&mut socket)?;
            }
        }
    }

    fn listen(&self) -> Result<Option<TcpListener>, Fault> {
        let Link::Bind(at) = &self.endpoint.link else { return Ok(None) };
        let host = if at.host.is_empty() { "0.0.0.0" } else { &at.host };
        let listener = TcpListener::bind((host, at.port)).map_err(Fault::Connect)?;
        listener.set_nonblocking(true).map_err(Fault::Connect)?;
        Ok(Some(listener))
    }

    fn connect(&self) -> Result<Socket, Fault> {
        match &self.endpoint.link {
            Link::Connect(to) | Link::Bind(to) => Socket::connect(to, Kind::Sub),
        }
    }

    /// Subscribes, and only then asks for what was missed, so that the two overlap.
    fn begin(&mut self, socket: &mut Socket) -> Result<(), End> {
        socket.subscribe(&self.endpoint.topic)?;
        self.sequence.connected();
        (self.status.up, self.status.current, self.status.failure) = (true, false, None);
        tracing::info!(endpoint = self.status.endpoint, "following events");
        self.tell();
        let whole = self.replay(true);
        (self.status.current, self.dirty) = (whole || self.fold.is_none(), true);
        Ok(())
    }

    fn step(&mut self, socket: &mut Socket) -> Result<(), End> {
        let wait = if self.dirty { BUSY } else { QUIET };
        match socket.receive(wait)? {
            None => {
                self.heed();
                self.tell_if_dirty();
            }
            Some(message) => {
                let seq = number(&message).ok_or(Fault::Protocol("a message has no sequence number"))?;
                let payload = message.from_end(0).unwrap_or_default();
                self.batch.decode(payload).map_err(End::Malformed)?;
                self.live(seq);
                if self.told.elapsed() > BUSY || !socket.has_more() {
                    self.tell_if_dirty();
                }
            }
        }
        Ok(())
    }

    /// A batch of the live stream, decoded.
    fn live(&mut self, seq: u64) {
        // What the pages told is older than this batch.
        self.heed();
        match self.sequence.live(seq, self.batch.at) {
            Verdict::Known | Verdict::Next => {}
            Verdict::Restart => {
                self.restarted();
                self.catch_up(seq);
            }
            Verdict::Missing(_) => self.catch_up(seq),
        }
        if seq >= self.sequence.next() {
            self.take(seq);
            self.status.lag = Some(now() - self.batch.at);
        }
        self.dirty |= !std::mem::replace(&mut self.status.current, true);
    }

    /// The batches are another engine's than before: nothing of what was known holds.
    fn restarted(&mut self) {
        tracing::info!(endpoint = self.status.endpoint, "the engine has restarted");
        self.succeeds |= self.fold.take().is_some();
        self.sequence = Sequence::default();
        (self.status.last_seq, self.dirty) = (None, true);
    }

    /// Asks for what is missing before the batch at hand; what nobody has is a gap.
    fn catch_up(&mut self, seq: u64) {
        let waiting = std::mem::take(&mut self.batch);
        let proven = std::mem::replace(&mut self.status.current, false);
        if seq > self.sequence.next() {
            self.replay(!proven);
        }
        self.batch = waiting;
        if seq > self.sequence.next() {
            self.gap(seq);
        }
    }

    /// Takes in the batch at hand.
    fn take(&mut self, seq: u64) {
        let fold = self.fold.get_or_insert_with(|| {
            self.folds += 1;
            Fold::new(seq > 0, self.budget).numbered(self.folds)
        });
        fold.apply(&self.batch);
        self.sequence.took(seq, self.batch.at);
        self.status.batches += 1;
        self.status.last_seq = Some(seq);
        self.dirty = true;
        self.heed();
    }

    /// Takes in what the pages told.
    fn heed(&mut self) {
        let (Some(fold), hints) = (&mut self.fold, self.shared.hints()) else { return };
        if hints.outlived == Some(fold.number()) {
            return self.restarted();
        }
        if let Some((_, (slots, stated))) = hints.slots.filter(|(of, _)| *of == fold.number()) {
            self.dirty |= fold.fits(slots, stated);
        }
        if let Some((_, doubt)) = hints.doubt.filter(|(of, _)| *of == fold.number())
            && fold.doubt(doubt)
        {
            (self.dirty, self.doubted) = (true, Some(Instant::now()));
        }
        if self.doubted.take_if(|at| at.elapsed() > ON_ITS_WAY).is_some() {
            fold.settle();
        }
    }

    /// The batches up to this one are lost. The first engine that is met may be in the middle of its life: then the
    /// exporter is late, and nothing is lost. Of one that took the place of another the beginning was to be had.
    fn gap(&mut self, upto: u64) {
        match &mut self.fold {
            Some(fold) => fold.lost(),
            None if self.succeeds => {}
            None => {
                tracing::info!(
                    endpoint = self.status.endpoint,
                    upto,
                    "the engine has published before: what it stored before is not known"
                );
                return;
            }
        }
        self.status.gaps += 1;
        let from = self.sequence.next();
        tracing::warn!(endpoint = self.status.endpoint, from, upto, "events are missing: residency has bounds only");
    }

    /// Asks the replay endpoint for everything from the next number on; where the connection is new (`proving`), from
    /// the last one that is known. Whether it gave everything up to now. That it cannot be asked costs no more than the
    /// batches that it would have given.
    fn replay(&mut self, proving: bool) -> bool {
        let Some(at) = self.endpoint.replay.clone() else { return false };
        let mut known = self.sequence.last().filter(|_| proving);
        for _ in 0..REPLAY_ROUNDS {
            match self.replay_once(&at, known) {
                Ok(Replayed::Whole) => return true,
                Ok(Replayed::Holes) => {}
                Ok(Replayed::Another) => self.restarted(),
                Err(fault) => {
                    *self.status.errors.entry("replay").or_default() += 1;
                    tracing::warn!(endpoint = self.status.endpoint, replay = %at, "no replay: {fault}");
                    return false;
                }
            }
            known = None;
        }
        false
    }

    /// One question and its answers: from the batch after the last one on, or from that one itself if it is `known`.
    fn replay_once(&mut self, at: &Address, known: Option<u64>) -> Result<Replayed, Fault> {
        let mut socket = Socket::connect(at, Kind::Dealer)?;
        let from = self.sequence.next();
        socket.send(&[b"", &known.unwrap_or(from).to_be_bytes()])?;
        let (mut whole, mut known) = (true, known);
        loop {
            let message = socket.receive(REPLAY_SILENCE)?.ok_or(Fault::Silent(REPLAY_SILENCE))?;
            let seq = number(&message).ok_or(Fault::Protocol("an answer has no sequence number"))?;
            let payload = message.from_end(0).unwrap_or_default();
            if seq == REPLAY_END && payload.is_empty() {
                return Ok(match (known, whole) {
                    (Some(_), _) => Replayed::Another,
                    (None, true) => Replayed::Whole,
                    (None, false) => Replayed::Holes,
                });
            }
            if known.take_if(|known| seq >= *known) == Some(seq) {
                let same = self.batch.decode(payload).is_ok() && self.sequence.ended_with(seq, self.batch.at);
                if !same {
                    return Ok(Replayed::Another);
                }
            }
            let next = self.sequence.next();
            // A hole at the very beginning is history that the engine has dropped; a later one was lost on the way.
            if seq > next && next > from {
                whole = false;
            } else if seq >= next {
                self.replayed(seq, payload);
            }
        }
    }

    fn replayed(&mut self, seq: u64, payload: &[u8]) {
        if let Err(malformed) = self.batch.decode(payload) {
            *self.status.errors.entry("malformed").or_default() += 1;
            tracing::warn!(endpoint = self.status.endpoint, seq, "a replayed batch is left out: {malformed}");
            return;
        }
        if seq > self.sequence.next() {
            self.gap(seq);
        }
        self.take(seq);
        self.status.replayed += 1;
        if self.told.elapsed() > QUIET {
            self.tell();
        }
    }

    fn tell_if_dirty(&mut self) {
        if self.dirty {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.status.view = self.fold.as_ref().map(Fold::view);
        self.shared.tell(self.status.clone());
        (self.told, self.dirty) = (Instant::now(), false);
    }
}

/// The number that stands before the payload.
fn number(message: &Message<'_>) -> Option<u64> {
    Some(u64::from_be_bytes(message.from_end(1)?.try_into().ok()?))
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Waits before the next attempt to connect; less where a page that answers says that the engine is there. `false` when
/// the exporter ends.
fn rest(stop: &Receiver<()>, mut wait: Duration) -> bool {
    let began = Instant::now();
    loop {
        match stop.recv_timeout(wait.saturating_sub(began.elapsed())) {
            Ok(()) => wait = wait.min(FIRST_WAIT),
            Err(RecvTimeoutError::Timeout) => return true,
            Err(RecvTimeoutError::Disconnected) => return false,
        }
    }
}

/// Waits for a publisher to connect.
fn accept(listener: &TcpListener, stop: &Receiver<()>) -> Result<TcpStream, End> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(Fault::Connect(error).into()),
        }
        if stop.recv_timeout(BUSY) == Err(RecvTimeoutError::Disconnected) {
            return Err(End::Stop);
        }
    }
}

#[cfg(test)]
mod histories;
