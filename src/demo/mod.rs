//! A simulated deployment to look at: two engines with an offload tier, behind an HTTP server that answers like vLLM.
//!
//! It exists so that nobody needs a GPU to see what this program corrects: in accelerated time the tiers fill,
//! evict, reload, promote and sometimes refuse a store, while the usage gauge stays near 0. It is no benchmark
//! and no model of a GPU. Its model name says on every series that it is a demo.
//!
//! | room | what it is | kind |
//! |---|---|---|
//! | [`simulation`] | both engines in one clock, and the truth about their tiers | pure |
//! | `engine` | GPU pool and scheduler of one engine | pure |
//! | `request` | sessions and their turns | pure |
//! | `tier` | its RAM tier, the disk tier behind it, and the copies that cross | pure |
//! | `pool` | slots with an LRU | pure |
//! | `tally` | what an engine counts | pure |
//! | `draw` | chance that can be repeated | pure |
//! | `announced` | which blocks of the GPU pool were announced | pure |
//! | `news` | KV cache events, as vLLM writes them | pure |
//! | `publish` | their sockets | I/O |
//! | [`page`] | a state written as vLLM writes its page | pure |
//! | this file | the clock on the wall, and the server | I/O |
//!
//! A series that vLLM adds is one row in `page/`; what it counts is one field in `tally`.

mod announced;
mod draw;
mod engine;
mod news;
pub mod page;
mod pool;
mod publish;
mod request;
pub mod simulation;
mod tally;
mod tier;

use std::convert::Infallible;
use std::fmt::Write;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::events::{Endpoint, Link};
use page::Dates;
use publish::Publisher;
use simulation::{Setup, State, Truth};

/// Bytes of one chunk, all ranks together: 464 tokens of about 36 kB.
pub const CHUNK_BYTES: u64 = 16 << 20;

/// Processes of each engine that copy: all of its copies go one after the other at the speed of one rank, each with its whole
/// seconds on the page. No page of vLLM's says so.
pub const RANKS: u32 = 1;

/// The most simulated time that one request makes up for. After a longer silence the rest is skipped.
const CATCH_UP: Duration = Duration::from_secs(3600);
/// vLLM closes a connection that was idle for so long.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted, most likely for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often the clock is looked at while events are published.
const TICK: Duration = Duration::from_millis(50);

const METRICS_TYPE: &str = "text/plain; version=1.0.0; charset=utf-8";
const JSON_TYPE: &str = "application/json";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";

/// What to simulate, and how fast.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The deployment.
    pub setup: Setup,
    /// Simulated seconds per second; above 0.
    pub speed: f64,
}

impl Default for Options {
    fn default() -> Options {
        Options { setup: Setup::default(), speed: 60.0 }
    }
}

/// A simulation that follows the clock on the wall. Clones share it.
#[derive(Clone)]
pub struct Demo(Arc<Mutex<Live>>);

struct Live {
    state: State,
    dates: Dates,
    seen: Instant,
    /// One for each engine, where events are published.
    publishers: Vec<Publisher>,
}

impl Demo {
    /// Starts the simulation now.
    pub fn new(options: Options) -> Demo {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let dates = Dates { epoch, speed: options.speed };
        let state = State::new(options.setup);
        Demo(Arc::new(Mutex::new(Live { state, dates, seen: Instant::now(), publishers: Vec::new() })))
    }

