//! The door of our own server: who may come in (TLS, client certificates, users), how many, and for how long.
//!
//! It knows nothing of routes; [`crate::server`] asks it at each connection and each request.
//!
//! ```text
//! --web.config.file ─► yaml ─► section ─► config   pure: text to what can only be right
//!                                 └─► tls, users   with the files it names
//!                                       └─► keeper what is in force, read again on change
//! connection ─► crowd ─► request ─► turn ─► body   nobody who makes us wait keeps out one who asks
//! ```

mod body;
mod coding;
mod config;
mod crowd;
mod files;
mod keeper;
mod section;
mod tls;
mod users;
mod yaml;

pub use coding::Compression;
pub use config::{ClientAuth, Config, Tls};
pub use crowd::Limits;
pub use keeper::{Keeper, Protection, WebError};
pub use section::Located;
pub use users::{Hash, HashError, Users, Verdict};
pub use yaml::Fault;

pub(crate) use body::Pieces;
pub(crate) use coding::asks_for_gzip;
pub(crate) use crowd::{Crowd, Place};
