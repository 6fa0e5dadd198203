//! The memory limits that we ship hold for the worst pages that the caps beside them let in, with extras, and with clients that
//! do not take their answers.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use crate::PAGE;
use crate::support::client::{get_patiently, get_with};
use crate::support::exporter::{Exporter, command};
use crate::support::upstream::{Upstream, response};

const TEXT: &str = "Content-Type: text/plain; version=0.0.4";
const OPENMETRICS: &str = "Content-Type: application/openmetrics-text; version=1.0.0";

/// How a page is made that costs more memory than others: its notation, and what it repeats.
/// Of many kinds that were tried, the two that cost most.
const PAGES: [(&str, &str, &[u8]); 2] = [
    ("every second line is refused", TEXT, b"a 1\n\xff\n"),
    ("OpenMetrics whose every second line is refused", OPENMETRICS, b"a 1\n\xff\n"),
];

fn deployed(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(file)).unwrap()
}

/// What follows `key` in a file, up to the end of the line or of the braces around it.
fn shipped<'a>(text: &'a str, key: &str) -> &'a str {
    let mut found =
        text.lines().filter(|line| !line.trim_start().starts_with('#')).filter_map(|line| line.split_once(key));
    let (_, value) = found.next().unwrap_or_else(|| panic!("no {key}"));
    assert!(found.next().is_none(), "{key} twice");
    value.trim().trim_end_matches('}')
}

fn mebibytes(size: &str) -> u64 {
    let digits = size.trim_end_matches(|unit: char| !unit.is_ascii_digit());
    assert!(["M", "m", "Mi", "MiB"].contains(&&size[digits.len()..]), "{size}");
    digits.parse::<u64>().unwrap() << 20
}

/// What is shipped of memory, and what goes with it.
struct Shipped {
    what: &'static str,
    /// In bytes.
    limit: u64,
    /// Of `--upstream.max-bytes`.
    cap: String,
    /// From which size on glibc asks the system for a piece of memory, and gives it back as soon as it is free.
    threshold: String,
}

impl Shipped {
    fn in_units() -> Shipped {
        let (unit, settings) = (deployed("systemd/kvtier-exporter.service"), deployed("systemd/kvtier-exporter.env"));
        Shipped {
            what: "systemd",
            limit: mebibytes(shipped(&unit, "MemoryMax=")),
            cap: shipped(&settings, "KVTIER_UPSTREAM_MAX_BYTES=").to_owned(),
            threshold: shipped(&unit, THRESHOLD).to_owned(),
        }
    }

    /// That of the containers, which is the same for all of them.
    fn in_containers() -> Shipped {
        let (compose, kubernetes) = (deployed("compose/compose.yml"), deployed("kubernetes/vllm.yaml"));
        let of_compose = (shipped(&compose, "mem_limit: "), shipped(&compose, "KVTIER_UPSTREAM_MAX_BYTES: "));
        let of_kubernetes = (
            shipped(&kubernetes, "limits: {cpu: 500m, memory: "),
            shipped(&kubernetes, "KVTIER_UPSTREAM_MAX_BYTES, value: "),
        );
        assert_eq!((mebibytes(of_compose.0), of_compose.1), (mebibytes(of_kubernetes.0), of_kubernetes.1));
        let (limit, cap) = (mebibytes(of_compose.0), of_compose.1.to_owned());
        Shipped { what: "containers", limit, cap, threshold: shipped(&deployed("Dockerfile"), THRESHOLD).to_owned() }
    }

    /// The most bytes of a page.
    fn cap(&self) -> usize {
        usize::try_from(mebibytes(&self.cap)).unwrap()
    }

    /// As it is shipped, in front of these.
    fn start(&self, main: &Upstream, extras: &[Upstream]) -> Exporter {
        let mut program = command(&["--upstream", &main.url(), "--web.listen-address=127.0.0.1:0"]);
        program.env("KVTIER_UPSTREAM_MAX_BYTES", &self.cap).env(THRESHOLD.trim_end_matches('='), &self.threshold);
        // A slow machine must come to the peak, too, and a client of this box be like one of another.
        program.args(["--upstream.timeout=10m", "--web.compression=on", "--collector.memory", "--collector.shm"]);
        name_extras(&mut program, extras);
        Exporter::spawn(&mut program)
    }

