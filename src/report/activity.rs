//! Whether anything happened that a report could tell of.

/// What was served, looked up and copied since an engine's start, between two pages, or in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Something was.
    Some,
    /// Nothing was.
    None,
    /// Nothing counts it.
    Uncounted,
}

impl Activity {
    /// From all counts of it that are known.
    pub fn of(counts: impl IntoIterator<Item = f64>) -> Activity {
        counts.into_iter().fold(Activity::Uncounted, |so_far, count| match so_far {
            _ if count > 0.0 => Activity::Some,
            Activity::Uncounted => Activity::None,
            known => known,
        })
    }

    /// Whether there is something to tell.
    pub fn is_some(self) -> bool {
        self == Activity::Some
    }

    /// Why there is no data, where there is none: words that a time may follow.
    pub fn why_no_data(self) -> Option<&'static str> {
        match self {
            Activity::Some => None,
            Activity::None => Some("nothing was served, looked up or copied"),
            Activity::Uncounted => Some("nothing here counts what was served, looked up or copied"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_count_above_0_is_enough_and_none_at_all_says_nothing() {
        assert_eq!(Activity::of([]), Activity::Uncounted);
        assert_eq!(Activity::of([0.0, 0.0]), Activity::None);
        assert_eq!(Activity::of([0.0, 2.0, 0.0]), Activity::Some);
    }
}
