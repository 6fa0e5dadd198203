//! Tells the program which revision and compiler it was built from. Without git, the revision is `unknown`:
//! a build from an archive is then the same on every machine.
#![allow(clippy::print_stdout)] // Printing is how a build script speaks to cargo.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=KVTIER_BUILD_RUSTC={}", rustc().unwrap_or_else(unknown));
    println!("cargo::rustc-env=KVTIER_BUILD_REVISION={}", revision().unwrap_or_else(unknown));
}

fn unknown() -> String {
    "unknown".to_owned()
}

/// `rustc 1.95.0 (59807616e 2026-04-14)` → `1.95.0`.
fn rustc() -> Option<String> {
    let compiler = std::env::var("RUSTC").ok()?;
    output(&compiler, &["--version"])?.split(' ').nth(1).map(str::to_owned)
}

/// Asked only where the sources are the top of a checkout, so that no surrounding repository answers for us.
fn revision() -> Option<String> {
    if !Path::new(".git").exists() {
        return None;
    }
    // The log of HEAD grows with each commit and each switch of branches; HEAD itself does not.
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]).filter(|log| Path::new(log).exists()) {
        println!("cargo::rerun-if-changed={log}");
    }
    output("git", &["rev-parse", "--short=12", "HEAD"])
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
