//! Content codings: who gets an answer packed with gzip.
//!
//! Prometheus asks for gzip always, also where it only costs. In all, packing, way and unpacking take these milliseconds
//! for a page of four engines (220 KB, 18 KB packed; `benches/gzip.rs`, 2 vCPU, ways over a network computed):
//!
//! | | loopback | 1 Gbit/s | 10 Gbit/s |
//! |---|---|---|---|
//! | plain | 0.08 | 1.88 | 0.19 |
//! | level 1 | 0.27 | 0.38 | 0.25 |
//! | level 6 | 2.16 | 2.20 | 2.11 |
//!
//! So the plain text goes to this box, and level 1, for 0.15 ms of CPU and a twelfth of the traffic, to others. zlib-rs
//! (0.37 at 1 Gbit/s) and libdeflate (0.49) gain nothing that would pay for another library.

use clap::ValueEnum;
use hyper::HeaderMap;
use hyper::header::ACCEPT_ENCODING;

/// When answers are packed, for clients that ask for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Compression {
    /// For those that are not on this box.
    #[default]
    Auto,
    /// For all.
    On,
    /// For none.
    Off,
}

impl Compression {
    /// Whether a client that is on this box, or is not, may ask for packed answers.
    pub(crate) fn is_for(self, local: bool) -> bool {
        match self {
            Compression::Auto => !local,
            Compression::On => true,
            Compression::Off => false,
        }
    }
}

/// Whether a client asks for gzip and does not like the plain answer better (RFC 9110, 12.5.3).
pub(crate) fn asks_for_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let listed: Vec<(&str, f64)> = values.flat_map(|value| value.split(',')).map(weighted).collect();
    let weight = |coding: &str| {
        let found = listed.iter().find(|(name, _)| name.eq_ignore_ascii_case(coding));
        found.map(|(_, weight)| *weight)
    };
    let gzip = weight("gzip").or(weight("x-gzip")).or(weight("*")).unwrap_or(0.0);
    gzip > 0.0 && weight("identity").is_none_or(|identity| identity <= gzip)
}

/// A coding and its weight. A weight that cannot be read asks for nothing.
fn weighted(coding: &str) -> (&str, f64) {
    let (name, parameter) = coding.split_once(';').unwrap_or((coding, "q=1"));
    let (key, value) = parameter.split_once('=').unwrap_or_default();
    let weight = value.trim().parse().ok().filter(|_| key.trim().eq_ignore_ascii_case("q"));
    (name.trim(), weight.unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(values: &[&str]) -> bool {
        asks_for_gzip(&values.iter().map(|value| (ACCEPT_ENCODING, value.parse().unwrap())).collect())
    }

    #[test]
    fn gzip_is_for_those_who_ask_for_it() {
        for wish in ["gzip", "GZip", "x-gzip", "deflate, gzip", "gzip;q=0.001", "gzip ; q=1.0", "*", "br;q=1, *;q=0.1"]
        {
            assert!(asks(&[wish]), "{wish}");
        }
        for wish in
            ["", "identity", "br", "gzip;q=0", "gzip; Q=0.000", "gzip;q=0, *", "*;q=0", "gzip;level=1", "gzip;q=x"]
        {
            assert!(!asks(&[wish]), "{wish}");
        }
        assert!(!asks(&[]));
        assert!(asks(&["br", "gzip"]), "in a header of its own");
    }

    #[test]
    fn the_plain_answer_goes_to_those_who_like_it_better() {
        assert!(!asks(&["gzip;q=0.5, identity"]));
        assert!(!asks(&["identity;q=0.5, *;q=0.1"]));
        assert!(asks(&["gzip, identity;q=0.5"]));
        assert!(asks(&["gzip, identity"]));
    }

    #[test]
    fn by_default_nothing_is_packed_for_this_box() {
        assert!(!Compression::default().is_for(true) && Compression::default().is_for(false));
    }
}
