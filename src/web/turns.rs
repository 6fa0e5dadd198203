//! Who is next where only one at a time can be served: sources take turns, and within one whoever came first. Pure.
//!
//! Each ticket belongs to a round, and a source has one ticket a round. So whoever guesses passwords without end delays
//! somebody at another address by one hash a round, and somebody at its own address by those who came before.

use std::collections::{BTreeMap, HashMap};

use super::source::Source;

/// Tickets of clients that went away: kept, since the hash that they wait for is what lets their next request in. As many for
/// one source, and for all together. Beyond it the last in line goes, which has waited least.
const KEPT_OF_ONE: usize = 32;
const KEPT: usize = 256;

/// The place of a ticket: its round, and its number within all.
pub(super) type Number = (u64, u64);

/// The line.
#[derive(Debug)]
pub(super) struct Turns<T> {
    waiting: BTreeMap<Number, Ticket<T>>,
    /// The round of the ticket that was called last.
    round: u64,
    /// The round in which a source was called last, as far as it is not over.
    called: HashMap<Source, u64>,
    next: u64,
}

/// Somebody's place in line.
#[derive(Debug)]
struct Ticket<T> {
    source: Source,
    /// How many clients are there for it.
    present: usize,
    what: T,
}

impl<T> Default for Turns<T> {
    fn default() -> Turns<T> {
        Turns { waiting: BTreeMap::new(), round: 0, called: HashMap::new(), next: 0 }
    }
}

impl<T> Turns<T> {
    /// Lines up a client, or lets it join whoever of its source waits for the same.
    pub(super) fn join(&mut self, source: Source, same: impl Fn(&T) -> bool, what: impl FnOnce() -> T) -> (Number, &T) {
        let mine = self.waiting.iter().filter(|(_, ticket)| ticket.source == source);
        let number = mine.clone().find(|(_, ticket)| same(&ticket.what)).map(|(number, _)| *number);
        let last = mine.map(|(number, _)| number.0).max().or_else(|| self.called.get(&source).copied());
        let number = number.unwrap_or_else(|| {
            self.next += 1;
            (last.map_or(self.round, |last| self.round.max(last + 1)), self.next)
        });
        let ticket = self.waiting.entry(number).or_insert_with(|| Ticket { source, present: 0, what: what() });
        ticket.present += 1;
        (number, &ticket.what)
    }

    /// A client went away. Gives back what nobody waits for any more, where too much of that kind waits.
    pub(super) fn leave(&mut self, number: Number) -> Option<T> {
        let ticket = self.waiting.get_mut(&number)?;
        ticket.present = ticket.present.saturating_sub(1);
        let source = ticket.source;
        let kept = self.waiting.iter().filter(|(_, ticket)| ticket.present == 0);
        let (all, last) = (kept.clone().count(), kept.clone().next_back().map(|(number, _)| *number));
        let mut of_it = kept.filter(|(_, ticket)| ticket.source == source);
        let last_of_it = of_it.clone().next_back().map(|(number, _)| *number);
        let surplus = if of_it.nth(KEPT_OF_ONE).is_some() { last_of_it } else { last.filter(|_| all > KEPT) };
        Some(self.waiting.remove(&surplus?)?.what)
    }

    /// The next.
    pub(super) fn call(&mut self) -> Option<T> {
        let ((round, _), Ticket { source, what, .. }) = self.waiting.pop_first()?;
        self.round = round;
        self.called.insert(source, round);
        self.called.retain(|_, called| *called >= round);
        Some(what)
    }

