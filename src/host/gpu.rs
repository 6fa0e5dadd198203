//! GPU memory and the PCIe link that the tier's copies cross.
//!
//! A GPU that is cut into MIG slices is told by the slices that this program may see, in place of the whole: their memory
//! is the whole's, and beside it would count twice.

use std::path::PathBuf;
use std::time::Duration;

use crate::family::{Desc, Family, Labels};
use crate::settings::HostFacts;

use super::gpu_memory::{figures, is_integrated};
use super::memory::{self, HostMemory};
use super::nvml::{Answer, Gpu, Library, Link, Part, Refusal};
use super::roster::{Roster, known, whole};
use super::unseen::{NoMemory, SilentGpu, Unseen, UntoldMemory};
use super::{Collector, Failure, Options, Reading};

pub(super) const NAME: &str = "gpu";

pub(crate) const INFO: Desc = Desc::gauge(
    "kvtier_gpu_info",
    "Always 1: a GPU that says who it is, with its name and the driver's version. A GPU cut into MIG slices is told by its slices: gpu is GPU:SLICE there.",
);
/// How many GPUs there are, and how many can be read.
pub(crate) const DEVICES: Desc = Desc::gauge(
    "kvtier_gpu_devices",
    "Number of GPUs by state. listed: the most that the driver listed at once since this exporter started, so one that is lost stays counted; start the exporter anew after a GPU was taken out on purpose. readable: those that answer now, 0 where the driver does not. A GPU cut into MIG slices counts once, and is readable if all its slices are. /debug says which cannot be read, and why.",
);
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
    "Always 1: where the memory figures come from. nvml: the driver. host: /proc/meminfo, since host and GPU share one memory. none: they are unknown, also where the driver answers with a total of 0 or with figures that contradict each other; /debug says why.",
);
pub(super) const GENERATION: Desc = Desc::gauge(
    "kvtier_gpu_pcie_link_generation",
    "Generation of the PCIe link now. An idle GPU may lower it to save power. Absent where GPU and host share one memory; of a MIG slice it is its GPU's.",
);
pub(super) const GENERATION_MAX: Desc = Desc::gauge(
    "kvtier_gpu_pcie_link_generation_max",
    "Highest generation of the PCIe link that this GPU in this slot can reach.",
);
pub(super) const WIDTH: Desc = Desc::gauge("kvtier_gpu_pcie_link_width", "Lanes of the PCIe link now.");
pub(super) const WIDTH_MAX: Desc =
    Desc::gauge("kvtier_gpu_pcie_link_width_max", "Most lanes of the PCIe link that this GPU in this slot can have.");

pub(super) const DESCS: [Desc; 12] =
    [DEVICES, INFO, UNIFIED, TOTAL, USED, FREE, RESERVED, SOURCE, GENERATION, GENERATION_MAX, WIDTH, WIDTH_MAX];

/// Those with a sample for each device, in the order in which [`add`] fills them.
const EACH: [Desc; 11] = {
    let [_, each @ ..] = DESCS;
    each
};

/// A library lists the GPUs of the time when it was opened. While one cannot be read it is opened anew that often, so that
/// one that comes back is seen; not more often, since opening wakes every GPU.
const REOPEN: Duration = Duration::from_secs(60);

/// Field experience: these two are behind most cases.
const CAUSES: &str = ". If this is a container, it may have lost its devices (a `systemctl daemon-reload` on the \
                      host does that): start it anew. Otherwise see the kernel's log for Xid messages";

struct Gpus {
    library: Library,
    procfs: PathBuf,
    unified: bool,
    roster: Roster,
    /// Who could not be read in the last run that asked the driver.
    silent: Vec<SilentGpu>,
    /// Why the driver itself did not answer in the last run, though it is here.
    broken: Option<String>,
}

pub(super) fn build(options: &Options) -> Option<Box<dyn Collector>> {
    Some(Box::new(Gpus {
        library: Library::new(options.nvml_library.clone()),
        procfs: options.procfs.clone(),
        unified: options.gpu_unified,
        roster: Roster::default(),
        silent: Vec::new(),
        broken: None,
    }))
}

