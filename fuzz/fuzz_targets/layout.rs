//! Any bytes as two pages of one server, the earlier one first and a byte 0xFF between them: the later one is read
//! beside the layout of the earlier one as it is read alone. `fuzz/run 60 layout`
#![no_main]

use kvtier_exporter_fuzz::beside::difference;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|pages: &[u8]| {
    let parting = pages.iter().position(|byte| *byte == 0xFF);
    let (earlier, later) = parting.map_or((pages, pages), |at| (&pages[..at], &pages[at + 1..]));
    assert_eq!(difference(later, earlier), None);
    assert_eq!(difference(earlier, later), None);
});
