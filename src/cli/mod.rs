//! The command line. Every flag is also an environment variable: `KVTIER_` and the flag's name in capitals, with
//! `_` for `.` and `-`; an empty one is as none. Help shows the variables' names and never their values.
//!
//! To add a flag: a field here; its variable follows by itself.

mod advice;
mod collectors;
mod events;
pub mod units;
mod upstream;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{BoolishValueParser, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing::Level;

pub use advice::{Check, Format, Plan, Report, ReportFormat};
use upstream::Quiet;

pub use collectors::Collectors;
pub use events::Events;
pub use units::Listen;
pub use upstream::{Extra, Upstream};

use crate::healthcheck;
use crate::host;
use crate::log;
use crate::settings::Settings;
use crate::upstream::Address;
use crate::web::{Compression, Limits};

const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (revision ",
    env!("KVTIER_BUILD_REVISION"),
    ", rustc ",
    env!("KVTIER_BUILD_RUSTC"),
    ")"
);

/// Prometheus exporter and correction proxy for vLLM with a KV offload tier.
#[derive(Debug, Parser)]
#[command(name = "kvtier-exporter", version = VERSION, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = "Each flag can be set by the variable beside it; lists are separated by commas there.")]
pub struct Cli {
    /// Where we listen.
    #[command(flatten)]
    pub web: Web,
    /// What we fetch.
    #[command(flatten)]
    pub upstream: Upstream,
    /// What is known of the engine.
    #[command(flatten)]
    pub engine: Engine,
    /// What is looked at on this box.
    #[command(flatten)]
    pub host: Host,
    /// Which event streams are followed.
    #[command(flatten)]
    pub events: Events,
    /// How the log looks.
    #[command(flatten)]
    pub log: Log,
    /// Something else than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// Something else than serving.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Command {
    /// Run a simulated deployment and the exporter in front of it
    Demo,
    /// Ask a running exporter whether it is healthy: exit status 0 or 1
    Healthcheck {
        /// Where it is asked, instead of the first --web.listen-address
        #[arg(long = "url", value_name = "ADDRESS", value_parser = Quiet(healthcheck::address))]
        url: Option<Address>,
    },
    /// Something that is answered once.
    #[command(flatten)]
    Advice(Advice),
}

/// A command around a launch, which is answered once.
#[derive(Clone, Debug, PartialEq, Subcommand)]
pub enum Advice {
    /// Look at a deployment as a careful colleague would: exit status 0 fine, 1 findings, 2 could not run
    Check(Box<Check>),
    /// Decide about a tier before a launch, and print the flags: exit status as of check
    Plan(Box<Plan>),
    /// Tell whether a tier pays: from one scrape, two, or the history in a Prometheus
    Report(Box<Report>),
}

/// Where we listen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Web")]
pub struct Web {
    /// Address to serve on; :PORT is every interface; repeatable
    #[arg(long = "web.listen-address", value_name = "ADDRESS", value_parser = Listen::parse)]
    #[arg(value_delimiter = ',', default_value = "127.0.0.1:10477", global = true)]
    pub listen: Vec<Listen>,

    /// Path of the metrics
    #[arg(long = "web.telemetry-path", value_name = "PATH", value_parser = units::telemetry_path)]
    #[arg(default_value = "/metrics", global = true)]
    pub telemetry_path: String,

    /// TLS and users, in the format of Prometheus' exporters; read again when it changes and on SIGHUP
    #[arg(long = "web.config.file", value_name = "FILE", global = true)]
    pub config_file: Option<PathBuf>,

    /// Name by which a listener on loopback is called, beside addresses, localhost and names without a dot; repeatable
    #[arg(long = "web.allowed-host", value_name = "NAME", value_parser = units::host_name)]
    #[arg(value_delimiter = ',', global = true)]
    pub allowed_hosts: Vec<String>,

    /// Requests answered at a time, three quarters of them for one address; 0 is no limit
    #[arg(long = "web.max-requests", value_name = "N", value_parser = units::whole::<usize>)]
    #[arg(default_value_t = Limits::default().requests, global = true)]
    pub max_requests: usize,

