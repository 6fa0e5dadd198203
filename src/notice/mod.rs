//! What the running exporter would tell somebody: a page of no known engine, a line left out, a gauge that stays misleading.
//!
//! A [`Kind`] is a row of the table in [`kinds`]: its id, what it means, why it matters and what to do. A [`Notice`] is one of
//! that kind, of one upstream, with what was seen. Whoever finds one makes one; it is shown in four places, each from the same
//! value: the log ([`telling`]), `/debug` ([`Notice::tell`]), `kvtier_notice_active` ([`active`]) and `/api/status`.
//! `check` tells them too, each as its row says ([`InCheck`]). `docs/notices.md` lists them all; a test holds it to the table.
//!
//! Pure: no clock, no I/O.
//!
//! To add one: a row in [`kinds`], in `docs/notices.md` and in `docs/findings.md`, and a [`Notice::new`] where it is seen: a rule in [`page`] for what
//! follows from a page, [`crate::model::Snapshot::note`] for what a dialect meets.

pub mod kinds;
pub mod page;
pub mod spelling;
pub mod telling;

use std::collections::{BTreeMap, BTreeSet};

use crate::advise::Severity;
use crate::family::{Desc, Family};
use crate::redact::Lines;
use crate::upstream::Address;

/// `kvtier_notice_active`.
pub const ACTIVE: Desc = Desc::gauge(
    "kvtier_notice_active",
    "1 for everything that this exporter has to tell of an upstream now, by its id. /debug, /api/status and the log say what was seen and what to do; docs/notices.md lists the ids.",
);

/// One kind of notice. Its sentences are for people and may change; its id is stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// Stable name, the `id` label in metrics.
    pub id: &'static str,
    /// What it means.
    pub what: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What to do.
    pub action: &'static str,
    /// How `check` tells of it.
    pub check: InCheck,
}

/// How `check` tells of what a running exporter has a notice of. Each kind has an answer, so none is silent there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InCheck {
    /// In the notice's own words.
    AsItIs(Severity),
    /// By one of these findings, which know more; of an extra, and where none of them is there, in the notice's own words.
    Better(&'static [&'static str], Severity),
    /// Not at all: it is of a program that runs, and of no page.
    Never,
}

/// One thing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// What it is.
    pub kind: &'static Kind,
    /// Of which upstream: value of the `upstream` label. Empty where it is of this program.
    pub upstream: String,
    /// What was seen, and of which engine and model. It stays the same from scrape to scrape as long as nothing has changed
    /// that somebody would act upon, so it has no counts in it.
    pub detail: String,
    /// The counts: they may change with each scrape, and that is no news. Empty where there are none.
    pub figures: String,
    /// The id of what it follows from, where that is told by itself.
    pub follows: Option<&'static str>,
}

impl Notice {
    /// A notice without figures.
    pub fn new(kind: &'static Kind, upstream: impl Into<String>, detail: impl Into<String>) -> Notice {
        Notice { kind, upstream: upstream.into(), detail: detail.into(), figures: String::new(), follows: None }
    }

    /// The same with figures.
    #[must_use]
    pub fn with(self, figures: impl Into<String>) -> Notice {
        Notice { figures: figures.into(), ..self }
    }

    /// The same with what it follows from.
    #[must_use]
    pub fn after(self, follows: Option<&'static str>) -> Notice {
        Notice { follows, ..self }
    }

    /// What was seen with its figures, as one sentence without its full stop.
    pub fn seen(&self) -> String {
        if self.figures.is_empty() { self.detail.clone() } else { format!("{} ({})", self.detail, self.figures) }
    }

    /// Its paragraph in `/debug`.
    pub fn tell(&self, out: &mut Lines) {
        let Kind { id, what, why, action, .. } = self.kind;
        let of = if self.upstream.is_empty() { String::new() } else { format!(" of upstream {}", self.upstream) };
        out.line(format_args!("notice {id}{of}"));
        out.line(format_args!("  seen     {}", self.seen()));
        out.line(format_args!("  means    {what}"));
        out.line(format_args!("  matters  {why}"));
        out.line(format_args!("  do       {action}"));
    }
}

