//! `check`: the page, the box, the directories and LMCache's configuration, all at once and each with a deadline.

use std::slice;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use super::{PATIENCE, fetch, lmcache, look, print_as, status, unknown_text};
use crate::advise::check::{self, Added, DiskTier, Extra, Facts, Listened, link_is_low};
use crate::advise::words::{many, short_size};
use crate::advise::{Finding, any_to_act_on, tally};
use crate::bound;
use crate::cli::{Check, Cli};
use crate::events::Endpoint;
use crate::events::probe::{Heard, Replays, probe, probe_replay};
use crate::host;
use crate::host::Standing;
use crate::host::facts::{self, BoxFacts, Gpu};
use crate::notice::{self, Notice};
use crate::pipeline::{self, MAIN, PageReport, Source, Survey};
use crate::redact;
use crate::settings::Settings;
use crate::upstream::{Client, UpstreamError};

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
    let client = Client::open(cli.upstream.main()).await?;
    let clients = Client::open_all(cli.upstream.extras()).await?;
    let (main, extras, (boxed, host), disks, lmcache) =
        tokio::join!(page(&client, MAIN), pages(&clients), look(cli), disks(cli), lmcache::look(cli, flags));
    let lmcache = lmcache?;
    let settings = cli.settings();
    let alone = main.as_ref().map(|source| pipeline::survey(slice::from_ref(source), &settings));
    let sources: Vec<Source> = main.iter().chain(extras.iter().flatten()).cloned().collect();
    let page = main.as_ref().map(|_| pipeline::survey(&sources, &settings));
    let outcome = pipeline::process(&sources, &settings, &host);
    let under_load = under_load(cli, &client, &boxed, alone.as_ref().ok()).await;
    let events = listen(cli, page.is_ok()).await;
    let stored_meanwhile = stored_meanwhile(cli, &client, alone.as_ref().ok(), &events).await;
    let engines = page.as_ref().map(|survey| bound::resolve(&survey.snapshot, &settings, &host)).unwrap_or_default();
    let unverified = unverified(&client, &clients);
    let idle_skip_verify = cli.upstream.insecure_skip_verify && unverified.is_empty();
    let facts = Facts {
        upstream: &cli.upstream.address.to_string(),
        page: match (&page, &alone) {
            (Ok(survey), Ok(main)) => Ok(check::Page { survey, main, engines: &engines }),
            (Err(error), _) | (_, Err(error)) => Err(error),
        },
        extras: &further(&clients, extras, &outcome.reports),
        notices: &[outcome.notices, unverified].concat(),
        idle_skip_verify,
        settings: &settings,
        engines: flags.engines,
        boxed: &boxed,
        said_unified: cli.host.gpu_unified,
        disks: &disks,
        lmcache: lmcache.config.as_ref(),
        under_load: under_load.as_deref(),
        events: &events,
        stored_meanwhile,
    };
    let mut findings = check::check(&facts);
    findings.extend(lmcache.finding);
    let answer = Answer {
        command: "check",
        version: env!("CARGO_PKG_VERSION"),
        upstream: facts.upstream.to_owned(),
        looked_at: looked_at(&facts, lmcache.asked.as_deref()),
        findings,
        unknown: boxed.unknown.iter().cloned().chain(not_judged(&facts)).chain(not_compared(&facts)).collect(),
    };
    print_as(flags.format, || answer.text(), &answer)?;
    Ok(status(!any_to_act_on(&answer.findings)))
}

impl Answer {
    fn text(&self) -> String {
        let findings: String = self.findings.iter().map(|finding| finding.text() + "\n").collect();
        let looked_at: String = self.looked_at.iter().map(|line| format!("  {}\n", redact::line(line))).collect();
        let unknown = unknown_text(&self.unknown);
        let tally = tally(&self.findings);
        let upstream = redact::line(&self.upstream);
        format!("kvtier-exporter check of {upstream}\n\n{findings}Looked at:\n{looked_at}{unknown}\n{tally}\n")
    }
}

