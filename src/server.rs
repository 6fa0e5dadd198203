//! Our own HTTP side: listeners, connections, routes, and an end that comes in time. Who may come in, how many and
//! for how long is asked of [`crate::web`], and so is by which name.
//!
//! It knows nothing of metrics but their content type. HTTP/1 only.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    HeaderName, HeaderValue, REFERRER_POLICY, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::cli::Listen;
use crate::page;
use crate::plain;
use crate::redact;
use crate::scrape::Scraper;
use crate::upstream::{Flight, Ticket};
use crate::web::{
    Common, Compression, Crowd, HalfClose, Keeper, Limits, Names, Pieces, Place, Protection, Turn, Verdict,
    asks_for_gzip,
};

/// Valid for Prometheus 2 and 3, whatever the client would accept beside it.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// What hyper reads ahead and writes behind. A longer head of a request is refused, at twice as much for sure: a read may
/// bring more. Every connection may hold as much.
const BUFFER: usize = 16 * 1024;
/// Nobody sends us anything; a client that adds a little to its GET is not refused for it.
const LARGEST_BODY: u64 = 4096;
/// For whoever speaks HTTP where HTTPS is spoken.
const NOT_PLAIN: &str = "HTTP/1.0 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n\
    HTTPS is spoken here; set the scheme to https\n";
/// How long running answers may take once the end was asked for.
const DRAIN: Duration = Duration::from_secs(2);
/// After a failed accept (out of descriptors, mostly), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is kept of the client's timeout for the way back.
const TIMEOUT_OFFSET: f64 = 0.5;
const TIMEOUT_FLOOR: f64 = 0.1;
/// How exactly the time is counted that a client waits for a turn.
const TENTH: Duration = Duration::from_millis(100);

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
        io::ErrorKind::AddrNotAvailable => "this box has no such address".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "permission denied; ports below 1024 are kept for root and for programs with CAP_NET_BIND_SERVICE"
                .to_owned()
        }
        _ => plain::io(error),
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
    /// TLS, users and headers that are in force.
    pub web: Keeper,
    /// By which names listeners on loopback are called.
    pub names: Names,
    /// How many, and for how long.
    pub limits: Limits,
    /// Whose answers are packed.
    pub compression: Compression,
}

