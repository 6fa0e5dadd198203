//! What an exporter's page tells beside the engine's own families: what tiers of other sizes would reload, or that this is
//! withheld, and which fills are measured. Pure.
//!
//! Only an exporter with `--events` knows it, so it is there where the page is an exporter's. Predictions are no count
//! since the engine's start but an estimate over the exporter's window.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

use super::{Cell, FILL, FILL_MEASURED, MEASURED, MORE, PREDICTED, Quantity};
use crate::events::sizing::MULTIPLES;
use crate::exposition::{Exposition, Names, Sample, named_lines};
use crate::model::ratio;

/// The families that tell it, without the prefix of our families: the scanner takes those for an exporter's in front
/// of the engine, and leaves them out.
const PREFIX: &[u8] = b"kvtier_";
const SHARE: &str = "tier_predicted_reload_ratio";
const ERROR: &str = "tier_prediction_error_ratio";
const UP: &str = "events_up";
const INFO: &str = "tier_info";
const RATIO: &str = "tier_fill_upper_bound_ratio";
const SIZE: &str = "tier_size_bytes";

static NAMES: LazyLock<Names> = LazyLock::new(|| Names::new([SHARE, ERROR, UP, INFO, RATIO, SIZE]));

const ASKED: &str = "vllm:external_prefix_cache_queries_total";

static ENGINES: LazyLock<Names> = LazyLock::new(|| Names::new([ASKED]));

/// What the page tells.
#[derive(Debug, Default)]
pub struct Told {
    /// Predicted shares and the measured one beside them: means over the engines.
    pub predicted: Vec<Cell>,
    /// How full each tier is, where the page says it.
    fills: Vec<Cell>,
    /// Why predictions are missing, as far as the page tells.
    pub withheld: Option<Withheld>,
    /// Sizes that are not predicted although others are.
    missing: Vec<&'static str>,
    /// Sizes that fewer engines have a prediction for than others.
    partial: Vec<String>,
    /// What each engine's connector was asked for.
    asked: BTreeMap<Series, Asked>,
}

/// What the connector of an engine was asked for, and what a tier of each size would reload of it.
#[derive(Debug, Default)]
struct Asked {
    /// Tokens since engine start.
    tokens: f64,
    /// Predicted shares by size.
    shares: BTreeMap<String, f64>,
}

/// Labels that tell what a sample is of.
type Series = BTreeMap<String, String>;

/// Why nothing is predicted although the engine's events are followed.
#[derive(Clone, Debug, PartialEq)]
pub enum Withheld {
    /// At the present size the prediction is this far above what was measured.
    Error(f64),
    /// No endpoint of events is connected.
    Down,
    /// The page does not say; [`reasons`] of the exporter's status may.
    Unsaid,
}

/// Our families' lines, without their prefix.
fn lines(page: &[u8]) -> Vec<u8> {
    let ours = |name: &[u8]| {
        let name = name.strip_prefix(PREFIX).and_then(|name| std::str::from_utf8(name).ok());
        name.is_some_and(|name| NAMES.id(name).is_some())
    };
    let spans = named_lines(page).filter(|(name, _)| name.is_some_and(ours)).map(|(_, span)| span);
    spans.filter_map(|span| span.of(page).strip_prefix(PREFIX)).flatten().copied().collect()
}

/// Reads a page in text 0.0.4.
pub fn read(whole: &[u8]) -> Told {
    let lines = lines(whole);
    let page = Exposition::scan(&lines, &NAMES);
    let predicted = predicted(&page);
    let of = |size: &str| predicted.iter().any(|cell| cell.of.as_deref() == Some(&times(size)));
    let missing = MULTIPLES.iter().map(|(_, size)| *size).filter(|size| !predicted.is_empty() && !of(size));
    Told {
        missing: missing.collect(),
        partial: partial(&page),
        withheld: if predicted.is_empty() { withheld(&page) } else { None },
        fills: fills(&page),
        asked: asked(whole, &page),
        predicted,
    }
}

