//! What names are made of, and what stands between words.

/// What a kind of name may be made of, as bits of [`CLASSES`].
pub(super) struct Alphabet {
    start: u8,
    part: u8,
}

/// Names of metrics.
pub(super) const METRIC_NAME: Alphabet = Alphabet { start: 1, part: 2 };

/// Names of labels.
pub(super) const LABEL_NAME: Alphabet = Alphabet { start: 4, part: 8 };

/// Which alphabets each byte belongs to. A look is one load, and it is taken for each byte of each new name.
static CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut at = 0;
    while at < classes.len() {
        let byte = at as u8;
        let letter = byte.is_ascii_alphabetic() || byte == b'_';
        let metric_start = letter || byte == b':';
        classes[at] = METRIC_NAME.start * metric_start as u8
            + METRIC_NAME.part * (metric_start || byte.is_ascii_digit()) as u8
            + LABEL_NAME.start * letter as u8
            + LABEL_NAME.part * (letter || byte.is_ascii_digit()) as u8;
        at += 1;
    }
    classes
};

fn is(byte: u8, class: u8) -> bool {
    CLASSES[usize::from(byte)] & class != 0
}

impl Alphabet {
    /// Where the name that starts at `at` ends; `at` where none does.
    pub(super) fn end(&self, line: &[u8], at: usize) -> usize {
        match line.get(at) {
            Some(&first) if is(first, self.start) => self.rest(line, at + 1),
            _ => at,
        }
    }

    /// Where a name ends that goes on at `at`.
    pub(super) fn rest(&self, line: &[u8], at: usize) -> usize {
        at + line[at..].iter().position(|&byte| !is(byte, self.part)).unwrap_or(line.len() - at)
    }
}

/// Where blanks that start at `at` end.
pub(super) fn skip_blanks(line: &[u8], at: usize) -> usize {
    let is_blank = |at: usize| matches!(line.get(at), Some(b' ' | b'\t'));
    let mut end = at;
    while is_blank(end) {
        end += 1;
    }
    end
}
