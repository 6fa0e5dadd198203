//! The door of our own server: who may come in (TLS, client certificates, users), how many, and for how long.
//!
//! It knows nothing of routes; [`crate::server`] asks it at each connection and each request.
//!
//! ```text
//! --web.config.file ─► yaml ─► section ─► config   pure: text to what can only be right
//!                                 └─► tls, users   with the files it names
//!                                       └─► keeper what is in force, read again on change (demands: never for less)
//! connection ─► crowd ─► request ─► turn ─► body   nobody who makes us wait keeps out one who asks
//!     (half)      │       │             (common)   a page that many get is held and packed once
//!                 │       ├─► names                a stranger's name for a listener on loopback
//!                 └─► unsent                       what those hold who do not read is bounded
//!                         └─► users ─► hashing         passwords wait in line, and addresses take turns
//! ```

mod body;
mod coding;
mod common;
mod config;
mod crowd;
mod demands;
mod files;
mod half;
mod hashing;
mod keeper;
mod names;
mod place;
mod reload;
mod section;
mod source;
mod tls;
mod turns;
mod unsent;
mod users;
mod yaml;

pub use coding::Compression;
pub use common::Common;
pub use config::{ClientAuth, Config, Tls};
pub use crowd::Limits;
pub use keeper::{Keeper, Protection, WebError};
pub use names::Names;
pub use reload::{DESCS, Reload, Reloads};
pub use section::Located;
pub use source::Source;
pub use users::{Hash, HashError, Users, Verdict};
pub use yaml::Fault;

pub(crate) use body::Pieces;
pub(crate) use coding::asks_for_gzip;
pub(crate) use crowd::Crowd;
pub(crate) use half::HalfClose;
pub(crate) use place::{Place, Turn};
