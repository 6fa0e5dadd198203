//! Events that were asked for and do not come: each cause told apart where something was seen that tells it.

use super::{Facts, Page};
use crate::advise::Finding;
use crate::advise::words::many;
use crate::events::probe::{Heard, Replays};
use crate::events::resident::Peers;
use crate::events::{Address, Endpoint, Link};

/// An endpoint and what was heard of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Listened {
    /// As the flags give it.
    pub endpoint: Endpoint,
    /// What came.
    pub heard: Heard,
    /// Who is at the address of its replay, where one was given.
    pub replays: Option<Replays>,
}

const NOTHING_TOLD: &str =
    "Without its events nothing is told of what really lies in the tier, nor of what another size would bring.";

/// What speaks against an endpoint by itself.
pub(super) fn endpoints(facts: &Facts<'_>) -> Vec<Finding> {
    facts.events.iter().filter_map(|one| endpoint(one, facts)).collect()
}

fn endpoint(one: &Listened, facts: &Facts<'_>) -> Option<Finding> {
    let Endpoint { link, topic, .. } = &one.endpoint;
    let finding = |id, seen: String, action: String| Some(Finding::new(id, seen, NOTHING_TOLD, action));
    match &one.heard {
        Heard::Batch(_) => None,
        Heard::OtherTopic(seen) => finding(
            "events-wrong-topic",
            format!("Events come from {link}, but their topic is {seen:?}, which does not begin with {topic:?}."),
            format!("Say --events.topic={seen:?}, or leave the flag out: then every topic is taken."),
        ),
        Heard::EngineConnects => finding(
            "events-wrong-side",
            format!("Nobody listens on {link}; a publisher connected to it as soon as somebody did."),
            format!(
                "vLLM connects wherever its endpoint names a host. Say --events.bind={link} instead of --events, or \
                 give the engine an endpoint such as tcp://*:5557."
            ),
        ),
        Heard::NobodyConnects => finding(
            "events-wrong-side",
            format!("Nobody connected to {link} while this side listened there."),
            "vLLM binds where its endpoint is *, and then --events is right instead of --events.bind. Or it does not \
             publish: enable_kv_cache_events is not set in its --kv-events-config."
                .to_owned(),
        ),
        Heard::PortTaken => finding(
            "events-port-taken",
            format!("{link} is taken, so it cannot be listened on."),
            "If an exporter that runs has it, all may be well: its kvtier_events_up says so. If the engine has it, it \
             binds: say --events instead of --events.bind."
                .to_owned(),
        )
        .map(Finding::as_remark),
        Heard::AnotherSocket(kind) => finding(
            "events-ports-collide",
            format!("The socket on {link} is of type {kind} and does not publish."),
            "A ROUTER answers replays: the two endpoints are interchanged, or, with several data-parallel ranks, the \
             replay of one rank has the port of another's events, since each rank adds its number to both ports. Lay \
             them further apart than there are ranks, such as 5557 and 5657."
                .to_owned(),
        ),
        Heard::Failed(why) => finding(
            "events-unreachable",
            format!("{link}: {why}."),
            "Does the engine run with --kv-events-config and enable_kv_cache_events, and is this its endpoint? Rank r \
             of several adds r to the port."
                .to_owned(),
        ),
        Heard::Nothing => silent(link, facts),
    }
}

/// Replays that nobody answers.
pub(super) fn replays(facts: &Facts<'_>) -> Vec<Finding> {
    let given = facts.events.iter().filter_map(|one| Some((one.endpoint.replay.as_ref()?, one.replays.as_ref()?)));
    given.filter_map(|(address, replays)| replay(address, replays)).collect()
}

fn replay(address: &Address, replays: &Replays) -> Option<Finding> {
    let why = "Batches that were published before this side listened, or that were lost, are never made up for: what lies in \
               the tier stays uncertain until all of it has been stored anew.";
    match replays {
        Replays::There => None,
        Replays::AnotherSocket(kind) => Some(Finding::new(
            "events-ports-collide",
            format!("The socket on {address} is of type {kind} and answers no replay."),
            why,
            "A PUB publishes: the two endpoints are interchanged, or, with several data-parallel ranks, one rank's events \
             have the port of another's replay, since each rank adds its number to both ports. Lay them further apart than \
             there are ranks, such as 5557 and 5657.",
        )),
        Replays::Failed(seen) => Some(Finding::new(
            "events-replay-unreachable",
            format!("The replay at {address}: {seen}."),
            why,
            "Does the engine's --kv-events-config have a replay_endpoint, and is this it? Rank r of several adds r to the \
             port. Without one leave --events.replay out.",
        )),
    }
}

/// Silence says something only where there was something to say.
fn silent(link: &Link, facts: &Facts<'_>) -> Option<Finding> {
    (facts.stored_meanwhile == Some(true)).then(|| {
        Finding::new(
            "events-silent",
            format!("Every engine on the page stored into its tier, and no event came from {link} under any topic."),
            NOTHING_TOLD,
            "The publisher there is another engine's. Compare the port with the engine's --kv-events-config; rank r of \
             several adds r to it.",
        )
    })
}

/// Ports that several ranks would share, as the flags give them.
pub(super) fn ports(facts: &Facts<'_>) -> Vec<Finding> {
    let address = |link: &Link| match link {
        Link::Connect(address) | Link::Bind(address) => address.clone(),
    };
    let own: Vec<Address> = facts.events.iter().map(|one| address(&one.endpoint.link)).collect();
    let replays: Vec<&Address> = facts.events.iter().filter_map(|one| one.endpoint.replay.as_ref()).collect();
    let both = own.iter().find(|address| replays.contains(address));
    let finding = |shared: &Address| {
        Finding::new(
            "events-ports-collide",
            format!("{shared} is given both as an endpoint of events and as one of a replay."),
            "Each data-parallel rank adds its number to both ports of the engine, so ports that lie close together \
             meet, and one of the two sockets is missing.",
            "Lay them further apart than there are ranks: such as tcp://*:5557 and tcp://*:5657.",
        )
    };
    both.map(finding).into_iter().collect()
}

/// Engines of which a stream cannot be, and ranks that nobody follows.
pub(super) fn ranks(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(Page { engines, .. }) = &facts.page else { return Vec::new() };
    let (followed, there) = (facts.events.len(), engines.len());
    let ids = || engines.iter().map(|one| &one.engine.id);
    let alike = ids().filter(|id| Peers::of(id, ids()) == Peers::SameRank).count();
    let ambiguous = || {
        Finding::new(
            "events-engine-ambiguous",
            format!(
                "{} of {} on the page have an engine label that another one has too.",
                alike,
                many(there, "engine")
            ),
            "A stream of events says the rank of its engine and no more, so nothing is told of the tier of these.",
            "Give each of them an exporter of its own, with its own page and its own --events.",
        )
    };
    let missing = || {
        Finding::new(
            "events-ranks-missing",
            format!("{} on the page, and {} of events.", many(there, "engine"), many(followed, "endpoint")),
            "Each data-parallel rank publishes on a port of its own; nothing is told of those that are not followed.",
            "Give one endpoint for each: a range such as --events=tcp://127.0.0.1:5557-5558.",
        )
    };
    match followed {
        0 => Vec::new(),
        // More endpoints would not help these.
        _ if alike > 0 => vec![ambiguous().as_remark()],
        _ if followed < there => vec![missing().as_remark()],
        _ => Vec::new(),
    }
}
