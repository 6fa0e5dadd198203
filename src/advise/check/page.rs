//! What the engine's page shows, and what it should show and does not.

use super::{Facts, Page, engine_name};
use crate::advise::Finding;
use crate::advise::words::{count, counted, many, percent, short_count, size};
use crate::bound::{Fill, Resolved, ResolvedTier, SHARED};

/// The connector that counts neither bytes nor seconds.
pub(super) const SIMPLE: &str = "SimpleCPUOffloadConnector";

/// Whether nothing of an engine was left unread because it may be another's: only then does a page lack what is not known.
fn is_read(engine: &Resolved<'_>) -> bool {
    engine.engine.doubts.is_empty()
}

/// A RAM tier that was asked for, and not one counter of its copies.
pub(super) fn no_transfers(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(page) = &facts.page else { return Vec::new() };
    let silent = |tier: &ResolvedTier<'_>| tier.tier.name == "ram" && tier.tier.transfers.stored_bytes.is_none();
    page.tiers()
        .filter(|(engine, tier)| is_read(engine) && silent(tier))
        .map(|(engine, tier)| no_transfers_of(page, engine, tier))
        .collect()
}

fn no_transfers_of(page: &Page<'_>, engine: &Resolved<'_>, tier: &ResolvedTier<'_>) -> Finding {
    let bytes = tier.size.map_or("of unknown size".to_owned(), |size_| format!("of {}", size(size_.fact.value)));
    let version = page.survey.snapshot.version_range.as_deref().unwrap_or("of unknown version");
    let which = match tier.tier.connector {
        SIMPLE => "It is the SimpleCPUOffloadConnector, which counts neither bytes nor seconds in any version.",
        _ if page.versions().1.is_some_and(|newest| newest < 16) => {
            "vLLM before 0.16 counts no copies of its OffloadingConnector."
        }
        _ => {
            "The OffloadingConnector counts its copies from 0.16 on, so this is another connector (the \
             SimpleCPUOffloadConnector shows nothing before 0.31), a Rust frontend, or a tier that did not start."
        }
    };
    Finding::new(
        "tier-without-transfer-metrics",
        format!(
            "{} has a RAM tier {bytes}, and its page (vLLM {version}) has no vllm:kv_offload_* bytes. {which}",
            engine_name(engine)
        ),
        match served(engine) {
            Some(_) => "Its fill and its copy speeds cannot be told.",
            None => "Its fill, its copy speeds and whether it is used at all cannot be told.",
        },
        "Look for the connector's name in the engine's log. To have the figures run vLLM 0.16 or newer with its \
         OffloadingConnector (--kv-offloading-backend native, without VLLM_USE_SIMPLE_KV_OFFLOAD).",
    )
}

/// Tokens that something supplied to an engine, if any, and those that it was asked for.
fn served(engine: &Resolved<'_>) -> Option<(f64, Option<f64>)> {
    let engine = engine.engine;
    let by_source: f64 = engine.served_tokens.values().map(|fact| fact.value).sum();
    let tokens = by_source.max(engine.external_hits.map_or(0.0, |fact| fact.value));
    (tokens > 0.0).then(|| (tokens, engine.external_queries.map(|fact| fact.value)))
}

/// Tokens that came from outside the GPU pool, where no tier shows that it gave any.
pub(super) fn served_by_no_tier(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(page) = &facts.page else { return Vec::new() };
    if page.survey.names.iter().any(|name| is_of_lmcache(name)) {
        return Vec::new();
    }
    let shows = |tier: &ResolvedTier<'_>| {
        let tier = tier.tier;
        tier.transfers.reloaded_bytes.is_some() || tier.residency.is_some() || tier.connector == SIMPLE
    };
    let silent = page.engines.iter().filter(|engine| is_read(engine) && !engine.tiers.iter().any(shows));
    silent.filter_map(|engine| Some(served_by_no_tier_of(engine, served(engine)?))).collect()
}

fn served_by_no_tier_of(engine: &Resolved<'_>, (tokens, asked): (f64, Option<f64>)) -> Finding {
    let asked = asked.filter(|asked| *asked >= tokens);
    let share = asked.map(|asked| format!(", {} of those that were asked for", percent(tokens / asked)));
    Finding::new(
        "tokens-served-by-no-tier",
        format!(
            "{} ({}{}) of {} {} served by something that shows no tier.",
            format_args!("{} token{}", short_count(tokens), if tokens == 1.0 { "" } else { "s" }),
            count(tokens),
            share.unwrap_or_default(),
            engine_name(engine),
            if tokens == 1.0 { "was" } else { "were" }
        ),
        "A connector supplied them, so prefill did not compute them; which one, from where and how fast its page does not tell.",
        "Look for kv_connector in the engine's log. LMCache shows its metrics where PROMETHEUS_MULTIPROC_DIR was exported \
         before vLLM started, or on a page of its own (--upstream.extra); NIXL moves KV between engines and is no tier.",
    )
    .as_remark()
}

pub(super) fn is_of_lmcache(name: &str) -> bool {
    ["lmcache:", "lmcache_"].iter().any(|start| name.starts_with(start))
}

