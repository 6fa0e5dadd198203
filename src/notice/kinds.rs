//! The kinds of notice: one row each.

use super::{InCheck, Kind};
use crate::advise::Severity::{Finding, Remark};

/// A page on which no engine is recognised.
pub const UNKNOWN_ENGINE: Kind = Kind {
    id: "upstream-unknown-engine",
    what: "The upstream serves metrics, and no engine known here is recognised on its page.",
    why: "Nothing is corrected and nothing is derived: no tier, no fill, no speeds. The page passes as it came.",
    action: "Give the engine's own metrics page with --upstream, such as http://127.0.0.1:8000/metrics (that of an extra with --upstream.extra, or leave the extra out). Behind Ray, a router or an OpenTelemetry collector, which rename families, take the page before they do. vLLM serves its page on its API port unless statistics are switched off; SGLang only with --enable-metrics.",
    check: InCheck::Better(&["upstream-unknown-engine", "upstream-wrong-endpoint"], Finding),
};

/// Another exporter of this kind between the engine and this one.
pub const UPSTREAM_IS_EXPORTER: Kind = Kind {
    id: "upstream-is-exporter",
    what: "The upstream is itself a kvtier-exporter.",
    why: "Its own families are left out, since this exporter writes them anew. A gauge that it has corrected passes as it is, and what copies in flight pin is then not known: kvtier_tier_pinned_ratio is absent.",
    action: "Point --upstream (or --upstream.extra) at the engine itself, such as http://127.0.0.1:8000/metrics, or let Prometheus scrape that exporter alone.",
    check: InCheck::AsItIs(Finding),
};

/// A `transfer_type` that is no known way.
pub const UNKNOWN_DIRECTION: Kind = Kind {
    id: "unknown-transfer-direction",
    what: "The engine counts copies between places that are not known here.",
    why: "Where one end is the GPU the other one is shown as a tier of medium unknown, with bytes and seconds and without size and fill. Copies between other places are in no family of this exporter.",
    action: "Nothing, if you know the place. Otherwise look in the engine's configuration for the connector that moves these bytes.",
    check: InCheck::AsItIs(Remark),
};

/// Series of one family that cannot be told apart.
pub const IDENTITY_UNCERTAIN: Kind = Kind {
    id: "identity-uncertain",
    what: "Series of one family differ in a label that does not tell which engine they are of.",
    why: "None of them is read, and the gauge of such an engine passes uncorrected: a figure of the wrong engine would be worse.",
    action: "Scrape each engine on its own page, one exporter for each, or have the page carry the same labels on all families of an engine.",
    check: InCheck::AsItIs(Finding),
};

/// Values that would lie outside 0 to 1.
pub const VALUE_WITHHELD: Kind = Kind {
    id: "value-withheld",
    what: "A ratio is left out, since it would lie outside 0 to 1.",
    why: "The page contradicts itself, and which of its figures is wrong cannot be told.",
    action: "Look at the figures in /debug, and report them to whoever writes the page. A page that gathers several engines or a counter that was reset alone are known causes.",
    check: InCheck::AsItIs(Finding),
};

/// Lines that were left out.
pub const DROPPED_LINES: Kind = Kind {
    id: "upstream-dropped-lines",
    what: "Lines of the page were left out, because Prometheus would have refused the whole page for them.",
    why: "What these lines say is lost. If they carry counters of the engine, figures here are missing or too low.",
    action: "Look at the lines in /debug, and mend whoever writes them: often a proxy, a plugin of the engine, or a label value that is not escaped.",
    check: InCheck::AsItIs(Finding),
};

/// `/dev/shm` of somebody else.
pub const SHM_WRONG_MOUNT: Kind = Kind {
    id: "shm-wrong-mount",
    what: "The shared-memory mount that this exporter looks at cannot be the engine's.",
    why: "All kvtier_shm_* figures are of the wrong mount: the engine's may be full while this one is empty.",
    action: "Let this program see the engine's mount: the same volume at --path.shm, --ipc=container:ENGINE with Docker, or one emptyDir (medium: Memory) mounted into both containers of a pod. If it runs on another box, switch the collector off: --no-collector.shm.",
    check: InCheck::Better(&["shm-container-default", "shm-smaller-than-tier", "shm-not-tmpfs"], Finding),
};

/// A tier of which no copies are counted.
pub const TIER_WITHOUT_METRICS: Kind = Kind {
    id: "tier-without-transfer-metrics",
    what: "An engine has a tier, and its page counts no bytes that go in or out.",
    why: "Its fill and its copy speeds cannot be told.",
    action: "Look for the connector's name in the engine's log. To have the figures run vLLM 0.16 or newer with its OffloadingConnector (--kv-offloading-backend native, without VLLM_USE_SIMPLE_KV_OFFLOAD).",
    check: InCheck::Better(&["tier-without-transfer-metrics"], Finding),
};

