//! Values on the command line: what people write, turned into what the program works with. Each parser is a
//! pure function whose error is one sentence that says what to write instead.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::time::Duration;

use crate::duration;

const UNITS: [(&str, u64); 10] = [
    ("B", 1),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Bytes from a number with a unit: `32GiB`, `34.4GB`, `16777216B`. Part of a byte is rounded down.
pub fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..digits], text[digits..].trim_start());
    if unit.is_empty() && !number.is_empty() {
        return Err(format!("a size needs a unit; did you mean {number}GiB or {number}B?"));
    }
    let (_, factor) = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .ok_or_else(|| format!("unknown unit {unit:?}; use B, kB, MB, GB, TB or KiB, MiB, GiB, TiB"))?;
    match scaled(number, *factor) {
        Some(0) => Err("a size must be at least one byte".to_owned()),
        Some(bytes) => Ok(bytes),
        None => Err(format!("{number:?} is not a number of {unit} that fits; write for example 32GiB or 34.4GB")),
    }
}

/// `number × factor`, with whole numbers all the way: 34.4 GB is 34,400,000,000 bytes and not one less.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let one = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    u64::try_from(digits.checked_mul(u128::from(factor))? / one).ok()
}

/// `[TIER=]SIZE`; without a name the RAM tier is meant.
pub fn tier_size(text: &str) -> Result<(String, u64), String> {
    match text.rsplit_once('=') {
        None => Ok(("ram".to_owned(), size(text)?)),
        Some((tier, _)) if tier.trim().is_empty() => Err("the tier before = has no name; write ram=32GiB".to_owned()),
        Some((tier, bytes)) => Ok((tier.trim().to_owned(), size(bytes)?)),
    }
}

/// A length of time above zero: `10s`, `1m30s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    match duration::parse(text.trim()) {
        Ok(Duration::ZERO) => Err("must be longer than zero".to_owned()),
        Ok(duration) => Ok(duration),
        Err(error) => Err(format!("{error}; write for example 10s or 500ms")),
    }
}

/// A length of time, or zero: `0`, `0s`, `15s`.
pub fn duration_or_zero(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => duration::parse(text).map_err(|error| format!("{error}; write for example 0s or 15s")),
    }
}

/// A whole number.
pub(super) fn whole<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim().parse().map_err(|_| "must be a whole number, and none too large".to_owned())
}

/// A whole number above zero.
pub(super) fn counting<T: FromStr + PartialOrd + From<u8>>(text: &str) -> Result<T, String> {
    let number: T = whole(text)?;
    if number < T::from(1) { Err("must be 1 or more".to_owned()) } else { Ok(number) }
}

/// A finite number above zero.
pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("must be a number above 0".to_owned()),
    }
}

/// A difference of two shares of 100 points, above 0.
pub(super) fn points(text: &str) -> Result<f64, String> {
    match positive(text)? {
        points if points <= 100.0 => Ok(points),
        _ => Err("must be 100 or less: they are points of 100".to_owned()),
    }
}

/// `on` or `off`.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text.trim() {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("must be on or off".to_owned()),
    }
}

/// The path that metrics are served under: absolute, without a slash at its end, and none of our other pages.
pub(super) fn telemetry_path(text: &str) -> Result<String, String> {
    let path = if text == "/" { text } else { text.trim_end_matches('/') };
    match path {
        "/api/status" | "/debug" | "/-/healthy" | "/-/ready" => {
            Err("this path is another page of the exporter".to_owned())
        }
        _ if !path.starts_with('/') => Err("must begin with /, for example /metrics".to_owned()),
        _ if path.contains(['?', '#', ' ']) => Err("must be a plain path without ?, # or blanks".to_owned()),
        _ => Ok(path.to_owned()),
    }
}

/// A host name as a `Host` header has it, without its port: in lower case, without a dot at its end.
pub(super) fn host_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    if plain && !name.is_empty() {
        return Ok(name);
    }
    Err("must be a host name without scheme, port or path, for example gpu-1.example.com".to_owned())
}

/// Where to listen: a host and a port, or a port on every interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Address or name; `None` is every interface.
    pub host: Option<String>,
    /// Port; 0 lets the system choose.
    pub port: u16,
}

