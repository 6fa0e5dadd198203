//! The way of one scrape: fetches (shared), pipeline, host, own families. What a failure costs is decided here:
//! the part of the answer that is that upstream's, and nothing else.
//!
//! One fetch of each upstream and one run of the pipeline serve all clients that wait for them; host and own
//! families are looked at for each client.

mod aside;
mod beside;
mod blend;
mod explanation;
mod health;
mod held;
mod target;

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::Instant;

use self::aside::{Turn, aside};
use self::beside::Beside;
use self::blend::{Blend, Round};
use self::explanation::{Explanation, Seen};
use self::held::Held;
use self::target::{Fetch, Target};
use crate::events::{self, Events};
use crate::family::encode;
use crate::host::{self, Host};
use crate::log;
use crate::notice::telling::{Line, Telling};
use crate::notice::{self, Kind, Notice};
use crate::own::{self, BUILD, PageFacts, Visit};
use crate::pipeline::{MAIN, explain, review};
use crate::process::Process;
use crate::settings::{HostFacts, Settings};
use crate::status::{self, Exporter, Status, Upstream, engines};
use crate::upstream::{Client, Ticket, UpstreamError};
use crate::web::{Common, Reloads};

/// What work on pages gets in any case: far more than good ones take, and less than a client keeps for the way back.
const GRACE: Duration = Duration::from_millis(200);

/// Answers scrapes.
pub struct Scraper {
    main: Arc<Target>,
    extras: Vec<Arc<Target>>,
    settings: Arc<Settings>,
    host: Arc<Host>,
    events: Option<Arc<Events>>,
    reloads: Option<Reloads>,
    /// The engine is simulated: it has no memory on this box.
    simulated: bool,
    beside: Arc<Beside>,
    /// The turn to work on many small pages.
    together: Turn,
    held: Held,
    last: Mutex<Weak<Gathering>>,
    telling: Mutex<Telling>,
    process: Process,
    started: f64,
}

/// Fetches from all upstreams that are waited for together.
struct Gathering {
    main: Ticket<Fetch>,
    extras: Vec<Ticket<Fetch>>,
}

/// The answer to one scrape.
#[derive(Debug)]
pub struct Answer {
    /// Whether the main upstream's part is in it.
    pub up: bool,
    /// Text 0.0.4 of the upstreams and what was derived from it: the same for all who got the same pages.
    pub page: Arc<Common>,
    /// What stands behind it, as of this answer.
    pub own: Bytes,
}

/// What one who asked is told from.
struct Served<T> {
    round: Round,
    blend: Arc<Blend>,
    /// None where our own code broke on the pages.
    view: Option<T>,
}

impl Scraper {
    /// A scraper of one upstream, and of extras with their names.
    pub fn new(main: Client, extras: Vec<(String, Client)>, settings: Settings, host: Host) -> Scraper {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let held = Held::default();
        let target = |(name, client)| Arc::new(Target::new(name, client, held.clone()));
        Scraper {
            main: target((MAIN.to_owned(), main)),
            extras: extras.into_iter().map(target).collect(),
            settings: Arc::new(settings),
            host: Arc::new(host),
            events: None,
            reloads: None,
            simulated: false,
            beside: Arc::default(),
            together: Turn::new(),
            last: Mutex::default(),
            held,
            telling: Mutex::default(),
            process: Process::own(),
            started,
        }
    }

    /// The same with KV cache events beside the pages.
    #[must_use]
    pub fn with_events(self, events: Option<Events>) -> Scraper {
        Scraper { events: events.map(Arc::new), ..self }
    }

    /// The same with how reading the web configuration again goes.
    #[must_use]
    pub fn with_reloads(self, reloads: Option<Reloads>) -> Scraper {
        Scraper { reloads, ..self }
    }

    /// The same before an engine that is simulated where that is so: then no mount of this box can be its own, or fail to be.
    #[must_use]
    pub fn with_simulated(self, simulated: bool) -> Scraper {
        Scraper { simulated, ..self }
    }

    /// What is scraped, fit for people: names and addresses, the main one first.
    pub fn upstreams(&self) -> Vec<(&str, String)> {
        self.targets().map(|target| (target.name.as_str(), target.client.options().address.to_string())).collect()
    }

    /// Tells the log of the notices that begin with the program and end with it.
    pub fn tell_standing(&self) {
        self.unverified().map(Line::Begins).for_each(|line| log(&line));
    }

