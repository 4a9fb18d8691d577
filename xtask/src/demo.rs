//! `cargo xtask demo`: a Rust client and server over a real kernel RDMA device, with an explanation of each step beside
//! the programs' output.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use console::{Term, style};

use crate::process;
use crate::setup::{self, Group};
use crate::soft_roce::{Event, EventKind, Host, Run, Stream};
use crate::workspace::{self, Workspace};

/// Port of the server.
const PORT: u16 = 7471;

/// Explanations: host (if only one), start of the output line, text.
const MEANINGS: &[(Option<Host>, &str, &str)] = &[
    (
        None,
        "listening on port",
        "From now on, connection requests to this port arrive as events.",
    ),
    (
        None,
        "address resolved.",
        "The route to the server uses the device rxe0. The client now creates a queue pair and posts \
         a receive buffer.",
    ),
    (
        None,
        "route resolved.",
        "The network path is resolved. The client sends a connection request.",
    ),
    (
        None,
        "received connection request.",
        "The server creates a queue pair, posts a receive buffer, and accepts.",
    ),
    (
        None,
        "connected. posting send...",
        "The queue pair is ready to send. The buffer moves into the request: the program cannot \
         access it until the completion.",
    ),
    (
        None,
        "send completed successfully.",
        "The peer's device has acknowledged the message. The completion returns the buffer.",
    ),
    (
        None,
        "received message:",
        "The device has written the message into the posted buffer, now returned to the program.",
    ),
    (
        Some(Host::A),
        "peer disconnected.",
        "The device flushes outstanding requests; the queue pair and its memory are then destroyed.",
    ),
    (
        Some(Host::B),
        "disconnected.",
        "After one message in each direction, the client has disconnected.",
    ),
];

/// Runs the demo. Returns whether both messages arrived.
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
    // One second's delay lets the server listen first.
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

/// The output in two columns, one for each host.
struct Stage {
    column: usize,
    titles: [String; 2],
    up: usize,
    /// The message received by each program.
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

    /// Prints the column headings.
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

    /// Prints `text` in the column of `host`, indented and wrapped.
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

    /// Prints the result. Returns whether both messages arrived.
    fn close(self, time: Duration) -> Result<bool> {
        let [Some(by_server), Some(by_client)] = self.received else {
            println!("\nNot both messages have arrived.");
            return Ok(false);
        };
        println!(
            "\nBoth messages arrived, sent and received by safe Rust, in {:.1} s including the boot:\n",
            time.as_secs_f64()
        );
        println!("  the server received: {}", style(by_server).green());
        println!("  the client received: {}", style(by_client).green());
        Ok(true)
    }
}

/// Width of the terminal, limited to a range that suits two columns.
fn width() -> usize {
    let columns = Term::stdout()
        .size_checked()
        .map_or(100, |(_, columns)| columns);
    usize::from(columns).clamp(72, 120)
}

/// `text` padded with spaces to `width` columns.
fn pad(text: &str, width: usize) -> String {
    console::pad_str(text, width, console::Alignment::Left, None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(stage: &mut Stage, host: Host, line: &str) {
        let kind = EventKind::Output(Stream::Stdout, line.as_bytes().to_vec());
        stage.show(&Event {
            at: Instant::now(),
            host,
            kind,
        });
    }

    #[test]
    fn demo_with_one_message_fails_and_with_both_passes() {
        let mut stage = Stage::new("server", "client");
        output(&mut stage, Host::A, "received message: to the server");
        assert_eq!(stage.received, [Some("to the server".to_owned()), None]);
        assert!(!stage.close(Duration::ZERO).unwrap());

        let mut stage = Stage::new("server", "client");
        output(&mut stage, Host::B, "received message: to the client");
        output(&mut stage, Host::A, "received message: to the server");
        assert!(stage.close(Duration::ZERO).unwrap());
    }
}
