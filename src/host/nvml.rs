//! Asks the NVIDIA driver's library. Reading only: what the answers mean is decided in [`super::gpu`].
//!
//! The library is opened at run time, so a box without one needs nothing. A library that has stopped working
//! as a whole is closed, and opened anew at the next run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::Failure;

/// Tried in this order. Drivers install the first; some distributions and old ones the second; under WSL it
/// lies where no loader looks.
const USUAL_NAMES: [&str; 3] = ["libnvidia-ml.so.1", "libnvidia-ml.so", "/usr/lib/wsl/lib/libnvidia-ml.so.1"];

/// All that the driver said in one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Answer {
    pub(super) driver_version: String,
    pub(super) gpus: Vec<Result<Gpu, String>>,
}

/// What the driver says of one GPU.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Gpu {
    /// Number of the GPU for now; a lost one changes the numbers behind it.
    pub(super) index: u32,
    /// What tells GPUs apart.
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) memory: Result<Memory, Refusal>,
    pub(super) link: Link,
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
    #[error("no permission (a GPU in MIG mode refuses this for the whole; so does a container without the right)")]
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
            NvmlError::GpuLost | NvmlError::Unknown | NvmlError::Uninitialized => Refusal::Lost(error.to_string()),
            other => Refusal::Other(other.to_string()),
        }
    }
}

/// The library, opened when it is first asked and again after it stopped working.
pub(super) struct Library {
    named: Option<PathBuf>,
    open: Option<Nvml>,
}

impl Library {
    /// Nothing is opened yet. Without a path the usual names are tried.
    pub(super) fn new(named: Option<PathBuf>) -> Library {
        Library { named, open: None }
    }

    /// Asks for everything.
    ///
    /// # Errors
    /// Where there is no library or driver, or none of the GPUs answers.
    pub(super) fn ask(&mut self) -> Result<Answer, Failure> {
        let nvml = match self.open.take() {
            Some(nvml) => nvml,
            None => open(self.named.as_deref())?,
        };
        let answer = ask(&nvml)?;
        if let Some(why) = answer.stopped() {
            return Err(Failure::Broken(format!("no GPU answers: {why}{CAUSES}")));
        }
        self.open = Some(nvml);
        Ok(answer)
    }
}

/// Field experience: these two are behind most cases.
const CAUSES: &str = ". If this is a container, it may have lost its devices (a `systemctl daemon-reload` on the \
                      host does that): start it anew. Otherwise see the kernel's log for Xid messages";

impl Answer {
    /// Why the library is of no use any more: every GPU is lost.
    fn stopped(&self) -> Option<String> {
        let whys = self.gpus.iter().map(|gpu| match gpu {
            Ok(Gpu { memory: Err(Refusal::Lost(why)), .. }) => Some(why.clone()),
            Ok(_) => None,
            Err(why) => Some(why.clone()),
        });
        whys.collect::<Option<Vec<_>>>()?.into_iter().next()
    }
}

fn open(named: Option<&Path>) -> Result<Nvml, Failure> {
    if let Some(path) = named {
        let not_there = |error| Failure::Broken(format!("--nvml.library {}: {error}", path.display()));
        return load(path.as_os_str()).map_err(|error| init_failure(error, not_there));
    }
    let mut missing = String::new();
    for name in USUAL_NAMES {
        match load(OsStr::new(name)) {
            Err(NvmlError::LibloadingError(_)) => missing = format!("{missing} {name}"),
            other => return other.map_err(|error| init_failure(error, |why| Failure::Absent(why.to_string()))),
        }
    }
    Err(Failure::Absent(format!(
        "none of{missing} can be opened, so there is no NVIDIA driver here (--nvml.library names another)"
    )))
}

fn load(name: &OsStr) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(name).init()
}

fn init_failure(error: NvmlError, not_opened: impl Fn(NvmlError) -> Failure) -> Failure {
    match error {
        NvmlError::LibloadingError(_) => not_opened(error),
        NvmlError::DriverNotLoaded | NvmlError::LibraryNotFound => Failure::Absent(error.to_string()),
        error => Failure::Broken(format!("NVML does not start: {error}")),
    }
}

fn ask(nvml: &Nvml) -> Result<Answer, Failure> {
    let count =
        nvml.device_count().map_err(|error| Failure::Broken(format!("NVML does not count its GPUs: {error}")))?;
    Ok(Answer {
        // Only a label hangs on it.
        driver_version: nvml.sys_driver_version().unwrap_or_default(),
        gpus: (0..count).map(|index| ask_gpu(nvml, index).map_err(|error| error.to_string())).collect(),
    })
}

fn ask_gpu(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    Ok(Gpu {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        memory: device
            .memory_info()
            .map(|info| Memory { total: info.total, used: info.used, free: info.free, reserved: info.reserved })
            .map_err(Refusal::from),
        link: Link {
            generation: device.current_pcie_link_gen().map_err(Refusal::from),
            generation_max: device.max_pcie_link_gen().map_err(Refusal::from),
            width: device.current_pcie_link_width().map_err(Refusal::from),
            width_max: device.max_pcie_link_width().map_err(Refusal::from),
        },
    })
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
    fn the_library_has_stopped_once_all_gpus_are_lost_and_not_before() {
        let link = || Err(Refusal::NotSupported);
        let gpu = |memory| {
            let link = Link { generation: link(), generation_max: link(), width: link(), width_max: link() };
            Ok(Gpu { index: 0, uuid: "GPU-1".into(), name: "NVIDIA L4".into(), memory, link })
        };
        let stopped = |gpus| Answer { driver_version: String::new(), gpus }.stopped();
        let lost = || gpu(Err(Refusal::Lost("gone".into())));
        assert_eq!(stopped(vec![lost(), Err("unknown".into())]), Some("gone".into()));
        assert_eq!(stopped(vec![lost(), gpu(Err(Refusal::NotSupported))]), None);
        assert_eq!(stopped(vec![Err("unknown".into())]), Some("unknown".into()));
        assert_eq!(stopped(vec![]), None);
    }
}