impl Collector for Gpus {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self) -> Result<Reading, Failure> {
        let asked = self.library.ask();
        self.broken = match &asked {
            Err(Failure::Broken(why)) => Some(why.clone()),
            _ => None,
        };
        let mut answer = asked?;
        let repeats = answer.without_repeats();
        self.silent = self.roster.take(&answer);
        let listed = self.roster.listed();
        let readable = answer.gpus.iter().filter(|gpu| gpu.failure().is_none()).count();
        if let Some(first) = self.silent.first().filter(|_| readable == 0) {
            return Err(Failure::Broken(format!("no GPU can be read: {first}{CAUSES}")));
        }
        if !self.silent.is_empty() {
            self.library.close_after(REOPEN);
        }
        let mut reading = understand(&answer, &memory::read(&self.procfs).unwrap_or_default(), self.unified);
        reading.families.push(devices(listed, readable));
        reading.facts.gpus = reading.facts.gpus.map(|now| now.max(listed));
        reading.notes.extend(repeats);
        reading.unseen.gpus = self.silent.clone();
        Ok(reading)
    }

    /// GPUs that were listed are not forgotten because the driver no longer answers.
    fn standing(&self) -> Reading {
        let listed = self.roster.listed();
        let families = if listed == 0 { Vec::new() } else { vec![devices(listed, 0)] };
        let unseen = Unseen { gpus: self.silent.clone(), gpu_driver: self.broken.clone(), ..Unseen::default() };
        Reading { families, unseen, ..Reading::default() }
    }
}

fn devices(listed: usize, readable: usize) -> Family {
    let mut family = Family::new(DEVICES);
    for (state, number) in [("listed", listed), ("readable", readable)] {
        family.push(vec![("state", state.to_owned())], number as f64);
    }
    family
}

/// What is told as a device of its own: a whole GPU, or a MIG slice.
struct Told<'a> {
    /// The `gpu` label: the GPU's number, with the slice's behind a colon.
    gpu: String,
    /// For people.
    who: String,
    part: &'a Part,
    /// The link that its copies cross; a slice's is its GPU's.
    link: &'a Link,
    /// Cut into slices of which none is seen.
    without_slices: bool,
}

fn told(index: u32, gpu: &Gpu) -> Vec<Told<'_>> {
    let slices = gpu.slices.iter().flatten().filter_map(|slice| Some((slice.index, slice.told.as_ref().ok()?)));
    let slices: Vec<Told<'_>> = slices
        .map(|(number, part)| Told {
            gpu: format!("{index}:{number}"),
            who: format!("slice {number} of GPU {index}{}", known(&part.name, &part.uuid)),
            part,
            link: &gpu.link,
            without_slices: false,
        })
        .collect();
    // A slice that fails is still a slice: the whole would count the memory of the others twice.
    if gpu.slices.as_ref().is_some_and(|slices| !slices.is_empty()) {
        return slices;
    }
    let who = whole(index, &gpu.part);
    let without_slices = gpu.slices.is_some();
    vec![Told { gpu: index.to_string(), who, part: &gpu.part, link: &gpu.link, without_slices }]
}

/// Everything but the count of devices, which needs to know the past.
fn understand(answer: &Answer, host: &HostMemory, all_unified: bool) -> Reading {
    let mut reading = Reading { families: EACH.map(Family::new).into(), ..Reading::default() };
    let gpus = answer.gpus.iter().filter_map(|gpu| Some((gpu.index, gpu.told.as_ref().ok()?)));
    for device in gpus.flat_map(|(index, gpu)| told(index, gpu)) {
        add(&mut reading, answer, &device, host, all_unified);
    }
    reading.facts = HostFacts { gpus: Some(answer.gpus.len()), ..HostFacts::default() };
    reading
}

