//! Who is connected, what each is doing, who has to go when it gets too full, and who is answered next.
//!
//! Clients that make us wait (no request yet, or an answer that is not taken) never keep out one that asks: the source
//! with most connections makes room, and of its clients the one that has waited longest. Only when every place is taken by
//! work of ours is somebody refused. Turns to be answered go to the source that has fewest, and never all of them to one.
//!
//! While answers that their clients do not take hold too much memory, no further one is begun: the source that holds most
//! makes room, and of its clients the one that holds most.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::place::Place;
use super::source::Source;
use super::unsent::Unsent;

/// Time enough to say what one came for.
const HEARING: Duration = Duration::from_millis(50);

/// How much at a time, and how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Requests at a time that are being answered; 0 is no limit.
    pub requests: usize,
    /// From a connection to its first request, with the TLS handshake in between.
    pub greeting: Duration,
    /// From an answer to the next request. Longer than every usual scrape interval, so that no scrape meets a
    /// connection which is just being closed.
    pub idle: Duration,
    /// From the first byte of an answer to its last.
    pub sending: Duration,
    /// An answer that is not taken for this long makes room for a request.
    pub stalled: Duration,
    /// Bytes. While answers that are not taken hold as much together, none is begun: so they hold no more than this and
    /// what was begun before it was reached.
    pub unsent: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 512,
            requests: 40,
            greeting: Duration::from_secs(10),
            idle: Duration::from_secs(75),
            sending: Duration::from_secs(60),
            stalled: Duration::from_secs(1),
            unsent: 64 << 20,
        }
    }
}

impl Limits {
    /// The defaults, with fewer connections where the process may not open enough files: half of them stay free
    /// for the upstream and the files that are read.
    pub fn of_this_process() -> Limits {
        let limits = Limits::default();
        let files = getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files / 2).ok());
        let connections = files.map_or(limits.connections, |files| limits.connections.min(files));
        Limits { connections, ..limits }
    }
}

/// All connections.
pub(crate) struct Crowd {
    pub(super) limits: Limits,
    places: Mutex<Places>,
}

#[derive(Default)]
pub(super) struct Places {
    next: u64,
    pub(super) taken: BTreeMap<u64, Guest>,
    /// Places whose request waits for a turn, in the order in which they came.
    line: Vec<u64>,
    /// Connections that were closed, or not taken, for want of room.
    closed: u64,
    /// Requests that were refused.
    refused: u64,
    /// Answers that were cut off for the memory that they held.
    pub(super) cut: u64,
}

pub(super) struct Guest {
    pub(super) source: Source,
    pub(super) doing: Doing,
    pub(super) since: Instant,
    /// It has to go.
    leave: Arc<Notify>,
    /// Its turn has come.
    called: Arc<Notify>,
    /// It says no more, though it may still listen: whoever is to hear that when it was answered.
    pub(super) mute: Option<Waker>,
    /// Answers that it has not taken: the last one, and one before it where it asked again at once.
    pub(super) unsent: Vec<Unsent>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Nothing yet.
    Greeting,
    /// Nothing between two requests.
    Idle,
    /// It has asked, and waits for a password to be checked or for a turn.
    Asking,
    /// We work for it, on the turn of this number.
    Answering(u64),
    /// It takes its answer.
    Sending(u64),
}

impl Doing {
    pub(super) fn turn(self) -> Option<u64> {
        match self {
            Doing::Greeting | Doing::Idle | Doing::Asking => None,
            Doing::Answering(turn) | Doing::Sending(turn) => Some(turn),
        }
    }
}

impl Guest {
    /// Who of a source makes room first; nobody for whom we work. Of those that ask it is who came last: it is at the end of
    /// every line.
    fn nuisance(&self, now: Instant) -> Option<(u8, Duration)> {
        let waited = now - self.since;
        match self.doing {
            Doing::Greeting | Doing::Idle => Some((2, waited)),
            Doing::Asking => Some((1, Duration::MAX - waited)),
            Doing::Sending(_) => Some((0, waited)),
            Doing::Answering(_) => None,
        }
    }
}

/// How many turns are taken.
#[derive(Default)]
struct Turns {
    all: usize,
    by_source: BTreeMap<Source, usize>,
}

