//! The least that a proxy can be, to measure ours against: S passes a page on while it comes in, B holds it whole
//! first. Neither reads it. Beside them a server of one file, for a box without nginx.
//!
//! They run as processes of their own: the bench starts itself again with `reference stream ADDRESS UPSTREAM`.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

type Body = BoxBody<Bytes, hyper::Error>;
type Upstream = Arc<Mutex<SendRequest<Empty<Bytes>>>>;

#[derive(Clone)]
enum Kind {
    Stream(SocketAddr),
    Collect(SocketAddr),
    Static(Bytes),
}

/// Serves, if that is what the arguments ask for, until the process is killed.
pub fn serve_if_asked() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [reference, kind, address, what] = &arguments[..] else { return };
    if reference != "reference" {
        return;
    }
    let kind = match kind.as_str() {
        "stream" => Kind::Stream(what.parse().unwrap()),
        "collect" => Kind::Collect(what.parse().unwrap()),
        "static" => Kind::Static(std::fs::read(what).unwrap().into()),
        other => panic!("no reference program {other}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(kind, address.parse().unwrap()));
}

async fn serve(kind: Kind, address: SocketAddr) {
    let listener = TcpListener::bind(address).await.unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        tokio::spawn(connection(stream, kind.clone()));
    }
}

/// Each connection has its own one upstream.
async fn connection(stream: TcpStream, kind: Kind) {
    let upstream = match &kind {
        Kind::Stream(address) | Kind::Collect(address) => Some(connect(*address).await),
        Kind::Static(_) => None,
    };
    let service = service_fn(move |request| answer(kind.clone(), upstream.clone(), request));
    let connection = pin!(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    // A client that goes away is no matter of ours.
    drop(connection.await);
}

async fn connect(address: SocketAddr) -> Upstream {
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (sender, driver) = handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(driver);
    Arc::new(Mutex::new(sender))
}

async fn answer(
    kind: Kind,
    upstream: Option<Upstream>,
    request: Request<hyper::body::Incoming>,
) -> Result<Response<Body>, hyper::Error> {
    let upstream = match (&kind, upstream) {
        (Kind::Static(page), _) => return Ok(Response::new(whole(page.clone()))),
        (_, upstream) => upstream.expect("a proxy has an upstream"),
    };
    let asked = Request::get(request.uri()).header("host", "reference").body(Empty::new()).unwrap();
    let mut upstream = upstream.lock().await;
    upstream.ready().await?;
    let response = upstream.send_request(asked).await?;
    match kind {
        Kind::Stream(_) => Ok(response.map(BodyExt::boxed)),
        _ => Ok(Response::new(whole(response.into_body().collect().await?.to_bytes()))),
    }
}

fn whole(page: Bytes) -> Body {
    Full::new(page).map_err(|never| match never {}).boxed()
}
