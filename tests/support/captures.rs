//! The captures under `tests/fixtures/`, each with the numbers that another program worked out for it.

use std::io::Read;
use std::path::{Path, PathBuf};

use kvtier_exporter::openmetrics;
use kvtier_exporter::pipeline::Format;
use kvtier_exporter::settings::Settings;
use serde_json::{Value, json};

/// One page of a real engine. Each folder's `about.md` says how it was taken.
#[derive(Clone)]
pub struct Capture {
    /// Name of its folder.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The body as the exporter's upstream part hands it on: without head, unpacked.
    pub body: Vec<u8>,
    /// How the server said that it is written.
    pub format: Format,
    /// What is in `expected.json`; nothing but "no" for other engines than vLLM.
    pub expected: Value,
}

impl Capture {
    fn read(folder: &Path) -> Capture {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let file = |name: &str| std::fs::read(folder.join(name)).ok();
        let expected = match file("expected.json") {
            Some(numbers) => serde_json::from_slice(&numbers).unwrap(),
            None if name.starts_with("vllm-") => panic!("{name} must have an expected.json"),
            None => unworked(),
        };
        let (body, format) = match (file("page.prom"), file("page.openmetrics.txt"), file("response.http")) {
            (Some(page), None, None) => (page, Format::Text),
            (None, Some(page), None) => (page, Format::OpenMetrics),
            (None, None, Some(response)) => split_response(&response),
            _ => panic!("{name} must hold exactly one page"),
        };
        Capture { name, folder: folder.to_owned(), body, format, expected }
    }

    /// The page as text 0.0.4, before anything is corrected.
    pub fn text(&self) -> Vec<u8> {
        match self.format {
            Format::OpenMetrics => openmetrics::to_text(&self.body),
            Format::Text | Format::Unsaid => self.body.clone(),
        }
    }

    /// Size of each engine's RAM tier in bytes.
    pub fn tier_bytes(&self) -> Option<f64> {
        self.expected["tier_bytes"].as_f64()
    }

    /// Whether the size can be read off the page.
    pub fn tells_its_size(&self) -> bool {
        self.flag("tier_bytes_on_the_page")
    }

    /// A yes or no of `expected.json`.
    pub fn flag(&self, name: &str) -> bool {
        self.expected[name].as_bool().unwrap_or_else(|| panic!("{} should say {name}", self.name))
    }

    /// Settings that the page needs: the tier's size, where the page does not say it.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        if let (Some(size), false) = (self.expected["tier_bytes"].as_u64(), self.tells_its_size()) {
            settings.tier_sizes.insert("ram".to_owned(), size);
        }
        settings
    }

    /// Engines by label, with their numbers.
    pub fn engines(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.expected["engines"].as_object().unwrap().iter().map(|(engine, numbers)| (engine.as_str(), numbers))
    }
}

/// Pages of other engines have no numbers from another program; tests/tiers.rs works theirs out by hand.
fn unworked() -> Value {
    json!({ "offloading_connector": false, "after_reset": false, "tier_bytes_on_the_page": false, "engines": {} })
}

/// All captures, by name.
pub fn all() -> Vec<Capture> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let is_capture = |path: &PathBuf| path.join("about.md").is_file();
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()).filter(is_capture).collect();
    folders.sort();
    assert!(!folders.is_empty());
    folders.iter().map(|folder| Capture::read(folder)).collect()
}

/// The capture of that name.
pub fn named(name: &str) -> Capture {
    Capture::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name))
}

fn split_response(response: &[u8]) -> (Vec<u8>, Format) {
    let end = response.windows(4).position(|four| four == b"\r\n\r\n").expect("a response has a head");
    let head = String::from_utf8_lossy(&response[..end]).to_lowercase();
    let body = &response[end + 4..];
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name).map(str::trim));
    let format = match header("content-type:") {
        Some(kind) if kind.starts_with("text/plain") => Format::Text,
        Some(kind) if kind.starts_with("application/openmetrics-text") => Format::OpenMetrics,
        _ => Format::Unsaid,
    };
    match header("content-encoding:") {
        Some("gzip") => {
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(body).read_to_end(&mut unpacked).unwrap();
            (unpacked, format)
        }
        _ => (body.to_vec(), format),
    }
}
