//! LMCache's configuration, as far as it decides whether there is a tier: read from its file or from its server.
//!
//! It takes numbers and truths as Python's YAML does, in quotes or not, and passes over everything else. That
//! `local_cpu: false` with `max_local_cpu_size: 0` starts no tier was seen by running LMCache 0.5.6.

use serde_json::Value;

use super::Finding;
use super::words::{gib, wrapped};
use crate::plain;

/// The settings that decide about its tiers.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Where it was read.
    pub from: String,
    /// Whether host memory is a tier; else it is only staging.
    pub local_cpu: bool,
    /// GiB of pinned host memory, for the tier or as staging.
    pub max_local_cpu_size: f64,
    /// Directory of the disk tier.
    pub local_disk: Option<String>,
    /// GiB of the disk tier, for each worker process.
    pub max_local_disk_size: f64,
}

/// LMCache's own values where nothing is said.
const DEFAULT_CPU_GIB: f64 = 5.0;

/// The settings that are read.
const SETTINGS: [&str; 4] = ["local_cpu", "max_local_cpu_size", "local_disk", "max_local_disk_size"];

/// What stands in an object in which none of the settings does. Foreign text.
fn strange(value: &Value) -> Option<String> {
    let map = value.as_object().filter(|map| !SETTINGS.iter().any(|name| map.contains_key(*name)))?;
    let names: Vec<String> = map.keys().take(3).map(|name| format!("{name:?}")).collect();
    let names = if names.is_empty() { "nothing at all".to_owned() } else { names.join(", ") };
    Some(format!("sent JSON without any of LMCache's settings ({}); what stands in it is {names}", SETTINGS.join(", ")))
}

impl Config {
    /// From the text of its YAML file.
    ///
    /// # Errors
    /// A sentence where it is no YAML or no mapping.
    pub fn from_yaml(text: &str, from: &str) -> Result<Config, String> {
        // A file of comments only sets nothing.
        let value = serde_saphyr::from_str::<Option<Value>>(text).map_err(|error| no_yaml(from, &error))?;
        Config::from_value(&value.unwrap_or_else(|| Value::Object(serde_json::Map::new())), from)
    }

    /// From what `GET /conf` answers.
    ///
    /// # Errors
    /// A sentence where it is no JSON object, or one without any of these settings: LMCache tells all of them.
    pub fn from_json(text: &[u8], from: &str) -> Result<Config, String> {
        let value =
            serde_json::from_slice(text).map_err(|error| format!("{from} {}.", plain::no_json(text, &error)))?;
        match strange(&value) {
            Some(strange) => Err(format!("{from} {strange}.")),
            None => Config::from_value(&value, from),
        }
    }

    fn from_value(value: &Value, from: &str) -> Result<Config, String> {
        let map = value.as_object().ok_or_else(|| format!("{from} holds no settings by name"))?;
        let number = |name: &str, default: f64| match map.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => number(value).ok_or_else(|| format!("{name} in {from} is no number: {value}")),
        };
        let truth = |name: &str, default: bool| match map.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => truth(value).ok_or_else(|| format!("{name} in {from} is neither true nor false: {value}")),
        };
        let disk = map.get("local_disk").and_then(Value::as_str).filter(|path| !path.is_empty());
        Ok(Config {
            from: from.to_owned(),
            local_cpu: truth("local_cpu", true)?,
            max_local_cpu_size: number("max_local_cpu_size", DEFAULT_CPU_GIB)?,
            local_disk: disk.map(|path| path.strip_prefix("file://").unwrap_or(path).to_owned()),
            max_local_disk_size: number("max_local_disk_size", 0.0)?,
        })
    }

    /// What keeps it from being what it looks like.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let disk = self.local_disk.as_deref().unwrap_or_default();
        if !self.local_cpu && self.max_local_cpu_size <= 0.0 {
            findings.push(Finding::new(
                "lmcache-no-staging",
                format!("{}: local_cpu is false and max_local_cpu_size is {}", self.from, self.max_local_cpu_size),
                "LMCache moves every disk read and write through that memory. Without any its start fails, it says so \
                 once in the log (\"degraded mode (recompute)\"), and vLLM serves with no tier at all.",
                "Set a small positive max_local_cpu_size, such as 2.0 (GiB): with local_cpu false it is staging and \
                 keeps nothing. It must hold the chunks of the largest request in flight; `kvtier-exporter plan \
                 --disk` sizes it.",
            ));
        }
        if self.local_disk.is_some() && self.max_local_disk_size <= 0.0 {
            findings.push(Finding::new(
                "lmcache-disk-size-zero",
                format!(
                    "{}: local_disk is {disk:?} and max_local_disk_size is {}",
                    self.from, self.max_local_disk_size
                ),
                "With a size of 0 GiB LMCache builds no disk tier and says nothing about it.",
                "Set max_local_disk_size to the GiB that each worker process may write there.",
            ));
        }
        findings
    }
}

fn no_yaml(from: &str, error: &serde_saphyr::Error) -> String {
    let place = error.location().map(|at| format!(", line {}", at.line())).unwrap_or_default();
    format!(
        "{from}{place}: this is not YAML; look here and above for a wrong indent or a missing quote, bracket or colon"
    )
}

