//! Headless Chromium, started once for each visit with a profile of its own.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Virtual time that a page is given, in milliseconds.
const BUDGET: u32 = 16_000;

/// The longest that a visit may really take, on a loaded machine too.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a browser made of a page.
pub struct Visit {
    /// The document as it stood at the end.
    pub dom: String,
    /// What a reader sees of its main part: no tags, every run of white space one space.
    pub text: String,
    /// Who asked for what, as the browser logged it.
    requests: Vec<(String, String)>,
}

/// Opens a page and gives it [`BUDGET`] to run. Its picture is kept under that name.
pub fn visit(url: &str, name: &str) -> Visit {
    let profile = tempfile::tempdir().unwrap();
    let (dom, log) = (profile.path().join("dom.html"), profile.path().join("net.json"));
    let artefacts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/artefacts");
    fs::create_dir_all(&artefacts).unwrap();
    let mut chromium = Command::new("chromium");
    chromium
        // The browser's own calls home are switched off as far as it lets us, and resolve nowhere.
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .arg("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
        .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
        .arg(format!("--log-net-log={}", log.display()))
        .arg(format!("--screenshot={}", artefacts.join(format!("status-{name}.png")).display()))
        .arg(format!("--virtual-time-budget={BUDGET}"))
        .args(["--window-size=1280,1600", "--dump-dom", url])
        .stdin(Stdio::null())
        .stdout(File::create(&dom).unwrap())
        .stderr(Stdio::null());
    let mut child = chromium.spawn().expect("these tests need chromium (apt-get install chromium)");
    let end = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("chromium did not finish with {url}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let dom = fs::read_to_string(dom).unwrap();
    let text = text(dom.split_once("<main").map_or("", |(_, main)| main.split_once("</main>").unwrap().0));
    Visit { text, requests: requests(&fs::read_to_string(log).unwrap()), dom }
}

impl Visit {
    /// What the page at that address asked of any other.
    pub fn foreign(&self, address: SocketAddr) -> Vec<String> {
        let origin = format!("http://{address}");
        let own: Vec<_> = self.requests.iter().filter(|(initiator, _)| *initiator == origin).collect();
        assert!(!own.is_empty(), "the log shows no request of {origin} at all: {:?}", self.requests);
        let foreign = own.into_iter().filter(|(_, url)| !url.starts_with(&format!("{origin}/")));
        let mut foreign: Vec<String> = foreign.map(|(_, url)| url.clone()).collect();
        foreign.dedup();
        foreign
    }
}

/// Initiator and address of each request in a log of Chromium's network stack. What the browser itself asks for has
/// no origin as its initiator.
fn requests(log: &str) -> Vec<(String, String)> {
    let log: Value = serde_json::from_str(log).unwrap();
    let events = log["events"].as_array().unwrap().iter();
    let params = events.map(|event| &event["params"]);
    params
        .filter_map(|params| Some((params["initiator"].as_str()?.to_owned(), params["url"].as_str()?.to_owned())))
        .collect()
}

fn text(html: &str) -> String {
    let html = html.split_once('>').map_or("", |(_, inner)| inner).replace("<wbr>", "");
    let mut text = String::new();
    for part in html.split('<') {
        text.push(' ');
        text.push_str(part.split_once('>').map_or(part, |(_, text)| text));
    }
    let text = text.replace("&nbsp;", " ").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
