//! `check`: the page, the box, the directories and LMCache's configuration, all at once and each with a deadline.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{PATIENCE, fetch, look, print_as, status, unknown_text};
use crate::advise::check::{self, Facts, Listened, link_is_low};
use crate::advise::lmcache::Config;
use crate::advise::words::{many, short_size};
use crate::advise::{Finding, any_to_act_on, tally};
use crate::bound;
use crate::cli::{Check, Cli};
use crate::events::Endpoint;
use crate::events::probe::{Heard, probe};
use crate::host::facts::{self, BoxFacts, Gpu};
use crate::host::{self, Place};
use crate::pipeline::{self, Survey};
use crate::upstream::{Address, Client, UpstreamError};

/// Between two looks at a link that is below its maximum.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// The answer of `check`: in JSON an object with these keys.
#[derive(Debug, Serialize)]
struct Answer {
    /// Always `check`.
    command: &'static str,
    version: &'static str,
    /// The upstream's address.
    upstream: String,
    /// What was looked at, a sentence each.
    looked_at: Vec<String>,
    findings: Vec<Finding>,
    /// What could not be looked at, and why.
    unknown: Vec<String>,
}

pub(super) async fn run(cli: &Cli, flags: &Check) -> Result<u8> {
    let client = Client::new(cli.upstream.main())?;
    let (page, (boxed, host), disks, lmcache) =
        tokio::join!(survey(cli, &client), look(cli), places(cli), lmcache_config(cli, flags));
    let (config, unreachable) = lmcache?;
    let under_load = under_load(cli, &client, &boxed, page.as_ref().ok()).await;
    let events = listen(cli, page.is_ok()).await;
    let stored_meanwhile = stored_meanwhile(cli, &client, page.as_ref().ok(), &events).await;
    let settings = cli.settings();
    let engines = page.as_ref().map(|survey| bound::resolve(&survey.snapshot, &settings, &host)).unwrap_or_default();
    let facts = Facts {
        upstream: &cli.upstream.address.to_string(),
        page: page.as_ref().map(|survey| check::Page { survey, engines: &engines }),
        settings: &settings,
        engines: flags.engines,
        boxed: &boxed,
        said_unified: cli.host.gpu_unified,
        disks: &disks,
        lmcache: config.as_ref(),
        under_load: under_load.as_deref(),
        events: &events,
        stored_meanwhile,
    };
    let mut findings = check::check(&facts);
    findings.extend(unreachable);
    let answer = Answer {
        command: "check",
        version: env!("CARGO_PKG_VERSION"),
        upstream: facts.upstream.to_owned(),
        looked_at: looked_at(&facts),
        findings,
        unknown: boxed.unknown.iter().cloned().chain(not_judged(&facts)).chain(not_compared(&facts)).collect(),
    };
    print_as(flags.format, || answer.text(), &answer)?;
    Ok(status(!any_to_act_on(&answer.findings)))
}

impl Answer {
    fn text(&self) -> String {
        let findings: String = self.findings.iter().map(|finding| finding.text() + "\n").collect();
        let looked_at: String = self.looked_at.iter().map(|line| format!("  {line}\n")).collect();
        let unknown = unknown_text(&self.unknown);
        let tally = tally(&self.findings);
        format!("kvtier-exporter check of {}\n\n{findings}Looked at:\n{looked_at}{unknown}\n{tally}\n", self.upstream)
    }
}

async fn survey(cli: &Cli, client: &Client) -> Result<Survey, UpstreamError> {
    Ok(pipeline::survey(&[fetch(client).await?], &cli.settings()))
}

async fn places(cli: &Cli) -> Vec<(PathBuf, Option<Place>)> {
    let options = cli.host();
    let mut places = Vec::new();
    for path in options.disk_tiers {
        let place = facts::look_at(&path, &options.procfs, PATIENCE).await;
        places.push((path, place));
    }
    places
}

/// LMCache's configuration. A file that cannot be read ends the command; a server that does not answer is a finding.
async fn lmcache_config(cli: &Cli, flags: &Check) -> Result<(Option<Config>, Option<Finding>)> {
    if let Some(path) = &flags.config {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read --lmcache.config {shown}"))?;
        return Ok((Some(Config::from_yaml(&text, &shown).map_err(anyhow::Error::msg)?), None));
    }
    let Some(address) = &flags.url else { return Ok((None, None)) };
    // Without a path an address means its metrics page.
    let path = if address.path == "/metrics" { "/conf".to_owned() } else { address.path.clone() };
    let address = Address { path: path.clone(), ..address.clone() };
    let shown = address.to_string();
    let client = Client::new(cli.upstream.without_credentials(&address))?;
    let answer = client.fetch_other(&path).await.map_err(|error| format!("{shown} {error}."));
    match answer.and_then(|body| Config::from_json(&body, &shown)) {
        Ok(config) => Ok((Some(config), None)),
        Err(seen) => Ok((None, Some(silent_server(seen)))),
    }
}

fn silent_server(seen: String) -> Finding {
    Finding::new(
        "lmcache-conf-unreadable",
        seen,
        "LMCache's configuration could not be checked. Its internal server is off unless \
         internal_api_server_enabled is true, and gone where LMCache did not start.",
        "Look for \"LMCache\" in the engine's log, or give the file with --lmcache.config instead.",
    )
}

