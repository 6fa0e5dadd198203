//! `report`: from one scrape, from two, or from the history in a Prometheus.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, anyhow};

use super::{fetch, look, print, print_json, status};
use crate::bound;
use crate::cli::{Cli, Report, ReportFormat};
use crate::report::history::{self, QUESTIONS, TWICE};
use crate::report::predicted;
use crate::report::totals::{self, ByEngine};
use crate::report::window::Window;
use crate::report::{Cell, Readings, Table};
use crate::upstream::{Address, Client, Options, SecretFile, UpstreamError};
use crate::{host::facts::BoxFacts, pipeline};

pub(super) async fn run(cli: &Cli, flags: &Report) -> Result<u8> {
    let table = match (&flags.prometheus, flags.interval) {
        (Some(address), _) => from_history(cli, flags, address).await?,
        (None, Some(interval)) => from_two_scrapes(cli, interval).await?,
        (None, None) => from_one_scrape(cli).await?,
    };
    match flags.format {
        ReportFormat::Text => print(&table.text())?,
        ReportFormat::Markdown => print(&table.markdown())?,
        ReportFormat::Json => print_json(&table)?,
    }
    Ok(status(table.complete))
}

/// What the engines have counted by now, what an exporter's page predicts, and the box.
struct Scrape {
    engines: ByEngine,
    predicted: Vec<Cell>,
    boxed: BoxFacts,
}

async fn scrape(cli: &Cli, client: &Client) -> Result<Scrape> {
    let (source, (boxed, host)) = tokio::join!(fetch(client), look(cli));
    let source = source.map_err(|error| anyhow!("the upstream {} {error}", cli.upstream.address))?;
    let predicted = predicted::cells(&pipeline::text(&source.body, source.format));
    let survey = pipeline::survey(&[source], &cli.settings());
    let engines = bound::resolve(&survey.snapshot, &cli.settings(), &host);
    Ok(Scrape { engines: totals::read(&engines, &survey.serving), predicted, boxed })
}

/// Of the GPU that has the least.
fn gpu_free(boxed: &BoxFacts) -> Option<f64> {
    boxed.gpus.iter().filter_map(|gpu| gpu.free).reduce(f64::min)
}

async fn from_one_scrape(cli: &Cli) -> Result<Table> {
    let last = scrape(cli, &Client::new(cli.upstream.main())?).await?;
    Ok(of_scrapes(cli, "since engine start", &last.engines, &last))
}

/// The table of what these engines counted, beside what the last scrape told.
fn of_scrapes(cli: &Cli, name: &str, engines: &ByEngine, Scrape { predicted, boxed, .. }: &Scrape) -> Table {
    let (mut readings, mut notes) = totals::readings(name, engines, gpu_free(boxed));
    readings.cells.extend_from_slice(predicted);
    notes.extend(predicted::note(predicted));
    notes.extend(boxed.unknown.iter().map(|why| format!("Not known: {why}")));
    let empty = totals::is_empty(engines);
    if empty {
        notes.push(format!("No data: no prompt was served and nothing was copied {name}."));
    }
    Table::of(cli.upstream.address.to_string(), &[readings], notes, !empty)
}

async fn from_two_scrapes(cli: &Cli, interval: Duration) -> Result<Table> {
    let client = Client::new(cli.upstream.main())?;
    let earlier = scrape(cli, &client).await?;
    wait(interval).await;
    let later = scrape(cli, &client).await?;
    let name = format!("in {}", humantime::format_duration(interval));
    match totals::between(&earlier.engines, &later.engines) {
        Ok(engines) => Ok(of_scrapes(cli, &name, &engines, &later)),
        Err(totals::Restarted(id)) => {
            let note = format!(
                "No data: the counters of engine {:?} of {:?} fell or vanished in between, so it was restarted. Run \
                 this again.",
                id.engine, id.model_name
            );
            let (readings, _) = totals::readings(&name, &ByEngine::new(), gpu_free(&later.boxed));
            Ok(Table::of(cli.upstream.address.to_string(), &[readings], vec![note], false))
        }
    }
}

