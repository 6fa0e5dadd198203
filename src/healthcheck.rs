//! `healthcheck`: asks a running exporter whether it serves, for the HEALTHCHECK of a container that has no curl.
//!
//! It asks for liveness, which does not depend on the engine: restarting the exporter would not bring one back.

use std::time::Duration;

use crate::cli::Listen;
use crate::upstream::{Address, AddressError, Client, Endpoint, Options, Other, TlsOptions, TrustError, UpstreamError};

/// What is asked for.
const PATH: &str = "/-/healthy";

/// An exporter that needs longer than this for one word is not healthy.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Why the exporter does not count as healthy.
#[derive(Debug, thiserror::Error)]
pub enum Unhealthy {
    /// There is nowhere to ask.
    #[error("the listen address has port 0, so nobody knows where to ask: name a place with --url")]
    Nowhere,
    /// It did not say that it is healthy.
    #[error("{address} {why}")]
    No {
        /// Who was asked.
        address: Address,
        /// What came of it.
        why: String,
    },
    /// TLS cannot be spoken.
    #[error(transparent)]
    Trust(#[from] TrustError),
}

/// An address with the path that is meant where it has none.
///
/// # Errors
/// What is wrong with the text.
pub fn address(text: &str) -> Result<Address, AddressError> {
    Address::parse_or(text, PATH)
}

/// Asks at `url`, or else at the address that is listened on. `tls` is used where that is https.
///
/// # Errors
/// [`Unhealthy`] unless it answers that it is.
pub async fn ask(url: Option<Address>, listen: &Listen, tls: TlsOptions) -> Result<(), Unhealthy> {
    let address = url.or_else(|| listening(listen)).ok_or(Unhealthy::Nowhere)?;
    let options = Options {
        address: address.clone(),
        timeout: TIMEOUT,
        max_bytes: 4096,
        min_interval: Duration::ZERO,
        secret: None,
        tls,
    };
    match Client::open(options).await?.fetch().await {
        Ok(_) => Ok(()),
        // It asks for a password: it serves.
        Err(UpstreamError::Auth { .. }) => Ok(()),
        Err(error) => Err(Unhealthy::No { address, why: why(&error) }),
    }
}

/// Where a listener can be reached from this box.
fn listening(listen: &Listen) -> Option<Address> {
    let host = match listen.host.as_deref() {
        None | Some("0.0.0.0") => "127.0.0.1",
        Some("::") => "::1",
        Some(host) => host,
    };
    let endpoint = Endpoint::Tcp { host: host.to_ascii_lowercase(), port: listen.port, tls: false };
    (listen.port > 0).then(|| Address { endpoint, path: PATH.to_owned() })
}

/// What is wrong, and what to do where that differs from the advice that fits an engine.
fn why(error: &UpstreamError) -> String {
    match error {
        error if error.speaks_tls() => "speaks TLS: ask with --url https://…".to_owned(),
        UpstreamError::Content(_) | UpstreamError::NotHttp => {
            "did not answer as this exporter does; if it serves TLS, ask with --url https://…".to_owned()
        }
        UpstreamError::TooLarge { .. } => {
            format!("answered with more than an exporter says of its health: ask for {PATH}, or give --url no path")
        }
        _ => error.of_other(&Other { who: "the exporter", flag: "--url" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::{TlsFault, Unreached};

    #[test]
    fn a_listener_on_every_interface_is_asked_on_loopback() {
        let asked = |text: &str| listening(&Listen::parse(text).unwrap()).map(|address| address.to_string());
        assert_eq!(asked("127.0.0.1:10477").as_deref(), Some("http://127.0.0.1:10477/-/healthy"));
        assert_eq!(asked(":10477").as_deref(), Some("http://127.0.0.1:10477/-/healthy"));
        assert_eq!(asked("0.0.0.0:1").as_deref(), Some("http://127.0.0.1:1/-/healthy"));
        assert_eq!(asked("[::]:1").as_deref(), Some("http://[::1]:1/-/healthy"));
        assert_eq!(asked("gpu-1:1").as_deref(), Some("http://gpu-1:1/-/healthy"));
        assert_eq!(asked("127.0.0.1:0"), None);
    }

    #[test]
    fn a_remedy_names_the_flag_of_this_command() {
        let plain = why(&UpstreamError::Tls(TlsFault::Plain));
        assert!(plain.contains("http:// in place of https:// after --url"), "{plain}");
        for said in ["HTTPS is spoken here; set the scheme to https", "Client sent an HTTP request to an HTTPS server."]
        {
            let error = UpstreamError::Status { code: 400, excerpt: said.to_owned() };
            assert_eq!(why(&error), "speaks TLS: ask with --url https://…");
        }
        for cause in [Unreached::NoSocket, Unreached::IdleSocket, Unreached::NoRoute("x".into())] {
            let said = why(&UpstreamError::Connect(cause));
            assert!(!said.contains("--upstream") && !said.contains("engine"), "{said}");
        }
    }

    #[test]
    fn the_reason_is_one_short_clause() {
        let said = why(&UpstreamError::Connect(Unreached::Refused));
        assert!(said.starts_with("cannot be reached: connection refused. Does the exporter run"), "{said}");
        assert_eq!(why(&UpstreamError::Status { code: 404, excerpt: String::new() }), "answered with status 404");
        assert_eq!(why(&UpstreamError::Timeout(TIMEOUT)), "did not answer within 2s");
    }
}
