//! How reading the web configuration again went: two families, and what somebody has to be told of.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use crate::family::{Desc, Family};
use crate::notice::{Notice, kinds};

const SUCCESS: Desc = Desc::gauge(
    "kvtier_config_reload_success",
    "1 if the web configuration as its files are now is in force, 0 if it was refused and the one before stays in force. Absent without --web.config.file.",
);
const TIMESTAMP: Desc = Desc::gauge(
    "kvtier_config_reload_success_timestamp_seconds",
    "When the web configuration that is in force was read, in seconds since 1970. Absent without --web.config.file.",
);

/// Both families.
pub const DESCS: [Desc; 2] = [SUCCESS, TIMESTAMP];

/// How it went last.
#[derive(Clone, Debug, PartialEq)]
pub struct Reload {
    /// When what is in force was read, in seconds since 1970.
    pub at: f64,
    /// Why the files as they are now are not in force: file, line, key, and never a value.
    pub refused: Option<String>,
}

impl Reload {
    fn families(&self) -> Vec<Family> {
        let success = if self.refused.is_none() { 1.0 } else { 0.0 };
        vec![Family::single(SUCCESS, success), Family::single(TIMESTAMP, self.at)]
    }
}

/// The last reload, for whoever tells of it.
#[derive(Clone, Debug)]
pub struct Reloads(Arc<Mutex<Reload>>);

impl Reloads {
    /// It was read for the first time.
    pub(super) fn begin() -> Reloads {
        Reloads(Arc::new(Mutex::new(Reload { at: now(), refused: None })))
    }

    pub(super) fn succeeded(&self) {
        self.set(Reload { at: now(), refused: None });
    }

    pub(super) fn refused(&self, why: String) {
        self.set(Reload { refused: Some(why), ..self.read() });
    }

    fn set(&self, reload: Reload) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = reload;
    }

    /// How it went last.
    pub fn read(&self) -> Reload {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What somebody has to be told of, while what is there now is not in force.
    pub fn notice(&self) -> Option<Notice> {
        self.read().refused.map(|why| Notice::new(&kinds::CONFIG_RELOAD_REFUSED, "", why))
    }

    /// The families about it.
    pub fn families(&self) -> Vec<Family> {
        self.read().families()
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;

    #[test]
    fn a_refused_file_leaves_the_time_of_what_is_in_force() {
        let text = encode(&Reload { at: 5.5, refused: Some("no".to_owned()) }.families());
        assert!(text.contains("\nkvtier_config_reload_success 0\n"), "{text}");
        assert!(text.contains("\nkvtier_config_reload_success_timestamp_seconds 5.5\n"), "{text}");
        assert!(encode(&Reload { at: 5.5, refused: None }.families()).contains("\nkvtier_config_reload_success 1\n"));
    }
}
