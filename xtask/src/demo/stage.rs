//! The output of two programs in two columns, one for each host, with arrows for the frames between them.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use console::{StyledObject, style};

use soft_roce::{Host, Stream};

use super::sequence::Sequence;

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
        "The route to the server uses this host's RDMA device. The client now creates a queue pair and posts \
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

const NAMES: [&str; 2] = ["a", "b"];

/// Columns of output: with more, lines get too long to read; with fewer, words no longer fit.
const WIDTHS: std::ops::RangeInclusive<usize> = 24..=120;

/// Smallest width for two columns. Below, each line starts with the name of its host.
const MIN_TWO_COLUMNS: usize = 72;

/// Smallest number of dashes at each end of an arrow.
const MIN_DASHES: usize = 3;

/// The output of both programs, written to `W`.
pub(super) struct Stage<W> {
    out: W,
    width: usize,
    /// The message received by each program.
    received: [Option<String>; 2],
    frames: usize,
    sequence: Sequence,
}

impl<W: Write> Stage<W> {
    /// Creates an empty stage for a terminal with `width` columns.
    pub(super) fn new(out: W, width: usize) -> Self {
        Self {
            out,
            width: width.clamp(*WIDTHS.start(), *WIDTHS.end()),
            received: [None, None],
            frames: 0,
            sequence: Sequence::default(),
        }
    }

    /// The output so far as an SVG image.
    pub(super) fn svg(&self) -> String {
        self.sequence.svg()
    }

    /// Width of each of two columns; `None` if the terminal is too narrow.
    fn column(&self) -> Option<usize> {
        (self.width >= MIN_TWO_COLUMNS).then(|| (self.width - 3) / 2)
    }

    /// Prints the headings: each host's address and command.
    pub(super) fn open(&mut self, headings: [&str; 2], commands: [&str; 2]) -> Result<()> {
        let [a, b] = [0, 1].map(|host: usize| format!("{}: {}", headings[host], commands[host]));
        self.sequence.open([a, b]);
        let Some(column) = self.column() else {
            for ((heading, command), host) in headings.iter().zip(commands).zip([Host::A, Host::B])
            {
                self.print(host, "", &format!("{heading}: {command}"), style)?;
            }
            writeln!(self.out, "{}", "─".repeat(self.width))?;
            return Ok(());
        };
        let rule = "─".repeat(column);
        for [a, b] in [headings, commands, [&rule, &rule]] {
            writeln!(self.out, "{} {b}", pad(a, column + 2))?;
        }
        Ok(())
    }

    /// Prints a line of a host's program, and the explanation.
    pub(super) fn line(&mut self, host: Host, stream: Stream, line: &str) -> Result<()> {
        if let Some(message) = line.strip_prefix("received message: ") {
            self.received[host.index()] = Some(message.to_owned());
        }
        self.sequence.line(host, line);
        self.print(host, "", line, |text| match stream {
            Stream::Stdout => style(text).bold(),
            Stream::Stderr => style(text).red(),
        })?;
        let meaning = MEANINGS
            .iter()
            .find(|(on, start, _)| on.is_none_or(|on| on == host) && line.starts_with(start));
        if let Some((_, _, meaning)) = meaning {
            self.print(host, "  ", meaning, |text| style(text).dim())?;
        }
        Ok(())
    }

    /// Prints `text` in the column of `host`, indented and wrapped.
    fn print(
        &mut self,
        host: Host,
        indent: &str,
        text: &str,
        dress: impl Fn(String) -> StyledObject<String>,
    ) -> Result<()> {
        let (margin, width) = match (self.column(), host) {
            (Some(column), Host::A) => (String::new(), column),
            (Some(column), _) => (pad("", column + 3), column),
            (None, _) => (format!("{} │ ", NAMES[host.index()]), self.width - 4),
        };
        let options = textwrap::Options::new(width)
            .initial_indent(indent)
            .subsequent_indent(indent);
        for line in textwrap::wrap(text, options) {
            writeln!(self.out, "{margin}{}", dress(line.into_owned()))?;
        }
        Ok(())
    }

    /// Prints an arrow from a host to the other one, with the frame's description.
    pub(super) fn frame(&mut self, from: Host, frame: &str) -> Result<()> {
        self.frames += 1;
        self.sequence.frame(from, frame);
        let text = format!(" {frame} ");
        let dashes = self
            .width
            .saturating_sub(console::measure_text_width(&text) + 1);
        if self.column().is_none() || dashes < 2 * MIN_DASHES {
            let arrow = match from {
                Host::A => "a ▶ b",
                _ => "a ◀ b",
            };
            let options = textwrap::Options::new(self.width)
                .initial_indent("  ")
                .subsequent_indent("        ");
            let text = format!("{arrow} {frame}");
            for line in textwrap::wrap(&text, options) {
                writeln!(self.out, "{}", style(line).cyan())?;
            }
            return Ok(());
        }
        let (left, right) = ("─".repeat(dashes / 2), "─".repeat(dashes - dashes / 2));
        let arrow = match from {
            Host::A => format!("{left}{text}{right}▶"),
            _ => format!("◀{left}{text}{right}"),
        };
        writeln!(self.out, "{}", style(arrow).cyan())?;
        Ok(())
    }

