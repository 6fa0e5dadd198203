//! A page and its edits to slices of the page with inserts between: the only writer of upstream's lines.
//!
//! The body is held once. What did not change leaves as slices of it, so a large page costs no copy, and the
//! length of the answer is known before its first byte is sent.

use bytes::Bytes;

use crate::exposition::Edit;

/// Carries the edits out. They may come in any order; where two overlap, the one that starts first wins, and of
/// two at the same place the longer. A page that does not end in a line end is given one.
pub fn apply(body: &Bytes, mut edits: Vec<Edit>) -> Vec<Bytes> {
    edits.sort_by_key(|edit| (edit.span.start, std::cmp::Reverse(edit.span.end)));
    let mut pieces = Pieces::default();
    let mut at = 0;
    for edit in edits {
        if edit.span.start < at {
            continue;
        }
        pieces.push(body.slice(at..edit.span.start));
        pieces.push(Bytes::from(edit.text));
        at = edit.span.end;
    }
    pieces.push(body.slice(at..));
    if pieces.last_byte().is_some_and(|byte| byte != b'\n') {
        pieces.push(Bytes::from_static(b"\n"));
    }
    pieces.0
}

#[derive(Default)]
struct Pieces(Vec<Bytes>);

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.0.push(piece);
        }
    }

    fn last_byte(&self) -> Option<u8> {
        self.0.last().and_then(|piece| piece.last().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::Span;

    fn edit(start: usize, end: usize, text: &str) -> Edit {
        Edit { span: Span { start, end }, text: text.into() }
    }

    fn applied(body: &str, edits: Vec<Edit>) -> String {
        let pieces = apply(&Bytes::copy_from_slice(body.as_bytes()), edits);
        String::from_utf8(pieces.concat()).unwrap()
    }

    #[test]
    fn what_has_no_edit_is_one_slice_of_the_same_memory() {
        let body = Bytes::from_static(b"a 1\nb 2\n");
        let pieces = apply(&body, vec![]);
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn edits_replace_insert_and_take_out() {
        assert_eq!(
            applied("a 1\nb 2\n", vec![edit(4, 8, ""), edit(2, 3, "7"), edit(0, 0, "# HELP a x\n")]),
            "# HELP a x\na 7\n"
        );
    }

    #[test]
    fn a_missing_last_line_end_is_added_and_nothing_is_added_to_nothing() {
        assert_eq!(applied("a 1", vec![]), "a 1\n");
        assert_eq!(applied("", vec![]), "");
        assert_eq!(applied("a 1\n", vec![edit(0, 4, "")]), "");
    }

    #[test]
    fn an_edit_inside_a_taken_out_line_is_gone_with_it() {
        assert_eq!(applied("a 1\nb 2\n", vec![edit(2, 3, "7"), edit(0, 4, "")]), "b 2\n");
    }
}
