//! Whether the server of a handshake asked for a client certificate, and whether it was shown one. By TLS 1.2 a server that was
//! shown none may refuse in words that say nothing of it.

use std::sync::{Arc, Mutex, PoisonError};

use tokio_rustls::rustls::SignatureScheme;
use tokio_rustls::rustls::client::ResolvesClientCert;
use tokio_rustls::rustls::sign::CertifiedKey;

use super::identity::Identity;

/// What the server of the last handshake wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Demand {
    /// No certificate of ours.
    #[default]
    None,
    /// One, and it was shown none.
    Unmet,
    /// One, which it was shown.
    Met,
}

/// Shows our certificate, where we have one, and takes note of who wants it. A client has one handshake at a time.
#[derive(Debug)]
pub(super) struct Demands {
    identity: Option<Arc<Identity>>,
    last: Mutex<Demand>,
}

impl Demands {
    pub(super) fn met_with(identity: Option<Arc<Identity>>) -> Demands {
        Demands { identity, last: Mutex::default() }
    }

    /// To be said before each handshake.
    pub(super) fn begin(&self) {
        self.note(Demand::None);
    }

    /// Of the handshake that began last.
    pub(super) fn last(&self) -> Demand {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, demand: Demand) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = demand;
    }
}

impl ResolvesClientCert for Demands {
    /// Is called where the server asks, and only there.
    fn resolve(&self, hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let shown = self.identity.as_ref().and_then(|identity| identity.resolve(hints, schemes));
        self.note(if shown.is_some() { Demand::Met } else { Demand::Unmet });
        shown
    }

    fn has_certs(&self) -> bool {
        self.identity.is_some()
    }
}
