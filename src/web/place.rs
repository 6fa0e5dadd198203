//! A connection's place in the crowd, and the turn of one of its requests.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::crowd::{Crowd, Doing};
use super::source::Source;
use super::unsent::{Holding, Unsent};

/// A connection's place. Dropping it leaves.
pub(crate) struct Place {
    crowd: Arc<Crowd>,
    number: u64,
    source: Source,
    leave: Arc<Notify>,
    called: Arc<Notify>,
    gone: Notify,
    heard: Notify,
}

impl Place {
    pub(super) fn new(
        crowd: Arc<Crowd>,
        number: u64,
        source: Source,
        leave: Arc<Notify>,
        called: Arc<Notify>,
    ) -> Place {
        Place { crowd, number, source, leave, called, gone: Notify::new(), heard: Notify::new() }
    }

    #[cfg(test)]
    pub(super) fn crowd(&self) -> &Crowd {
        &self.crowd
    }

    #[cfg(test)]
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Where the client comes from.
    pub(crate) fn source(&self) -> Source {
        self.source
    }

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
        // Also of one that has asked again meanwhile.
        if let Some(since) = guest.unsent_since() {
            return (since + limits.sending, "it did not take its answer");
        }
        match guest.doing {
            Doing::Greeting => (guest.since + limits.greeting, "it sent no request"),
            Doing::Idle => (guest.since + limits.idle, "it sent no further request"),
            // The line moves, our own deadlines bound the work, and the pause until the next look is as good as any.
            Doing::Asking | Doing::Answering(_) | Doing::Sending(_) => {
                (Instant::now() + limits.sending, "its answer took too long")
            }
        }
    }

    /// A request has come; whoever waits from here on waits for us.
    pub(crate) fn asks(&self) {
        let mut places = self.crowd.places();
        places.change(self.number, Doing::Asking);
        // It may have had a turn until now: the last bytes of its former answer are on their way.
        places.call(&self.crowd.limits);
        self.heard.notify_one();
    }

    /// Returns when its first request has come.
    pub(crate) async fn heard(&self) {
        let greets = || self.crowd.places().taken.get(&self.number).is_some_and(|guest| guest.doing == Doing::Greeting);
        while greets() {
            self.heard.notified().await;
        }
    }

    /// A turn to be answered; none if there is none within `patience`.
    pub(crate) async fn turn(&self, patience: Duration) -> Option<Turn> {
        let end = Instant::now() + patience;
        loop {
            if let ControlFlow::Break(turn) = self.line_up(end) {
                return turn;
            }
            // Looked at again sooner than at the end: an answer may stall in between.
            let look = end.min(Instant::now() + self.crowd.limits.stalled);
            tokio::select! { () = self.called.notified() => {}, () = sleep_until(look) => {} }
        }
    }

    fn line_up(&self, end: Instant) -> ControlFlow<Option<Turn>> {
        let (limits, mut places) = (&self.crowd.limits, self.crowd.places());
        places.line_up(self.number, limits);
        if let Some(turn) = places.turn_of(self.number) {
            return ControlFlow::Break(Some(self.on(turn)));
        }
        if Instant::now() >= end {
            places.give_up(self.number, limits.requests);
            return ControlFlow::Break(None);
        }
        ControlFlow::Continue(())
    }

    /// A turn for an answer that costs nothing: there is always one.
    pub(crate) fn free_turn(&self) -> Turn {
        self.on(self.crowd.places().begin(self.number))
    }

    fn on(&self, turn: u64) -> Turn {
        Turn { crowd: Arc::clone(&self.crowd), place: self.number, turn }
    }

    /// The client says no more. True while it is owed an answer; `waker` is woken when it has it.
    pub(super) fn falls_silent(&self, waker: &Waker) -> bool {
        let mut places = self.crowd.places();
        let guest = places.taken.get_mut(&self.number);
        let Some(guest) = guest.filter(|guest| !matches!(guest.doing, Doing::Greeting | Doing::Idle)) else {
            return false;
        };
        guest.mute = Some(waker.clone());
        self.gone.notify_one();
        true
    }

    /// Returns when the client says no more: it has gone, or waits for its last answer. Nobody can tell which.
    pub(crate) async fn gone(&self) {
        self.gone.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.crowd.places().leave(self.number, &self.crowd.limits);
    }
}

/// The right to be answered. It ends when it is dropped: with the last byte of the answer.
pub(crate) struct Turn {
    crowd: Arc<Crowd>,
    place: u64,
    turn: u64,
}

impl Turn {
    #[cfg(test)]
    pub(super) fn number(&self) -> u64 {
        self.turn
    }

    /// The answer is made and holds this much; from here on the client makes the pace.
    pub(super) fn sending(&self, holding: Holding) {
        let mut places = self.crowd.places();
        places.hold(self.place, Unsent { turn: self.turn, since: Instant::now(), holding });
        if places.turn_of(self.place) == Some(self.turn) {
            places.change(self.place, Doing::Sending(self.turn));
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut places = self.crowd.places();
        places.let_go(self.place, self.turn);
        // A client may ask again before the last byte of its former answer has gone.
        if places.turn_of(self.place) == Some(self.turn) {
            places.end(self.place);
        }
        places.call(&self.crowd.limits);
    }
}