fn add(reading: &mut Reading, answer: &Answer, device: &Told<'_>, host: &HostMemory, all_unified: bool) {
    let part = device.part;
    let unified = all_unified || is_integrated(&part.name);
    let mut memory = figures(&part.memory, unified, host);
    if device.without_slices && memory.why_not == Some(NoMemory::NoPermission) {
        memory.why_not = Some(NoMemory::NoSlice);
    }
    let untold = |why| UntoldMemory { gpu: device.gpu.clone(), who: device.who.clone(), why };
    reading.unseen.memory.extend(memory.why_not.clone().map(untold));
    if shares_an_instance(&part.name) {
        reading.notes.push(format!(
            "{} is one of several in one GPU instance: its memory figures are those of all of them together",
            device.who
        ));
    }
    let link = (!unified).then_some(device.link);
    let trouble = link.and_then(link_trouble);
    reading.notes.extend(trouble.map(|why| format!("PCIe link of {} is partly unknown: {why}", device.who)));

    let with = |more: &[(&'static str, &str)]| -> Labels {
        let own = [("gpu", device.gpu.clone()), ("uuid", part.uuid.clone())];
        own.into_iter().chain(more.iter().map(|(name, value)| (*name, (*value).to_owned()))).collect()
    };
    let number = |value: Option<u64>| value.map(|bytes| bytes as f64);
    let side = |side: fn(&Link) -> &Result<u32, Refusal>| {
        link.and_then(|link| side(link).as_ref().ok()).map(|n| f64::from(*n))
    };
    let samples = [
        (with(&[("name", &part.name), ("driver_version", &answer.driver_version)]), Some(1.0)),
        (with(&[]), Some(f64::from(u8::from(unified)))),
        (with(&[]), number(memory.total)),
        (with(&[]), number(memory.used)),
        (with(&[]), number(memory.free)),
        (with(&[]), number(memory.reserved)),
        (with(&[("source", memory.source.label())]), Some(1.0)),
        (with(&[]), side(|link| &link.generation)),
        (with(&[]), side(|link| &link.generation_max)),
        (with(&[]), side(|link| &link.width)),
        (with(&[]), side(|link| &link.width_max)),
    ];
    for (family, (labels, value)) in reading.families.iter_mut().zip(samples) {
        family.push(labels, value);
    }
}

/// Whether a MIG slice is a part of a GPU instance, and so shares the instance's memory: its profile then begins with its
/// number of compute slices (`MIG 1c.3g.20gb`).
fn shares_an_instance(name: &str) -> bool {
    let compute =
        |profile: &str| profile.split('.').next().and_then(|first| first.strip_suffix('c')).map(str::to_owned);
    let profile = name.rsplit_once("MIG ").and_then(|(_, profile)| compute(profile));
    profile.is_some_and(|number| number.parse::<u32>().is_ok())
}

/// A link that should be there and is not told. Integrated parts have none, and a lost GPU is told already.
fn link_trouble(link: &Link) -> Option<&Refusal> {
    [&link.generation, &link.generation_max, &link.width, &link.width_max]
        .into_iter()
        .filter_map(|value| value.as_ref().err())
        .find(|refusal| !matches!(refusal, Refusal::NotSupported | Refusal::Lost(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::encode;
    use crate::host::nvml::{Listed, Memory, Slice};

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
        Gpu { part: Part { uuid: "GPU-8f3c".into(), name: name.into(), memory }, link, slices: None }
    }

    fn slice(index: u32, memory: Result<Memory, Refusal>) -> Slice {
        let part = Part { uuid: format!("MIG-{index}"), name: "NVIDIA H100 MIG 1g.10gb".into(), memory };
        Slice { index, told: Ok(part) }
    }

    fn mib(total: u64, used: u64, free: u64, reserved: u64) -> Result<Memory, Refusal> {
        Ok(Memory { total: total * MIB, used: used * MIB, free: free * MIB, reserved: reserved * MIB })
    }

    fn texts(gpus: Vec<Result<Gpu, Refusal>>, host: &HostMemory, unified: bool) -> (String, Reading) {
        let gpus = (0..).zip(gpus).map(|(index, told)| Listed { index, told }).collect();
        let reading = understand(&Answer { driver_version: "580.95.05".into(), gpus }, host, unified);
        (encode(&reading.families).replace("gpu=\"0\",uuid=\"GPU-8f3c\"", "0"), reading)
    }

    fn untold_of(reading: &Reading) -> Vec<NoMemory> {
        reading.unseen.memory.iter().map(|untold| untold.why.clone()).collect()
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
        assert_eq!((reading.facts.gpus, reading.notes.len(), reading.unseen), (Some(1), 0, Unseen::default()));
    }

    #[test]
    fn one_memory_that_nvml_refuses_or_tells_as_the_hosts_is_the_hosts() {
        let not_available = Memory { total: u64::MAX, used: u64::MAX, free: u64::MAX, reserved: 0 };
        let answers = [
            Err(Refusal::NotSupported),
            mib(124_610, 90_000, 3_000, 0),
            mib(112_150, 1, 1, 0),
            mib(0, 0, 0, 0),
            Ok(not_available),
            mib(8_128, 9_000, 1, 0),
        ];
        for memory in answers {
            let (text, reading) = texts(vec![Ok(gpu("NVIDIA GB10", memory))], &SPARK, false);
            assert!(text.contains("kvtier_gpu_unified_memory{0} 1\n"), "{text}");
            assert!(text.contains("kvtier_gpu_memory_total_bytes{0} 130663165952\n"), "{text}");
            assert!(text.contains("kvtier_gpu_memory_free_bytes{0} 26726400000\n"), "{text}");
            assert!(text.contains("{0,source=\"host\"} 1\n"), "{text}");
            assert!(!text.contains("used_bytes") && !text.contains("reserved_bytes"), "{text}");
            assert!(!text.contains("pcie"), "one memory is reached over no such link: {text}");
            assert_eq!((reading.notes.len(), reading.unseen), (0, Unseen::default()));
        }
    }

    #[test]
    fn the_same_answers_from_a_card_change_nothing_unless_the_operator_says_so() {
        // Not supported on a card: nothing is invented.
        let (text, reading) = texts(vec![Ok(gpu("NVIDIA L4", Err(Refusal::NotSupported)))], &SPARK, false);
        assert!(text.contains("{0,source=\"none\"} 1\n") && !text.contains("memory_total"), "{text}");
        assert!(text.contains("kvtier_gpu_unified_memory{0} 0\n"), "{text}");
        assert_eq!(untold_of(&reading), [NoMemory::NotSupported]);
        let (text, _) = texts(vec![Ok(gpu("NVIDIA L4", Err(Refusal::NotSupported)))], &SPARK, true);
        assert!(text.contains("{0,source=\"host\"} 1\n"), "{text}");
    }

    #[test]
    fn a_gpu_that_does_not_answer_has_no_figures_and_is_still_counted() {
        let fine = gpu("NVIDIA L4", mib(24_570, 1, 2, 3));
        let lost = Refusal::Other("device fell off the bus".into());
        let (text, reading) = texts(vec![Ok(fine), Err(lost)], &SPARK, false);
        assert_eq!(text.matches("kvtier_gpu_info{").count(), 1);
        assert_eq!(reading.facts.gpus, Some(2));
    }

    #[test]
    fn a_gpu_that_is_cut_is_told_by_its_slices_alone() {
        // The whole has 81,559 MiB, and 200 MiB are used beside the slices.
        let mut whole = gpu("NVIDIA H100", mib(81_559, 10_000, 71_000, 559));
        whole.slices = Some(vec![slice(1, mib(9_856, 13, 9_843, 0)), slice(4, mib(9_856, 9_000, 856, 0))]);
        let (text, reading) = texts(vec![Ok(whole)], &SPARK, false);
        for line in [
            "kvtier_gpu_info{gpu=\"0:1\",uuid=\"MIG-1\",name=\"NVIDIA H100 MIG 1g.10gb\",driver_version=\"580.95.05\"} 1",
            "kvtier_gpu_unified_memory{gpu=\"0:4\",uuid=\"MIG-4\"} 0",
            // 9,856 MiB, and 856 MiB
            "kvtier_gpu_memory_total_bytes{gpu=\"0:1\",uuid=\"MIG-1\"} 10334765056",
            "kvtier_gpu_memory_free_bytes{gpu=\"0:4\",uuid=\"MIG-4\"} 897581056",
            "kvtier_gpu_pcie_link_width{gpu=\"0:4\",uuid=\"MIG-4\"} 8",
        ] {
            assert!(text.lines().any(|got| got == line), "{line} in\n{text}");
        }
        assert!(!text.contains("GPU-8f3c") && !text.contains("{0"), "the whole beside its slices: {text}");
        // Slices are one GPU still: NCCL takes no two ranks of an engine on one.
        assert_eq!((reading.facts.gpus, reading.unseen), (Some(1), Unseen::default()));
    }

    #[test]
    fn a_cut_gpu_without_a_slice_to_see_is_told_as_a_whole_with_the_reason() {
        let cut = |memory| Gpu { slices: Some(Vec::new()), ..gpu("NVIDIA H100", memory) };
        let (text, reading) = texts(vec![Ok(cut(Err(Refusal::NoPermission)))], &SPARK, false);
        assert!(text.contains("kvtier_gpu_memory_source_info{0,source=\"none\"} 1\n"), "{text}");
        assert_eq!((untold_of(&reading), reading.facts.gpus), (vec![NoMemory::NoSlice], Some(1)));
        let (text, reading) = texts(vec![Ok(cut(mib(81_559, 559, 81_000, 0)))], &SPARK, false);
        assert!(text.contains("kvtier_gpu_memory_source_info{0,source=\"nvml\"} 1\n"), "{text}");
        assert_eq!(untold_of(&reading), []);
    }

    #[test]
    fn slices_of_one_gpu_instance_share_its_memory_and_that_is_said() {
        for (name, shares) in [
            ("NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb", true),
            ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", false),
            ("NVIDIA H100 MIG 1g.10gb+me", false),
            ("NVIDIA GeForce 1c.3g", false),
            ("", false),
        ] {
            assert_eq!(shares_an_instance(name), shares, "{name}");
        }
    }

    #[test]
    fn the_whole_does_not_come_back_for_a_slice_that_fails() {
        let mut whole = gpu("NVIDIA H100", mib(81_559, 10_000, 71_000, 559));
        let broken = Slice { index: 2, told: Err(Refusal::Other("z".into())) };
        whole.slices = Some(vec![broken, slice(3, mib(9_856, 13, 9_843, 0))]);
        let (text, reading) = texts(vec![Ok(whole)], &SPARK, false);
        assert_eq!(text.matches("kvtier_gpu_info{").count(), 1, "{text}");
        assert_eq!(reading.facts.gpus, Some(1));
    }

    #[test]
    fn a_missing_link_is_said_except_where_none_is_to_be_expected() {
        let mut link = gpu("NVIDIA L4", mib(1, 1, 0, 0)).link;
        link.width = Err(Refusal::NotSupported);
        assert_eq!(link_trouble(&link), None);
        link.width_max = Err(Refusal::Other("z".into()));
        assert_eq!(link_trouble(&link), Some(&Refusal::Other("z".into())));
    }
}
