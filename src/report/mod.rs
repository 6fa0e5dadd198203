//! `report`: the measured table of a tier. Readings in, a table out; nothing here fetches or prints.
//!
//! | room | what it is |
//! |---|---|
//! | [`activity`] | whether anything happened at all |
//! | [`totals`] | one page (since engine start), or two (what happened in between) |
//! | [`start`] | whether two pages are of one engine |
//! | [`told`] | what an exporter's page tells beside the engine's own families |
//! | [`history`] | medians and totals over windows of the history in a Prometheus |
//! | [`processes`] | whether the history of an address is that of one process |
//! | [`window`] | a window as people write it |
//! | `render` | the table as text and as Markdown |
//!
//! In JSON the table is
//!
//! ```text
//! {"command": "report", "version": text, "source": text,
//!  "columns": [{"name": text, "from": text | null, "to": text | null}],
//!  "rows": [{"id": text, "of": text | null, "what": text, "unit": text, "approximate": true | false,
//!            "values": [number | null]}],
//!  "notes": [text], "complete": true | false}
//! ```
//!
//! with one value for each column; `null` is unknown. `of` is the tier or the source of tokens that a row is
//! of, or the size as a multiple of the present one. `unit` is `ratio`, `bytes`, `bytes_per_second`, `tokens`,
//! `tokens_per_second`, `tokens_per_hour` or `count`. `approximate` is true where values are extrapolated, so that their
//! first digits only are known. `complete` is false where a column has no data at all; the exit status is then 1.

pub mod activity;
pub mod history;
pub mod processes;
mod render;
pub mod start;
pub mod told;
pub mod totals;
pub mod window;

use std::cmp::Ordering;

use serde::Serialize;

/// What a value is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// 0–1.
    Ratio,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// Tokens.
    Tokens,
    /// Tokens per second.
    TokensPerSecond,
    /// Tokens an hour: a rate × 3600.
    TokensPerHour,
    /// Events.
    Count,
}

/// A quantity of the report: its name for programs, its words for people, its unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quantity {
    /// Stable name.
    pub id: &'static str,
    /// Words.
    pub what: &'static str,
    /// Unit.
    pub unit: Unit,
}

impl Quantity {
    /// Its words with the tier, the source or the size.
    fn of(&self, of: &str) -> String {
        let between = if [PREDICTED, MORE].contains(self) { " " } else { ", " };
        format!("{}{between}{of}", self.what)
    }
}

const fn quantity(id: &'static str, what: &'static str, unit: Unit) -> Quantity {
    Quantity { id, what, unit }
}

/// Share of prompt tokens that prefill computed.
pub const PREFILL: Quantity = quantity("prefill_computed_ratio", "prompt tokens computed by prefill", Unit::Ratio);
/// Prompt tokens, whatever their source.
pub const PROMPT: Quantity = quantity("prompt_tokens", "prompt tokens", Unit::Tokens);
/// Median decode speed of a stream.
pub const DECODE: Quantity = quantity("decode_tokens_per_second_p50", "decode per stream, p50", Unit::TokensPerSecond);
/// Bytes out of a tier.
pub const RELOADED: Quantity = quantity("reloaded_bytes", "reloaded", Unit::Bytes);
/// Bytes into a tier.
pub const STORED: Quantity = quantity("stored_bytes", "stored", Unit::Bytes);
/// Copy speed out of a tier.
pub const RELOAD_SPEED: Quantity =
    quantity("reload_speed_bytes_per_second", "copy speed, reload", Unit::BytesPerSecond);
