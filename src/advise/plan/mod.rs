//! `plan`: the decision before a launch. Whether this box can have the tier, how many tokens it holds, what it costs,
//! and what to type.
//!
//! What the box cannot hold is a finding, and tokens and flags are told all the same: the box may be another one.
//! Only two wishes are refused and get no flags: a RAM tier where host and GPU share one memory, and any tier of
//! SGLang, which has no such connector.

mod text;

use std::fmt;
use std::path::PathBuf;

use clap::ValueEnum;
use serde::Serialize;

use super::Finding;
use super::check::{disk, shm};
use super::launch::{self, Block};
use super::lmcache::Disk;
use super::words::{count, counted, many, short_size, size};
use crate::host::facts::BoxFacts;
use crate::host::{Place, Standing};

const GIB: f64 = 1_073_741_824.0;

/// Tokens of a chunk of LMCache, as it is configured here.
const CHUNK_TOKENS: f64 = 256.0;

/// The engine that is to be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Engine {
    /// vLLM.
    Vllm,
    /// SGLang.
    Sglang,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Vllm => "vLLM",
            Engine::Sglang => "SGLang",
        })
    }
}

/// What is to be launched. Sizes are per engine, all its ranks together.
#[derive(Clone, Debug, PartialEq)]
pub struct Wish {
    /// What serves.
    pub engine: Engine,
    /// Bytes of the RAM tier.
    pub ram: Option<u64>,
    /// Bytes of the disk tier, and its directory.
    pub disk: Option<(u64, PathBuf)>,
    /// KV bytes of one token, all ranks together.
    pub bytes_per_token: Option<f64>,
    /// Tokens of one engine's pool on the GPU.
    pub gpu_pool_tokens: Option<u64>,
    /// Engines on this box.
    pub engines: u32,
    /// Worker processes of one engine.
    pub ranks: u32,
    /// Tokens of the longest request, which the staging memory of a disk tier has to hold.
    pub longest_request: u64,
}

/// Where it is to be launched.
pub struct Ground<'a> {
    /// The box.
    pub boxed: &'a BoxFacts,
    /// `--gpu.unified`.
    pub said_unified: bool,
    /// The directory of the disk tier; `None` where it did not answer, or none is wished for.
    pub place: Option<&'a Place>,
}

/// A tier that was wished for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedTier {
    /// `ram` or `disk`.
    pub tier: &'static str,
    /// Whether it is offered at all; a tier that does not fit is offered.
    pub offered: bool,
    /// Bytes per engine.
    pub size_bytes: u64,
    /// Bytes of all engines.
    pub total_bytes: u64,
    /// Whole tokens per engine.
    pub tokens: Option<u64>,
    /// How many times the engine's GPU pool that is.
    pub gpu_pool_multiple: Option<f64>,
    /// What it costs, a sentence each.
    pub costs: Vec<String>,
    /// What to type; empty where the tier is not offered.
    pub launch: Vec<Block>,
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The tiers that were wished for.
    pub tiers: Vec<PlannedTier>,
    /// What speaks against them.
    pub findings: Vec<Finding>,
}

/// Plans a launch.
pub fn plan(wish: &Wish, ground: &Ground<'_>) -> Plan {
    let planner = Planner { wish, ground, unified: ground.said_unified || ground.boxed.gpus.iter().any(|g| g.unified) };
    let tiers: Vec<PlannedTier> = planner.ram().into_iter().chain(planner.disk()).collect();
    let findings = planner.findings(&tiers);
    Plan { tiers, findings }
}

struct Planner<'a> {
    wish: &'a Wish,
    ground: &'a Ground<'a>,
    unified: bool,
}

