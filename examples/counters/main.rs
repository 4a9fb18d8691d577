//! Counters of RDMA ports: a table that refreshes, with the total and the rate of each counter.
//!
//! Reads the kernel's counters (`verbs::port_counters`). Counters at zero are left out.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use examples::counters::{Row, rows, table};
use verbs::{Context, port_counters::PortCounters};

/// Moves to the upper left corner of a terminal, and clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Prints the counters of RDMA ports, again and again
#[derive(Parser)]
#[command(name = "counters")]
struct CommandLine {
    /// use this device (default all of them)
    #[arg(short, long)]
    device: Option<String>,
    /// seconds between two tables
    #[arg(short, long, default_value_t = 1.0, value_parser = seconds)]
    interval: f64,
    /// end after this number of tables (default never)
    #[arg(short = 'n', long)]
    count: Option<u64>,
    /// print counters at zero, too
    #[arg(short, long)]
    all: bool,
}

/// At least a millisecond, and at most a day.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("not a number from 0.001 to 86400".to_owned()),
    }
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    match run(&line, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            // No other place for a report.
            writeln!(io::stderr(), "counters: {err:#}").ok();
            ExitCode::FAILURE
        }
    }
}

/// A port, and its counters at the last reading.
struct Port {
    ctx: Context,
    number: u8,
    last: Option<(Instant, PortCounters)>,
}

impl Port {
    fn name(&self) -> String {
        format!("{}/{}", self.ctx.name(), self.number)
    }

    /// Reads the counters, and compares them with the last reading.
    fn rows(&mut self, all: bool) -> Result<Vec<Row>> {
        let now = Instant::now();
        let counters = self.ctx.port_counters(self.number)?;
        let before = self.last.as_ref();
        let before = before.map(|(then, counters)| (now - *then, counters));
        let rows = rows(&self.name(), &counters, before, all);
        self.last = Some((now, counters));
        Ok(rows)
    }
}

fn run(line: &CommandLine, out: &mut (impl Write + IsTerminal)) -> Result<()> {
    let mut ports = ports(line.device.as_deref())?;
    let mut printed = 0;
    while line.count.is_none_or(|count| printed < count) {
        if printed > 0 {
            thread::sleep(Duration::from_secs_f64(line.interval));
        }
        let mut rows = Vec::new();
        for port in &mut ports {
            let read = port.rows(line.all);
            rows.extend(read.with_context(|| format!("port {}", port.name()))?);
        }
        if out.is_terminal() {
            write!(out, "{CLEAR}")?;
        }
        writeln!(out, "{}", table(&rows))?;
        out.flush()?;
        printed += 1;
    }
    Ok(())
}

/// The ports of one device, or of all.
fn ports(device: Option<&str>) -> Result<Vec<Port>> {
    let devices = verbs::devices()?;
    let chosen: Vec<_> = match device {
        Some(name) => vec![devices.by_name(name)?],
        None => devices.iter().collect(),
    };
    let mut ports = Vec::new();
    for device in chosen {
        let ctx = device.open()?;
        for number in ctx.query_device()?.port_nums() {
            let ctx = ctx.clone();
            ports.push(Port {
                ctx,
                number,
                last: None,
            });
        }
    }
    if ports.is_empty() {
        bail!("no RDMA device found");
    }
    Ok(ports)
}