    /// Upstreams in whose place anybody may answer: `--upstream.insecure-skip-verify` and an https address.
    fn unverified(&self) -> impl Iterator<Item = Notice> + '_ {
        let asked = self.targets().filter(|target| target.client.believes_anybody());
        asked.map(|target| notice::unverified(&target.name, &target.client.options().address))
    }

    /// The longest that a scrape may take.
    pub fn timeout(&self) -> Duration {
        self.main.client.options().timeout
    }

    /// The metrics, within `patience`.
    pub async fn answer(&self, patience: Duration) -> Answer {
        let Served { round, blend, .. } = self.serve(patience, |_, _| ()).await;
        let look = self.look();
        let claimed = blend.outcome.snapshot.disk_claimed;
        let difference = claimed.map(|fact| self.host.lmcache_difference(fact.value, &look));
        let mut families = look.families;
        families.extend(difference);
        families.extend(events::families::endpoint_families(&self.statuses()));
        families.extend(own::upstream_families(&self.visits(&round, &blend)));
        families.extend(own::process_families(&BUILD, self.started, &self.process.read()));
        families.push(notice::active(&self.notices(&blend)));
        families.extend(log::families());
        families.extend(self.reloads.iter().flat_map(Reloads::families));
        let (up, page) = (round.main.result.is_ok() && !blend.broke, Arc::clone(&blend.page));
        Answer { up, page, own: encode(&families).into() }
    }

    /// What `/debug` says, within `patience`.
    pub async fn explanation(&self, patience: Duration) -> String {
        let view = |blend: &Blend, settings: &Settings| explain(&blend.sources, settings, &blend.facts);
        let Served { round, blend, view } = self.serve(patience, view).await;
        let seen = self.targets().zip(round.fetches()).map(|(target, fetch)| Seen {
            name: &target.name,
            role: target.role(),
            address: &target.client.options().address,
            unverified: target.client.believes_anybody(),
            fetch,
            report: blend.report(&target.name),
        });
        Explanation {
            upstreams: seen.collect(),
            notices: &self.notices(&blend),
            explained: view.as_deref().filter(|_| !blend.sources.is_empty()),
            collectors: &self.look().collectors,
            events: self
                .events
                .as_ref()
                .map(|events| events.explain(&self.statuses(), &blend.told))
                .unwrap_or_default(),
        }
        .text()
    }

    /// What `/api/status` says, within `patience`: the same look at the same pages as a scrape's.
    pub async fn status(&self, patience: Duration) -> Status {
        let view = |blend: &Blend, settings: &Settings| review(&blend.sources, settings, &blend.facts, engines);
        let Served { round, blend, view } = self.serve(patience, view).await;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let visits = self.visits(&round, &blend).into_iter().zip(self.targets()).zip(round.fetches());
        let upstreams = visits.map(|((visit, target), fetch)| {
            let broke = blend.broke.then_some(&UpstreamError::Broke);
            let (role, address) = (target.role(), target.client.options().address.to_string());
            Upstream::new(&visit, role, address, fetch.result.as_ref().err().or(broke))
        });
        Status {
            schema: status::SCHEMA,
            time_unix_seconds: now.unwrap_or_default().as_secs_f64(),
            exporter: Exporter::new(&BUILD, self.started, self.settings.correct),
            upstreams: upstreams.collect(),
            notices: self.notices(&blend).iter().map(status::Told::new).collect(),
            engines: self.with_told(view.unwrap_or_default(), &blend),
            event_streams: self.statuses().iter().map(|status| status::Stream::new(status, &blend.told)).collect(),
            host: status::Host::new(&self.look()),
        }
    }

    /// What there is to tell of the pages, and of this program. The log hears the latter from where it happens.
    fn notices(&self, blend: &Blend) -> Vec<Notice> {
        let reloads = self.reloads.iter().filter_map(Reloads::notice);
        blend.outcome.notices.iter().cloned().chain(reloads).chain(self.unverified()).collect()
    }

    /// Engines with what their event streams tell.
    fn with_told(&self, engines: Vec<status::Engine>, blend: &Blend) -> Vec<status::Engine> {
        let max_error = self.events.as_ref().map_or(0.0, |events| events.max_error());
        engines.into_iter().map(|engine| engine.with_events(&blend.told, max_error)).collect()
    }

    fn targets(&self) -> impl Iterator<Item = &Arc<Target>> {
        std::iter::once(&self.main).chain(&self.extras)
    }

    /// Fetches from all upstreams at once. Who is not there within `patience` has failed.
    async fn round(&self, patience: Duration) -> Round {
        let (began, gathering) = (Instant::now(), self.gather());
        let (main, mut extras) = (self.main.landed(gathering.main.clone(), began, patience).await, Vec::new());
        for (extra, ticket) in self.extras.iter().zip(&gathering.extras) {
            extras.push(extra.landed(ticket.clone(), began, patience).await);
        }
        Round { main, extras }
    }

    /// Joins the fetches of all upstreams. Where one of them does not answer, all who come keep the pages of the others while
    /// they wait for it. When these hold as much as one page may, who comes waits together with those who came last: so many
    /// clients cannot swell us by an upstream that hangs.
    fn gather(&self) -> Arc<Gathering> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_too_much = self.held.bytes() >= self.main.client.options().max_bytes;
        if let Some(gathering) = last.upgrade().filter(|_| is_too_much) {
            return gathering;
        }
        let (main, extras) = (self.main.join(), self.extras.iter().map(Target::join).collect());
        let gathering = Arc::new(Gathering { main, extras });
        *last = Arc::downgrade(&gathering);
        gathering
    }

    /// The pages that were there and worked through within `patience` (or a little later, where one that was not has used
    /// it up), what was made of them, and a view of it.
    async fn serve<T: Send + 'static>(&self, patience: Duration, view: fn(&Blend, &Settings) -> T) -> Served<T> {
        let deadline = Instant::now() + patience;
        let mut round = self.round(patience).await;
        loop {
            // What came late, or was not done, must not have used up the time of the others.
            let deadline = deadline.max(Instant::now() + GRACE);
            if let Some((blend, view)) = self.work(&round, view, deadline).await {
                self.tell(&round, &blend);
                return Served { round, blend, view };
            }
            round = self.without_unfinished(&round, patience);
        }
    }

    /// Works on the pages of a round. `None` when those that are large, or large together, are not done with by `deadline`.
    async fn work<T: Send + 'static>(
        &self,
        round: &Round,
        view: fn(&Blend, &Settings) -> T,
        deadline: Instant,
    ) -> Option<(Arc<Blend>, Option<T>)> {
        let facts = self.facts();
        let (settings, events, pages) = (Arc::clone(&self.settings), self.events.clone(), round.clone());
        let beside = Arc::clone(&self.beside);
        let work = move || {
            let blend = pages.blend(&settings, events.as_deref(), &beside, facts);
            let view = (!blend.broke).then(|| view(&blend, &settings));
            (blend, view)
        };
        match round.turns(&self.together) {
            turns if turns.is_empty() => Some(work()),
            turns => aside(turns, deadline, work).await,
        }
    }

    fn without_unfinished(&self, round: &Round, patience: Duration) -> Round {
        let fetches = self.targets().zip(round.fetches()).zip(round.unfinished());
        let mut left = fetches.map(|((target, fetch), is_unfinished)| match is_unfinished {
            true => Arc::new(target.unfinished(fetch, patience)),
            false => Arc::clone(fetch),
        });
        let main = left.next().unwrap_or_else(|| Arc::clone(&round.main));
        Round { main, extras: left.collect() }
    }

    /// Tells the log what is new in it.
    fn tell(&self, round: &Round, blend: &Blend) {
        if !blend.is_news() {
            return;
        }
        self.tell_notices(blend);
        for (target, _) in self.targets().zip(round.fetches()).filter(|(_, fetch)| blend.broke && fetch.result.is_ok())
        {
            target.told(UpstreamError::Broke);
        }
    }

    /// What the host says, when it is asked for.
    fn facts(&self) -> impl FnOnce() -> HostFacts + Send + 'static {
        let upstream_is_local = self.targets().all(|target| target.client.options().address.is_local());
        let (host, simulated) = (Arc::clone(&self.host), self.simulated);
        move || {
            let facts = host.facts(std::time::Instant::now());
            HostFacts { upstream_is_local, shm: facts.shm.filter(|_| !simulated), ..facts }
        }
    }

    /// How the event streams are; none where none are followed.
    fn statuses(&self) -> Vec<Arc<events::Status>> {
        self.events.as_deref().map(Events::look).unwrap_or_default()
    }

    fn visits<'a>(&'a self, round: &'a Round, blend: &'a Blend) -> Vec<Visit<'a>> {
        let each = self.targets().zip(round.fetches());
        each.map(|(target, fetch)| visit(target, fetch, blend)).collect()
    }

    fn look(&self) -> host::Look {
        self.host.look(std::time::Instant::now())
    }

    fn tell_notices(&self, blend: &Blend) {
        let answered: Vec<&str> = blend.outcome.reports.iter().map(|report| report.name.as_str()).collect();
        let mut telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let lines =
            telling.note(&blend.outcome.notices, |upstream| answered.contains(&upstream), Instant::now().into_std());
        lines.iter().for_each(log);
    }
}

