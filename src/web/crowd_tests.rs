//! Room and turns, with a clock that is moved by hand.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::task::{Context, Poll};

use super::*;
use crate::web::place::Turn;
use crate::web::unsent::Holding;

/// A source of this number.
fn source(number: u32) -> Source {
    std::net::IpAddr::from(Ipv4Addr::from_bits(number)).into()
}

fn crowd(connections: usize, requests: usize) -> Arc<Crowd> {
    Crowd::new(Limits { connections, requests, ..Limits::default() })
}

fn doing(place: &Place) -> Option<Doing> {
    place.crowd().places().taken.get(&place.number()).map(|guest| guest.doing)
}

/// A turn, if there is one at once.
fn ask(place: &Place) -> Option<Turn> {
    place.asks();
    let (mut turn, mut context) = (pin!(place.turn(Duration::ZERO)), Context::from_waker(Waker::noop()));
    match turn.as_mut().poll(&mut context) {
        Poll::Ready(turn) => turn,
        Poll::Pending => unreachable!("it does not wait"),
    }
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_longest_makes_room() {
    let crowd = crowd(2, 2);
    let first = crowd.enter(source(1)).unwrap();
    pass(1).await;
    let second = crowd.enter(source(1)).unwrap();
    let turn = ask(&first).unwrap();
    assert!(crowd.enter(source(1)).is_some(), "the second has to go, though the first came earlier");
    assert_eq!((doing(&second), doing(&first)), (None, Some(Doing::Answering(turn.number()))));
    assert_eq!(second.over().await, "it made room for another");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_sent_away_while_we_work_for_him() {
    let crowd = crowd(1, 0);
    let first = crowd.enter(source(1)).unwrap();
    let turn = ask(&first).unwrap();
    assert!(crowd.enter(source(1)).is_none());
    turn.sending(Holding::default());
    let second = crowd.enter(source(1));
    assert!(second.is_some() && doing(&first).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_stalled_answer_gives_its_turn_to_a_request() {
    let crowd = crowd(10, 1);
    let (slow, quick) = (crowd.enter(source(1)).unwrap(), crowd.enter(source(1)).unwrap());
    let turn = ask(&slow).unwrap();
    assert!(ask(&quick).is_none(), "we work for the slow one");
    turn.sending(Holding::default());
    assert!(ask(&quick).is_none(), "it has hardly begun to read");
    pass(1).await;
    assert!(ask(&quick).is_some());
    assert_eq!(slow.over().await, "it made room for another");
}

#[tokio::test(start_paused = true)]
async fn a_turn_ends_with_itself_and_not_with_the_one_before() {
    let crowd = crowd(10, 1);
    let place = crowd.enter(source(1)).unwrap();
    let former = ask(&place).unwrap();
    former.sending(Holding::default());
    let next = ask(&place).unwrap();
    drop(former);
    assert_eq!(doing(&place), Some(Doing::Answering(next.number())));
    drop(next);
    assert_eq!(doing(&place), Some(Doing::Idle));
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_waiting_has_its_own_end() {
    let crowd = crowd(10, 10);
    let began = Instant::now();
    let place = crowd.enter(source(1)).unwrap();
    assert_eq!((place.over().await, began.elapsed().as_secs()), ("it sent no request", 10));
    drop(ask(&place).unwrap());
    let began = Instant::now();
    assert_eq!((place.over().await, began.elapsed().as_secs()), ("it sent no further request", 75));
    let turn = ask(&place).unwrap();
    turn.sending(Holding::default());
    let began = Instant::now();
    assert_eq!((place.over().await, began.elapsed().as_secs()), ("it did not take its answer", 60));
}

#[tokio::test(start_paused = true)]
async fn work_of_ours_is_not_overdue() {
    let place = crowd(10, 10).enter(source(1)).unwrap();
    let _turn = ask(&place).unwrap();
    tokio::select! {
        reason = place.over() => panic!("{reason}"),
        () = tokio::time::sleep(Duration::from_secs(1000)) => {}
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_frees_the_place() {
    let crowd = crowd(1, 1);
    for _ in 0..10 {
        let place = crowd.enter(source(1)).unwrap();
        ask(&place).unwrap().sending(Holding::default());
    }
    assert_eq!(crowd.places().taken.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_source_with_most_connections_makes_room() {
    let crowd = crowd(3, 0);
    let quiet = crowd.enter(source(1)).unwrap();
    pass(5).await;
    let (older, newer) = (crowd.enter(source(2)).unwrap(), crowd.enter(source(2)).unwrap());
    older.asks();
    pass(1).await;
    newer.asks();
    // Of those that ask, who came last is the end of the line anyway.
    let third = crowd.enter(source(3)).unwrap();
    assert_eq!((doing(&newer), doing(&older)), (None, Some(Doing::Asking)));
    assert_eq!(doing(&quiet), Some(Doing::Greeting), "it has waited longest, and is alone");
    // Each of the three has one: the newcomer's source is the largest now.
    assert!(crowd.enter(source(2)).is_some());
    assert_eq!((doing(&older), doing(&third)), (None, Some(Doing::Greeting)));
}

#[tokio::test(start_paused = true)]
async fn a_quarter_of_the_turns_is_kept_for_others() {
    let crowd = crowd(100, 8);
    let places: Vec<_> = (0..7).map(|_| crowd.enter(source(1)).unwrap()).collect();
    let turns: Vec<_> = places.iter().filter_map(ask).collect();
    assert_eq!(turns.len(), 6);
    let others: Vec<_> = (2..5).map(|number| crowd.enter(source(number)).unwrap()).collect();
    assert_eq!(others.iter().filter_map(ask).collect::<Vec<_>>().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_turn_that_ends_goes_to_the_source_with_fewest_and_there_to_who_came_first() {
    let crowd = crowd(100, 4);
    let busy: Vec<_> = (0..3).map(|_| crowd.enter(source(1)).unwrap()).collect();
    let mut turns: Vec<_> = busy.iter().map(|place| ask(place).unwrap()).collect();
    let last = crowd.enter(source(2)).unwrap();
    turns.push(ask(&last).unwrap());
    let (same, other, another) = (crowd.enter(source(1)), crowd.enter(source(3)), crowd.enter(source(3)));
    let (same, other, another) = (same.unwrap(), other.unwrap(), another.unwrap());
    let patience = Duration::from_secs(5);
    let waiting = async |place: &Place| {
        place.asks();
        place.turn(patience).await.map(|turn| (Instant::now(), turn))
    };
    let ends = async {
        for turn in turns.drain(..2) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(turn);
        }
    };
    let began = Instant::now();
    let (same, other, another, ()) = tokio::join!(waiting(&same), waiting(&other), waiting(&another), ends);
    let at = |turn: &Option<(Instant, Turn)>| turn.as_ref().map(|(at, _)| (*at - began).as_secs());
    // After the first end source 1 has two and 3 none; after the second 1 and 3 have one, and 1 came first.
    assert_eq!((at(&other), at(&same), at(&another)), (Some(1), Some(2), None));
    assert_eq!(began.elapsed(), patience);
}

/// Answers that are not taken may hold so many bytes together.
fn scanty(unsent: usize) -> Arc<Crowd> {
    Crowd::new(Limits { connections: 100, requests: 0, unsent, ..Limits::default() })
}

/// A client that does not take its answer.
fn stalled(crowd: &Arc<Crowd>, from: u32, common: Option<(u64, usize)>, own: usize) -> (Place, Turn) {
    let place = crowd.enter(source(from)).unwrap();
    let turn = ask(&place).unwrap();
    turn.sending(Holding { common, own });
    (place, turn)
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_not_taken_make_room_for_one_that_is() {
    let crowd = scanty(100);
    let (slow, quick) = (stalled(&crowd, 1, None, 100), crowd.enter(source(2)).unwrap());
    assert!(ask(&quick).is_none(), "it has hardly begun to read");
    pass(1).await;
    assert!(ask(&quick).is_some());
    assert_eq!(slow.0.over().await, "it made room for another");
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_taken_holds_nothing() {
    let crowd = scanty(100);
    drop(stalled(&crowd, 1, None, 100));
    let (place, turn) = stalled(&crowd, 1, None, 100);
    drop(turn);
    assert!(ask(&crowd.enter(source(1)).unwrap()).is_some() && doing(&place) == Some(Doing::Idle));
}

#[tokio::test(start_paused = true)]
async fn a_page_that_many_wait_for_is_held_once() {
    let crowd = scanty(100);
    let _slow: Vec<_> = (0..20).map(|_| stalled(&crowd, 1, Some((7, 70)), 1)).collect();
    // 70 and 20 times 1.
    assert!(ask(&crowd.enter(source(1)).unwrap()).is_some());
    let _other = stalled(&crowd, 1, Some((8, 10)), 0);
    assert!(ask(&crowd.enter(source(1)).unwrap()).is_none());
}

#[tokio::test(start_paused = true)]
async fn who_holds_most_of_the_source_that_holds_most_is_cut_off() {
    let crowd = scanty(100);
    let alone = stalled(&crowd, 1, None, 45);
    pass(1).await;
    let (less, more) = (stalled(&crowd, 2, None, 20), stalled(&crowd, 2, None, 30));
    let newcomer = crowd.enter(source(3)).unwrap();
    pass(1).await;
    // 45 + 20 + 30 are below 100, and with another 5 no more.
    let last = stalled(&crowd, 4, None, 5);
    assert!(ask(&newcomer).is_some());
    let goes = [&alone, &less, &more, &last].map(|(place, _)| doing(place).is_none());
    assert_eq!(goes, [false, false, true, false]);
}

#[tokio::test(start_paused = true)]
async fn who_asks_again_before_it_took_an_answer_still_holds_it() {
    let crowd = scanty(100);
    let (place, former) = stalled(&crowd, 1, None, 60);
    let next = ask(&place).unwrap();
    next.sending(Holding { common: None, own: 40 });
    let other = crowd.enter(source(2)).unwrap();
    assert!(ask(&other).is_none(), "60 and 40");
    drop(former);
    assert!(ask(&other).is_some());
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_off_where_that_makes_no_room() {
    let crowd = scanty(100);
    let small = stalled(&crowd, 1, None, 20);
    let newcomer = crowd.enter(source(2)).unwrap();
    let large = {
        let place = crowd.enter(source(1)).unwrap();
        let turn = ask(&place).unwrap();
        pass(1).await;
        turn.sending(Holding { common: None, own: 100 });
        (place, turn)
    };
    assert!(ask(&newcomer).is_none() && doing(&small.0).is_some());
    pass(1).await;
    assert!(ask(&newcomer).is_some());
    assert!(doing(&small.0).is_some() && doing(&large.0).is_none());
}

#[tokio::test(start_paused = true)]
async fn who_waited_for_a_turn_gets_one_and_no_second() {
    let crowd = crowd(10, 1);
    let (first, second) = (crowd.enter(source(1)).unwrap(), crowd.enter(source(1)).unwrap());
    let turn = ask(&first).unwrap();
    second.asks();
    let (waited, ()) = tokio::join!(second.turn(Duration::from_secs(5)), async { drop(turn) });
    drop(waited.unwrap());
    assert_eq!(doing(&second), Some(Doing::Idle));
    assert!(ask(&first).is_some(), "the only turn is free again");
}

#[tokio::test(start_paused = true)]
async fn asking_again_gives_no_more_time_to_take_an_answer() {
    let crowd = crowd(10, 10);
    let began = Instant::now();
    let (place, _turn) = stalled(&crowd, 1, None, 1);
    pass(30).await;
    place.asks();
    assert_eq!((place.over().await, began.elapsed().as_secs()), ("it did not take its answer", 60));
}
