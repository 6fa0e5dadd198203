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
    humantime::parse_duration(text).map_err(|error| words(text, &error))
}

fn words(text: &str, error: &humantime::DurationError) -> String {
    use humantime::DurationError as Error;
    match error {
        Error::UnknownUnit { unit, .. } if unit.is_empty() => "has a number without a unit of time".to_owned(),
        Error::UnknownUnit { unit, .. } => format!("has no unit of time in {unit:?}"),
        Error::NumberOverflow => "is too long a time".to_owned(),
        Error::Empty => "is empty".to_owned(),
        Error::InvalidCharacter(_) | Error::NumberExpected(_) => format!("{text:?} is no length of time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_words() {
        for (text, said) in [
            ("10", "has a number without a unit of time"),
            ("10lightyears", "has no unit of time in \"lightyears\""),
            ("", "is empty"),
            ("soon", "\"soon\" is no length of time"),
            ("1m sec", "\"1m sec\" is no length of time"),
            ("-1s", "\"-1s\" is no length of time"),
        ] {
            assert_eq!(parse(text).unwrap_err(), said, "{text}");
        }
    }

    #[test]
    fn no_length_of_time_is_too_long_for_an_answer() {
        assert_eq!(parse("99999999999y"), Ok(Duration::from_secs(99_999_999_999 * 31_557_600)));
        for text in ["18446744073709551615s0.6s0.4s9s", "18446744073709551615s 999999999ns 1ns", "999999999999y"] {
            assert!(parse(text).unwrap_err().starts_with("too many digits"), "{text}");
        }
    }
}
