//! The flags about what is fetched.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{BoolishValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Args};
use tokio_rustls::rustls::pki_types::ServerName;

use super::units::{self, Listen};
use crate::pipeline::MAIN;
use crate::upstream::{Address, AddressError, Endpoint, IdentityFiles, Options, SecretFile, TlsOptions};

/// What we fetch.
#[derive(Debug, Args)]
#[command(next_help_heading = "Upstream")]
pub struct Upstream {
    /// The engine: host:port, a URL, or unix:/path/to.sock
    #[arg(long = "upstream", global = true, value_name = "ADDRESS", value_parser = Quiet(Address::parse))]
    #[arg(default_value = "http://127.0.0.1:8000/metrics")]
    pub address: Address,

    /// A further server whose families are appended; gets no credentials; repeatable
    #[arg(long = "upstream.extra", global = true, value_name = "NAME=ADDRESS", value_parser = Quiet(Extra::parse), value_delimiter = ',')]
    pub extras: Vec<Extra>,

    /// Longest wait for each of them; a scrape's own timeout can shorten it
    #[arg(long = "upstream.timeout", global = true, value_name = "TIME", value_parser = units::duration)]
    #[arg(default_value = "10s")]
    pub timeout: Duration,

    /// Scrapes within this time after a fetch share it; 0s fetches for every scrape
    #[arg(long = "upstream.min-interval", global = true, value_name = "TIME", value_parser = units::duration_or_zero)]
    #[arg(default_value = "0s")]
    pub min_interval: Duration,

    /// Largest body, packed and unpacked: of the engine, and of all extras together
    #[arg(long = "upstream.max-bytes", global = true, value_name = "SIZE", value_parser = units::size)]
    #[arg(default_value = "64MiB")]
    pub max_bytes: u64,

    /// File with a bearer token, read for every fetch
    #[arg(long = "upstream.bearer-token-file", global = true, value_name = "FILE", conflicts_with = "basic_auth_file")]
    pub bearer_token_file: Option<PathBuf>,

    /// File with user:password, read for every fetch
    #[arg(long = "upstream.basic-auth-file", global = true, value_name = "FILE")]
    pub basic_auth_file: Option<PathBuf>,

    /// Certificates (PEM) to trust instead of the system's
    #[arg(long = "upstream.ca-file", global = true, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,

    /// Believe whatever certificate an https upstream shows; refused together with credentials
    #[arg(long = "upstream.insecure-skip-verify", global = true, value_parser = BoolishValueParser::new())]
    pub insecure_skip_verify: bool,

    /// Client certificate (PEM), read for every handshake
    #[arg(long = "upstream.cert-file", global = true, value_name = "FILE", requires = "key_file")]
    pub cert_file: Option<PathBuf>,

    /// Key (PEM) of the client certificate
    #[arg(long = "upstream.key-file", global = true, value_name = "FILE", requires = "cert_file")]
    pub key_file: Option<PathBuf>,

    /// Name in the upstream's certificate, where the address has another
    #[arg(long = "upstream.server-name", global = true, value_name = "NAME", value_parser = server_name)]
    pub server_name: Option<ServerName<'static>>,
}

/// `NAME=ADDRESS` of an extra upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extra {
    /// Value of the `upstream` label.
    pub name: String,
    /// Where it is.
    pub address: Address,
}

/// Why a text is no extra upstream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ExtraError {
    #[error("has no name; write NAME=ADDRESS, for example lmcache=127.0.0.1:8080")]
    Unnamed,
    #[error("has a name that is not of a-z, 0-9, _ and -")]
    Name,
    #[error("is named {MAIN}, which is the name of the engine's page; choose another")]
    Main,
    #[error("{0}")]
    Address(#[from] AddressError),
}

impl Extra {
    fn parse(text: &str) -> Result<Extra, ExtraError> {
        let (name, address) = text.split_once('=').ok_or(ExtraError::Unnamed)?;
        let name = name.trim();
        match name {
            "" => Err(ExtraError::Unnamed),
            MAIN => Err(ExtraError::Main),
            _ if !name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-')) => Err(ExtraError::Name),
            _ => Ok(Extra { name: name.to_owned(), address: Address::parse(address)? }),
        }
    }
}

impl Upstream {
    /// What to fetch as the main page, and within which limits.
    pub fn main(&self) -> Options {
        let bearer = self.bearer_token_file.clone().map(SecretFile::Bearer);
        let identity = self.cert_file.clone().zip(self.key_file.clone());
        Options {
            secret: bearer.or_else(|| self.basic_auth_file.clone().map(SecretFile::Basic)),
            tls: TlsOptions {
                identity: identity.map(|(certificate, key)| IdentityFiles { certificate, key }),
                server_name: self.server_name.clone(),
                ..self.trust()
            },
            ..self.without_credentials(&self.address)
        }
    }

    /// The extras by name. Credentials and the certificate's name are the main upstream's alone. Each may send its part of
    /// what all may send together, so none takes the room of another, and what a scrape can cost does not grow with them.
    pub fn extras(&self) -> Vec<(String, Options)> {
        let part = |extra: &Extra| {
            let options = self.without_credentials(&extra.address);
            Options { max_bytes: options.max_bytes / self.extras.len(), ..options }
        };
        self.extras.iter().map(|extra| (extra.name.clone(), part(extra))).collect()
    }

