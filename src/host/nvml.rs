//! Asks the NVIDIA driver's library. Reading only: what the answers mean is decided in [`super::gpu`].
//!
//! The library is opened at run time, so a box without one needs nothing. A library that has stopped working
//! as a whole is closed, and opened anew at the next run.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::Failure;

/// Tried in this order. Drivers install the first; some distributions and old ones the second; under WSL it
/// lies where no loader looks.
const USUAL_NAMES: [&str; 3] = ["libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];

/// All that the driver said in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) driver_version: String,
    /// One entry for each GPU that the driver lists, in its order.
    pub(super) gpus: Vec<Listed>,
}

/// A GPU that the driver lists: its number for now, and what the driver says of it, or why it does not say who it is.
/// A lost GPU changes the numbers of those behind it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listed {
    pub(super) index: u32,
    pub(super) told: Result<Gpu, Refusal>,
}

/// What the driver says of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gpu {
    pub(super) part: Part,
    pub(super) link: Link,
    /// The MIG slices that this program may see; `None` where the GPU is not cut into slices.
    pub(super) slices: Option<Vec<Slice>>,
}

/// A MIG slice: its number on its GPU, and what the driver says of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Slice {
    pub(super) index: u32,
    pub(super) told: Result<Part, Refusal>,
}

/// What a whole GPU and a slice have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    /// What tells GPUs apart; empty where the driver does not tell.
    pub(super) uuid: String,
    /// Empty where the driver does not tell.
    pub(super) name: String,
    pub(super) memory: Result<Memory, Refusal>,
}

/// GPU memory in bytes. The driver's reserve is apart from what is used, so used + free is less than the total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) total: u64,
    pub(super) used: u64,
    pub(super) free: u64,
    pub(super) reserved: u64,
}

/// The PCIe link, as it is now and as it could be here.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Link {
    pub(super) generation: Result<u32, Refusal>,
    pub(super) generation_max: Result<u32, Refusal>,
    pub(super) width: Result<u32, Refusal>,
    pub(super) width_max: Result<u32, Refusal>,
}

/// Why the driver does not tell.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// This part has no such thing.
    #[error("not supported on this GPU")]
    NotSupported,
    /// A GPU cut into slices refuses this for the whole, and a container may lack the right.
    #[error("no permission")]
    NoPermission,
    /// The driver is older than the call.
    #[error("this driver is too old to know the call")]
    NoSuchCall,
    /// The GPU, or the driver as a whole, is gone.
    #[error("{0}: the GPU or the driver no longer answers")]
    Lost(String),
    /// Anything else, in the driver's words.
    #[error("{0}")]
    Other(String),
}

impl From<NvmlError> for Refusal {
    fn from(error: NvmlError) -> Refusal {
        match error {
            NvmlError::NotSupported => Refusal::NotSupported,
            NvmlError::NoPermission => Refusal::NoPermission,
            NvmlError::FailedToLoadSymbol(_) | NvmlError::FunctionNotFound => Refusal::NoSuchCall,
            NvmlError::GpuLost => Refusal::Lost("device fell off the bus or cannot be reached".to_owned()),
            NvmlError::Unknown | NvmlError::Uninitialized => Refusal::Lost(error.to_string()),
            other => Refusal::Other(other.to_string()),
        }
    }
}

impl Refusal {
    /// Whether the device answers and only does not tell this. Anything else is a device that does not work.
    pub(super) fn is_an_answer(&self) -> bool {
        matches!(self, Refusal::NotSupported | Refusal::NoPermission | Refusal::NoSuchCall)
    }
}

impl Gpu {
    /// The failure of the GPU or of one of its slices; `None` where all that there is can be read.
    pub(super) fn failure(&self) -> Option<&Refusal> {
        self.part.failure().or_else(|| self.slices.iter().flatten().find_map(Slice::failure))
    }
}

impl Slice {
    /// Why it cannot be read; `None` where it can.
    pub(super) fn failure(&self) -> Option<&Refusal> {
        match &self.told {
            Ok(part) => part.failure(),
            Err(refusal) => Some(refusal),
        }
    }
}

impl Part {
    /// Why it cannot be read; `None` where it can.
    pub(super) fn failure(&self) -> Option<&Refusal> {
        self.memory.as_ref().err().filter(|refusal| !refusal.is_an_answer())
    }
}

impl Listed {
    /// Why it cannot be read; `None` where it can.
    pub(super) fn failure(&self) -> Option<&Refusal> {
        match &self.told {
            Ok(gpu) => gpu.failure(),
            Err(refusal) => Some(refusal),
        }
    }
}

