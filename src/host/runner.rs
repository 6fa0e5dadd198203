//! One long-lived thread for each collector, and what it last said.
//!
//! A scrape calls [`Host::facts`] and [`Host::look`], which take a lock for the time of a copy and never wait for a
//! collector. A collector that fails is asked again later and later, one that panics is taken as failed, one that blocks
//! costs itself only. The threads are detached: they end with the process, and nothing waits for them.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::family::{Desc, Family, Labels};
use crate::plain;
use crate::settings::HostFacts;

use super::unseen::Unseen;
use super::{Age, Collector, Failure, Options, Reading, all, scan};

const SUCCESS: Desc = Desc::gauge(
    "kvtier_collector_success",
    "Whether the collector's last run brought something that is still fresh. 0 also where what it looks at is not on this box; /debug says which.",
);
const DURATION: Desc =
    Desc::gauge("kvtier_collector_duration_seconds", "How long the collector's last finished run took, in seconds.");
const AGE: Desc = Desc::gauge(
    "kvtier_collector_age_seconds",
    "Age of the collector's last good sample, in seconds. Above 15 its families are left out; of those of the gpu collector kvtier_gpu_devices stays, with nothing readable.",
);

/// The families that tell how the collectors are.
pub(super) const DESCS: [Desc; 3] = [SUCCESS, DURATION, AGE];

/// A sample older than this is not shown, and a call that takes longer than this counts as failed.
const STALE_AFTER: Duration = Duration::from_secs(15);

const STUCK: &str = "a call has not come back: the driver or the file system blocks";

/// How often a collector is asked.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Time between the end of a run and the next one.
    pub interval: Duration,
    /// The wait doubles with every failure in a row, up to this.
    pub longest: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace { interval: Duration::from_secs(5), longest: Duration::from_secs(60) }
    }
}

impl Pace {
    fn wait(self, failures_in_a_row: u32) -> Duration {
        let doublings = failures_in_a_row.saturating_sub(1).min(16);
        self.interval.saturating_mul(1 << doublings).min(self.longest)
    }
}

/// The running collectors.
pub struct Host {
    slots: Vec<Slot>,
    disk_tiers: Vec<PathBuf>,
}

struct Slot {
    name: &'static str,
    state: Arc<Mutex<State>>,
    /// Its thread ends at the next wait once this is gone.
    _alive: Sender<()>,
}

/// What the collectors know at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Families of all fresh readings, and how the collectors themselves are.
    pub families: Vec<Family>,
    /// Facts of all fresh readings.
    pub facts: HostFacts,
    /// What should be there and cannot be seen.
    pub unseen: Unseen,
    /// How each collector is, for `/debug`.
    pub collectors: Vec<Health>,
}

/// How one collector is.
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// The collector.
    pub name: &'static str,
    /// Whether its last run is good and fresh; `None` before the first one has ended.
    pub success: Option<bool>,
    /// Length of its last finished run.
    pub duration: Option<Duration>,
    /// Age of its last good sample.
    pub age: Option<Duration>,
    /// What went wrong in its last finished run, or that a run does not end.
    pub failure: Option<String>,
    /// What is partly unknown, and why.
    pub notes: Vec<String>,
}

impl Host {
    /// Starts the collectors that the options turn on.
    pub fn start(options: &Options) -> Host {
        Host { disk_tiers: options.disk_tiers.clone(), ..Host::with(all(options), Pace::default()) }
    }

    /// Starts these collectors at this pace.
    pub fn with(collectors: Vec<Box<dyn Collector>>, pace: Pace) -> Host {
        let slots = collectors.into_iter().map(|collector| Slot::start(collector, pace)).collect();
        Host { slots, disk_tiers: Vec::new() }
    }

    /// LMCache's own figure of its disk tier less what was measured, where both can be told of one directory.
    pub fn lmcache_difference(&self, lmcache_bytes: f64, look: &Look) -> Family {
        scan::lmcache_difference(lmcache_bytes, &self.disk_tiers, &look.families)
    }