fn log(line: &Line) {
    match line {
        Line::Begins(notice) => {
            let Kind { id, what, action, .. } = notice.kind;
            tracing::warn!(notice = id, upstream = notice.upstream, seen = notice.seen(), "do" = action, "{what}");
        }
        Line::Over(Notice { kind, upstream, detail, .. }) => {
            tracing::info!(notice = kind.id, upstream, seen = detail, "this is over");
        }
        Line::Full(count) => {
            tracing::warn!(
                count,
                "there is more to tell than is logged at a time; /debug and /api/status list all of it"
            );
        }
        Line::LeftOut(count) => {
            tracing::warn!(
                count,
                "so many had no room in the log of the last ten minutes; /debug and /api/status list what is there now"
            );
        }
    }
}

fn visit<'a>(target: &'a Target, fetch: &'a Fetch, blend: &'a Blend) -> Visit<'a> {
    let result = match (&fetch.result, blend.report(&target.name)) {
        (Ok(source), Some(report)) => Ok(PageFacts {
            age: fetch.ended.elapsed(),
            bytes: source.body.len(),
            counts: &report.counts,
            merged_out: (target.name != MAIN).then_some(report.merged_out),
            recognised: &report.recognised,
            notes: if target.name == MAIN { &blend.outcome.snapshot.notes } else { &[] },
        }),
        (Ok(_), None) => Err(UpstreamError::Broke.reason()),
        (Err(error), _) => Err(error.reason()),
    };
    Visit { upstream: &target.name, took: fetch.took, result }
}