/// Copy speed into a tier.
pub const STORE_SPEED: Quantity = quantity("store_speed_bytes_per_second", "copy speed, store", Unit::BytesPerSecond);
/// GPU memory free, of the GPU with the least.
pub const GPU_FREE: Quantity = quantity("gpu_memory_free_bytes", "GPU memory free", Unit::Bytes);
/// The least GPU memory free in a window.
pub const GPU_FREE_LOWEST: Quantity = quantity("gpu_memory_free_lowest_bytes", "GPU memory free, lowest", Unit::Bytes);
/// Preemptions.
pub const PREEMPTIONS: Quantity = quantity("preemptions", "preemptions", Unit::Count);
/// How full a tier is at most.
pub const FILL: Quantity = quantity("tier_fill_upper_bound_ratio", "tier fill, at most", Unit::Ratio);
/// How full a tier is, where that is measured.
pub const FILL_MEASURED: Quantity = quantity("tier_fill_ratio", "tier fill, measured", Unit::Ratio);
/// Tokens that a tier supplied.
pub const SERVED: Quantity = quantity("served_tokens", "prompt tokens served", Unit::Tokens);
/// What a cache library found of the tokens that it looked up, whether or not the GPU held them too.
pub const FOUND: Quantity = quantity("lookup_hit_ratio", "found by LMCache, of tokens looked up", Unit::Ratio);
/// Tokens handed over to a cache library to be stored, whether or not they were written.
pub const CACHE_STORED: Quantity = quantity("lmcache_stored_tokens", "tokens handed to LMCache to store", Unit::Tokens);
/// Tokens asked back of a cache library that had found them.
pub const CACHE_REQUESTED: Quantity =
    quantity("lmcache_requested_tokens", "tokens asked back of LMCache", Unit::Tokens);
/// Tokens that a cache library gave back of these.
pub const CACHE_RETRIEVED: Quantity =
    quantity("lmcache_retrieved_tokens", "tokens given back by LMCache", Unit::Tokens);
/// Bytes that a cache library believes to be on its disk.
pub const CLAIMED: Quantity = quantity("lmcache_claimed_bytes", "on disk, as LMCache believes", Unit::Bytes);
/// What the tier reloaded of the tokens asked of it.
pub const MEASURED: Quantity = quantity("measured_reload_ratio", "measured share reloaded", Unit::Ratio);
/// What a tier of another size would have reloaded of the tokens asked of it.
pub const PREDICTED: Quantity = quantity("predicted_reload_ratio", "predicted share reloaded at", Unit::Ratio);
/// What a tier of another size would have reloaded more than the present one.
pub const MORE: Quantity = quantity("more_tokens_per_hour", "more tokens reloaded, at", Unit::TokensPerHour);

/// Quantities that are told of some pages and histories only: there is no row where no column knows them.
const SOMETIMES: [Quantity; 10] = [
    GPU_FREE_LOWEST,
    FILL_MEASURED,
    FOUND,
    CACHE_STORED,
    CACHE_REQUESTED,
    CACHE_RETRIEVED,
    CLAIMED,
    MEASURED,
    PREDICTED,
    MORE,
];

/// All quantities in the order of the table.
pub const QUANTITIES: [Quantity; 21] = [
    PREFILL,
    PROMPT,
    DECODE,
    RELOADED,
    STORED,
    RELOAD_SPEED,
    STORE_SPEED,
    GPU_FREE,
    GPU_FREE_LOWEST,
    PREEMPTIONS,
    FILL,
    FILL_MEASURED,
    SERVED,
    FOUND,
    CACHE_STORED,
    CACHE_REQUESTED,
    CACHE_RETRIEVED,
    CLAIMED,
    MEASURED,
    PREDICTED,
    MORE,
];

/// One value of one column.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// What it is a value of.
    pub quantity: Quantity,
    /// Tier or source of tokens.
    pub of: Option<String>,
    /// The value.
    pub value: f64,
    /// It is extrapolated: only its first digits are known.
    pub approximate: bool,
}

impl Cell {
    /// A value that is known as it is.
    pub fn new(quantity: Quantity, of: Option<&str>, value: f64) -> Cell {
        Cell { quantity, of: of.map(str::to_owned), value, approximate: false }
    }
}

/// A column before it stands beside others.
#[derive(Clone, Debug, PartialEq)]
pub struct Readings {
    /// Its heading.
    pub column: Column,
    /// What is known.
    pub cells: Vec<Cell>,
}

/// The heading of a column.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Column {
    /// `since engine start`, `before` …
    pub name: String,
    /// Its first moment, where it is a window of a history.
    pub from: Option<String>,
    /// Its last moment.
    pub to: Option<String>,
}

