//! The way to a host: its addresses, looked up for each new connection, and the one that answered the last time.

use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;

use super::Flight;
use crate::aside::aside;
use crate::race;

/// What is known of it.
pub(super) struct Way {
    /// While the resolver hangs no more than one thread waits for it.
    looking: Flight<io::Result<Vec<SocketAddr>>>,
    last: Mutex<Option<SocketAddr>>,
}

impl Way {
    pub(super) fn unknown() -> Way {
        Way { looking: Flight::keeping(Duration::ZERO), last: Mutex::default() }
    }

    /// A connection to the first of its addresses that answers.
    pub(super) async fn connect(&self, host: &str, port: u16) -> io::Result<TcpStream> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = race::connect(&self.addresses(host, port).await?, last).await?;
        stream.set_nodelay(true)?;
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = stream.peer_addr().ok();
        Ok(stream)
    }

    async fn addresses(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        // A literal address skips the resolver and its thread.
        if let Ok(ip) = host.parse() {
            return Ok(vec![SocketAddr::new(ip, port)]);
        }
        let (host, broke) = (host.to_owned(), || Err(io::Error::other("the name could not be looked up")));
        let look = async move { aside(move || race::addresses(&host, port)).await.unwrap_or_else(broke) };
        let looked = self.looking.join(|| look).await;
        match looked.as_deref() {
            Some(Ok(addresses)) => Ok(addresses.clone()),
            Some(Err(error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => broke(),
        }
    }
}
