//! The table as text and as Markdown.

use super::{Row, Table, Unit};
use crate::advise::words::{count, percent, short_size, speed, wrapped};
use crate::redact;

/// What stands for a value that is not known.
const UNKNOWN: &str = "–";

impl Table {
    /// For a terminal.
    pub fn text(&self) -> String {
        let lines = self.lines();
        let widths: Vec<usize> = (0..lines[0].len())
            .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0))
            .collect();
        let mut out = format!("kvtier-exporter report of {}\n\n", redact::line(&self.source));
        for line in lines {
            let mut text = format!("{:<width$}", line[0], width = widths[0]);
            for (cell, width) in line[1..].iter().zip(&widths[1..]) {
                text.push_str(&format!("  {cell:>width$}"));
            }
            out.push_str(text.trim_end());
            out.push('\n');
        }
        for note in &self.notes {
            out.push_str(&format!("\n{}\n", wrapped(note, 0)));
        }
        out
    }

    /// For a ticket or a README.
    pub fn markdown(&self) -> String {
        let mut out = String::new();
        for (at, line) in self.lines().iter().enumerate() {
            let cells: Vec<String> = line.iter().map(|cell| cell.replace('|', "\\|")).collect();
            out.push_str(&format!("| {} |\n", cells.join(" | ")));
            if at == 0 {
                out.push_str(&format!("|---|{}\n", "---:|".repeat(self.columns.len())));
            }
        }
        out.push_str(&format!("\nFrom {}.\n", redact::line(&self.source)));
        for note in &self.notes {
            out.push_str(&format!("\n- {}", redact::line(note)));
        }
        out.push('\n');
        out
    }

    /// Heading and rows as cells.
    fn lines(&self) -> Vec<Vec<String>> {
        let heading = self.columns.iter().map(|column| column.name.clone());
        let first = std::iter::once(String::new()).chain(heading).collect();
        std::iter::once(first).chain(self.rows.iter().map(cells)).collect()
    }
}

fn cells(row: &Row) -> Vec<String> {
    let shown = |value: f64| if row.approximate { about(row.unit, value) } else { shown(row.unit, value) };
    let values = row.values.iter().map(|value| value.map_or_else(|| UNKNOWN.to_owned(), shown));
    std::iter::once(redact::line(&row.what).into_owned()).chain(values).collect()
}

fn shown(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ratio => percent(value),
        Unit::Bytes => short_size(value),
        Unit::BytesPerSecond => speed(value),
        Unit::Tokens | Unit::Count => count(value),
        Unit::TokensPerSecond => format!("{value:.1} tok/s"),
        Unit::TokensPerHour => format!("{} tok/h", about_signed(value)),
    }
}

/// An extrapolated value with the digits that are known of it. That nothing happened is known as it is.
fn about(unit: Unit, value: f64) -> String {
    match unit {
        _ if value == 0.0 => shown(unit, value),
        Unit::Bytes => format!("about {}", about_size(value)),
        Unit::Tokens | Unit::Count => format!("about {}", about_count(value)),
        _ => shown(unit, value),
    }
}

/// How many digits are given of an extrapolated value: a window of an hour that is scraped each quarter of a minute is
/// off by a few in a thousand.
const KNOWN: i32 = 3;

/// Three digits and no more; zeros behind the point say nothing: `467`, `17`, `3.27`.
fn rounded(value: f64) -> String {
    let whole = value.abs().log10().floor() as i32 + 1;
    let text = format!("{value:.*}", usize::try_from(KNOWN - whole).unwrap_or(0));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// The value in the first unit that takes no more digits than are known.
fn in_units(mut value: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value.abs() >= 10f64.powi(KNOWN) - 0.5 && unit + 1 < units.len() {
        value /= base;
        unit += 1;
    }
    // There is no half of an event.
    let text = if unit == 0 { format!("{value:.0}") } else { rounded(value) };
    format!("{text} {}", units[unit]).trim_end().to_owned()
}

fn about_size(bytes: f64) -> String {
    in_units(bytes, 1024.0, &["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

fn about_count(number: f64) -> String {
    in_units(number, 1000.0, &["", "k", "M", "G", "T"])
}

fn about_signed(number: f64) -> String {
    if number == 0.0 {
        "0".to_owned()
    } else {
        format!("{}{}", if number > 0.0 { "+" } else { "" }, about_count(number))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Column, DECODE, FILL, PREFILL, RELOAD_SPEED, RELOADED, Readings};
    use super::*;

    fn table() -> Table {
        let column = |name: &str| Column { name: name.into(), from: None, to: None };
        let cell = Cell::new;
        let before = Readings { column: column("before"), cells: vec![cell(PREFILL, None, 0.6)] };
        let ram = Some("ram");
        let after = vec![
            cell(PREFILL, None, 0.12),
            cell(DECODE, None, 49.02),
            cell(RELOADED, ram, 501_437_431_808.0),
            cell(RELOAD_SPEED, ram, 13.4e9),
            cell(FILL, ram, 1.0),
        ];
        let after = Readings { column: column("after"), cells: after };
        Table::of("a history".into(), &[before, after], vec!["A note.".into()], true)
    }

    #[test]
    fn columns_stand_side_by_side_and_unknown_is_no_zero() {
        let text = table().text();
        let line = |start: &str| text.lines().find(|line| line.starts_with(start)).unwrap().to_owned();
        let words = |start: &str| line(start)[start.len()..].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words("prompt tokens computed by prefill"), "60.0 % 12.0 %");
        assert_eq!(words("decode per stream, p50"), "– 49.0 tok/s");
        assert_eq!(words("reloaded, ram"), "– 467.0 GiB");
        assert_eq!(words("copy speed, reload, ram"), "– 13.4 GB/s");
        assert_eq!(words("preemptions"), "– –");
        assert!(!text.contains("lowest") && text.ends_with("\nA note.\n"), "{text}");
    }

    #[test]
    fn an_extrapolated_value_shows_the_digits_that_are_known() {
        // 467.3 GiB and 17,012,345 tokens.
        assert_eq!(about(Unit::Bytes, 467.3 * 1_073_741_824.0), "about 467 GiB");
        assert_eq!(about(Unit::Tokens, 17_012_345.0), "about 17 M");
        assert_eq!(
            (about(Unit::Tokens, 7_651_328.0), about(Unit::Tokens, 999_600.0)),
            ("about 7.65 M".into(), "about 1 M".into())
        );
        assert_eq!((about(Unit::Count, 11.9), about(Unit::Count, 0.0)), ("about 12".into(), "0".into()));
        assert_eq!(
            (about(Unit::Bytes, 1023.9 * 1024.0), about(Unit::Bytes, 512.0)),
            ("about 1 MiB".into(), "about 512 bytes".into())
        );
        assert_eq!(
            (shown(Unit::TokensPerHour, 2_234_567.0), shown(Unit::TokensPerHour, -448_123.0)),
            ("+2.23 M tok/h".into(), "-448 k tok/h".into())
        );
    }

    #[test]
    fn markdown_has_one_row_a_line() {
        let text = table().markdown();
        assert!(text.starts_with("|  | before | after |\n|---|---:|---:|\n"), "{text}");
        assert!(text.contains("\n| reloaded, ram | – | 467.0 GiB |\n"), "{text}");
        assert!(text.contains("\n- A note."), "{text}");
    }
}
