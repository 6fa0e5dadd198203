//! The program: arguments, log, upstream, listeners, and then serving until a signal comes.

use std::io::Write;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, Result};
use kvtier_exporter::aside::within;
use kvtier_exporter::cli::{self, Cli, Command};
use kvtier_exporter::events::{self, Events};
use kvtier_exporter::host::Host;
use kvtier_exporter::scrape::Scraper;
use kvtier_exporter::server::{self, Site};
use kvtier_exporter::settings::Settings;
use kvtier_exporter::upstream::{Address, Client, Options, Role};
use kvtier_exporter::web::{Keeper, Limits, Names};
use kvtier_exporter::{commands, demo, files, healthcheck, log, own, plain, redact};
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

/// Bytes of unsent answers that are kept in any case: our own families for as many clients as are answered at a time.
const LEAST_UNSENT: u64 = 1 << 20;

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // A command that gives advice tells by itself what it could not see, unless somebody wants to know more.
    if !cli.advises() || cli.log.level > tracing::Level::INFO {
        log::init(cli.log.format, cli.log.level);
    }
    let (status, words) = match run(&cli) {
        Ok(status) => (status.into(), None),
        Err(error) => {
            let status = if cli.advises() { commands::COULD_NOT_RUN.into() } else { ExitCode::FAILURE };
            (status, Some(format!("kvtier-exporter: {}", plain::chain(&error))))
        }
    };
    log::end(words.as_deref());
    status
}

/// Help and version go to standard output as they are; anything else is one line.
fn usage(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        eprintln!("kvtier-exporter: {}", redact::line(&cli::one_line(error)));
    } else {
        // Nobody is left to be told when even this cannot be written.
        drop(error.print());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// Runs until the work is done or a signal comes; the exit status is 0 unless a command has something to say.
fn run(cli: &Cli) -> Result<u8> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        // Large pages, of each upstream one at a time, are all that keeps these busy. What may hang has threads of its own.
        .max_blocking_threads(4)
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        match &cli.command {
            None => serve(cli, cli.upstream.main(), cli.events.options(), |_| {}).await.map(|()| 0),
            Some(Command::Demo) => demo(cli).await.map(|()| 0),
            Some(Command::Healthcheck { url }) => healthcheck(cli, url.clone()).await.map(|()| 0),
            Some(Command::Advice(advice)) => commands::run(cli, advice).await,
        }
    });
    // Not waiting: a name lookup may hang for longer than anybody wants to.
    runtime.shutdown_background();
    result
}

/// The exporter in front of a simulated engine.
async fn demo(cli: &Cli) -> Result<()> {
    let started = demo::start_publishing(demo::Options::default()).await;
    let (engine, endpoints, simulation) = started.context("cannot start the demo engine")?;
    tokio::spawn(simulation);
    let upstream = cli.upstream.without_credentials(&Address::parse(&engine.to_string())?);
    // The demo goes on where nobody reads its greeting.
    let greet = |exporter| drop(std::io::stdout().write_all(demo::greeting(engine, exporter).as_bytes()));
    serve(cli, upstream, Some(cli.events.following(endpoints)), greet).await
}

async fn healthcheck(cli: &Cli, url: Option<Address>) -> Result<()> {
    let listen = cli.web.listen.first().context("there is no listen address")?;
    Ok(healthcheck::ask(url, listen, cli.upstream.main().tls).await?)
}

/// What has to be there before anybody can be served.
struct Opened {
    web: Keeper,
    listeners: Vec<TcpListener>,
    main: Client,
    extras: Vec<(String, Client)>,
}

async fn open(cli: &Cli, upstream: Options) -> Result<Opened> {
    let file = cli.web.config_file.clone();
    let web = within(files::PATIENCE_AT_START, move || Keeper::open(file.as_deref())).await;
    let late = "--web.config.file, or a file that it names, cannot be read in time: a file system hangs";
    let web = web.context(late)??;
    let listeners = server::bind(&cli.web.listen).await?;
    let (main, extras) = (Client::open(upstream).await?, Client::open_all(cli.upstream.extras()).await?);
    if let Err(unknown) = main.learn().await {
        tracing::warn!("at the start the upstream {}; everything else is served", unknown.told(Role::Main));
    }
    Ok(Opened { web, listeners, main, extras })
}

/// What the operator said; of a simulated engine more is known.
fn settings(cli: &Cli) -> Settings {
    let said = cli.settings();
    let simulated = (cli.command == Some(Command::Demo)).then_some(demo::RANKS);
    Settings { engine_ranks: said.engine_ranks.or(simulated), ..said }
}

/// Serves until a signal comes. `ready` gets the first address that is listened on.
async fn serve(
    cli: &Cli,
    upstream: Options,
    events: Option<events::Options>,
    ready: impl FnOnce(SocketAddr),
) -> Result<()> {
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hangups = signal(SignalKind::hangup())?;
    let mut end = pin!(async {
        tokio::select! { _ = terminated.recv() => {}, _ = interrupted.recv() => {} }
        tracing::info!("ending");
    });
    // A file system that hangs, or a resolver, must not keep a signal waiting.
    let opened = tokio::select! { opened = open(cli, upstream) => opened?, () = &mut end => return Ok(()) };
    let Opened { web, listeners, main, extras } = opened;
    let scraper = Scraper::new(main, extras, settings(cli), Host::start(&cli.host()))
        .with_events(events.as_ref().map(Events::start))
        .with_reloads(web.reloads())
        .with_simulated(cli.command == Some(Command::Demo));
    tracing::info!(version = own::BUILD.version, revision = own::BUILD.revision, "starting");
    for (upstream, url) in scraper.upstreams() {
        tracing::info!(upstream, url, "scraping");
    }
    scraper.tell_standing();
    for flag in cli.upstream.idle() {
        tracing::warn!(
            "{flag}: this does nothing, since no upstream that it is about has an https address; leave it out, or write https://"
        );
    }
    let addresses = listeners.iter().map(|listener| listener.local_addr()).collect::<Result<Vec<_>, _>>()?;
    for address in &addresses {
        tracing::info!(%address, path = cli.web.telemetry_path, "listening");
    }
    addresses.first().copied().map(ready);
    // As much as one page may have: a real one is far smaller.
    let unsent = cli.upstream.max_bytes.max(LEAST_UNSENT).try_into().unwrap_or(usize::MAX);
    let limits = Limits { requests: cli.web.max_requests, unsent, ..Limits::of_this_process() };
    let site = Site {
        scraper,
        telemetry_path: cli.web.telemetry_path.clone(),
        strict: cli.web.strict,
        web,
        names: Names::new(&cli.web.allowed_hosts),
        limits,
        compression: cli.web.compression,
    };
    let hangup = async || {
        hangups.recv().await;
    };
    server::serve(listeners, site, hangup, end).await;
    Ok(())
}