/// LMCache was asked for, and the page has no name of it.
pub(super) fn lmcache_is_silent(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(page) = &facts.page else { return Vec::new() };
    let configured = page.survey.configured.iter().find(|one| one.backend == "lmcache");
    let declared = facts.settings.tier_sizes.keys().find(|tier| tier.starts_with("lmcache_"));
    let wanted = match (configured, declared) {
        (Some(one), _) => format!("engine {:?} offloads to LMCache", one.engine),
        (None, Some(tier)) => format!("--tier.size declares the tier {tier}"),
        (None, None) => return Vec::new(),
    };
    if page.survey.names.iter().any(|name| is_of_lmcache(name)) {
        return Vec::new();
    }
    vec![Finding::new(
        "lmcache-metrics-missing",
        format!("{wanted}, and of {} on the page none is LMCache's.", many(page.survey.names.len(), "metric name")),
        "LMCache counts in the engine's worker processes; its metrics reach vLLM's page only where \
         PROMETHEUS_MULTIPROC_DIR was exported before vLLM started. It may also have failed to start.",
        "Export PROMETHEUS_MULTIPROC_DIR=DIR (an empty directory on a local disk) before `vllm serve`, or let LMCache \
         serve its own page (internal_api_server_enabled: true) and give that as a further upstream.",
    )]
}

/// A tier that holds less than the pool in front of it.
pub(super) fn smaller_than_the_pool(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(page) = &facts.page else { return Vec::new() };
    let sized = page.tiers().filter_map(|(e, t)| Some((e, t, t.size_tokens?, e.engine.gpu_pool_tokens?.value)));
    sized
        .filter(|(_, _, tokens, pool)| tokens < pool)
        .map(|(engine, tier, tokens, pool)| {
            Finding::new(
                "tier-smaller-than-gpu-pool",
                format!(
                    "Tier {} of {} holds {}, {:.2} times the {} of its GPU pool.",
                    tier.tier.name,
                    engine_name(engine),
                    counted(tokens, "token"),
                    tokens / pool,
                    counted(pool, "token")
                ),
                "What the pool evicts has mostly been pushed out of the tier by then, so it is written and never read.",
                "Make the tier several times as large as the pool, or do without it. `kvtier-exporter plan` reckons \
                 the size.",
            )
        })
        .collect()
}

/// A model whose layers share the tier in slots, which the page does not count; or one of which that is not told.
pub(super) fn kv_groups(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(page) = &facts.page else { return Vec::new() };
    let shared = page.tiers().filter(|(_, tier)| tier.fill == Fill::Unknown(SHARED));
    let shared = shared.map(|(engine, tier)| {
        Finding::new(
            "tier-of-several-kv-groups",
            format!(
                "{} splits its KV over several groups ({}), and nothing on its page bounds the fill of tier {}.",
                engine_name(engine),
                engine.several_groups.unwrap_or("as its page shows"),
                tier.tier.name
            ),
            "Chunks of all groups take slots of one size, so the tier is full long before as many bytes were stored. The \
             engine's gauge passes as it came.",
            "vLLM 0.33 counts slots. Before that judge the tier by what it brings: tokens served, and the share that \
             prefill computes.",
        )
    });
    let assumed = page.tiers().filter(|(_, tier)| tier.assumes_one_group()).map(|(engine, tier)| {
        Finding::new(
            "kv-groups-not-told",
            format!(
                "The fill of tier {} of {} is a bound for models of one KV group, and the page shows no others.",
                tier.tier.name,
                engine_name(engine)
            ),
            "Where slots are not counted (before vLLM 0.33, or after a store was refused) a hybrid model (attention beside \
             Mamba, linear attention or sliding windows, or a draft model) fills its tier long before as many bytes were \
             stored, and not every page tells it from others.",
            "Nothing, if all layers of the model are of one kind. Otherwise do not rely on the fill.",
        )
    });
    shared.chain(assumed).map(Finding::as_remark).collect()
}

/// Bytes in, lookups, and not one byte back.
pub(super) fn never_reloaded(facts: &Facts<'_>) -> Vec<Finding> {
    let Ok(page) = &facts.page else { return Vec::new() };
    let told = page.tiers().filter(|(_, tier)| tier.tier.name == "ram").filter_map(|(engine, tier)| {
        let asked = page.survey.serving.iter().find(|serving| serving.id == engine.engine.id)?.asked?.value;
        let transfers = tier.tier.transfers;
        Some((engine, asked, transfers.stored_bytes?.value, transfers.reloaded_bytes?.value))
    });
    told.filter(|(_, asked, stored, reloaded)| *asked > 0.0 && *stored > 0.0 && *reloaded == 0.0)
        .map(|(engine, asked, stored, _)| {
            Finding::new(
                "stored-never-reloaded",
                format!(
                    "{} stored {} into its RAM tier and was asked for {}, and reloaded nothing.",
                    engine_name(engine),
                    size(stored),
                    counted(asked, "token")
                ),
                "The tier costs memory and PCIe bandwidth and saves no prefill. Known causes: a tier that holds fewer \
                 tokens than the GPU pool; one KV group of a hybrid or speculative model that refuses every lookup; \
                 prompts whose prefixes do not return; requests with prompt logprobs. Soon after a start it may also \
                 be that the GPU pool still holds everything.",
                "Compare the tier with the GPU pool, look whether prefixes return, and take the tier away where it \
                 stays so.",
            )
        })
        .collect()
}