/// The library, opened when it is first asked and again after it stopped working.
pub(super) struct Library {
    named: Option<PathBuf>,
    open: Option<(Nvml, Instant)>,
}

impl Library {
    /// Nothing is opened yet. Without a path the usual names are tried.
    pub(super) fn new(named: Option<PathBuf>) -> Library {
        Library { named, open: None }
    }

    /// Asks for everything. Where no GPU answers the library is closed, since it may have stopped working itself.
    ///
    /// # Errors
    /// Where there is no library or driver, or it does not count its GPUs.
    pub(super) fn ask(&mut self) -> Result<Answer, Failure> {
        let (nvml, since) = match self.open.take() {
            Some(open) => open,
            None => (open(self.named.as_deref())?, Instant::now()),
        };
        let answer = ask(&nvml)?;
        if answer.gpus.is_empty() || answer.gpus.iter().any(|gpu| gpu.failure().is_none()) {
            self.open = Some((nvml, since));
        }
        Ok(answer)
    }

    /// Closes a library that has been open for so long: it lists the GPUs of the time when it was opened.
    pub(super) fn close_after(&mut self, age: Duration) {
        self.open.take_if(|(_, since)| since.elapsed() >= age);
    }
}

impl Answer {
    /// Takes out what is listed a second time under another number, and says so: two samples of one memory would add up
    /// to twice as much.
    pub(super) fn without_repeats(&mut self) -> Vec<String> {
        let mut uuids = BTreeSet::new();
        let mut notes = Vec::new();
        self.gpus.retain(|gpu| {
            let uuid = gpu.told.as_ref().map_or("", |told| told.part.uuid.as_str());
            let first = uuid.is_empty() || uuids.insert(uuid.to_owned());
            if !first {
                notes.push(format!("GPU {} is left out: the driver lists {uuid} twice", gpu.index));
            }
            first
        });
        notes
    }
}

fn open(named: Option<&Path>) -> Result<Nvml, Failure> {
    if let Some(path) = named {
        let not_there = || {
            let path = path.display();
            let why = "cannot be opened as a library: is it there, and is it made for this system?";
            Failure::Broken(format!("--nvml.library {path} {why}"))
        };
        return load(path.as_os_str()).map_err(|error| init_failure(error, not_there));
    }
    let mut missing = String::new();
    for name in USUAL_NAMES {
        match load(OsStr::new(name)) {
            Err(NvmlError::LibloadingError(_)) => missing = format!("{missing} {name}"),
            other => return other.map_err(|error| init_failure(error, || Failure::Absent(name.to_owned()))),
        }
    }
    Err(Failure::Absent(format!(
        "none of{missing} can be opened, so there is no NVIDIA driver here (--nvml.library names another)"
    )))
}

fn load(name: &OsStr) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(name).init()
}

fn init_failure(error: NvmlError, not_opened: impl Fn() -> Failure) -> Failure {
    match error {
        NvmlError::LibloadingError(_) => not_opened(),
        NvmlError::DriverNotLoaded | NvmlError::LibraryNotFound => Failure::Absent(error.to_string()),
        error => Failure::Broken(format!("NVML does not start: {error}")),
    }
}

fn ask(nvml: &Nvml) -> Result<Answer, Failure> {
    let count =
        nvml.device_count().map_err(|error| Failure::Broken(format!("NVML does not count its GPUs: {error}")))?;
    let listed = |index| Listed { index, told: ask_gpu(nvml, index) };
    Ok(Answer {
        // Only a label hangs on it.
        driver_version: nvml.sys_driver_version().unwrap_or_default(),
        gpus: (0..count).map(listed).collect(),
    })
}

fn ask_gpu(nvml: &Nvml, index: u32) -> Result<Gpu, Refusal> {
    let device = nvml.device_by_index(index)?;
    Ok(Gpu {
        part: ask_part(&device)?,
        link: Link {
            generation: link_figure(device.current_pcie_link_gen()),
            generation_max: link_figure(device.max_pcie_link_gen()),
            width: link_figure(device.current_pcie_link_width()),
            width_max: link_figure(device.max_pcie_link_width()),
        },
        slices: slices(&device),
    })
}

fn ask_part(device: &Device<'_>) -> Result<Part, Refusal> {
    let memory = device.memory_info();
    Ok(Part {
        uuid: text(device.uuid())?,
        name: text(device.name())?,
        memory: memory
            .map(|info| Memory { total: info.total, used: info.used, free: info.free, reserved: info.reserved })
            .map_err(Refusal::from),
    })
}

