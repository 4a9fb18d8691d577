//! The targets of `fuzz/`: type-checked by `ci`, and run under libFuzzer by `ci --long`.
//!
//! The flags of the compiler are those of cargo-fuzz, which needs not be installed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use soft_roce::process;

use crate::output;
use crate::workspace::{self, Workspace};

/// Duration of the run of each target in seconds: 12 targets take 6 minutes.
const SECONDS: u32 = 30;

/// Target triple. An explicit `--target` keeps build scripts uninstrumented.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Instrumentation of edges and comparisons, and `AddressSanitizer`.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares -Zsanitizer=address --cfg fuzzing -Ccodegen-units=1";

/// Type-checks the targets, without libFuzzer.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let mut cargo = workspace::cargo(workspace);
    cargo.args(["check", "--locked", "--no-default-features"]);
    cargo.args(["--manifest-path", "fuzz/Cargo.toml", "--target-dir"]);
    cargo.arg(workspace.target().join("fuzz"));
    process::run(&mut cargo)
}

/// Runs each target for a time, from its corpus. Where no nightly toolchain is installed, prints the reason.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let mut nightly = Command::new("rustup");
    nightly.args(["run", "nightly", "rustc", "--version"]);
    if let Err(error) = process::output(&mut nightly) {
        output::print(format_args!(
            "no fuzz target ran, without a nightly toolchain: {error:#}"
        ));
        return Ok(());
    }
    let target = workspace.target().join("fuzz");
    let mut cargo = Command::new("rustup");
    cargo
        .current_dir(workspace.root())
        .args(["run", "nightly", "cargo", "build", "--locked", "--release"])
        .args([
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--target",
            TRIPLE,
            "--target-dir",
        ])
        .arg(&target)
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("RUSTFLAGS", FLAGS);
    process::run(&mut cargo)?;
    let programs = target.join(TRIPLE).join("release");
    let mut failed = Vec::new();
    for name in names(workspace.root())? {
        let corpus = target.join("corpus").join(&name);
        fs::create_dir_all(&corpus)?;
        let inputs = workspace.root().join(format!("fuzz/corpus/{name}.txt"));
        write_inputs(&fs::read_to_string(&inputs)?, &corpus)?;
        let mut fuzzer = Command::new(programs.join(&name));
        fuzzer
            .arg(&corpus)
            .arg(format!("-max_total_time={SECONDS}"));
        fuzzer.arg(format!("-artifact_prefix={}/{name}-", target.display()));
        if let Err(error) = process::run(&mut fuzzer) {
            failed.push(format!("{error:#}"));
        }
    }
    let advice = "add the input to the target's corpus, in hexadecimal digits";
    ensure!(failed.is_empty(), "{}\n{advice}", failed.join("\n"));
    Ok(())
}

/// The names of the targets.
fn names(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("fuzz/fuzz_targets"))? {
        let path = entry?.path();
        let name = path.file_stem().context("a target without a name")?;
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Writes each input of a corpus, a line of hexadecimal digits, to a file of a folder, as libFuzzer reads them.
fn write_inputs(text: &str, folder: &Path) -> Result<()> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    for (number, line) in lines.enumerate() {
        let digits = |at: usize| {
            line.get(at..at + 2)
                .map(|digits| u8::from_str_radix(digits, 16))
        };
        let bytes = (0..line.len()).step_by(2).map(digits);
        let bytes: Option<Result<Vec<u8>, _>> = bytes.collect();
        let bytes = bytes.with_context(|| format!("`{line}` has an odd number of digits"))??;
        fs::write(folder.join(number.to_string()), bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fuzz_target_has_a_corpus_and_a_line_in_the_manifest() {
        let workspace = Workspace::load().unwrap();
        let manifest = fs::read_to_string(workspace.root().join("fuzz/Cargo.toml")).unwrap();
        let names = names(workspace.root()).unwrap();
        assert!(names.len() > 1);
        for name in names {
            let folder = tempfile::tempdir().unwrap();
            let corpus = workspace.root().join(format!("fuzz/corpus/{name}.txt"));
            write_inputs(&fs::read_to_string(corpus).unwrap(), folder.path()).unwrap();
            assert!(fs::read_dir(folder.path()).unwrap().count() > 0, "{name}");
            let line = format!("path = \"fuzz_targets/{name}.rs\"");
            assert!(manifest.contains(&line), "{name}");
        }
    }
}
