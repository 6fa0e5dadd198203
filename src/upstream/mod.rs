//! The engine's metrics page, fetched within limits: one deadline, one size cap, one fetch for all who wait.
//!
//! It does not know what a page means. Reasons of failure are in [`UpstreamError`]; whether a failure costs our
//! own answer is decided in [`crate::scrape`].

mod address;
mod body;
mod client;
mod connection;
mod credentials;
mod demand;
mod error;
#[cfg(test)]
pub(crate) mod every;
mod first_byte;
mod flight;
mod identity;
mod key;
mod progress;
mod role;
mod tls;
mod tls_fault;
mod tls_guess;
mod unreached;
mod verify;
mod way;
mod words;

pub use address::{Address, AddressError, Endpoint};
pub use client::{Client, Options, Page};
pub use credentials::SecretFile;
pub use error::UpstreamError;
pub use flight::{Flight, Ticket};
pub use identity::IdentityFiles;
pub use role::Role;
pub use tls::{TlsOptions, TrustError};
pub use tls_fault::TlsFault;
pub use unreached::Unreached;
pub use words::Other;
