//! The table as text and as Markdown.

use super::{Row, Table, Unit};
use crate::advise::words::{count, percent, short_size, speed, wrapped};

/// What stands for a value that is not known.
const UNKNOWN: &str = "–";

impl Table {
    /// For a terminal.
    pub fn text(&self) -> String {
        let lines = self.lines();
        let widths: Vec<usize> = (0..lines[0].len())
            .map(|at| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0))
            .collect();
        let mut out = format!("kvtier-exporter report of {}\n\n", self.source);
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
        out.push_str(&format!("\nFrom {}.\n", self.source));
        for note in &self.notes {
            out.push_str(&format!("\n- {note}"));
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
    let values = row.values.iter().map(|value| value.map_or_else(|| UNKNOWN.to_owned(), |v| shown(row.unit, v)));
    std::iter::once(row.what.clone()).chain(values).collect()
}

fn shown(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ratio => percent(value),
        Unit::Bytes => short_size(value),
        Unit::BytesPerSecond => speed(value),
        Unit::Tokens | Unit::Count => count(value),
        Unit::TokensPerSecond => format!("{value:.1} tok/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, Column, DECODE, FILL, PREFILL, RELOAD_SPEED, RELOADED, Readings};
    use super::*;

    fn table() -> Table {
        let column = |name: &str| Column { name: name.into(), from: None, to: None };
        let cell = |quantity, of: Option<&str>, value| Cell { quantity, of: of.map(Into::into), value };
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
    fn markdown_has_one_row_a_line() {
        let text = table().markdown();
        assert!(text.starts_with("|  | before | after |\n|---|---:|---:|\n"), "{text}");
        assert!(text.contains("\n| reloaded, ram | – | 467.0 GiB |\n"), "{text}");
        assert!(text.contains("\n- A note."), "{text}");
    }
}
