//! Any text as a web configuration: read or refused, without a panic, in bounded time, and never with a hash in the
//! error. `fuzz/run 60 web_config`
#![no_main]

use std::path::Path;

use kvtier_exporter::web::Config;
use libfuzzer_sys::fuzz_target;

/// Of "fakepassword"; the dictionary holds it.
const HASH: &str = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi";

fuzz_target!(|text: &str| {
    if let Err(fault) = Config::read(text, Path::new("/etc/web")) {
        assert!(fault.line >= 1);
        assert!(!fault.to_string().contains(HASH));
    }
});
