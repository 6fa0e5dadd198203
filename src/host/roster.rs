//! Which GPUs there have been since the start, so that one that goes away is missed.
//!
//! Counted by the most that the driver listed at once, and not by identity: a driver that is loaded anew lists the same
//! GPUs again, and a GPU that was exchanged for another is one GPU. A MIG slice is never missed, since slices come and go
//! as they are cut; what is missed is the GPU that they are cut from.

use std::collections::BTreeMap;

use super::nvml::{Answer, Listed, Part, Refusal};
use super::unseen::{Silence, SilentGpu};

/// The GPUs since the start.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// Most GPUs that were listed at once.
    most: usize,
    /// Those that told who they are, by UUID.
    known: BTreeMap<String, Known>,
}

#[derive(Clone, Debug)]
struct Known {
    /// Its number when it was last seen.
    index: u32,
    name: String,
}

impl Roster {
    /// Most GPUs that the driver listed at once.
    pub(super) fn listed(&self) -> usize {
        self.most
    }

    /// Takes in what the driver lists now; returns who of all that were listed cannot be read.
    pub(super) fn take(&mut self, answer: &Answer) -> Vec<SilentGpu> {
        self.most = self.most.max(answer.gpus.len());
        let mut absent = self.known.clone();
        for (index, part) in answer.gpus.iter().filter_map(|gpu| Some((gpu.index, &gpu.told.as_ref().ok()?.part))) {
            absent.remove(&part.uuid);
            if !part.uuid.is_empty() {
                self.known.insert(part.uuid.clone(), Known { index, name: part.name.clone() });
            }
        }
        let failing = answer.gpus.iter().filter_map(|gpu| Some(fails(gpu, gpu.failure()?, &mut absent)));
        let mut silent: Vec<SilentGpu> = failing.collect();
        let missing = self.most - answer.gpus.len();
        if missing == 0 && silent.is_empty() {
            // Whoever is not here was exchanged.
            self.known.retain(|uuid, _| !absent.contains_key(uuid));
        }
        let gone = absent.iter().map(|(uuid, known)| who(known.index, &known.name, uuid));
        let gone = gone.chain(std::iter::repeat("a GPU".to_owned())).take(missing);
        silent.extend(gone.map(|who| SilentGpu { who, why: Silence::NotListed }));
        silent
    }
}

/// A GPU that is listed and fails. Where it does not say who it is, its number says who it was.
fn fails(gpu: &Listed, refusal: &Refusal, absent: &mut BTreeMap<String, Known>) -> SilentGpu {
    let who = match &gpu.told {
        Ok(told) => whole(gpu.index, &told.part),
        Err(_) => {
            let uuid = absent.iter().find(|(_, known)| known.index == gpu.index).map(|(uuid, _)| uuid.clone());
            let known = uuid.and_then(|uuid| absent.remove_entry(&uuid));
            known.map_or_else(|| format!("GPU {}", gpu.index), |(uuid, known)| who(gpu.index, &known.name, &uuid))
        }
    };
    let why = match (refusal, failing_slice(gpu)) {
        (Refusal::NoPermission, _) => Silence::NoPermission,
        (other, None) => Silence::Fails(other.to_string()),
        (other, Some(slice)) => Silence::Fails(format!("its slice {}:{slice}: {other}", gpu.index)),
    };
    SilentGpu { who, why }
}

/// The number of the slice that fails on a GPU that does not fail itself.
fn failing_slice(gpu: &Listed) -> Option<u32> {
    let told = gpu.told.as_ref().ok().filter(|told| told.part.failure().is_none())?;
    told.slices.iter().flatten().find(|slice| slice.failure().is_some()).map(|slice| slice.index)
}

/// A GPU, for people.
pub(super) fn whole(index: u32, part: &Part) -> String {
    who(index, &part.name, &part.uuid)
}

fn who(index: u32, name: &str, uuid: &str) -> String {
    format!("GPU {index}{}", known(name, uuid))
}