/// The share for each size of each engine, beside the tokens that its connector was asked for.
fn asked(whole: &[u8], page: &Exposition<'_>) -> BTreeMap<Series, Asked> {
    let engines = Exposition::scan(whole, &ENGINES);
    let each = |sample: &Sample<'_>| (series(sample), Asked { tokens: sample.value, ..Asked::default() });
    let mut asked: BTreeMap<_, _> = finite(&engines, ASKED).map(each).collect();
    for sample in finite(page, SHARE) {
        let mut engine = series(sample);
        engine.remove("tier");
        if let Some(asked) = asked.get_mut(&engine) {
            asked.shares.insert(sample.labels.value("size").into_owned(), sample.value);
        }
    }
    asked
}

fn finite<'p, 'a>(page: &'p Exposition<'a>, name: &str) -> impl Iterator<Item = &'p Sample<'a>> {
    page.samples(name).iter().filter(|sample| sample.value.is_finite())
}

/// Labels that tell the series of one engine apart, or add to it.
const WITHIN: [&str; 6] = ["size", "medium", "connector", "size_source", "bound_basis", "le"];

/// What a sample is of: all labels but those within.
fn series(sample: &Sample<'_>) -> Series {
    let labels = sample.labels.iter().filter(|(name, _)| !WITHIN.contains(name));
    labels.map(|(name, value)| (name.to_owned(), value.to_string())).collect()
}

/// The share for each size, and the measured one: what was predicted for the present size, less the error.
fn predicted(page: &Exposition<'_>) -> Vec<Cell> {
    let mut sizes: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let errors: BTreeMap<_, _> = finite(page, ERROR).map(|sample| (series(sample), sample.value)).collect();
    let mut measured = Vec::new();
    for sample in finite(page, SHARE) {
        let size = sample.labels.value("size").into_owned();
        if size == "1" {
            measured.extend(errors.get(&series(sample)).map(|error| sample.value - error));
        }
        sizes.entry(size).or_default().push(sample.value);
    }
    let mean = |values: &[f64]| ratio(values.iter().sum(), values.len() as f64);
    let measured = mean(&measured).map(|share| Cell::new(MEASURED, None, share));
    let shares =
        sizes.iter().filter_map(|(size, shares)| Some(Cell::new(PREDICTED, Some(&times(size)), mean(shares)?)));
    shares.chain(measured).collect()
}

/// Sizes of which the mean is not over all engines that are told of.
fn partial(page: &Exposition<'_>) -> Vec<String> {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for sample in finite(page, SHARE) {
        *sizes.entry(sample.labels.value("size").into_owned()).or_default() += 1;
    }
    let most = sizes.values().max().copied().unwrap_or(0);
    sizes.into_iter().filter(|(_, engines)| *engines < most).map(|(size, _)| times(&size)).collect()
}

fn withheld(page: &Exposition<'_>) -> Option<Withheld> {
    let worst = finite(page, ERROR).map(|sample| sample.value).max_by(|a, b| a.abs().total_cmp(&b.abs()));
    let mut endpoints = finite(page, UP).map(|sample| sample.value > 0.0).peekable();
    match worst {
        Some(error) => Some(Withheld::Error(error)),
        None if endpoints.peek().is_none() => None,
        None if endpoints.any(|up| up) => Some(Withheld::Unsaid),
        None => Some(Withheld::Down),
    }
}

/// How full the tiers of each name are together, each engine's weighed by its size where that is told. It is measured
/// where every one of them is.
fn fills(page: &Exposition<'_>) -> Vec<Cell> {
    let sizes: BTreeMap<_, _> = finite(page, SIZE).map(|sample| (series(sample), sample.value)).collect();
    let infos: BTreeMap<_, _> =
        page.samples(INFO).iter().map(|sample| (series(sample), sample.labels.value("bound_basis"))).collect();
    let mut tiers: BTreeMap<String, (f64, f64, bool)> = BTreeMap::new();
    for sample in finite(page, RATIO) {
        let series = series(sample);
        let size = sizes.get(&series).copied().unwrap_or(1.0);
        let measured = infos.get(&series).is_some_and(|basis| basis == "measured");
        let tier = tiers.entry(sample.labels.value("tier").into_owned()).or_insert((0.0, 0.0, true));
        *tier = (tier.0 + sample.value * size, tier.1 + size, tier.2 && measured);
    }
    let cell = |(tier, (held, size, measured)): (&String, &(f64, f64, bool))| {
        let quantity = if *measured { FILL_MEASURED } else { FILL };
        Some(Cell::new(quantity, Some(tier), ratio(*held, *size)?))
    };
    tiers.iter().filter_map(cell).collect()
}

