//! Any bytes as a page, and the next one of the same server, in which one byte is another, is gone or has come: each is
//! read beside the layout of the other as it is read alone. `fuzz/run 60 layout`
//!
//! The first two bytes say where, the third says which byte.
#![no_main]

use kvtier_exporter_fuzz::beside::difference;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some(([high, low, byte], page)) = input.split_first_chunk() else { return };
    let place = usize::from(u16::from_be_bytes([*high, *low])) % (page.len() + 1);
    let (before, behind) = page.split_at(place);
    let rest = behind.get(1..).unwrap_or_default();
    for next in [[before, &[*byte], rest].concat(), [before, rest].concat(), [before, &[*byte], behind].concat()] {
        assert_eq!(difference(&next, page), None);
        assert_eq!(difference(page, &next), None);
    }
});
