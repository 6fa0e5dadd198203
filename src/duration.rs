//! A length of time as people write it: `10s`, `1m 30s`.

use std::time::Duration;

/// Reads one, in as many parts as it has.
///
/// # Errors
/// What is wrong with it, in words.
pub fn parse(text: &str) -> Result<Duration, String> {
    // Near the largest time of all humantime panics in place of an error.
    if text.bytes().filter(u8::is_ascii_digit).count() > 11 {
        return Err("too many digits for a length of time".to_owned());
    }
    humantime::parse_duration(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_of_time_is_too_long_for_an_answer() {
        assert_eq!(parse("99999999999y"), Ok(Duration::from_secs(99_999_999_999 * 31_557_600)));
        for text in ["18446744073709551615s0.6s0.4s9s", "18446744073709551615s 999999999ns 1ns", "999999999999y"] {
            assert!(parse(text).unwrap_err().starts_with("too many digits"), "{text}");
        }
    }
}
