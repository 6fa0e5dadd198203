//! What is in force now, and the thread that looks after it: every two seconds it looks whether one of the files
//! has changed, far from any request, since a file system may block. SIGHUP has it read them at once.
//!
//! A bad new file changes nothing but metrics, the log and `/debug`. Nor does one that would ask for less: an editor that is
//! caught in the middle of writing must not open the door.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use std::{io, thread};

use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::config::Config;
use super::demands::Demands;
use super::files::Files;
use super::hashing::Hashing;
use super::reload::Reloads;
use super::tls;
use super::users::Users;
use super::yaml::Fault;
use crate::plain;
use crate::redact::Lines;

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
    #[error("cannot be read: {}", plain::io(.0))]
    Unreadable(#[from] io::Error),
    #[error("is not UTF-8 text")]
    Binary,
    #[error("{0}")]
    Wrong(#[from] Fault),
    #[error("cannot be used: the system gives no random bytes")]
    NoRandomness,
    #[error("would {0}; that needs a restart")]
    Weaker(&'static str),
    #[error("cannot be looked after: {}", plain::io(.0))]
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
    demands: Demands,
    remarks: Vec<String>,
}

impl Protection {
    fn remark(&self, file: &Path) {
        for remark in &self.remarks {
            tracing::warn!(file = %file.display(), "the web configuration: {remark}");
        }
    }

    /// Whether a connection that was made with this TLS would be made in the same way now.
    fn speaks(&self, tls: Option<&TlsAcceptor>) -> bool {
        match (&self.tls, tls) {
            (None, None) => true,
            (Some(now), Some(then)) => Arc::ptr_eq(now.config(), then.config()),
            _ => false,
        }
    }
}

/// In force, and told to whoever waits for a change.
type InForce = Arc<watch::Sender<Arc<Protection>>>;

/// Keeps a configuration in force and up to date, for as long as it lives.
pub struct Keeper {
    in_force: InForce,
    file: Option<Watched>,
}

/// The file, where there is one.
struct Watched {
    path: PathBuf,
    reloads: Reloads,
    again: mpsc::Sender<()>,
}

impl Keeper {
    /// Reads the file and starts to look after it. Without one, everything is served to everybody.
    ///
    /// # Errors
    /// [`WebError`], naming file, line and key or user.
    pub fn open(path: Option<&Path>) -> Result<Keeper, WebError> {
        let refuse = |why| WebError { path: path.unwrap_or(Path::new("")).to_owned(), why };
        let hashing = Arc::new(Hashing::new().map_err(|_| refuse(Why::NoRandomness))?);
        let mut files = Files::default();
        let nobody = Users::nobody(hashing);
        let protection = match path {
            None => protection(Config::default(), &mut files, &nobody),
            Some(path) => load(path, &mut files, &nobody).inspect(|protection| protection.remark(path)),
        };
        let in_force = Arc::new(watch::Sender::new(Arc::new(protection.map_err(refuse)?)));
        let file = path.map(|path| Watched::start(path, Arc::clone(&in_force), files)).transpose().map_err(refuse)?;
        Ok(Keeper { in_force, file })
    }

    /// What is in force at this moment.
    pub fn protection(&self) -> Arc<Protection> {
        Arc::clone(&self.in_force.borrow())
    }

    /// Returns when connections that were made with this TLS have to end: what was asked of them is not what is asked now.
    pub async fn outdated(&self, tls: Option<&TlsAcceptor>) {
        // The sender lives as long as we do.
        drop(self.in_force.subscribe().wait_for(|now| !now.speaks(tls)).await);
    }

    /// Reads the files again, changed or not. `false` where there are none.
    pub fn read_again(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.again.send(()).is_ok())
    }

    /// How reading it again goes. None without a file.
    pub fn reloads(&self) -> Option<Reloads> {
        self.file.as_ref().map(|file| file.reloads.clone())
    }

    /// What `/debug` says of it. Nothing without a file.
    pub fn explain(&self) -> String {
        let Some(file) = &self.file else { return String::new() };
        let protection = self.protection();
        let tls = if protection.tls.is_some() { "on" } else { "off" };
        let mut text = Lines::default();
        text.gap();
        text.line(format_args!("web configuration {}", file.path.display()));
        text.line(format_args!("  TLS      {tls}"));
        text.line(format_args!("  users    {}", protection.users.count()));
        if let Some(why) = file.reloads.read().refused {
            text.line(format_args!("  trouble  {why}; what was read before stays in force"));
        }
        text.text()
    }
}

impl Watched {
    fn start(path: &Path, in_force: InForce, files: Files) -> Result<Watched, Why> {
        let (again, asked) = mpsc::channel();
        let watched = Watched { path: path.to_owned(), reloads: Reloads::begin(), again };
        let (path, reloads) = (path.to_owned(), watched.reloads.clone());
        let look = move || look_after(&path, &in_force, &reloads, &asked, files);
        thread::Builder::new().name("web-config".to_owned()).spawn(look).map_err(Why::NoThread)?;
        Ok(watched)
    }
}

fn load(path: &Path, files: &mut Files, before: &Users) -> Result<Protection, Why> {
    let text = String::from_utf8(files.read(path)?).map_err(|_| Why::Binary)?;
    let config = Config::read(&text, path.parent().unwrap_or(Path::new("")))?;
    protection(config, files, before)
}

fn protection(config: Config, files: &mut Files, before: &Users) -> Result<Protection, Why> {
    let tls = config.tls.as_ref().map(|tls| tls::server(tls, files)).transpose()?;
    Ok(Protection {
        tls: tls.map(TlsAcceptor::from),
        demands: Demands::of(&config),
        users: before.followed_by(config.users),
        headers: config.headers,
        remarks: config.remarks,
    })
}

fn look_after(path: &Path, in_force: &InForce, reloads: &Reloads, asked: &Receiver<()>, mut files: Files) {
    loop {
        let asked = match asked.recv_timeout(INTERVAL) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if asked || files.changed() {
            files = Files::default();
            let before = Arc::clone(&in_force.borrow());
            let found = load(path, &mut files, &before.users);
            match found.and_then(|found| no_weaker(found, &before)) {
                Ok(protection) => {
                    protection.remark(path);
                    in_force.send_replace(Arc::new(protection));
                    reloads.succeeded();
                    tracing::info!(file = %path.display(), "the web configuration was read again and is in force");
                }
                Err(why) => {
                    let why = WebError { path: path.to_owned(), why }.to_string();
                    reloads.refused(why.clone());
                    tracing::warn!("{why}; what was read before stays in force");
                }
            }
        }
    }
}

fn no_weaker(found: Protection, before: &Protection) -> Result<Protection, Why> {
    match found.demands.lack(&before.demands) {
        None => Ok(found),
        Some(what) => Err(Why::Weaker(what)),
    }
}
