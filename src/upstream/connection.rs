//! One HTTP/1 connection over TCP, TLS or a socket file, and the slot in which it waits for the next scrape.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;
use tokio_rustls::rustls::pki_types::ServerName;

use super::address::Endpoint;
use super::demand::Demand;
use super::error::UpstreamError;
use super::first_byte::FirstByte;
use super::tls::Tls;
use super::tls_fault::TlsFault;
use super::unreached::Unreached;
use super::way::Way;

/// The most that a response head may have; also what hyper reads ahead.
pub(super) const HEAD_LIMIT: usize = 256 * 1024;
/// The most lines of a response head.
pub(super) const HEAD_LINES: usize = 100;

/// An open connection. Dropping it closes it at once, also in the midst of an answer.
pub(super) struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    /// The first byte that came over a connection without TLS.
    first: Option<FirstByte>,
    /// What the server asked for in the handshake. By TLS 1.3 it refuses only after it.
    demand: Demand,
    /// Moves the bytes; ends with this value.
    _driver: JoinSet<()>,
}

impl Connection {
    pub(super) async fn open(endpoint: &Endpoint, way: &Way, tls: Option<&Tls>) -> Result<Connection, UpstreamError> {
        let (stream, first) = dial(endpoint, way, tls).await?;
        let demand = tls.map(Tls::demand).unwrap_or_default();
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(HEAD_LIMIT)
            .max_headers(HEAD_LINES)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|error| UpstreamError::from_exchange(&error))?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // The same error reaches whoever waits for the response.
            drop(driver.await);
        });
        Ok(Connection { sender, first, demand, _driver: tasks })
    }

    pub(super) async fn send(&mut self, request: Request<Empty<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }

    /// What a failure before the body means.
    pub(super) fn meaning(&self, error: &hyper::Error) -> UpstreamError {
        let in_tls = self.first.as_ref().is_some_and(FirstByte::begins_tls);
        match UpstreamError::from_exchange(error) {
            _ if in_tls => UpstreamError::SpeaksTls,
            UpstreamError::Tls(fault) => UpstreamError::Tls(fault.after(self.demand)),
            error => error,
        }
    }
}

/// Whether a connection that had been idle was simply closed by the other side: vLLM does so after 5 s.
pub(super) fn was_stale(error: &hyper::Error) -> bool {
    !error.is_parse()
}

/// Keeps one idle connection. A second is never needed, because fetches are shared.
#[derive(Default)]
pub(super) struct IdleSlot(Mutex<Option<Connection>>);

impl IdleSlot {
    pub(super) fn take(&self) -> Option<Connection> {
        self.swap(None).filter(|connection| !connection.sender.is_closed())
    }

    pub(super) fn put(&self, connection: Connection) {
        self.swap(Some(connection));
    }

    fn swap(&self, connection: Option<Connection>) -> Option<Connection> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), connection)
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

async fn dial(
    endpoint: &Endpoint,
    way: &Way,
    tls: Option<&Tls>,
) -> Result<(Box<dyn Stream>, Option<FirstByte>), UpstreamError> {
    match (endpoint, tls) {
        (Endpoint::Unix(socket), _) => {
            let refused = |error| UpstreamError::Connect(Unreached::of_socket(&error));
            Ok((Box::new(UnixStream::connect(socket).await.map_err(refused)?), None))
        }
        (Endpoint::Tcp { host, port, .. }, tls) => {
            let stream = way.connect(host, *port).await.map_err(UpstreamError::Connect)?;
            match tls {
                None => {
                    let (stream, first) = FirstByte::of(stream);
                    Ok((Box::new(stream), Some(first)))
                }
                Some(tls) => Ok((Box::new(secure(host, stream, tls).await?), None)),
            }
        }
    }
}

async fn secure(
    host: &str,
    stream: TcpStream,
    tls: &Tls,
) -> Result<tokio_rustls::client::TlsStream<TcpStream>, UpstreamError> {
    let name = match &tls.server_name {
        Some(name) => name.clone(),
        None => ServerName::try_from(host.to_owned())
            .map_err(|_| UpstreamError::Tls(TlsFault::NoSuchName(host.to_owned())))?,
    };
    tls.begin();
    tls.connector.connect(name, stream).await.map_err(|error| UpstreamError::Tls(tls.fault(&error)))
}