    /// Pack answers with gzip for clients that ask for it: auto is for those on other boxes
    #[arg(long = "web.compression", value_name = "auto|on|off", value_enum, default_value = "auto", global = true)]
    #[arg(hide_possible_values = true)]
    pub compression: Compression,

    /// Answer 502 instead of 200 while the upstream is down
    #[arg(long = "strict", value_parser = BoolishValueParser::new())]
    pub strict: bool,
}

/// What is known of the engine.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub struct Engine {
    /// Size of a tier per engine (default tier: ram); repeatable
    #[arg(long = "tier.size", global = true, value_name = "[TIER=]SIZE", value_parser = units::tier_size, value_delimiter = ',')]
    pub tier_sizes: Vec<(String, u64)>,

    /// KV bytes of one token, all ranks together
    #[arg(long = "kv.bytes-per-token", global = true, value_name = "BYTES", value_parser = units::positive)]
    pub bytes_per_token: Option<f64>,

    /// Processes of one engine that copy in parallel (TP x PP)
    #[arg(long = "engine.ranks", global = true, value_name = "N", value_parser = units::counting::<u32>)]
    pub ranks: Option<u32>,

    /// Replace the misleading usage gauge of the tier
    #[arg(long = "correct", global = true, value_name = "on|off", value_parser = units::switch, default_value = "on", action = ArgAction::Set)]
    pub correct: bool,
}

/// What is looked at on this box.
#[derive(Debug, Args)]
#[command(next_help_heading = "Host")]
pub struct Host {
    /// Where procfs is mounted
    #[arg(long = "path.procfs", global = true, value_name = "DIR", default_value = "/proc")]
    pub procfs: PathBuf,

    /// Where sysfs is mounted
    #[arg(long = "path.sysfs", global = true, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,

    /// Where the shared memory of the engine is mounted
    #[arg(long = "path.shm", global = true, value_name = "DIR", default_value = "/dev/shm")]
    pub shm: PathBuf,

    /// cgroup of the engine, where it is not found by itself
    #[arg(long = "path.cgroup", global = true, value_name = "DIR")]
    pub cgroup: Option<PathBuf>,

    /// Directory of a disk tier; repeatable
    #[arg(long = "path.disk-tier", global = true, value_name = "DIR", value_delimiter = ',')]
    pub disk_tiers: Vec<PathBuf>,

    /// Scan disk tiers on network mounts too
    #[arg(long = "disk.scan-network", global = true, value_parser = BoolishValueParser::new())]
    pub scan_network: bool,

    /// Driver library, where it is not found by itself
    #[arg(long = "nvml.library", global = true, value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,

    /// GPU and host share one memory
    #[arg(long = "gpu.unified", global = true, value_parser = BoolishValueParser::new())]
    pub gpu_unified: bool,

    /// Which collectors run.
    #[command(flatten)]
    pub collectors: Collectors,
}

/// How the log looks.
#[derive(Debug, Args)]
#[command(next_help_heading = "Log")]
pub struct Log {
    /// Least serious line that is written; check, plan and report write from debug on only
    #[arg(long = "log.level", value_name = "LEVEL", default_value = "info", global = true)]
    #[arg(value_parser = PossibleValuesParser::new(["error", "warn", "info", "debug", "trace"]).try_map(|level| level.parse::<Level>()))]
    pub level: Level,

    /// Notation of the lines
    #[arg(long = "log.format", value_name = "logfmt|json", value_enum, default_value = "logfmt", global = true)]
    #[arg(hide_possible_values = true)]
    pub format: log::Format,
}