    /// Of what is known now, the facts that the core works with. Never waits for a collector.
    pub fn facts(&self, now: Instant) -> HostFacts {
        let mut facts = HostFacts::default();
        for slot in &self.slots {
            absorb(&mut facts, &lock(&slot.state).told(now).facts);
        }
        facts
    }

    /// What is known now. Never waits for a collector.
    pub fn look(&self, now: Instant) -> Look {
        let mut look = Look::default();
        for slot in &self.slots {
            let mut state = lock(&slot.state);
            state.tell_if_stuck(slot.name, now);
            let health = state.health(slot.name, now);
            let told = state.told(now);
            look.families.extend_from_slice(&told.families);
            absorb(&mut look.facts, &told.facts);
            look.unseen.absorb(&told.unseen);
            if let Some((_, reading)) = &state.good {
                look.families.extend_from_slice(&reading.lasting);
                look.families.extend(age_families(&reading.ages, now));
            }
            look.collectors.push(health);
        }
        look.families.extend(health_families(&look.collectors));
        look
    }
}

impl Slot {
    fn start(collector: Box<dyn Collector>, pace: Pace) -> Slot {
        let name = collector.name();
        let (alive, stop) = mpsc::channel();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(collector, &shared, &stop, pace));
        if let Err(error) = thread {
            tracing::error!(collector = name, %error, "collector has no thread");
            lock(&state).failure = Some(Failure::Broken(format!("no thread could be started: {}", plain::io(&error))));
        }
        Slot { name, state, _alive: alive }
    }
}

fn run(mut collector: Box<dyn Collector>, state: &Mutex<State>, stop: &Receiver<()>, pace: Pace) {
    let mut said = Said::default();
    let mut failures = 0_u32;
    loop {
        let begun = Instant::now();
        lock(state).running_since = Some(begun);
        let outcome = attempt(collector.as_mut());
        lock(state).standing = collector.standing();
        failures = if outcome.is_ok() { 0 } else { failures.saturating_add(1) };
        said = said.then(collector.name(), Said::of(&outcome));
        if lock(state).finish(begun, begun.elapsed(), outcome) {
            tracing::info!(collector = collector.name(), "collector works again: the call came back");
        }
        if stop.recv_timeout(pace.wait(failures)) == Err(RecvTimeoutError::Disconnected) {
            return;
        }
    }
}

/// One run; a panic is a failure like any other.
fn attempt(collector: &mut dyn Collector) -> Result<Reading, Failure> {
    catch_unwind(AssertUnwindSafe(|| collector.collect()))
        .unwrap_or_else(|panic| Err(Failure::Broken(format!("panicked: {}", panic_text(panic.as_ref())))))
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

/// No code panics while it holds this lock; should one do so, the state is still whole.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct State {
    /// Start of the run under way.
    running_since: Option<Instant>,
    /// The log knows that the run under way does not end.
    stuck_told: bool,
    /// Length of the last finished run.
    duration: Option<Duration>,
    /// Why the last finished run brought nothing.
    failure: Option<Failure>,
    /// The last reading and the start of its run: nothing in it is younger than it seems.
    good: Option<(Instant, Reading)>,
    /// What is told while there is no fresh reading.
    standing: Reading,
}

impl State {
    /// Takes in a run that has ended. `true` where the log was told that it does not.
    fn finish(&mut self, begun: Instant, took: Duration, outcome: Result<Reading, Failure>) -> bool {
        self.running_since = None;
        self.duration = Some(took);
        self.failure = match outcome {
            Ok(reading) => {
                self.good = Some((begun, reading));
                None
            }
            Err(failure) => Some(failure),
        };
        std::mem::take(&mut self.stuck_told)
    }

    /// The thread that hangs cannot say so itself.
    fn tell_if_stuck(&mut self, collector: &str, now: Instant) {
        if self.stuck(now) && !std::mem::replace(&mut self.stuck_told, true) {
            tracing::warn!(collector, "collector failed: {STUCK}");
        }
    }

    fn age(&self, now: Instant) -> Option<Duration> {
        self.good.as_ref().map(|(at, _)| now.saturating_duration_since(*at))
    }

