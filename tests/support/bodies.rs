//! Bodies by the thousand: pieces of captured pages and lines made of odd parts, each damaged a few times.
//!
//! The same seed gives the same bodies, up to the present time in some timestamps: a Prometheus keeps no sample that
//! is old. Nothing here knows what is valid; others judge that.

use kvtier_exporter::pipeline::Format;

use super::captures;
use super::damage::{Around, DAMAGES, LABELS, NAMES, TYPES, VALUES};
use super::sameness::holds;

/// A body and what was done to get it.
#[derive(Clone, Debug)]
pub struct Body {
    /// What a server would send.
    pub bytes: Vec<u8>,
    /// What it would call it.
    pub format: Format,
    /// What was done, for a message.
    pub how: Vec<&'static str>,
}

/// Makes `count` bodies; `now` is in milliseconds.
pub fn bodies(seed: u64, count: usize, now: u64) -> Vec<Body> {
    let mut draw = Draw(seed);
    let pools = [Pool::of(Format::Text), Pool::of(Format::OpenMetrics)];
    (0..count).map(|_| body(&mut draw, &pools, now)).collect()
}

fn body(draw: &mut Draw, pools: &[Pool; 2], now: u64) -> Body {
    let pool = &pools[usize::from(draw.below(4) == 0)];
    let (start, mut bytes) = if draw.below(4) == 0 {
        ("made", made(draw))
    } else {
        let count = 1 + draw.below(5);
        ("captured", (0..count).flat_map(|_| pool.family(draw).to_vec()).collect())
    };
    if pool.format == Format::OpenMetrics {
        bytes.extend(b"# EOF\n");
    }
    let mut how = vec![start];
    for _ in 0..[0, 1, 1, 1, 2, 2, 3, 5][draw.below(8)] {
        let (name, damage) = *draw.one_of(DAMAGES);
        how.push(name);
        let around = Around { other: pool.family(draw), format: pool.format, now };
        damage(draw, &mut bytes, &around);
    }
    Body { bytes, format: pool.format, how }
}

/// A stream of numbers by SplitMix64, whose every value follows from the seed.
pub struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).unwrap()
    }

    /// Any of them; there must be one.
    pub fn one_of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }
}

/// Families of all captures in one format, each with its HELP and TYPE and a few samples.
struct Pool {
    format: Format,
    families: Vec<Vec<u8>>,
    /// Those that tell of a tier.
    of_tiers: Vec<Vec<u8>>,
}

/// Histograms repeat themselves: more lines of a family would only take time.
const LINES_OF_A_FAMILY: usize = 12;

impl Pool {
    fn of(format: Format) -> Pool {
        let captures = captures::all().into_iter().filter(|capture| capture.format == format);
        let families: Vec<Vec<u8>> = captures.flat_map(|capture| families(&capture.body)).collect();
        let tells = |family: &Vec<u8>| {
            ["offload", "cache_config", "lmcache", "hicache"].iter().any(|word| holds(family, word.as_bytes()))
        };
        let of_tiers = families.iter().filter(|family| tells(family)).cloned().collect();
        Pool { format, families, of_tiers }
    }

    fn family(&self, draw: &mut Draw) -> &[u8] {
        let families = if draw.below(2) == 0 { &self.of_tiers } else { &self.families };
        draw.one_of::<Vec<u8>>(families)
    }
}

/// A page cut before each HELP line; no piece is long.
pub fn families(page: &[u8]) -> Vec<Vec<u8>> {
    let mut families: Vec<Vec<&[u8]>> = Vec::new();
    for line in page.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"# EOF")) {
        if families.is_empty() || line.starts_with(b"# HELP ") {
            families.push(Vec::new());
        }
        families.last_mut().unwrap().push(line);
    }
    families.iter().map(|lines| lines[..lines.len().min(LINES_OF_A_FAMILY)].concat()).collect()
}

/// A few lines, each of a name, labels, a value and what may follow.
fn made(draw: &mut Draw) -> Vec<u8> {
    let mut page = Vec::new();
    for _ in 0..=draw.below(10) {
        let name = *draw.one_of(NAMES);
        if draw.below(4) == 0 {
            page.extend([b"# TYPE ", name, b" ", *draw.one_of(TYPES), b"\n"].concat());
        }
        let mut line = name.to_vec();
        if draw.below(2) == 0 {
            let labels: Vec<&[u8]> =
                (0..draw.below(4)).map(|at| LABELS[(at * 7 + draw.below(7)) % LABELS.len()]).collect();
            line.extend([b"{", &labels.concat()[..], b"}"].concat());
        }
        let value = if draw.below(3) == 0 { *draw.one_of(VALUES) } else { &b"7.5e3"[..] };
        line.extend([b" ", value].concat());
        page.extend(line);
        page.push(b'\n');
    }
    page
}
