//! A window of time as people write it: `2026-10-11T08:00:00Z..2026-10-11T10:00:00Z`, or `-2h..-1h`.

use std::time::{Duration, SystemTime};

use super::Column;
use crate::duration;

/// One end of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    At(SystemTime),
    Ago(Duration),
}

/// A window whose ends may be relative to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(Moment, Moment);

/// A window in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    /// Begin.
    pub from: f64,
    /// End.
    pub to: f64,
}

const HINT: &str = "write FROM..TO, each like 2026-10-11T08:00:00Z, -2h or now";

impl Span {
    /// From `FROM..TO`.
    ///
    /// # Errors
    /// A sentence that says what to write.
    pub fn parse(text: &str) -> Result<Span, String> {
        let (from, to) = text.split_once("..").ok_or_else(|| format!("is no window; {HINT}"))?;
        Ok(Span(moment(from)?, moment(to)?))
    }

    /// The window as seen at `now`.
    ///
    /// # Errors
    /// A sentence where it ends before it begins, or has not ended.
    pub fn at(self, now: SystemTime) -> Result<Window, String> {
        let second = |moment| match moment {
            Moment::At(time) => seconds(time),
            Moment::Ago(ago) => seconds(now) - ago.as_secs_f64(),
        };
        let window = Window { from: second(self.0), to: second(self.1) };
        if window.to <= window.from {
            return Err(format!("the window {} ends before it begins; {HINT}", window.text()));
        }
        if window.to > seconds(now) {
            return Err(format!("the window {} has not ended yet", window.text()));
        }
        Ok(window)
    }
}

fn moment(text: &str) -> Result<Moment, String> {
    let text = text.trim();
    if text == "now" {
        return Ok(Moment::Ago(Duration::ZERO));
    }
    if let Some(ago) = text.strip_prefix('-') {
        return duration::parse(ago).map(Moment::Ago).map_err(|error| format!("{text}: {error}; {HINT}"));
    }
    instant(text).map(Moment::At).ok_or_else(|| format!("{text:?} is no moment; {HINT}"))
}

/// RFC 3339 with `Z` or an offset such as `+02:00`.
fn instant(text: &str) -> Option<SystemTime> {
    let utc = |text: &str| humantime::parse_rfc3339(&format!("{text}Z")).ok();
    if let Some(bare) = text.strip_suffix(['Z', 'z']) {
        return utc(bare);
    }
    let (bare, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
    let (hours, minutes) = offset.get(1..)?.split_once(':')?;
    let ahead = Duration::from_secs(hours.parse::<u64>().ok()? * 3600 + minutes.parse::<u64>().ok()? * 60);
    match offset.as_bytes()[0] {
        b'+' => utc(bare)?.checked_sub(ahead),
        b'-' => utc(bare)?.checked_add(ahead),
        _ => None,
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A moment for people, to the second.
pub(super) fn rfc3339(seconds: f64) -> String {
    /// The last second of the year 9999.
    const LAST: f64 = 253_402_300_799.0;
    if !(0.0..=LAST).contains(&seconds) {
        return format!("{seconds} s after 1970");
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(seconds);
    humantime::format_rfc3339_seconds(time).to_string()
}

impl Window {
    /// Its length in seconds.
    pub fn length(&self) -> f64 {
        self.to - self.from
    }

    /// Its ends for people.
    pub fn text(&self) -> String {
        format!("{} to {}", rfc3339(self.from), rfc3339(self.to))
    }

    /// The heading of its column.
    pub fn column(&self, name: &str) -> Column {
        Column { name: name.to_owned(), from: Some(rfc3339(self.from)), to: Some(rfc3339(self.to)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-10-11T10:00:00Z.
    const NOW: u64 = 1_791_712_800;

    fn window(text: &str) -> Result<Window, String> {
        Span::parse(text)?.at(SystemTime::UNIX_EPOCH + Duration::from_secs(NOW))
    }

    #[test]
    fn moments_are_absolute_or_relative_to_now() {
        let now = NOW as f64;
        for (text, from, to) in [
            ("-2h..-1h", now - 7200.0, now - 3600.0),
            ("-30m..now", now - 1800.0, now),
            ("2026-10-11T08:00:00Z..2026-10-11T09:30:00Z", now - 7200.0, now - 1800.0),
            ("2026-10-11T10:00:00+02:00..2026-10-11T04:30:00-05:00", now - 7200.0, now - 1800.0),
            ("2026-10-11T08:00:00Z..-1h", now - 7200.0, now - 3600.0),
        ] {
            assert_eq!(window(text), Ok(Window { from, to }), "{text}");
        }
        let text = window("-2h..-1h").unwrap().text();
        assert_eq!(text, "2026-10-11T08:00:00Z to 2026-10-11T09:00:00Z");
    }

    #[test]
    fn a_moment_beyond_all_calendars_is_a_number() {
        assert_eq!(rfc3339(1_791_712_800.9), "2026-10-11T10:00:00Z");
        for seconds in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert!(rfc3339(seconds).ends_with(" s after 1970"), "{seconds}");
        }
    }

    #[test]
    fn what_is_no_window_is_said() {
        for text in ["-1h", "-1h..-2h", "now..-1h", "x..now", "-1..now", "-1h..2030-01-01T00:00:00Z", "2026-10-11..now"]
        {
            assert!(window(text).is_err(), "{text}");
        }
        for text in ["a+02:00..now", "+02:00..now", "ä:00..now", "..", "2026-10-11T08:00:00*02:00..now"] {
            assert!(Span::parse(text).unwrap_err().contains("FROM..TO"), "{text}");
        }
    }
}