/// One row of the table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Stable name.
    pub id: &'static str,
    /// Tier or source.
    pub of: Option<String>,
    /// Words.
    pub what: String,
    /// Unit.
    pub unit: Unit,
    /// Values are extrapolated.
    pub approximate: bool,
    /// One for each column.
    pub values: Vec<Option<f64>>,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// Always `report`.
    pub command: &'static str,
    /// Of this program.
    pub version: &'static str,
    /// Where the readings come from.
    pub source: String,
    /// Headings.
    pub columns: Vec<Column>,
    /// Rows.
    pub rows: Vec<Row>,
    /// What to know when reading it.
    pub notes: Vec<String>,
    /// Every column has data.
    pub complete: bool,
}

impl Table {
    /// Puts columns side by side. A row that no column knows is left out only where it is of a tier or a source.
    pub fn of(source: String, readings: &[Readings], notes: Vec<String>, complete: bool) -> Table {
        let rows = QUANTITIES.iter().flat_map(|quantity| rows(*quantity, readings)).collect();
        let columns = readings.iter().map(|one| one.column.clone()).collect();
        Table { command: "report", version: env!("CARGO_PKG_VERSION"), source, columns, rows, notes, complete }
    }
}

fn rows(quantity: Quantity, readings: &[Readings]) -> Vec<Row> {
    let cells = || readings.iter().flat_map(|one| &one.cells).filter(|cell| cell.quantity == quantity);
    let mut ofs: Vec<Option<String>> = cells().map(|cell| cell.of.clone()).collect();
    ofs.sort_by(|one, other| by_number(one.as_deref(), other.as_deref()));
    ofs.dedup();
    // A tier whose fill is measured needs no row that says its bound is unknown.
    let told_otherwise =
        || quantity == FILL && readings.iter().flat_map(|one| &one.cells).any(|c| c.quantity == FILL_MEASURED);
    if ofs.is_empty() && !SOMETIMES.contains(&quantity) && !told_otherwise() {
        ofs.push(None);
    }
    let row = |of: Option<String>| Row {
        id: quantity.id,
        what: of.as_ref().map_or(quantity.what.to_owned(), |of| quantity.of(of)),
        unit: quantity.unit,
        approximate: cells().any(|cell| cell.of == of && cell.approximate),
        values: readings.iter().map(|one| one.value(quantity, of.as_deref())).collect(),
        of,
    };
    ofs.into_iter().map(row).collect()
}

impl Readings {
    /// The value of a quantity; `None` where it is unknown.
    fn value(&self, quantity: Quantity, of: Option<&str>) -> Option<f64> {
        let cell = self.cells.iter().find(|cell| cell.quantity == quantity && cell.of.as_deref() == of);
        cell.map(|cell| cell.value)
    }
}

/// `ram` before `1:fs` before `10:obj`, and `0.5×` before `1×` before `1.5×`: by the number at the start, then by text.
fn by_number(one: Option<&str>, other: Option<&str>) -> Ordering {
    let key = |of: Option<&str>| {
        let end = of.and_then(|of| of.find(|c: char| !c.is_ascii_digit() && c != '.').or(Some(of.len())));
        of.zip(end).and_then(|(of, end)| of[..end].parse::<f64>().ok()).unwrap_or(-1.0)
    };
    key(one).total_cmp(&key(other)).then_with(|| one.cmp(&other))
}

/// Said where a median lies in the first bucket of the engine's histogram.
pub fn too_fast(column: &str, bound: f64) -> String {
    format!(
        "Decode p50 ({column}): the median step is shorter than {} ms, the first bucket of the engine's histogram. \
         Within it a straight line is assumed, so the figure is a guess.",
        bound * 1e3
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_tiers_stand_in_the_order_of_their_numbers() {
        let mut sizes = ["1.5×", "10×", "0.5×", "2×", "1×"].map(Some);
        sizes.sort_by(|one, other| by_number(*one, *other));
        assert_eq!(sizes, ["0.5×", "1×", "1.5×", "2×", "10×"].map(Some));
        let mut tiers = ["10:obj", "ram", "2:fs", "lmcache_cpu", "1:fs", "é"].map(Some);
        tiers.sort_by(|one, other| by_number(*one, *other));
        assert_eq!(tiers, ["lmcache_cpu", "ram", "é", "1:fs", "2:fs", "10:obj"].map(Some));
    }
}
