//! Every family that this program can write: for the README's table, the dashboards' lint and the tests.

use crate::family::Desc;
use crate::{correct, derive, events, host, log, notice, own, web};

/// Name, kind and HELP of each, in the order in which a scrape has them.
pub fn catalogue() -> Vec<Desc> {
    let derived = derive::DERIVED.iter().map(|row| row.desc);
    let events = events::families::DESCS;
    derived
        .chain([correct::ACTIVE])
        .chain(events)
        .chain(host::descs())
        .chain(own::DESCS)
        .chain([notice::ACTIVE])
        .chain([log::DROPPED_LINES])
        .chain(web::DESCS)
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::family::Kind;

    #[test]
    fn names_are_ours_and_follow_the_conventions_of_prometheus() {
        let all = catalogue();
        let names: HashSet<_> = all.iter().map(|desc| desc.name).collect();
        assert_eq!(names.len(), all.len(), "a name stands twice");
        for desc in all {
            let word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
            assert!(desc.name.starts_with("kvtier_") && desc.name.bytes().all(word), "{}", desc.name);
            assert_eq!(desc.kind == Kind::Counter, desc.name.ends_with("_total"), "{}", desc.name);
            assert!(desc.help.ends_with('.') && desc.help.len() > 20, "{}: {}", desc.name, desc.help);
        }
    }
}
