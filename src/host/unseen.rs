//! What should be seen and cannot be, with its cause: the log, `/debug` and `check` say it in the same words, and
//! `check` has a remedy for each cause.

use std::fmt;

/// What the collectors cannot see.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Unseen {
    /// Why the GPU driver does not answer though it is here: a sentence.
    pub gpu_driver: Option<String>,
    /// GPUs that the driver lists, or listed since the start, and that cannot be read.
    pub gpus: Vec<SilentGpu>,
    /// GPUs and MIG slices that answer and do not tell their memory.
    pub memory: Vec<UntoldMemory>,
    /// Why it is not known whether a process maps the tier files that no known process maps.
    pub processes: Option<Hidden>,
}

/// A GPU that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentGpu {
    /// Which one, for people: its number, and its name and UUID where they are known.
    pub who: String,
    /// The cause.
    pub why: Silence,
}

/// Why a GPU cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The driver lists it, and a call about it fails: in the driver's words.
    Fails(String),
    /// The driver lists fewer GPUs than it did.
    NotListed,
    /// The driver lists it, and this program may not open it.
    NoPermission,
}

/// A GPU that does not tell its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntoldMemory {
    /// Its `gpu` label.
    pub gpu: String,
    /// Which one, for people.
    pub who: String,
    /// The cause.
    pub why: NoMemory,
}

/// Why the memory of a GPU is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoMemory {
    /// The driver has no such figure for it.
    NotSupported,
    /// The driver answers with a total of 0, or with the number that stands for "not available".
    ToldAsNothing,
    /// The driver's figures cannot all be true.
    Contradiction,
    /// It shares the host's memory, and that is unknown.
    HostUnknown,
    /// This program may not ask.
    NoPermission,
    /// It is cut into MIG slices, of which this program is given none, and the whole may not be asked.
    NoSlice,
    /// The driver is older than the call.
    OldDriver,
    /// The call failed: in the driver's words.
    Fails(String),
}

/// Why not all processes are seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// One that is listed may not be looked into.
    Process {
        /// Its number.
        pid: u32,
        /// Its name; empty where it has ended meanwhile.
        name: String,
        /// Its user.
        owner: Option<u32>,
        /// The user that this program runs as.
        ours: u32,
        /// The kernel's words.
        error: String,
    },
    /// The process file system is mounted so that it hides the processes of others.
    ByMount {
        /// Where it is mounted.
        procfs: String,
        /// The user that this program runs as.
        ours: u32,
    },
    /// The process file system shows the processes of one namespace only.
    OtherNamespace {
        /// Where it is mounted.
        procfs: String,
    },
    /// It cannot be listed at all: a sentence.
    NoProcfs(String),
}

impl Unseen {
    /// Takes over what another collector cannot see.
    pub(super) fn absorb(&mut self, other: &Unseen) {
        self.gpu_driver = self.gpu_driver.take().or_else(|| other.gpu_driver.clone());
        self.gpus.extend_from_slice(&other.gpus);
        self.memory.extend_from_slice(&other.memory);
        self.processes = self.processes.take().or_else(|| other.processes.clone());
    }

    /// What was there and is lost: sentences that the log warns with.
    pub(super) fn warnings(&self) -> impl Iterator<Item = String> {
        self.gpus.iter().map(ToString::to_string)
    }

    /// What is not told: sentences.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let processes =
            self.processes.iter().map(|why| format!("whether a process maps some tier files is unknown: {why}"));
        // A GPU that fails is warned of already.
        let memory = self.memory.iter().filter(|untold| !matches!(untold.why, NoMemory::Fails(_)));
        memory.map(ToString::to_string).chain(processes)
    }
}

impl fmt::Display for SilentGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be read: ", self.who)?;
        match &self.why {
            Silence::Fails(why) => f.write_str(why),
            Silence::NotListed => f.write_str("the driver listed it before and lists it no more"),
            Silence::NoPermission => f.write_str("this program may not open it"),
        }
    }
}

impl fmt::Display for UntoldMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of {} is unknown: {}", self.who, self.why)?;
        match self.why {
            NoMemory::NotSupported | NoMemory::ToldAsNothing => {
                f.write_str("; if it shares one memory with the host, say --gpu.unified")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NoMemory::NotSupported => "the driver does not support the call on it",
            NoMemory::ToldAsNothing => "the driver answers with a total of nothing",
            NoMemory::Contradiction => "the driver's figures contradict each other",
            NoMemory::HostUnknown => "the driver does not tell, and the host's memory is unknown",
            NoMemory::NoPermission => "this program may not ask for it",
            NoMemory::NoSlice => "it is cut into MIG slices, and none of them was given to this program",
            NoMemory::OldDriver => "this driver is too old to know the call",
            NoMemory::Fails(why) => why,
        })
    }
}

impl fmt::Display for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hidden::Process { pid, name, owner, ours, error } => {
                match name.as_str() {
                    "" => write!(f, "process {pid}, which has ended meanwhile,")?,
                    name => write!(f, "process {pid} ({name})")?,
                }
                if let Some(owner) = owner.filter(|owner| owner != ours) {
                    write!(f, " of user {owner}")?;
                }
                write!(f, " cannot be looked into by user {ours}: {error}")
            }
            Hidden::ByMount { procfs, ours } => {
                write!(f, "{procfs} is mounted with hidepid and hides other users' processes from user {ours}")
            }
            Hidden::OtherNamespace { procfs } => {
                write!(f, "{procfs} shows the processes of one PID namespace, not of the whole box")
            }
            Hidden::NoProcfs(why) => f.write_str(why),
        }
    }
}
