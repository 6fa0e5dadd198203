//! Characters that are not seen, or move what is seen: a terminal obeys the controls, and text runs backwards behind others.

use std::borrow::Cow;

/// Whether a character is escaped wherever it would be shown.
///
/// Controls (Cc), line and paragraph separators (Zl, Zp), and of the format characters (Cf) those that turn the direction of
/// text (Unicode Standard Annex #9) or have no width, so that two texts look the same.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// The text with hidden characters written as Rust and others write them: `\n`, `\u{1b}`. Some are left where `leaves` says so.
pub(super) fn escaped(text: &str, leaves: impl Fn(char) -> bool) -> Cow<'_, str> {
    let goes = |c: char| is_hidden(c) && !leaves(c);
    if !text.contains(goes) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if goes(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_moves_a_terminal_or_turns_text_is_escaped_and_letters_of_all_scripts_are_not() {
        let all = |text| escaped(text, |_| false);
        assert_eq!(all("\u{1b}[2J\r\n\t\u{7f}\u{9b}"), "\\u{1b}[2J\\r\\n\\t\\u{7f}\\u{9b}");
        assert_eq!(all("a\u{202e}b\u{2066}c\u{200f}\u{feff}"), "a\\u{202e}b\\u{2066}c\\u{200f}\\u{feff}");
        assert_eq!(all("\u{2028}"), "\\u{2028}");
        assert!(matches!(all("Größe · 大小 · गति · \"x\\y\" …"), Cow::Borrowed(_)));
        assert_eq!(escaped("a\n\u{7}", |c| c == '\n'), "a\n\\u{7}");
    }
}
