//! `check`'s look at LMCache's configuration: in its file, or at its internal server.

use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::PATIENCE;
use crate::advise::Finding;
use crate::advise::lmcache::Config;
use crate::aside::within;
use crate::cli::{Check, Cli};
use crate::files;
use crate::upstream::{Address, Client, Role, Unreached, UpstreamError};

/// Far more than any configuration of LMCache.
const LARGEST_CONFIG: u64 = 1 << 20;

/// What came of it.
#[derive(Default)]
pub(super) struct Look {
    pub(super) config: Option<Config>,
    /// The server that was asked, fit for people.
    pub(super) asked: Option<String>,
    /// Why the server did not tell.
    pub(super) finding: Option<Finding>,
}

/// Looks where the flags say. A file that cannot be read ends the command; a server that does not tell is a finding.
pub(super) async fn look(cli: &Cli, flags: &Check) -> Result<Look> {
    if let Some(path) = &flags.config {
        let shown = path.display().to_string();
        let text = read(path.clone()).await.with_context(|| format!("cannot read --lmcache.config {shown}"))?;
        let config = Config::from_yaml(&text, &shown).map_err(anyhow::Error::msg)?;
        return Ok(Look { config: Some(config), ..Look::default() });
    }
    let Some(address) = &flags.url else { return Ok(Look::default()) };
    // Without a path an address means its metrics page.
    let path = if address.path == "/metrics" { "/conf".to_owned() } else { address.path.clone() };
    let address = Address { path: path.clone(), ..address.clone() };
    let shown = address.to_string();
    let client = Client::open(cli.upstream.without_credentials(&address)).await?;
    let told = match client.fetch_other(&path).await {
        Ok(body) => Config::from_json(&body, &shown).map_err(another_server),
        Err(error) => Err(silent(&shown, &error)),
    };
    let (config, finding) = told.map_or_else(|finding| (None, Some(finding)), |config| (Some(config), None));
    Ok(Look { config, asked: Some(shown), finding })
}

/// Its text; also that of a pipe.
async fn read(path: PathBuf) -> io::Result<String> {
    let hangs = || io::Error::other(format!("nothing came within {} s", PATIENCE.as_secs()));
    let read = within(PATIENCE, move || files::read_once(&path, LARGEST_CONFIG)).await;
    String::from_utf8(read.ok_or_else(hangs)??).map_err(|_| io::Error::other("it is no UTF-8 text"))
}

const NOT_CHECKED: &str = "LMCache's configuration could not be checked.";
const NOT_SERVED: &str = "LMCache's configuration could not be checked. Its internal server is off unless \
                          internal_api_server_enabled is true, and gone where LMCache did not start.";
const ANOTHER: &str = "Give the address of LMCache's internal server after --lmcache.url, such as 127.0.0.1:7000";

/// Something answers, and does not tell a configuration of LMCache.
fn another_server(seen: String) -> Finding {
    unreadable(seen, NOT_CHECKED, ANOTHER)
}

fn silent(shown: &str, error: &UpstreamError) -> Finding {
    let seen = format!("{shown} {}.", error.seen());
    match error {
        UpstreamError::Connect(Unreached::Refused) => {
            unreadable(seen, NOT_SERVED, "Look for \"LMCache\" in the engine's log")
        }
        UpstreamError::Auth { .. } => {
            unreadable(seen, NOT_CHECKED, "It is asked without credentials: let it answer without")
        }
        error if error.client_certificate().is_some() => {
            unreadable(seen, NOT_CHECKED, "It is shown no client certificate: let it answer without")
        }
        UpstreamError::NotHttp => another_server(seen),
        UpstreamError::Status { code: 400..=428 | 430..=499, .. } if !error.speaks_tls() => another_server(seen),
        // A server beside the engine's, as an extra is.
        error => {
            let remedy = error.remedy(Role::Extra).replace("--upstream.extra", "--lmcache.url");
            unreadable(seen, NOT_CHECKED, &remedy)
        }
    }
}

/// `remedy` comes without its full stop.
fn unreadable(seen: String, why: &str, remedy: &str) -> Finding {
    let action = format!("{remedy}. Or give the file with --lmcache.config instead.");
    Finding::new("lmcache-conf-unreadable", seen, why, action)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_do_fits_the_cause_and_names_no_flag_of_an_upstream() {
        let said = |error| silent("http://c/conf", &error).text();
        let status = |code| UpstreamError::Status { code, excerpt: String::new() };
        let of_upstreams = ["--upstream ", "--upstream.extra", "--upstream."];
        for (error, action) in [
            (UpstreamError::SpeaksTls, "Write https:// in place of http:// after --lmcache.url. Or give the file"),
            (status(497), "Write https:// in place of http:// after --lmcache.url."),
            (status(404), "such as 127.0.0.1:7000. Or give the file with --lmcache.config instead."),
            (status(503), "it is still starting: look there first."),
            (UpstreamError::NotHttp, "such as 127.0.0.1:7000."),
            (UpstreamError::Auth { code: 401, excerpt: String::new() }, "let it answer without."),
            (UpstreamError::Redirect("away".into()), "Write the final address after --lmcache.url."),
            (UpstreamError::Connect(Unreached::Refused), "Look for \"LMCache\" in the engine's log."),
        ] {
            let text = said(error).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(action), "{text}");
            assert!(!of_upstreams.iter().any(|flag| text.contains(flag)), "{text}");
        }
    }
}
