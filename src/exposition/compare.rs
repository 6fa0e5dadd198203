//! Two texts held against each other, without a call into the C library: what two lines next to each other share comes in
//! short pieces, for which the call would cost more than the comparison.

/// How many bytes are held against others at once.
const WIDE: usize = 16;

/// How many bytes two texts have in common at their starts.
#[inline]
pub(super) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let (wide_a, wide_b) = (a.as_chunks::<WIDE>().0, b.as_chunks::<WIDE>().0);
    let mut at = WIDE * wide_a.iter().zip(wide_b).take_while(|(a, b)| a == b).count();
    while let (Some(a), Some(b)) = (a[at..].first_chunk(), b[at..].first_chunk()) {
        let differing = u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b);
        if differing != 0 {
            return at + differing.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

/// Whether `text` starts with `start`.
#[inline]
pub(super) fn starts_with(text: &[u8], start: &[u8]) -> bool {
    let Some(text) = text.get(..start.len()) else { return false };
    match (text.last_chunk::<WIDE>(), start.last_chunk::<WIDE>()) {
        (Some(last), Some(other)) => {
            let mut pairs = text.as_chunks::<WIDE>().0.iter().zip(start.as_chunks::<WIDE>().0);
            pairs.all(|(a, b)| a == b) && last == other
        }
        _ => text == start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_lines_have_in_common_ends_at_the_first_byte_that_differs() {
        let line = b"0123456789abcdef0123456789abcdef0123456";
        for at in 0..line.len() {
            let mut other = *line;
            other[at] = b'X';
            assert_eq!(common_prefix(line, &other), at);
            assert_eq!(common_prefix(&line[..at], line), at);
        }
    }
}
