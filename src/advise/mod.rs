//! Advice around a launch: facts of the page and of the box in, findings out. Nothing here reads or writes anything;
//! [`crate::commands`] gathers the facts and prints the advice.
//!
//! [`check`] looks at what runs, [`plan`] at what is to be launched. Both give [`Finding`]s, in JSON as
//!
//! ```text
//! {"id": text, "severity": "finding" | "remark", "seen": text, "why": text, "do": text}
//! ```
//!
//! An `id` is stable; the sentences are for people and may change. A finding makes the exit status 1, a remark does
//! not. To add one to `check`: a function in a file below `check/`, and a row in its `RULES`.

pub mod check;
pub mod launch;
pub mod lmcache;
pub mod plan;
pub mod words;

use serde::Serialize;

/// Whether somebody has to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Something is wrong or will be.
    Finding,
    /// Worth knowing.
    Remark,
}

/// One thing that a careful colleague would point out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable name of the kind of finding.
    pub id: &'static str,
    /// Whether somebody has to act.
    pub severity: Severity,
    /// What was seen, with its numbers.
    pub seen: String,
    /// Why it matters.
    pub why: String,
    /// What to do.
    #[serde(rename = "do")]
    pub action: String,
}

impl Finding {
    /// Something to act on.
    pub fn new(
        id: &'static str,
        seen: impl Into<String>,
        why: impl Into<String>,
        action: impl Into<String>,
    ) -> Finding {
        Finding { id, severity: Severity::Finding, seen: seen.into(), why: why.into(), action: action.into() }
    }

    /// The same as a remark.
    pub fn as_remark(self) -> Finding {
        Finding { severity: Severity::Remark, ..self }
    }

    /// The finding for people.
    pub fn text(&self) -> String {
        let head = match self.severity {
            Severity::Finding => "FINDING",
            Severity::Remark => "remark ",
        };
        let part = |name: &str, text: &str| format!("  {name:<5} {}\n", words::wrapped(text, 8));
        format!("{head} {}\n", self.id)
            + &part("seen", &self.seen)
            + &part("why", &self.why)
            + &part("do", &self.action)
    }
}

/// Whether any of them has to be acted on.
pub fn any_to_act_on(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.severity == Severity::Finding)
}

/// The last line of an advice: how many of each.
pub fn tally(findings: &[Finding]) -> String {
    let to_act = findings.iter().filter(|finding| finding.severity == Severity::Finding).count();
    let count = |number: usize, what: &str| if number == 0 { format!("no {what}s") } else { words::many(number, what) };
    let (findings, remarks) = (count(to_act, "finding"), count(findings.len() - to_act, "remark"));
    // The first word of a sentence.
    format!("{}, {remarks}.", findings.replacen("no", "No", 1))
}