/// Python writes a number as a number, or as text where it came from the environment.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

fn truth(value: &Value) -> Option<bool> {
    value.as_bool().or_else(|| match value.as_str()?.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    })
}

/// A disk tier to be written down.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    /// Its directory.
    pub path: String,
    /// Bytes for each worker process.
    pub bytes_each: f64,
    /// GiB of staging for each worker process.
    pub staging_gib: f64,
    /// How the staging was sized.
    pub staging_why: String,
}

impl Disk {
    /// A configuration file that starts a disk tier and no RAM tier.
    pub fn yaml(&self) -> String {
        let Disk { path, bytes_each, staging_gib, staging_why } = self;
        let gib_each = gib(*bytes_each);
        // A number with a point: LMCache's own files have one.
        let point = if gib_each.contains('.') { "" } else { ".0" };
        let staging_why = wrapped(staging_why, 0).replace('\n', "\n# ");
        // JSON's text is YAML's too, so any path can be written.
        let url = Value::String(format!("file://{path}"));
        format!(
            "# LMCache: a disk tier and no RAM tier. Named to vLLM by LMCACHE_CONFIG_FILE.\n\
             chunk_size: 256\n\
             local_cpu: false\n\
             # Staging, per worker process; 0 would start no tier at all.\n# {staging_why}\n\
             max_local_cpu_size: {staging_gib:?}\n\
             local_disk: {url}\n\
             # GiB, per worker process. Files outlive the process and are neither counted nor removed by the next one,\n\
             # so empty the directory before each start.\n\
             max_local_disk_size: {gib_each}{point}\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(config: &Config) -> Vec<&'static str> {
        config.findings().iter().map(|finding| finding.id).collect()
    }

    #[test]
    fn what_starts_no_tier_is_found_however_it_is_written() {
        for yaml in [
            "local_cpu: false\nmax_local_cpu_size: 0\nlocal_disk: /kv\nmax_local_disk_size: 500\n",
            "local_cpu: False\nmax_local_cpu_size: 0.0\n",
            "chunk_size: 256\nlocal_cpu: \"false\"\nmax_local_cpu_size: \"0\" # text\n",
            "local_cpu: no\nmax_local_cpu_size: -1\n",
        ] {
            assert_eq!(ids(&Config::from_yaml(yaml, "f").unwrap()), ["lmcache-no-staging"], "{yaml}");
        }
        let json = br#"{"local_cpu": false, "max_local_cpu_size": 0.0, "local_disk": "file:///kv", "extra": null}"#;
        assert_eq!(ids(&Config::from_json(json, "s").unwrap()), ["lmcache-no-staging", "lmcache-disk-size-zero"]);
    }

    #[test]
    fn what_starts_one_is_not() {
        for yaml in [
            "",
            "# nothing\n",
            "local_cpu: false\n",
            "local_cpu: true\nmax_local_cpu_size: 0\n",
            "local_cpu: false\nmax_local_cpu_size: 0.5\nlocal_disk: /kv\nmax_local_disk_size: 1\n",
        ] {
            assert_eq!(ids(&Config::from_yaml(yaml, "f").unwrap()), [""; 0], "{yaml}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_one_sentence() {
        for text in ["- a\n- b\n", "local_cpu: [", "local_cpu: maybe\n", "max_local_cpu_size: much\n"] {
            let error = Config::from_yaml(text, "the file").unwrap_err();
            assert!(error.contains("the file") && !error.contains('\n'), "{error}");
        }
        assert!(Config::from_json(b"<html>", "the server").unwrap_err().contains("the server"));
        let other = Config::from_json(br#"{"status": "ok"}"#, "the server").unwrap_err();
        assert!(other.starts_with("the server sent JSON without any of LMCache's settings (local_cpu, "), "{other}");
        assert!(other.ends_with("what stands in it is \"status\"."), "{other}");
        assert!(Config::from_json(b"{}", "the server").unwrap_err().ends_with("is nothing at all."));
        assert!(Config::from_json(br#"{"status": "ok", "local_cpu": true}"#, "the server").is_ok());
    }

    #[test]
    fn the_file_that_is_printed_starts_a_tier() {
        let disk = Disk {
            path: "/kv/a \"b\"".into(),
            bytes_each: 536_870_912_000.0,
            staging_gib: 2.0,
            staging_why: "Why.".into(),
        };
        let config = Config::from_yaml(&disk.yaml(), "f").unwrap();
        assert_eq!(config.findings(), []);
        assert_eq!((config.local_cpu, config.max_local_cpu_size), (false, 2.0));
        assert_eq!((config.local_disk.as_deref(), config.max_local_disk_size), (Some("/kv/a \"b\""), 500.0));
        assert!(disk.yaml().contains("\nchunk_size: 256\n") && disk.yaml().contains("\nmax_local_disk_size: 500.0\n"));
        let third = Disk { bytes_each: 500e9 / 3.0, ..disk };
        assert!(third.yaml().contains("\nmax_local_disk_size: 155.220\n"), "{}", third.yaml());
    }
}
