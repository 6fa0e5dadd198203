//! The engine's metrics page, fetched within limits: one deadline, one size cap, one fetch for all who wait.
//!
//! It does not know what a page means. Reasons of failure are in [`UpstreamError`]; whether a failure costs our
//! own answer is decided in [`crate::scrape`].

mod address;
mod body;
mod client;
mod connection;
mod error;
mod flight;
mod tls;
mod token;

pub use address::{Address, AddressError, Endpoint};
pub use client::{Client, Options, Page};
pub use error::UpstreamError;
pub use flight::Flight;
pub use tls::TrustError;