    /// The most that it took is below the limit.
    fn holds(&self, exporter: &Exporter, with: &str) {
        let (peak, limit) = (exporter.peak(), self.limit);
        println!("{}, cap {}, {with}: {} of {} MiB", self.what, self.cap, peak >> 20, limit >> 20);
        assert!(peak < limit, "{}: {with} with a cap of {} takes {peak} bytes of {limit}", self.what, self.cap);
    }
}

const THRESHOLD: &str = "MALLOC_MMAP_THRESHOLD_=";
/// How many extras.
const EXTRAS: usize = 16;
/// How many clients do not take their answers: more than are answered at a time.
const STALLED: usize = 48;

fn name_extras(program: &mut Command, extras: &[Upstream]) {
    for (number, extra) in extras.iter().enumerate() {
        program.arg(format!("--upstream.extra=e{number}={}", extra.url()));
    }
}

/// A page and what explains it, at once: one is worked on, and the next waits for its turn.
fn ask_for_all(address: SocketAddr) {
    let answers = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for path in ["/metrics", "/debug"] {
            scope.spawn(|| answers.lock().unwrap().push(get_patiently(address, path)));
        }
    });
    let answers = answers.into_inner().unwrap();
    assert!(answers.iter().all(|answer| answer.status == 200) && !answers.iter().any(|a| a.body.contains("too_large")));
}

fn worst_pages(shipped: &Shipped) {
    for (name, notation, unit) in PAGES {
        let end = if notation == OPENMETRICS { &b"# EOF\n"[..] } else { b"" };
        let body = [&unit.repeat((shipped.cap() - end.len()) / unit.len()), end].concat();
        let upstream = Upstream::start(move |_| vec![response("200 OK", &[notation], &body)]);
        let exporter = shipped.start(&upstream, &[]);
        ask_for_all(exporter.address);
        shipped.holds(&exporter, name);
    }
}

/// A page of this size with as many families as fit, none of which another number has.
fn of_families(number: usize, bytes: usize) -> Upstream {
    let body: String = (0..).map(|at| format!("a{number:x}_{at:x} 1\n")).scan(bytes, in_room).collect();
    Upstream::start(move |_| vec![response("200 OK", &[TEXT], &body)])
}

/// The line, if there is room for it.
fn in_room(room: &mut usize, line: String) -> Option<String> {
    *room = room.checked_sub(line.len())?;
    Some(line)
}

/// A page of this size that hardly becomes smaller when it is packed.
fn hardly_packable(bytes: usize) -> String {
    let mut state = 1_u64;
    let mut random = move || {
        // Knuth's linear congruential generator; its upper bits are the good ones.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 8
    };
    let line = |_| {
        (0..8).fold("x{a=\"".to_owned(), |mut line, _| {
            write!(line, "{:014x}", random()).unwrap();
            line
        }) + "\"} 1\n"
    };
    (0..).map(line).scan(bytes, in_room).collect()
}

/// Clients that ask and do not read, every second for a packed answer. `asked` gets each of them.
fn stalled(address: SocketAddr, path: &str, asked: impl Fn(&TcpStream)) -> Vec<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = |number: usize| {
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4()?;
            // So that little of the answer lies between us.
            socket.set_recv_buffer_size(4096)?;
            socket.connect(address).await?.into_std()
        });
        let mut stream = stream.unwrap();
        stream.set_nonblocking(false).unwrap();
        let accepts = ["identity", "gzip"][number % 2];
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: {accepts}\r\n\r\n");
        // Whoever asks again before it has its answer gets no more by that.
        stream.write_all(request.repeat(3).as_bytes()).unwrap();
        asked(&stream);
        stream
    };
    (0..STALLED).map(client).collect()
}

/// Work on costly pages, for clients that come at once.
fn worst_pages_with_extras_and_a_crowd(shipped: &Shipped) {
    let main = of_families(0, shipped.cap());
    let extras: Vec<_> = (1..=EXTRAS).map(|number| of_families(number, shipped.cap() / EXTRAS)).collect();
    let exporter = shipped.start(&main, &extras);
    ask_for_all(exporter.address);
    let _stalled = stalled(exporter.address, "/metrics", |_| ());
    let answer = get_patiently(exporter.address, "/metrics");
    let up = answer.body.lines().filter(|line| line.starts_with("kvtier_upstream_up{") && line.ends_with(" 1"));
    assert_eq!((answer.status, up.count()), (200, 1 + EXTRAS));
    shipped.holds(&exporter, "16 extras, a family on each line, and clients that do not read");
}

