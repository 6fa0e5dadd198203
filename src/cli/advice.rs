//! The flags of `check`, `plan` and `report`. They have no variables: a command that is run once is written out.
//!
//! An `id` is given where a flag for serving has a field of that name: those are read below every command too.

use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args, ValueEnum};

use super::units;
use super::upstream::Quiet;
use crate::advise::plan;
use crate::report::window::Span;
use crate::upstream::Address;

/// Notation of the advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Notation of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    /// For a terminal.
    Text,
    /// For a ticket.
    Markdown,
    /// For programs.
    Json,
}

/// Flags of `check`.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Check")]
pub struct Check {
    /// Engines on this box, where none answers yet
    #[arg(long = "engines", value_name = "N", default_value = "1", value_parser = units::counting::<u32>)]
    pub engines: u32,

    /// LMCache's configuration file
    #[arg(long = "lmcache.config", value_name = "FILE", conflicts_with = "url")]
    pub config: Option<PathBuf>,

    /// LMCache's internal server, asked for its configuration (GET /conf)
    #[arg(id = "url", long = "lmcache.url", value_name = "ADDRESS", value_parser = Quiet(Address::parse))]
    pub url: Option<Address>,

    /// Notation
    #[arg(id = "notation", long = "format", value_name = "text|json", value_enum)]
    #[arg(default_value = "text", hide_possible_values = true)]
    pub format: Format,
}

/// Flags of `plan`.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Plan")]
pub struct Plan {
    /// What is to be launched
    #[arg(long = "engine", value_name = "vllm|sglang", value_enum, hide_possible_values = true)]
    pub engine: plan::Engine,

    /// RAM tier per engine, all ranks together
    #[arg(long = "ram", value_name = "SIZE", value_parser = units::size)]
    pub ram: Option<u64>,

    /// Disk tier per engine, all ranks together
    #[arg(long = "disk", value_name = "SIZE", value_parser = units::size, requires = "path")]
    pub disk: Option<u64>,

    /// Directory of the disk tier
    #[arg(long = "path", value_name = "DIR", requires = "disk")]
    pub path: Option<PathBuf>,

    /// KV bytes of one token, all ranks together
    #[arg(id = "token_bytes", long = "bytes-per-token", value_name = "BYTES", value_parser = units::positive)]
    pub bytes_per_token: Option<f64>,

    /// Tokens of one engine's KV pool on the GPU
    #[arg(long = "gpu-pool-tokens", value_name = "N", value_parser = units::counting::<u64>)]
    pub gpu_pool_tokens: Option<u64>,

    /// Engines on this box
    #[arg(long = "engines", value_name = "N", default_value = "1", value_parser = units::counting::<u32>)]
    pub engines: u32,

    /// Tokens of the longest request; sizes the staging memory of a disk tier
    #[arg(long = "request-tokens", value_name = "N", default_value = "32768")]
    #[arg(value_parser = units::counting::<u64>)]
    pub request_tokens: u64,

    /// Notation
    #[arg(id = "notation", long = "format", value_name = "text|json", value_enum)]
    #[arg(default_value = "text", hide_possible_values = true)]
    pub format: Format,
}

/// Flags of `report`.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Report", group = ArgGroup::new("windows").args(["window", "before"]).requires("prometheus"))]
pub struct Report {
    /// Scrape twice and tell what happened in between
    #[arg(long = "interval", value_name = "TIME", value_parser = units::duration, conflicts_with = "prometheus")]
    pub interval: Option<Duration>,

    /// A Prometheus that has the history
    #[arg(long = "prometheus", value_name = "URL", value_parser = Quiet(Address::parse))]
    #[arg(requires = "windows")]
    pub prometheus: Option<Address>,

    /// Window to tell of: FROM..TO, each RFC 3339, -2h or now
    #[arg(long = "window", value_name = "FROM..TO", value_parser = Span::parse, allow_hyphen_values = true)]
    pub window: Option<Span>,

    /// Window without the tier, in the place of --window
    #[arg(long = "before", value_name = "FROM..TO", value_parser = Span::parse, allow_hyphen_values = true)]
    #[arg(requires = "after")]
    pub before: Option<Span>,

    /// Window with the tier
    #[arg(long = "after", value_name = "FROM..TO", value_parser = Span::parse, allow_hyphen_values = true)]
    #[arg(requires = "before", conflicts_with = "window")]
    pub after: Option<Span>,

    /// Matchers that pick series in the Prometheus, such as job="kvtier"
    #[arg(long = "match", value_name = "MATCHERS", default_value = "", requires = "prometheus")]
    pub matchers: String,

    /// File with a bearer token for the Prometheus
    #[arg(long = "prometheus.bearer-token-file", value_name = "FILE", requires = "prometheus")]
    pub prometheus_token: Option<PathBuf>,

    /// Notation
    #[arg(id = "notation", long = "format", value_name = "text|markdown|json", value_enum)]
    #[arg(default_value = "text", hide_possible_values = true)]
    pub format: ReportFormat,
}
