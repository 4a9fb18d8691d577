//! `cargo xtask demo`: two Rust programs talk to each other over a real kernel RDMA device, and what
//! happens is told beside what they print.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use console::{Term, style};

use crate::process;
use crate::setup::{self, Group};
use crate::soft_roce::{Event, EventKind, Host, Run, Stream};
use crate::workspace::{self, Workspace};

/// The port that the server listens on.
const PORT: u16 = 7471;

/// What a line of the programs means, by how the line begins. Where the two sides differ, the host is given.
const MEANINGS: &[(Option<Host>, &str, &str)] = &[
    (
        None,
        "listening on port",
        "Connection requests for this port come as events now.",
    ),
    (
        None,
        "address resolved.",
        "The way to the server is through the device rxe0. Now the client makes a queue pair, and \
         posts a buffer for the message to come.",
    ),
    (
        None,
        "route resolved.",
        "The path through the network is known. The client asks for a connection.",
    ),
    (
        None,
        "received connection request.",
        "The server makes a queue pair of its own, posts a buffer, and accepts.",
    ),
    (
        None,
        "connected. posting send...",
        "The queue pair is ready to send. With the request the buffer moves to the device: the \
         program cannot touch it until it comes back.",
    ),
    (
        None,
        "send completed successfully.",
        "The other device has acknowledged the message. The completion gives the buffer back.",
    ),
    (
        None,
        "received message:",
        "The device has written it straight into the posted buffer, which is the program's again.",
    ),
    (
        Some(Host::A),
        "peer disconnected.",
        "The device lets go of what is left; then the queue pair goes, and its memory.",
    ),
    (
        Some(Host::B),
        "disconnected.",
        "One message each way was all: the client has ended the connection.",
    ),
];

/// Runs the demo; whether both messages have crossed.
pub(crate) fn run() -> Result<bool> {
    setup::ensure(&[Group::Build, Group::Guest])?;
    let workspace = Workspace::load()?;
    let mut cargo = workspace::cargo(&workspace);
    process::run(cargo.args(["build", "--locked", "--package", "examples"]))
        .context("the examples do not build")?;

    let intro = "Two Linux guests boot on this machine, joined by a wire. Each has an RDMA device in its \
                 kernel: Soft-RoCE.";
    println!("\n{}\n", textwrap::fill(intro, width()));
    let server = format!("basic-server --port {PORT} --clients 1");
    let client = format!("basic-client 10.9.0.1 {PORT}");
    // The client starts a moment later than the server, so that somebody listens.
    let plan =
        Run::pair(&server, format!("sleep 1; exec {client}")).timeout(Duration::from_secs(60));

    let begin = Instant::now();
    let mut stage = Stage::new(&server, &client);
    let outcome = plan.execute(&workspace, &mut |event| stage.show(event))?;
    if let Some(complaint) = outcome.complaint() {
        eprintln!("{complaint}");
    }
    ensure!(outcome.is_success(), "one of the programs has failed");
    stage.close(begin.elapsed())
}

/// Two columns, one for each host.
struct Stage {
    column: usize,
    titles: [String; 2],
    up: usize,
    /// What the two programs have received.
    received: [Option<String>; 2],
}

impl Stage {
    fn new(server: &str, client: &str) -> Self {
        Self {
            column: (width() - 3) / 2,
            titles: [server.to_owned(), client.to_owned()],
            up: 0,
            received: [None, None],
        }
    }

    fn show(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Up => {
                self.up += 1;
                if self.up == self.titles.len() {
                    self.open();
                }
            }
            EventKind::Output(stream, line) => {
                let line = String::from_utf8_lossy(line);
                self.line(event.host, *stream, line.trim_end());
            }
            EventKind::Ended(_) => {}
        }
    }

    /// The heads of the columns.
    fn open(&self) {
        let rule = "─".repeat(self.column);
        let [server, client] = &self.titles;
        let heads = [
            ["host a, 10.9.0.1", "host b, 10.9.0.2"],
            [server, client],
            [&rule, &rule],
        ];
        for [a, b] in heads {
            println!("{} {b}", pad(a, self.column + 2));
        }
    }

    fn line(&mut self, host: Host, stream: Stream, line: &str) {
        if let Some(message) = line.strip_prefix("received message: ") {
            self.received[host as usize] = Some(message.to_owned());
        }
        self.print(host, "", line, |text| match stream {
            Stream::Stdout => style(text).bold(),
            Stream::Stderr => style(text).red(),
        });
        let meaning = MEANINGS
            .iter()
            .find(|(on, start, _)| on.is_none_or(|on| on == host) && line.starts_with(start));
        if let Some((_, _, meaning)) = meaning {
            self.print(host, "  ", meaning, |text| style(text).dim());
        }
    }

    /// Prints a text in the column of `host`, indented and wrapped.
    fn print(
        &self,
        host: Host,
        indent: &str,
        text: &str,
        dress: impl Fn(String) -> console::StyledObject<String>,
    ) {
        let margin = match host {
            Host::A => String::new(),
            Host::B => pad("", self.column + 3),
        };
        let options = textwrap::Options::new(self.column)
            .initial_indent(indent)
            .subsequent_indent(indent);
        for line in textwrap::wrap(text, options) {
            println!("{margin}{}", dress(line.into_owned()));
        }
    }

    /// Says what has come of it, and whether that is what should have.
    fn close(self, time: Duration) -> Result<bool> {
        let [Some(by_server), Some(by_client)] = self.received else {
            println!("\nNot both messages have arrived.");
            return Ok(false);
        };
        println!(
            "\nBoth messages have crossed, from safe Rust to safe Rust, in {:.1} s with the boot:\n",
            time.as_secs_f64()
        );
        println!("  the server received: {}", style(by_server).green());
        println!("  the client received: {}", style(by_client).green());
        Ok(true)
    }
}

/// The width of the terminal, as far as it suits two columns.
fn width() -> usize {
    let columns = Term::stdout()
        .size_checked()
        .map_or(100, |(_, columns)| columns);
    usize::from(columns).clamp(72, 120)
}

/// The text, followed by spaces up to a width.
fn pad(text: &str, width: usize) -> String {
    console::pad_str(text, width, console::Alignment::Left, None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stage: &mut Stage, host: Host, line: &str) {
        let kind = EventKind::Output(Stream::Stdout, line.as_bytes().to_vec());
        stage.show(&Event {
            at: Instant::now(),
            host,
            kind,
        });
    }

    #[test]
    fn the_demo_passes_only_when_both_messages_have_arrived() {
        let mut stage = Stage::new("server", "client");
        said(&mut stage, Host::A, "received message: to the server");
        assert_eq!(stage.received, [Some("to the server".to_owned()), None]);
        assert!(!stage.close(Duration::ZERO).unwrap());

        let mut stage = Stage::new("server", "client");
        said(&mut stage, Host::B, "received message: to the client");
        said(&mut stage, Host::A, "received message: to the server");
        assert!(stage.close(Duration::ZERO).unwrap());
    }
}
