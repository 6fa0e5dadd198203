//! One fetch: request, redirects, judgement of the status, body. All of it under one deadline.
//!
//! Nothing of the client that scrapes us travels upstream: not its headers, not its wishes about formats. And
//! nothing is remembered from fetch to fetch but an idle connection.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HOST, HeaderValue, LOCATION, USER_AGENT};
use hyper::{HeaderMap, Request, Response, StatusCode};
use tokio::time::{Instant, timeout, timeout_at};

use super::address::{Address, Endpoint};
use super::body::Framing;
use super::connection::{Connection, IdleSlot, was_stale};
use super::credentials::{Credentials, Secret, SecretFile};
use super::progress::Progress;
use super::tls::{Tls, TlsOptions, TrustError};
use super::way::Way;
use super::{Unreached, UpstreamError, body, tls_guess};
use crate::files;
use crate::pipeline::Format;
use crate::redact;

const MAX_REDIRECTS: usize = 3;
/// How much of an error's body goes to the log.
const EXCERPT: usize = 200;
/// How much of a body that nobody wants is read to learn what it says, and how long that may take.
const PEEK: usize = 4096;
const PEEK_TIME: Duration = Duration::from_millis(250);

/// What to fetch, and within which limits.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where.
    pub address: Address,
    /// For connect, headers and body together.
    pub timeout: Duration,
    /// The most bytes of a body, packed and unpacked.
    pub max_bytes: usize,
    /// A fetch answers all who ask within this time after it; 0 where every scrape is a fetch.
    pub min_interval: Duration,
    /// Credentials; read anew for each fetch.
    pub secret: Option<SecretFile>,
    /// Of an https upstream.
    pub tls: TlsOptions,
}

/// What came.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The whole body, unpacked.
    pub body: Bytes,
    /// What its Content-Type says.
    pub format: Format,
}

/// Fetches the page of one upstream.
pub struct Client {
    options: Options,
    credentials: Option<Credentials>,
    tls: Option<Tls>,
    way: Way,
    idle: IdleSlot,
    spare: body::Spare,
    progress: Progress,
}

impl Client {
    /// A client that has not connected yet.
    ///
    /// # Errors
    /// [`TrustError`] when the address is https and there are no certificates to verify it with.
    pub async fn open(options: Options) -> Result<Client, TrustError> {
        let tls = match options.address.endpoint {
            Endpoint::Tcp { tls: true, .. } => Some(Tls::open(&options.tls).await?),
            _ => None,
        };
        if let Some((_, query)) = options.address.path.split_once('?') {
            redact::learn(&format!("the query of {}", options.address), redact::Secret::query(query));
        }
        let credentials = options.secret.clone().map(Credentials::of);
        let (idle, spare, progress) = (IdleSlot::default(), body::Spare::default(), Progress::default());
        Ok(Client { options, credentials, tls, way: Way::unknown(), idle, spare, progress })
    }

    /// A client for each of these.
    ///
    /// # Errors
    /// As [`Client::open`], for the first of them.
    pub async fn open_all(named: Vec<(String, Options)>) -> Result<Vec<(String, Client)>, TrustError> {
        let mut clients = Vec::new();
        for (name, options) in named {
            clients.push((name, Client::open(options).await?));
        }
        Ok(clients)
    }

    /// What it fetches.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Reads the credentials, so that they are known before anybody repeats them.
    ///
    /// # Errors
    /// What is wrong with them, which each fetch will meet too.
    pub async fn learn(&self) -> Result<(), UpstreamError> {
        match &self.credentials {
            Some(credentials) => credentials.read(files::PATIENCE).await.map(drop),
            None => Ok(()),
        }
    }

    /// Whether `--upstream.insecure-skip-verify` lets anybody answer in the upstream's place.
    pub fn believes_anybody(&self) -> bool {
        self.options.tls.skip_verify && matches!(self.options.address.endpoint, Endpoint::Tcp { tls: true, .. })
    }

    /// Fetches once.
    ///
    /// # Errors
    /// [`UpstreamError`]; a part of a page is never returned.
    pub async fn fetch(&self) -> Result<Page, UpstreamError> {
        let (page, framing) = self.within(self.options.address.clone()).await?;
        body::sniff(&page.body, &framing)?;
        body::whole(&page.body, page.format, &framing)?;
        Ok(page)
    }

    /// Fetches once from another path of the same server, whatever is there: JSON, for example.
    ///
    /// # Errors
    /// As [`Client::fetch`], but for what it says of a page.
    pub async fn fetch_other(&self, path_and_query: &str) -> Result<Bytes, UpstreamError> {
        let address = Address { path: path_and_query.to_owned(), ..self.options.address.clone() };
        Ok(self.within(address).await?.0.body)
    }

    async fn within(&self, address: Address) -> Result<(Page, Framing), UpstreamError> {
        let limit = self.options.timeout;
        let deadline = Instant::now() + limit;
        self.progress.ask();
        let secret = match &self.credentials {
            Some(credentials) => Some(credentials.read(self.patience_with_files()).await?),
            None => None,
        };
        let page = timeout_at(deadline, self.follow(address, secret.as_deref())).await;
        match page.unwrap_or_else(|_| Err(self.late(limit))) {
            Err(UpstreamError::Reset(_)) if self.may_speak_tls(deadline).await => Err(UpstreamError::SpeaksTls),
            page => page,
        }
    }

