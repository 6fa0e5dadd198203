//! Where the upstream is: the address as people write it, taken apart. Nothing here connects to anything.
//!
//! An address never carries credentials. They come from files, so that no process list, log or page shows them.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use hyper::Uri;

/// The path that is meant when an address has none. vLLM answers `/metrics/` with another handler.
const DEFAULT_PATH: &str = "/metrics";

/// One place to fetch from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// What to connect to.
    pub endpoint: Endpoint,
    /// Path and query of the request.
    pub path: String,
}

/// What to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A host and a port.
    Tcp {
        /// Name or address, in lower case and without brackets.
        host: String,
        /// Port.
        port: u16,
        /// Whether TLS is spoken (https).
        tls: bool,
    },
    /// A socket file.
    Unix(PathBuf),
}

/// Why an address cannot be used. Its text never repeats the address: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// `http://user:password@host`.
    #[error(
        "holds credentials, which would show in process lists and logs: \
         use --upstream.basic-auth-file or --upstream.bearer-token-file instead"
    )]
    Credentials,
    /// Neither http, https nor unix.
    #[error("has an unknown scheme: use http://, https:// or unix:/path/to.sock")]
    Scheme,
    /// `unix:` with a path that does not begin at the root.
    #[error("needs the absolute path of a socket: unix:/path/to.sock")]
    Socket,
    /// A bare host: guessing between 80 and 8000 would be a guess.
    #[error("names no port: write host:port, for example 127.0.0.1:8000")]
    Port,
    /// Anything else.
    #[error("is no address: write host:port, http://host:port/path or unix:/path/to.sock")]
    Malformed,
}

impl Address {
    /// From `host:port`, a URL, or `unix:/path/to.sock`. Without a path (or with `/` alone) `/metrics` is meant.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        Address::parse_or(text, DEFAULT_PATH)
    }

    /// The same with another path that is meant where there is none.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse_or(text: &str, path: &str) -> Result<Address, AddressError> {
        let text = text.trim();
        if let Some(socket) = text.strip_prefix("unix:") {
            return unix(socket, path);
        }
        match text.split_once("://") {
            Some((scheme, rest)) => {
                let tls = match scheme.to_ascii_lowercase().as_str() {
                    "http" => false,
                    "https" => true,
                    _ => return Err(AddressError::Scheme),
                };
                tcp(rest, tls, Some(if tls { 443 } else { 80 }), path)
            }
            None => tcp(text, false, None, path),
        }
    }

    /// Whether the upstream runs on this box: a loopback address or a socket file.
    pub fn is_local(&self) -> bool {
        match &self.endpoint {
            Endpoint::Unix(_) => true,
            Endpoint::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
            }
        }
    }

    /// The same place with another path: where a redirect leads to. `None` when it leads to another scheme, host
    /// or port: another port of the host is another server, and it gets neither our request nor our token.
    pub fn redirected(&self, location: &str) -> Option<Address> {
        let there = match location {
            elsewhere if elsewhere.starts_with("//") => return None,
            path if path.starts_with('/') => self.with_path(path)?,
            url if url.contains("://") => Address::parse(url).ok()?,
            relative => {
                let folder = self.path.split('?').next()?.rsplit_once('/').map_or("", |(folder, _)| folder);
                self.with_path(&format!("{folder}/{relative}"))?
            }
        };
        (there.endpoint == self.endpoint || self.is_own_socket(&there))
            .then(|| Address { path: there.path, ..self.clone() })
    }

    fn with_path(&self, path: &str) -> Option<Address> {
        let path = Uri::try_from(path).ok()?.path_and_query()?.to_string();
        Some(Address { path, ..self.clone() })
    }

    /// A server behind a socket file knows itself by the Host header that we sent.
    fn is_own_socket(&self, there: &Address) -> bool {
        matches!(self.endpoint, Endpoint::Unix(_)) && there.endpoint.authority() == self.endpoint.authority()
    }
}

impl Endpoint {
    /// Value of the Host header: the port is left out where the scheme implies it.
    pub fn authority(&self) -> String {
        match self {
            Endpoint::Unix(_) => "localhost".to_owned(),
            Endpoint::Tcp { host, port: 80, tls: false } | Endpoint::Tcp { host, port: 443, tls: true } => {
                bracketed(host)
            }
            Endpoint::Tcp { host, port, .. } => format!("{}:{port}", bracketed(host)),
        }
    }
}

impl fmt::Display for Address {
    /// As a URL, without the query: some put a key there.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, query) = self.path.split_once('?').map_or((self.path.as_str(), ""), |(path, _)| (path, "?…"));
        match &self.endpoint {
            Endpoint::Unix(socket) => write!(f, "unix:{} ({path}{query})", socket.display()),
            Endpoint::Tcp { tls, .. } => {
                write!(f, "{}://{}{path}{query}", if *tls { "https" } else { "http" }, self.endpoint.authority())
            }
        }
    }
}

fn unix(socket: &str, path: &str) -> Result<Address, AddressError> {
    // `unix:///run/x.sock` is the same socket, written as a URL.
    let socket = socket.strip_prefix("//").unwrap_or(socket);
    if !socket.starts_with('/') {
        return Err(AddressError::Socket);
    }
    Ok(Address { endpoint: Endpoint::Unix(PathBuf::from(socket)), path: path.to_owned() })
}

