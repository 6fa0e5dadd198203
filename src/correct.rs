//! Which upstream family is replaced by what, and why.
//!
//! A row of [`CORRECTIONS`] names an upstream gauge that misleads and the tier whose fill stands in its place. An
//! engine whose fill is unknown keeps its samples as they came, and that is said: in
//! `kvtier_correction_active`, in the family's HELP and in `/debug`.

use crate::bound::{DOUBTFUL, Fill, Resolved};
use crate::derive::engine_labels;
use crate::dialect::{self, RAM_USAGE};
use crate::exposition::{self, Edit, Exposition, Metadata, Sample, Span, Through};
use crate::family::{Desc, Family, Labels};
use crate::model::{EngineId, Owner, Snapshot};
use crate::share::share;

/// One upstream family and what takes its place.
pub struct Correction {
    /// The upstream family, a gauge with one or more samples for each engine.
    pub family: &'static str,
    /// The tier whose fill replaces its value.
    pub tier: &'static str,
    /// What upstream's own value really says, after "The engine's own value".
    pub really: &'static str,
}

/// All corrections.
pub const CORRECTIONS: &[Correction] =
    &[Correction { family: RAM_USAGE, tier: "ram", really: "counts only chunks pinned by copies in flight" }];

/// `kvtier_correction_active`.
pub const ACTIVE: Desc = Desc::gauge(
    "kvtier_correction_active",
    "1 where the engine's samples of this upstream family were replaced, 0 where they passed as they came.",
);

/// What became of one engine's samples of a corrected family.
#[derive(Clone, Debug, PartialEq)]
pub struct Corrected {
    /// The upstream family.
    pub family: &'static str,
    /// Whose samples.
    pub engine: EngineId,
    /// The largest value that upstream gave.
    pub before: f64,
    /// What replaced it, or why nothing did.
    pub after: Result<f64, &'static str>,
}

/// Adds the edits of all corrections to `edits` and says what became of each engine. The engines are the snapshot's, in its
/// order.
pub fn correct(
    page: &Exposition<'_>,
    snapshot: &Snapshot,
    engines: &[Resolved<'_>],
    enabled: bool,
    edits: &mut Vec<Edit>,
) -> Vec<Corrected> {
    CORRECTIONS.iter().flat_map(|row| correct_family(row, page, snapshot, engines, enabled, edits)).collect()
}

/// The samples of `kvtier_correction_active`.
pub fn active(corrected: &[Corrected]) -> Family {
    let mut family = Family::new(ACTIVE);
    for one in corrected {
        let labels = Labels::from([("family", one.family.to_owned())]);
        family.push(labels.and(&engine_labels(&one.engine)), f64::from(u8::from(one.after.is_ok())));
    }
    family
}

fn correct_family(
    row: &Correction,
    page: &Exposition<'_>,
    snapshot: &Snapshot,
    engines: &[Resolved<'_>],
    enabled: bool,
    edits: &mut Vec<Edit>,
) -> Vec<Corrected> {
    let mut done: Vec<Corrected> = Vec::new();
    let mut measured = false;
    let owner = dialect::owner(snapshot, row.family);
    let impossible = impossible(row, page, engines, &owner);
    let mut unclear: Option<f64> = None;
    for sample in page.samples(row.family) {
        let engine = match owner(sample.labels) {
            Owner::One(at) => &engines[at],
            Owner::Several => {
                unclear = Some(unclear.map_or(sample.value, |value| value.max(sample.value)));
                continue;
            }
            Owner::Nobody => continue,
        };
        let fill = engine.tiers.iter().find(|tier| tier.tier.name == row.tier).map(|tier| &tier.fill);
        let after = match enabled {
            false => Err(OFF),
            true if page.through == Through::Corrected => Err(CORRECTED),
            true if engine.engine.doubts_whose(row.family) => Err(DOUBTFUL),
            true if impossible.contains(&&engine.engine.id) => Err(NO_SHARE),
            true => outcome(fill),
        };
        let earlier = done.iter_mut().rfind(|one| one.engine == engine.engine.id);
        if let Ok(value) = after {
            measured |= matches!(fill, Some(Fill::Measured { .. }));
            let another_process = earlier.is_some() && of_a_process(sample);
            edits.push(if another_process { taken_out(sample) } else { replaced(page, sample, value) });
        }
        match earlier {
            // A duplicate passes as the first of its series does.
            Some(one) if of_a_process(sample) || one.after == Err(DOUBTFUL) => {
                one.before = one.before.max(sample.value);
            }
            Some(_) => {}
            None => {
                let engine = engine.engine.id.clone();
                done.push(Corrected { family: row.family, engine, before: sample.value, after });
            }
        }
    }
    if let Some(before) = unclear {
        let is_new = |engine: &&Resolved<'_>| !done.iter().any(|one| one.engine == engine.engine.id);
        let doubtful = engines.iter().filter(|engine| engine.engine.doubts_whose(row.family)).filter(is_new);
        let untouched = doubtful.map(|engine| {
            let after = Err(if enabled { DOUBTFUL } else { OFF });
            Corrected { family: row.family, engine: engine.engine.id.clone(), before, after }
        });
        done.extend(untouched.collect::<Vec<_>>());
    }
    if done.iter().any(|one| one.after.is_ok()) {
        let all = done.iter().all(|one| one.after.is_ok());
        say_in_help(page, row, &help(row, all, measured), edits);
    }
    done
}

const OFF: &str = "switched off by --correct=off";

/// Why a gauge passes that is corrected already.
pub const CORRECTED: &str = "another kvtier-exporter has corrected it before it came here";

/// Why a gauge that is no share passes: it may mean something else than the one that misleads (a fork's percents).
pub const NO_SHARE: &str = "the engine's own value is no share of a whole, so what it means is not known";

/// The engines that have a sample of the family which is outside 0…1. A NaN claims nothing.
fn impossible<'r>(
    row: &Correction,
    page: &Exposition<'_>,
    engines: &'r [Resolved<'_>],
    owner: &impl Fn(exposition::Labels<'_>) -> Owner,
) -> Vec<&'r EngineId> {
    let samples = page.samples(row.family).iter();
    let outside = samples.filter(|sample| !sample.value.is_nan() && share(sample.value).is_none());
    let of_one = outside.filter_map(|sample| match owner(sample.labels) {
        Owner::One(at) => Some(&engines[at].engine.id),
        _ => None,
    });
    of_one.collect()
}

