//! Who is connected, what each is doing, and who has to go when it gets too full.
//!
//! Clients that make us wait (no request yet, or an answer that is not taken) never keep out one that asks: the
//! one that has waited longest makes room. Only when every place is taken by work of ours is somebody refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

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
    limits: Limits,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    next: u64,
    taken: BTreeMap<u64, Guest>,
    /// Connections that were closed, or not taken, for want of room.
    closed: u64,
    /// Requests that were refused.
    refused: u64,
}

struct Guest {
    doing: Doing,
    since: Instant,
    leave: Arc<Notify>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Nothing yet.
    Greeting,
    /// Nothing between two requests.
    Idle,
    /// We work for it, on the turn of this number.
    Answering(u64),
    /// It takes its answer.
    Sending(u64),
}

impl Doing {
    fn turn(self) -> Option<u64> {
        match self {
            Doing::Greeting | Doing::Idle => None,
            Doing::Answering(turn) | Doing::Sending(turn) => Some(turn),
        }
    }
}

impl Crowd {
    pub(crate) fn new(limits: Limits) -> Arc<Crowd> {
        Arc::new(Crowd { limits, places: Mutex::default() })
    }

    /// A place for a new connection; none when all are taken by work of ours.
    pub(crate) fn enter(self: &Arc<Crowd>) -> Option<Place> {
        let mut places = self.places();
        if places.taken.len() >= self.limits.connections {
            places.tell_closing();
            if !places.evict(|guest| guest.doing.turn().is_none()) {
                places.evict(|guest| matches!(guest.doing, Doing::Sending(_))).then_some(())?;
            }
        }
        let (number, leave) = (places.number(), Arc::new(Notify::new()));
        let guest = Guest { doing: Doing::Greeting, since: Instant::now(), leave: Arc::clone(&leave) };
        places.taken.insert(number, guest);
        Some(Place { crowd: Arc::clone(self), number, leave })
    }

    /// Sends away whoever has made us wait longest, for a process that is out of descriptors. That is found out right
    /// after the last one was given out, before its guest was heard: the kernel wants a descriptor for the next guest
    /// before it looks whether there is one. So who has just come stays.
    pub(crate) fn make_room(&self) {
        let mut places = self.places();
        if places.evict(|guest| guest.doing.turn().is_none() && guest.since.elapsed() >= HEARING) {
            places.tell_closing();
        }
    }

    /// What `/debug` says of it.
    pub(crate) fn explain(&self) -> String {
        let (limits, places) = (&self.limits, self.places());
        let answered = places.taken.values().filter(|guest| guest.doing.turn().is_some()).count();
        format!(
            "\nserver\n  connections {} of {}; {} were closed for want of room\n  requests    {answered} of {}; {} were refused\n",
            places.taken.len(),
            limits.connections,
            places.closed,
            limits.requests,
            places.refused
        )
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Places {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn evict(&mut self, which: impl Fn(&Guest) -> bool) -> bool {
        let longest = self.taken.iter().filter(|(_, guest)| which(guest)).min_by_key(|(_, guest)| guest.since);
        let Some(number) = longest.map(|(number, _)| *number) else { return false };
        if let Some(guest) = self.taken.remove(&number) {
            guest.leave.notify_one();
        }
        true
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

    fn change(&mut self, number: u64, doing: Doing) {
        if let Some(guest) = self.taken.get_mut(&number) {
            (guest.doing, guest.since) = (doing, Instant::now());
        }
    }
}

/// A connection's place. Dropping it leaves.
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    leave: Arc<Notify>,
}

impl Place {
    /// Returns when the connection has to go, with the reason.
    pub(crate) async fn over(&self) -> &'static str {
        tokio::select! {
            () = self.leave.notified() => "it made room for another",
            reason = self.overdue() => reason,
        }
    }

    async fn overdue(&self) -> &'static str {
        loop {
            let (deadline, reason) = self.deadline();
            if deadline <= Instant::now() {
                return reason;
            }
            sleep_until(deadline).await;
        }
    }

    /// When what it does now has taken too long. Looked at again then: it may do something else by that time.
    fn deadline(&self) -> (Instant, &'static str) {
        let (limits, places) = (&self.crowd.limits, self.crowd.places());
        let Some(guest) = places.taken.get(&self.number) else {
            return (Instant::now() + limits.idle, "it made room for another");
        };
        match guest.doing {
            Doing::Greeting => (guest.since + limits.greeting, "it sent no request"),
            Doing::Idle => (guest.since + limits.idle, "it sent no further request"),
            // Our own deadlines bound the work; the pause until the next look is as good as any.
            Doing::Answering(_) => (Instant::now() + limits.sending, "its answer took too long"),
            Doing::Sending(_) => (guest.since + limits.sending, "it did not take its answer"),
        }
    }

