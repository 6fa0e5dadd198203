//! Our own HTTP side: listeners, routes, limits, and an end that comes in time.
//!
//! It knows nothing of metrics but their content type. HTTP/1 only.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::Ipv6Addr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, REFERRER_POLICY};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cli::Listen;
use crate::page;
use crate::scrape::Scraper;

/// Valid for Prometheus 2 and 3, whatever the client would accept beside it.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Connections at a time; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: u32 = 512;
/// For a request's head, and for the wait between requests of one connection. Longer than every usual scrape
/// interval, so that no scrape meets a connection which is just being closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);
/// Also the most that a request's head may have.
const BUFFER: usize = 64 * 1024;
/// How long running answers may take once the end was asked for.
const DRAIN: Duration = Duration::from_secs(2);
/// After a failed accept (out of descriptors, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is kept of the client's timeout for the way back.
const TIMEOUT_OFFSET: f64 = 0.5;
const TIMEOUT_FLOOR: f64 = 0.1;

/// An address that cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {listen}: {}; choose another address with --web.listen-address", hint(.error))]
pub struct BindError {
    listen: Listen,
    error: io::Error,
}

fn hint(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "the address is in use, perhaps by another kvtier-exporter".to_owned(),
        _ => error.to_string(),
    }
}

/// What is served.
pub struct Site {
    /// Answers scrapes.
    pub scraper: Scraper,
    /// Path of the metrics, without a slash at its end.
    pub telemetry_path: String,
    /// 502 instead of 200 while the upstream is down.
    pub strict: bool,
}

/// Opens a listener for each address.
///
/// # Errors
/// [`BindError`] for the first that cannot be opened.
pub async fn bind(addresses: &[Listen]) -> Result<Vec<TcpListener>, BindError> {
    let mut listeners = Vec::new();
    for listen in addresses {
        let listener = bind_one(listen).await.map_err(|error| BindError { listen: listen.clone(), error })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

async fn bind_one(listen: &Listen) -> io::Result<TcpListener> {
    match &listen.host {
        Some(host) => TcpListener::bind((host.as_str(), listen.port)).await,
        // The IPv6 wildcard takes IPv4 too, where the box has IPv6.
        None => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, listen.port)).await {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => TcpListener::bind(("0.0.0.0", listen.port)).await,
            bound => bound,
        },
    }
}

/// Serves until `end` comes, then lets running answers finish for a short while.
pub async fn serve(listeners: Vec<TcpListener>, site: Site, end: impl Future<Output = ()>) {
    let (site, room) = (Arc::new(site), Arc::new(Semaphore::new(MAX_CONNECTIONS as usize)));
    let (ending, ended) = watch::channel(());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, Arc::clone(&site), Arc::clone(&room), ended.clone()));
    }
    end.await;
    accepting.shutdown().await;
    ending.send_replace(());
    // Every connection holds a place: when all places are free, all connections are done.
    if timeout(DRAIN, room.acquire_many(MAX_CONNECTIONS)).await.is_err() {
        tracing::warn!("some answers did not finish in time and are cut off");
    }
}

async fn accept(listener: TcpListener, site: Arc<Site>, room: Arc<Semaphore>, ended: watch::Receiver<()>) {
    let mut failing = false;
    // The semaphore is never closed.
    while let Ok(place) = Arc::clone(&room).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                failing = false;
                let (site, ended) = (Arc::clone(&site), ended.clone());
                tokio::spawn(async move {
                    connection(stream, site, ended).await;
                    drop(place);
                });
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept connections, trying on");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, site: Arc<Site>, mut ended: watch::Receiver<()>) {
    // Only a matter of speed.
    drop(stream.set_nodelay(true));
    let service = service_fn(move |request| handle(Arc::clone(&site), request));
    let mut connection = pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(stream), service)
    );
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = ended.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a client's connection broke");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    Metrics,
    Home,
    Status,
    Debug,
    Healthy,
    Ready,
}

fn route(path: &str, telemetry_path: &str) -> Option<Route> {
    if path == telemetry_path || path.strip_suffix('/') == Some(telemetry_path) {
        return Some(Route::Metrics);
    }
    match path {
        "/" => Some(Route::Home),
        "/api/status" => Some(Route::Status),
        "/debug" => Some(Route::Debug),
        "/-/healthy" => Some(Route::Healthy),
        "/-/ready" => Some(Route::Ready),
        _ => None,
    }
}