impl Told {
    /// Puts what the page tells in the place of what was worked out from the engine's own families: an exporter that
    /// follows events knows of a fill what those do not.
    pub fn add_to(&self, cells: &mut Vec<Cell>) {
        let is_fill = |quantity: Quantity| [FILL, FILL_MEASURED].contains(&quantity);
        let retold = |cell: &Cell| self.fills.iter().any(|fill| is_fill(cell.quantity) && fill.of == cell.of);
        cells.retain(|cell| !retold(cell));
        cells.extend(self.fills.iter().chain(&self.predicted).cloned());
    }

    /// Tokens an hour that each other size would reload more than the present one: what was asked in the `seconds`
    /// since the `earlier` page, as a rate × 3600, times the difference of the shares.
    pub fn worth(&self, earlier: &Told, seconds: f64) -> Vec<Cell> {
        let mut sizes: BTreeMap<&str, f64> = BTreeMap::new();
        for (engine, Asked { tokens, shares }) in &self.asked {
            let before = earlier.asked.get(engine).map_or(0.0, |asked| asked.tokens);
            let (Some(pace), Some(present)) = (ratio(tokens - before, seconds), shares.get("1")) else { continue };
            for (size, share) in shares.iter().filter(|(size, _)| *size != "1") {
                *sizes.entry(size).or_default() += (share - present) * pace * 3600.0;
            }
        }
        sizes.into_iter().map(|(size, more)| Cell::new(MORE, Some(&times(size)), more)).collect()
    }

    /// What to know of the cells of a table with it; `reasons` are the exporter's own, where it was asked for them.
    pub fn notes(&self, cells: &[Cell], reasons: &[String]) -> Vec<String> {
        let missing: Vec<String> = self.missing.iter().map(|size| times(size)).collect();
        let missing = not_predicted(&missing, "");
        let withheld = self.withheld.as_ref().map(|why| why.sentence(reasons));
        let partial = predicted_of_some(&self.partial, "");
        note(cells).into_iter().chain(partial).chain(missing).chain(withheld).collect()
    }
}

impl Withheld {
    fn sentence(&self, reasons: &[String]) -> String {
        let why = match self {
            Withheld::Error(error) => beyond(*error),
            _ if !reasons.is_empty() => reasons.join("; "),
            Withheld::Down => "no endpoint of its events is connected (kvtier_events_up 0)".to_owned(),
            Withheld::Unsaid => "the page does not say why; the exporter's status page does".to_owned(),
        };
        format!("What other sizes would reload is not told: {why}.")
    }
}

/// What is said of sizes that are not predicted although others are. `place` is where, such as ` (before)`.
fn not_predicted(sizes: &[String], place: &str) -> Option<String> {
    let sizes = Some(sizes.join(", ")).filter(|sizes| !sizes.is_empty())?;
    Some(format!(
        "Not predicted{place}: {sizes}. Either the exporter cannot look back far enough for it, or a tier behind gives back \
         what a smaller one would have evicted."
    ))
}

/// What is said of sizes that fewer engines have a prediction for than others.
fn predicted_of_some(sizes: &[String], place: &str) -> Option<String> {
    let sizes = Some(sizes.join(", ")).filter(|sizes| !sizes.is_empty())?;
    Some(format!("Not every engine has a prediction at {sizes}{place}: compare their means with no others."))
}

