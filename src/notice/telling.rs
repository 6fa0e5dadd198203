//! Which notices the log is told of, and when.
//!
//! - Each is told when it begins, and again when its detail changes: a changed detail is a new notice.
//! - It is over when it has not been seen for [`QUIET`], though its upstream's page was looked at: one that comes and goes, as
//!   behind an address with two replicas, is told once. The end is told, unless another of its kind goes on.
//! - All together there are no more than [`LINES`] lines in a [`WINDOW`]. What has no room is told in a later window if it is
//!   still there: nothing is silent for ever. The last line of a full window says how many were left out, and where they are.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::Notice;

/// Lines in a window, that of the notices left out among them.
pub const LINES: usize = 20;

/// How long a window is.
pub const WINDOW: Duration = Duration::from_secs(10 * 60);

/// After how long without it a notice is over.
pub const QUIET: Duration = Duration::from_secs(60);

/// Notices that are remembered. Those beyond are told when there is room.
const MOST: usize = 1024;

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// It has begun.
    Begins(Notice),
    /// It is over.
    Over(Notice),
    /// So many have no room here.
    LeftOut(usize),
}

/// What the log has been told.
#[derive(Debug, Default)]
pub struct Telling {
    known: BTreeMap<Key, Known>,
    window: Option<Instant>,
    lines: usize,
    /// The log knows that this window is full.
    full_told: bool,
}

/// Kind, upstream and detail.
type Key = (&'static str, String, String);

#[derive(Debug)]
struct Known {
    notice: Notice,
    /// When it was last there, or could not be looked at.
    seen: Instant,
    is_here: bool,
    is_told: bool,
}

impl Known {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.seen) >= QUIET
    }
}

impl Telling {
    /// Takes in all notices of one look, and says what the log is to be told. `looked_at` says of an upstream whether its page
    /// was there: of one that does not answer nothing new is known, so what was said of it still stands.
    pub fn note(&mut self, notices: &[Notice], looked_at: impl Fn(&str) -> bool, now: Instant) -> Vec<Line> {
        if self.window.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (self.window, self.lines, self.full_told) = (Some(now), 0, false);
        }
        let mut left_out = self.remember(notices, looked_at, now);
        let mut lines = self.ends(now);
        for known in self.known.values_mut().filter(|known| known.is_here && !known.is_told) {
            if has_room(&mut self.lines) {
                known.is_told = true;
                lines.push(Line::Begins(known.notice.clone()));
            } else {
                left_out += 1;
            }
        }
        if left_out > 0 && !std::mem::replace(&mut self.full_told, true) {
            lines.push(Line::LeftOut(left_out));
        }
        lines
    }

    /// Returns how many it has no room to remember.
    fn remember(&mut self, notices: &[Notice], looked_at: impl Fn(&str) -> bool, now: Instant) -> usize {
        for known in self.known.values_mut() {
            known.is_here = false;
            if !looked_at(&known.notice.upstream) {
                known.seen = now;
            }
        }
        let mut beyond = 0;
        for notice in notices {
            let has_place = self.known.len() < MOST;
            match self.known.entry((notice.kind.id, notice.upstream.clone(), notice.detail.clone())) {
                Entry::Occupied(mut known) => {
                    let known = known.get_mut();
                    (known.seen, known.is_here) = (now, true);
                    known.notice.figures.clone_from(&notice.figures);
                }
                Entry::Vacant(place) if has_place => {
                    place.insert(Known { notice: notice.clone(), seen: now, is_here: true, is_told: false });
                }
                Entry::Vacant(_) => beyond += 1,
            }
        }
        beyond
    }

    /// Forgets what is over. An end that has no room waits for the next window.
    fn ends(&mut self, now: Instant) -> Vec<Line> {
        let group = |known: &Known| (known.notice.kind.id, known.notice.upstream.clone());
        let go_on: BTreeSet<_> = self.known.values().filter(|known| !known.is_over(now)).map(group).collect();
        let (mut lines, used) = (Vec::new(), &mut self.lines);
        self.known.retain(|_, known| {
            if !known.is_over(now) {
                return true;
            }
            let is_news = known.is_told && !go_on.contains(&group(known));
            if is_news && !has_room(used) {
                return true;
            }
            lines.extend(is_news.then(|| Line::Over(known.notice.clone())));
            false
        });
        lines
    }
}

