//! A page and its edits to slices of the page with inserts between: the only writer of upstream's lines.
//!
//! The body is held once. What did not change leaves as slices of it, so a large page costs no copy, and the
//! length of the answer is known before its first byte is sent.

use bytes::{Bytes, BytesMut};

use crate::exposition::Edit;

/// Pieces shorter than this are copied together: each piece on its own costs memory and a place in a system call.
const SHORT: usize = 512;

/// Carries the edits out. They may come in any order; where two overlap, the one that starts first wins, and of
/// two at the same place the longer; what is only put in comes before both. A page that does not end in a line end
/// is given one.
pub fn apply(body: &Bytes, mut edits: Vec<Edit>) -> Vec<Bytes> {
    let is_put_in = |edit: &Edit| edit.span.start == edit.span.end;
    edits.sort_by_key(|edit| (edit.span.start, !is_put_in(edit), std::cmp::Reverse(edit.span.end)));
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
    pieces.finished()
}

#[derive(Default)]
struct Pieces {
    done: Vec<Bytes>,
    /// Short pieces since the last long one.
    short: BytesMut,
}

impl Pieces {
    fn push(&mut self, piece: Bytes) {
        if piece.len() < SHORT {
            self.short.extend_from_slice(&piece);
        } else {
            self.join();
            self.done.push(piece);
        }
    }

    fn join(&mut self) {
        if !self.short.is_empty() {
            self.done.push(self.short.split().freeze());
        }
    }

    fn last_byte(&self) -> Option<u8> {
        self.short.last().or_else(|| self.done.last()?.last()).copied()
    }

    fn finished(mut self) -> Vec<Bytes> {
        self.join();
        self.done
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
        let body = Bytes::from(b"a 1\n".repeat(SHORT));
        let pieces = apply(&body, vec![]);
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].as_ptr(), body.as_ptr());
    }

    #[test]
    fn an_edit_between_long_parts_copies_neither() {
        let body = Bytes::from(b"a 1\n".repeat(1000));
        let pieces = apply(&body, vec![edit(2002, 2003, "7")]);
        let places: Vec<_> = pieces.iter().map(|piece| piece.as_ptr()).collect();
        assert_eq!(places.len(), 3);
        assert_eq!((places[0], places[2]), (body.as_ptr(), body[2003..].as_ptr()));
    }

    #[test]
    fn many_edits_make_few_pieces() {
        let body = Bytes::from(b"a 1\n".repeat(10_000));
        let edits = (0..10_000).map(|line| edit(4 * line + 2, 4 * line + 3, "23")).collect();
        let pieces = apply(&body, edits);
        assert_eq!(pieces.concat(), b"a 23\n".repeat(10_000));
        assert_eq!(pieces.len(), 1);
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
    fn what_is_put_in_stands_before_what_is_replaced_at_its_place() {
        assert_eq!(applied("a 1\n", vec![edit(0, 3, "a 7"), edit(0, 0, "# HELP a x\n")]), "# HELP a x\na 7\n");
        assert_eq!(applied("a 1\nb 2\n", vec![edit(4, 8, ""), edit(4, 4, "c 3\n")]), "a 1\nc 3\n");
    }

    #[test]
    fn an_edit_inside_a_taken_out_line_is_gone_with_it() {
        assert_eq!(applied("a 1\nb 2\n", vec![edit(2, 3, "7"), edit(0, 4, "")]), "b 2\n");
    }
}