    /// Fetches from an address that is shown nothing.
    pub fn without_credentials(&self, address: &Address) -> Options {
        Options {
            address: address.clone(),
            timeout: self.timeout,
            max_bytes: usize::try_from(self.max_bytes).unwrap_or(usize::MAX),
            min_interval: self.min_interval,
            secret: None,
            tls: self.trust(),
        }
    }

    /// Whom to believe.
    fn trust(&self) -> TlsOptions {
        TlsOptions { ca_file: self.ca_file.clone(), skip_verify: self.insecure_skip_verify, ..TlsOptions::default() }
    }

    /// A flag that gives away a secret to whoever answers, together with the one that lets anybody answer.
    pub(super) fn unsafe_beside(&self, prometheus_token: Option<&PathBuf>) -> Option<String> {
        let secrets = [
            ("--upstream.bearer-token-file", self.bearer_token_file.as_ref()),
            ("--upstream.basic-auth-file", self.basic_auth_file.as_ref()),
            ("--upstream.cert-file", self.cert_file.as_ref()),
            ("--prometheus.bearer-token-file", prometheus_token),
        ];
        let (flag, _) = secrets.into_iter().find(|(_, file)| self.insecure_skip_verify && file.is_some())?;
        Some(format!(
            "--upstream.insecure-skip-verify cannot be used with {flag}: whoever answers would get the credentials. Name the \
             certificate or its authority with --upstream.ca-file instead"
        ))
    }

    /// Flags about TLS that do nothing, since nobody is asked with TLS whom they are about.
    pub fn idle(&self) -> Vec<&'static str> {
        let is_tls = |address: &Address| matches!(address.endpoint, Endpoint::Tcp { tls: true, .. });
        let main = is_tls(&self.address);
        let any = main || self.extras.iter().any(|extra| is_tls(&extra.address));
        let flags = [
            ("--upstream.insecure-skip-verify", self.insecure_skip_verify, any),
            ("--upstream.ca-file", self.ca_file.is_some(), any),
            ("--upstream.cert-file and --upstream.key-file", self.cert_file.is_some(), main),
            ("--upstream.server-name", self.server_name.is_some(), main),
        ];
        flags.into_iter().filter(|(_, given, used)| *given && !used).map(|(flag, ..)| flag).collect()
    }

    /// An upstream that is this exporter's own listener. The demo has a main upstream of its own.
    pub(super) fn of_itself(&self, listen: &[Listen], is_demo: bool) -> Option<String> {
        let main = (!is_demo).then_some(("--upstream", &self.address));
        let extras = self.extras.iter().map(|extra| ("--upstream.extra", &extra.address));
        main.into_iter().chain(extras).find_map(|(flag, address)| {
            let Endpoint::Tcp { host, port, .. } = &address.endpoint else { return None };
            let own = listen.iter().find(|listen| listen.answers(host, *port))?;
            Some(format!(
                "{flag} {address} is where this exporter itself listens (--web.listen-address {own}): it would ask itself. \
                 Give the engine's address, or listen on another port"
            ))
        })
    }

    /// A name that two extras have.
    pub(super) fn twice(&self) -> Option<&str> {
        let mut seen = std::collections::BTreeSet::new();
        self.extras.iter().map(|extra| extra.name.as_str()).find(|name| !seen.insert(*name))
    }
}

fn server_name(text: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(text.trim().to_owned()).map_err(|_| "is neither a host name nor an IP address".to_owned())
}

/// Reads an address. clap would repeat a refused value, which may hold a password; this does not.
#[derive(Clone)]
pub(super) struct Quiet<T, E>(pub(super) fn(&str) -> Result<T, E>);

impl<T, E> TypedValueParser for Quiet<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: std::fmt::Display + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &clap::Command, arg: Option<&Arg>, value: &std::ffi::OsStr) -> Result<T, clap::Error> {
        (self.0)(&value.to_string_lossy()).map_err(|error| {
            let flag = arg.and_then(Arg::get_long).unwrap_or("upstream");
            clap::Error::raw(ErrorKind::ValueValidation, format!("the address after --{flag} {error}"))
                .with_cmd(command)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_has_a_name_and_an_address() {
        let extra = Extra::parse("lmcache-0_a=http://[::1]:6999/m?a=b").unwrap();
        assert_eq!(extra.name, "lmcache-0_a");
        assert_eq!(extra.address, Address::parse("http://[::1]:6999/m?a=b").unwrap());
        for (text, error) in [
            ("127.0.0.1:8080", ExtraError::Unnamed),
            ("=127.0.0.1:8080", ExtraError::Unnamed),
            ("main=127.0.0.1:8080", ExtraError::Main),
            ("LMCache=127.0.0.1:8080", ExtraError::Name),
            ("a b=127.0.0.1:8080", ExtraError::Name),
            ("http://h/m?a=b", ExtraError::Name),
            ("x=h", ExtraError::Address(AddressError::Port)),
            ("x=http://u:p@h", ExtraError::Address(AddressError::Credentials)),
        ] {
            assert_eq!(Extra::parse(text), Err(error), "{text}");
        }
    }
}