impl Planner<'_> {
    fn is_vllm(&self) -> bool {
        self.wish.engine == Engine::Vllm
    }

    fn tier(&self, tier: &'static str, bytes: u64, offered: bool) -> PlannedTier {
        // Tokens of any real tier are far below what a double counts exactly.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let tokens = self.wish.bytes_per_token.map(|each| (bytes as f64 / each).floor() as u64);
        PlannedTier {
            tier,
            offered,
            size_bytes: bytes,
            total_bytes: bytes.saturating_mul(u64::from(self.wish.engines)),
            tokens,
            gpu_pool_multiple: tokens.zip(self.wish.gpu_pool_tokens).map(|(all, pool)| all as f64 / pool as f64),
            costs: Vec::new(),
            launch: Vec::new(),
        }
    }

    fn ram(&self) -> Option<PlannedTier> {
        let bytes = self.wish.ram?;
        let offered = self.is_vllm() && !self.unified;
        let mut tier = self.tier("ram", bytes, offered);
        if offered {
            let total = tier.total_bytes as f64;
            tier.costs.push(format!(
                "Host memory: {} in {}, taken in full at the start and not given back. Before vLLM 0.27 each rank pins \
                 memory of its own instead, rounded up to powers of two.",
                size(total),
                self.ground.boxed.shm.as_ref().map_or("/dev/shm", |shm| &shm.path)
            ));
            tier.costs.extend(self.pcie(bytes as f64));
            tier.costs.push(
                "GPU memory: copies need some beside the pool; leave 1 GiB free under load (--gpu-memory-utilization)."
                    .to_owned(),
            );
            tier.launch.push(launch::ram(bytes));
        }
        Some(tier)
    }

    /// The link at its best, and what filling the tier once takes over it.
    fn pcie(&self, bytes: f64) -> Option<String> {
        const LANE: [f64; 6] = [0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9];
        let gpu = self.ground.boxed.gpus.iter().find(|gpu| gpu.generation.is_some() && gpu.width.is_some())?;
        let ((_, generation), (_, lanes)) = (gpu.generation?, gpu.width?);
        let each = (1..=6).zip(LANE).find(|(number, _)| f64::from(*number) == generation)?.1;
        let speed = each * lanes;
        Some(format!(
            "PCIe: generation {generation} with {lanes} lanes moves {:.1} GB/s one way at best, so one filling takes \
             {:.1} s of copies or more; stores share the link with everything else.",
            speed / 1e9,
            bytes / speed
        ))
    }

    fn disk(&self) -> Option<PlannedTier> {
        let (bytes, path) = self.wish.disk.as_ref()?;
        let mut tier = self.tier("disk", *bytes, self.is_vllm());
        if !tier.offered {
            return Some(tier);
        }
        let ranks = f64::from(self.wish.ranks);
        let (staging_gib, staging_why) = self.staging();
        let disk =
            Disk { path: path.display().to_string(), bytes_each: *bytes as f64 / ranks, staging_gib, staging_why };
        let staging = staging_gib * GIB * ranks;
        tier.costs.push(format!("Disk: {} under {}.", size(tier.total_bytes as f64), disk.path));
        tier.costs.push(format!(
            "Host memory: {} per engine as staging{}.",
            short_size(staging),
            if self.unified { ", which comes out of the one memory that the GPU uses too" } else { "" }
        ));
        tier.costs.push(
            "Reloads run at the speed of the disk, through host memory. Measure before you rely on it.".to_owned(),
        );
        tier.launch.extend(launch::lmcache(&disk));
        // A refused RAM tier is not brought in again by the back door: then only what is staged.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // A few GiB.
        let cpu_bytes = self.wish.ram.filter(|_| !self.unified).unwrap_or(staging as u64);
        tier.launch.push(launch::fs(&disk.path, cpu_bytes));
        Some(tier)
    }

    /// GiB of staging for each worker process: the KV of the longest request, in whole GiB; a request is stored in
    /// part only where its chunks do not fit. No request is longer than the GPU pool.
    fn staging(&self) -> (f64, String) {
        const OWN: f64 = 5.0;
        let Some(each) = self.wish.bytes_per_token else {
            return (OWN, "LMCache's own 5 GiB, since --bytes-per-token was not given.".to_owned());
        };
        let pool = self.wish.gpu_pool_tokens.unwrap_or(u64::MAX);
        let tokens = self.wish.longest_request.min(pool) as f64;
        let gib = (tokens * each / f64::from(self.wish.ranks) / GIB).ceil().max(1.0);
        let why = format!(
            "The KV of one request of {} tokens at {each} bytes, shared by {}, in whole GiB; of a longer request only a \
             part is stored.",
            count(tokens),
            many(self.wish.ranks as usize, "rank")
        );
        (gib, why)
    }

    /// The staging by the rules of a RAM tier. Beside one that is offered the fs tier lies behind that, and LMCache alone
    /// stages.
    fn staging_room(&self) -> Vec<Finding> {
        let each = self.staging().0 * GIB * f64::from(self.wish.ranks);
        let engines = self.wish.engines;
        let in_mount = self.wish.ram.is_none() || self.unified;
        shm::before_the_start_of_staging(self.ground.boxed, each * f64::from(engines), engines as usize, in_mount)
    }

    fn findings(&self, tiers: &[PlannedTier]) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !self.is_vllm() {
            findings.push(sglang(self.unified));
            return findings;
        }
        findings.extend(self.unified_memory());
        for tier in tiers.iter().filter(|tier| tier.offered) {
            findings.extend(match tier.tier {
                "ram" => {
                    shm::before_the_start_of(self.ground.boxed, tier.total_bytes as f64, self.wish.engines as usize)
                }
                _ => [self.disk_room(tier), self.staging_room()].concat(),
            });
            findings.extend(smaller_than_the_pool(tier, self.wish.gpu_pool_tokens));
        }
        if let [ram, disk] = tiers
            && ram.offered
            && disk.offered
        {
            findings.push(two_connectors());
        }
        if tiers.is_empty() {
            findings.extend(self.could_be());
        }
        findings
    }

    fn unified_memory(&self) -> Option<Finding> {
        if !self.unified {
            return None;
        }
        let part = self.ground.boxed.gpus.iter().find(|gpu| gpu.unified && !self.ground.said_unified);
        let seen = match part {
            Some(gpu) => format!("GPU {} is {}: it shares one memory with the host.", gpu.index, gpu.name),
            None => "--gpu.unified says that GPU and host share one memory.".to_owned(),
        };
        let finding = Finding::new(
            "ram-refused-unified-memory",
            seen,
            "A RAM tier takes its bytes from the memory that the GPU's own KV pool lies in, to cache that pool. It is \
             refused on every such box.",
            "Give the memory to the GPU pool. Where that is not enough use a disk tier: --disk SIZE --path DIR.",
        );
        Some(if self.wish.ram.is_some() { finding } else { finding.as_remark() })
    }

    fn disk_room(&self, tier: &PlannedTier) -> Vec<Finding> {
        let Some((_, path)) = &self.wish.disk else { return Vec::new() };
        let mut findings = disk::directory(path, self.ground.place);
        let Some(place) = self.ground.place else { return findings };
        if place.standing == Standing::Missing {
            // The engine makes it, if it may.
            findings = findings.into_iter().map(Finding::as_remark).collect();
        }
        let wanted = format!("The disk tier takes {}", size(tier.total_bytes as f64));
        if let Some(left) = place.room.and_then(|room| room.available).filter(|left| *left < tier.total_bytes) {
            findings.push(Finding::new(
                "disk-too-small",
                format!("{wanted}; {} has {} left.", path.display(), size(left as f64)),
                "On a full disk writes fail quietly while the tier's own figures go on growing.",
                "Make the tier smaller, or use a larger disk.",
            ));
        }
        findings.extend(self.inodes(tier, place));
        findings
    }

    /// One file for each chunk and rank.
    fn inodes(&self, tier: &PlannedTier, place: &Place) -> Option<Finding> {
        let left = place.room?.inodes_free? as f64;
        let engines = f64::from(self.wish.engines) * f64::from(self.wish.ranks);
        let files = (tier.tokens? as f64 / CHUNK_TOKENS).ceil() * engines;
        (left < files).then(|| {
            Finding::new(
                "disk-inodes-too-few",
                format!(
                    "The disk tier makes {} of 256 tokens; {} {} left.",
                    counted(files, "file"),
                    counted(left, "inode"),
                    if left == 1.0 { "is" } else { "are" }
                ),
                "Without inodes writes fail although there is room.",
                "Make the file system anew with more inodes, or the tier smaller.",
            )
        })
    }

    /// What a wish could be.
    fn could_be(&self) -> Option<Finding> {
        let boxed = self.ground.boxed;
        let mount = boxed.shm.as_ref()?;
        let walls = [mount.available, mount.headroom.as_ref().map(|(left, _)| *left), boxed.memory_available];
        let room = walls.into_iter().flatten().reduce(f64::min).filter(|_| !self.unified)?;
        // What `check` asks for beside a tier.
        let gib = ((room - shm::SMALL) / f64::from(self.wish.engines) / GIB).floor();
        let engines = match self.wish.engines {
            1 => "the engine".to_owned(),
            several => format!("each of {several} engines"),
        };
        let (most, action) = if gib >= 1.0 {
            (
                format!("With 1 GiB beside it a RAM tier can take {gib} GiB for {engines} here."),
                format!("Say a size of at most that, such as --ram {gib}GiB."),
            )
        } else {
            (
                format!("With 1 GiB beside it that is not one GiB for {engines}: no RAM tier fits here."),
                "Give the mount or the container more memory, or plan a disk tier with --disk SIZE --path DIR."
                    .to_owned(),
            )
        };
        let remark = Finding::new(
            "no-size-given",
            format!(
                "Neither --ram nor --disk was given. {}, the engine's memory limit as far as it is known, and the \
                 host's memory leave {}.",
                mount.path,
                size(room)
            ),
            most,
            action,
        );
        Some(remark.as_remark())
    }
}