    /// Publishes the KV cache events of both engines from now on: where to follow them.
    ///
    /// # Errors
    /// What the system says where no port can be had.
    pub fn publish(&self) -> io::Result<Vec<Endpoint>> {
        let mut live = self.live();
        live.publishers = vec![Publisher::start()?, Publisher::start()?];
        live.state.listen();
        let endpoint = |publisher: &Publisher| Endpoint {
            link: Link::Connect(publisher.events.clone()),
            replay: Some(publisher.replay.clone()),
            topic: String::new(),
        };
        Ok(live.publishers.iter().map(endpoint).collect())
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The page of this moment, and the truth behind it. Time passes here, and beside it only while events are
    /// published.
    pub fn page(&self) -> (String, Vec<Truth>) {
        let mut live = self.live();
        live.catch_up();
        (page::page(&live.state, live.dates), live.state.truth())
    }

    /// The truth of the moment at which the last page was written.
    pub fn truth(&self) -> Vec<Truth> {
        self.live().state.truth()
    }

    /// Answers on `listener` until the future is dropped; its connections end with it.
    pub async fn serve(self, listener: TcpListener) {
        let mut connections = JoinSet::new();
        let publishes = !self.live().publishers.is_empty();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => drop(connections.spawn(self.clone().converse(stream))),
                    Err(error) => {
                        tracing::warn!(%error, "the demo engine could not accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
                () = tokio::time::sleep(TICK), if publishes => self.live().catch_up(),
            }
        }
    }

    async fn converse(self, stream: TcpStream) {
        let service = service_fn(|request: Request<Incoming>| {
            let answer = self.answer(request.method(), request.uri().path());
            async { Ok::<_, Infallible>(answer) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(KEEP_ALIVE)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection to the demo engine ended early");
        }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if method != Method::GET {
            return response(StatusCode::METHOD_NOT_ALLOWED, JSON_TYPE, "{\"detail\":\"Method Not Allowed\"}");
        }
        match path {
            "/metrics" => response(StatusCode::OK, METRICS_TYPE, self.page().0),
            "/version" => response(StatusCode::OK, JSON_TYPE, "{\"version\":\"0.33.0+demo\"}"),
            "/health" => response(StatusCode::OK, TEXT_TYPE, ""),
            "/truth" => response(StatusCode::OK, JSON_TYPE, truth_json(&self.truth())),
            _ => response(StatusCode::NOT_FOUND, JSON_TYPE, "{\"detail\":\"Not Found\"}"),
        }
    }
}

impl Live {
    fn catch_up(&mut self) {
        let now = Instant::now();
        let passed = now.duration_since(self.seen).as_secs_f64() * self.dates.speed;
        self.seen = now;
        self.state.advance(Duration::try_from_secs_f64(passed).map_or(CATCH_UP, |passed| passed.min(CATCH_UP)));
        for batch in self.state.take_batches() {
            let payload = news::encode(&batch, self.dates.unix(batch.seconds));
            if let Some(publisher) = self.publishers.get(batch.engine) {
                publisher.send(payload, batch.restarted);
            }
        }
    }
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

/// The truth for a test that watches from outside; whole numbers only, one object an engine.
fn truth_json(truths: &[Truth]) -> String {
    let mut text = String::from("[");
    for (index, truth) in truths.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        _ = write!(text, "{comma}{{\"engine\":\"{}\"", truth.engine);
        for (name, value) in truth.numbers() {
            _ = write!(text, ",\"{name}\":{value}");
        }
        text.push('}');
    }
    text.push_str("]\n");
    text
}

/// Starts a demo engine on a free port of the loopback interface: its address, and the server to be polled.
///
/// # Errors
/// What the system says where no port can be had.
pub async fn start(options: Options) -> io::Result<(SocketAddr, impl Future<Output = ()> + Send)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    Ok((address, Demo::new(options).serve(listener)))
}

/// The same with KV cache events, and where to follow them.
///
/// # Errors
/// What the system says where no port can be had.
pub async fn start_publishing(
    options: Options,
) -> io::Result<(SocketAddr, Vec<Endpoint>, impl Future<Output = ()> + Send)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (address, demo) = (listener.local_addr()?, Demo::new(options));
    let endpoints = demo.publish()?;
    Ok((address, endpoints, demo.serve(listener)))
}

/// What to print when both servers are up.
pub fn greeting(engine: SocketAddr, exporter: SocketAddr) -> String {
    format!(
        "\
A simulated vLLM with two engines and a 32 GiB RAM tier each, one minute of it in every second.
  engine    http://{engine}/metrics
  exporter  http://{exporter}/metrics
  browser   http://{exporter}/

Give it a quarter of a minute, then try:
  curl -s http://{engine}/metrics http://{exporter}/metrics | grep '^vllm:kv_offload_cpu_cache_usage_perc'
      the gauge as the engine tells it, then as the exporter corrects it
  curl -s http://{exporter}/metrics | grep '^kvtier_tier_'
      what is known of each tier: size, fill, bytes, speeds, what another size would reload
  curl -s http://{exporter}/debug
      where each of these numbers comes from

Ctrl-C ends it.
"
    )
}

#[cfg(test)]
mod tests;
