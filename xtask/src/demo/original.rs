//! A server in C, and the client in Rust, two processes on softnic's library: `cargo xtask demo --original`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::stage::Stage;
use super::{print_intro, width, write_picture};
use crate::workspace::{self, Workspace};
use soft_roce::process::{self as programs, Supervised};
use soft_roce::setup::{self, Group};
use soft_roce::{Host, Stream};

/// The server's source.
const SOURCE: &str = include_str!("original.c");

/// The server's port.
const PORT: u16 = 7471;

/// Maximum time of the exchange.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A line of a program's output.
type Line = (Host, Stream, String);

/// Runs both programs, and writes the sequence to `svg`. Returns whether both messages arrived.
pub(crate) fn run(svg: Option<&Path>) -> Result<bool> {
    setup::ensure(&[Group::Build])?;
    let workspace = Workspace::load()?;
    println!("Building the demo: a server in C, a client in Rust, and softnic's library.");
    let mut cargo = workspace::cargo(&workspace);
    cargo.args(["build", "--locked", "--package", "softnic-capi"]);
    cargo.args(["--package", "examples", "--bin", "basic-client"]);
    cargo.args([
        "--bin",
        "softnic",
        "--bin",
        "softnic-verbs",
        "--bin",
        "softnic-files",
    ]);
    programs::run(&mut cargo).context("the demo does not build")?;
    let server = compile(&workspace)?;
    print_intro(
        "Two processes on this machine, each with an RDMA device: softnic's library in the place of libibverbs and librdmacm. The \
         server is a program in C, compiled from xtask/src/demo/original.c; its frames reach the client by UDP.",
    );
    let programs = workspace.target().join("debug");
    let mut stage = Stage::new(std::io::stdout(), width());
    let arrived = exchange(&programs, &server, &mut stage)?;
    write_picture(&stage, svg)?;
    Ok(arrived)
}

/// Compiles the server.
fn compile(workspace: &Workspace) -> Result<PathBuf> {
    let folder = workspace.target().join("demo");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let source = folder.join("original.c");
    fs::write(&source, SOURCE).with_context(|| format!("cannot write {}", source.display()))?;
    let server = folder.join("original");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o"]);
    compiler.arg(&server).arg(&source);
    compiler.args(["-lrdmacm", "-libverbs"]);
    programs::run(&mut compiler).context("the server in C does not build")?;
    Ok(server)
}

/// Addresses of the server and the client, other than those of another process.
fn addresses() -> [Ipv4Addr; 2] {
    let [.., second, third] = process::id().to_be_bytes();
    [2, 3].map(|last| Ipv4Addr::new(127, 0x40 | second & 0x3f, third, last))
}

/// Starts a program on a device at an address, and sends the lines of its output.
fn start(
    programs: &Path,
    host: Host,
    addr: Ipv4Addr,
    words: &[&str],
    lines: &Sender<Line>,
) -> Result<Supervised> {
    let mut command = Command::new(programs.join("softnic"));
    command
        .args(["run", "--addr", &addr.to_string(), "--"])
        .args(words);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let started = Supervised::spawn(&mut command, &[]);
    let mut program =
        started.with_context(|| format!("cannot start `{}`", programs::display(&command)))?;
    let child = program.child();
    let stdout = child
        .stdout
        .take()
        .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    let stderr = child
        .stderr
        .take()
        .map(|pipe| Box::new(pipe) as Box<dyn Read + Send>);
    for (stream, pipe) in [(Stream::Stdout, stdout), (Stream::Stderr, stderr)] {
        let pipe = pipe.context("a pipe was requested")?;
        let lines = lines.clone();
        thread::spawn(move || {
            // A line that cannot be read ends the output.
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                let _received = lines.send((host, stream, line));
            }
        });
    }
    Ok(program)
}

/// Runs the server and the client. Returns whether both messages arrived.
fn exchange<W: std::io::Write>(
    programs: &Path,
    server: &Path,
    stage: &mut Stage<W>,
) -> Result<bool> {
    let [a, b] = addresses();
    let begin = Instant::now();
    let deadline = begin + TIME_LIMIT;
    let (sender, lines) = mpsc::channel();
    let (addr, port) = (a.to_string(), PORT.to_string());
    stage.open(
        [&format!("host a, {a}"), &format!("host b, {b}")],
        ["server in C: original", "client in Rust: basic-client"],
    )?;
    let server = server
        .to_str()
        .context("the target folder has no UTF-8 name")?;
    let mut server = start(programs, Host::A, a, &[server, &addr, &port], &sender)?;
    show_until(&lines, deadline, stage, |line| {
        line.starts_with("listening")
    })?;
    let client = programs.join("basic-client");
    let client = client
        .to_str()
        .context("the target folder has no UTF-8 name")?;
    let mut client = start(programs, Host::B, b, &[client, &addr, &port], &sender)?;
    drop(sender);
    // Both streams of both programs have ended then.
    show_until(&lines, deadline, stage, |_| false)?;
    for program in [&mut server, &mut client] {
        let status = program.wait_until(deadline)?;
        ensure!(
            status.is_some_and(|status| status.success()),
            "one of the programs has failed"
        );
    }
    stage.close(begin.elapsed(), "C and by safe Rust", "")
}

/// Shows lines until one is the last, or the programs have ended.
fn show_until<W: std::io::Write>(
    lines: &Receiver<Line>,
    deadline: Instant,
    stage: &mut Stage<W>,
    is_last: impl Fn(&str) -> bool,
) -> Result<()> {
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((host, stream, line)) => {
                stage.line(host, stream, &line)?;
                if is_last(&line) {
                    return Ok(());
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                bail!("the programs do not end within {} s", TIME_LIMIT.as_secs())
            }
        }
    }
}