    /// The last reading, if nothing failed since and it is young enough.
    fn fresh(&self, now: Instant) -> Option<&Reading> {
        let young = self.failure.is_none() && self.age(now)? <= STALE_AFTER;
        self.good.as_ref().filter(|_| young).map(|(_, reading)| reading)
    }

    /// What is said now: the last reading, or what stands without one.
    fn told(&self, now: Instant) -> &Reading {
        self.fresh(now).unwrap_or(&self.standing)
    }

    fn stuck(&self, now: Instant) -> bool {
        self.running_since.is_some_and(|since| now.saturating_duration_since(since) > STALE_AFTER)
    }

    fn health(&self, name: &'static str, now: Instant) -> Health {
        let ended = self.failure.is_some() || self.good.is_some();
        let stuck = self.stuck(now);
        let reading = self.fresh(now);
        let told = self.told(now);
        Health {
            name,
            success: (ended || stuck).then_some(reading.is_some() && !stuck),
            duration: self.duration,
            age: self.age(now),
            failure: if stuck { Some(STUCK.to_owned()) } else { self.failure.as_ref().map(Failure::to_string) },
            notes: told.unseen.warnings().chain(told.unseen.notes()).chain(told.notes.iter().cloned()).collect(),
        }
    }
}

fn absorb(all: &mut HostFacts, facts: &HostFacts) {
    all.gpus = all.gpus.or(facts.gpus);
    all.live_tier_files.extend_from_slice(&facts.live_tier_files);
    all.shm = all.shm.take().or_else(|| facts.shm.clone());
}

/// One family for each description, with the ages as they are now.
fn age_families(ages: &[Age], now: Instant) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for age in ages {
        let at = families.iter().position(|family| family.desc == age.desc).unwrap_or_else(|| {
            families.push(Family::new(age.desc));
            families.len() - 1
        });
        families[at].push(age.labels.clone(), now.saturating_duration_since(age.since).as_secs_f64());
    }
    families
}

fn health_families(collectors: &[Health]) -> [Family; 3] {
    let mut families = [Family::new(SUCCESS), Family::new(DURATION), Family::new(AGE)];
    for health in collectors {
        let labels = Labels::from([("collector", health.name.to_owned())]);
        let values = [
            health.success.map(|success| f64::from(u8::from(success))),
            health.duration.map(|duration| duration.as_secs_f64()),
            health.age.map(|age| age.as_secs_f64()),
        ];
        for (family, value) in families.iter_mut().zip(values) {
            family.push(labels.clone(), value);
        }
    }
    families
}

/// What the log was told of a collector last.
#[derive(Clone, Debug, Default, PartialEq)]
struct Said {
    failure: Option<Failure>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

impl Said {
    fn of(outcome: &Result<Reading, Failure>) -> Said {
        match outcome {
            Ok(reading) => Said {
                failure: None,
                warnings: reading.unseen.warnings().collect(),
                notes: reading.unseen.notes().chain(reading.notes.iter().cloned()).collect(),
            },
            Err(failure) => Said { failure: Some(failure.clone()), ..Said::default() },
        }
    }

    /// Logs what is new in `now`, and returns it.
    fn then(self, collector: &'static str, now: Said) -> Said {
        for news in self.news(&now) {
            match news {
                News::Failed(Failure::Absent(why)) => tracing::info!(collector, "nothing to collect here: {why}"),
                News::Failed(Failure::Broken(why)) => tracing::warn!(collector, "collector failed: {why}"),
                News::Works => tracing::info!(collector, "collector works again"),
                News::Lost(what) => tracing::warn!(collector, "{what}"),
                News::Over(what) => tracing::info!(collector, "no longer so: {what}"),
                News::Note(note) => tracing::info!(collector, "{note}"),
            }
        }
        now
    }

