//! The commands around a launch: they gather facts, let [`crate::advise`] and [`crate::report`] judge, and print.
//!
//! Exit status: 0 fine, 1 something to act on (or a report without data), 2 could not run. Whatever could not be
//! looked at is told, and is never taken for fine.

mod check;
mod lmcache;
mod plan;
mod report;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::{Advice, Cli, Format};
use crate::host::facts::{self, BoxFacts};
use crate::pipeline::{MAIN, Source};
use crate::redact::{self, Lines};
use crate::settings::HostFacts;
use crate::upstream::{Client, Page, UpstreamError};

/// Nothing to act on.
const FINE: u8 = 0;
/// Findings, or no data.
const FINDINGS: u8 = 1;
/// The command could not run.
pub const COULD_NOT_RUN: u8 = 2;

/// The longest wait for a collector or a directory: a driver that hangs is unknown after this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Runs a command and returns its exit status.
///
/// # Errors
/// Where it could not run.
pub async fn run(cli: &Cli, advice: &Advice) -> Result<u8> {
    match advice {
        Advice::Check(flags) => check::run(cli, flags).await,
        Advice::Plan(flags) => plan::run(cli, flags).await,
        Advice::Report(flags) => report::run(cli, flags).await,
    }
}

fn status(fine: bool) -> u8 {
    if fine { FINE } else { FINDINGS }
}

/// Prints lines of ours.
fn print(text: &str) -> Result<()> {
    let mut lines = Lines::default();
    lines.append(text);
    write(lines.text().as_bytes())
}

fn print_json(value: &impl Serialize) -> Result<()> {
    let mut json = redact::json::to_vec_pretty(value).context("cannot write JSON")?;
    json.push(b'\n');
    write(&json)
}

fn write(text: &[u8]) -> Result<()> {
    std::io::stdout().write_all(text).context("cannot write to standard output")
}

fn print_as(format: Format, text: impl FnOnce() -> String, value: &impl Serialize) -> Result<()> {
    match format {
        Format::Text => print(&text()),
        Format::Json => print_json(value),
    }
}

/// The box as it is now, and the facts that the core works with.
async fn look(cli: &Cli) -> (BoxFacts, HostFacts) {
    let look = facts::look(&cli.host(), PATIENCE).await;
    let mut host = look.facts.clone();
    host.upstream_is_local = cli.upstream.address.is_local();
    (BoxFacts::of(&look, PATIENCE), host)
}

async fn fetch(client: &Client) -> Result<Source, UpstreamError> {
    let Page { body, format } = client.fetch().await?;
    Ok(Source { name: MAIN.to_owned(), body, format })
}

/// What is unknown, at the end of a text.
fn unknown_text(unknown: &[String]) -> String {
    let lines: String = unknown.iter().map(|line| format!("  {}\n", crate::advise::words::wrapped(line, 2))).collect();
    if lines.is_empty() { lines } else { format!("\nNot known, so not judged:\n{lines}") }
}
