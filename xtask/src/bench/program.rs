//! The programs that are measured: building them, and running them on the host.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use cargo_metadata::Message;

use crate::process::{self, Supervised};
use crate::workspace::{self, Workspace};

/// Builds a benchmark of ours as users build theirs, and returns where it is.
pub(super) fn build_ours(workspace: &Workspace, package: &str, bench: &str) -> Result<PathBuf> {
    build(workspace, package, ["--bench", bench])
}

/// Builds an example program of ours as users build theirs, and returns where it is.
pub(super) fn build_example(workspace: &Workspace, name: &str) -> Result<PathBuf> {
    build(workspace, "examples", ["--bin", name])
}

fn build(workspace: &Workspace, package: &str, target: [&str; 2]) -> Result<PathBuf> {
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

/// Builds a shared library of ours as users build theirs, and returns where it is.
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

/// Builds a program, or a shared object, from a file in C.
pub(super) fn build_c(source: &Path, output: &Path, arguments: &[&str]) -> Result<()> {
    let mut compiler = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    compiler
        .args(["-O2", "-Wall", "-o"])
        .arg(output)
        .arg(source)
        .args(arguments);
    process::run(&mut compiler)
}

/// The numbers that a program prints.
pub(super) fn numbers(command: &mut Command) -> Result<Vec<f64>> {
    let text = process::output(command)?;
    let numbers = text.split_whitespace().map(str::parse);
    numbers
        .collect::<Result<_, _>>()
        .with_context(|| format!("`{}` printed {text}", process::display(command)))
}

/// How many instructions a program executes.
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

/// The count in what callgrind says.
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
    fn callgrind_tells_how_many_instructions() {
        let text = "6.823 6.823\n==1== Events    : Ir\n==1== Collected : 9475088\n==1==\n";
        assert_eq!(collected(text), Some(9_475_088.0));
        assert_eq!(collected("==1== Command: x\n"), None);
    }
}