fn tcp(rest: &str, tls: bool, default_port: Option<u16>, default_path: &str) -> Result<Address, AddressError> {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return Err(AddressError::Credentials);
    }
    let uri = Uri::try_from(format!("http://{rest}")).map_err(|_| AddressError::Malformed)?;
    let host = uri.host().filter(|host| !host.trim_matches(['[', ']']).is_empty()).ok_or(AddressError::Malformed)?;
    // Uri reads a port that is out of range as none at all.
    let port = match authority.get(host.len()..).unwrap_or_default().strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(AddressError::Malformed)?,
        None => default_port.ok_or(AddressError::Port)?,
    };
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    let path = match (uri.path(), uri.query()) {
        ("" | "/", None) => default_path.to_owned(),
        ("" | "/", Some(query)) => format!("{default_path}?{query}"),
        (path, None) => path.to_owned(),
        (path, Some(query)) => format!("{path}?{query}"),
    };
    Ok(Address { endpoint: Endpoint::Tcp { host, port, tls }, path })
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str, port: u16, tls: bool, path: &str) -> Result<Address, AddressError> {
        Ok(Address { endpoint: Endpoint::Tcp { host: host.into(), port, tls }, path: path.into() })
    }

    #[test]
    fn every_spelling_of_an_address() {
        assert_eq!(Address::parse("127.0.0.1:8000"), at("127.0.0.1", 8000, false, "/metrics"));
        assert_eq!(Address::parse("gpu-1:8000/x/metrics"), at("gpu-1", 8000, false, "/x/metrics"));
        assert_eq!(Address::parse("http://gpu-1"), at("gpu-1", 80, false, "/metrics"));
        assert_eq!(Address::parse("http://gpu-1:8000/"), at("gpu-1", 8000, false, "/metrics"));
        assert_eq!(Address::parse("http://gpu-1:8000/metrics/"), at("gpu-1", 8000, false, "/metrics/"));
        assert_eq!(Address::parse("HTTPS://gpu-1/m?a=b"), at("gpu-1", 443, true, "/m?a=b"));
        assert_eq!(Address::parse("http://[::1]:8000/metrics"), at("::1", 8000, false, "/metrics"));
        assert_eq!(Address::parse("[::1]:8000"), at("::1", 8000, false, "/metrics"));
        for text in ["unix:/run/vllm.sock", "unix:///run/vllm.sock"] {
            let socket = Address { endpoint: Endpoint::Unix("/run/vllm.sock".into()), path: "/metrics".into() };
            assert_eq!(Address::parse(text), Ok(socket));
        }
    }

    #[test]
    fn an_address_that_cannot_be_used_says_why() {
        use AddressError::*;
        for (text, error) in [
            ("http://user:secret@host:1/metrics", Credentials),
            ("user:secret@host:1", Credentials),
            ("ftp://host/", Scheme),
            ("unix:relative.sock", Socket),
            ("unix:", Socket),
            ("gpu-1", Port),
            ("", Malformed),
            ("http://", Malformed),
            ("http://host:99999/", Malformed),
            ("host:", Malformed),
            ("a b:1", Malformed),
        ] {
            assert_eq!(Address::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn redirects_stay_on_the_same_server() {
        let here = Address::parse("http://gpu-1:8000/engine/metrics").unwrap();
        let path = |location: &str| here.redirected(location).map(|there| there.path);
        assert_eq!(path("/metrics/"), Some("/metrics/".into()));
        assert_eq!(path("metrics/"), Some("/engine/metrics/".into()));
        assert_eq!(path("/login?next=http://x/"), Some("/login?next=http://x/".into()));
        assert_eq!(path("http://GPU-1:8000/v2/metrics?x=1"), Some("/v2/metrics?x=1".into()));
        for elsewhere in ["http://gpu-2:8000/metrics", "http://gpu-1:9000/metrics", "https://gpu-1:8000/m", "//gpu-2/m"]
        {
            assert_eq!(path(elsewhere), None, "{elsewhere}");
        }
        assert_eq!(path("http://user:pw@gpu-1:8000/m"), None);
        let socket = Address::parse("unix:/run/vllm.sock").unwrap();
        assert_eq!(socket.redirected("http://localhost/metrics/").map(|there| there.path), Some("/metrics/".into()));
        assert_eq!(socket.redirected("http://other/metrics/"), None);
    }

    #[test]
    fn what_is_shown_has_no_query_and_host_headers_no_default_port() {
        let shown = |text: &str| Address::parse(text).map(|a| (a.to_string(), a.endpoint.authority()));
        assert_eq!(shown("http://h:80/m?key=s3cret"), Ok(("http://h/m?…".into(), "h".into())));
        assert_eq!(shown("https://[::1]:8443"), Ok(("https://[::1]:8443/metrics".into(), "[::1]:8443".into())));
        assert!(!Address::parse("http://u:s3cret@h").unwrap_err().to_string().contains("s3cret"));
    }

    #[test]
    fn local_is_loopback_or_a_socket() {
        for (text, local) in
            [("127.0.0.5:1", true), ("[::1]:1", true), ("LocalHost:1", true), ("unix:/s", true), ("10.0.0.1:1", false)]
        {
            assert_eq!(Address::parse(text).unwrap().is_local(), local, "{text}");
        }
    }
}
