//! GPU memory and the PCIe link that the tier's copies cross.
//!
//! Some parts have one memory for host and GPU. They are recognised by name, or the operator says so; sizes
//! never decide, since a 32 GB card in a 32 GB host is no such part. GH200 and GB200 are none either: their
//! GPUs have memory of their own, which NVML tells.

use std::path::PathBuf;

use crate::family::{Desc, Family, Labels};
use crate::settings::HostFacts;

use super::memory::{self, HostMemory};
use super::nvml::{Answer, Gpu, Library, Memory, Refusal};
use super::{Collector, Failure, Options, Reading};

pub(super) const NAME: &str = "gpu";

pub(crate) const INFO: Desc =
    Desc::gauge("kvtier_gpu_info", "Always 1: a GPU that answers, with its name and the driver's version.");
pub(crate) const UNIFIED: Desc = Desc::gauge(
    "kvtier_gpu_unified_memory",
    "Whether GPU and host share one memory: a part recognised by its name, or --gpu.unified. A RAM tier takes its bytes from the GPU's own pool there.",
);
pub(crate) const TOTAL: Desc = Desc::gauge(
    "kvtier_gpu_memory_total_bytes",
    "Memory of the GPU in bytes, from the source that kvtier_gpu_memory_source_info names.",
);
pub(crate) const USED: Desc = Desc::gauge(
    "kvtier_gpu_memory_used_bytes",
    "GPU memory in use, in bytes, without the driver's reserve. Absent where host and GPU share one memory and the driver does not tell.",
);
pub(crate) const FREE: Desc = Desc::gauge(
    "kvtier_gpu_memory_free_bytes",
    "GPU memory still free, in bytes. Where host and GPU share one memory and the driver does not tell, this is MemAvailable, an estimate.",
);
const RESERVED: Desc =
    Desc::gauge("kvtier_gpu_memory_reserved_bytes", "GPU memory that the driver keeps for itself, in bytes.");
pub(crate) const SOURCE: Desc = Desc::gauge(
    "kvtier_gpu_memory_source_info",
    "Always 1: where the memory figures come from. nvml: the driver. host: /proc/meminfo, since host and GPU share one memory. none: they are unknown; /debug says why.",
);
pub(super) const GENERATION: Desc = Desc::gauge(
    "kvtier_gpu_pcie_link_generation",
    "Generation of the PCIe link now. An idle GPU may lower it to save power.",
);
pub(super) const GENERATION_MAX: Desc = Desc::gauge(
    "kvtier_gpu_pcie_link_generation_max",
    "Highest generation of the PCIe link that this GPU in this slot can reach.",
);
pub(super) const WIDTH: Desc = Desc::gauge("kvtier_gpu_pcie_link_width", "Lanes of the PCIe link now.");
pub(super) const WIDTH_MAX: Desc =
    Desc::gauge("kvtier_gpu_pcie_link_width_max", "Most lanes of the PCIe link that this GPU in this slot can have.");

pub(super) const DESCS: [Desc; 11] =
    [INFO, UNIFIED, TOTAL, USED, FREE, RESERVED, SOURCE, GENERATION, GENERATION_MAX, WIDTH, WIDTH_MAX];

struct Gpus {
    library: Library,
    procfs: PathBuf,
    unified: bool,
}

pub(super) fn build(options: &Options) -> Option<Box<dyn Collector>> {
    let library = Library::new(options.nvml_library.clone());
    Some(Box::new(Gpus { library, procfs: options.procfs.clone(), unified: options.gpu_unified }))
}

impl Collector for Gpus {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self) -> Result<Reading, Failure> {
        let answer = self.library.ask()?;
        Ok(understand(&answer, &memory::read(&self.procfs).unwrap_or_default(), self.unified))
    }
}

/// Where the figures of a GPU's memory come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Nvml,
    Host,
    None,
}

impl Source {
    fn label(self) -> &'static str {
        match self {
            Source::Nvml => "nvml",
            Source::Host => "host",
            Source::None => "none",
        }
    }
}

/// Memory figures in bytes as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Figures {
    total: Option<u64>,
    used: Option<u64>,
    free: Option<u64>,
    reserved: Option<u64>,
    source: Source,
    /// Why they are not known.
    why_not: Option<String>,
}