/// Each of the clients has a page of its own, as far as there is room.
fn clients_that_do_not_read(shipped: &Shipped) {
    let body = hardly_packable(shipped.cap());
    let upstream = Upstream::start(move |_| vec![response("200 OK", &[TEXT], &body)]);
    let exporter = shipped.start(&upstream, &[]);
    let _stalled = stalled(exporter.address, "/metrics", |stream| {
        // Until its answer begins, so that the next one gets another. Who waits for room waits with the next.
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let _ = stream.peek(&mut [0]);
    });
    shipped.holds(&exporter, "clients that do not read");
    let answer = get_with(exporter.address, "/metrics", &["X-Prometheus-Scrape-Timeout-Seconds: 10"]);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let debug = exporter.get("/debug").body;
    let cut = debug.lines().find_map(|line| line.strip_prefix("  unsent      ")).unwrap();
    assert!(!cut.contains("; 0 answers"), "{cut}");
    let told = |line: &&String| line.contains("answers that their clients do not take hold too much memory");
    assert_eq!(exporter.log().iter().filter(told).count(), 1, "said once");
}

/// Long names in as many engines as are told apart: what is said of such a page is as long as it.
#[test]
fn the_containers_limits_hold_for_what_is_said_of_a_page_of_many_engines() {
    let shipped = Shipped::in_containers();
    let (engines, name) = (1024, "m".repeat(shipped.cap() / 1024 - 200));
    let engine = |at: usize| {
        let labels = format!("engine=\"{at}\",model_name=\"{name}\"");
        format!("vllm:kv_offload_cpu_cache_usage_perc{{{labels}}} 0.5\n")
    };
    let body: String = (0..engines).map(engine).collect();
    let upstream = Upstream::start(move |_| vec![response("200 OK", &[TEXT], &body)]);
    let exporter = shipped.start(&upstream, &[]);
    for path in ["/debug", "/api/status", "/"] {
        let _stalled = stalled(exporter.address, path, |_| ());
        assert_eq!(get_patiently(exporter.address, path).status, 200);
        println!("{path}: {} bytes", get_patiently(exporter.address, path).body.len());
    }
    shipped.holds(&exporter, "clients that do not read what is said of many engines");
}

/// Heads of requests that never end, and of handshakes: each connection holds what it was sent, up to a limit.
#[test]
fn the_containers_limits_hold_for_heads_that_never_end() {
    let shipped = Shipped::in_containers();
    let upstream = Upstream::start(|_| vec![response("200 OK", &[TEXT], PAGE)]);
    let exporter = shipped.start(&upstream, &[]);
    let before = exporter.resident();
    // The first are held, the others are too long, and refused when that is known.
    for length in [15 << 10, 120 << 10] {
        let head = format!("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: {}", "x".repeat(length));
        let _crowd = dripping(exporter.address, head.as_bytes());
        let grown = exporter.resident() - before;
        println!("512 heads of {length} bytes: {} KiB each", (grown >> 10) / 512);
        // Twice 16 KiB, and the connection itself.
        assert!(grown < 512 * (48 << 10), "{grown} bytes");
        assert!(exporter.metrics().body.starts_with(PAGE));
    }
    shipped.holds(&exporter, "heads that never end");
}

/// As many connections as there is room for, each of which says this and waits.
fn dripping(address: SocketAddr, says: &[u8]) -> Vec<TcpStream> {
    let client = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        // What is too much for us may be refused before all of it is written.
        let _ = stream.write_all(says);
        stream
    };
    let crowd = (0..512).map(client).collect();
    std::thread::sleep(Duration::from_secs(1));
    crowd
}

#[test]
fn the_systemd_units_limit_holds_for_the_worst_pages() {
    worst_pages(&Shipped::in_units());
}

#[test]
fn the_containers_limits_hold_for_the_worst_pages() {
    worst_pages(&Shipped::in_containers());
}

#[test]
fn the_systemd_units_limit_holds_with_extras_and_a_crowd() {
    worst_pages_with_extras_and_a_crowd(&Shipped::in_units());
}

#[test]
fn the_containers_limits_hold_with_extras_and_a_crowd() {
    worst_pages_with_extras_and_a_crowd(&Shipped::in_containers());
}

#[test]
fn the_systemd_units_limit_holds_with_clients_that_do_not_read() {
    clients_that_do_not_read(&Shipped::in_units());
}

#[test]
fn the_containers_limits_hold_with_clients_that_do_not_read() {
    clients_that_do_not_read(&Shipped::in_containers());
}
