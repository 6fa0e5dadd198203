//! `healthcheck`: asks a running exporter whether it serves, for the HEALTHCHECK of a container that has no curl.
//!
//! It asks for liveness, which does not depend on the engine: restarting the exporter would not bring one back.

use std::time::Duration;

use crate::cli::Listen;
use crate::upstream::{Address, AddressError, Client, Endpoint, Options, TlsOptions, TrustError, UpstreamError};

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

/// What is wrong, without the advice that fits an engine.
fn why(error: &UpstreamError) -> String {
    match error {
        UpstreamError::Content(_) => {
            "did not answer as this exporter does; if it serves TLS, ask with --url https://…".to_owned()
        }
        UpstreamError::SpeaksTls => "speaks TLS: ask with --url https://…".to_owned(),
        // Their remedies are flags that this command has too.
        UpstreamError::Tls(_) => error.to_string(),
        _ => error.seen(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_reason_is_one_short_clause() {
        assert_eq!(why(&UpstreamError::Connect("connection refused".into())), "cannot be reached: connection refused");
        assert_eq!(why(&UpstreamError::Status { code: 404, excerpt: String::new() }), "answered with status 404");
        assert_eq!(why(&UpstreamError::Timeout(TIMEOUT)), "did not answer within 2s");
    }
}
