//! Where a stream comes from: `tcp://HOST:PORT`, the only transport of vLLM's that crosses containers. Pure.

use std::fmt;

/// Host and port of a ZeroMQ endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Name or address; an IPv6 address without its brackets; empty for every interface.
    pub host: String,
    /// Port.
    pub port: u16,
}

impl Address {
    /// Reads `tcp://HOST:PORT`, or `tcp://HOST:FIRST-LAST` for one endpoint a data-parallel rank.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence about the text. It does not repeat the text, which may hold a password.
    pub fn parse_all(text: &str) -> Result<Vec<Address>, String> {
        let rest = text.strip_prefix("tcp://").ok_or("does not begin with tcp://")?;
        let (host, ports) = rest.rsplit_once(':').ok_or("has no :PORT at its end")?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.contains('@') {
            return Err(
                "holds a user or a password, which no such stream asks for; and they would show in process lists"
                    .to_owned(),
            );
        }
        if bare.is_empty() || bare.contains(['/', '[', ']', ' ']) || (bare == host && bare.contains(':')) {
            return Err("has no host that can be used; an IPv6 address needs brackets".to_owned());
        }
        let host = if bare == "*" { String::new() } else { bare.to_owned() };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        match (first.parse::<u16>(), last.parse::<u16>()) {
            (Ok(first), Ok(last)) if first > 0 && first <= last && last - first < 1024 => {
                Ok((first..=last).map(|port| Address { host: host.clone(), port }).collect())
            }
            _ => Err("has no port from 1 to 65535 at its end, nor a range of them".to_owned()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.as_str() {
            "" => write!(f, "tcp://*:{}", self.port),
            host if host.contains(':') => write!(f, "tcp://[{host}]:{}", self.port),
            host => write!(f, "tcp://{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_and_written_the_same_way() {
        for text in ["tcp://127.0.0.1:5557", "tcp://[::1]:1", "tcp://*:65535", "tcp://engine-0.pods:5557"] {
            let all = Address::parse_all(text).unwrap();
            assert_eq!(all.iter().map(Address::to_string).collect::<Vec<_>>(), [text]);
        }
        let ranks = Address::parse_all("tcp://h:5557-5559").unwrap();
        assert_eq!(ranks.iter().map(|address| address.port).collect::<Vec<_>>(), [5557, 5558, 5559]);
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "127.0.0.1:5557",
            "ipc:///tmp/x",
            "tcp://h",
            "tcp://:1",
            "tcp://h:0",
            "tcp://::1:5",
            "tcp://h:9-7",
            "tcp://h:x",
            "tcp://u:pw@h:1",
        ] {
            assert!(Address::parse_all(text).is_err(), "{text}");
        }
    }
}