/// Waits, and on a terminal tells how long still.
async fn wait(interval: Duration) {
    let (end, terminal) = (Instant::now() + interval, std::io::stderr().is_terminal());
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if terminal {
            // A terminal that has gone is no reason to stop.
            drop(write!(std::io::stderr(), "\r\x1b[Ksecond scrape in {} s", left.as_secs_f64().ceil()));
        }
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
    if terminal {
        drop(write!(std::io::stderr(), "\r\x1b[K"));
    }
}

async fn from_history(cli: &Cli, flags: &Report, address: &Address) -> Result<Table> {
    let now = SystemTime::now();
    let spans = [("before", flags.before), ("after", flags.after)];
    let prometheus = Prometheus::new(cli, flags, address)?;
    let (mut all, mut windows, mut empty, mut twice) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (name, span) in spans {
        let span = span.with_context(|| format!("--{name} is missing"))?;
        let window = span.at(now).map_err(|why| anyhow!("--{name}: {why}"))?;
        let readings = prometheus.readings(name, &window).await?;
        if readings.cells.is_empty() {
            empty.push(format!("No data for {name}: {} has nothing from {}.", prometheus.shown, window.text()));
        } else if let Some(times) = prometheus.times_scraped(&window).await?.filter(|times| *times > 1.0) {
            twice.push(twice_note(name, times));
        }
        windows.push(window);
        all.push(readings);
    }
    let complete = empty.is_empty();
    let notes = empty.into_iter().chain(history::notes(&all, &windows)).chain(twice).collect();
    Ok(Table::of(format!("the history in {}", prometheus.shown), &all, notes, complete))
}

fn twice_note(name: &str, times: f64) -> String {
    format!(
        "{name}: {times} series stand for one engine of one model. If it is scraped twice (directly and through the \
         exporter), totals are counted twice: pick one with --match, such as --match 'job=\"kvtier\"'."
    )
}

struct Prometheus<'a> {
    client: Client,
    /// Its address, fit for people.
    shown: String,
    /// What stands before `/api` in its paths.
    prefix: String,
    matchers: &'a str,
}

impl<'a> Prometheus<'a> {
    fn new(cli: &Cli, flags: &'a Report, address: &Address) -> Result<Prometheus<'a>> {
        // An address without a path means the metrics page elsewhere; here it means the root.
        let path = if address.path == "/metrics" { "" } else { address.path.trim_end_matches('/') };
        let secret = flags.prometheus_token.clone().map(SecretFile::Bearer);
        let options = Options { secret, ..cli.upstream.without_credentials(address) };
        let shown = address.to_string();
        let shown = shown.strip_suffix("/metrics").unwrap_or(&shown).to_owned();
        Ok(Prometheus { client: Client::new(options)?, shown, prefix: path.to_owned(), matchers: &flags.matchers })
    }

    async fn ask(&self, request: &str) -> Result<bytes::Bytes> {
        let answer = self.client.fetch_other(&format!("{}{request}", self.prefix)).await;
        answer.map_err(|error| anyhow!("the Prometheus at {} {}", self.shown, explained(&error)))
    }

    async fn readings(&self, name: &str, window: &Window) -> Result<Readings> {
        let mut cells = Vec::new();
        for question in &QUESTIONS {
            let answer = self.ask(&question.request(window, self.matchers)).await?;
            cells.extend(question.cells(&answer).map_err(|why| anyhow!("the Prometheus at {} {why}", self.shown))?);
        }
        Ok(Readings { column: window.column(name), cells })
    }

    async fn times_scraped(&self, window: &Window) -> Result<Option<f64>> {
        let query = history::filled(TWICE, window, self.matchers);
        let answer = self.ask(&history::instant(&query, window.to)).await?;
        history::number(&answer).map_err(|why| anyhow!("the Prometheus at {} {why}", self.shown))
    }
}

/// The errors are written for an engine; some of their hints do not fit here.
fn explained(error: &UpstreamError) -> String {
    match error {
        UpstreamError::Connect(why) => format!("cannot be reached: {why}"),
        UpstreamError::Auth { .. } | UpstreamError::Secret(_) => {
            format!("{}. A token is read from --prometheus.bearer-token-file", error.seen())
        }
        UpstreamError::Status { code, .. } => {
            let said = error.excerpt().map(|text| format!(": {}", text.escape_debug())).unwrap_or_default();
            format!("answered with status {code}{said}")
        }
        other => other.seen(),
    }
}