    /// Takes out everything that is like this.
    pub(super) fn settle(&mut self, like: impl Fn(&T) -> bool) -> impl Iterator<Item = T> {
        self.waiting.extract_if(.., move |_, ticket| like(&ticket.what)).map(|(_, ticket)| ticket.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn source(number: u32) -> Source {
        Source::from(std::net::IpAddr::from(Ipv4Addr::from_bits(number)))
    }

    fn line(turns: &mut Turns<&'static str>, number: u32, what: &'static str) -> Number {
        turns.join(source(number), |other| *other == what, || what).0
    }

    fn calls(turns: &mut Turns<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| turns.call()).collect()
    }

    #[test]
    fn one_source_is_served_in_order_and_several_in_turns() {
        let mut turns = Turns::default();
        for (from, what) in [(1, "a1"), (1, "a2"), (1, "a3"), (2, "b1"), (2, "b2"), (3, "c1")] {
            line(&mut turns, from, what);
        }
        assert_eq!(calls(&mut turns), ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }

    /// Each of three sources guesses on as soon as it was served, the first of them from the address of the one who waits.
    #[test]
    fn whoever_waits_is_served_after_one_round_though_others_come_back_at_once() {
        let mut turns = Turns::default();
        for (from, what) in [(2, "guess 2"), (3, "guess 3"), (1, "guess 1"), (1, "right")] {
            line(&mut turns, from, what);
        }
        let mut served = Vec::new();
        while served.last() != Some(&"right") {
            let what = turns.call().unwrap();
            served.push(what);
            match what {
                "guess 1" => line(&mut turns, 1, what),
                "guess 2" => line(&mut turns, 2, what),
                _ => line(&mut turns, 3, what),
            };
        }
        // Those who came back before are of the next round too, and came later.
        assert_eq!(served, ["guess 2", "guess 3", "guess 1", "right"]);
    }

    #[test]
    fn a_newcomer_waits_for_one_of_a_source_with_many() {
        let mut turns = Turns::default();
        for what in ["a1", "a2", "a3", "a4"] {
            line(&mut turns, 1, what);
        }
        assert_eq!(turns.call(), Some("a1"));
        line(&mut turns, 2, "new");
        assert_eq!(calls(&mut turns), ["new", "a2", "a3", "a4"]);
    }

    #[test]
    fn the_same_of_one_source_waits_once_and_goes_when_the_last_client_has_gone() {
        let mut turns = Turns::default();
        let number = line(&mut turns, 1, "same");
        assert_eq!(line(&mut turns, 1, "same"), number);
        assert_ne!(line(&mut turns, 2, "same"), number);
        assert_eq!(calls(&mut turns), ["same", "same"]);
    }

    #[test]
    fn who_went_away_keeps_its_turn_and_too_many_of_those_lose_the_last() {
        let mut turns: Turns<usize> = Turns::default();
        let numbers: Vec<_> = (0..KEPT_OF_ONE + 2).map(|n| turns.join(source(1), |_| false, || n).0).collect();
        // The first goes away last: it has waited longest, so it is not the one that is taken out.
        for number in numbers[2..].iter().rev() {
            assert_eq!(turns.leave(*number), None);
        }
        assert_eq!(turns.leave(numbers[0]), Some(KEPT_OF_ONE + 1));
        let left: Vec<_> = std::iter::from_fn(|| turns.call()).collect();
        assert_eq!(left, (0..=KEPT_OF_ONE).collect::<Vec<_>>());
        // A number that was called is no ticket any more.
        assert_eq!(turns.leave(numbers[0]), None);
    }

    #[test]
    fn all_together_keep_no_more_than_they_may() {
        let mut turns: Turns<u32> = Turns::default();
        let surplus = (0..300).filter_map(|n| {
            let number = turns.join(source(n), |_| false, || n).0;
            turns.leave(number)
        });
        assert_eq!(surplus.collect::<Vec<_>>(), (256..300).collect::<Vec<_>>());
    }

    #[test]
    fn what_is_settled_waits_no_more() {
        let mut turns = Turns::default();
        for (from, what) in [(1, "x"), (2, "y"), (3, "x")] {
            line(&mut turns, from, what);
        }
        assert_eq!(turns.settle(|what| *what == "x").count(), 2);
        assert_eq!(calls(&mut turns), ["y"]);
    }
}