fn sglang(unified: bool) -> Finding {
    let memory =
        if unified { " On this box host and GPU share one memory, so its host pool is no gain here." } else { "" };
    Finding::new(
        "sglang-no-connector",
        "SGLang is launched without vLLM's connectors.",
        "So there is no tier to plan: neither --kv-offloading-size nor an LMCache connector is a flag of SGLang's.",
        format!(
            "SGLang's own tier is HiCache: --enable-hierarchical-cache with --hicache-ratio 2 (host pool as a multiple \
             of the GPU pool) or --hicache-size N (GB for each rank), and --hicache-storage-backend file for a disk \
             behind it. This exporter shows it once the engine serves with --enable-metrics.{memory}"
        ),
    )
}

fn smaller_than_the_pool(tier: &PlannedTier, pool: Option<u64>) -> Option<Finding> {
    let (tokens, pool, multiple) = (tier.tokens?, pool?, tier.gpu_pool_multiple?);
    (multiple < 1.0).then(|| {
        Finding::new(
            "tier-smaller-than-gpu-pool",
            format!(
                "The {} tier holds {} tokens, {multiple:.2} times the {} tokens of the GPU pool.",
                tier.tier,
                count(tokens as f64),
                count(pool as f64)
            ),
            "What the pool evicts has mostly been pushed out of the tier by then, so it is written and never read.",
            "Make it several times as large as the pool.",
        )
    })
}

fn two_connectors() -> Finding {
    let remark = Finding::new(
        "two-connectors",
        "A RAM tier of vLLM and a disk tier of LMCache were both asked for.",
        "Each is a connector of its own, and an engine takes one.",
        "Take one of them, or the fs tier below: it lies behind a RAM tier of the size given.",
    );
    remark.as_remark()
}
