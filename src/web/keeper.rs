//! What is in force now, and the thread that looks after it: every two seconds it looks whether one of the files
//! has changed, far from any request, since a file system may block.
//!
//! A bad new file changes nothing but the log and `/debug`. Nor does one that would take protection away: an
//! editor that empties a file before it writes must not open the door.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{io, thread};

use hyper::header::{HeaderName, HeaderValue};
use tokio_rustls::TlsAcceptor;

use super::config::Config;
use super::files::Files;
use super::tls;
use super::users::Users;
use super::yaml::Fault;

/// How often the files are looked at.
const INTERVAL: Duration = Duration::from_secs(2);

/// Why there is no web configuration.
#[derive(Debug, thiserror::Error)]
#[error("--web.config.file {} {why}", path.display())]
pub struct WebError {
    path: PathBuf,
    why: Why,
}

#[derive(Debug, thiserror::Error)]
enum Why {
    #[error("cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("is not UTF-8 text")]
    Binary,
    #[error("{0}")]
    Wrong(#[from] Fault),
    #[error("cannot be used: the system gives no random bytes")]
    NoRandomness,
    #[error("would take {0} away; that needs a restart")]
    Weaker(&'static str),
    #[error("cannot be looked after: {0}")]
    NoThread(io::Error),
}

/// What a configuration puts in force.
pub struct Protection {
    /// Speaks TLS, where it is wanted.
    pub tls: Option<TlsAcceptor>,
    /// Who may come in.
    pub users: Users,
    /// Further header lines of every answer.
    pub headers: Vec<(HeaderName, HeaderValue)>,
}

/// Keeps a configuration in force and up to date, for as long as it lives.
pub struct Keeper {
    path: Option<PathBuf>,
    state: Arc<Mutex<State>>,
}

struct State {
    protection: Arc<Protection>,
    /// Why the file as it is now is not in force.
    trouble: Option<String>,
}

impl Keeper {
    /// Reads the file and starts to look after it. Without one, everything is served to everybody.
    ///
    /// # Errors
    /// [`WebError`], naming file, line and key or user.
    pub fn open(path: Option<&Path>) -> Result<Keeper, WebError> {
        let mut files = Files::default();
        let refuse = |why| WebError { path: path.unwrap_or(Path::new("")).to_owned(), why };
        let protection = match path {
            None => protection(&Config::default(), &mut files),
            Some(path) => load(path, &mut files),
        };
        let protection = Arc::new(protection.map_err(refuse)?);
        let keeper =
            Keeper { path: path.map(Path::to_owned), state: Arc::new(Mutex::new(State { protection, trouble: None })) };
        if let Some(path) = path {
            let (path, state) = (path.to_owned(), Arc::downgrade(&keeper.state));
            let look = move || look_after(&path, &state, files);
            let thread = thread::Builder::new().name("web-config".to_owned()).spawn(look);
            thread.map_err(|error| refuse(Why::NoThread(error)))?;
        }
        Ok(keeper)
    }

    /// What is in force at this moment.
    pub fn protection(&self) -> Arc<Protection> {
        Arc::clone(&lock(&self.state).protection)
    }

    /// What `/debug` says of it. Nothing without a file.
    pub fn explain(&self) -> String {
        let Some(path) = &self.path else { return String::new() };
        let state = lock(&self.state);
        let tls = if state.protection.tls.is_some() { "on" } else { "off" };
        let mut text = format!(
            "\nweb configuration {}\n  TLS      {tls}\n  users    {}\n",
            path.display(),
            state.protection.users.count()
        );
        if let Some(trouble) = &state.trouble {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  trouble  {trouble}; what was read before stays in force");
        }
        text
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn load(path: &Path, files: &mut Files) -> Result<Protection, Why> {
    let text = String::from_utf8(files.read(path)?).map_err(|_| Why::Binary)?;
    let config = Config::read(&text, path.parent().unwrap_or(Path::new("")))?;
    let protection = protection(&config, files)?;
    for remark in &config.remarks {
        tracing::warn!(file = %path.display(), "the web configuration: {remark}");
    }
    Ok(protection)
}

fn protection(config: &Config, files: &mut Files) -> Result<Protection, Why> {
    let tls = config.tls.as_ref().map(|tls| tls::server(tls, files)).transpose()?;
    Ok(Protection {
        tls: tls.map(TlsAcceptor::from),
        users: Users::new(config.users.clone()).map_err(|_| Why::NoRandomness)?,
        headers: config.headers.clone(),
    })
}

fn look_after(path: &Path, state: &Weak<Mutex<State>>, mut files: Files) {
    loop {
        thread::sleep(INTERVAL);
        let Some(state) = state.upgrade() else { return };
        if files.changed() {
            files = Files::default();
            let found = load(path, &mut files);
            take(path, &state, found);
        }
    }
}

fn take(path: &Path, state: &Mutex<State>, found: Result<Protection, Why>) {
    let mut state = lock(state);
    match found.and_then(|found| no_weaker(found, &state.protection)) {
        Ok(protection) => {
            tracing::info!(file = %path.display(), "the web configuration was read again and is in force");
            *state = State { protection: Arc::new(protection), trouble: None };
        }
        Err(why) => {
            let trouble = WebError { path: path.to_owned(), why }.to_string();
            tracing::warn!("{trouble}; what was read before stays in force");
            state.trouble = Some(trouble);
        }
    }
}

fn no_weaker(found: Protection, before: &Protection) -> Result<Protection, Why> {
    if before.tls.is_some() && found.tls.is_none() {
        return Err(Why::Weaker("TLS"));
    }
    if before.users.count() > 0 && found.users.count() == 0 {
        return Err(Why::Weaker("the users"));
    }
    Ok(found)
}
