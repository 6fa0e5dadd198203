//! Whether a port that closed a plain connection without a word speaks TLS. Servers on OpenSSL do that: they take a plain
//! request for a broken handshake, and close.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, Error};

use super::verify::Unverified;
use super::way::Way;

/// The longest that this is worth.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Begins a handshake, and asks for nothing: no certificate is believed, and none is shown.
pub(super) async fn speaks_tls(way: &Way, host: &str, port: u16) -> bool {
    timeout(PATIENCE, handshake(way, host, port)).await.ok().flatten().is_some()
}

/// Something where the port answered in TLS, be it with a refusal.
async fn handshake(way: &Way, host: &str, port: u16) -> Option<()> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Unverified::new()))
        .with_no_client_auth();
    let name = ServerName::try_from(host.to_owned()).ok()?;
    let stream = way.connect(host, port).await.ok()?;
    match TlsConnector::from(Arc::new(config)).connect(name, stream).await {
        Ok(_) => Some(()),
        Err(error) => match error.get_ref()?.downcast_ref::<Error>()? {
            Error::AlertReceived(_) | Error::PeerIncompatible(_) => Some(()),
            _ => None,
        },
    }
}
