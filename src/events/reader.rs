//! One endpoint followed for as long as the exporter runs, on a thread of its own: connect or wait to be connected
//! to, subscribe, ask for what was missed, fold, and tell. A fault costs the connection and nothing else.
//!
//! After each connection, and at each gap, the replay endpoint is asked for everything from the next number on. The
//! replay itself may have holes (a full queue drops messages): it is asked again from the first one. What no replay
//! gives back is a gap, and the fold goes on with bounds. While it is read nobody looks at the stream, which waits in the
//! engine's queue: so it has one deadline, and one that failed rests for as long as it took.
//!
//! Behind an address that is connected to again there may be another engine, whose tier is empty. So after a connection
//! nothing is told as being of now until something shows that the stream goes on: a batch that came over it; or the
//! replay, which is asked from the last batch that is known on and has to give that very batch, with its time, back.
//! One that has nothing from there on is another engine's, since a publisher keeps its last batches.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use super::address::Address;
use super::fold::Fold;
use super::port::Port;
use super::replay::{self, Answer, Answers, Replay};
use super::sequence::{Sequence, Verdict};
use super::shares::Shares;
use super::transport::{Fault, Kind, Message, Socket};
use super::wire::{self, Batch, Malformed};
use super::{Endpoint, Link, Shared, Status};
use crate::log::repeats::Repeats;

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
/// What a replay was.
enum Replayed {
    /// Everything up to now.
    Whole,
    /// Something was lost on the way.
    Holes,
    /// Everything but its end, which cannot be read.
    Unreadable,
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
    shares: Shares,
    /// Where the engine is the side that connects.
    port: Option<Port>,
    /// Bytes that the stream's socket holds while a replay is read.
    beside: usize,
    /// Until when a replay that failed is not asked for again.
    rests: Option<Instant>,
    fold: Option<Fold>,
    sequence: Sequence,
    /// Folds that were begun.
    folds: u64,
    /// An engine was followed before this one: what it had published when it was first met is missing.
    succeeds: bool,
    batch: Batch,
    status: Status,
    repeats: Repeats,
    told: Instant,
    dirty: bool,
    /// When the page last told of a reset, while what was made before it may be on its way.
    doubted: Option<Instant>,
}