/// What to know of predictions that so many engines have for each size, in a column of this name; nothing where none has any.
pub fn gaps(engines: &BTreeMap<String, f64>, column: &str) -> Vec<String> {
    let most = engines.values().copied().fold(0.0, f64::max);
    let place = format!(" ({column})");
    let partial: Vec<String> =
        engines.iter().filter(|(_, count)| **count < most).map(|(size, _)| times(size)).collect();
    let missing =
        MULTIPLES.iter().map(|(_, size)| *size).filter(|size| !engines.is_empty() && !engines.contains_key(*size));
    let missing: Vec<String> = missing.map(times).collect();
    predicted_of_some(&partial, &place).into_iter().chain(not_predicted(&missing, &place)).collect()
}

/// Why a prediction with this error is not shown.
pub fn beyond(error: f64) -> String {
    format!(
        "for the present size {:.1} points {} than measured were predicted, which is more than the exporter's \
         --events.max-error allows",
        error.abs() * 100.0,
        if error > 0.0 { "more" } else { "fewer" },
    )
}

/// Why an exporter withholds predictions, from its `/api/status`; nothing where that is something else.
pub fn reasons(status: &[u8]) -> Vec<String> {
    let status: Value = serde_json::from_slice(status).unwrap_or_default();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let engines = list(&status["engines"]);
    let of = |engine: &Value| {
        let why = engine["events"]["sizes_unknown_because"].as_str()?;
        let alone = engines.len() == 1;
        Some(if alone { why.to_owned() } else { format!("engine {}: {why}", engine["engine"]) })
    };
    let failure = |stream: &Value| Some(format!("{}: {}", stream["endpoint"].as_str()?, stream["failure"].as_str()?));
    let streams = list(&status["event_streams"]);
    let followed = engines.iter().any(|engine| !engine["events"].is_null());
    let nobodys = (!engines.is_empty() && !streams.is_empty() && !followed)
        .then(|| "the stream of events is not known to be of any engine on the page".to_owned());
    let mut reasons: Vec<String> = engines.iter().filter_map(of).chain(streams.iter().filter_map(failure)).collect();
    if reasons.is_empty() {
        reasons.extend(nobodys);
    }
    reasons
}

/// A size by its label, for people.
pub fn times(size: &str) -> String {
    format!("{size}×")
}