impl Figures {
    fn nvml(memory: Memory) -> Figures {
        Figures {
            total: Some(memory.total),
            used: Some(memory.used),
            free: Some(memory.free),
            reserved: Some(memory.reserved),
            source: Source::Nvml,
            why_not: None,
        }
    }

    /// What is used is left out: host programs' memory is not the GPU's.
    fn host(memory: HostMemory) -> Figures {
        Figures { total: memory.total, free: memory.available, source: Source::Host, ..Figures::unknown(None) }
    }

    fn unknown(why_not: Option<String>) -> Figures {
        Figures { total: None, used: None, free: None, reserved: None, source: Source::None, why_not }
    }
}

fn figures(answer: &Result<Memory, Refusal>, unified: bool, host: &HostMemory) -> Figures {
    match answer {
        Ok(memory) if unified && is_about_all(memory.total, host.total) => Figures::host(*host),
        Ok(memory) => Figures::nvml(*memory),
        Err(Refusal::NotSupported) if unified && host.total.is_some() => Figures::host(*host),
        Err(Refusal::NotSupported) if unified => {
            Figures::unknown(Some("the driver does not tell, and the host's memory is unknown".into()))
        }
        Err(Refusal::NotSupported) => Figures::unknown(Some(format!(
            "{}; if it shares one memory with the host, say --gpu.unified",
            Refusal::NotSupported
        ))),
        Err(refusal) => Figures::unknown(Some(refusal.to_string())),
    }
}

/// At least nine tenths: the kernel keeps a part of the memory out of MemTotal.
fn is_about_all(total: u64, host_total: Option<u64>) -> bool {
    host_total.is_some_and(|all| u128::from(total) * 10 >= u128::from(all) * 9)
}

/// Whether a part of that name has one memory for host and GPU. Whole words only: GB10 is one, GB100 is not.
fn is_integrated(name: &str) -> bool {
    const PARTS: [&str; 6] = ["GB10", "THOR", "ORIN", "XAVIER", "TEGRA", "NVGPU"];
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| PARTS.iter().any(|part| word.eq_ignore_ascii_case(part)))
}

fn understand(answer: &Answer, host: &HostMemory, all_unified: bool) -> Reading {
    let mut families = DESCS.map(Family::new);
    let mut notes = Vec::new();
    for (index, gpu) in answer.gpus.iter().enumerate() {
        match gpu {
            Ok(gpu) => add(&mut families, &mut notes, answer, gpu, host, all_unified),
            Err(why) => notes.push(format!("GPU {index} does not answer: {why}")),
        }
    }
    let facts = HostFacts { gpus: Some(answer.gpus.len()), ..HostFacts::default() };
    Reading { families: families.into(), facts, notes, ..Reading::default() }
}