impl Reader {
    pub(super) fn new(endpoint: Endpoint, shared: Arc<Shared>, shares: Shares) -> Reader {
        let status = Status { endpoint: endpoint.link.to_string(), ..Status::default() };
        Reader {
            endpoint,
            shared,
            shares,
            port: None,
            beside: 0,
            rests: None,
            fold: None,
            sequence: Sequence::default(),
            folds: 0,
            succeeds: false,
            batch: Batch::default(),
            status,
            repeats: Repeats::default(),
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
                // Whoever waits to be called on asks nobody for anything.
                let fruitless = self.status.batches == batches && self.port.is_none();
                wait = if fruitless { (wait * 2).min(LONGEST_WAIT) } else { FIRST_WAIT };
                self.say_what_was_left_out();
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
        let news = self.status.up || self.status.failure.as_ref().is_none_or(|(known, _)| *known != reason);
        if let Some(left_out) = news.then(|| self.may_say(reason)).flatten() {
            tracing::warn!(endpoint = self.status.endpoint, reason, left_out, "no events: {text}");
        }
        *self.status.errors.entry(reason).or_default() += 1;
        (self.status.up, self.status.current) = (false, false);
        self.status.failure = Some((reason, text.to_owned()));
        self.tell();
    }

    fn follow(&mut self, stop: &Receiver<()>) -> Result<std::convert::Infallible, End> {
        let mut socket = self.connect(stop)?;
        loop {
            self.begin(&mut socket)?;
            loop {
                if stop.try_recv() == Err(std::sync::mpsc::TryRecvError::Disconnected) {
                    return Err(End::Stop);
                }
                // A publisher that comes anew has left its old connection behind, whether or not that shows.
                if let Some(publisher) = self.called() {
                    socket = publisher;
                    break;
                }
                self.step(&mut socket)?;
            }
        }
    }

    fn connect(&mut self, stop: &Receiver<()>) -> Result<Socket, End> {
        match &self.endpoint.link {
            Link::Connect(to) => Ok(Socket::connect(to, Kind::Sub)?.within(self.room_for_a_message())),
            Link::Bind(at) => {
                if self.port.is_none() {
                    self.port = Some(Port::open(at).map_err(Fault::Connect)?);
                }
                self.wait_for_a_call(stop)
            }
        }
    }

    fn wait_for_a_call(&mut self, stop: &Receiver<()>) -> Result<Socket, End> {
        loop {
            if let Some(publisher) = self.called() {
                return Ok(publisher);
            }
            self.tell_if_dirty();
            if stop.recv_timeout(BUSY) == Err(RecvTimeoutError::Disconnected) {
                return Err(End::Stop);
            }
        }
    }

    /// The publisher that has called meanwhile. Others are turned away.
    fn called(&mut self) -> Option<Socket> {
        let mut others = Vec::new();
        let publisher = self.port.as_mut()?.publisher(|fault| others.push(fault));
        for fault in others {
            self.turn_away(&fault);
        }
        publisher.map(|socket| socket.within(self.room_for_a_message()))
    }

    /// It is the endpoint's failure only while nobody is followed.
    fn turn_away(&mut self, fault: &Fault) {
        let text = format!("a connection to the port was no publisher's: {fault}");
        if let Some(left_out) = self.may_say("no publisher") {
            tracing::warn!(endpoint = self.status.endpoint, reason = fault.reason(), left_out, "{text}");
        }
        *self.status.errors.entry(fault.reason()).or_default() += 1;
        if !self.status.up {
            self.status.failure = Some((fault.reason(), text));
        }
        self.dirty = true;
    }

    /// Bytes for the sockets of the endpoint and the batches of their messages.
    fn room(&self) -> usize {
        self.shares.arrival.saturating_sub(if self.port.is_some() { Port::HELD } else { 0 })
    }

    fn room_for_a_message(&self) -> usize {
        self.room().saturating_sub(wire::USUAL)
    }

    /// Subscribes, and only then asks for what was missed, so that the two overlap.
    fn begin(&mut self, socket: &mut Socket) -> Result<(), End> {
        socket.subscribe(&self.endpoint.topic)?;
        self.sequence.connected();
        (self.status.up, self.status.current, self.status.failure) = (true, false, None);
        if let Some(left_out) = self.may_say("following") {
            tracing::info!(endpoint = self.status.endpoint, left_out, "following events");
        }
        self.tell();
        self.beside = socket.held();
        let whole = self.replay(true);
        (self.status.current, self.dirty) = (whole || self.fold.is_none(), true);
        Ok(())
    }

    fn step(&mut self, socket: &mut Socket) -> Result<(), End> {
        let is_busy = self.dirty || self.port.as_ref().is_some_and(Port::is_greeting);
        if socket.receive(if is_busy { BUSY } else { QUIET })?.is_none() {
            self.heed();
            self.tell_if_dirty();
            self.say_what_was_left_out();
            return Ok(());
        }
        let (message, room) = (socket.message(), self.room().saturating_sub(socket.held()));
        let seq = number(&message).ok_or(Fault::Stranger("a message without a sequence number"))?;
        let payload = message.from_end(0).unwrap_or_default();
        self.batch.decode_within(payload, room).map_err(End::Malformed)?;
        // The batch is all that is needed of it.
        socket.forget();
        self.beside = socket.held();
        self.live(seq);
        self.batch.forget();
        if self.told.elapsed() > BUSY || !socket.has_more() {
            self.tell_if_dirty();
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
        if let Some(left_out) = self.may_say("restarted") {
            tracing::info!(endpoint = self.status.endpoint, left_out, "the engine has restarted");
        }
        self.succeeds |= self.fold.take().is_some();
        self.sequence = Sequence::default();
        (self.status.last_seq, self.dirty) = (None, true);
    }

    /// Asks for what is missing before the batch at hand; what nobody has is a gap.
    fn catch_up(&mut self, seq: u64) {
        let waiting = std::mem::take(&mut self.batch);
        self.beside += waiting.bytes();
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
            Fold::new(seq > 0, self.shares.fold).numbered(self.folds)
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
        let is_replaying = self.status.replay == Replay::Running;
        if !is_replaying && self.doubted.take_if(|at| at.elapsed() > ON_ITS_WAY).is_some() {
            fold.settle();
        }
    }

    /// What is replayed was made before the page told of a reset, or after it.
    fn unsettle(&mut self) {
        if self.fold.as_mut().is_some_and(Fold::unsettle) {
            self.doubted = Some(Instant::now());
        }
    }

    /// The batches up to this one are lost. The first engine that is met may be in the middle of its life: then the
    /// exporter is late, and nothing is lost. Of one that took the place of another the beginning was to be had.
    fn gap(&mut self, upto: u64) {
        match &mut self.fold {
            Some(fold) => fold.lost(),
            None if self.succeeds => {}
            None => {
                if let Some(left_out) = self.may_say("late") {
                    tracing::info!(
                        endpoint = self.status.endpoint,
                        upto,
                        left_out,
                        "the engine has published before: what it stored before is not known"
                    );
                }
                return;
            }
        }
        self.status.gaps += 1;
        let from = self.sequence.next();
        if let Some(left_out) = self.may_say("gap") {
            tracing::warn!(
                endpoint = self.status.endpoint,
                from,
                upto,
                left_out,
                "events are missing: residency has bounds only"
            );
        }
    }

    /// Asks the replay endpoint for everything from the next number on; where the connection is new (`proving`), from
    /// the last one that is known. Whether it gave everything up to now. That it cannot be asked costs no more than the
    /// batches that it would have given.
    fn replay(&mut self, proving: bool) -> bool {
        let Some(at) = self.endpoint.replay.clone() else { return false };
        let began = Instant::now();
        if self.rests.is_some_and(|until| began < until) {
            return false;
        }
        (self.status.replay, self.dirty) = (Replay::Running, true);
        self.unsettle();
        self.status.replay = match self.replay_in_rounds(&at, proving, began + replay::PATIENCE) {
            Ok(end) => end,
            Err(fault) => {
                *self.status.errors.entry("replay").or_default() += 1;
                if let Some(left_out) = self.may_say("replay") {
                    tracing::warn!(endpoint = self.status.endpoint, replay = %at, left_out, "no replay: {fault}");
                }
                self.rests = Some(Instant::now() + began.elapsed());
                Replay::Broken(fault.to_string())
            }
        };
        self.status.replay == Replay::Whole
    }

    fn replay_in_rounds(&mut self, at: &Address, proving: bool, until: Instant) -> Result<Replay, Fault> {
        let mut known = self.sequence.last().filter(|_| proving);
        for _ in 0..REPLAY_ROUNDS {
            match self.replay_once(at, known, until)? {
                Replayed::Whole => return Ok(Replay::Whole),
                Replayed::Holes => {}
                Replayed::Unreadable => return Ok(Replay::Broken("its last batches cannot be read".to_owned())),
                Replayed::Another => self.restarted(),
            }
            known = None;
        }
        Ok(Replay::Broken(format!("it was asked {REPLAY_ROUNDS} times and had a hole each time")))
    }

    /// One question and its answers: from the batch after the last one on, or from that one itself if it is `known`.
    fn replay_once(&mut self, at: &Address, mut known: Option<u64>, until: Instant) -> Result<Replayed, Fault> {
        let room = self.room().saturating_sub(self.beside);
        let mut socket = Socket::connect(at, Kind::Dealer)?.within(room.saturating_sub(wire::USUAL));
        let from = self.sequence.next();
        let start = known.unwrap_or(from);
        socket.send(&[b"", &start.to_be_bytes()])?;
        let (mut answers, mut whole, mut unreadable) = (Answers::to(start, until), true, false);
        loop {
            self.await_answer(&mut socket, &answers)?;
            let (message, room) = (socket.message(), room.saturating_sub(socket.held()));
            let seq = number(&message).ok_or(Fault::Stranger("an answer without a sequence number"))?;
            let payload = message.from_end(0).unwrap_or_default();
            let Answer::Batch(seq) = answers.judge(seq, payload)? else {
                return Ok(match known {
                    Some(_) => Replayed::Another,
                    None if !whole => Replayed::Holes,
                    None if unreadable => Replayed::Unreadable,
                    None => Replayed::Whole,
                });
            };
            if known.take_if(|known| seq >= *known) == Some(seq) {
                let readable = self.batch.decode_within(payload, room).is_ok();
                if !readable || !self.sequence.ended_with(seq, self.batch.at) {
                    return Ok(Replayed::Another);
                }
            }
            let next = self.sequence.next();
            // A hole at the very beginning is history that the engine has dropped; a later one was lost on the way.
            if seq > next && next > from {
                whole = false;
            } else if seq >= next {
                unreadable = !self.replayed(seq, payload, room);
            }
        }
    }

    /// Waits for the next answer, and tells meanwhile that it does.
    fn await_answer(&mut self, socket: &mut Socket, answers: &Answers) -> Result<(), Fault> {
        loop {
            self.tell_if_late();
            let left = answers.left(Instant::now())?;
            if socket.receive(QUIET.min(left))?.is_some() {
                return Ok(());
            }
            if socket.silence() > REPLAY_SILENCE {
                return Err(Fault::Silent(REPLAY_SILENCE));
            }
        }
    }

    /// Takes in a batch of a replay, if it can be read.
    fn replayed(&mut self, seq: u64, payload: &[u8], room: usize) -> bool {
        if let Err(malformed) = self.batch.decode_within(payload, room) {
            *self.status.errors.entry("malformed").or_default() += 1;
            if let Some(left_out) = self.may_say("unreadable") {
                tracing::warn!(
                    endpoint = self.status.endpoint,
                    seq,
                    left_out,
                    "a replayed batch is left out: {malformed}"
                );
            }
            return false;
        }
        if seq > self.sequence.next() {
            self.gap(seq);
        }
        self.take(seq);
        self.batch.forget();
        self.status.replayed += 1;
        true
    }

    /// Whether a line of this kind may be written, and how many were not since the last one, if any.
    fn may_say(&mut self, kind: &'static str) -> Option<Option<u64>> {
        let left_out = self.repeats.write(kind, Instant::now())?;
        Some((left_out > 0).then_some(left_out))
    }

    fn say_what_was_left_out(&mut self) {
        for (kind, lines) in self.repeats.unsaid(Instant::now()) {
            tracing::info!(endpoint = self.status.endpoint, kind, lines, "lines like one before were left out");
        }
    }

    fn tell_if_late(&mut self) {
        if self.told.elapsed() > QUIET {
            self.tell_if_dirty();
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

#[cfg(test)]
mod histories;