    /// Whether a port that was asked in plain HTTP, and closed, speaks TLS. Half of the time that is left goes into that: whoever
    /// waits is to hear of what happened, and not that nothing did.
    async fn may_speak_tls(&self, deadline: Instant) -> bool {
        let Endpoint::Tcp { host, port, tls: false } = &self.options.address.endpoint else { return false };
        let patience = deadline.saturating_duration_since(Instant::now()) / 2;
        timeout(patience, tls_guess::speaks_tls(&self.way, host, *port)).await.unwrap_or(false)
    }

    /// A file that hangs leaves time to ask without it, or to say so.
    fn patience_with_files(&self) -> Duration {
        files::PATIENCE.min(self.options.timeout / 2)
    }

    /// What it means that the fetch under way brought no page within this time.
    pub fn late(&self, limit: Duration) -> UpstreamError {
        self.progress.late(limit)
    }

    async fn follow(&self, mut address: Address, secret: Option<&Secret>) -> Result<(Page, Framing), UpstreamError> {
        for _ in 0..=MAX_REDIRECTS {
            let (connection, response) = self.exchange(&request(&address, secret)?).await?;
            if response.status() == StatusCode::OK {
                return self.page(connection, response).await;
            }
            match redirect(&address, &response)? {
                None => return Err(refusal(response).await),
                Some(next) => address = next,
            }
            self.reuse_after(connection, response.into_body()).await;
        }
        Err(UpstreamError::Redirect(format!("more than {MAX_REDIRECTS} times")))
    }

    /// Sends a request over the idle connection, or over a new one when there is none or it turns out to be closed.
    async fn exchange(
        &self,
        request: &Request<Empty<Bytes>>,
    ) -> Result<(Connection, Response<Incoming>), UpstreamError> {
        if let Some(mut idle) = self.idle.take() {
            match idle.send(request.clone()).await {
                Ok(response) => return Ok((idle, response)),
                // The other side closed it while it was idle.
                Err(error) if was_stale(&error) => {}
                Err(error) => return Err(idle.meaning(&error)),
            }
        }
        if let Some(tls) = &self.tls {
            tls.refresh(self.patience_with_files()).await;
        }
        let mut fresh = Connection::open(&self.options.address.endpoint, &self.way, self.tls.as_ref()).await?;
        match fresh.send(request.clone()).await {
            Ok(response) => Ok((fresh, response)),
            Err(error) => Err(fresh.meaning(&error)),
        }
    }

    async fn page(
        &self,
        connection: Connection,
        response: Response<Incoming>,
    ) -> Result<(Page, Framing), UpstreamError> {
        let (head, incoming) = response.into_parts();
        let limit = self.options.max_bytes;
        let (packed, framing) = body::read(&head.headers, incoming, limit, &self.spare, &self.progress).await?;
        self.idle.put(connection);
        let body = body::unpack(&head.headers, packed, limit).await?;
        Ok((Page { body, format: body::format(&head.headers) }, framing))
    }

    /// A redirect's body is read to its end if that is near, so that its connection serves the next request.
    async fn reuse_after(&self, connection: Connection, incoming: Incoming) {
        if let Ok((_, true)) = timeout(PEEK_TIME, body::peek(incoming, PEEK)).await {
            self.idle.put(connection);
        }
    }
}

fn request(address: &Address, secret: Option<&Secret>) -> Result<Request<Empty<Bytes>>, UpstreamError> {
    let mut headers = HeaderMap::new();
    let host = HeaderValue::try_from(address.endpoint.authority());
    headers.insert(
        HOST,
        host.map_err(|_| UpstreamError::Connect(Unreached::Other("its name cannot stand in a request".to_owned())))?,
    );
    headers.insert(ACCEPT, HeaderValue::from_static("text/plain;version=0.0.4"));
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("kvtier-exporter/", env!("CARGO_PKG_VERSION"))));
    if let Some(secret) = secret {
        headers.insert(AUTHORIZATION, secret.header());
    }
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = address.path.parse().map_err(|_| UpstreamError::Redirect("to an unusable path".to_owned()))?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Where a redirect leads; `None` for any other status.
fn redirect(from: &Address, response: &Response<Incoming>) -> Result<Option<Address>, UpstreamError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or_else(|| UpstreamError::Redirect("without saying where to".to_owned()))?;
    match from.redirected(location) {
        Some(next) => Ok(Some(next)),
        None => Err(UpstreamError::Redirect(format!("to another server ({})", shown(location)))),
    }
}

/// A Location fit for people: without its query and, should it hold any, its credentials.
fn shown(location: &str) -> String {
    Address::parse(location).map_or_else(|_| "one that is not followed".to_owned(), |address| address.to_string())
}

async fn refusal(response: Response<Incoming>) -> UpstreamError {
    let code = response.status().as_u16();
    let (bytes, _) = timeout(PEEK_TIME, body::peek(response.into_body(), PEEK)).await.unwrap_or_default();
    let excerpt = body::excerpt(&bytes, EXCERPT);
    match code {
        401 | 403 => UpstreamError::Auth { code, excerpt },
        _ => UpstreamError::Status { code, excerpt },
    }
}
