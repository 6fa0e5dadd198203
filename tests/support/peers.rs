//! Programs of others that judge our output: a real Prometheus and promtool, and a server with pages for them.
//!
//! A peer that is not installed fails the test: a check that was left out must not look like one that passed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// What a page in text is sent as.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a page in OpenMetrics is sent as.
pub const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves page `n` on `/n`, on a loopback port of its own, until it is dropped.
pub struct Pages {
    address: SocketAddr,
    closing: Arc<AtomicBool>,
}

impl Pages {
    /// Starts to serve pages in text.
    pub fn serve(pages: Vec<Vec<u8>>) -> Pages {
        Pages::serve_as(pages.into_iter().map(|page| (TEXT, page)).collect())
    }

    /// Starts to serve pages, each with its Content-Type.
    pub fn serve_as(pages: Vec<(&'static str, Vec<u8>)>) -> Pages {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let closing = Arc::new(AtomicBool::new(false));
        let (pages, closed) = (Arc::new(pages), closing.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if closed.load(Ordering::Relaxed) {
                    break;
                }
                let pages = pages.clone();
                // A client that went away is the client's affair.
                thread::spawn(move || answer(stream, &pages).ok());
            }
        });
        Pages { address, closing }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        // Wakes the accept loop, which then sees the flag.
        TcpStream::connect(self.address).ok();
    }
}

fn answer(mut stream: TcpStream, pages: &[(&str, Vec<u8>)]) -> std::io::Result<()> {
    let mut request = BufReader::new(stream.try_clone()?).lines();
    let first = request.next().unwrap_or_else(|| Ok(String::new()))?;
    while request.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let path = first.split(' ').nth(1).unwrap_or_default();
    let page = path.trim_start_matches('/').parse().ok().and_then(|n: usize| pages.get(n));
    let (status, kind, body) =
        page.map_or(("404 Not Found", TEXT, &[][..]), |(kind, page)| ("200 OK", *kind, &page[..]));
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    stream.write_all(body)
}

/// A running Prometheus, ended when it is dropped.
pub struct Prometheus {
    child: Child,
    api: SocketAddr,
    _data: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that scrapes each of `count` pages as a target of its own, labelled `page="n"`.
    pub fn scraping(pages: &Pages, count: usize) -> Prometheus {
        Prometheus::scraping_every(1, pages, count)
    }

    /// The same with a longer interval, for pages by the thousand.
    pub fn scraping_every(seconds: u32, pages: &Pages, count: usize) -> Prometheus {
        Prometheus::running(&scrape_config(pages.address, count, seconds))
    }

    /// Starts one with this configuration. Retried, since another program may take the free port in between.
    pub fn running(config: &Value) -> Prometheus {
        for _ in 0..3 {
            let mut prometheus = Prometheus::start(config);
            if prometheus.answers() {
                return prometheus;
            }
        }
        panic!("Prometheus was started three times and never answered");
    }

    fn start(settings: &Value) -> Prometheus {
        let data = tempfile::tempdir().unwrap();
        let config = data.path().join("prometheus.yml");
        // JSON is YAML.
        std::fs::write(&config, settings.to_string()).unwrap();
        let api = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.path().join("data").display()))
            .arg(format!("--web.listen-address={api}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus must be installed: tests/run does that when it runs as root");
        Prometheus { child, api, _data: data }
    }

    fn answers(&mut self) -> bool {
        within(Duration::from_secs(30), || {
            if self.child.try_wait().unwrap().is_some() {
                return Some(false);
            }
            get(self.api, "/-/ready").is_some().then_some(true)
        })
        .unwrap_or(false)
    }

    /// What an instant query gives: labels and value of each series. `None` where Prometheus refuses the query.
    pub fn instant(&self, query: &str) -> Option<Vec<(Value, f64)>> {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let body = get(self.api, &format!("/api/v1/query?query={escaped}"))?;
        let answer: Value = serde_json::from_slice(&body).ok()?;
        let pair = |series: &Value| Some((series["metric"].clone(), series["value"][1].as_str()?.parse().ok()?));
        answer["data"]["result"].as_array()?.iter().map(pair).collect()
    }

    /// Value by page of an instant query.
    fn by_page(&self, query: &str, count: usize) -> Option<Vec<f64>> {
        let mut values = vec![None; count];
        for (labels, value) in self.instant(query)? {
            let page: usize = labels["page"].as_str()?.parse().ok()?;
            values[page] = Some(value);
        }
        values.into_iter().collect()
    }

    /// How many pages were scraped at least once.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "counts of pages are small whole numbers"
    )]
    fn scraped(&self) -> Option<usize> {
        Some(self.instant("count(scrape_samples_scraped)")?.first()?.1 as usize)
    }

    /// Everything that was stored, as text with the label `page` at each sample: the last sample of each series.
    pub fn stored(&self) -> Vec<u8> {
        let ours = r#"{page!="",__name__!~"up|scrape_.+"}"#;
        let matching: String = ours.bytes().map(|byte| format!("%{byte:02X}")).collect();
        get(self.api, &format!("/federate?match[]={matching}")).expect("Prometheus should give its samples")
    }

    /// For each page the samples that were read from it, or `None` where it was refused.
    pub fn verdicts(&self, count: usize) -> Vec<Option<usize>> {
        let both = within(Duration::from_secs(120), || {
            self.scraped().filter(|scraped| *scraped >= count)?;
            Some((self.by_page("up", count)?, self.by_page("scrape_samples_scraped", count)?))
        });
        let (up, samples) = both.expect("Prometheus should have scraped every page within two minutes");
        // Counts of samples are small whole numbers.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        up.iter().zip(samples).map(|(up, samples)| (*up == 1.0).then_some(samples as usize)).collect()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn scrape_config(pages: SocketAddr, count: usize, seconds: u32) -> Value {
    let target = |page: usize| json!({"targets": [pages.to_string()], "labels": {"page": page.to_string(), "__metrics_path__": format!("/{page}")}});
    let targets: Vec<Value> = (0..count).map(target).collect();
    json!({
        "global": {"scrape_interval": format!("{seconds}s"), "scrape_timeout": format!("{seconds}s")},
        "scrape_configs": [{"job_name": "pages", "static_configs": targets}],
    })
}

/// Asks again until there is an answer or the time is over.
fn within<T>(limit: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        thread::sleep(Duration::from_millis(100));
    }
    None
}

/// The body of a 200 answer.
fn get(address: SocketAddr, path: &str) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n")?;
    answer.starts_with(b"HTTP/1.0 200").then(|| answer[head + 4..].to_vec())
}

/// What `promtool check metrics` says of a page: its exit status and its words.
pub fn promtool(page: &[u8]) -> (Option<i32>, String) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool must be installed: tests/run does that when it runs as root");
    let mut input = child.stdin.take().unwrap();
    // It stops reading at the first line that it refuses, which is for its exit status to say.
    input.write_all(page).ok();
    drop(input);
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}