/// What to know where predictions are told.
pub fn note(cells: &[Cell]) -> Option<String> {
    let has = |quantity| cells.iter().any(|cell| cell.quantity == quantity);
    has(PREDICTED).then(|| {
        let worth = if has(MORE) {
            " Tokens an hour are its difference to 1×, times the rate at which the connector was asked, × 3600."
        } else {
            ""
        };
        format!(
            "Predicted shares are an estimate for a tier that evicts by last use, from KV events over the exporter's \
             --events.window; 1× is the present size.{worth}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(page: &str) -> Vec<(String, f64)> {
        let mut cells = vec![Cell::new(FILL, Some("ram"), 1.0), Cell::new(FILL, Some("1:fs"), 0.5)];
        read(page.as_bytes()).add_to(&mut cells);
        cells.into_iter().map(|c| (format!("{} {}", c.quantity.id, c.of.unwrap_or_default()), c.value)).collect()
    }

    #[test]
    fn a_fill_is_measured_where_the_fill_of_every_engine_is() {
        let tier = |engine: u8, ratio: f64, size: f64, basis: &str| {
            format!(
                "kvtier_tier_info{{engine=\"{engine}\",tier=\"ram\",bound_basis=\"{basis}\",medium=\"ram\"}} 1\n\
                 kvtier_tier_fill_upper_bound_ratio{{engine=\"{engine}\",tier=\"ram\"}} {ratio}\n\
                 kvtier_tier_size_bytes{{engine=\"{engine}\",tier=\"ram\"}} {size}\n"
            )
        };
        // (0.25 × 100 + 0.75 × 300) ÷ 400 = 0.625; what is not told by the page stays.
        let measured = tier(0, 0.25, 100.0, "measured") + &tier(1, 0.75, 300.0, "measured");
        let disk = ("tier_fill_upper_bound_ratio 1:fs".to_owned(), 0.5);
        assert_eq!(cells(&measured), [disk.clone(), ("tier_fill_ratio ram".to_owned(), 0.625)]);
        let one = tier(0, 0.25, 100.0, "measured") + &tier(1, 0.75, 300.0, "stored+promoted");
        assert_eq!(cells(&one), [disk, ("tier_fill_upper_bound_ratio ram".to_owned(), 0.625)]);
    }

    #[test]
    fn tokens_an_hour_are_a_rate_times_3600() {
        let page = |asked: [f64; 2]| {
            let engine = |at: usize, shares: [f64; 3]| {
                let id = format!("engine=\"{at}\",model_name=\"m\"");
                let share = |(size, share): (&str, f64)| {
                    format!("kvtier_tier_predicted_reload_ratio{{{id},tier=\"ram\",size=\"{size}\"}} {share}\n")
                };
                let shares: String = ["0.5", "1", "2"].into_iter().zip(shares).map(share).collect();
                format!("vllm:external_prefix_cache_queries_total{{{id}}} {}\n{shares}", asked[at])
            };
            engine(0, [0.25, 0.5, 0.75]) + &engine(1, [0.5, 0.5, 0.625])
        };
        let told = |asked| read(page(asked).as_bytes());
        let worth = told([1600.0, 480.0]).worth(&told([1000.0, 0.0]), 60.0);
        // 10 and 8 tokens a second: 10 × 3600 × −0.25; 10 × 3600 × 0.25 + 8 × 3600 × 0.125.
        let expected = [("0.5×", -9000.0), ("2×", 12_600.0)];
        assert_eq!(worth, expected.map(|(size, more)| Cell::new(MORE, Some(size), more)));
    }

    #[test]
    fn an_exporter_that_withholds_predictions_says_why() {
        let said = |page: &str, reasons: &[String]| read(page.as_bytes()).notes(&[], reasons).join(" ");
        let up = |up: u8| format!("kvtier_events_up{{endpoint=\"tcp://127.0.0.1:5557\"}} {up}\n");
        assert_eq!(said("up 1\n", &[]), "");
        let error = |error: f64| format!("kvtier_tier_prediction_error_ratio{{engine=\"0\",tier=\"ram\"}} {error}\n");
        assert!(said(&(up(1) + &error(-0.125)), &[]).contains("12.5 points fewer than measured"));
        assert!(said(&(up(1) + &error(0.04) + &error(0.05)), &[]).contains("5.0 points more than measured"));
        assert!(said(&up(0), &[]).contains("kvtier_events_up 0"));
        assert!(said(&up(1), &[]).contains("status page"));
        assert!(said(&up(1), &["too early".to_owned()]).ends_with("is not told: too early."));
    }

    #[test]
    fn reasons_are_read_from_a_status_and_from_nothing_else() {
        let engine = |name: &str, events: &str| format!(r#"{{"engine":"{name}","events":{events}}}"#);
        let status = |engines: &str, streams: &str| format!(r#"{{"engines":[{engines}],"event_streams":[{streams}]}}"#);
        let why = r#"{"sizes_unknown_because":"too early"}"#;
        assert_eq!(reasons(status(&engine("0", why), "").as_bytes()), ["too early"]);
        let two = engine("0", why) + "," + &engine("1", r#"{"sizes_unknown_because":null}"#);
        assert_eq!(reasons(status(&two, "").as_bytes()), ["engine \"0\": too early"]);
        let stream = r#"{"endpoint":"tcp://e:1","failure":"nobody listens"}"#;
        assert_eq!(reasons(status(&engine("0", "null"), stream).as_bytes()), ["tcp://e:1: nobody listens"]);
        let silent = r#"{"endpoint":"tcp://e:1","failure":null}"#;
        assert!(reasons(status(&engine("0", "null"), silent).as_bytes())[0].contains("any engine on the page"));
        assert_eq!(reasons(b"vllm:prompt_tokens_total 1\n"), [""; 0]);
        assert_eq!(reasons(b"[1]"), [""; 0]);
    }
}