/// Empty where the device answers but does not tell.
fn text(answer: Result<String, NvmlError>) -> Result<String, Refusal> {
    answer.map_err(Refusal::from).or_else(|refusal| match refusal.is_an_answer() {
        true => Ok(String::new()),
        false => Err(refusal),
    })
}

/// No link has generation 0 or no lanes: a driver that says so does not know (in a virtual machine, for one).
fn link_figure(answer: Result<u32, NvmlError>) -> Result<u32, Refusal> {
    answer.map_err(Refusal::from).and_then(|figure| match figure {
        0 | u32::MAX => Err(Refusal::NotSupported),
        figure => Ok(figure),
    })
}

/// Numbers of slices have gaps: the driver says how many there can be, and of most that they are not found. A container
/// finds those only that were given to it. The link is the whole GPU's: a slice has none to ask for.
fn slices(device: &Device<'_>) -> Option<Vec<Slice>> {
    const ENABLED: u32 = 1;
    device.mig_mode().ok().filter(|mode| mode.current == ENABLED)?;
    let numbers = 0..device.mig_device_count().unwrap_or(0);
    Some(numbers.filter_map(|index| slice(device, index)).collect())
}

fn slice(device: &Device<'_>, index: u32) -> Option<Slice> {
    match device.mig_device_by_index(index) {
        Ok(slice) => Some(Slice { index, told: ask_part(&slice) }),
        Err(NvmlError::NotFound | NvmlError::NoPermission | NvmlError::InvalidArg | NvmlError::NotSupported) => None,
        Err(error) => Some(Slice { index, told: Err(error.into()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_errors_are_told_apart() {
        assert_eq!(Refusal::from(NvmlError::NotSupported), Refusal::NotSupported);
        assert_eq!(Refusal::from(NvmlError::NoPermission), Refusal::NoPermission);
        assert_eq!(Refusal::from(NvmlError::FailedToLoadSymbol("x".into())), Refusal::NoSuchCall);
        for lost in [NvmlError::GpuLost, NvmlError::Unknown, NvmlError::Uninitialized] {
            assert!(matches!(Refusal::from(lost), Refusal::Lost(_)));
        }
        assert!(matches!(Refusal::from(NvmlError::ResetRequired), Refusal::Other(why) if why.contains("reset")));
    }

    #[test]
    fn a_device_that_does_not_tell_answers_and_one_that_fails_does_not() {
        for refusal in [Refusal::NotSupported, Refusal::NoPermission, Refusal::NoSuchCall] {
            assert!(refusal.is_an_answer(), "{refusal}");
        }
        for error in [NvmlError::GpuLost, NvmlError::Unknown, NvmlError::ResetRequired, NvmlError::Timeout] {
            assert!(!Refusal::from(error).is_an_answer());
        }
        assert_eq!(text(Err(NvmlError::NotSupported)), Ok(String::new()));
        assert!(text(Err(NvmlError::GpuLost)).is_err());
    }

    #[test]
    fn a_link_without_lanes_is_not_told() {
        assert_eq!(link_figure(Ok(0)), Err(Refusal::NotSupported));
        assert_eq!(link_figure(Ok(u32::MAX)), Err(Refusal::NotSupported));
        assert_eq!(link_figure(Ok(1)), Ok(1));
    }

    #[test]
    fn what_is_listed_twice_is_taken_once_unless_it_has_no_identity() {
        let listed = |index, uuid: &str| {
            let refused = || Err(Refusal::NotSupported);
            let part = Part { uuid: uuid.into(), name: "NVIDIA L4".into(), memory: refused_memory() };
            let link =
                Link { generation: refused(), generation_max: refused(), width: refused(), width_max: refused() };
            Listed { index, told: Ok(Gpu { part, link, slices: None }) }
        };
        let gpus = vec![listed(0, "GPU-a"), listed(1, ""), listed(2, "GPU-a"), listed(3, "")];
        let mut answer = Answer { driver_version: String::new(), gpus };
        assert_eq!(answer.without_repeats(), ["GPU 2 is left out: the driver lists GPU-a twice"]);
        assert_eq!(answer.gpus.iter().map(|gpu| gpu.index).collect::<Vec<_>>(), [0, 1, 3]);
        assert!(answer.without_repeats().is_empty());
    }

    fn refused_memory() -> Result<Memory, Refusal> {
        Err(Refusal::NotSupported)
    }
}
