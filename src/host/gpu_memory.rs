//! Whose figures of a GPU's memory are believed: the driver's, the host's, or nobody's.
//!
//! Some parts have one memory for host and GPU. They are recognised by name, or the operator says so; sizes
//! never decide, since a 32 GB card in a 32 GB host is no such part. GH200 and GB200 are none either: their
//! GPUs have memory of their own, which NVML tells.

use super::memory::HostMemory;
use super::nvml::{Memory, Refusal};
use super::unseen::NoMemory;

/// Where the figures of a GPU's memory come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Nvml,
    Host,
    None,
}

impl Source {
    /// The `source` label.
    pub(super) fn label(self) -> &'static str {
        match self {
            Source::Nvml => "nvml",
            Source::Host => "host",
            Source::None => "none",
        }
    }
}

/// Memory figures in bytes as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) total: Option<u64>,
    pub(super) used: Option<u64>,
    pub(super) free: Option<u64>,
    pub(super) reserved: Option<u64>,
    pub(super) source: Source,
    /// Why they are not known.
    pub(super) why_not: Option<NoMemory>,
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

    fn unknown(why_not: Option<NoMemory>) -> Figures {
        Figures { total: None, used: None, free: None, reserved: None, source: Source::None, why_not }
    }
}

/// The figures of a GPU that answered so; `unified` where it shares the host's memory.
pub(super) fn figures(answer: &Result<Memory, Refusal>, unified: bool, host: &HostMemory) -> Figures {
    match believable(answer) {
        Ok(memory) if unified && is_about_all(memory.total, host.total) => Figures::host(*host),
        Ok(memory) => Figures::nvml(memory),
        Err(NoMemory::NotSupported | NoMemory::ToldAsNothing | NoMemory::Contradiction) if unified => {
            match host.total {
                Some(_) => Figures::host(*host),
                None => Figures::unknown(Some(NoMemory::HostUnknown)),
            }
        }
        Err(why) => Figures::unknown(Some(why)),
    }
}

/// What the driver answered, unless it says nothing. What the driver's reserve is counted under differs, so it is left out
/// of the sum. A GPU with memory has some of it used or some of it free.
fn believable(answer: &Result<Memory, Refusal>) -> Result<Memory, NoMemory> {
    /// What NVML writes for "not available".
    const NOT_AVAILABLE: u64 = u64::MAX;
    match answer {
        Ok(Memory { total: 0 | NOT_AVAILABLE, .. }) => Err(NoMemory::ToldAsNothing),
        Ok(memory) => {
            let sum = u128::from(memory.used) + u128::from(memory.free);
            let holds = sum > 0 && sum <= u128::from(memory.total) && memory.reserved <= memory.total;
            if holds { Ok(*memory) } else { Err(NoMemory::Contradiction) }
        }
        Err(Refusal::NotSupported) => Err(NoMemory::NotSupported),
        Err(Refusal::NoPermission) => Err(NoMemory::NoPermission),
        Err(Refusal::NoSuchCall) => Err(NoMemory::OldDriver),
        Err(other) => Err(NoMemory::Fails(other.to_string())),
    }
}

/// At least nine tenths: the kernel keeps a part of the memory out of MemTotal.
fn is_about_all(total: u64, host_total: Option<u64>) -> bool {
    host_total.is_some_and(|all| u128::from(total) * 10 >= u128::from(all) * 9)
}

/// Whether a part of that name has one memory for host and GPU. Whole words only: GB10 is one, GB100 is not.
pub(super) fn is_integrated(name: &str) -> bool {
    const PARTS: [&str; 6] = ["GB10", "THOR", "ORIN", "XAVIER", "TEGRA", "NVGPU"];
    name.split(|c: char| !c.is_ascii_alphanumeric())
        .any(|word| PARTS.iter().any(|part| word.eq_ignore_ascii_case(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    /// A DGX Spark.
    const SPARK: HostMemory = HostMemory {
        total: Some(130_663_165_952),
        available: Some(26_726_400_000),
        free: Some(3_174_400_000),
        shared: Some(0),
    };

    fn mib(total: u64, used: u64, free: u64, reserved: u64) -> Result<Memory, Refusal> {
        Ok(Memory { total: total * MIB, used: used * MIB, free: free * MIB, reserved: reserved * MIB })
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
    fn a_small_share_that_nvml_tells_for_one_memory_stays_nvmls() {
        assert_eq!(figures(&mib(8_128, 1, 1, 0), true, &SPARK).source, Source::Nvml);
        // Just below nine tenths of MemTotal (112,149.09 MiB).
        assert_eq!(figures(&mib(112_149, 1, 1, 0), true, &SPARK).source, Source::Nvml);
    }

    #[test]
    fn any_other_refusal_is_unknown_on_every_part() {
        let (lost, other) = (Refusal::Lost("x".into()), Refusal::Other("y".into()));
        let fails = |refusal: &Refusal| NoMemory::Fails(refusal.to_string());
        let refusals = [
            (Refusal::NoSuchCall, NoMemory::OldDriver),
            (Refusal::NoPermission, NoMemory::NoPermission),
            (lost.clone(), fails(&lost)),
            (other.clone(), fails(&other)),
        ];
        for (refusal, why) in refusals {
            assert_eq!(figures(&Err(refusal), true, &SPARK), Figures::unknown(Some(why)));
        }
        assert_eq!(figures(&Err(Refusal::NotSupported), true, &HostMemory::default()).source, Source::None);
    }

    #[test]
    fn figures_of_a_card_that_cannot_be_true_are_not_told() {
        let contradictions = [
            mib(24_000, 25_000, 1, 0),     // more used than there is
            mib(24_000, 1, 24_001, 0),     // more free
            mib(24_000, 20_000, 5_000, 0), // both together
            mib(24_000, 0, 0, 500),        // neither used nor free
            mib(24_000, 1, 1, 24_001),     // more kept
            Ok(Memory { total: 24_000 * MIB, used: u64::MAX, free: u64::MAX, reserved: 0 }),
        ];
        for memory in contradictions {
            assert_eq!(figures(&memory, false, &SPARK), Figures::unknown(Some(NoMemory::Contradiction)), "{memory:?}");
        }
        for memory in [mib(0, 0, 0, 0), mib(0, 5, 5, 0), Ok(Memory { total: u64::MAX, used: 1, free: 1, reserved: 0 })]
        {
            assert_eq!(figures(&memory, false, &SPARK), Figures::unknown(Some(NoMemory::ToldAsNothing)), "{memory:?}");
        }
        // A full card, an empty one, and one whose driver counts its reserve as used too.
        for memory in [mib(24_000, 24_000, 0, 0), mib(24_000, 0, 23_500, 500), mib(24_000, 600, 23_400, 500)] {
            assert_eq!(figures(&memory, false, &SPARK).source, Source::Nvml, "{memory:?}");
        }
    }

    #[test]
    fn a_card_as_large_as_the_host_is_still_a_card_unless_the_operator_says_otherwise() {
        let large = || mib(124_610, 90_000, 3_000, 10);
        assert_eq!(figures(&large(), false, &SPARK).source, Source::Nvml);
        assert_eq!(figures(&large(), true, &SPARK).source, Source::Host);
    }
}
