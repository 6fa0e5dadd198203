//! What the running exporter would tell somebody, found as it finds it: in its words, unless a finding says it better.

use std::collections::{BTreeMap, BTreeSet};

use super::Facts;
use crate::advise::{Finding, Severity};
use crate::notice::{InCheck, Kind, Notice};
use crate::pipeline::MAIN;

/// One finding for each kind and upstream of which the others say nothing.
pub(super) fn untold(facts: &Facts<'_>, findings: &[Finding]) -> Vec<Finding> {
    let mut told: BTreeSet<&str> = findings.iter().map(|finding| finding.id).collect();
    told.extend(facts.notices.iter().map(|notice| notice.kind.id));
    let follows = |notice: &&Notice| notice.follows.is_some_and(|from| told.contains(from));
    let mut kinds: BTreeMap<(&str, &str), Vec<&Notice>> = BTreeMap::new();
    for notice in facts.notices.iter().filter(|notice| !follows(notice)) {
        kinds.entry((notice.kind.id, &notice.upstream)).or_default().push(notice);
    }
    let severe = kinds.values().filter_map(|notices| Some((severity(notices[0], findings)?, notices)));
    severe.map(|(severity, notices)| Finding { severity, ..finding(notices) }).collect()
}

/// `None` where it is not told in its own words.
fn severity(notice: &Notice, findings: &[Finding]) -> Option<Severity> {
    match notice.kind.check {
        InCheck::Never => None,
        InCheck::Better(ids, _) if notice.upstream == MAIN && findings.iter().any(|one| ids.contains(&one.id)) => None,
        InCheck::AsItIs(severity) | InCheck::Better(_, severity) => Some(severity),
    }
}

fn finding(notices: &[&Notice]) -> Finding {
    let Notice { kind: Kind { id, what, why, action, .. }, upstream, .. } = notices[0];
    let of = if upstream == MAIN { String::new() } else { format!("Of the extra {upstream}: ") };
    let seen: Vec<String> = notices.iter().map(|notice| notice.seen()).collect();
    let seen = format!("{of}{what} Seen: {}.", seen.join("; "));
    Finding::new(id, seen, *why, *action)
}