impl Listen {
    /// From `:10477`, `127.0.0.1:10477`, `[::1]:10477` or `localhost:10477`.
    ///
    /// # Errors
    /// A sentence for the operator.
    pub fn parse(text: &str) -> Result<Listen, String> {
        let text = text.trim();
        if let Some((_, rest)) = text.split_once("://") {
            let place = rest.split(['/', '?', '#']).next().unwrap_or_default();
            let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
            return Err(format!("a listener has no URL: write host and port alone, {place}"));
        }
        let Some((host, port)) = text.rsplit_once(':') else {
            return Err(match text.parse::<u16>() {
                Ok(port) => format!("write :{port} to listen on every interface, or 127.0.0.1:{port}"),
                Err(_) => format!("names no port; write for example {text}:10477"),
            });
        };
        let port = port.parse().map_err(|_| format!("{port:?} is not a port; write for example 127.0.0.1:10477"))?;
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        match bare.unwrap_or(host) {
            "" => Ok(Listen { host: None, port }),
            "*" => Err(format!("write :{port} to listen on every interface")),
            host if bare.is_none() && host.contains(':') => {
                Err(format!("an IPv6 address needs brackets: [{host}]:{port}"))
            }
            host => Ok(Listen { host: Some(host.to_owned()), port }),
        }
    }
}