/// What all connections share.
struct House {
    site: Site,
    crowd: Arc<Crowd>,
    /// The status page, the same for all.
    home: Arc<Common>,
    /// `/debug` and `/api/status`: whoever asks while one is being made gets it too. They may be large.
    debug: Flight<Result<Arc<Common>, String>>,
    status: Flight<Result<Arc<Common>, String>>,
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

/// Serves until `end` comes, then lets running answers finish for a short while. At each `hangup` the web configuration is
/// read again.
pub async fn serve(listeners: Vec<TcpListener>, site: Site, hangup: impl AsyncFnMut(), end: impl Future<Output = ()>) {
    let crowd = Crowd::new(site.limits);
    let home = Arc::new(Common::new(vec![page::html(&site.telemetry_path).into()]));
    let (debug, status) = (Flight::keeping(Duration::ZERO), Flight::keeping(Duration::ZERO));
    let house = Arc::new(House { site, crowd, home, debug, status });
    let (ending, ended) = watch::channel(());
    let mut accepting = JoinSet::new();
    for listener in listeners {
        accepting.spawn(accept(listener, Arc::clone(&house), ended.clone()));
    }
    drop(ended);
    tokio::select! { () = end => {}, never = read_again(&house.site.web, hangup) => match never {} }
    accepting.shutdown().await;
    ending.send_replace(());
    // Every connection holds a receiver: when there is none left, all connections are done.
    if timeout(DRAIN, ending.closed()).await.is_err() {
        tracing::warn!("some answers did not finish in time and are cut off");
    }
}

async fn read_again(web: &Keeper, mut hangup: impl AsyncFnMut()) -> Infallible {
    loop {
        hangup().await;
        if !web.read_again() {
            tracing::info!("SIGHUP: there is no --web.config.file to be read again");
        }
    }
}

async fn accept(listener: TcpListener, house: Arc<House>, ended: watch::Receiver<()>) {
    let on_loopback = listener.local_addr().is_ok_and(|address| is_loopback(&address));
    let mut failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                failing = false;
                match house.crowd.enter(peer.ip().into()) {
                    Some(place) => {
                        let guest = Guest::new(&house, place, on_loopback, is_loopback(&peer));
                        drop(tokio::spawn(connection(stream, guest, ended.clone())));
                    }
                    None => tracing::debug!("a connection was closed: every place is taken by a running answer"),
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "cannot accept connections, trying on");
                }
                house.crowd.make_room();
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// One connection and what holds for all of its requests.
#[derive(Clone)]
struct Guest {
    house: Arc<House>,
    place: Arc<Place>,
    /// It came to a listener on loopback.
    on_loopback: bool,
    /// Its answers may be packed.
    packs: bool,
}

impl Guest {
    fn new(house: &Arc<House>, place: Place, on_loopback: bool, local: bool) -> Guest {
        let packs = house.site.compression.is_for(local);
        Guest { house: Arc::clone(house), place: Arc::new(place), on_loopback, packs }
    }
}

async fn connection(stream: TcpStream, guest: Guest, mut ended: watch::Receiver<()>) {
    // Only a matter of speed.
    drop(stream.set_nodelay(true));
    let tls = guest.house.site.web.protection().tls.clone();
    let Some(acceptor) = tls.clone() else { return exchange(stream, guest, None, ended).await };
    let secured = tokio::select! {
        secured = secure(acceptor, stream) => secured,
        reason = guest.place.over() => Err(io::Error::other(reason)),
        _ = ended.changed() => return,
    };
    match secured {
        Ok(stream) => exchange(stream, guest, tls, ended).await,
        Err(error) => tracing::debug!(%error, "a client's TLS handshake failed"),
    }
}

/// The handshake. Who speaks plain HTTP here is told so, in plain HTTP.
async fn secure(acceptor: TlsAcceptor, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first[0].is_ascii_uppercase() {
        stream.write_all(NOT_PLAIN.as_bytes()).await?;
        return Err(io::Error::other("it spoke plain HTTP"));
    }
    acceptor.accept(stream).await
}

/// Requests and answers, until one side has had enough, or other TLS than that of this connection is asked for.
async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    guest: Guest,
    tls: Option<TlsAcceptor>,
    mut ended: watch::Receiver<()>,
) {
    let (house, place) = (Arc::clone(&guest.house), Arc::clone(&guest.place));
    let service = service_fn(move |request| {
        guest.place.asks();
        handle(guest.clone(), request)
    });
    let mut connection = pin!(
        hyper::server::conn::http1::Builder::new()
            // The place knows when it is over, and tells a new connection from one between two scrapes.
            .header_read_timeout(None)
            .max_buf_size(BUFFER)
            .serve_connection(TokioIo::new(HalfClose::new(stream, Arc::clone(&place))), service)
    );
    // Who is just coming is answered once more: it cannot know.
    let outdated = async {
        house.site.web.outdated(tls.as_ref()).await;
        place.heard().await;
    };
    let whole = async {
        tokio::select! {
            result = connection.as_mut() => return result,
            _ = ended.changed() => {}
            () = outdated => {}
        }
        connection.as_mut().graceful_shutdown();
        connection.await
    };
    tokio::select! {
        result = whole => result.unwrap_or_else(|error| tracing::debug!(%error, "a client's connection broke")),
        reason = place.over() => tracing::debug!(reason, "a client's connection was closed"),
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

async fn handle(guest: Guest, request: Request<Incoming>) -> Result<Response<Pieces>, Infallible> {
    let gzip = guest.packs.then(|| asks_for_gzip(request.headers()));
    let Answered { mut response, turn, protection } = answer_to(&guest, request).await;
    if let Some(gzip) = gzip {
        response = coded(response, gzip).await;
    }
    for (name, value) in &protection.headers {
        response.headers_mut().insert(name, value.clone());
    }
    // What costs nothing needs no turn of its own.
    let turn = turn.unwrap_or_else(|| guest.place.free_turn());
    Ok(response.map(|pieces| pieces.on(turn)))
}

/// The answer to a request.
struct Answered {
    response: Response<Pieces>,
    /// On which it was made.
    turn: Option<Turn>,
    /// What was in force when it was let in or refused.
    protection: Arc<Protection>,
}

/// The answer, whoever asks.
async fn answer_to(guest: &Guest, request: Request<Incoming>) -> Answered {
    let (house, place) = (&guest.house, &guest.place);
    let route = route(request.uri().path(), &house.site.telemetry_path);
    // Whoever restarts what does not answer its probes may call us as it likes: they tell nothing.
    if guest.on_loopback && !is_probe(route) && !house.site.names.answer(&request) {
        return Answered { response: misdirected(), turn: None, protection: house.site.web.protection() };
    }
    let (verdict, protection) = judge(guest, &request).await;
    let (response, turn) = match verdict {
        Verdict::Granted => admit(house, place, route, request).await,
        Verdict::Denied => (denied(), None),
        Verdict::Busy => (busy("too many passwords wait to be checked; try again\n".to_owned()), None),
    };
    Answered { response, turn, protection }
}

/// Whether a request is let in. Its password may wait for long: who was taken off the list meanwhile is not let in.
async fn judge(guest: &Guest, request: &Request<Incoming>) -> (Verdict, Arc<Protection>) {
    let (web, place) = (&guest.house.site.web, &guest.place);
    loop {
        let protection = web.protection();
        let header = request.headers().get(AUTHORIZATION);
        let verdict = protection.users.check(header, place.source(), place.gone()).await;
        if verdict != Verdict::Granted || Arc::ptr_eq(&protection, &web.protection()) {
            return (verdict, protection);
        }
    }
}

fn is_probe(route: Option<Route>) -> bool {
    matches!(route, Some(Route::Healthy | Route::Ready))
}

fn misdirected() -> Response<Pieces> {
    let text = "this listener is on loopback and is not known by that name; ask for it by address or as localhost, or allow the name with --web.allowed-host\n";
    plain(StatusCode::MISDIRECTED_REQUEST, text.to_owned())
}

/// The answer as this client wants it, packed or not, where that depends on what it asks for.
async fn coded(response: Response<Pieces>, gzip: bool) -> Response<Pieces> {
    let (mut head, pieces) = response.into_parts();
    head.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if !gzip || !pieces.is_large() {
        return Response::from_parts(head, pieces);
    }
    head.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    match pieces.packed().await {
        Ok(packed) => Response::from_parts(head, packed),
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, format!("the answer cannot be packed: {error}\n")),
    }
}

/// The answer, if there is a turn for it before half of the client's patience is over.
async fn admit(
    house: &Arc<House>,
    place: &Place,
    route: Option<Route>,
    request: Request<Incoming>,
) -> (Response<Pieces>, Option<Turn>) {
    if request.body().size_hint().upper().is_none_or(|bytes| bytes > LARGEST_BODY) {
        let response = plain(StatusCode::PAYLOAD_TOO_LARGE, "nothing can be sent here, only asked for\n".to_owned());
        return (with(response, CONNECTION, HeaderValue::from_static("close")), None);
    }
    let header = request.headers().get("x-prometheus-scrape-timeout-seconds").and_then(|value| value.to_str().ok());
    let (patience, came) = (patience(header, house.site.scraper.timeout()), Instant::now());
    // A probe that fails because many look at us would have us restarted.
    let turn = if is_probe(route) { Some(place.free_turn()) } else { place.turn(patience / 2).await };
    if turn.is_none() {
        return (crowded(house), None);
    }
    // In whole tenths: what is said of a deadline stays readable.
    let waited = came.elapsed().div_duration_f64(TENTH).floor();
    let left = patience.saturating_sub(TENTH.mul_f64(waited));
    (respond(house, route, request.method(), left).await, turn)
}

impl House {
    /// The text of `/debug`.
    async fn explanation(self: Arc<House>) -> Result<Arc<Common>, String> {
        let scraper = &self.site.scraper;
        let text = scraper.explanation(scraper.timeout()).await + &self.site.web.explain() + &self.crowd.explain();
        Ok(Arc::new(Common::new(vec![text.into()])))
    }

    /// The JSON of `/api/status`.
    async fn told(self: Arc<House>) -> Result<Arc<Common>, String> {
        let scraper = &self.site.scraper;
        let json = redact::json::to_vec(&scraper.status(scraper.timeout()).await);
        json.map(|json| Arc::new(Common::new(vec![json.into()])))
            .map_err(|error| format!("the status cannot be written: {error}\n"))
    }
}

fn crowded(house: &House) -> Response<Pieces> {
    busy(house.crowd.why_no_turn())
}

fn busy(text: String) -> Response<Pieces> {
    with(plain(StatusCode::SERVICE_UNAVAILABLE, text), RETRY_AFTER, HeaderValue::from_static("1"))
}

fn denied() -> Response<Pieces> {
    let response =
        plain(StatusCode::UNAUTHORIZED, "a user of --web.config.file and the password are needed\n".to_owned());
    with(response, WWW_AUTHENTICATE, HeaderValue::from_static("Basic realm=\"kvtier-exporter\", charset=\"UTF-8\""))
}

async fn respond(house: &Arc<House>, route: Option<Route>, method: &Method, patience: Duration) -> Response<Pieces> {
    let site = &house.site;
    let Some(route) = route else {
        return plain(StatusCode::NOT_FOUND, format!("not found; the metrics are at {}\n", site.telemetry_path));
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are answered\n".to_owned());
        return with(response, ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    match route {
        Route::Metrics => metrics(site, patience).await,
        Route::Debug => made("text/plain; charset=utf-8", house.debug.join(|| Arc::clone(house).explanation())).await,
        Route::Home => home(&house.home),
        Route::Status => {
            let response = made("application/json", house.status.join(|| Arc::clone(house).told())).await;
            with(response, CACHE_CONTROL, HeaderValue::from_static("no-store"))
        }
        Route::Healthy => plain(StatusCode::OK, "healthy\n".to_owned()),
        Route::Ready => plain(StatusCode::OK, "ready\n".to_owned()),
    }
}

async fn metrics(site: &Site, patience: Duration) -> Response<Pieces> {
    let metrics = site.scraper.answer(patience).await;
    let status = if site.strict && !metrics.up { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
    answer(status, METRICS_TYPE, Pieces::behind(metrics.page, metrics.own))
}

/// How long a client waits: what it says, less the way back, and never longer than configured. What is no
/// number of seconds is ignored.
fn patience(header: Option<&str>, configured: Duration) -> Duration {
    let said = header.and_then(|text| text.trim().parse::<f64>().ok()).filter(|seconds| *seconds > 0.0);
    let said = said.and_then(|seconds| Duration::try_from_secs_f64((seconds - TIMEOUT_OFFSET).max(TIMEOUT_FLOOR)).ok());
    said.map_or(configured, |said| said.min(configured))
}

fn home(page: &Arc<Common>) -> Response<Pieces> {
    let mut response = answer(StatusCode::OK, "text/html; charset=utf-8", Arc::clone(page));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(page::POLICY));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    // The page belongs to one version of the exporter.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// An answer that is made for all who ask at the same time.
async fn made(content_type: &'static str, ticket: Ticket<Result<Arc<Common>, String>>) -> Response<Pieces> {
    match ticket.landed().await.as_deref() {
        Some(Ok(page)) => answer(StatusCode::OK, content_type, Arc::clone(page)),
        Some(Err(why)) => plain(StatusCode::INTERNAL_SERVER_ERROR, why.clone()),
        None => plain(StatusCode::INTERNAL_SERVER_ERROR, "this exporter broke on it; please report that\n".to_owned()),
    }
}

fn plain(status: StatusCode, text: String) -> Response<Pieces> {
    answer(status, "text/plain; charset=utf-8", vec![Bytes::from(text)])
}

fn answer(status: StatusCode, content_type: &'static str, pieces: impl Into<Pieces>) -> Response<Pieces> {
    let mut response = Response::new(pieces.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}

fn with(mut response: Response<Pieces>, name: HeaderName, value: HeaderValue) -> Response<Pieces> {
    response.headers_mut().insert(name, value);
    response
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
}
