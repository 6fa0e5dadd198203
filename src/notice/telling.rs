//! Which notices the log is told of, and when.
//!
//! - Each is told when it begins, and when it is over; a changed detail is another notice. What did not begin in the log does not
//!   end there either.
//! - It is over when it has not been seen for [`QUIET`] and in [`LOOKS`] looks at its upstream's page: one that comes and goes, as
//!   behind an address with two replicas, is told once, however seldom somebody looks.
//! - All together there are no more than [`LINES`] lines in a [`WINDOW`]. First comes each kind of each upstream of which nothing was
//!   told so far, then whoever waits longest. So what stays is told in a later window, whatever else is there: nothing is
//!   silent for ever.
//! - A line says that a window is full and how many have no room so far; where it became more, the last line of the window, which
//!   is told after its end, counts all of them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Notice;

/// Lines of a window, those of the notices left out among them.
pub const LINES: usize = 20;

/// How long a window is.
pub const WINDOW: Duration = Duration::from_secs(10 * 60);

/// For how long a notice is not there before it is over.
pub const QUIET: Duration = Duration::from_secs(60);

/// In how many looks it is not there before it is over.
pub const LOOKS: u32 = 5;

/// Notices that are remembered; one of each kind and upstream is remembered beyond that.
const MOST: usize = 1024;

/// Lines of a window that are not for notices: that it is full, and how many were left out in the end.
const KEPT: usize = 2;

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// It has begun.
    Begins(Notice),
    /// It is over.
    Over(Notice),
    /// The window is full; so many have no room in it so far.
    Full(usize),
    /// The window has ended; so many had no room in it.
    LeftOut(usize),
}

/// What the log has been told.
#[derive(Debug, Default)]
pub struct Telling {
    known: BTreeMap<Key, Known>,
    /// Kinds and upstreams of which something was told.
    told: BTreeSet<Group>,
    window: Option<Window>,
}

