//! What `/debug` says of engines, tiers, bounds and corrections: every input with the family it came from.

use crate::bound::{Fill, Resolved, ResolvedTier};
use crate::correct::Corrected;
use crate::model::{Fact, Quotient, Residency, Snapshot};
use crate::notice::kinds::FACTS_NOT_PLACED;
use crate::redact::Lines;
use crate::share::Withheld;

/// The whole explanation, as text.
pub fn explain(snapshot: &Snapshot, engines: &[Resolved<'_>], corrected: &[Corrected]) -> String {
    let mut out = Text::default();
    out.line(0, "dialects", if snapshot.dialects.is_empty() { "none recognised" } else { "" });
    for dialect in &snapshot.dialects {
        out.line(1, dialect, "");
    }
    out.line(0, "engine kind", snapshot.engine_kind.unwrap_or("not recognised"));
    out.line(0, "version", snapshot.version_range.as_deref().unwrap_or("not told by the families on the page"));
    if snapshot.disk_claimed.is_some() {
        out.fact(0, "bytes that LMCache believes it keeps on disk (no measurement)", snapshot.disk_claimed);
    }
    for (kind, labels) in snapshot.told_by.iter().filter(|(_, labels)| !labels.is_empty()) {
        out.line(0, &format!("labels that tell engines apart ({kind})"), &labels.join(", "));
    }
    for note in &snapshot.notes {
        // What else is noted may be shown all the same, such as a tier at an unknown end.
        out.line(0, if *note.kind == FACTS_NOT_PLACED { "not placed" } else { "noted" }, &note.text);
    }
    for engine in engines {
        out.engine(engine);
    }
    for one in corrected {
        out.correction(one);
    }
    out.0.text()
}

const UNDECLARED: &str = "the page cannot tell it from a staging buffer or an unused backend. If it is a tier, say so by its size: --tier.size";

#[derive(Default)]
struct Text(Lines);

impl Text {
    fn line(&mut self, depth: usize, name: &str, value: &str) {
        let indent = "  ".repeat(depth);
        let gap = if value.is_empty() { "" } else { ": " };
        self.0.line(format_args!("{indent}{name}{gap}{value}"));
    }

    fn fact(&mut self, depth: usize, name: &str, fact: Option<Fact>) {
        match fact {
            Some(fact) => self.line(depth, name, &format!("{} (from {})", fact.value, fact.from)),
            None => self.line(depth, name, "unknown"),
        }
    }

    fn engine(&mut self, resolved: &Resolved<'_>) {
        let engine = resolved.engine;
        self.line(0, "", "");
        self.line(0, &format!("engine {}", engine.id), "");
        self.fact(1, "prompt tokens", engine.prompt_total);
        for (source, fact) in &engine.prompt_tokens {
            self.fact(2, source, Some(*fact));
        }
        for (source, fact) in &engine.served_tokens {
            self.fact(1, &format!("tokens served, {source}"), Some(*fact));
        }
        self.fact(1, "tokens supplied by the connector", engine.external_hits);
        if engine.lookup_hits.is_some() {
            self.quotient(1, "tokens found by LMCache's lookups", engine.lookup_hits);
        }
        self.quotient(1, "computed by prefill", engine.prefill_computed);
        self.quotient(
            1,
            "prefill seconds a token",
            Quotient::of(engine.finished.prefill_seconds, engine.finished.computed_tokens),
        );
        self.fact(1, "GPU pool, tokens", engine.gpu_pool_tokens);
        self.fact(1, "GPU pool, share in use", engine.gpu_pool_used);
        self.fact(1, "tokens of a GPU block", engine.block_tokens);
        if let Some(shown) = resolved.several_groups {
            self.line(1, "KV groups", &format!("several ({shown})"));
        }
        self.fact(1, "requests preempted", engine.preemptions);
        if let Some(connector) = engine.other_connector {
            self.line(1, "another connector supplies tokens too", connector);
        }
        let per_token = resolved.bytes_per_token.map(|p| format!("{} (method {})", p.bytes, p.method));
        self.line(
            1,
            "KV bytes of a token",
            &per_token.unwrap_or_else(|| "unknown: give it with --kv.bytes-per-token".into()),
        );
        let ranks = resolved.ranks.map(|ranks| ranks.to_string());
        self.line(1, "ranks", &ranks.unwrap_or_else(|| "unknown: give it with --engine.ranks".into()));
        for evidence in &engine.reset_evidence {
            self.line(1, "may have emptied the RAM tier", evidence);
        }
        for withheld in &resolved.withheld {
            self.withheld(withheld);
        }
        for tier in &resolved.tiers {
            self.tier(tier);
        }
        if resolved.tiers.is_empty() {
            self.line(1, "tiers", "none on this page");
        }
        for tier in engine.tiers.iter().filter(|tier| tier.only_if_declared) {
            if !resolved.tiers.iter().any(|known| known.tier.name == tier.name) {
                self.line(1, &format!("tier {:?} is not counted", tier.name), UNDECLARED);
            }
        }
    }

    fn quotient(&mut self, depth: usize, name: &str, quotient: Option<Quotient>) {
        let Some(quotient) = quotient else { return self.line(depth, name, "unknown") };
        let value = quotient.value().map_or_else(|| "unknown (divided by 0)".to_owned(), |value| value.to_string());
        self.line(depth, name, &format!("{value} = {quotient}"));
    }

    fn withheld(&mut self, Withheld { family, tier, value, from }: &Withheld) {
        let of = tier.as_ref().map(|tier| format!(" of tier {tier:?}")).unwrap_or_default();
        let why = format!("it would be {value}, outside 0 to 1: the page contradicts itself (from {from})");
        self.line(1, &format!("withheld: {family}{of}"), &why);
    }

    fn tier(&mut self, resolved: &ResolvedTier<'_>) {
        let tier = resolved.tier;
        self.line(1, &format!("tier {:?} on {} by {}", tier.name, tier.medium, tier.connector), "");
        match resolved.size {
            Some(size) => self.line(
                2,
                "size",
                &format!("{} bytes (from {}, source {})", size.fact.value, size.fact.from, size.source),
            ),
            None => self.line(2, "size", "unknown: give it with --tier.size"),
        }
        for size in &tier.sizes {
            self.fact(3, &format!("stated as {}", size.source), Some(size.fact));
        }
        if let Some(shown) = resolved.size_shown() {
            self.line(3, "mismatch", &shown);
        } else if resolved.mismatch == Some(true) {
            self.line(3, "mismatch", "--tier.size and the engine differ by more than one slot; the flag is used");
        }
        self.line(
            2,
            "size in tokens",
            &resolved.size_tokens.map_or_else(|| "unknown".into(), |tokens| tokens.to_string()),
        );
        self.fact(2, "stored bytes", tier.transfers.stored_bytes);
        self.fact(2, "reloaded bytes", tier.transfers.reloaded_bytes);
        self.fact(2, "store seconds", tier.transfers.store_seconds);
        self.fact(2, "reload seconds", tier.transfers.reload_seconds);
        self.fact(2, "pinned by copies in flight", tier.pinned);
        self.fact(2, "pinned by unfinished stores", tier.storing);
        if let Some(slots) = tier.slots {
            self.fact(2, "slots", Some(slots.count));
            self.fact(2, "slots handed out", slots.allocated);
        }
        if tier.refusals > 0.0 {
            self.line(2, "refused or failed allocations and promotions", &tier.refusals.to_string());
        }
        self.fill(&resolved.fill);
        if resolved.assumes_one_group() {
            self.line(
                3,
                "assumed",
                "one KV group: the page shows no more. With several (a hybrid model) it bounds nothing",
            );
        }
        match tier.residency {
            Some(Residency::Bytes(bytes)) => self.fact(3, "resident bytes", Some(bytes)),
            Some(Residency::Share(quotient)) => self.quotient(3, "resident share", Some(quotient)),
            None => {}
        }
    }

    fn fill(&mut self, fill: &Fill) {
        match fill {
            Fill::Unknown(why) => self.line(2, "fill", &format!("unknown: {why}")),
            Fill::Measured { share, .. } => self.line(2, "fill", &format!("{share} of the size (measured)")),
            Fill::AtMost { bytes, share, terms } => {
                self.line(2, "fill", &format!("at most {bytes} bytes, {share} of the size"));
                for term in terms {
                    self.line(3, term.name, &format!("{} bytes", term.bytes));
                }
            }
        }
    }

    fn correction(&mut self, one: &Corrected) {
        self.line(0, "", "");
        self.line(0, &format!("{} of engine {}", one.family, one.engine), "");
        self.line(1, "before", &one.before.to_string());
        match one.after {
            Ok(value) => self.line(1, "after", &value.to_string()),
            Err(why) => self.line(1, "not corrected", why),
        }
    }
}