/// The page of an upstream, if it is one: judged as a scrape judges it.
async fn page(client: &Client, name: &str) -> Result<Source, UpstreamError> {
    let source = Source { name: name.to_owned(), ..fetch(client).await? };
    if pipeline::is_garbage(&source.body, source.format) {
        return Err(UpstreamError::without_sample(&source.body));
    }
    Ok(source)
}

async fn survey(cli: &Cli, client: &Client) -> Result<Survey, UpstreamError> {
    Ok(pipeline::survey(&[page(client, MAIN).await?], &cli.settings()))
}

/// The pages of the extras, in their order. They wait one for another, each no longer than it may.
async fn pages(clients: &[(String, Client)]) -> Vec<Result<Source, UpstreamError>> {
    let mut pages = Vec::new();
    for (name, client) in clients {
        pages.push(page(client, name).await);
    }
    pages
}

fn further(
    clients: &[(String, Client)],
    pages: Vec<Result<Source, UpstreamError>>,
    reports: &[PageReport],
) -> Vec<Extra> {
    let each = clients.iter().zip(pages).map(|((name, client), page)| Extra {
        name: name.clone(),
        address: client.options().address.to_string(),
        page: page.map(|page| added(page, reports.iter().find(|report| report.name == *name))),
    });
    each.collect()
}

/// The names are those of its page alone, whatever is left out of them beside the main one.
fn added(page: Source, report: Option<&PageReport>) -> Added {
    let alone = Source { name: MAIN.to_owned(), ..page };
    let names = pipeline::survey(&[alone], &Settings::default()).names.len();
    report.map_or(Added { names, ..Added::default() }, |report| Added {
        names,
        left_out: report.merged_out,
        samples: report.counts.samples,
    })
}

fn unverified(main: &Client, extras: &[(String, Client)]) -> Vec<Notice> {
    let clients = std::iter::once((MAIN, main)).chain(extras.iter().map(|(name, client)| (name.as_str(), client)));
    let asked = clients.filter(|(_, client)| client.believes_anybody());
    asked.map(|(name, client)| notice::unverified(name, &client.options().address)).collect()
}

async fn disks(cli: &Cli) -> Vec<DiskTier> {
    let options = cli.host();
    let mut disks = Vec::new();
    for path in &options.disk_tiers {
        let place = facts::look_at(path, &options.procfs, PATIENCE).await;
        let measured = match &place {
            Some(_) => facts::measured(path, &options, PATIENCE).await,
            None => None,
        };
        disks.push(DiskTier { path: path.clone(), place, measured });
    }
    disks
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
            let replays = endpoint.replay.as_ref().map(probe_replay);
            Listened { endpoint, heard, replays }
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
                "whether the RAM tier of {} holds more tokens than its GPU pool: the bytes of a token do not follow \
                 from the page{why}. Give them with --kv.bytes-per-token",
                check::engine_name(engine)
            )
        })
        .collect()
}

/// Everything that was given or found to be looked at, a line each, whatever came of it.
fn looked_at(facts: &Facts<'_>, lmcache: Option<&str>) -> Vec<String> {
    let boxed = facts.boxed;
    let mut lines = vec![main_line(facts)];
    lines.extend(facts.extras.iter().map(extra_line));
    let size = |bytes: Option<f64>| bytes.map_or("an unknown size".to_owned(), short_size);
    if let Some(shm) = &boxed.shm {
        lines.push(format!("{}: {} in all, {} free", shm.path, size(shm.size), size(shm.available)));
    }
    if boxed.memory_total.is_some() {
        let (total, available) = (size(boxed.memory_total), size(boxed.memory_available));
        lines.push(format!("host memory: {total} in all, {available} available"));
    }
    lines.extend(boxed.gpus.iter().map(|gpu| format!("{gpu}: {} free", size(gpu.free))));
    lines.extend(facts.disks.iter().map(disk_line));
    lines.extend(facts.events.iter().flat_map(event_lines));
    match (facts.lmcache, lmcache) {
        (Some(config), _) => lines.push(format!("LMCache's configuration, {}: it was read", config.from)),
        (None, Some(address)) => lines.push(format!("LMCache's server at {address}: no configuration")),
        (None, None) => {}
    }
    lines
}

