//! Sizes and lengths of time as people write them: read or refused, never with a panic; more is more, and what we
//! print is read back. `fuzz/run 60 units`
#![no_main]

use std::time::Duration;

use kvtier_exporter::advise::words::short_size;
use kvtier_exporter::cli::units::{duration, duration_or_zero, size, tier_size};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(bytes) = size(text) {
        size_is_right(text, bytes);
    }
    if let Ok((tier, bytes)) = tier_size(text) {
        let written = text.rsplit_once('=').map_or(text, |(_, size)| size);
        assert!(!tier.is_empty() && size(written) == Ok(bytes));
    }
    if let Ok(time) = duration(text) {
        assert!(time > Duration::ZERO && duration_or_zero(text) == Ok(time));
        let shown = humantime::format_duration(time).to_string();
        // Times are read up to so many digits.
        let is_short = shown.bytes().filter(u8::is_ascii_digit).count() <= 11;
        assert!(!is_short || duration(&shown) == Ok(time), "{shown}");
    }
});

fn size_is_right(text: &str, bytes: u64) {
    assert!(bytes >= 1);
    assert_eq!(size(&format!("{bytes}B")), Ok(bytes));
    let number = text.trim().trim_end_matches(|c: char| !c.is_ascii_digit() && c != '.');
    let unit = text.trim()[number.len()..].trim_start();
    is_nearly(bytes, number.parse::<f64>().unwrap() * factor(unit), 1.0);
    // A digit more in front, or the next larger unit, is more, unless it no longer fits.
    let more = [format!("1{number}{unit}"), format!("{number}{}", unit.replace('k', "M").replace('K', "M"))];
    assert!(more.iter().all(|more| size(more).map_or(true, |more| more >= bytes)));
    if let Ok(again) = size(&short_size(bytes as f64).replace("bytes", "B")) {
        // One decimal is what people read: half of it is lost at most, which is 5 % of 1.0 and less of the rest.
        is_nearly(again, bytes as f64, 0.05 * bytes as f64);
    }
}

/// Written out a second time, so that a slip in the table shows.
fn factor(unit: &str) -> f64 {
    let power = ["", "k", "m", "g", "t"]
        .iter()
        .position(|prefix| unit.to_lowercase().trim_end_matches('b').trim_end_matches('i') == *prefix);
    let base: f64 = if unit.contains('i') { 1024.0 } else { 1000.0 };
    base.powi(power.unwrap() as i32)
}

fn is_nearly(bytes: u64, meant: f64, slack: f64) {
    let error = (bytes as f64 - meant).abs();
    // A double has 53 bits; parts of a byte are rounded down.
    assert!(error <= slack + meant * 1e-15, "{bytes} for {meant}");
}
