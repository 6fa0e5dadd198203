//! Event streams, and what they tell of an engine's RAM tier: exact counts beside estimates, each under its name.

use serde::Serialize;

use crate::events::ledger::{Told, unplaced};
use crate::events::sizing::{MULTIPLES, Prediction};
use crate::events::{self, Replay, Resident};
use crate::model::ratio;

/// How one endpoint is.
#[derive(Clone, Debug, Serialize)]
pub struct Stream {
    /// The endpoint, as it was given.
    pub endpoint: String,
    /// Connected and subscribed.
    pub up: bool,
    /// Why not, as a sentence.
    pub failure: Option<String>,
    /// Why the last replay did not give everything up to its moment, as a sentence; `null` where it did, or is under way.
    pub replay_failure: Option<String>,
    /// Number of the last batch.
    pub last_seq: Option<u64>,
    /// Batches taken in since the exporter started.
    pub batches_total: u64,
    /// Times that batches were lost for good.
    pub gaps_total: u64,
    /// From the making of the last live batch to its arrival.
    pub lag_seconds: Option<f64>,
    /// Why it belongs to no engine of the page, as a sentence.
    pub no_engine_because: Option<String>,
}

/// What the stream of an engine tells.
#[derive(Clone, Debug, Serialize)]
pub struct Events {
    /// Its endpoint.
    pub endpoint: String,
    /// Whether every chunk in the tier is known; `null` where nothing is said of it.
    pub resident_exact: Option<bool>,
    /// Bytes ready in the tier, at least.
    pub resident_bytes_at_least: Option<f64>,
    /// The same, at most.
    pub resident_bytes_at_most: Option<f64>,
    /// Chunks stored since the stream is followed.
    pub stored_chunks_total: Option<u64>,
    /// Chunks evicted.
    pub evicted_chunks_total: Option<u64>,
    /// Chunks stored again after their eviction.
    pub restored_chunks_total: Option<u64>,
    /// Chunks that a tier behind gave back; they are among the chunks stored.
    pub promoted_chunks_total: Option<f64>,
    /// The restored ones as a share of the chunks stored.
    pub stored_again_ratio: Option<f64>,
    /// Mean time from a chunk's store to its eviction.
    pub age_at_eviction_seconds_mean: Option<f64>,
    /// Share of the chunks that is followed one by one.
    pub sampling_ratio: Option<f64>,
    /// What other sizes would reload; empty while that is not known or not to be trusted.
    pub sizes: Vec<Size>,
    /// Why it is empty.
    pub sizes_unknown_because: Option<String>,
    /// Why nothing is told of sizes below the present one, where that is so.
    pub smaller_sizes_unknown_because: Option<&'static str>,
    /// Share of the tokens asked of the connector that was reloaded, over the window.
    pub measured_reload_ratio: Option<f64>,
    /// Share predicted for the present size, less that.
    pub prediction_error_ratio: Option<f64>,
    /// Length of the window.
    pub window_seconds: Option<f64>,
}

/// A tier of another size, or of the present one.
#[derive(Clone, Debug, Serialize)]
pub struct Size {
    /// Times the present size.
    pub multiple: f64,
    /// Share of the tokens asked that it would reload.
    pub predicted_reload_ratio: Option<f64>,
    /// Tokens an hour that it would reload more than the present one, at the window's pace.
    pub more_tokens_per_hour: Option<f64>,
}

impl Stream {
    /// Describes an endpoint.
    pub fn new(status: &events::Status, told: &[Told]) -> Stream {
        Stream {
            endpoint: status.endpoint.clone(),
            up: status.up,
            failure: status.failure.as_ref().map(|(_, why)| why.clone()),
            replay_failure: match &status.replay {
                Replay::Broken(why) => Some(why.clone()),
                Replay::None | Replay::Running | Replay::Whole => None,
            },
            last_seq: status.last_seq,
            batches_total: status.batches,
            gaps_total: status.gaps,
            lag_seconds: status.lag,
            no_engine_because: unplaced(status, told),
        }
    }
}

impl Events {
    /// Describes what is told of an engine; predictions may be off by `max_error`.
    pub(super) fn new(told: &Told, max_error: f64) -> Events {
        let (view, resident) = (told.status.view.as_ref(), told.resident.as_ref());
        let bytes = resident.map(Resident::bytes).unwrap_or_default();
        let prediction = told.prediction.as_ref().ok();
        let shown = shown(&told.prediction, max_error);
        Events {
            endpoint: told.status.endpoint.clone(),
            resident_exact: resident.map(|resident| resident.exact),
            resident_bytes_at_least: bytes.0,
            resident_bytes_at_most: bytes.1,
            stored_chunks_total: view.map(|view| view.stored),
            evicted_chunks_total: view.map(|view| view.evicted),
            restored_chunks_total: view.map(|view| view.restored),
            promoted_chunks_total: told.promoted,
            stored_again_ratio: view.and_then(|view| ratio(view.restored as f64, view.stored as f64)),
            age_at_eviction_seconds_mean: view.and_then(|view| ratio(view.ages.sum, view.ages.count)),
            sampling_ratio: view.map(|view| 1.0 / view.one_in as f64),
            sizes: shown.as_ref().map(|prediction| sizes(prediction)).unwrap_or_default(),
            smaller_sizes_unknown_because: told.no_smaller.filter(|_| shown.is_ok()),
            sizes_unknown_because: shown.err(),
            measured_reload_ratio: prediction.map(|prediction| prediction.measured),
            prediction_error_ratio: prediction.map(|prediction| prediction.error),
            window_seconds: prediction.map(|prediction| prediction.seconds),
        }
    }
}

/// The prediction, where it may be shown; else why not.
fn shown<'a>(prediction: &'a Result<Prediction, &'static str>, max_error: f64) -> Result<&'a Prediction, String> {
    match prediction {
        Ok(prediction) if prediction.holds(max_error) => Ok(prediction),
        Ok(prediction) => Err(format!(
            "for the present size {:.1} points {} than measured were predicted, and {:.1} are allowed (--events.max-error)",
            prediction.error.abs() * 100.0,
            if prediction.error > 0.0 { "more" } else { "fewer" },
            max_error * 100.0
        )),
        Err(why) => Err((*why).to_owned()),
    }
}

fn sizes(prediction: &Prediction) -> Vec<Size> {
    let each = MULTIPLES.iter().zip(prediction.shares).zip(prediction.worth());
    each.map(|(((multiple, _), share), worth)| Size {
        multiple: *multiple,
        predicted_reload_ratio: share,
        more_tokens_per_hour: worth,
    })
    .collect()
}
