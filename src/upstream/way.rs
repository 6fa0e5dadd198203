//! The way to a host: its addresses, looked up for each new connection, and the one that answered the last time.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;

use super::{Flight, Unreached};
use crate::aside::aside;
use crate::race::{self, Unresolved};

/// What is known of it.
pub(super) struct Way {
    /// While the resolver hangs no more than one thread waits for it.
    looking: Flight<Result<Vec<SocketAddr>, Unresolved>>,
    last: Mutex<Option<SocketAddr>>,
}

impl Way {
    pub(super) fn unknown() -> Way {
        Way { looking: Flight::keeping(Duration::ZERO), last: Mutex::default() }
    }

    /// A connection to the first of its addresses that answers.
    pub(super) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, Unreached> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let addresses = self.addresses(host, port).await?;
        let connected = race::connect(&addresses, last).await.and_then(|stream| {
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        let stream = connected.map_err(|error| Unreached::of_port(&error))?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = stream.peer_addr().ok();
        Ok(stream)
    }

    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Unresolved> {
        // A literal address skips the resolver and its thread.
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let (name, broke) = (host.to_owned(), Unresolved::NoAnswer(host.to_owned()));
        let also_broke = broke.clone();
        let look = async move { aside(move || race::addresses(&name, port)).await.unwrap_or(Err(also_broke)) };
        self.looking.join(|| look).landed().await.map_or(Err(broke), |looked| (*looked).clone())
    }
}
