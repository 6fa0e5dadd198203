//! Limits: many at a time, and clients that make others wait.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::PAGE;
use crate::support::PATIENCE;
use crate::support::client::{get, get_aside, get_with, receive, send};
use crate::support::exporter::Exporter;
use crate::support::until;
use crate::support::upstream::{Gate, Step, Upstream, ok};

fn prompt(exporter: &Exporter) {
    let began = Instant::now();
    assert!(exporter.metrics().body.starts_with(PAGE));
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn more_requests_than_allowed_are_refused_and_the_others_answered() {
    let gate = Gate::default();
    let shut = gate.clone();
    let upstream = Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &["--web.max-requests=2", "--upstream.timeout=20s"]);
    let waiting: Vec<_> = (0..2).map(|_| send(exporter.address, "GET", "/metrics", &[])).collect();
    // One that has little time waits little for a turn.
    let hurried = |path| get_with(exporter.address, path, &["X-Prometheus-Scrape-Timeout-Seconds: 0.6"]);
    until("two requests are being answered", || hurried("/").status == 503);
    assert_eq!(get(exporter.address, "/-/healthy").status, 200, "a probe is no request too many");
    let refused = hurried("/metrics");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.body, "2 requests are being answered already; try again, or raise --web.max-requests\n");
    gate.open();
    for stream in waiting {
        assert!(receive(stream).body.starts_with(PAGE));
    }
    prompt(&exporter);
    assert_eq!(exporter.log().iter().filter(|line| line.contains("--web.max-requests")).count(), 1, "said once");
    let debug = exporter.get("/debug").body;
    let refused = debug.lines().find_map(|line| line.strip_prefix("  requests    1 of 2; ")).unwrap();
    assert!(refused.ends_with("were refused") && !refused.starts_with('0'), "{debug}");
}

#[test]
fn zero_is_no_limit() {
    let gate = Gate::default();
    let shut = gate.clone();
    let upstream = Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &["--web.max-requests=0", "--upstream.timeout=20s"]);
    let waiting: Vec<_> = (0..60).map(|_| get_aside(exporter.address, "/metrics", &[])).collect();
    until("the fetch is under way", || upstream.requests().len() == 1);
    assert_eq!(get(exporter.address, "/").status, 200);
    gate.open();
    for answer in waiting {
        assert_eq!(answer.join().unwrap().status, 200);
    }
}