/// Looks at the links again where one is low while the engine works, and fetches again to see that it still does.
async fn under_load(cli: &Cli, client: &Client, boxed: &BoxFacts, page: Option<&Survey>) -> Option<Vec<Gpu>> {
    let works = |survey: &Survey| survey.serving.iter().any(|one| one.running.is_some_and(|fact| fact.value > 0.0));
    if !boxed.gpus.iter().any(link_is_low) || !page.is_some_and(works) {
        return None;
    }
    tokio::time::sleep(SECOND_LOOK).await;
    let options = host::Options { collectors: vec!["gpu"], ..cli.host() };
    let again = BoxFacts::of(&facts::look(&options, PATIENCE).await, PATIENCE);
    let page = survey(cli, client).await.ok()?;
    works(&page).then_some(again.gpus)
}

/// Listens to all endpoints of events, as many at once as there are threads for it. Where an engine serves its page its publisher is bound by now, so it
/// does no harm to listen where nobody does.
async fn listen(cli: &Cli, serves: bool) -> Vec<Listened> {
    let endpoints = cli.events.options().map(|options| options.endpoints).unwrap_or_default();
    let look = |endpoint: Endpoint| {
        tokio::task::spawn_blocking(move || {
            let heard = probe(&endpoint, PATIENCE, serves);
            Listened { endpoint, heard }
        })
    };
    let looks: Vec<_> = endpoints.into_iter().map(look).collect();
    let mut listened = Vec::new();
    for look in looks {
        listened.extend(look.await.ok());
    }
    listened
}

/// Whether every engine stored since this page, where an endpoint was silent: an idle one has nothing to tell.
async fn stored_meanwhile(cli: &Cli, client: &Client, page: Option<&Survey>, events: &[Listened]) -> Option<bool> {
    let silent = events.iter().any(|one| one.heard == Heard::Nothing);
    let stored = |survey: &Survey| -> Vec<f64> {
        let tiers = survey.snapshot.engines.iter().filter_map(|engine| engine.tier("ram"));
        tiers.filter_map(|tier| tier.transfers.stored_bytes).map(|bytes| bytes.value).collect()
    };
    let before = page.filter(|_| silent).map(stored).filter(|before| !before.is_empty())?;
    let after = stored(&survey(cli, client).await.ok()?);
    Some(before.len() == after.len() && before.iter().zip(after).all(|(before, after)| after > *before))
}

/// Silence that says nothing.
fn not_judged(facts: &Facts<'_>) -> Vec<String> {
    let silent = facts.events.iter().filter(|one| one.heard == Heard::Nothing && facts.stored_meanwhile != Some(true));
    silent
        .map(|one| {
            format!(
                "events: nothing came from {} within {} s, and not every engine stored something that it could have told",
                one.endpoint.link,
                PATIENCE.as_secs()
            )
        })
        .collect()
}

/// Tiers that cannot be held against the pool in front of them.
fn not_compared(facts: &Facts<'_>) -> Vec<String> {
    let Ok(page) = &facts.page else { return Vec::new() };
    let unsized_in_tokens = page.tiers().filter(|(engine, tier)| {
        tier.tier.name == "ram"
            && tier.size.is_some()
            && tier.size_tokens.is_none()
            && engine.engine.gpu_pool_tokens.is_some()
    });
    unsized_in_tokens
        .map(|(engine, _)| {
            let connector = engine.engine.other_connector;
            let why = connector.map(|other| format!(", and {other} supplies tokens too")).unwrap_or_default();
            format!(
                "whether the RAM tier of engine {:?} holds more tokens than its GPU pool: the bytes of a token do not \
                 follow from the page{why}. Give them with --kv.bytes-per-token",
                engine.engine.id.engine
            )
        })
        .collect()
}

fn looked_at(facts: &Facts<'_>) -> Vec<String> {
    let boxed = facts.boxed;
    let mut lines = Vec::new();
    if let Ok(page) = &facts.page {
        let snapshot = &page.survey.snapshot;
        lines.push(format!(
            "{}: {} metric names, {} {}, {}, {}",
            facts.upstream,
            page.survey.names.len(),
            snapshot.engine_kind.unwrap_or("no known engine"),
            snapshot.version_range.as_deref().unwrap_or("of unknown version"),
            many(page.engines.len(), "engine"),
            many(page.engines.iter().map(|engine| engine.tiers.len()).sum(), "tier")
        ));
    }
    let size = |bytes: Option<f64>| bytes.map_or("an unknown size".to_owned(), short_size);
    if let Some(shm) = &boxed.shm {
        lines.push(format!("{}: {} in all, {} free", shm.path, size(shm.size), size(shm.available)));
    }
    if boxed.memory_total.is_some() {
        let (total, available) = (size(boxed.memory_total), size(boxed.memory_available));
        lines.push(format!("host memory: {total} in all, {available} available"));
    }
    lines.extend(boxed.gpus.iter().map(|gpu| format!("GPU {} ({}): {} free", gpu.index, gpu.name, size(gpu.free))));
    lines.extend(facts.disks.iter().map(|(path, _)| format!("disk tier {}", path.display())));
    lines.extend(facts.events.iter().map(|one| match one.heard {
        Heard::Batch(rank) => format!("events of {}: a batch of rank {rank} came", one.endpoint.link),
        _ => format!("events of {}", one.endpoint.link),
    }));
    lines.extend(facts.lmcache.map(|config| format!("LMCache's configuration, {}", config.from)));
    lines
}