impl Listen {
    /// Whether a connection to this host and port comes to this listener, as far as their spelling proves it. `localhost` is
    /// taken for 127.0.0.1.
    pub fn answers(&self, host: &str, port: u16) -> bool {
        let address = |host: &str| if host == "localhost" { Some(LOCALHOST) } else { host.parse::<IpAddr>().ok() };
        let there = address(host).filter(|_| self.port == port && port != 0);
        let Some(there) = there else { return false };
        let here = self.host.as_deref().map(|host| address(&host.to_ascii_lowercase()));
        match here {
            None => there.is_loopback() || there.is_unspecified(),
            Some(Some(here)) if here.is_unspecified() => {
                (there.is_loopback() || there.is_unspecified()) && (here.is_ipv6() || there.is_ipv4())
            }
            Some(here) => here == Some(there),
        }
    }
}

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            None => write!(f, ":{}", self.port),
            Some(host) if host.contains(':') => write!(f, "[{host}]:{}", self.port),
            Some(host) => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_plain() {
        assert_eq!(host_name("GPU-1.example.com."), Ok("gpu-1.example.com".to_owned()));
        for text in ["", ".", "gpu-1:80", "http://gpu-1", "a/b", "a b", "*.example.com", "[::1]"] {
            assert!(host_name(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_exact_and_need_a_unit() {
        assert_eq!(size("32GiB"), Ok(34_359_738_368));
        assert_eq!(size("34.4GB"), Ok(34_400_000_000));
        assert_eq!(size("16777216B"), Ok(16_777_216));
        assert_eq!(size("1KiB"), Ok(1024));
        assert_eq!(size("1.5MiB"), Ok(1_572_864));
        assert_eq!(size("2TiB"), Ok(2_199_023_255_552));
        assert_eq!(size("1kB"), Ok(1000));
        assert_eq!(size(" 64 MB "), Ok(64_000_000));
        assert_eq!(size("0.1TB"), Ok(100_000_000_000));
        assert_eq!(size("0.3GiB"), Ok(322_122_547));
        assert!(size("32").unwrap_err().contains("32GiB"));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "GiB", ".GiB", "1.2.3GiB", "-1GiB", "32Gb", "32G", "0GiB", "0.1B", "nanGiB", "99999999999TiB"]
        {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_size_without_a_tier_is_the_ram_tier() {
        assert_eq!(tier_size("32GiB"), Ok(("ram".to_owned(), 34_359_738_368)));
        assert_eq!(tier_size("1:fs=1TB"), Ok(("1:fs".to_owned(), 1_000_000_000_000)));
        assert!(tier_size("=1TB").is_err());
        assert!(tier_size("disk=1").unwrap_err().contains("unit"));
    }

    #[test]
    fn durations_are_above_zero_and_carry_a_unit() {
        assert_eq!(duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for text in ["10", "0s", "-1s", "", "soon"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_may_be_zero() {
        assert_eq!((duration_or_zero("0s"), duration_or_zero("0")), (Ok(Duration::ZERO), Ok(Duration::ZERO)));
        assert_eq!(duration_or_zero(" 1s "), Ok(Duration::from_secs(1)));
        for text in ["1", "-1s", "", "soon"] {
            assert!(duration_or_zero(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_are_finite_and_above_zero() {
        assert_eq!(positive("36166"), Ok(36_166.0));
        assert_eq!((points("100"), points("0.5")), (Ok(100.0), Ok(0.5)));
        assert!(points("100.1").unwrap_err().contains("100 or less") && points("0").is_err());
        for text in ["0", "-1", "nan", "inf", "1e999", "", "x"] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert_eq!((counting::<u32>(" 4 "), counting::<u64>("4294967296")), (Ok(4), Ok(4_294_967_296)));
        for text in ["0", "-1", "1.5", "x", "4294967296", ""] {
            assert!(counting::<u32>(text).unwrap_err().starts_with("must be"), "{text}");
        }
        assert_eq!(whole::<usize>("0"), Ok(0));
        assert_eq!((switch("on"), switch("off")), (Ok(true), Ok(false)));
        assert!(switch("yes").is_err());
    }

    #[test]
    fn listen_addresses() {
        let parsed = |text: &str| Listen::parse(text).map(|l| (l.host, l.port));
        assert_eq!(parsed(":10477"), Ok((None, 10477)));
        assert_eq!(parsed("127.0.0.1:0"), Ok((Some("127.0.0.1".into()), 0)));
        assert_eq!(parsed("[::1]:10477"), Ok((Some("::1".into()), 10477)));
        assert_eq!(parsed("localhost:80"), Ok((Some("localhost".into()), 80)));
        assert!(parsed("10477").unwrap_err().contains(":10477"));
        assert!(parsed("localhost").unwrap_err().contains("localhost:10477"));
        assert!(parsed("::1:10477").unwrap_err().contains("[::1]:10477"));
        assert!(parsed("host:99999").is_err());
        assert_eq!(parsed("*:10477").unwrap_err(), "write :10477 to listen on every interface");
        for text in ["http://127.0.0.1:29767", "http://127.0.0.1:29767/metrics"] {
            let said = "a listener has no URL: write host and port alone, 127.0.0.1:29767";
            assert_eq!(parsed(text).unwrap_err(), said);
        }
        assert_eq!(Listen::parse("[::1]:1").unwrap().to_string(), "[::1]:1");
    }

    #[test]
    fn a_listener_knows_its_own_address_where_the_spelling_proves_it() {
        for (listen, host, port, is_own) in [
            ("127.0.0.1:10477", "127.0.0.1", 10477, true),
            ("127.0.0.1:10477", "localhost", 10477, true),
            ("localhost:10477", "localhost", 10477, true),
            ("LocalHost:10477", "127.0.0.1", 10477, true),
            (":10477", "127.0.0.5", 10477, true),
            (":10477", "::1", 10477, true),
            (":10477", "0.0.0.0", 10477, true),
            ("0.0.0.0:10477", "127.0.0.1", 10477, true),
            ("[::]:10477", "127.0.0.1", 10477, true),
            ("10.0.0.5:10477", "10.0.0.5", 10477, true),
            // Another port, another address, or a name or an address of which nobody knows.
            ("127.0.0.1:10477", "127.0.0.1", 8000, false),
            ("127.0.0.1:10477", "127.0.0.2", 10477, false),
            ("127.0.0.1:10477", "::1", 10477, false),
            ("0.0.0.0:10477", "::1", 10477, false),
            (":10477", "10.0.0.5", 10477, false),
            (":10477", "gpu-1", 10477, false),
            ("gpu-1:10477", "gpu-1", 10477, false),
            (":0", "127.0.0.1", 10477, false),
        ] {
            assert_eq!(Listen::parse(listen).unwrap().answers(host, port), is_own, "{listen} {host}:{port}");
        }
    }

    #[test]
    fn telemetry_paths() {
        assert_eq!(telemetry_path("/metrics/"), Ok("/metrics".to_owned()));
        assert_eq!(telemetry_path("/"), Ok("/".to_owned()));
        for text in ["metrics", "/debug", "/-/ready/", "/a?b", ""] {
            assert!(telemetry_path(text).is_err(), "{text}");
        }
    }
}
