//! `plan`: a wish from the flags, the box from its collectors.

use anyhow::Result;
use serde::Serialize;

use super::{PATIENCE, look, print_as, status, unknown_text};
use crate::advise::plan::{self, Engine, Ground, PlannedTier, Wish};
use crate::advise::words::many;
use crate::advise::{Finding, any_to_act_on, tally};
use crate::cli::{Cli, Plan};
use crate::host::facts;

/// The answer of `plan`: in JSON an object with these keys.
#[derive(Debug, Serialize)]
struct Answer {
    /// Always `plan`.
    command: &'static str,
    version: &'static str,
    engine: Engine,
    engines: u32,
    ranks: u32,
    tiers: Vec<PlannedTier>,
    findings: Vec<Finding>,
    /// What of the box could not be looked at, and why.
    unknown: Vec<String>,
}

pub(super) async fn run(cli: &Cli, flags: &Plan) -> Result<u8> {
    let wish = wish(cli, flags);
    let place = match &wish.disk {
        Some((_, path)) => facts::look_at(path, &cli.host.procfs, PATIENCE).await,
        None => None,
    };
    let (boxed, _) = look(cli).await;
    let ground = Ground { boxed: &boxed, said_unified: cli.host.gpu_unified, place: place.as_ref() };
    let plan = plan::plan(&wish, &ground);
    let answer = Answer {
        command: "plan",
        version: env!("CARGO_PKG_VERSION"),
        engine: wish.engine,
        engines: wish.engines,
        ranks: wish.ranks,
        tiers: plan.tiers,
        findings: plan.findings,
        unknown: boxed.unknown.clone(),
    };
    print_as(flags.format, || answer.text(&wish), &answer)?;
    Ok(status(!any_to_act_on(&answer.findings)))
}

fn wish(cli: &Cli, flags: &Plan) -> Wish {
    Wish {
        engine: flags.engine,
        ram: flags.ram,
        disk: flags.disk.zip(flags.path.clone()),
        bytes_per_token: flags.bytes_per_token.or(cli.engine.bytes_per_token),
        gpu_pool_tokens: flags.gpu_pool_tokens,
        engines: flags.engines,
        ranks: cli.engine.ranks.unwrap_or(1),
        longest_request: flags.request_tokens,
    }
}

impl Answer {
    fn text(&self, wish: &Wish) -> String {
        let tiers: String = self.tiers.iter().map(|tier| tier.text(wish) + "\n").collect();
        let findings: String = self.findings.iter().map(|finding| finding.text() + "\n").collect();
        let (unknown, tally) = (unknown_text(&self.unknown), tally(&self.findings));
        let gap = if unknown.is_empty() { "" } else { "\n" };
        format!(
            "kvtier-exporter plan for {}, {} of {} on this box\n\n{tiers}{findings}{}{gap}{tally}\n",
            self.engine,
            many(self.engines as usize, "engine"),
            many(self.ranks as usize, "rank"),
            unknown.trim_start()
        )
    }
}
