//! What the kernel says of our own process, read from `/proc/self` (`stat` and the list of `fd`). On a system
//! without it everything is unknown.
//!
//! It has nothing to do with the host collectors: `--path.procfs` may show another box's tree, we are still here.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

/// Facts of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessFacts {
    /// CPU seconds used in user and kernel mode.
    pub cpu_seconds: Option<f64>,
    /// Resident memory in bytes.
    pub resident_bytes: Option<f64>,
    /// Threads.
    pub threads: Option<f64>,
    /// Open file descriptors.
    pub open_fds: Option<f64>,
}

/// Sizes in which the kernel counts.
#[derive(Clone, Copy, Debug)]
struct Units {
    ticks_per_second: f64,
    page_bytes: f64,
}

/// Our own process. The file stays open, since that saves a scrape eight of nine system calls.
pub struct Process {
    stat: Option<File>,
    units: Units,
}

impl Process {
    /// This process.
    pub fn own() -> Process {
        Process {
            stat: File::open("/proc/self/stat").ok(),
            units: Units {
                ticks_per_second: rustix::param::clock_ticks_per_second() as f64,
                page_bytes: rustix::param::page_size() as f64,
            },
        }
    }

    /// Its facts as they are now.
    pub fn read(&self) -> ProcessFacts {
        let mut text = [0; LONGEST];
        let length = self.stat.as_ref().and_then(|stat| stat.read_at(&mut text, 0).ok()).unwrap_or(0);
        let stat = String::from_utf8_lossy(&text[..length]);
        ProcessFacts { open_fds: open_fds(), ..understand(&stat, self.units).unwrap_or_default() }
    }
}

/// More than the kernel writes: some fifty numbers.
const LONGEST: usize = 2048;

/// Linux 6.2 and newer say it as the size of the directory; a listing takes a fifteenth of the CPU of a small scrape.
fn open_fds() -> Option<f64> {
    let said = fs::metadata("/proc/self/fd").ok().map(|directory| directory.len() as f64);
    said.filter(|descriptors| *descriptors > 0.0).or_else(listed_fds)
}

fn listed_fds() -> Option<f64> {
    // One of them is the descriptor of this very listing.
    fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1) as f64)
}

/// Fields are counted from behind the command's name, which may hold blanks and brackets (proc_pid_stat(5)).
fn understand(stat: &str, units: Units) -> Option<ProcessFacts> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The first field behind the name is number 3 in the manual.
    let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok());
    Some(ProcessFacts {
        cpu_seconds: Some((field(14)? + field(15)?) / units.ticks_per_second),
        threads: field(20),
        resident_bytes: field(24).map(|pages| pages * units.page_bytes),
        open_fds: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNITS: Units = Units { ticks_per_second: 100.0, page_bytes: 4096.0 };

    #[test]
    fn a_name_with_blanks_and_brackets_shifts_nothing() {
        let stat =
            "42 (a ) (b) S 1 42 42 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 1000 99999999 1500 18446744073709551615";
        let facts = understand(stat, UNITS).unwrap();
        assert_eq!(facts.cpu_seconds, Some(3.0));
        assert_eq!(facts.threads, Some(3.0));
        assert_eq!(facts.resident_bytes, Some(6_144_000.0));
    }

    #[test]
    fn each_reading_is_of_now() {
        let process = Process::own();
        let before = process.read();
        let spins = || process.read().cpu_seconds > before.cpu_seconds;
        assert!((0..1_000_000).any(|_| spins()), "the CPU seconds stand still");
        assert!(before.resident_bytes.is_some_and(|bytes| bytes > 0.0) && before.threads.is_some());
    }

    #[test]
    fn descriptors_are_counted_alike_in_both_ways() {
        // Other tests open and close files meanwhile.
        let alike = || open_fds().is_some_and(|said| listed_fds() == Some(said));
        assert!((0..10_000).any(|_| alike()));
    }

    #[test]
    fn what_cannot_be_read_is_unknown() {
        assert_eq!(understand("", UNITS), None);
        assert_eq!(understand("1 (x) S 1", UNITS), None);
    }
}