/// Takes a line of the window, if there is one. The last one is kept for the notices left out.
fn has_room(used: &mut usize) -> bool {
    let has_room = *used + 1 < LINES;
    *used += usize::from(has_room);
    has_room
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
                Line::LeftOut(count) => format!("{count} left out"),
            };
            lines.into_iter().map(text).collect()
        }
    }

    const SCRAPE: Duration = Duration::from_secs(15);

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
        // The first detail is not there any more, but the lines still are: nothing is over.
        log.wait(2 * QUIET);
        assert_eq!(log.look_at(&lines(41, "a bad name")), [""; 0]);
        log.wait(QUIET);
        assert_eq!(log.look_at(&[]), ["-a bad name"]);
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

    #[test]
    fn nothing_is_over_because_the_upstream_does_not_answer() {
        let mut log = Log::new();
        assert_eq!(log.look(&["a"]), ["+a"]);
        log.answers = false;
        for _ in 0..100 {
            log.wait(SCRAPE);
            assert_eq!(log.look(&[]), [""; 0]);
        }
        log.answers = true;
        assert_eq!(log.look(&["a"]), [""; 0]);
        log.wait(QUIET);
        assert_eq!(log.look(&[]), ["-a"]);
    }

    #[test]
    fn a_window_has_so_many_lines_and_what_stays_is_told_in_a_later_one() {
        let names: Vec<String> = (0..50).map(|number| format!("{number:02}")).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut log = Log::new();
        let first = log.look(&all);
        // 19 of 50, and the line that says that 31 are left out.
        assert_eq!((first.len(), first[18].as_str(), first[19].as_str()), (LINES, "+18", "31 left out"));
        for _ in 0..39 {
            log.wait(SCRAPE);
            assert_eq!(log.look(&all), [""; 0], "the window is full");
        }
        log.wait(SCRAPE);
        let second = log.look(&all);
        assert_eq!((second[0].as_str(), second[18].as_str(), second[19].as_str()), ("+19", "+37", "12 left out"));
        log.wait(WINDOW);
        let third = log.look(&all);
        // The last 12 have room, so nothing is left out.
        assert_eq!((third.len(), third[11].as_str()), (12, "+49"));
        log.wait(WINDOW);
        assert_eq!(log.look(&all), [""; 0]);
    }

    #[test]
    fn ever_new_ones_are_a_bounded_log_and_a_bounded_memory() {
        let mut log = Log::new();
        let mut lines = 0;
        // A day of scrapes with five new details each.
        for round in 0..5760 {
            let names: Vec<String> = (0..5).map(|number| format!("{round} {number}")).collect();
            lines += log.look(&names.iter().map(String::as_str).collect::<Vec<_>>()).len();
            assert!(log.telling.known.len() <= MOST);
            log.wait(SCRAPE);
        }
        let windows = 5760 * 15 / 600;
        assert!(lines <= windows * LINES, "{lines}");
        assert!(lines > windows, "it never falls silent: {lines}");
    }

    #[test]
    fn the_end_of_many_keeps_to_the_bound_too() {
        let names: Vec<String> = (0..30).map(|number| format!("{number:02}")).collect();
        let many: Vec<Notice> =
            names.iter().map(|name| Notice::new(&GAUGE_NOT_CORRECTED, name.as_str(), name.as_str())).collect();
        let mut log = Log::new();
        log.look_at(&many);
        log.wait(WINDOW);
        log.look_at(&many);
        log.wait(WINDOW);
        let (first, ends) =
            (log.look_at(&[]), |lines: &[String]| lines.iter().filter(|line| line.starts_with('-')).count());
        log.wait(WINDOW);
        let second = log.look_at(&[]);
        assert_eq!((ends(&first), ends(&second)), (LINES - 1, 30 - (LINES - 1)));
    }

    #[test]
    fn more_than_can_be_remembered_are_said_to_be_left_out() {
        let names: Vec<String> = (0..MOST + 5).map(|number| format!("{number:04}")).collect();
        let mut log = Log::new();
        let lines = log.look(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(lines.last().map(String::as_str), Some(format!("{} left out", MOST + 5 - (LINES - 1)).as_str()));
    }
}