/// Of an upstream whose certificate nobody looks at.
pub fn unverified(upstream: &str, address: &Address) -> Notice {
    Notice::new(&kinds::SKIP_VERIFY, upstream, address.to_string())
}

/// The most notices of one kind and upstream that are told one by one. Label values come from outside, so a page could make
/// up any number.
const MOST: usize = 50;

/// The notices without repetitions, in the order of their making; of each kind and upstream no more than can be looked
/// through, and one that says how many more there are.
pub fn bounded(notices: impl IntoIterator<Item = Notice>) -> Vec<Notice> {
    let (mut kept, mut counts, mut seen) = (Vec::new(), BTreeMap::new(), BTreeSet::new());
    for notice in notices {
        let group = (notice.kind.id, notice.upstream.clone());
        if !seen.insert((group.clone(), notice.detail.clone())) {
            continue;
        }
        let (_, count) = counts.entry(group).or_insert((notice.kind, 0_usize));
        *count += 1;
        if *count <= MOST {
            kept.push(notice);
        }
    }
    let beyond = counts.into_iter().filter(|(_, (_, count))| *count > MOST);
    kept.extend(beyond.map(|((_, upstream), (kind, count))| {
        let more = Notice::new(kind, upstream, "there are more of these, which are not told one by one");
        more.with(format!("{} more", count - MOST))
    }));
    kept
}

/// The family that says which kinds of notice there are.
pub fn active(notices: &[Notice]) -> Family {
    let mut family = Family::new(ACTIVE);
    let told: BTreeSet<_> = notices.iter().map(|notice| (notice.kind.id, notice.upstream.as_str())).collect();
    for (id, upstream) in told {
        family.push([("id", id.to_owned()), ("upstream", upstream.to_owned())], 1.0);
    }
    family
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;

    fn notice(kind: &'static Kind, upstream: &str, detail: &str) -> Notice {
        Notice::new(kind, upstream, detail)
    }

    #[test]
    fn a_kind_is_one_sample_however_often_it_is_there() {
        let (gauge, lines) = (&kinds::GAUGE_NOT_CORRECTED, &kinds::DROPPED_LINES);
        let notices =
            [notice(gauge, "main", "engine 0"), notice(gauge, "main", "engine 1"), notice(lines, "cache", "a line")];
        let text = encode(&[active(&notices)]);
        let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"kvtier_notice_active{id="gauge-not-corrected",upstream="main"} 1"#,
                r#"kvtier_notice_active{id="upstream-dropped-lines",upstream="cache"} 1"#,
            ]
        );
        assert_eq!(encode(&[active(&[])]), "", "nothing to tell is no family");
    }

    #[test]
    fn a_page_that_makes_up_notices_is_told_of_in_part_and_the_rest_is_counted() {
        let gauge = &kinds::GAUGE_NOT_CORRECTED;
        let many = (0..MOST + 7).map(|number| notice(gauge, "main", &number.to_string()));
        let twice = many.clone().chain(many).chain([notice(gauge, "cache", "one")]);
        let kept = bounded(twice);
        // Fifty, the one that says that seven more are there, and the other upstream's.
        assert_eq!(kept.len(), MOST + 2);
        assert_eq!(
            kept.last().map(Notice::seen).unwrap_or_default(),
            "there are more of these, which are not told one by one (7 more)"
        );
    }

    #[test]
    fn ids_are_words_and_each_is_there_once() {
        let ids: BTreeSet<_> = kinds::KINDS.iter().map(|kind| kind.id).collect();
        assert_eq!(ids.len(), kinds::KINDS.len());
        for kind in kinds::KINDS {
            assert!(kind.id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", kind.id);
            for text in [kind.what, kind.why, kind.action] {
                assert!(text.ends_with('.') && !text.contains(['|', '\n']), "{}: {text}", kind.id);
            }
        }
    }
}
