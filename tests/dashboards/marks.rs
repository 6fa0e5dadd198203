//! The marks of resets, asked of a real Prometheus: what emptied the GPU pool alone is told apart from what emptied the
//! RAM tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::board::{self, Board, list, substitute, text};
use crate::program::upstream::{Upstream, ok};
use crate::support::peers::Prometheus;

const KINDS: [&str; 4] = ["gpu", "tier", "silent", "unknown"];

/// An exporter's page with one reset of the kinds before `reset`, and none of the others.
fn page(reset: usize) -> String {
    let up = "kvtier_events_up{endpoint=\"tcp://e:1\"} 1\n".to_owned();
    let resets = KINDS.iter().enumerate().map(|(at, kind)| {
        format!("kvtier_events_resets_total{{endpoint=\"tcp://e:1\",kind=\"{kind}\"}} {}\n", u8::from(at < reset))
    });
    resets.fold(up, |page, line| page + &line)
}

/// Names and colours of the marks that a dashboard shows.
fn marks(board: &Board, prometheus: &Prometheus) -> Vec<(String, String)> {
    let shown = list(&board.json["annotations"]["list"]).filter(|one| {
        let variables = [("instance", ".+"), ("job", ".+"), ("model_name", ".*"), ("engine", ".*")];
        let query = substitute(text(one, "expr"), &variables);
        one["builtIn"] != 1 && prometheus.instant(&query).is_some_and(|found| !found.is_empty())
    });
    shown.map(|one| (text(one, "name").to_owned(), text(one, "iconColor").to_owned())).collect()
}

#[test]
fn a_reset_of_the_gpu_pool_has_another_mark_than_one_of_the_tier() {
    let reset = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&reset);
    let upstream = Upstream::start(move |_| vec![ok(page(now.load(Relaxed)))]);
    let prometheus = Prometheus::running(&json!({
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
        "scrape_configs": [{"job_name": "kvtier", "static_configs": [{"targets": [upstream.address.to_string()]}]}],
    }));
    let boards = board::all();
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let scraped = |value: usize| {
        let query = format!("sum(kvtier_events_resets_total) == {value} and count_over_time(kvtier_events_up[1m]) > 1");
        prometheus.instant(&query.replace(" and ", " and on () ")).is_some_and(|found| !found.is_empty())
    };
    wait("two scrapes", &|| scraped(0));
    for board in &boards {
        assert_eq!(marks(board, &prometheus), [], "{}: nothing was emptied yet", board.name);
    }
    let mut seen = vec!["GPU pool emptied"];
    for (reset_by_now, also) in [(1, None), (2, Some("Tier emptied")), (3, None), (4, Some("Emptied, unknown what"))] {
        reset.store(reset_by_now, Relaxed);
        wait("the reset is scraped", &|| scraped(reset_by_now));
        seen.extend(also);
        for board in &boards {
            let mut shown = marks(board, &prometheus);
            shown.sort();
            let names: Vec<&str> = shown.iter().map(|(name, _)| name.as_str()).collect();
            let mut expected = seen.clone();
            expected.sort_unstable();
            assert_eq!(names, expected, "{}", board.name);
            let mut colours: Vec<&str> = shown.iter().map(|(_, colour)| colour.as_str()).collect();
            colours.sort_unstable();
            colours.dedup();
            assert_eq!(colours.len(), shown.len(), "{}: {shown:?}", board.name);
        }
    }
}