    /// A turn to be answered; none while there are as many as may be.
    pub(crate) fn turn(&self) -> Option<Turn> {
        let (limits, mut places) = (&self.crowd.limits, self.crowd.places());
        let others =
            places.taken.iter().filter(|(number, guest)| **number != self.number && guest.doing.turn().is_some());
        if limits.requests > 0 && others.count() >= limits.requests {
            let (now, stalled) = (Instant::now(), limits.stalled);
            let late = |guest: &Guest| matches!(guest.doing, Doing::Sending(_)) && now - guest.since >= stalled;
            if !places.evict(late) {
                places.tell_refusing(limits.requests);
                return None;
            }
        }
        drop(places);
        Some(self.free_turn())
    }

    /// A turn for an answer that costs nothing: there is always one.
    pub(crate) fn free_turn(&self) -> Turn {
        let mut places = self.crowd.places();
        let turn = places.number();
        places.change(self.number, Doing::Answering(turn));
        Turn { crowd: Arc::clone(&self.crowd), place: self.number, turn }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.places().taken.remove(&self.number);
    }
}

/// The right to be answered. It ends when it is dropped: with the last byte of the answer.
pub(crate) struct Turn {
    crowd: Arc<Crowd>,
    place: u64,
    turn: u64,
}

impl Turn {
    /// The answer is made; from here on the client makes the pace.
    pub(crate) fn sending(&self) {
        self.change(Doing::Sending(self.turn));
    }

    fn change(&self, doing: Doing) {
        let mut places = self.crowd.places();
        // A client may ask again before the last byte of its former answer has gone.
        if places.taken.get(&self.place).is_some_and(|guest| guest.doing.turn() == Some(self.turn)) {
            places.change(self.place, doing);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.change(Doing::Idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crowd(connections: usize, requests: usize) -> Arc<Crowd> {
        Crowd::new(Limits { connections, requests, ..Limits::default() })
    }

    fn doing(place: &Place) -> Option<Doing> {
        place.crowd.places().taken.get(&place.number).map(|guest| guest.doing)
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_longest_makes_room() {
        let crowd = crowd(2, 2);
        let first = crowd.enter().unwrap();
        pass(1).await;
        let second = crowd.enter().unwrap();
        let turn = first.turn().unwrap();
        assert!(crowd.enter().is_some(), "the second has to go, though the first came earlier");
        assert_eq!((doing(&second), doing(&first)), (None, Some(Doing::Answering(turn.turn))));
        assert_eq!(second.over().await, "it made room for another");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_sent_away_while_we_work_for_him() {
        let crowd = crowd(1, 0);
        let first = crowd.enter().unwrap();
        let turn = first.turn().unwrap();
        assert!(crowd.enter().is_none());
        turn.sending();
        let second = crowd.enter();
        assert!(second.is_some() && doing(&first).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_answer_gives_its_turn_to_a_request() {
        let crowd = crowd(10, 1);
        let (slow, quick) = (crowd.enter().unwrap(), crowd.enter().unwrap());
        let turn = slow.turn().unwrap();
        assert!(quick.turn().is_none(), "we work for the slow one");
        turn.sending();
        assert!(quick.turn().is_none(), "it has hardly begun to read");
        pass(1).await;
        assert!(quick.turn().is_some());
        assert_eq!(slow.over().await, "it made room for another");
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_ends_with_itself_and_not_with_the_one_before() {
        let crowd = crowd(10, 1);
        let place = crowd.enter().unwrap();
        let former = place.turn().unwrap();
        former.sending();
        let next = place.turn().unwrap();
        drop(former);
        assert_eq!(doing(&place), Some(Doing::Answering(next.turn)));
        drop(next);
        assert_eq!(doing(&place), Some(Doing::Idle));
    }

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_waiting_has_its_own_end() {
        let crowd = crowd(10, 10);
        let began = Instant::now();
        let place = crowd.enter().unwrap();
        assert_eq!((place.over().await, began.elapsed().as_secs()), ("it sent no request", 10));
        drop(place.turn().unwrap());
        let began = Instant::now();
        assert_eq!((place.over().await, began.elapsed().as_secs()), ("it sent no further request", 75));
        let turn = place.turn().unwrap();
        turn.sending();
        let began = Instant::now();
        assert_eq!((place.over().await, began.elapsed().as_secs()), ("it did not take its answer", 60));
    }

    #[tokio::test(start_paused = true)]
    async fn work_of_ours_is_not_overdue() {
        let place = crowd(10, 10).enter().unwrap();
        let _turn = place.turn().unwrap();
        tokio::select! {
            reason = place.over() => panic!("{reason}"),
            () = tokio::time::sleep(Duration::from_secs(1000)) => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn leaving_frees_the_place() {
        let crowd = crowd(1, 1);
        for _ in 0..10 {
            let place = crowd.enter().unwrap();
            place.turn().unwrap().sending();
        }
        assert_eq!(crowd.places().taken.len(), 0);
    }
}