impl Cli {
    /// Reads arguments and environment.
    ///
    /// # Errors
    /// clap's error: help and version are errors to it too.
    pub fn read(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, clap::Error> {
        let mut command = Cli::command().mut_args(with_variable);
        let cli = Cli::from_arg_matches(&command.try_get_matches_from_mut(arguments)?)?;
        let tier = cli.engine.twice().map(|tier| format!("--tier.size is given twice for tier {tier:?}"));
        let extra = cli.upstream.twice().map(|name| format!("--upstream.extra is given twice with the name {name:?}"));
        let misfit = tier.or(extra).or_else(|| cli.events.misfit()).or_else(|| cli.unsafe_together());
        let misfit = misfit.or_else(|| cli.asks_itself());
        match misfit {
            None => Ok(cli),
            Some(said) => Err(command.error(ErrorKind::ValueValidation, said)),
        }
    }

    fn unsafe_together(&self) -> Option<String> {
        let token = match &self.command {
            Some(Command::Advice(Advice::Report(report))) => report.prometheus_token.as_ref(),
            _ => None,
        };
        self.upstream.unsafe_beside(token)
    }

    /// An upstream that is this program's own listener, where it listens.
    fn asks_itself(&self) -> Option<String> {
        let is_demo = match self.command {
            None => false,
            Some(Command::Demo) => true,
            Some(_) => return None,
        };
        self.upstream.of_itself(&self.web.listen, is_demo)
    }

    /// Whether the command gives advice and ends, instead of serving.
    pub fn advises(&self) -> bool {
        matches!(self.command, Some(Command::Advice(_)))
    }

    /// Flags that change what is computed.
    pub fn settings(&self) -> Settings {
        Settings {
            tier_sizes: self.engine.tier_sizes.iter().cloned().collect::<BTreeMap<_, _>>(),
            bytes_per_token: self.engine.bytes_per_token,
            engine_ranks: self.engine.ranks,
            correct: self.engine.correct,
        }
    }

    /// Where the host collectors look, and which of them run.
    pub fn host(&self) -> host::Options {
        host::Options {
            procfs: self.host.procfs.clone(),
            sysfs: self.host.sysfs.clone(),
            shm: self.host.shm.clone(),
            cgroup: self.host.cgroup.clone(),
            disk_tiers: self.host.distinct_disk_tiers(),
            disk_scan_network: self.host.scan_network,
            nvml_library: self.host.nvml_library.clone(),
            gpu_unified: self.host.gpu_unified,
            collectors: self.host.collectors.0.clone(),
        }
    }
}

impl Host {
    /// Each directory once, however often and with however many slashes it is given: it is a label value.
    fn distinct_disk_tiers(&self) -> Vec<PathBuf> {
        let mut distinct: Vec<PathBuf> = Vec::new();
        for path in self.disk_tiers.iter().map(|path| path.components().collect()) {
            if !distinct.contains(&path) {
                distinct.push(path);
            }
        }
        distinct
    }
}

impl Engine {
    fn twice(&self) -> Option<&str> {
        let mut seen = std::collections::BTreeSet::new();
        self.tier_sizes.iter().map(|(tier, _)| tier.as_str()).find(|tier| !seen.insert(*tier))
    }
}

/// clap's error as one line: what is wrong, and the hint if there is one. A list that clap puts below a colon follows it.
pub fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let said = text.lines().map(str::trim).take_while(|line| !line.starts_with("Usage:"));
    let said = said.filter(|line| !line.is_empty() && !line.starts_with("For more information"));
    let (mut line, mut in_list) = (String::new(), false);
    for piece in said {
        match (line.ends_with(':'), in_list) {
            _ if line.is_empty() => {}
            (true, _) => line.push(' '),
            (false, true) => line.push_str(", "),
            (false, false) => line.push_str("; "),
        }
        in_list |= line.ends_with(": ");
        line.push_str(piece);
    }
    format!("{} (--help lists all flags)", line.trim_start_matches("error: "))
}

/// An empty variable is as none: compose files and units set those that nobody filled in.
fn with_variable(arg: Arg) -> Arg {
    let is_empty = |name: &String| std::env::var_os(name).is_some_and(|value| value.is_empty());
    match arg.get_long().map(variable).filter(|name| !is_empty(name)) {
        Some(name) => arg.env(name).hide_env_values(true),
        None => arg,
    }
}

fn variable(flag: &str) -> String {
    format!("KVTIER_{}", flag.to_ascii_uppercase().replace(['.', '-'], "_"))
}

#[cfg(test)]
mod tests;
