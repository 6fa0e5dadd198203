//! What `/debug` says of the event streams. Pure.

use std::sync::Arc;

use super::fold::View;
use super::ledger::{Limits, Told, unplaced};
use super::sizing::{MULTIPLES, Prediction};
use super::{Replay, Reset, Resident, Shown, Status};
use crate::redact::Lines;

/// One paragraph an endpoint, and one an engine that has a stream.
pub fn explain(statuses: &[Arc<Status>], told: &[Told], limits: Limits) -> String {
    let mut text = Lines::default();
    for status in statuses {
        endpoint(&mut text, status);
        if let Some(why) = unplaced(status, told) {
            line(&mut text, 1, &format!("engine    none: {why}"));
        }
    }
    for one in told {
        text.gap();
        line(&mut text, 0, &format!("events of engine {}", one.engine));
        line(&mut text, 1, &format!("endpoint  {}", one.status.endpoint));
        match one.resident {
            Some(found) => resident(&mut text, &found),
            None => line(&mut text, 1, &format!("resident  not told: {}", why_untold(&one.status))),
        }
        match &one.prediction {
            Ok(prediction) => predicted(&mut text, prediction, one.no_smaller, limits),
            Err(why) => line(&mut text, 1, &format!("other sizes  unknown: {why}")),
        }
    }
    text.text()
}

fn line(text: &mut Lines, depth: usize, what: &str) {
    text.line(format_args!("{}{what}", "  ".repeat(depth)));
}

/// Why nothing is told of what is in the tier of an engine whose stream this is.
fn why_untold(status: &Status) -> &'static str {
    match &status.view {
        _ if !status.current => "the stream is not up to date",
        Some(view) if view.gauge.several_groups => {
            "its events name several KV groups, whose chunks differ in bytes, and the page has no count of slots"
        }
        _ => {
            "the page does not show vLLM's own OffloadingConnector, which alone announces all that it stores and evicts, or shows              several KV groups and no count of slots"
        }
    }
}

fn endpoint(text: &mut Lines, status: &Status) {
    text.gap();
    line(text, 0, &format!("events {}", status.endpoint));
    let state = match (&status.failure, status.up, status.current) {
        (Some((reason, why)), ..) => format!("down ({reason}): {why}"),
        (None, false, _) => "not connected yet".to_owned(),
        (None, true, false) => {
            "up; neither a batch nor a replay has shown yet that it is the engine of before, so nothing is told of its tier"
                .to_owned()
        }
        (None, true, true) => "up".to_owned(),
    };
    line(text, 1, &format!("state     {state}"));
    let last = status.last_seq.map_or_else(
        || "no batch yet: does the engine publish, and does its topic begin with --events.topic?".to_owned(),
        |seq| format!("{seq}"),
    );
    line(text, 1, &format!("last seq  {last}"));
    line(text, 1, &format!("batches   {} ({} replayed), {} gaps", status.batches, status.replayed, status.gaps));
    if let Some(replay) = match &status.replay {
        Replay::None => None,
        Replay::Running => Some("is being read; the stream waits for its end".to_owned()),
        Replay::Whole => Some("gave everything up to its moment".to_owned()),
        Replay::Broken(why) => Some(format!("failed: {why}")),
    } {
        line(text, 1, &format!("replay    {replay}"));
    }
    for (reason, count) in &status.errors {
        line(text, 1, &format!("failures  {reason}: {count}"));
    }
    if let Some(view) = &status.view {
        fold(text, view);
    }
}

fn fold(text: &mut Lines, view: &View) {
    let bounds = view.bounds;
    line(text, 1, &format!("rank      {}", view.rank));
    line(
        text,
        1,
        &format!("chunks    {} surely in the tier, {} at most of those announced", bounds.sure, bounds.possible),
    );
    if bounds.strangers {
        line(text, 2, "there may be others from before the stream was followed, or from a gap");
    }
    if bounds.full {
        line(text, 2, "the tier is full: it evicts");
    }
    line(
        text,
        1,
        &format!("since     {} stored, {} evicted, {} of them stored again", view.stored, view.evicted, view.restored),
    );
    for ((_, kind), count) in Reset::NAMED.iter().zip(view.resets).filter(|(_, count)| *count > 0) {
        line(text, 2, &format!("resets judged {kind}: {count}"));
    }
    if view.one_in > 1 {
        line(text, 2, &format!("one chunk in {} is followed one by one, for want of --events.max-bytes", view.one_in));
    }
}

fn resident(text: &mut Lines, resident: &Resident) {
    let number = |value: Option<f64>| value.map_or_else(|| "unknown".to_owned(), |value| value.to_string());
    let how = match (resident.exact, resident.doubted) {
        (true, _) => "exact",
        (false, true) => "bounds: the page counts a reset that the stream has not announced",
        (false, false) => "bounds",
    };
    let (low, high) = resident.bytes();
    line(text, 1, &format!("resident  {} to {} bytes ({how})", number(low), number(high)));
    let estimate = if resident.chunk.is_some_and(|chunk| !chunk.exact) { " (an estimate)" } else { "" };
    line(text, 1, &format!("chunk     {} bytes{estimate}", number(resident.chunk.map(|chunk| chunk.bytes))));
    line(text, 1, &format!("slots     {}", number(resident.slots)));
    if let Some(shown) = resident.shown {
        let how = match shown {
            Shown::AtLeast(_) => "were in it at once",
            Shown::Evicting(_) => "are in it when it evicts",
        };
        line(text, 2, &format!("but {} chunks {how}: the tier is of another size than was given", shown.chunks()));
    }
}

fn predicted(text: &mut Lines, prediction: &Prediction, no_smaller: Option<&str>, limits: Limits) {
    let Prediction { measured, error, asked, seconds, .. } = prediction;
    let shown = if prediction.holds(limits.max_error) { "shown" } else { "not shown: above --events.max-error" };
    line(text, 1, &format!("other sizes  {asked} tokens asked in {seconds:.0} s, {measured:.4} of them reloaded"));
    line(text, 2, &format!("predicted less measured at the present size: {error:+.4} ({shown})"));
    if let Some(why) = no_smaller {
        line(text, 2, &format!("smaller sizes are not told: {why}"));
    }
    let share = |share: Option<f64>| share.map_or_else(|| "unknown".to_owned(), |share| format!("{share:.4}"));
    for (((_, size), replayed), returned) in MULTIPLES.iter().zip(prediction.shares).zip(prediction.by_returns) {
        line(
            text,
            2,
            &format!(
                "{size} times: {} by replay, {} by what came back after eviction",
                share(replayed),
                share(returned)
            ),
        );
    }
}