async fn handle(site: Arc<Site>, request: Request<Incoming>) -> Result<Response<Pieces>, Infallible> {
    let Some(route) = route(request.uri().path(), &site.telemetry_path) else {
        return Ok(plain(StatusCode::NOT_FOUND, format!("not found; the metrics are at {}\n", site.telemetry_path)));
    };
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n".to_owned());
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    let header = request.headers().get("x-prometheus-scrape-timeout-seconds").and_then(|value| value.to_str().ok());
    let patience = patience(header, site.scraper.timeout());
    Ok(match route {
        Route::Metrics => metrics(&site, patience).await,
        Route::Debug => plain(StatusCode::OK, site.scraper.explanation(patience).await),
        Route::Home => home(&site),
        Route::Status => status(&site, patience).await,
        Route::Healthy => plain(StatusCode::OK, "healthy\n".to_owned()),
        Route::Ready => plain(StatusCode::OK, "ready\n".to_owned()),
    })
}

async fn metrics(site: &Site, patience: Duration) -> Response<Pieces> {
    let metrics = site.scraper.answer(patience).await;
    let status = if site.strict && !metrics.up { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
    answer(status, METRICS_TYPE, metrics.pieces)
}

/// How long a client waits: what it says, less the way back, and never longer than configured. What is no
/// number of seconds is ignored.
fn patience(header: Option<&str>, configured: Duration) -> Duration {
    let said = header.and_then(|text| text.trim().parse::<f64>().ok()).filter(|seconds| *seconds > 0.0);
    let said = said.and_then(|seconds| Duration::try_from_secs_f64((seconds - TIMEOUT_OFFSET).max(TIMEOUT_FLOOR)).ok());
    said.map_or(configured, |said| said.min(configured))
}

fn home(site: &Site) -> Response<Pieces> {
    let mut response =
        answer(StatusCode::OK, "text/html; charset=utf-8", vec![page::html(&site.telemetry_path).into()]);
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The page belongs to one version of the exporter.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

async fn status(site: &Site, patience: Duration) -> Response<Pieces> {
    match serde_json::to_vec(&site.scraper.status(patience).await) {
        Ok(json) => {
            let mut response = answer(StatusCode::OK, "application/json", vec![json.into()]);
            response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("the status cannot be written: {error}\n")),
    }
}

fn plain(status: StatusCode, text: String) -> Response<Pieces> {
    answer(status, "text/plain; charset=utf-8", vec![text.into()])
}

fn answer(status: StatusCode, content_type: &'static str, pieces: Vec<Bytes>) -> Response<Pieces> {
    let mut response = Response::new(Pieces::from(pieces));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

/// A body that is sent piece by piece, so that a page of many megabytes is never copied together. hyper sets
/// Content-Length from the size hint.
struct Pieces {
    left: VecDeque<Bytes>,
    bytes: u64,
}

impl From<Vec<Bytes>> for Pieces {
    fn from(pieces: Vec<Bytes>) -> Pieces {
        let left: VecDeque<Bytes> = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        let bytes = left.iter().map(|piece| piece.len() as u64).sum();
        Pieces { left, bytes }
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.left.pop_front();
        self.bytes -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_leaves_time_for_the_way_back() {
        let of = |header| patience(header, Duration::from_secs(10)).as_secs_f64();
        assert!((of(Some("5")) - 4.5).abs() < 1e-9);
        assert!((of(Some("0.2")) - 0.1).abs() < 1e-9, "the floor");
        assert!((of(Some("0.6")) - 0.1).abs() < 1e-6);
        assert!((of(Some("60")) - 10.0).abs() < 1e-9, "never longer than configured");
        for garbage in ["nan", "-1", "inf", "abc", "", "0", "1e400"] {
            assert!((of(Some(garbage)) - 10.0).abs() < 1e-9, "{garbage}");
        }
        assert!((of(Some("1e9")) - 10.0).abs() < 1e-9);
        assert!((of(None) - 10.0).abs() < 1e-9);
        assert_eq!(patience(Some("5"), Duration::from_millis(50)), Duration::from_millis(50));
    }

    #[test]
    fn routes_with_and_without_a_slash() {
        assert_eq!(route("/metrics", "/metrics"), Some(Route::Metrics));
        assert_eq!(route("/metrics/", "/metrics"), Some(Route::Metrics));
        assert_eq!(route("/metrics//", "/metrics"), None);
        assert_eq!(route("/metricsx", "/metrics"), None);
        assert_eq!(route("/", "/metrics"), Some(Route::Home));
        assert_eq!(route("/", "/"), Some(Route::Metrics));
        assert_eq!(route("/-/ready", "/"), Some(Route::Ready));
    }

    #[test]
    fn an_answer_knows_its_length_while_it_is_sent() {
        let mut pieces = Pieces::from(vec![Bytes::from_static(b"abc"), Bytes::new(), Bytes::from_static(b"de")]);
        assert_eq!((pieces.size_hint().exact(), pieces.is_end_stream()), (Some(5), false));
        let mut context = Context::from_waker(std::task::Waker::noop());
        assert!(Pin::new(&mut pieces).poll_frame(&mut context).is_ready());
        assert_eq!(pieces.size_hint().exact(), Some(2));
        assert!(Pin::new(&mut pieces).poll_frame(&mut context).is_ready());
        assert!(pieces.is_end_stream());
    }
}