    fn news<'a>(&'a self, now: &'a Said) -> Vec<News<'a>> {
        fn new<'l>(before: &'l [String], now: &'l [String]) -> impl Iterator<Item = &'l str> {
            now.iter().filter(|line| !before.contains(line)).map(String::as_str)
        }
        let mut news: Vec<News<'a>> = new(&self.warnings, &now.warnings).map(News::Lost).collect();
        if now.failure.is_none() {
            news.extend(new(&now.warnings, &self.warnings).map(News::Over));
        }
        news.extend(new(&self.notes, &now.notes).map(News::Note));
        match &now.failure {
            Some(failure) if self.failure.as_ref() != Some(failure) => news.push(News::Failed(failure)),
            None if self.failure.is_some() => news.push(News::Works),
            _ => {}
        }
        news
    }
}

#[derive(Debug, PartialEq)]
enum News<'a> {
    Failed(&'a Failure),
    Works,
    Lost(&'a str),
    Over(&'a str),
    Note(&'a str),
}

#[cfg(test)]
mod tests {
    use super::*;

    const X: Desc = Desc::gauge("kvtier_x", "X.");
    const Y: Desc = Desc::gauge("kvtier_y", "Y.");
    const FAST: Pace = Pace { interval: Duration::from_millis(1), longest: Duration::from_millis(4) };

    /// A collector that does what the test sends it, one message a run; it blocks while there is none.
    struct Scripted(&'static str, Receiver<fn() -> Result<Reading, Failure>>);

    impl Collector for Scripted {
        fn name(&self) -> &'static str {
            self.0
        }
        fn collect(&mut self) -> Result<Reading, Failure> {
            match self.1.recv() {
                Ok(step) => step(),
                Err(_) => Err(Failure::Broken("the test is over".into())),
            }
        }
    }

    type Script = Sender<fn() -> Result<Reading, Failure>>;

    fn scripted(name: &'static str) -> (Script, Box<dyn Collector>) {
        let (send, receive) = mpsc::channel();
        (send, Box::new(Scripted(name, receive)))
    }

    fn good() -> Result<Reading, Failure> {
        Ok(Reading {
            families: vec![Family::single(X, 1.0)],
            lasting: vec![Family::single(Y, 2.0)],
            facts: HostFacts { gpus: Some(2), ..HostFacts::default() },
            notes: vec!["partly".into()],
            ..Reading::default()
        })
    }

    /// Looks until the condition holds; `None` if it does not within 10 s.
    fn until(host: &Host, holds: impl Fn(&Look) -> bool) -> Option<Look> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let look = host.look(Instant::now());
            if holds(&look) {
                return Some(look);
            }
            if Instant::now() > deadline {
                return None;
            }
            thread::yield_now();
        }
    }

    fn value(look: &Look, name: &str, collector: &str) -> Option<f64> {
        let family = look.families.iter().find(|family| family.desc.name == name)?;
        let wanted = |labels: &Labels| labels.iter().all(|(_, value)| value == collector);
        family.samples.iter().find(|(labels, _)| wanted(labels)).map(|(_, value)| *value)
    }

    #[test]
    fn before_the_first_run_ends_nothing_is_said_and_a_run_that_does_not_end_is_a_failure() {
        let (_script, collector) = scripted("slow");
        let host = Host::with(vec![collector], FAST);
        let before = Instant::now();
        let look = host.look(before);
        assert!(before.elapsed() < Duration::from_secs(1), "a look does not wait for the run");
        assert_eq!(value(&look, "kvtier_collector_success", "slow"), None);
        assert_eq!(value(&look, "kvtier_collector_age_seconds", "slow"), None);
        until(&host, |_| lock(&host.slots[0].state).running_since.is_some()).expect("it runs");
        let look = host.look(Instant::now() + Duration::from_secs(16));
        assert_eq!(value(&look, "kvtier_collector_success", "slow"), Some(0.0));
        assert!(look.collectors[0].failure.as_ref().is_some_and(|text| text.contains("not come back")));
    }

    #[test]
    fn a_sample_is_shown_for_15_seconds_and_one_that_states_its_age_for_ever() {
        let (script, collector) = scripted("one");
        let host = Host::with(vec![collector], FAST);
        script.send(good).unwrap();
        let look = until(&host, |look| value(look, "kvtier_x", "").is_some()).expect("a reading");
        assert_eq!(value(&look, "kvtier_collector_success", "one"), Some(1.0));
        assert_eq!((look.facts.gpus, look.collectors[0].notes.len()), (Some(2), 1));

        let at = lock(&host.slots[0].state).good.as_ref().map(|(at, _)| *at).unwrap();
        let still = host.look(at + Duration::from_secs(15));
        assert_eq!(value(&still, "kvtier_x", ""), Some(1.0));
        assert_eq!(value(&still, "kvtier_collector_age_seconds", "one"), Some(15.0));

        let late = host.look(at + Duration::from_secs(20));
        assert_eq!(value(&late, "kvtier_x", ""), None);
        assert_eq!(value(&late, "kvtier_y", ""), Some(2.0));
        assert_eq!(value(&late, "kvtier_collector_success", "one"), Some(0.0));
        assert_eq!(value(&late, "kvtier_collector_age_seconds", "one"), Some(20.0));
        assert_eq!((late.facts.gpus, late.collectors[0].notes.len()), (None, 0));
    }

    #[test]
    fn an_age_grows_from_look_to_look_though_no_run_ends() {
        let (script, collector) = scripted("one");
        let host = Host::with(vec![collector], FAST);
        script
            .send(|| {
                let age = |name: &str| Age { desc: Y, labels: [("path", name.into())].into(), since: Instant::now() };
                Ok(Reading { ages: vec![age("/a"), age("/b")], ..Reading::default() })
            })
            .unwrap();
        until(&host, |look| value(look, "kvtier_y", "/a").is_some()).expect("a reading");
        let since = lock(&host.slots[0].state).good.as_ref().map(|(_, reading)| reading.ages[1].since).unwrap();
        let look = host.look(since + Duration::from_secs(300));
        assert_eq!(value(&look, "kvtier_y", "/b"), Some(300.0));
        assert_eq!(look.families.iter().filter(|family| family.desc == Y).count(), 1, "one HELP for both");
    }

    #[test]
    fn one_that_blocks_does_not_touch_the_others() {
        let (_blocked, blocks) = scripted("blocks");
        let (script, works) = scripted("works");
        let host = Host::with(vec![blocks, works], FAST);
        script.send(good).unwrap();
        let look = until(&host, |look| value(look, "kvtier_x", "").is_some()).expect("a reading");
        assert_eq!(value(&look, "kvtier_collector_success", "works"), Some(1.0));
        assert_eq!(value(&look, "kvtier_collector_success", "blocks"), None);
    }

    #[test]
    fn a_failure_or_a_panic_takes_the_sample_back_and_is_retried() {
        let (script, collector) = scripted("one");
        let host = Host::with(vec![collector], FAST);
        let failed = |text: &'static str| {
            move |look: &Look| look.collectors[0].failure.as_ref().is_some_and(|failure| failure.contains(text))
        };
        script.send(good).unwrap();
        until(&host, |look| value(look, "kvtier_x", "").is_some()).expect("a reading");
        script.send(|| panic!("the driver went {}", "away")).unwrap();
        let look = until(&host, failed("panicked: the driver went away")).expect("the panic is told");
        assert_eq!(value(&look, "kvtier_x", ""), None);
        assert_eq!(value(&look, "kvtier_collector_success", "one"), Some(0.0));
        assert!(value(&look, "kvtier_collector_age_seconds", "one").is_some());
        script.send(|| Err(Failure::Absent("no GPU".into()))).unwrap();
        let look = until(&host, failed("not here: no GPU")).expect("absence is told");
        assert_eq!(value(&look, "kvtier_collector_success", "one"), Some(0.0));
        script.send(good).unwrap();
        until(&host, |look| value(look, "kvtier_collector_success", "one") == Some(1.0)).expect("it recovers");
    }

    /// Remembers how often it was asked, works the first time only, and then fails or panics.
    struct Remembers(f64);

    impl Collector for Remembers {
        fn name(&self) -> &'static str {
            "remembers"
        }
        fn collect(&mut self) -> Result<Reading, Failure> {
            self.0 += 1.0;
            match self.0 {
                1.0 => good(),
                2.0 => panic!("lost"),
                _ => Err(Failure::Broken("lost".into())),
            }
        }
        fn standing(&self) -> Reading {
            Reading { families: vec![Family::single(Y, self.0)], ..Reading::default() }
        }
    }