/// Several processes report the gauge of one engine; the fill is the engine's.
fn of_a_process(sample: &Sample<'_>) -> bool {
    sample.labels.raw("pid").is_some()
}

fn outcome(fill: Option<&Fill>) -> Result<f64, &'static str> {
    match fill {
        Some(Fill::Unknown(why)) => Err(why),
        Some(Fill::AtMost { share, .. } | Fill::Measured { share, .. }) => Ok(*share),
        None => Err("the engine has no such tier"),
    }
}

/// The first sample of an engine gets the new value. A `pid` goes: the fill is the engine's, not a process's.
fn replaced(page: &Exposition<'_>, sample: &Sample<'_>, value: f64) -> Edit {
    let name = name_of(page, sample);
    if sample.labels.raw("pid").is_none() {
        // A value like `.5` needs no blank behind the name, and its successor does.
        let blank = if sample.line.start + name.len() == sample.value_at.start { " " } else { "" };
        return Edit { span: sample.value_at, text: format!("{blank}{value:?}") };
    }
    let labels: Vec<String> = sample
        .labels
        .iter()
        .filter(|(name, _)| *name != "pid")
        .map(|(name, text)| format!("{name}=\"{text}\""))
        .collect();
    let written = Span { start: sample.line.start, end: sample.value_at.end };
    let text = format!("{name}{{{}}} {value:?}", labels.join(","));
    Edit { span: written, text }
}

fn taken_out(sample: &Sample<'_>) -> Edit {
    Edit { span: sample.line, text: String::new() }
}

fn help(row: &Correction, all: bool, measured: bool) -> String {
    let what = if measured {
        "Share of the tier that is in use, as the engine or its KV cache events tell it; where they do not, an upper bound"
    } else {
        "Upper bound of the share of the tier that is in use, not its residency"
    };
    let scope = if all {
        ""
    } else {
        " Replaced only where kvtier_correction_active is 1; elsewhere it is the engine's own value."
    };
    format!(
        "{what}: kvtier_tier_fill_upper_bound_ratio{{tier=\"{tier}\"}}, by the rule min(tier size, bytes stored since engine start) with the further terms that bound_basis of kvtier_tier_info names. \
         The engine's own value {really}; it is kvtier_tier_pinned_ratio{{tier=\"{tier}\"}} now.{scope}",
        tier = row.tier,
        really = row.really,
    )
}

/// Replaces the HELP line, or writes one before the first line of the family where it has none.
fn say_in_help(page: &Exposition<'_>, row: &Correction, help: &str, edits: &mut Vec<Edit>) {
    let lines = page.metadata.iter().filter(|(name, _, _)| page.spelled(*name) == row.family);
    let helps: Vec<Span> =
        lines.clone().filter(|(_, kind, _)| *kind == Metadata::Help).map(|(_, _, span)| *span).collect();
    let samples = page.samples(row.family).iter().map(|sample| sample.line);
    let Some(start) = lines.map(|(_, _, span)| span.start).chain(samples.map(|span| span.start)).min() else { return };
    let text = format!("# HELP {} {help}\n", spelling(page, row));
    if helps.is_empty() {
        edits.push(Edit { span: Span { start, end: start }, text });
    } else {
        edits.extend(helps.into_iter().map(|span| Edit { span, text: text.clone() }));
    }
}

/// The family's name as its samples spell it on this page.
fn spelling<'p>(page: &'p Exposition<'_>, row: &Correction) -> &'p str {
    page.samples(row.family).first().map_or(row.family, |sample| name_of(page, sample))
}

/// The sample's name as it stands there. An underscore may stand for a colon; it is as long.
fn name_of<'p>(page: &'p Exposition<'_>, sample: &Sample<'_>) -> &'p str {
    let known = page.spelled(sample.name);
    let written = sample.line.of(page.body).get(..known.len());
    written.and_then(|name| std::str::from_utf8(name).ok()).unwrap_or(known)
}