fn add(
    families: &mut [Family; 11],
    notes: &mut Vec<String>,
    answer: &Answer,
    gpu: &Gpu,
    host: &HostMemory,
    all_unified: bool,
) {
    let unified = all_unified || is_integrated(&gpu.name);
    let memory = figures(&gpu.memory, unified, host);
    let who = || format!("GPU {} ({}, {})", gpu.index, gpu.name, gpu.uuid);
    notes.extend(memory.why_not.as_ref().map(|why| format!("memory of {} is unknown: {why}", who())));
    notes.extend(link_trouble(gpu).map(|why| format!("PCIe link of {} is partly unknown: {why}", who())));

    let with = |more: &[(&'static str, &str)]| -> Labels {
        let own = [("gpu", gpu.index.to_string()), ("uuid", gpu.uuid.clone())];
        own.into_iter().chain(more.iter().map(|(name, value)| (*name, (*value).to_owned()))).collect()
    };
    let number = |value: Option<u64>| value.map(|bytes| bytes as f64);
    let link = |value: &Result<u32, Refusal>| value.as_ref().ok().copied().map(f64::from);
    let samples = [
        (with(&[("name", &gpu.name), ("driver_version", &answer.driver_version)]), Some(1.0)),
        (with(&[]), Some(f64::from(u8::from(unified)))),
        (with(&[]), number(memory.total)),
        (with(&[]), number(memory.used)),
        (with(&[]), number(memory.free)),
        (with(&[]), number(memory.reserved)),
        (with(&[("source", memory.source.label())]), Some(1.0)),
        (with(&[]), link(&gpu.link.generation)),
        (with(&[]), link(&gpu.link.generation_max)),
        (with(&[]), link(&gpu.link.width)),
        (with(&[]), link(&gpu.link.width_max)),
    ];
    for (family, (labels, value)) in families.iter_mut().zip(samples) {
        family.push(labels, value);
    }
}

/// A link that should be there and is not told. Integrated parts have none, and a lost GPU is told already.
fn link_trouble(gpu: &Gpu) -> Option<&Refusal> {
    let link = &gpu.link;
    [&link.generation, &link.generation_max, &link.width, &link.width_max]
        .into_iter()
        .filter_map(|value| value.as_ref().err())
        .find(|refusal| !matches!(refusal, Refusal::NotSupported | Refusal::Lost(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;
    use crate::host::nvml::Link;

    const MIB: u64 = 1 << 20;
    /// A DGX Spark.
    const SPARK: HostMemory = HostMemory {
        total: Some(130_663_165_952),
        available: Some(26_726_400_000),
        free: Some(3_174_400_000),
        shared: Some(0),
    };

    fn gpu(name: &str, memory: Result<Memory, Refusal>) -> Gpu {
        let link = Link { generation: Ok(1), generation_max: Ok(5), width: Ok(8), width_max: Ok(16) };
        Gpu { index: 0, uuid: "GPU-8f3c".into(), name: name.into(), memory, link }
    }

    fn mib(total: u64, used: u64, free: u64, reserved: u64) -> Result<Memory, Refusal> {
        Ok(Memory { total: total * MIB, used: used * MIB, free: free * MIB, reserved: reserved * MIB })
    }

    fn texts(gpus: Vec<Result<Gpu, String>>, host: &HostMemory, unified: bool) -> (String, Reading) {
        let reading = understand(&Answer { driver_version: "580.95.05".into(), gpus }, host, unified);
        (encode(&reading.families).replace("gpu=\"0\",uuid=\"GPU-8f3c\"", "0"), reading)
    }

    #[test]
    fn integrated_parts_are_known_by_whole_words() {
        for name in
            ["NVIDIA GB10", "Orin (nvgpu)", "NVIDIA Jetson AGX Orin", "NVIDIA Thor", "Xavier", "NVIDIA Tegra X2"]
        {
            assert!(is_integrated(name), "{name}");
        }
        let others = [
            "NVIDIA GH200 480GB",
            "NVIDIA GB200",
            "NVIDIA GB100",
            "NVIDIA L4",
            "NVIDIA GeForce RTX 5090",
            "",
            "Thorough",
        ];
        for name in others {
            assert!(!is_integrated(name), "{name}");
        }
    }

    #[test]
    fn a_card_is_told_as_nvml_tells_it() {
        // used + free + reserved: 31,000 + 674 + 933 = 32,607 MiB
        let (text, reading) =
            texts(vec![Ok(gpu("NVIDIA GeForce RTX 5090", mib(32_607, 31_000, 674, 933)))], &SPARK, false);
        for line in [
            "kvtier_gpu_info{0,name=\"NVIDIA GeForce RTX 5090\",driver_version=\"580.95.05\"} 1",
            "kvtier_gpu_unified_memory{0} 0",
            "kvtier_gpu_memory_total_bytes{0} 34190917632",
            "kvtier_gpu_memory_used_bytes{0} 32505856000",
            "kvtier_gpu_memory_free_bytes{0} 706740224",
            "kvtier_gpu_memory_reserved_bytes{0} 978321408",
            "kvtier_gpu_memory_source_info{0,source=\"nvml\"} 1",
            "kvtier_gpu_pcie_link_generation{0} 1",
            "kvtier_gpu_pcie_link_generation_max{0} 5",
            "kvtier_gpu_pcie_link_width{0} 8",
            "kvtier_gpu_pcie_link_width_max{0} 16",
        ] {
            assert!(text.lines().any(|got| got == line), "{line} in\n{text}");
        }
        assert_eq!((reading.facts.gpus, reading.notes.len()), (Some(1), 0));
    }

    #[test]
    fn one_memory_that_nvml_refuses_or_tells_as_the_hosts_is_the_hosts() {
        for memory in [Err(Refusal::NotSupported), mib(124_610, 90_000, 3_000, 0), mib(112_150, 1, 1, 0)] {
            let (text, reading) = texts(vec![Ok(gpu("NVIDIA GB10", memory))], &SPARK, false);
            assert!(text.contains("kvtier_gpu_unified_memory{0} 1\n"), "{text}");
            assert!(text.contains("kvtier_gpu_memory_total_bytes{0} 130663165952\n"), "{text}");
            assert!(text.contains("kvtier_gpu_memory_free_bytes{0} 26726400000\n"), "{text}");
            assert!(text.contains("{0,source=\"host\"} 1\n"), "{text}");
            assert!(!text.contains("used_bytes") && !text.contains("reserved_bytes"), "{text}");
            assert_eq!(reading.notes, [""; 0]);
        }
    }

    #[test]
    fn the_same_answers_from_a_card_change_nothing_unless_the_operator_says_so() {
        // As large as the host, and still a card.
        let large = || mib(124_610, 90_000, 3_000, 10);
        assert_eq!(figures(&large(), false, &SPARK).source, Source::Nvml);
        assert_eq!(figures(&large(), true, &SPARK).source, Source::Host);
        // Not supported on a card: nothing is invented.
        let (text, reading) = texts(vec![Ok(gpu("NVIDIA L4", Err(Refusal::NotSupported)))], &SPARK, false);
        assert!(text.contains("{0,source=\"none\"} 1\n") && !text.contains("memory_total"), "{text}");
        assert!(text.contains("kvtier_gpu_unified_memory{0} 0\n"), "{text}");
        assert!(matches!(&reading.notes[..], [note] if note.contains("--gpu.unified")), "{:?}", reading.notes);
        let (text, _) = texts(vec![Ok(gpu("NVIDIA L4", Err(Refusal::NotSupported)))], &SPARK, true);
        assert!(text.contains("{0,source=\"host\"} 1\n"), "{text}");
    }

    #[test]
    fn a_small_share_that_nvml_tells_for_one_memory_stays_nvmls() {
        assert_eq!(figures(&mib(8_128, 1, 1, 0), true, &SPARK).source, Source::Nvml);
        // Just below nine tenths of MemTotal (112,149.09 MiB).
        assert_eq!(figures(&mib(112_149, 1, 1, 0), true, &SPARK).source, Source::Nvml);
    }

    #[test]
    fn any_other_refusal_is_unknown_on_every_part() {
        let refusals =
            [Refusal::NoSuchCall, Refusal::NoPermission, Refusal::Lost("x".into()), Refusal::Other("y".into())];
        for refusal in refusals {
            let figures = figures(&Err(refusal.clone()), true, &SPARK);
            assert_eq!(figures, Figures::unknown(Some(refusal.to_string())));
        }
        assert_eq!(figures(&Err(Refusal::NotSupported), true, &HostMemory::default()).source, Source::None);
    }

    #[test]
    fn a_gpu_that_does_not_answer_is_said_and_still_counted() {
        let fine = gpu("NVIDIA L4", mib(24_570, 1, 2, 3));
        let (text, reading) = texts(vec![Ok(fine), Err("device fell off the bus".into())], &SPARK, false);
        assert_eq!(text.matches("kvtier_gpu_info{").count(), 1);
        assert_eq!(reading.facts.gpus, Some(2));
        assert_eq!(reading.notes, ["GPU 1 does not answer: device fell off the bus"]);
    }

    #[test]
    fn a_missing_link_is_said_except_where_none_is_to_be_expected() {
        let mut one = gpu("NVIDIA L4", mib(1, 1, 1, 1));
        one.link.width = Err(Refusal::NotSupported);
        assert_eq!(link_trouble(&one), None);
        one.link.width_max = Err(Refusal::Other("z".into()));
        assert_eq!(link_trouble(&one), Some(&Refusal::Other("z".into())));
    }
}