    #[test]
    fn what_stands_is_told_only_while_there_is_no_fresh_reading() {
        let host = Host::with(vec![Box::new(Remembers(0.0))], FAST);
        let look = until(&host, |look| value(look, "kvtier_y", "") >= Some(3.0)).expect("failures");
        assert_eq!(value(&look, "kvtier_x", ""), None);
        assert_eq!(value(&look, "kvtier_collector_success", "remembers"), Some(0.0));

        let mut state = State { standing: Remembers(7.0).standing(), ..State::default() };
        let begun = Instant::now();
        state.finish(begun, Duration::ZERO, Ok(Reading { families: vec![], ..good().unwrap() }));
        assert_eq!(state.told(begun).families, []);
        assert_eq!(state.told(begun + Duration::from_secs(16)).families, [Family::single(Y, 7.0)]);
    }

    #[test]
    fn a_sample_is_as_old_as_the_start_of_its_run() {
        let mut state = State::default();
        let begun = Instant::now();
        state.finish(begun, Duration::from_secs(9), good());
        let health = state.health("slow", begun + Duration::from_secs(14));
        assert_eq!((health.age, health.duration), (Some(Duration::from_secs(14)), Some(Duration::from_secs(9))));
    }

    #[test]
    fn the_wait_doubles_with_each_failure_in_a_row_up_to_a_minute() {
        let waits: Vec<u64> = (0..7).map(|failures| Pace::default().wait(failures).as_secs()).collect();
        assert_eq!(waits, [5, 5, 10, 20, 40, 60, 60]);
        assert_eq!(Pace::default().wait(u32::MAX).as_secs(), 60);
    }

