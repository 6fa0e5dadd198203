//! Numbers and lines as people read them.

use crate::redact;

/// Whole bytes with thousands marks, and GiB before them: `32.0 GiB (34,359,738,368 bytes)`.
pub fn size(bytes: f64) -> String {
    format!("{} ({} bytes)", short_size(bytes), count(bytes))
}

/// Binary units with one decimal: `47.1 GiB`.
pub fn short_size(bytes: f64) -> String {
    const UNITS: [&str; 6] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes;
    let mut unit = 0;
    while value.abs() >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value} bytes") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// GiB for a flag or a file: as somebody typed them, which the bytes show to within one; else three digits behind the point,
/// rounded down so that it is never more than was asked for.
pub fn gib(bytes: f64) -> String {
    const GIB: f64 = 1_073_741_824.0;
    let (exact, typed) = (bytes / GIB, |digits: &usize| format!("{:.digits$}", bytes / GIB, digits = *digits));
    let is_it = |text: &String| text.parse::<f64>().is_ok_and(|number| (number * GIB - bytes).abs() < 1.0);
    (0..=6).map(|digits| typed(&digits)).find(is_it).unwrap_or_else(|| format!("{:.3}", (exact * 1e3).floor() / 1e3))
}

/// A whole number with thousands marks: `950,056`.
pub fn count(number: f64) -> String {
    let digits = format!("{:.0}", number.abs());
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if number < 0.0 && digits != "0" { format!("-{out}") } else { out }
}

/// A large number as people say it: `1.2 M`.
pub fn short_count(number: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, " G"), (1e6, " M"), (1e3, " k")];
    match UNITS.iter().find(|(each, _)| number >= *each) {
        Some((each, unit)) => format!("{:.1}{unit}", number / each),
        None => count(number),
    }
}

/// A number of things: `1 engine`, `2 engines`.
pub fn many(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// The same of a number that may be large: `1 token`, `1,200,000 tokens`.
pub fn counted(number: f64, what: &str) -> String {
    format!("{} {what}{}", count(number), if count(number) == "1" { "" } else { "s" })
}

/// A share as per cent: `12.0 %`. Neither 0 nor 100 is said of what is only close to it.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        little if little > 0.0 && little < 0.05 => "< 0.1 %".to_owned(),
        almost if (99.95..100.0).contains(&almost) => "> 99.9 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

/// Decimal gigabytes per second, the unit of copy speeds, or a smaller unit that fits: `13.4 GB/s`, `4.2 MB/s`.
pub fn speed(bytes_per_second: f64) -> String {
    let (unit, name) = match bytes_per_second.abs() {
        little if little > 0.0 && little < 1e5 => (1e3, "kB/s"),
        middling if middling > 0.0 && middling < 1e8 => (1e6, "MB/s"),
        _ => (1e9, "GB/s"),
    };
    format!("{:.1} {name}", bytes_per_second / unit)
}

/// How wide a line is, with its indent.
const WIDTH: usize = 110;

/// The text in lines of a readable width; all but the first are indented. It passes the exit for foreign text before it is
/// taken apart: afterwards a line end could be anybody's.
pub fn wrapped(text: &str, indent: usize) -> String {
    let text = redact::line(text);
    let mut out = String::new();
    let mut column = indent;
    for word in text.split(' ') {
        if column > indent && column + 1 + word.chars().count() > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if column > indent {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += word.chars().count();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_counts_and_shares() {
        assert_eq!(size(34_359_738_368.0), "32.0 GiB (34,359,738,368 bytes)");
        assert_eq!((short_size(67_108_864.0), short_size(512.0)), ("64.0 MiB".into(), "512 bytes".into()));
        assert_eq!((count(0.0), count(999.0), count(1000.0)), ("0".into(), "999".into(), "1,000".into()));
        assert_eq!((count(950_056.0), count(-1234.0)), ("950,056".into(), "-1,234".into()));
        assert_eq!([1.2e6, 999.0, 8e11, 1e3].map(short_count), ["1.2 M", "999", "800.0 G", "1.0 k"]);
        assert_eq!((many(1, "engine"), many(2, "engine")), ("1 engine".into(), "2 engines".into()));
        assert_eq!((percent(0.12), speed(13.4e9)), ("12.0 %".into(), "13.4 GB/s".into()));
        assert_eq!((percent(0.0), percent(1.0)), ("0.0 %".into(), "100.0 %".into()));
        assert_eq!((percent(0.0004), percent(0.9996)), ("< 0.1 %".into(), "> 99.9 %".into()));
        assert_eq!((speed(4.2e6), speed(12e3), speed(0.0)), ("4.2 MB/s".into(), "12.0 kB/s".into(), "0.0 GB/s".into()));
    }

    #[test]
    fn gib_are_written_as_they_were_typed() {
        // 23.4 × 2^30 = 25,125,558,681.6, of which the part of a byte is left out.
        assert_eq!(gib(25_125_558_681.0), "23.4");
        assert_eq!((gib(34_359_738_368.0), gib(1_610_612_736.0)), ("32".into(), "1.5".into()));
        assert_eq!(gib(322_122_547.0), "0.3");
        // 34.4 GB are 32.03749… GiB, and 500 GB among three 155.22042… each.
        assert_eq!((gib(34.4e9), gib(500e9 / 3.0)), ("32.037".into(), "155.220".into()));
    }

    #[test]
    fn lines_break_between_words_only() {
        let text = wrapped(&"word ".repeat(40), 8);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.split_whitespace().count(), 40);
        let long = "x".repeat(200);
        assert_eq!(wrapped(&format!("a {long}"), 2), format!("a\n  {long}"));
    }
}
