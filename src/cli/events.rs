//! The flags of the event streams.

use std::time::Duration;

use clap::Args;

use super::units;
use super::upstream::Quiet;
use crate::events::{Address, Endpoint, Link, Options};

/// Which event streams are followed.
#[derive(Debug, Args)]
#[command(next_help_heading = "Events")]
pub struct Events {
    /// Follow KV cache events of an engine; repeatable, or a range of ports: one for each DP rank
    #[arg(id = "events", long = "events", global = true, value_name = "tcp://HOST:PORT", value_parser = Quiet(peers), value_delimiter = ',')]
    pub connect: Vec<Endpoints>,

    /// The same, where the engine connects: its endpoint names a host instead of *
    #[arg(id = "events.bind", long = "events.bind", global = true, value_name = "tcp://HOST:PORT", value_parser = Quiet(endpoints), value_delimiter = ',')]
    pub bind: Vec<Endpoints>,

    /// Where each of them answers what was missed, in the same order
    #[arg(id = "events.replay", long = "events.replay", global = true, value_name = "tcp://HOST:PORT", value_parser = Quiet(peers), value_delimiter = ',')]
    pub replay: Vec<Endpoints>,

    /// What the topics begin with; the engine's "topic"
    #[arg(
        id = "events.topic",
        long = "events.topic",
        global = true,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub topic: String,

    /// Over which other sizes are predicted
    #[arg(id = "events.window", long = "events.window", global = true, value_name = "TIME", value_parser = units::duration, default_value = "1h")]
    pub window: Duration,

    /// Show predictions while the one for the present size is off by so many points of the tokens asked at most
    #[arg(id = "events.max-error", long = "events.max-error", global = true, value_name = "POINTS", value_parser = units::points, default_value = "3")]
    pub max_error: f64,

    /// Memory of the streams: a quarter for what is on its way, the rest for single chunks, of which a sample is kept beyond it
    #[arg(id = "events.max_bytes", long = "events.max-bytes", global = true, value_name = "SIZE", value_parser = units::size, default_value = "64MiB")]
    pub max_bytes: u64,
}

/// The endpoints that one value names.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoints(pub Vec<Address>);

fn endpoints(text: &str) -> Result<Endpoints, String> {
    let text = text.trim();
    Address::parse_all(text).map(Endpoints).map_err(|why| format!("{why}; write tcp://HOST:PORT"))
}

/// The same, for those that we connect to: every interface is nobody's address.
fn peers(text: &str) -> Result<Endpoints, String> {
    let all = endpoints(text)?;
    match all.0.first() {
        Some(Address { host, port }) if host.is_empty() => Err(format!(
            "has * for its host, which is how the engine binds; write the engine's host, for example tcp://127.0.0.1:{port}"
        )),
        _ => Ok(all),
    }
}

impl Events {
    /// What to follow; `None` where nothing is.
    pub fn options(&self) -> Option<Options> {
        let mut replays = all(&self.replay);
        let connect = all(&self.connect).map(Link::Connect);
        let links = connect.chain(all(&self.bind).map(Link::Bind));
        let topic = &self.topic;
        let endpoints: Vec<Endpoint> =
            links.map(|link| Endpoint { link, replay: replays.next(), topic: topic.clone() }).collect();
        (!endpoints.is_empty()).then(|| self.following(endpoints))
    }

    /// The limits of the flags for these endpoints.
    pub fn following(&self, endpoints: Vec<Endpoint>) -> Options {
        Options {
            endpoints,
            window: self.window,
            max_error: self.max_error / 100.0,
            max_bytes: usize::try_from(self.max_bytes).unwrap_or(usize::MAX),
        }
    }

    /// What does not fit together, as a sentence.
    pub(super) fn misfit(&self) -> Option<String> {
        let (followed, replays) = (all(&self.connect).count() + all(&self.bind).count(), all(&self.replay).count());
        let links: Vec<Address> = all(&self.connect).chain(all(&self.bind)).collect();
        if let Some(twice) = links.iter().enumerate().find(|(at, link)| links[..*at].contains(link)) {
            return Some(format!("the endpoint {} is given twice", twice.1));
        }
        match () {
            () if replays == 0 || replays == followed => None,
            () if followed == 0 => Some("--events.replay needs --events or --events.bind beside it".to_owned()),
            () => Some(format!(
                "{replays} of --events.replay stand beside {followed} endpoints; give one for each, in the same order"
            )),
        }
    }
}

fn all(given: &[Endpoints]) -> impl Iterator<Item = Address> + '_ {
    given.iter().flat_map(|endpoints| endpoints.0.iter().cloned())
}