fn main_line(facts: &Facts<'_>) -> String {
    let Ok(page) = &facts.page else { return format!("{}: no page", facts.upstream) };
    let (snapshot, names) = (&page.survey.snapshot, many(page.main.names.len(), "metric name"));
    let Some(kind) = snapshot.engine_kind else { return format!("{}: {names}, no known engine", facts.upstream) };
    format!(
        "{}: {names}, {kind} {}, {}, {}",
        facts.upstream,
        snapshot.version_range.as_deref().unwrap_or("of unknown version"),
        many(page.engines.len(), "engine"),
        many(page.engines.iter().map(|engine| engine.tiers.len()).sum(), "tier")
    )
}

fn extra_line(extra: &Extra) -> String {
    let outcome = match &extra.page {
        Ok(Added { names, left_out: 0, .. }) => many(*names, "metric name"),
        Ok(Added { names, left_out, .. }) => {
            let left_out = if *left_out == 1 { "1 family is".to_owned() } else { format!("{left_out} families are") };
            format!(
                "{}; {left_out} left out, since the main page or every server has them",
                many(*names, "metric name")
            )
        }
        Err(_) => "no page".to_owned(),
    };
    format!("extra {} at {}: {outcome}", extra.name, extra.address)
}

fn disk_line(disk: &DiskTier) -> String {
    let found = match (&disk.place, disk.measured) {
        (None, _) => "no answer".to_owned(),
        (Some(place), _) if place.standing == Standing::Missing => "it is not there".to_owned(),
        (Some(place), _) if place.standing == Standing::NotADirectory => "it is no directory".to_owned(),
        (Some(_), Some(measured)) if measured.whole => format!("{} in it", short_size(measured.bytes as f64)),
        (Some(_), Some(measured)) => format!("{} in it or more", short_size(measured.bytes as f64)),
        (Some(_), None) => "what is in it was not counted".to_owned(),
    };
    format!("disk tier {}: {found}", disk.path.display())
}

fn event_lines(one: &Listened) -> Vec<String> {
    let events = format!("events of {}: {}", one.endpoint.link, heard(&one.heard));
    let replay =
        one.endpoint.replay.as_ref().map(|address| format!("replay of {address}: {}", replays(one.replays.as_ref())));
    std::iter::once(events).chain(replay).collect()
}

fn heard(heard: &Heard) -> String {
    match heard {
        Heard::Batch(rank) => format!("a batch of rank {rank} came"),
        Heard::OtherTopic(topic) => format!("a batch came under the topic {topic:?}"),
        Heard::Nothing => format!("a publisher is there, and nothing came within {} s", PATIENCE.as_secs()),
        Heard::EngineConnects => "nobody listens there, and a publisher connects".to_owned(),
        Heard::NobodyConnects => format!("nobody connected within {} s", PATIENCE.as_secs()),
        Heard::PortTaken => "the port is taken".to_owned(),
        Heard::AnotherSocket(kind) => format!("the socket there is of type {kind} and does not publish"),
        Heard::Failed(why) => why.clone(),
    }
}

fn replays(replays: Option<&Replays>) -> String {
    match replays {
        Some(Replays::There) => "it is there".to_owned(),
        Some(Replays::AnotherSocket(kind)) => format!("the socket there is of type {kind} and answers no replay"),
        Some(Replays::Failed(why)) => why.clone(),
        None => "it was not looked at".to_owned(),
    }
}
