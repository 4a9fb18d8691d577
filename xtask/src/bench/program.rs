//! Building the measured programs, and running them on the host.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::Message;

use crate::workspace::{self, Workspace};
use soft_roce::process::{self, Supervised};

/// Builds a benchmark in the release profile and returns its path.
pub(super) fn build_ours(workspace: &Workspace, package: &str, bench: &str) -> Result<PathBuf> {
    build(workspace, package, ["--bench", bench])
}

/// Builds an example program in the release profile and returns its path.
pub(super) fn build_example(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    build(workspace, "examples", ["--bin", name])
}

/// Builds a target, such as `["--bin", NAME]`, in the release profile and returns its path.
pub(super) fn build(workspace: &Workspace, package: &str, target: [&str; 2]) -> Result<PathBuf> {
    let [_, name] = target;
    let mut cargo = workspace::cargo(workspace);
    cargo
        .args(["build", "--locked", "--release", "--package", package])
        .args(target)
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped());
    let mut child = Supervised::spawn(&mut cargo, &[]).context("cannot start cargo")?;
    let messages = child.child().stdout.take();
    let messages = messages.context("cargo has no standard output")?;
    let mut program = None;
    for message in Message::parse_stream(BufReader::new(messages)) {
        if let Message::CompilerArtifact(artifact) = message?
            && artifact.target.name == name
        {
            program = artifact.executable;
        }
    }
    ensure!(child.wait()?.success(), "{name} does not build");
    Ok(program
        .with_context(|| format!("cargo built no program called {name}"))?
        .into())
}

/// Builds a shared library in the release profile and returns its path.
pub(super) fn build_library(workspace: &Workspace, package: &str, name: &str) -> Result<PathBuf> {
    let mut cargo = workspace::cargo(workspace);
    cargo
        .args(["build", "--locked", "--release", "--package", package])
        .arg("--lib");
    process::run(&mut cargo)?;
    let library = workspace.target().join(format!("release/lib{name}.so"));
    ensure!(library.exists(), "cargo built no {}", library.display());
    Ok(library)
}

/// Compiles a C file to a program or a shared object.
pub(super) fn build_c(source: &Path, output: &Path, arguments: &[&str]) -> Result<()> {
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler
        .args(["-O2", "-Wall", "-o"])
        .arg(output)
        .arg(source)
        .args(arguments);
    process::run(&mut compiler)
}

/// The numbers in a program's output.
pub(super) fn numbers(command: &mut Command) -> Result<Vec<f64>> {
    let text = process::output(command)?;
    let numbers = text.split_whitespace().map(str::parse);
    numbers
        .collect::<Result<_, _>>()
        .with_context(|| format!("`{}` printed {text}", process::display(command)))
}

/// Number of instructions executed by a program, counted by callgrind.
pub(super) fn instructions(command: &Command) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg("--log-fd=1")
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        valgrind.env(name, value.unwrap_or_default());
    }
    let text = process::output(&mut valgrind)?;
    collected(&text).with_context(|| format!("callgrind counted nothing:\n{text}"))
}

/// Number of cache lines read and written by a program for the first time, or again after 32 KiB of others; counted by
/// cachegrind.
pub(super) fn cache_misses(command: &Command) -> Result<f64> {
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=cachegrind", "--cache-sim=yes"])
        .args([
            "--D1=32768,8,64",
            "--I1=32768,8,64",
            "--LL=8388608,16,64",
            "--cachegrind-out-file=/dev/null",
            "--log-fd=1",
        ])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        valgrind.env(name, value.unwrap_or_default());
    }
    let text = process::output(&mut valgrind)?;
    missed(&text).with_context(|| format!("cachegrind counted nothing:\n{text}"))
}

/// The number of misses of the data cache in cachegrind's output.
fn missed(text: &str) -> Option<f64> {
    let (_, rest) = text
        .lines()
        .find_map(|line| line.split_once("D1  misses:"))?;
    let number = rest.split_whitespace().next()?;
    number.replace(',', "").parse().ok()
}

/// The instruction count in callgrind's output.
fn collected(text: &str) -> Option<f64> {
    let (_, count) = text
        .lines()
        .find_map(|line| line.split_once("Collected :"))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collected_of_callgrind_output_is_the_instruction_count() {
        let text = "6.823 6.823\n==1== Events    : Ir\n==1== Collected : 9475088\n==1==\n";
        assert_eq!(collected(text), Some(9_475_088.0));
        assert_eq!(collected("==1== Command: x\n"), None);
    }

    #[test]
    fn missed_of_cachegrind_output_is_the_first_number() {
        let text =
            "==2== D   refs:  1\n==2== D1  misses:   1,953,781  ( 1,445,354 rd + 508,427 wr)\n";
        assert_eq!(missed(text), Some(1_953_781.0));
        assert_eq!(missed("==2== D1  miss rate: 5%\n"), None);
    }
}