    /// Prints the result. Returns whether both messages arrived.
    pub(super) fn close(&mut self, time: Duration, by: &str, including: &str) -> Result<bool> {
        let [Some(by_server), Some(by_client)] = &self.received else {
            writeln!(self.out, "\nNot both messages have arrived.")?;
            return Ok(false);
        };
        let frames = match self.frames {
            0 => String::new(),
            frames => format!(", in {frames} frames"),
        };
        let text = format!(
            "Both messages arrived, sent and received by {by}{frames}, in {}{including}:",
            shown(time)
        );
        writeln!(self.out, "\n{}\n", textwrap::fill(&text, self.width))?;
        for (side, message) in [("server", by_server), ("client", by_client)] {
            writeln!(
                self.out,
                "  the {side} received: {}",
                style(message).green()
            )?;
        }
        Ok(true)
    }
}

/// A duration with two to four digits, in the unit that fits.
fn shown(time: Duration) -> String {
    match time.as_micros() {
        micros @ 0..1000 => format!("{micros} µs"),
        micros @ 1000..10_000 => format!("{}.{} ms", micros / 1000, micros % 1000 / 100),
        micros @ 10_000..1_000_000 => format!("{} ms", micros / 1000),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

/// `text` padded with spaces to `width` columns.
fn pad(text: &str, width: usize) -> String {
    console::pad_str(text, width, console::Alignment::Left, None).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a short exchange at a width.
    fn lines(width: usize) -> Vec<String> {
        console::set_colors_enabled(false);
        let mut out = Vec::new();
        let mut stage = Stage::new(&mut out, width);
        stage
            .open(super::super::HEADINGS, ["the server", "the client"])
            .unwrap();
        stage
            .line(Host::A, Stream::Stdout, "listening on port 7471.")
            .unwrap();
        stage
            .frame(Host::B, "RC SEND Only, PSN 7, 1024 bytes")
            .unwrap();
        stage.frame(Host::A, "RC Acknowledge, PSN 7").unwrap();
        stage
            .line(Host::B, Stream::Stdout, "send completed successfully.")
            .unwrap();
        let text = String::from_utf8(out).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn wide_terminal_shows_columns_and_arrows_across_both() {
        let lines = lines(80);
        assert_eq!(
            lines[0],
            format!("{:40} host b, 10.9.0.2", "host a, 10.9.0.1")
        );
        assert_eq!(lines[3], "listening on port 7471.");
        let arrows: Vec<_> = lines.iter().filter(|line| line.contains("PSN")).collect();
        assert_eq!(
            arrows,
            [
                "◀─────────────────────── RC SEND Only, PSN 7, 1024 bytes ───────────────────────",
                "──────────────────────────── RC Acknowledge, PSN 7 ────────────────────────────▶",
            ]
        );
        let client = lines
            .iter()
            .find(|line| line.contains("completed"))
            .unwrap();
        assert_eq!(*client, format!("{:41}send completed successfully.", ""));
    }

    #[test]
    fn narrow_terminal_shows_one_column_and_no_line_is_wider() {
        for width in [24, 40, 71] {
            let lines = lines(width);
            for line in &lines {
                assert!(
                    console::measure_text_width(line) <= width,
                    "{width}: {line}"
                );
            }
            let text = lines.join("\n");
            assert!(text.contains("a │ listening on port"), "{text}");
            assert!(text.contains("b │ send completed"), "{text}");
            assert!(text.contains("  a ◀ b RC SEND Only"), "{text}");
            assert!(text.contains("  a ▶ b RC"), "{text}");
        }
    }

    #[test]
    fn durations_have_a_unit_that_shows_them() {
        let times = [
            0, 42, 999, 1000, 4270, 9999, 87_300, 999_999, 1_000_000, 62_340_000,
        ];
        let texts = times.map(|micros| shown(Duration::from_micros(micros)));
        assert_eq!(
            texts,
            [
                "0 µs", "42 µs", "999 µs", "1.0 ms", "4.2 ms", "9.9 ms", "87 ms", "999 ms",
                "1.0 s", "62.3 s"
            ]
        );
    }

    #[test]
    fn wide_terminals_without_end_and_without_columns_are_clamped() {
        let width = |lines: &[String]| {
            let widths = lines.iter().map(|line| console::measure_text_width(line));
            widths.max().unwrap()
        };
        assert_eq!(width(&lines(1000)), 120);
        assert_eq!(width(&lines(0)), 24);
    }
}