impl Turns {
    fn of(&self, source: Source) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    /// Whether a source has less than its share: a quarter of all turns is kept for others.
    fn has_room(&self, source: Source, limits: &Limits) -> bool {
        self.of(source) < limits.requests - limits.requests / 4
    }

    /// Whether there is one for a source.
    fn is_for(&self, source: Source, limits: &Limits) -> bool {
        limits.requests == 0 || (self.all < limits.requests && self.has_room(source, limits))
    }
}

impl Crowd {
    pub(crate) fn new(limits: Limits) -> Arc<Crowd> {
        Arc::new(Crowd { limits, places: Mutex::default() })
    }

    /// A place for a new connection; none when all are taken by work of ours.
    pub(crate) fn enter(self: &Arc<Crowd>, source: Source) -> Option<Place> {
        let mut places = self.places();
        if places.taken.len() >= self.limits.connections {
            places.tell_closing();
            places.make_room(Some(source), |_| true).then_some(())?;
        }
        let (number, leave, called) = (places.number(), Arc::<Notify>::default(), Arc::<Notify>::default());
        let (leaving, calling) = (Arc::clone(&leave), Arc::clone(&called));
        let (since, unsent) = (Instant::now(), Vec::new());
        let guest = Guest { source, doing: Doing::Greeting, since, leave, called, mute: None, unsent };
        places.taken.insert(number, guest);
        Some(Place::new(Arc::clone(self), number, source, leaving, calling))
    }

    /// Sends away whoever has made us wait longest, for a process that is out of descriptors. That is found out right
    /// after the last one was given out, before its guest was heard: the kernel wants a descriptor for the next guest
    /// before it looks whether there is one. So who has just come stays.
    pub(crate) fn make_room(&self) {
        let mut places = self.places();
        if places.make_room(None, |guest| guest.doing.turn().is_none() && guest.since.elapsed() >= HEARING) {
            places.tell_closing();
        }
    }

    /// What `/debug` says of it.
    pub(crate) fn explain(&self) -> String {
        let (limits, places) = (&self.limits, self.places());
        let answered = places.taken.values().filter(|guest| guest.doing.turn().is_some()).count();
        format!(
            "\nserver\n  connections {} of {}; {} were closed for want of room\n  requests    {answered} of {}; {} were refused\n  \
             unsent      {} of {} bytes; {} answers were cut off for want of room\n",
            places.taken.len(),
            limits.connections,
            places.closed,
            limits.requests,
            places.refused,
            places.unsent(),
            limits.unsent,
            places.cut
        )
    }

    /// For one whose request found no turn.
    pub(crate) fn why_no_turn(&self) -> String {
        if self.places().unsent() >= self.limits.unsent {
            return format!(
                "answers that their clients do not take hold {} bytes already; try again, or raise --upstream.max-bytes\n",
                self.limits.unsent
            );
        }
        let limit = self.limits.requests;
        format!("{limit} requests are being answered already; try again, or raise --web.max-requests\n")
    }

    pub(super) fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends somebody away for a newcomer, of the source that has most connections and somebody who may go.
    fn make_room(&mut self, newcomer: Option<Source>, may_go: impl Fn(&Guest) -> bool) -> bool {
        let mut connections = BTreeMap::<Source, usize>::new();
        let sources = self.taken.values().map(|guest| guest.source).chain(newcomer);
        sources.for_each(|source| *connections.entry(source).or_default() += 1);
        let now = Instant::now();
        let rank = |guest: &Guest| Some((connections.get(&guest.source).copied(), guest.nuisance(now)?));
        let may_go = self.taken.iter().filter(|(_, guest)| may_go(guest));
        let ranked = may_go.filter_map(|(number, guest)| Some((rank(guest)?, Reverse(*number))));
        let worst = ranked.max();
        worst.inspect(|(_, Reverse(number))| self.send_away(*number)).is_some()
    }

    pub(super) fn send_away(&mut self, number: u64) {
        if let Some(guest) = self.taken.remove(&number) {
            guest.leave.notify_one();
        }
    }

    /// Leaves by itself.
    pub(super) fn leave(&mut self, number: u64, limits: &Limits) {
        self.taken.remove(&number);
        self.line.retain(|waiting| *waiting != number);
        self.call(limits);
    }

