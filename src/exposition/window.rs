//! Eight bytes of text as one number, so that a look at all of them costs about as much as a look at one. What is
//! looked for mostly stands within them: most label values and numbers are short.

/// What one look takes in.
const WIDTH: usize = 8;
/// The lowest bit of each byte.
const LOW: u64 = u64::from_le_bytes([0x01; WIDTH]);
/// The highest bit of each byte; an answer sets it for the bytes that it is about.
const HIGH: u64 = u64::from_le_bytes([0x80; WIDTH]);

/// Where the first of two bytes stands in `text`.
pub(super) fn first_of(text: &[u8], one: u8, other: u8) -> Option<usize> {
    let mut at = 0;
    while let Some(window) = text[at..].first_chunk() {
        let window = u64::from_le_bytes(*window);
        let found = zeros(window ^ all(one)) | zeros(window ^ all(other));
        if found != 0 {
            return Some(at + first(found));
        }
        at += WIDTH;
    }
    Some(at + text[at..].iter().position(|byte| *byte == one || *byte == other)?)
}

/// The length of a number of a few digits, maybe with a point among them, that a line end follows. `None` says nothing
/// about the text.
pub(super) fn short_number(text: &[u8]) -> Option<usize> {
    let window = u64::from_le_bytes(*text.first_chunk()?);
    let at = |length: usize| window.checked_shr(8 * length as u32).unwrap_or(0) as u8;
    let others = no_digits(window);
    let whole = first(others);
    let end = if at(whole) == b'.' { first(others & (others - 1)) } else { whole };
    (whole > 0 && at(end) == b'\n').then_some(end)
}

fn all(byte: u8) -> u64 {
    LOW * u64::from(byte)
}

/// Exact up to the first byte that is zero; what is said of those behind it may be wrong.
fn zeros(window: u64) -> u64 {
    window.wrapping_sub(LOW) & !window & HIGH
}

/// The bytes that are no digits: those above 9 when `0` is taken off. No sum reaches the next byte.
fn no_digits(window: u64) -> u64 {
    let values = window ^ all(b'0');
    (((values & !HIGH) + all(0x80 - 10)) | values) & HIGH
}

/// The place of the first byte of an answer; the width where it names none.
fn first(answer: u64) -> usize {
    answer.trailing_zeros() as usize / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_bytes_is_found_wherever_it_stands() {
        for length in 0..30 {
            let mut text = vec![b'!'; length];
            assert_eq!(first_of(&text, b'"', b'\\'), None);
            for at in (0..length).rev() {
                text[at] = if at % 2 == 0 { b'"' } else { b'\\' };
                assert_eq!(first_of(&text, b'"', b'\\'), Some(at), "{text:?}");
            }
        }
        // A byte that is one more or 128 more than what is looked for is another.
        assert_eq!(first_of(b"#]\xa2\xdc##\"\"xx", b'"', b'\\'), Some(6));
    }

    #[test]
    fn a_short_number_is_digits_with_at_most_one_point() {
        for (text, length) in [("0\n......", 1), ("200.0\nvl", 5), ("1.\n#####", 2), ("1234.56\n", 7), ("1234567\n", 7)]
        {
            assert_eq!(short_number(text.as_bytes()), Some(length), "{text:?}");
        }
        for text in
            ["", "1\n", "12345678\n", ".5\n.....", "\n1234567", "1.2.3\n##", "1e5\n####", "-1\n#####", "1 7\n####"]
        {
            assert_eq!(short_number(text.as_bytes()), None, "{text:?}");
        }
        // Every byte but a digit ends it.
        for byte in 0..=u8::MAX {
            let is_digit = byte.is_ascii_digit();
            assert_eq!(
                short_number(&[b'7', byte, b'\n', 0, 0, 0, 0, 0]),
                is_digit.then_some(2).or((byte == b'.').then_some(2)).or((byte == b'\n').then_some(1))
            );
        }
    }
}