/// Tokens from a tier that is not there.
pub const SERVED_BY_NO_TIER: Kind = Kind {
    id: "tokens-served-by-no-tier",
    what: "A connector supplied an engine with tokens, and its page shows no tier that they came from.",
    why: "Prefill did not compute these tokens; which connector gave them, from where and how fast cannot be told.",
    action: "Look for kv_connector in the engine's log. LMCache shows its metrics where PROMETHEUS_MULTIPROC_DIR was exported before vLLM started, or on a page of its own (--upstream.extra). NIXL moves KV between engines and is no tier: then there is nothing to do.",
    check: InCheck::Better(&["tokens-served-by-no-tier"], Remark),
};

/// A gauge that stays misleading although corrections are on.
pub const GAUGE_NOT_CORRECTED: Kind = Kind {
    id: "gauge-not-corrected",
    what: "The engine's usage gauge of its tier passes as it came.",
    why: "It counts only what is pinned by copies in flight, so it reads about 0 on a full tier.",
    action: "See the reason. Where the size is missing, give it with --tier.size. Or switch corrections off with --correct=off.",
    check: InCheck::AsItIs(Finding),
};

/// A declared size that belongs to no tier.
pub const TIER_SIZE_UNUSED: Kind = Kind {
    id: "tier-size-unused",
    what: "--tier.size names a tier that no engine shows.",
    why: "Nothing but this size is known of such a tier, so it has no fill. It may have another name, or it did not start.",
    action: "Compare the name with the tier label of kvtier_tier_info, and the engine's log with its configuration.",
    check: InCheck::AsItIs(Finding),
};

/// Two sizes of one tier.
pub const TIER_SIZE_MISMATCH: Kind = Kind {
    id: "tier-size-mismatch",
    what: "--tier.size and the engine, or its KV cache events, tell of different sizes of one tier.",
    why: "The flag is used, so the fill is a share of the wrong size if the flag is wrong; against the events no ratio is said to be measured. The size is per engine, all ranks together, and a GB is not a GiB.",
    action: "Leave the flag out where the engine tells its size, or correct it.",
    check: InCheck::AsItIs(Remark),
};

/// Facts without a place.
pub const FACTS_NOT_PLACED: Kind = Kind {
    id: "facts-not-placed",
    what: "The page has figures that cannot be given to one engine.",
    why: "They are in no family of this exporter: to give them to the wrong engine would be worse.",
    action: "Scrape each engine and each cache server on its own page, one exporter for each.",
    check: InCheck::AsItIs(Remark),
};

/// Facts of one engine that contradict each other.
pub const FACTS_CONTRADICT: Kind = Kind {
    id: "facts-contradict",
    what: "The page says different things of one engine.",
    why: "Which of them holds nobody knows, so none is read: what rests on them is absent. Prometheus keeps one sample of a series, by chance of their order.",
    action: "Find who writes the other one: a page that was put together of several, a proxy that repeats lines, or what a dead process left in PROMETHEUS_MULTIPROC_DIR. Give the engine's own page.",
    check: InCheck::AsItIs(Finding),
};

/// More engines than are told apart.
pub const TOO_MANY_ENGINES: Kind = Kind {
    id: "too-many-engines",
    what: "The page names more engines than are told apart.",
    why: "Nothing is derived for the others; their lines pass as they came.",
    action: "Scrape the engines themselves, one exporter for each, instead of a page that gathers them.",
    check: InCheck::AsItIs(Finding),
};

/// A changed web configuration that is not in force. Of this program, and of no upstream.
pub const CONFIG_RELOAD_REFUSED: Kind = Kind {
    id: "config-reload-refused",
    what: "The web configuration was changed, and what was read before stays in force.",
    why: "Users, certificates and demands are those of before. After a restart it is refused, or asks for less than now.",
    action: "Correct the file, or restart the exporter if less is to be asked for.",
    check: InCheck::Never,
};

/// An upstream whose certificate nobody looks at.
pub const SKIP_VERIFY: Kind = Kind {
    id: "upstream-insecure-skip-verify",
    what: "The upstream is asked over TLS, and nobody looks at its certificate (--upstream.insecure-skip-verify).",
    why: "Anybody on the way may answer in its place, and read what is asked.",
    action: "Name the server's certificate, or that of its authority, with --upstream.ca-file, and leave the flag out.",
    check: InCheck::AsItIs(Remark),
};

/// All of them, in the order of the document.
pub const KINDS: &[&Kind] = &[
    &UNKNOWN_ENGINE,
    &UPSTREAM_IS_EXPORTER,
    &UNKNOWN_DIRECTION,
    &IDENTITY_UNCERTAIN,
    &VALUE_WITHHELD,
    &DROPPED_LINES,
    &SHM_WRONG_MOUNT,
    &TIER_WITHOUT_METRICS,
    &SERVED_BY_NO_TIER,
    &GAUGE_NOT_CORRECTED,
    &TIER_SIZE_UNUSED,
    &TIER_SIZE_MISMATCH,
    &FACTS_NOT_PLACED,
    &FACTS_CONTRADICT,
    &TOO_MANY_ENGINES,
    &CONFIG_RELOAD_REFUSED,
    &SKIP_VERIFY,
];
