//! `report`: from one scrape, from two, or from the history in a Prometheus.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, anyhow};

use super::{fetch, look, print, print_json, status};
use crate::advise::check;
use crate::bound;
use crate::cli::{Cli, Report, ReportFormat};
use crate::host::facts::BoxFacts;
use crate::pipeline::{self, Source};
use crate::report::history::{self, ERROR, FOLLOWED, QUESTIONS, SIZES, TWICE};
use crate::report::processes::{self, FALLS, History, Moved, STARTS};
use crate::report::start::{self, Starts, Verdict};
use crate::report::told::{self, Told, Withheld};
use crate::report::totals::{self, ByEngine};
use crate::report::window::{Span, Window};
use crate::report::{Cell, PREDICTED, Readings, Table};
use crate::settings::HostFacts;
use crate::upstream::{Address, Client, Options, Other, Role, SecretFile, TlsFault, UpstreamError};

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

/// What the engines have counted by now, what an exporter's page tells beside it, and the box.
struct Scrape {
    /// When the page was asked for, in seconds since 1970, and when it was there.
    asked: f64,
    came: f64,
    starts: Starts,
    engines: ByEngine,
    /// Bytes that LMCache claims to keep on disk, and what to know of them.
    claimed: Option<(Cell, &'static str)>,
    told: Told,
    /// What `check` sees of the page that keeps it from telling more, a sentence each.
    untold: Vec<String>,
    /// Why whole rows are missing.
    uncounted: Vec<String>,
    boxed: BoxFacts,
}

async fn scrape(cli: &Cli, client: &Client) -> Result<Scrape> {
    let asked = now();
    let (source, (boxed, host)) = tokio::join!(page(cli, client), look(cli));
    let source = source?;
    let (came, page, settings) = (now(), pipeline::text(&source.body, source.format), cli.settings());
    let sources = [source];
    let survey = pipeline::survey(&sources, &settings);
    let resolved = bound::resolve(&survey.snapshot, &settings, &host);
    let engines = totals::read(&resolved, &survey);
    let (claimed, uncounted) = (totals::claimed(&survey), totals::untold(&engines, &survey));
    let notices = pipeline::process(&sources, &settings, &host).notices;
    let said = check::Page { survey: &survey, main: &survey, engines: &resolved };
    let untold = check::of_page(&cli.upstream.address.to_string(), said, &notices, &settings);
    let untold = untold.into_iter().map(|finding| finding.seen).collect();
    let (starts, told) = (start::read(&page), told::read(&page));
    Ok(Scrape { asked, came, starts, engines, claimed, told, untold, uncounted, boxed })
}

async fn page(cli: &Cli, client: &Client) -> Result<Source> {
    fetch(client).await.map_err(|error| anyhow!("the upstream {} {}", cli.upstream.address, error.told(Role::Main)))
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Of the GPU that has the least.
fn gpu_free(boxed: &BoxFacts) -> Option<f64> {
    boxed.gpus.iter().filter_map(|gpu| gpu.free).reduce(f64::min)
}

async fn from_one_scrape(cli: &Cli) -> Result<Table> {
    let client = Client::open(cli.upstream.main()).await?;
    let last = scrape(cli, &client).await?;
    Ok(of_scrapes(cli, "since engine start", &last.engines, &last, &[], &reasons(cli, &client, &last.told).await))
}

/// After what `check` sees of the page.
const SEE_CHECK: &str = "`kvtier-exporter check` says why that matters, and what to do.";

/// The table of what these engines counted, beside what the last scrape told and what follows from both (`more`).
fn of_scrapes(
    cli: &Cli,
    name: &str,
    engines: &ByEngine,
    Scrape { claimed, told, untold, uncounted, boxed, .. }: &Scrape,
    more: &[Cell],
    reasons: &[String],
) -> Table {
    let (mut readings, mut notes) = totals::readings(name, engines, gpu_free(boxed));
    told.add_to(&mut readings.cells);
    readings.cells.extend_from_slice(more);
    readings.cells.extend(claimed.iter().map(|(cell, _)| cell.clone()));
    notes.extend(told.notes(&readings.cells, reasons));
    notes.extend(claimed.iter().map(|(_, note)| (*note).to_owned()));
    let activity = totals::activity(engines);
    if engines.is_empty() && untold.is_empty() {
        notes.push("No data: no engine is recognised on this page. Is it the metrics page of an engine?".to_owned());
    } else if engines.is_empty() {
        notes.push("No data: no engine is recognised on this page.".to_owned());
    } else {
        notes.extend(activity.why_no_data().map(|why| format!("No data: {why} {name}.")));
    }
    notes.extend(untold.iter().cloned());
    notes.extend((!untold.is_empty()).then(|| SEE_CHECK.to_owned()));
    notes.extend(uncounted.iter().cloned());
    notes.extend(boxed.unknown.iter().map(|why| format!("Not known: {why}")));
    Table::of(cli.upstream.address.to_string(), &[readings], notes, activity.is_some())
}

/// Why an exporter withholds predictions, in its own words, where its page does not tell. An answer that is none is no
/// reason to give up the report.
async fn reasons(cli: &Cli, client: &Client, told: &Told) -> Vec<String> {
    if !matches!(told.withheld, Some(Withheld::Unsaid | Withheld::Down)) {
        return Vec::new();
    }
    let folder = cli.upstream.address.path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let status = client.fetch_other(&format!("{folder}/api/status")).await;
    status.map(|status| told::reasons(&status)).unwrap_or_default()
}

async fn from_two_scrapes(cli: &Cli, interval: Duration) -> Result<Table> {
    let client = Client::open(cli.upstream.main()).await?;
    let earlier = scrape(cli, &client).await?;
    wait(interval).await;
    let later = scrape(cli, &client).await?;
    let name = format!("in {}", humantime::format_duration(interval));
    let verdict = start::compare(&earlier.starts, &later.starts);
    match verdict {
        Verdict::Apart(apart) if apart.is_restart(earlier.asked, later.came) => {
            return Ok(without_counters(cli, &name, &later, apart.restarted()));
        }
        Verdict::Apart(apart) => return Err(anyhow!("the upstream {} {}", cli.upstream.address, apart.replicas())),
        Verdict::Untold if fall_again(cli, &later.engines).await? => {
            return Err(anyhow!("the upstream {} {}", cli.upstream.address, start::IN_TURN));
        }
        Verdict::Untold | Verdict::One => {}
    }
    match totals::between(&earlier.engines, &later.engines) {
        Ok(engines) => {
            let more = later.told.worth(&earlier.told, later.asked - earlier.asked);
            let reasons = reasons(cli, &client, &later.told).await;
            let mut table = of_scrapes(cli, &name, &engines, &later, &more, &reasons);
            table.notes.extend((verdict == Verdict::Untold).then(|| start::UNTOLD.to_owned()));
            Ok(table)
        }
        Err(restarted) => Ok(without_counters(cli, &name, &later, restarted.to_string())),
    }
}

/// Looks that are taken where a page does not tell of which process it is: with two replicas behind an address that picks by
/// chance, one in sixteen would see only one of them.
const LOOKS: usize = 4;

/// Whether counters fall from look to look. Each has a connection of its own: many balancers pick a replica for each.
async fn fall_again(cli: &Cli, counted: &ByEngine) -> Result<bool> {
    let mut before = counted.clone();
    for _ in 0..LOOKS {
        let now = counters(cli, &Client::open(cli.upstream.main()).await?).await?;
        if totals::between(&before, &now).is_err() {
            return Ok(true);
        }
        before = now;
    }
    Ok(false)
}

/// What the engines have counted by now.
async fn counters(cli: &Cli, client: &Client) -> Result<ByEngine> {
    let survey = pipeline::survey(&[page(cli, client).await?], &cli.settings());
    Ok(totals::read(&bound::resolve(&survey.snapshot, &cli.settings(), &HostFacts::default()), &survey))
}

/// The table where nothing can be said of the time in between.
fn without_counters(cli: &Cli, name: &str, later: &Scrape, why: String) -> Table {
    let (readings, _) = totals::readings(name, &ByEngine::new(), gpu_free(&later.boxed));
    Table::of(cli.upstream.address.to_string(), &[readings], vec![why], false)
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
    let prometheus = Prometheus::open(cli, flags, address).await?;
    let windows = windows(flags, SystemTime::now())?;
    let (mut all, mut empty, mut further) = (Vec::new(), Vec::new(), Vec::new());
    for (name, window) in &windows {
        let readings = prometheus.readings(name, window).await?;
        if readings.cells.is_empty() {
            let nothing = format!("{} has nothing from {}", prometheus.shown, window.text());
            empty.push(format!("No data {}: {nothing}.", for_column(name)));
        } else {
            let why = history::activity(&readings).why_no_data();
            empty.extend(why.map(|why| format!("No data {}: {why}.", for_column(name))));
            further.extend(prometheus.processes(name, window).await?);
            further.extend(prometheus.doubts(&readings, window).await?);
        }
        all.push(readings);
    }
    let complete = empty.is_empty();
    let windows: Vec<Window> = windows.into_iter().map(|(_, window)| window).collect();
    let notes = empty.into_iter().chain(history::notes(&all, &windows)).chain(further).collect();
    Ok(Table::of(format!("the history in {}", prometheus.shown), &all, notes, complete))
}

/// The windows that are asked for, with the names of their columns.
fn windows(flags: &Report, now: SystemTime) -> Result<Vec<(&'static str, Window)>> {
    let given = [
        ("window", "in the window", flags.window),
        ("before", "before", flags.before),
        ("after", "after", flags.after),
    ];
    let window = |(flag, name, span): (&str, &'static str, Option<Span>)| {
        Some(span?.at(now).map(|window| (name, window)).map_err(|why| anyhow!("--{flag}: {why}")))
    };
    given.into_iter().filter_map(window).collect()
}

/// `for before`, but `in the window`.
fn for_column(name: &str) -> String {
    if name.starts_with("in ") { name.to_owned() } else { format!("for {name}") }
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
    async fn open(cli: &Cli, flags: &'a Report, address: &Address) -> Result<Prometheus<'a>> {
        // An address without a path means the metrics page elsewhere; here it means the root.
        let path = if address.path == "/metrics" { "" } else { address.path.trim_end_matches('/') };
        let secret = flags.prometheus_token.clone().map(SecretFile::Bearer);
        let options = Options { secret, ..cli.upstream.without_credentials(address) };
        let shown = address.to_string();
        let shown = shown.strip_suffix("/metrics").unwrap_or(&shown).to_owned();
        let client = Client::open(options).await?;
        Ok(Prometheus { client, shown, prefix: path.to_owned(), matchers: &flags.matchers })
    }

    async fn ask(&self, request: &str) -> Result<bytes::Bytes> {
        let answer = self.client.fetch_other(&format!("{}{request}", self.prefix)).await;
        let hint = if self.matchers.is_empty() { "" } else { ". --match is put into each query: does it fit there?" };
        answer.map_err(|error| match error.excerpt().and_then(history::refusal) {
            Some(refusal) => anyhow!("the Prometheus at {} {refusal}{hint}", self.shown),
            None => anyhow!("the Prometheus at {} {}", self.shown, explained(&error)),
        })
    }

    async fn readings(&self, name: &str, window: &Window) -> Result<Readings> {
        let mut cells = Vec::new();
        for question in &QUESTIONS {
            let answer = self.ask(&question.request(window, self.matchers)).await?;
            cells.extend(self.understood(question.cells(&answer))?);
        }
        Ok(Readings { column: window.column(name), cells })
    }

    /// What to know of the processes whose figures a window adds up. Several that answered in turn are an error.
    async fn processes(&self, name: &str, window: &Window) -> Result<Vec<String>> {
        for start in &STARTS {
            let answer = self.instant(start.changes, window).await?;
            if let Some(moved) = self.understood(processes::changed(start, window, &answer))? {
                return self.restarts(&moved, window).await;
            }
        }
        let falls = self.number(FALLS, window).await?;
        Ok(falls.and_then(|falls| processes::fell(name, falls)).into_iter().collect())
    }

    async fn restarts(&self, moved: &[Moved], window: &Window) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        for one in moved {
            let answer = self.ask(&history::instant(&one.samples, window.to)).await?;
            match self.understood(one.history(&answer))? {
                History::Restarted(note) => notes.push(note),
                History::InTurn(why) => return Err(anyhow!("the Prometheus at {} {why}", self.shown)),
            }
        }
        Ok(notes)
    }

    fn understood<T>(&self, answer: Result<T, String>) -> Result<T> {
        answer.map_err(|why| anyhow!("the Prometheus at {} {why}", self.shown))
    }

    /// The answer to a query at the end of a window.
    async fn instant(&self, promql: &str, window: &Window) -> Result<bytes::Bytes> {
        self.ask(&history::instant(&history::filled(promql, window, self.matchers), window.to)).await
    }

    /// What speaks against the readings of a window, and why some are missing.
    async fn doubts(&self, readings: &Readings, window: &Window) -> Result<Vec<String>> {
        let name = &readings.column.name;
        let times = self.number(TWICE, window).await?.filter(|times| *times > 1.0);
        let mut doubts: Vec<String> = times.map(|times| twice_note(name, times)).into_iter().collect();
        if readings.cells.iter().any(|cell| cell.quantity == PREDICTED) {
            let answer = self.instant(SIZES, window).await?;
            doubts.extend(told::gaps(&self.understood(history::sizes(&answer))?, name));
        } else {
            let followed = self.number(FOLLOWED, window).await?.is_some();
            doubts.extend(history::withheld(name, followed, self.number(ERROR, window).await?));
        }
        Ok(doubts)
    }

    /// The one number that a query gives at the end of a window.
    async fn number(&self, promql: &str, window: &Window) -> Result<Option<f64>> {
        let answer = self.instant(promql, window).await?;
        self.understood(history::number(&answer))
    }
}

/// The errors are written for an engine; some of their hints do not fit here.
fn explained(error: &UpstreamError) -> String {
    match error {
        error if error.speaks_tls() => "speaks TLS: write https:// after --prometheus".to_owned(),
        UpstreamError::Tls(TlsFault::WrongName { .. } | TlsFault::NoSuchName(_)) => {
            format!("{}. Give an address with one of its names after --prometheus", error.seen())
        }
        UpstreamError::Auth { code: 403, .. } => {
            format!("{}. A token of somebody who may ask is read from --prometheus.bearer-token-file", error.seen())
        }
        UpstreamError::Auth { .. } | UpstreamError::Secret(_) => {
            format!("{}. A token is read from --prometheus.bearer-token-file", error.seen())
        }
        UpstreamError::Status { code, .. } => {
            let said = error.excerpt().map(|text| format!(": {text}")).unwrap_or_default();
            let root = if matches!(code, 404 | 405) {
                ". --prometheus wants the address of a Prometheus, such as http://127.0.0.1:9090"
            } else {
                ""
            };
            format!("answered with status {code}{said}{root}")
        }
        other => other.of_other(&Other { who: "the Prometheus", flag: "--prometheus" }),
    }
}