/// What is known of name and UUID, in brackets behind a number.
pub(super) fn known(name: &str, uuid: &str) -> String {
    let known: Vec<&str> = [name, uuid].into_iter().filter(|text| !text.is_empty()).collect();
    if known.is_empty() { String::new() } else { format!(" ({})", known.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::nvml::{Gpu, Link, Memory};

    const LOST: &str = "fell off the bus";

    fn told(uuid: &str, memory: Result<Memory, Refusal>) -> Result<Gpu, Refusal> {
        let no = || Err(Refusal::NotSupported);
        let link = Link { generation: no(), generation_max: no(), width: no(), width_max: no() };
        Ok(Gpu { part: Part { uuid: uuid.into(), name: "NVIDIA L4".into(), memory }, link, slices: None })
    }

    fn fine(uuid: &str) -> Result<Gpu, Refusal> {
        told(uuid, Ok(Memory { total: 4, used: 1, free: 2, reserved: 1 }))
    }

    fn lost() -> Refusal {
        Refusal::Other(LOST.into())
    }

    /// Takes one answer after the other; returns what was silent at the last, as sentences.
    fn after(answers: Vec<Vec<Result<Gpu, Refusal>>>) -> (usize, Vec<String>) {
        let mut roster = Roster::default();
        let mut silent = Vec::new();
        for gpus in answers {
            let gpus = (0..).zip(gpus).map(|(index, told)| Listed { index, told }).collect();
            silent = roster.take(&Answer { driver_version: String::new(), gpus });
        }
        (roster.listed(), silent.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn all_that_answer_are_nobody_to_miss() {
        let refuses = told("GPU-b", Err(Refusal::NoPermission));
        assert_eq!(after(vec![vec![fine("GPU-a"), refuses]]), (2, vec![]));
        assert_eq!(after(vec![vec![]]), (0, vec![]));
    }

    #[test]
    fn one_lost_from_the_start_has_its_number_and_one_lost_later_its_name() {
        let cannot = |who: &str| format!("{who} cannot be read: {LOST}");
        assert_eq!(after(vec![vec![fine("GPU-a"), Err(lost())]]), (2, vec![cannot("GPU 1")]));
        let both = || vec![fine("GPU-a"), fine("GPU-b")];
        let named = cannot("GPU 1 (NVIDIA L4, GPU-b)");
        assert_eq!(after(vec![both(), vec![fine("GPU-a"), Err(lost())]]), (2, vec![named.clone()]));
        assert_eq!(after(vec![both(), vec![fine("GPU-a"), told("GPU-b", Err(lost()))]]), (2, vec![named]));
        // Comes back.
        assert_eq!(after(vec![both(), vec![fine("GPU-a"), Err(lost())], both()]), (2, vec![]));
    }

    #[test]
    fn one_that_is_no_longer_listed_is_missed_whatever_number_the_others_get() {
        let three = || vec![fine("GPU-a"), fine("GPU-b"), fine("GPU-c")];
        let (listed, silent) = after(vec![three(), vec![fine("GPU-a"), fine("GPU-c")]]);
        assert_eq!(listed, 3);
        assert_eq!(
            silent,
            ["GPU 1 (NVIDIA L4, GPU-b) cannot be read: the driver listed it before and lists it no more"]
        );
        let (listed, silent) = after(vec![three(), vec![]]);
        assert_eq!((listed, silent.len()), (3, 3));
        // A GPU that never said who it is.
        let (listed, silent) = after(vec![vec![fine("GPU-a"), Err(lost())], vec![fine("GPU-a")]]);
        assert_eq!((listed, silent.len()), (2, 1));
        assert!(silent[0].starts_with("a GPU cannot"), "{silent:?}");
    }

    #[test]
    fn an_exchanged_gpu_and_a_driver_loaded_anew_are_no_loss() {
        let before = || vec![fine("GPU-a"), fine("GPU-b")];
        assert_eq!(after(vec![before(), vec![fine("GPU-a"), fine("GPU-x")]]), (2, vec![]));
        // The one that was taken out is forgotten, so a later loss names the right one.
        let (_, silent) = after(vec![before(), vec![fine("GPU-a"), fine("GPU-x")], vec![fine("GPU-a")]]);
        assert!(silent.len() == 1 && silent[0].contains("GPU-x"), "{silent:?}");
        assert_eq!(after(vec![before(), before()]), (2, vec![]));
    }
}
