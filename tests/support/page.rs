//! Pages written by hand, and what the pipeline makes of them.

use bytes::Bytes;
use kvtier_exporter::family::Family;
use kvtier_exporter::pipeline::{Format, Outcome, Source, process};
use kvtier_exporter::settings::{HostFacts, Settings};

/// A page under construction.
#[derive(Clone)]
pub struct Page {
    text: String,
    engine: &'static str,
}

impl Page {
    /// An empty page.
    pub fn new() -> Page {
        Page { text: String::new(), engine: "" }
    }

    /// A page of one vLLM engine.
    pub fn vllm() -> Page {
        Page { text: String::new(), engine: r#"engine="0",model_name="acme/m""# }
    }

    /// Adds text as it is.
    pub fn text(mut self, text: &str) -> Page {
        self.text.push_str(text);
        self
    }

    /// Adds a sample with these labels.
    pub fn raw(self, name: &str, labels: &str, value: &str) -> Page {
        self.text(&format!("{name}{{{labels}}} {value}\n"))
    }

    /// Adds a sample of the engine.
    pub fn sample(self, name: &str, labels: &str, value: &str) -> Page {
        let comma = if labels.is_empty() { "" } else { "," };
        let labels = format!("{}{comma}{labels}", self.engine);
        self.raw(name, &labels, value)
    }

    /// Adds the engine's `cache_config_info`, which has no model.
    pub fn config(self, labels: &str) -> Page {
        let labels = format!(r#"engine="0",{labels}"#);
        self.raw("vllm:cache_config_info", &labels, "1.0")
    }

    /// The page.
    pub fn written(&self) -> &str {
        &self.text
    }
}

/// What came out.
pub struct Result {
    pub page: String,
    pub warnings: Vec<String>,
    pub outcome: Outcome,
}

/// Runs a page with default settings and an unknown box.
pub fn run(page: &Page) -> Result {
    run_with(page, |_, _| {})
}

/// Runs a page with `--tier.size` for the RAM tier.
pub fn run_sized(page: &Page, bytes: u64) -> Result {
    run_with(page, |settings, _| {
        settings.tier_sizes.insert("ram".into(), bytes);
    })
}

/// Runs a page with settings and box as `change` makes them.
pub fn run_with(page: &Page, change: impl FnOnce(&mut Settings, &mut HostFacts)) -> Result {
    let (mut settings, mut host) = (Settings::default(), HostFacts::default());
    change(&mut settings, &mut host);
    let source = Source { name: "main".into(), body: Bytes::from(page.text.clone()), format: Format::Text };
    let outcome = process(&[source], &settings, &host);
    let page = String::from_utf8(outcome.page.concat()).expect("a page of text stays text");
    Result { page, warnings: outcome.notices.iter().map(|notice| notice.detail.clone()).collect(), outcome }
}

impl Result {
    fn family(&self, name: &str) -> &Family {
        let found = self.outcome.families.iter().find(|family| family.desc.name == name);
        found.unwrap_or_else(|| panic!("no family {name} is known"))
    }

    /// Whether the family has no sample.
    pub fn absent(&self, name: &str) -> bool {
        self.family(name).samples.is_empty()
    }

    /// All values of a family.
    pub fn values(&self, name: &str) -> Vec<f64> {
        self.family(name).samples.iter().map(|(_, value)| *value).collect()
    }

    /// The one value of a family.
    pub fn value(&self, name: &str) -> f64 {
        let values = self.values(name);
        assert_eq!(values.len(), 1, "samples of {name}");
        values[0]
    }

    /// The one value of a tier family, of tier `ram`.
    pub fn tier(&self, name: &str) -> f64 {
        assert_eq!(self.labels(name, "tier"), ["ram"], "tiers of {name}");
        self.value(name)
    }

    /// One label of each sample.
    pub fn labels(&self, name: &str, label: &str) -> Vec<&str> {
        self.family(name).samples.iter().map(|(labels, _)| labels.get(label).unwrap_or_default()).collect()
    }

    /// The lines of upstream samples with that name.
    pub fn lines(&self, name: &str) -> Vec<&str> {
        self.page.lines().filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with('{'))).collect()
    }

    /// The values of upstream samples with that name, as written.
    pub fn upstream(&self, name: &str) -> Vec<&str> {
        self.lines(name).into_iter().filter_map(|line| line.rsplit(' ').next()).collect()
    }

    /// The HELP text of an upstream family.
    pub fn help(&self, name: &str) -> String {
        let start = format!("# HELP {name} ");
        let line = self.page.lines().find(|line| line.starts_with(&start));
        line.unwrap_or_else(|| panic!("no HELP of {name}"))[start.len()..].to_owned()
    }
}