#[test]
fn idle_and_slow_connections_keep_no_scrape_waiting() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let mut crowd = Vec::new();
    for number in 0..700 {
        let mut stream = TcpStream::connect(exporter.address).unwrap();
        // Some say nothing, some half a head, some have been served and say no more.
        let said: &[u8] = match number % 3 {
            0 => b"",
            1 => b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ",
            _ => b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n",
        };
        // The program may have closed an earlier one of them, never the one that has just come.
        stream.write_all(said).unwrap();
        crowd.push(stream);
        if number % 100 == 99 {
            prompt(&exporter);
        }
    }
    let open = std::fs::read_dir(format!("/proc/{}/fd", exporter.pid())).unwrap().count();
    assert!(open < 560, "{open} descriptors");
    assert!(exporter.get("/debug").body.contains("connections 512 of 512; "));
    assert_eq!(exporter.log().iter().filter(|line| line.contains("too many connections")).count(), 1, "said once");
    // Those that drip go on dripping.
    let done = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&done);
    let dripping = std::thread::spawn(move || {
        while !ends.load(Ordering::Relaxed) {
            for stream in &mut crowd {
                let _ = stream.write(b"x");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    for _ in 0..20 {
        prompt(&exporter);
    }
    done.store(true, Ordering::Relaxed);
    dripping.join().unwrap();
}

#[test]
fn clients_that_do_not_read_their_answer_keep_no_scrape_waiting() {
    // More than the sockets of both sides hold.
    let large = PAGE.to_owned() + &format!("# {}\n", "x".repeat(1000)).repeat(20_000);
    let large_bytes = large.len();
    let upstream = Upstream::start(move |_| vec![ok(&large)]);
    let exporter = Exporter::start(&upstream.url(), &["--web.max-requests=2"]);
    let stalled: Vec<_> = (0..8).map(|_| send(exporter.address, "GET", "/metrics", &[])).collect();
    until("a scrape is answered", || get(exporter.address, "/metrics").status == 200);
    let cut = stalled.into_iter().filter(|mut stream| {
        let mut bytes = Vec::new();
        // What was cut off ends early, perhaps with a reset.
        let _ = stream.read_to_end(&mut bytes);
        bytes.starts_with(b"HTTP/1.1 200") && bytes.len() < large_bytes
    });
    assert!(cut.count() >= 1, "one that was in the way had to go");
}

#[test]
fn a_client_that_says_nothing_is_sent_away() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    let mut silent = TcpStream::connect(exporter.address).unwrap();
    let mut dripping = TcpStream::connect(exporter.address).unwrap();
    dripping.write_all(b"GET /met").unwrap();
    silent.set_read_timeout(Some(PATIENCE)).unwrap();
    dripping.set_read_timeout(Some(PATIENCE)).unwrap();
    prompt(&exporter);
    let began = Instant::now();
    assert_eq!((silent.read(&mut [0]).unwrap(), dripping.read(&mut [0]).unwrap()), (0, 0));
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    prompt(&exporter);
}

fn raw(exporter: &Exporter, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(exporter.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The program may close before all of it is written.
    let _ = stream.write_all(request);
    let (mut answer, mut some) = (Vec::new(), [0; 4096]);
    while let Ok(read @ 1..) = stream.read(&mut some) {
        answer.extend_from_slice(&some[..read]);
    }
    String::from_utf8(answer).unwrap()
}

#[test]
fn nothing_large_is_taken_in() {
    let upstream = Upstream::start(|_| vec![ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for (request, expected) in [
        (
            "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab".to_owned(),
            "HTTP/1.1 200 ",
        ),
        (
            "POST /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nab".to_owned(),
            "HTTP/1.1 405 ",
        ),
        ("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n".to_owned(), "HTTP/1.1 413 "),
        ("GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(), "HTTP/1.1 413 "),
        (format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX-Large: {}\r\n\r\n", "x".repeat(200_000)), "HTTP/1.1 431 "),
        (format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(70_000)), "HTTP/1.1 4"),
        ("nonsense\r\n\r\n".to_owned(), "HTTP/1.1 400 "),
    ] {
        let answer = raw(&exporter, request.as_bytes());
        assert!(answer.starts_with(expected), "{:.80}\n{answer}", request);
    }
    prompt(&exporter);
}

/// So many clients ask again as soon as they are answered, at the address of this number, until it is dropped.
struct Quick {
    done: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    answered: Arc<AtomicUsize>,
}

impl Quick {
    fn start(clients: usize, from: u8, target: SocketAddr) -> Quick {
        let (done, answered) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let client = |_| {
            let (done, answered) = (Arc::clone(&done), Arc::clone(&answered));
            std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let mut stream = connect_from(from, target);
                    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
                    // It may be sent away for others.
                    let _ = stream.read_to_end(&mut Vec::new());
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        Quick { threads: (0..clients).map(client).collect(), done, answered }
    }
}

impl Drop for Quick {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // They only end.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn connect_from(address: u8, target: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, address], 0)))?;
        socket.connect(target).await?.into_std()
    });
    let stream = stream.unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn many_quick_clients_starve_nobody_at_their_address_nor_at_another() {
    // Each fetch takes a while, so that all turns are taken at all times.
    let upstream = Upstream::start(|_| vec![Step::Trickle(b"H".to_vec(), Duration::from_millis(30)), rest_of(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &[]);
    for from in [1, 2] {
        let quick = Quick::start(45, from, exporter.address);
        until("they are served", || quick.answered.load(Ordering::Relaxed) > 100);
        for _ in 0..20 {
            let answer = get(exporter.address, "/metrics");
            assert!(answer.status == 200 && answer.body.starts_with(PAGE), "{answer:?}");
        }
    }
}

/// An answer whose first byte has been sent.
fn rest_of(page: &str) -> Step {
    match ok(page) {
        Step::Send(bytes) => Step::Send(bytes[1..].to_vec()),
        other => other,
    }
}

#[test]
fn a_client_that_has_said_all_gets_its_answer() {
    let gate = Gate::default();
    let shut = gate.clone();
    let upstream = Upstream::start(move |_| vec![Step::Wait(shut.clone()), ok(PAGE)]);
    let exporter = Exporter::start(&upstream.url(), &["--upstream.timeout=20s"]);
    let half = |requests: &str| {
        let mut stream = TcpStream::connect(exporter.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(requests.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        stream
    };
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";
    let (one, two) = (half(request), half(&request.repeat(2)));
    let old = half("GET /metrics HTTP/1.0\r\n\r\n");
    until("the fetch is under way", || !upstream.requests().is_empty());
    gate.open();
    let began = Instant::now();
    for (mut stream, answers) in [(one, 1), (two, 2), (old, 1)] {
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        assert_eq!((said.matches("HTTP/1.").count(), said.matches(PAGE).count()), (answers, answers), "{said}");
    }
    // And then the connection ends, without waiting for a request that cannot come.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}