    #[test]
    fn a_thread_ends_when_nobody_looks_any_more() {
        let (script, collector) = scripted("one");
        let host = Host::with(vec![collector], Pace { interval: Duration::from_secs(3600), ..Pace::default() });
        script.send(good).unwrap();
        until(&host, |look| value(look, "kvtier_x", "").is_some()).expect("a reading");
        drop(host);
        let deadline = Instant::now() + Duration::from_secs(10);
        // The script's other end lives in the thread; sending fails once the thread has gone.
        while script.send(good).is_ok() {
            assert!(Instant::now() < deadline, "the thread still waits");
            thread::yield_now();
        }
    }

    #[test]
    fn the_log_is_told_of_changes_only() {
        let works = Said { notes: vec!["a".into()], ..Said::default() };
        let more = Said { notes: vec!["a".into(), "b".into()], ..Said::default() };
        let lost = Said { warnings: vec!["gone".into()], ..works.clone() };
        let gone = Said::of(&Err(Failure::Absent("x".into())));
        let broken = Said::of(&Err(Failure::Broken("x".into())));
        assert_eq!(Said::default().news(&Said::default()), []);
        assert_eq!(Said::default().news(&works), [News::Note("a")]);
        assert_eq!(works.news(&works), []);
        assert_eq!(works.news(&more), [News::Note("b")]);
        assert_eq!(works.news(&gone), [News::Failed(&Failure::Absent("x".into()))]);
        assert_eq!(gone.news(&gone), []);
        assert_eq!(gone.news(&broken), [News::Failed(&Failure::Broken("x".into()))]);
        assert_eq!(broken.news(&Said::default()), [News::Works]);
        assert_eq!(works.news(&lost), [News::Lost("gone")]);
        assert_eq!(lost.news(&lost), []);
        assert_eq!(lost.news(&works), [News::Over("gone")]);
        assert_eq!(lost.news(&broken), [News::Failed(&Failure::Broken("x".into()))], "not over, only not looked at");
    }
}