/// Kind and upstream.
type Group = (&'static str, String);

/// Kind, upstream and detail.
type Key = (&'static str, String, String);

#[derive(Debug)]
struct Known {
    notice: Notice,
    /// Since when it has something to tell that was not told.
    waits: Instant,
    /// Since when it is not there, and in how many looks.
    gone: Option<(Instant, u32)>,
    is_told: bool,
    /// It had no room in this window, and was counted.
    is_left_out: bool,
}

impl Known {
    fn new(notice: &Notice, now: Instant) -> Known {
        Known { notice: notice.clone(), waits: now, gone: None, is_told: false, is_left_out: false }
    }

    fn is_over(&self, now: Instant) -> bool {
        self.gone.is_some_and(|(since, looks)| looks >= LOOKS && now.duration_since(since) >= QUIET)
    }

    /// Takes in that a look at its page did not show it.
    fn is_missed(&mut self, now: Instant) {
        let was_over = self.is_over(now);
        let (_, looks) = self.gone.get_or_insert((now, 0));
        *looks = looks.saturating_add(1);
        if !was_over && self.is_over(now) {
            self.waits = now;
        }
    }
}

#[derive(Debug)]
struct Window {
    since: Instant,
    /// Lines that it has for notices.
    room: usize,
    /// Notices whose beginning or end had no room.
    left_out: usize,
    /// The most that one look showed and that could not even be remembered.
    beyond: usize,
    /// How many it was said to leave out.
    said: usize,
}

impl Window {
    fn new(since: Instant) -> Window {
        Window { since, room: LINES - KEPT, left_out: 0, beyond: 0, said: 0 }
    }

    fn left_out(&self) -> usize {
        self.left_out + self.beyond
    }

    /// Said once, as soon as it is full.
    fn full(&mut self) -> Option<Line> {
        let is_news = self.said == 0 && self.left_out() > 0;
        is_news.then(|| {
            self.said = self.left_out();
            Line::Full(self.said)
        })
    }

    /// Its last line, where there is more to say than was said.
    fn end(&self) -> Option<Line> {
        (self.left_out() > self.said).then(|| Line::LeftOut(self.left_out()))
    }
}

impl Telling {
    /// Takes in all notices of one look, and says what the log is to be told. `looked_at` says of an upstream whether its page
    /// was there: of one that does not answer nothing new is known, so what was said of it still stands.
    pub fn note(&mut self, notices: &[Notice], looked_at: impl Fn(&str) -> bool, now: Instant) -> Vec<Line> {
        let (mut window, ended) = self.window(now);
        window.beyond = window.beyond.max(self.remember(notices, looked_at, now));
        self.known.retain(|_, known| known.is_told || !known.is_over(now));
        let queue = self.queue(now);
        let told = queue.iter().filter_map(|key| self.tell(key, &mut window, now));
        let mut lines: Vec<Line> = ended.into_iter().chain(told).collect();
        lines.extend(window.full());
        self.window = Some(window);
        lines
    }

    /// The present window, and the last line of one that has ended.
    fn window(&mut self, now: Instant) -> (Window, Option<Line>) {
        match self.window.take() {
            Some(window) if now.duration_since(window.since) < WINDOW => (window, None),
            ended => {
                self.known.values_mut().for_each(|known| known.is_left_out = false);
                (Window::new(now), ended.and_then(|ended| ended.end()))
            }
        }
    }

    /// Returns how many it has no room to remember.
    fn remember(&mut self, notices: &[Notice], looked_at: impl Fn(&str) -> bool, now: Instant) -> usize {
        let here: BTreeSet<Key> = notices.iter().map(key).collect();
        let missed =
            self.known.iter_mut().filter(|(key, known)| !here.contains(key) && looked_at(&known.notice.upstream));
        missed.for_each(|(_, known)| known.is_missed(now));
        let mut groups: BTreeSet<Group> = self.known.keys().map(group).collect();
        let mut beyond = 0;
        for notice in notices {
            let has_place = self.known.len() < MOST;
            match self.known.entry(key(notice)) {
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    known.gone = None;
                    known.notice.figures.clone_from(&notice.figures);
                }
                Entry::Vacant(place) => {
                    if groups.insert(group(place.key())) || has_place {
                        place.insert(Known::new(notice, now));
                    } else {
                        beyond += 1;
                    }
                }
            }
        }
        beyond
    }

    /// Who has a beginning or an end to tell: one of each kind and upstream of which nothing was told so far, then all others,
    /// each by how long it has waited.
    fn queue(&self, now: Instant) -> Vec<Key> {
        let waits = |(_, known): &(&Key, &Known)| known.is_told == known.is_over(now);
        let mut waiting: Vec<(&Key, &Known)> = self.known.iter().filter(waits).collect();
        waiting.sort_by_key(|(_, known)| known.waits);
        let mut new = BTreeSet::new();
        let is_first = |key: &Key| !self.told.contains(&group(key)) && new.insert(group(key));
        let keys = waiting.into_iter().map(|(key, _)| key.clone());
        let (first, others): (Vec<Key>, Vec<Key>) = keys.partition(is_first);
        first.into_iter().chain(others).collect()
    }

    /// Tells one, if there is room.
    fn tell(&mut self, key: &Key, window: &mut Window, now: Instant) -> Option<Line> {
        let known = self.known.get_mut(key)?;
        if window.room == 0 {
            window.left_out += usize::from(!std::mem::replace(&mut known.is_left_out, true));
            return None;
        }
        window.room -= 1;
        self.told.insert(group(key));
        if known.is_over(now) {
            return self.known.remove(key).map(|known| Line::Over(known.notice));
        }
        known.is_told = true;
        Some(Line::Begins(known.notice.clone()))
    }
}

fn key(notice: &Notice) -> Key {
    (notice.kind.id, notice.upstream.clone(), notice.detail.clone())
}

fn group((id, upstream, _): &Key) -> Group {
    (id, upstream.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::notice::kinds::{DROPPED_LINES, GAUGE_NOT_CORRECTED};

    /// A log with a clock that is moved by hand.
    struct Log {
        telling: Telling,
        now: Instant,
        answers: bool,
    }

    impl Log {
        fn new() -> Log {
            Log { telling: Telling::default(), now: Instant::now(), answers: true }
        }

        fn wait(&mut self, time: Duration) {
            self.now += time;
        }

        /// What one look at these gauges tells, one text a line.
        fn look(&mut self, details: &[&str]) -> Vec<String> {
            let notices: Vec<_> = details.iter().map(|text| Notice::new(&GAUGE_NOT_CORRECTED, "main", *text)).collect();
            self.look_at(&notices)
        }

        fn look_at(&mut self, notices: &[Notice]) -> Vec<String> {
            let answers = self.answers;
            let lines = self.telling.note(notices, |_| answers, self.now);
            let text = |line| match line {
                Line::Begins(notice) => format!("+{}", notice.detail),
                Line::Over(notice) => format!("-{}", notice.detail),
                Line::Full(count) => format!("{count} left out so far"),
                Line::LeftOut(count) => format!("{count} left out"),
            };
            lines.into_iter().map(text).collect()
        }

        /// What so many looks tell, each after a while.
        fn looks(&mut self, looks: u32, each: Duration, notices: &[Notice]) -> Vec<String> {
            let look = |_| {
                self.wait(each);
                self.look_at(notices)
            };
            (0..looks).flat_map(look).collect()
        }
    }

    const SCRAPE: Duration = Duration::from_secs(15);

    /// Lines of a window for beginnings and ends.
    const ROOM: usize = LINES - KEPT;

    fn names(range: std::ops::Range<usize>) -> Vec<String> {
        range.map(|number| format!("{number:04}")).collect()
    }

    fn texts(names: &[String]) -> Vec<&str> {
        names.iter().map(String::as_str).collect()
    }

    #[test]
    fn one_that_stays_for_a_day_is_one_line() {
        let mut log = Log::new();
        let mut lines = Vec::new();
        for _ in 0..5760 {
            lines.extend(log.look(&["a"]));
            log.wait(SCRAPE);
        }
        assert_eq!(lines, ["+a"]);
    }

    #[test]
    fn figures_that_change_are_no_news_and_a_detail_that_changes_is() {
        let mut log = Log::new();
        let lines = |count: u32, reasons| {
            [Notice::new(&DROPPED_LINES, "main", reasons).with(format!("{count} lines in the last scrape"))]
        };
        assert_eq!(log.look_at(&lines(40, "a bad value")), ["+a bad value"]);
        assert_eq!(log.look_at(&lines(41, "a bad value")), [""; 0]);
        assert_eq!(log.look_at(&lines(41, "a bad name")), ["+a bad name"]);
        assert_eq!(log.looks(LOOKS, SCRAPE, &lines(41, "a bad name")), ["-a bad value"]);
        assert_eq!(log.looks(LOOKS, SCRAPE, &[]), ["-a bad name"]);
        assert_eq!(log.look_at(&lines(40, "a bad value")), ["+a bad value"], "it begins anew");
    }

    #[test]
    fn one_that_comes_and_goes_is_told_once() {
        let mut log = Log::new();
        let mut lines = Vec::new();
        for round in 0..1000 {
            lines.extend(log.look(if round % 2 == 0 { &["a"] } else { &["b"] }));
            log.wait(SCRAPE);
        }
        assert_eq!(lines, ["+a", "+b"]);
    }

    /// How often somebody looks makes no difference to what is told.
    #[test]
    fn however_seldom_somebody_looks_one_that_comes_and_goes_is_told_once_and_one_that_goes_ends_once() {
        for interval in [1, 15, 30, 60, 120, 600].map(Duration::from_secs) {
            let told = |is_there: fn(u32) -> bool| {
                let mut log = Log::new();
                let mut lines = Vec::new();
                for round in 0..500 {
                    lines.extend(log.look(if is_there(round) { &["a"] } else { &[] }));
                    log.wait(interval);
                }
                lines
            };
            assert_eq!(told(|_| true), ["+a"], "{interval:?}");
            assert_eq!(told(|round| round % 2 == 0), ["+a"], "{interval:?}");
            assert_eq!(told(|round| round == 0), ["+a", "-a"], "{interval:?}");
        }
    }

    #[test]
    fn it_is_over_after_a_minute_and_five_looks() {
        // The first look without it is at the time 0: with 15 s between looks the fifth is after 60 s, with 60 s after 240.
        for (seconds, looks) in [(1, 61), (15, 5), (30, 5), (60, 5), (120, 5)] {
            let mut log = Log::new();
            log.look(&["a"]);
            let mut quiet = 1;
            while log.looks(1, Duration::from_secs(seconds), &[]).is_empty() {
                quiet += 1;
            }
            assert_eq!(quiet, looks, "{seconds} s between looks");
        }
    }

    #[test]
    fn nothing_is_over_because_the_upstream_does_not_answer() {
        let mut log = Log::new();
        assert_eq!(log.look(&["a"]), ["+a"]);
        log.answers = false;
        assert_eq!(log.looks(100, SCRAPE, &[]), [""; 0]);
        log.answers = true;
        assert_eq!(log.look(&["a"]), [""; 0]);
        // Looks at a page that is not there are none, and do not begin anew what was counted: 4 without it, and the fifth.
        assert_eq!(log.looks(LOOKS - 1, SCRAPE, &[]), [""; 0]);
        log.answers = false;
        assert_eq!(log.looks(100, SCRAPE, &[]), [""; 0]);
        log.answers = true;
        assert_eq!(log.looks(1, SCRAPE, &[]), ["-a"]);
    }

    #[test]
    fn the_end_is_told_of_the_one_that_ended() {
        let mut log = Log::new();
        assert_eq!(log.look(&["engine 0", "engine 1"]), ["+engine 0", "+engine 1"]);
        for _ in 0..LOOKS - 1 {
            log.wait(SCRAPE);
            assert_eq!(log.look(&["engine 1"]), [""; 0]);
        }
        log.wait(SCRAPE);
        assert_eq!(log.look(&["engine 1"]), ["-engine 0"]);
        assert_eq!(log.looks(LOOKS, SCRAPE, &[]), ["-engine 1"]);
    }

    #[test]
    fn a_window_has_so_many_lines_and_what_stays_is_told_in_a_later_one() {
        let names = names(0..50);
        let all = texts(&names);
        let mut log = Log::new();
        let first = log.look(&all);
        // 18 of 50, and the line that says that 32 are left out. One is kept for those that come later.
        assert_eq!((first.len(), first[17].as_str(), first[18].as_str()), (19, "+0017", "32 left out so far"));
        for _ in 0..39 {
            log.wait(SCRAPE);
            assert_eq!(log.look(&all), [""; 0], "the window is full");
        }
        log.wait(SCRAPE);
        let second = log.look(&all);
        assert_eq!(
            (second[0].as_str(), second[17].as_str(), second[18].as_str()),
            ("+0018", "+0035", "14 left out so far")
        );
        log.wait(WINDOW);
        let third = log.look(&all);
        // The last 14 have room, so nothing is left out.
        assert_eq!((third.len(), third[13].as_str()), (14, "+0049"));
        log.wait(WINDOW);
        assert_eq!(log.look(&all), [""; 0]);
    }

    #[test]
    fn the_last_line_of_a_window_counts_all_that_were_left_out() {
        let names = names(0..60);
        let mut log = Log::new();
        assert_eq!(log.look(&texts(&names[..ROOM])).len(), ROOM);
        log.wait(SCRAPE);
        // One more each time, until 60 − 18 = 42 have had no room, of which the first line told of one.
        assert_eq!(log.look(&texts(&names[..ROOM + 1])), ["1 left out so far"]);
        for some in ROOM + 2..=60 {
            assert_eq!(log.look(&texts(&names[..some])), [""; 0]);
        }
        // They are over by the end of the window and were left out all the same; so are the ends of the 18 that were told.
        assert_eq!(log.looks(LOOKS, SCRAPE, &[]), [""; 0]);
        log.wait(WINDOW);
        let next = log.look(&[]);
        assert_eq!((next[0].as_str(), next[1].as_str(), next.len()), ("60 left out", "-0000", 1 + ROOM));
    }

    #[test]
    fn one_that_stays_is_told_however_many_new_ones_come_before_it_in_every_order() {
        let mut log = Log::new();
        let mut told = Vec::new();
        // Forty new ones a look, that sort before it: twice as many as a window has lines.
        for round in 0..3 * 40 {
            let mut some: Vec<String> = (0..40).map(|number| format!("{round:04} {number:02}")).collect();
            some.push("the one that stays".to_owned());
            told.extend(log.look(&texts(&some)));
            log.wait(SCRAPE);
        }
        assert_eq!(told.iter().filter(|line| *line == "+the one that stays").count(), 1, "{told:?}");
    }

    #[test]
    fn each_kind_of_each_upstream_is_told_before_a_second_one_of_another() {
        let many: Vec<Notice> = names(0..60).iter().map(|name| Notice::new(&DROPPED_LINES, "main", name)).collect();
        let others =
            [Notice::new(&GAUGE_NOT_CORRECTED, "main", "a gauge"), Notice::new(&DROPPED_LINES, "cache", "a line")];
        let mut log = Log::new();
        let first = log.look_at(&[&many[..], &others].concat());
        // By their ids, then by their upstreams.
        assert_eq!(first[..3], ["+a gauge", "+a line", "+0000"]);
        // Where the memory is full, there is a place for the first of its kind and upstream.
        let flood: Vec<Notice> =
            names(0..MOST + 50).iter().map(|name| Notice::new(&DROPPED_LINES, "main", name)).collect();
        let mut log = Log::new();
        log.look_at(&flood);
        log.wait(WINDOW);
        let next = log.look_at(&[&flood[..], &others].concat());
        assert_eq!(next[..3], ["+a gauge", "+a line", "+0018"], "{next:?}");
    }

    #[test]
    fn one_whose_beginning_had_no_room_has_no_end_either() {
        let names = names(0..ROOM);
        let mut log = Log::new();
        log.look(&texts(&names));
        let with_late: Vec<&str> = texts(&names).into_iter().chain(["late"]).collect();
        assert_eq!(log.look(&with_late), ["1 left out so far"]);
        log.wait(SCRAPE);
        for _ in 0..200 {
            assert_eq!(log.look(&texts(&names)), [""; 0]);
            log.wait(SCRAPE);
        }
    }

    #[test]
    fn ever_new_ones_are_a_bounded_log_and_a_bounded_memory() {
        let mut log = Log::new();
        let mut lines = 0;
        // A day of scrapes with five new details each.
        for round in 0..5760 {
            let names: Vec<String> = (0..5).map(|number| format!("{round} {number}")).collect();
            lines += log.look(&texts(&names)).len();
            assert!(log.telling.known.len() <= MOST);
            log.wait(SCRAPE);
        }
        let windows = 5760 * 15 / 600;
        assert!(lines <= windows * LINES, "{lines}");
        assert!(lines > windows, "it never falls silent: {lines}");
    }

    #[test]
    fn the_end_of_many_keeps_to_the_bound_too() {
        let many: Vec<Notice> =
            names(0..30).iter().map(|name| Notice::new(&GAUGE_NOT_CORRECTED, name.as_str(), name.as_str())).collect();
        let mut log = Log::new();
        log.look_at(&many);
        log.wait(WINDOW);
        log.look_at(&many);
        // The last look of these is in a window of its own.
        log.looks(LOOKS - 1, SCRAPE, &[]);
        log.wait(WINDOW);
        let ends = |lines: &[String]| lines.iter().filter(|line| line.starts_with('-')).count();
        let first = log.look_at(&[]);
        log.wait(WINDOW);
        let second = log.look_at(&[]);
        assert_eq!((ends(&first), ends(&second)), (ROOM, 30 - ROOM));
    }

    #[test]
    fn more_than_can_be_remembered_are_said_to_be_left_out() {
        let mut log = Log::new();
        let names = names(0..MOST + 5);
        let lines = log.look(&texts(&names));
        assert_eq!(lines.last().map(String::as_str), Some(format!("{} left out so far", MOST + 5 - ROOM).as_str()));
    }
}
