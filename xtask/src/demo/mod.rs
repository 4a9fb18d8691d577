//! `cargo xtask demo`: a Rust client and server talk over RDMA, with an explanation of each step beside the programs'
//! output: on two softnic hosts in one process, in two processes with the server in C, or on two guests, whose kernels have the
//! RDMA devices.

pub(crate) mod original;
mod sequence;
mod stage;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use console::Term;

use crate::workspace::{self, Workspace};
use soft_roce::process::{self, Supervised};
use soft_roce::setup::{self, Group};
use soft_roce::{EventKind, Host, Run, Stream};
use stage::Stage;

/// Commands of the server on host a and of the client on host b.
const COMMANDS: [&str; 2] = [
    "basic-server --port 7471 --clients 1",
    "basic-client 10.9.0.1 7471",
];

/// The hosts of these commands.
const HEADINGS: [&str; 2] = ["host a, 10.9.0.1", "host b, 10.9.0.2"];

/// Columns of an output without a terminal.
const DEFAULT_COLUMNS: u16 = 100;

/// Runs both programs on softnic, and writes the sequence to `svg`. Returns whether both messages arrived.
pub(crate) fn run(loss: Option<f64>, svg: Option<&Path>) -> Result<bool> {
    let workspace = Workspace::load()?;
    println!(
        "Building the demo: two programs, the crates verbs and cm, and softnic, the RDMA devices."
    );
    let mut cargo = workspace::cargo(&workspace);
    process::run(cargo.args(["build", "--locked", "--package", "demo"]))
        .context("the demo does not build")?;
    print_intro(
        "Two hosts in one process, joined by a network. Each has an RDMA device: softnic, without kernel, root or RDMA \
         libraries. Each arrow is a RoCEv2 frame: opcode, packet sequence number (PSN), bytes of payload.",
    );
    let mut command = Command::new(workspace.target().join("debug/demo"));
    if let Some(loss) = loss {
        command.args(["--loss", &loss.to_string()]);
    }
    let mut stage = Stage::new(std::io::stdout(), width());
    let arrived = show_trace(&mut command, &mut stage)?;
    write_picture(&stage, svg)?;
    Ok(arrived)
}

fn write_picture<W: Write>(stage: &Stage<W>, svg: Option<&Path>) -> Result<()> {
    let Some(path) = svg else {
        return Ok(());
    };
    fs::write(path, stage.svg()).with_context(|| format!("cannot write {}", path.display()))?;
    println!("The sequence is in {}.", path.display());
    Ok(())
}

/// Runs the demo's program, and shows its output. Returns whether both messages arrived.
fn show_trace<W: Write>(command: &mut Command, stage: &mut Stage<W>) -> Result<bool> {
    let begin = Instant::now();
    let start = Supervised::spawn(command.stdin(Stdio::null()).stdout(Stdio::piped()), &[]);
    let mut program =
        start.with_context(|| format!("cannot start `{}`", process::display(command)))?;
    let output = program
        .child()
        .stdout
        .take()
        .context("a pipe was asked for")?;
    stage.open(HEADINGS, COMMANDS)?;
    for line in BufReader::new(output).lines() {
        show_line(&line?, stage)?;
    }
    let status = program.wait()?;
    ensure!(status.success(), "one of the programs has failed");
    stage.close(begin.elapsed(), "safe Rust", "")
}

/// Shows a line of the demo's program: `a: ` or `b: ` and a line of a host's program, or `a > b: ` and a frame.
fn show_line<W: Write>(line: &str, stage: &mut Stage<W>) -> Result<()> {
    let parts = line.split_once(": ").unwrap_or((line, ""));
    match parts {
        ("a", text) => stage.line(Host::A, Stream::Stdout, text),
        ("b", text) => stage.line(Host::B, Stream::Stdout, text),
        ("a > b", frame) => stage.frame(Host::A, frame),
        ("b > a", frame) => stage.frame(Host::B, frame),
        _ => bail!("unexpected output of the demo's program: {line}"),
    }
}

/// Runs both programs on two guests, and writes the sequence to `svg`. Returns whether both messages arrived.
pub(crate) fn run_in_guests(svg: Option<&Path>) -> Result<bool> {
    setup::ensure(&[Group::Build, Group::Guest])?;
    let workspace = Workspace::load()?;
    println!("Building the examples, on rdma-core's libraries.");
    let mut cargo = workspace::cargo(&workspace);
    process::run(cargo.args(["build", "--locked", "--package", "examples"]))
        .context("the examples do not build")?;
    print_intro(
        "Two Linux guests boot on this machine, joined by a wire. Each has an RDMA device in its kernel: Soft-RoCE.",
    );
    let [server, client] = COMMANDS;
    // One second's delay lets the server listen first.
    let plan =
        Run::pair(server, format!("sleep 1; exec {client}")).timeout(Duration::from_secs(60));

    let begin = Instant::now();
    let mut stage = Stage::new(std::io::stdout(), width());
    let mut shown = Ok(());
    let mut up = 0;
    let outcome = plan.execute(workspace.for_guests(), &mut |event| {
        let done = match &event.kind {
            EventKind::Up => {
                up += 1;
                if up == COMMANDS.len() {
                    stage.open(HEADINGS, COMMANDS)
                } else {
                    Ok(())
                }
            }
            EventKind::Output(stream, line) => {
                let line = String::from_utf8_lossy(line);
                stage.line(event.host, *stream, line.trim_end())
            }
            EventKind::Ended(_) => Ok(()),
        };
        if shown.is_ok() {
            shown = done;
        }
    })?;
    shown?;
    if let Some(complaint) = outcome.complaint() {
        eprintln!("{complaint}");
    }
    ensure!(outcome.is_success(), "one of the programs has failed");
    let arrived = stage.close(begin.elapsed(), "safe Rust", " including the boot")?;
    write_picture(&stage, svg)?;
    Ok(arrived)
}

fn print_intro(text: &str) {
    println!("\n{}\n", textwrap::fill(text, width()));
}

/// Columns of the terminal.
fn width() -> usize {
    let columns = Term::stdout()
        .size_checked()
        .map_or(DEFAULT_COLUMNS, |(_, columns)| columns);
    usize::from(columns)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows the output of a shell script in place of the demo's program.
    fn show(script: &str) -> (Result<bool>, String) {
        let mut out = Vec::new();
        let mut command = Command::new("sh");
        let verdict = show_trace(command.args(["-c", script]), &mut Stage::new(&mut out, 80));
        (verdict, String::from_utf8(out).unwrap())
    }

    #[test]
    fn demo_with_both_messages_passes_and_with_one_fails() {
        let to_server = "echo 'a: received message: to the server'";
        let to_client = "echo 'b: received message: to the client'";
        let (verdict, text) = show(&format!("{to_server}; {to_client}"));
        assert!(verdict.unwrap());
        assert!(
            text.contains("the server received: to the server"),
            "{text}"
        );
        assert!(
            text.contains("the client received: to the client"),
            "{text}"
        );
        for one in [to_server, to_client] {
            assert!(!show(one).0.unwrap());
        }
    }

    #[test]
    fn demo_with_a_failed_program_or_unknown_output_is_an_error() {
        let both = "echo 'a: received message: 1'; echo 'b: received message: 2'";
        let (verdict, _) = show(&format!("{both}; exit 1"));
        assert_eq!(
            verdict.unwrap_err().to_string(),
            "one of the programs has failed"
        );
        let (verdict, _) = show(&format!("{both}; echo 'c: text'"));
        assert!(verdict.unwrap_err().to_string().contains("c: text"));
    }
}
