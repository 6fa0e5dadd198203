//! The names that a listener on loopback answers to.
//!
//! A page of a stranger can have a browser on this box ask us, under a name of the stranger's that leads to loopback (DNS
//! rebinding); the browser then lets that page read the answer. The `Host` of such a request is the stranger's name.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::Request;
use hyper::header::HOST;
use hyper::http::uri::Authority;

/// What is answered beside addresses, `localhost` and names without a dot, which no stranger can have.
#[derive(Debug, Default)]
pub struct Names {
    allowed: Vec<String>,
    told: AtomicBool,
}

impl Names {
    /// With the names of `--web.allowed-host`.
    pub fn new(allowed: &[String]) -> Names {
        Names { allowed: allowed.to_vec(), told: AtomicBool::new(false) }
    }

    /// Whether every name by which a request calls us is one of ours. The first that is not is told to the log.
    pub(crate) fn answer<B>(&self, request: &Request<B>) -> bool {
        let hosts = request.headers().get_all(HOST).iter().map(|host| host.to_str().unwrap_or("?.?"));
        let target = request.uri().authority().map(Authority::as_str);
        let Some(strange) = hosts.chain(target).find(|host| !self.knows(host)) else { return true };
        if !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                host = strange,
                "a request was refused: it calls this listener on loopback by a name that a stranger may have. If it is yours, allow it with --web.allowed-host"
            );
        }
        false
    }

    /// A `Host`, with or without a port. None at all is as good as an address: no browser sends it.
    fn knows(&self, host: &str) -> bool {
        if host.is_empty() {
            return true;
        }
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().to_ascii_lowercase();
        let bare = name.strip_suffix('.').unwrap_or(&name);
        let literal = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        literal
            || !name.contains('.')
            || bare == "localhost"
            || bare.ends_with(".localhost")
            || self.allowed.iter().any(|allowed| allowed == bare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_no_stranger_can_have_is_answered() {
        let names = Names::new(&["gpu-1.example.com".to_owned()]);
        for host in [
            "",
            "127.0.0.1",
            "127.0.0.1:10477",
            "192.0.2.7:1",
            "[::1]",
            "[2001:db8::1]:10477",
            "localhost",
            "LOCALHOST:10477",
            "localhost.",
            "kvtier.localhost:1",
            "exporter",
            "gpu-1:10477",
            "gpu-1.example.com",
            "GPU-1.Example.Com.:10477",
        ] {
            assert!(names.knows(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:10477",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "notlocalhost.",
            "evil.",
            "gpu-2.example.com",
            "x.gpu-1.example.com",
            "127.1",
            "0x7f.0.0.1",
            "127.0.0.1@evil.example",
            "a b",
            "?.?",
        ] {
            assert!(!names.knows(host), "{host}");
        }
    }

    #[test]
    fn every_name_of_a_request_counts() {
        let names = Names::default();
        let request = |target: &str, hosts: &[&str]| {
            let builder = hosts.iter().fold(Request::get(target), |builder, host| builder.header(HOST, *host));
            builder.body(()).unwrap()
        };
        assert!(names.answer(&request("/metrics", &[])) && names.answer(&request("/", &["localhost"])));
        assert!(!names.answer(&request("/", &["localhost", "evil.example"])));
        assert!(!names.answer(&request("http://evil.example/metrics", &["localhost"])));
    }
}
