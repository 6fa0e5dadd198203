//! An upstream that does exactly what a test tells it, down to the byte: raw TCP, a thread a connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What is done about one request, step by step. Unless the last step ends it, the connection stays open.
pub type Reply = Vec<Step>;

#[derive(Clone)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Sends a byte, waits, sends the next.
    Trickle(Vec<u8>, Duration),
    /// Waits for the gate.
    Wait(Gate),
    /// Does nothing until the other side gives up.
    Hang,
    /// Closes the connection in order.
    Close,
}

/// One request as it came.
#[derive(Clone, Debug)]
pub struct Request {
    /// Path and query.
    pub path: String,
    /// The whole head.
    pub head: String,
    /// 1 for the first request of this upstream.
    pub number: usize,
    /// 1 for the first request of its connection.
    pub on_connection: usize,
}

type Script = Box<dyn Fn(&Request) -> Reply + Send + Sync>;

/// The upstream. It listens until it is dropped.
pub struct Upstream {
    pub address: SocketAddr,
    state: Arc<State>,
}

struct State {
    script: Script,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    stopped: AtomicBool,
}

impl Upstream {
    /// Listens on a free port of the loopback.
    pub fn start(script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Upstream {
        Upstream::on(TcpListener::bind("127.0.0.1:0").unwrap(), script, serve_plain)
    }

    /// Serves TLS.
    pub fn start_tls(config: ServerConfig, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Upstream {
        let config = Arc::new(config);
        Upstream::on(TcpListener::bind("127.0.0.1:0").unwrap(), script, move |stream, state| {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            state.serve(StreamOwned::new(session, stream));
        })
    }

    /// Closes every connection with a reset as soon as a request has arrived.
    pub fn start_resetting() -> Upstream {
        Upstream::on(
            TcpListener::bind("127.0.0.1:0").unwrap(),
            |_| Vec::new(),
            |stream, _| {
                // A close with unread bytes is a reset.
                stream.peek(&mut [0]).unwrap();
            },
        )
    }

    /// Serves on a given listener.
    pub fn on_listener(listener: TcpListener, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Upstream {
        Upstream::on(listener, script, serve_plain)
    }

    fn on(
        listener: TcpListener,
        script: impl Fn(&Request) -> Reply + Send + Sync + 'static,
        serve: impl Fn(TcpStream, &State) + Clone + Send + 'static,
    ) -> Upstream {
        let (address, state) = (listener.local_addr().unwrap(), State::new(script));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if shared.stopped.load(Ordering::SeqCst) {
                    return;
                }
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let (state, serve) = (Arc::clone(&shared), serve.clone());
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Upstream { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}/metrics", self.address)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.requests.lock().unwrap().clone()
    }

    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then lets go of the port.
        let _ = TcpStream::connect(self.address);
    }
}

/// Serves on a socket file for as long as the test runs.
pub fn serve_socket(path: &Path, script: impl Fn(&Request) -> Reply + Send + Sync + 'static) {
    let (listener, state) = (UnixListener::bind(path).unwrap(), State::new(script));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let state = Arc::clone(&state);
            std::thread::spawn(move || state.serve(stream));
        }
    });
}

fn serve_plain(stream: TcpStream, state: &State) {
    state.serve(stream);
}

impl State {
    fn new(script: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Arc<State> {
        Arc::new(State {
            script: Box::new(script),
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    fn serve(&self, mut wire: impl Read + Write) {
        for on_connection in 1.. {
            let Some(head) = read_head(&mut wire) else { return };
            let request = self.note(head, on_connection);
            if !(self.script)(&request).into_iter().all(|step| step.perform(&mut wire)) {
                return;
            }
        }
    }
}

impl State {
    fn note(&self, head: String, on_connection: usize) -> Request {
        let mut requests = self.requests.lock().unwrap();
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let request = Request { path, head, number: requests.len() + 1, on_connection };
        requests.push(request.clone());
        request
    }
}

impl Step {
    /// `false` ends the connection.
    fn perform(self, wire: &mut (impl Read + Write)) -> bool {
        let mut send = |bytes: &[u8]| wire.write_all(bytes).and_then(|()| wire.flush()).is_ok();
        match self {
            Step::Send(bytes) => send(&bytes),
            Step::Trickle(bytes, pause) => bytes.iter().all(|byte| {
                std::thread::sleep(pause);
                send(&[*byte])
            }),
            Step::Wait(gate) => {
                gate.pass();
                true
            }
            Step::Hang => {
                let _ = wire.read(&mut [0]);
                false
            }
            Step::Close => false,
        }
    }
}

fn read_head(wire: &mut impl Read) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        match wire.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    String::from_utf8(head).ok()
}

/// A gate that is shut until it is opened, and then stays open.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let (open, changed) = &*self.0;
        drop(changed.wait_while(open.lock().unwrap(), |open| !*open).unwrap());
    }
}

/// A whole response with these header lines and a fitting Content-Length.
pub fn response(status: &str, headers: &[&str], body: impl AsRef<[u8]>) -> Step {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let body = body.as_ref();
    let mut bytes = format!("HTTP/1.1 {status}\r\n{lines}Content-Length: {}\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    Step::Send(bytes)
}

/// 200 as vLLM answers it.
pub fn ok(body: impl AsRef<[u8]>) -> Step {
    response("200 OK", &["Content-Type: text/plain; version=0.0.4; charset=utf-8"], body)
}

/// Exactly these bytes.
pub fn raw(bytes: impl AsRef<[u8]>) -> Step {
    Step::Send(bytes.as_ref().to_vec())
}
