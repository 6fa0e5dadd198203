//! `report`: the measured table of a tier. Readings in, a table out; nothing here fetches or prints.
//!
//! The readings are one page ([`totals`]: since engine start), two pages (what happened in between), or the history
//! in a Prometheus ([`history`]: medians over a window before and one after). In JSON the table is
//!
//! ```text
//! {"command": "report", "version": text, "source": text,
//!  "columns": [{"name": text, "from": text | null, "to": text | null}],
//!  "rows": [{"id": text, "of": text | null, "what": text, "unit": text, "values": [number | null]}],
//!  "notes": [text], "complete": true | false}
//! ```
//!
//! with one value for each column; `null` is unknown. `of` is the tier or the source of tokens that a row is
//! of, or the size as a multiple of the present one.
//! `unit` is `ratio`, `bytes`, `bytes_per_second`, `tokens`, `tokens_per_second` or `count`. `complete` is false where
//! a column has no data at all; the exit status is then 1.

pub mod history;
pub mod predicted;
mod render;
pub mod totals;
pub mod window;

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
        let between = if *self == PREDICTED { " " } else { ", " };
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
/// Tokens that a tier supplied.
pub const SERVED: Quantity = quantity("served_tokens", "prompt tokens served", Unit::Tokens);

/// What a tier of another size would have reloaded of the tokens asked of it.
pub const PREDICTED: Quantity = quantity("predicted_reload_ratio", "predicted share reloaded at", Unit::Ratio);

/// All quantities in the order of the table.
pub const QUANTITIES: [Quantity; 13] = [
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
    SERVED,
    PREDICTED,
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
    let mut ofs: Vec<Option<String>> = Vec::new();
    for cell in readings.iter().flat_map(|one| &one.cells).filter(|cell| cell.quantity == quantity) {
        if !ofs.contains(&cell.of) {
            ofs.push(cell.of.clone());
        }
    }
    // The least in a window is known of histories only, and predictions with --events only.
    if ofs.is_empty() && ![GPU_FREE_LOWEST, PREDICTED].contains(&quantity) {
        ofs.push(None);
    }
    ofs.sort();
    let value = |one: &Readings, of: &Option<String>| {
        one.cells.iter().find(|cell| cell.quantity == quantity && cell.of == *of).map(|cell| cell.value)
    };
    ofs.into_iter()
        .map(|of| Row {
            id: quantity.id,
            what: of.as_ref().map_or(quantity.what.to_owned(), |of| quantity.of(of)),
            unit: quantity.unit,
            values: readings.iter().map(|one| value(one, &of)).collect(),
            of,
        })
        .collect()
}

/// Said where a median lies in the first bucket of the engine's histogram.
pub fn too_fast(column: &str, bound: f64) -> String {
    format!(
        "Decode p50 ({column}): the median step is shorter than {} ms, the first bucket of the engine's histogram. \
         Within it a straight line is assumed, so the figure is a guess.",
        bound * 1e3
    )
}
