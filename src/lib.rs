//! kvtier-exporter: an exporter and correction proxy for engines with a KV offload tier.
//!
//! ```text
//! GET /metrics ─► deadline = min(configured timeout, X-Prometheus-Scrape-Timeout-Seconds − 0.5 s)
//!    ├─► upstreams, all at once: one fetch of each, shared by all waiting clients ─► bytes
//!    │      [openmetrics] ─► exposition ─► dialect ─► model ─► bound ─┬─► correct
//!    │                     (borrowed, total)   (engines, tiers)       └─► derive
//!    │      a failure ─► kvtier_upstream_up 0 and its reason; the rest of the answer still comes
//!    └─► host: last sample of each collector and its age
//! rewrite ─► slices of the body with inserts between ─► text/plain; version=0.0.4
//! ```
//!
//! Left of [`model`] everything knows engines by their spelling; right of it nothing does.
//!
//! | room | what it is | kind |
//! |---|---|---|
//! | [`cli`] | flags, sub-commands, units and addresses as value parsers | pure |
//! | [`redact`] | the one exit for foreign text: no secrets, no controls, no end | pure, but for the secrets that it holds |
//! | [`log`] | how a log line is written, and that nobody waits for its reader | I/O |
//! | [`server`] | listeners, routes, drain | I/O |
//! | [`web`] | who may come in: TLS, users, names, limits; who is next | pure + I/O |
//! | [`healthcheck`] | asks a running exporter whether it serves | I/O |
//! | [`mod@aside`] | work that may hang, on a thread of its own | I/O |
//! | [`files`] | files that others write: read with a bound, beside the loop | I/O |
//! | [`scrape`] | the way of one scrape: fetches, pipeline, host, own families | I/O |
//! | [`upstream`] | fetch with deadline, size cap, single flight | I/O |
//! | [`race`] | which of a name's addresses is connected to | I/O |
//! | [`pipeline`] | the pure middle as one function | pure |
//! | [`openmetrics`] | an OpenMetrics page turned into text 0.0.4 | pure |
//! | [`merge`] | pages of further upstreams beside the main one, each family once | pure |
//! | [`exposition`] | total, zero-copy scanner of text 0.0.4 | pure |
//! | [`dialect`] | one file an engine or connector: its names, read into the model | pure |
//! | [`model`] | Snapshot, Engine, Tier: the nouns | pure |
//! | [`mod@duration`] | a length of time as people write it | pure |
//! | [`mod@plain`] | what the system and the libraries say of a failure, in words for people | pure |
//! | [`mod@share`] | a ratio of two readings, or why it can be none | pure |
//! | [`settings`] | what the operator and the box add to a page | pure |
//! | [`bound`] | size and fill of a tier, each with its source and terms | pure |
//! | [`correct`] | which upstream family is replaced by what, and why | pure |
//! | [`mod@derive`] | one row a derived family | pure |
//! | [`family`] | what one of our families is, and how it is written | pure |
//! | [`catalogue`] | every family that can be written | pure |
//! | [`rewrite`] | page and edits to slices: the only writer of upstream's lines | pure |
//! | [`explain`] | the text of `/debug` | pure |
//! | [`status`] | what `/api/status` says, as JSON | pure |
//! | [`page`] | the status page at `/`, which shows it | pure |
//! | [`notice`] | what the running exporter would tell somebody, and when the log says it | pure |
//! | [`own`] | the families about the exporter itself | pure |
//! | [`process`] | what the kernel says of our own process | I/O |
//! | [`mod@x509`] | of which version a certificate is that the TLS library refuses | pure |
//! | [`events`] | KV cache events: what is in the tier, and what another size would bring | I/O at the edge |
//! | [`host`] | one file a collector of host facts, each on its own thread | I/O |
//! | [`commands`] | `check`, `plan` and `report`: facts gathered, advice printed | I/O |
//! | [`advise`] | what speaks against a deployment or a plan, and what to type | pure |
//! | [`report`] | the measured table of a tier: from pages, or from a history | pure |
//! | [`demo`] | a simulated deployment to look at | I/O |

pub mod advise;
pub mod aside;
pub mod bound;
pub mod catalogue;
pub mod cli;
pub mod commands;
pub mod correct;
pub mod demo;
pub mod derive;
pub mod dialect;
pub mod duration;
pub mod events;
pub mod explain;
pub mod exposition;
pub mod family;
pub mod files;
pub mod healthcheck;
pub mod host;
pub mod log;
pub mod merge;
pub mod model;
pub mod notice;
pub mod openmetrics;
pub mod own;
pub mod page;
pub mod pipeline;
pub mod plain;
pub mod process;
pub mod race;
pub mod redact;
pub mod report;
pub mod rewrite;
pub mod scrape;
pub mod server;
pub mod settings;
pub mod share;
pub mod status;
pub mod upstream;
pub mod web;
pub mod x509;