    /// Cuts off the answer that has not been taken for longest, if that is too long and gives a place a turn.
    fn cut_stalled(&mut self, number: u64, limits: &Limits) -> bool {
        let Some(source) = self.taken.get(&number).map(|guest| guest.source) else { return false };
        let (turns, now) = (self.turns(), Instant::now());
        let helps = |guest: &Guest| turns.has_room(source, limits) || guest.source == source;
        let late = |guest: &Guest| matches!(guest.doing, Doing::Sending(_)) && now - guest.since >= limits.stalled;
        let stalled = self.taken.iter().filter(|(_, guest)| late(guest) && helps(guest));
        let longest = stalled.min_by_key(|(_, guest)| guest.since).map(|(number, _)| *number);
        longest.inspect(|number| self.send_away(*number)).is_some()
    }

    fn turns(&self) -> Turns {
        let mut turns = Turns::default();
        for guest in self.taken.values().filter(|guest| guest.doing.turn().is_some()) {
            turns.all += 1;
            *turns.by_source.entry(guest.source).or_default() += 1;
        }
        turns
    }

    /// Gives turns to those who wait, as far as there are any: to the source that has fewest, and there to who came first.
    /// All of them at once, also where there is little room left for what they will hold: they share their pages.
    pub(super) fn call(&mut self, limits: &Limits) {
        if !self.line.is_empty() && self.unsent() >= limits.unsent {
            return;
        }
        while !self.line.is_empty() {
            let turns = self.turns();
            let waiting = self.line.iter().filter_map(|number| Some((*number, self.taken.get(number)?)));
            let may = waiting.filter(|(_, guest)| turns.is_for(guest.source, limits));
            // The first of equals.
            let Some((number, guest)) = may.min_by_key(|(_, guest)| turns.of(guest.source)) else { return };
            let called = Arc::clone(&guest.called);
            self.line.retain(|waiting| *waiting != number);
            self.begin(number);
            called.notify_one();
        }
    }

    /// Lines up for a turn. A place that does is called at once if there is one.
    pub(super) fn line_up(&mut self, number: u64, limits: &Limits) {
        // Who was called while it waited has left the line, and has no other turn to wait for.
        if self.turn_of(number).is_some() {
            return;
        }
        if !self.line.contains(&number) {
            self.line.push(number);
        }
        self.call(limits);
        if self.line.contains(&number) && (self.cut_unsent(limits) || self.cut_stalled(number, limits)) {
            self.call(limits);
        }
    }

    /// Gives up waiting for a turn.
    pub(super) fn give_up(&mut self, number: u64, limit: usize) {
        self.line.retain(|waiting| *waiting != number);
        self.tell_refusing(limit);
    }

    /// A turn, whether there is one or not.
    pub(super) fn begin(&mut self, number: u64) -> u64 {
        let turn = self.number();
        self.change(number, Doing::Answering(turn));
        turn
    }

    /// The turn that a place has.
    pub(super) fn turn_of(&self, number: u64) -> Option<u64> {
        self.taken.get(&number).and_then(|guest| guest.doing.turn())
    }

    /// A turn is over. Others may be called.
    pub(super) fn end(&mut self, number: u64) {
        self.change(number, Doing::Idle);
        // Whoever said no more wants to hear that all was said to it.
        if let Some(waker) = self.taken.get_mut(&number).and_then(|guest| guest.mute.take()) {
            waker.wake();
        }
    }

    fn tell_refusing(&mut self, limit: usize) {
        if self.refused == 0 {
            tracing::warn!(limit, "a request was refused: as many as --web.max-requests allows are being answered");
        }
        self.refused += 1;
    }

    fn tell_closing(&mut self) {
        if self.closed == 0 {
            tracing::warn!(
                connections = self.taken.len(),
                "too many connections: those that waited longest are closed"
            );
        }
        self.closed += 1;
    }

    pub(super) fn change(&mut self, number: u64, doing: Doing) {
        if let Some(guest) = self.taken.get_mut(&number) {
            (guest.doing, guest.since) = (doing, Instant::now());
        }
    }
}

#[cfg(test)]
#[path = "crowd_tests.rs"]
mod tests;
