//! `--web.config.file` and the limits of the server, through the whole program.
//!
//! Passwords and their hashes were made with the C library's crypt, certificates are made here, and promtool judges
//! the same files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A helper that panics is a failed test.
#![allow(clippy::print_stdout)] // Figures, shown on request.
#![allow(unreachable_pub, dead_code)] // Nothing outside a test crate can reach anything in it, and it uses a part.

#[path = "../support/program/mod.rs"]
mod support;

mod attack;
mod authority;
mod config;
mod crowd;
mod guessing;
mod home;
mod names;
mod prometheus;
mod reload;
mod tls;
mod users;

/// A page that passes as it came.
const PAGE: &str = "# HELP x_total Things.\n# TYPE x_total counter\nx_total{k=\"1\"} 5\n";
/// Of "open sesame".
const SESAME: &str = "$2b$04$vxDDxHrXz9byy.74oVvWp.i2fKO7vGIlP7U95f76VAH4ypa6qJ3t6";
/// Of "second".
const SECOND: &str = "$2b$04$7jRDF5IJVFh8D8w/iWctwOyoaJsPK5YV5pGN1aex50DnsDQeGhMiK";
/// Of "tr:ee \u{fc}".
const COLON: &str = "$2b$04$lAVctK.gGtRK9Xon8G5d7.WygJY1z.e226zHuthLQGrhP2anw/KhK";
/// Of "slow": some seconds of work.
const SLOW: &str = "$2b$16$vISd/FTAjg2M1oHLQaL.iOXz/tJLcXUSRsjonaKLu/.msAxzKFQoG";
