//! `ibv_devinfo` in safe Rust: prints the RDMA devices of this machine and the attributes of each.
//!
//! The options and the lines printed are the C program's; `--json` prints the same data as JSON, and `--route` the GID
//! for an address, with the reason against each other one.

use std::{
    io::{self, Write},
    net::IpAddr,
    process::ExitCode,
};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use examples::devinfo::{card::Card, json, text};

/// Prints the attributes of RDMA devices
#[derive(Parser)]
#[command(name = "devinfo", args_override_self = true)]
struct CommandLine {
    /// use this IB device (default all of them)
    #[arg(short = 'd', long)]
    ib_dev: Option<String>,
    /// use this port of the device (default all ports)
    #[arg(short = 'i', long, value_parser = clap::value_parser!(u8).range(1..))]
    ib_port: Option<u8>,
    /// print only the names of the devices
    #[arg(short, long)]
    list: bool,
    /// print all the attributes
    #[arg(short, long)]
    verbose: bool,
    /// print all the attributes, as JSON
    #[arg(long)]
    json: bool,
    /// print which GID leads to an address, and why each other one does not
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["list", "json", "verbose", "ib_port"])]
    route: Option<IpAddr>,
}

fn main() -> ExitCode {
    let line = CommandLine::parse();
    match run(&line, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            // No other place for a report.
            writeln!(io::stderr(), "{err:#}").ok();
            ExitCode::from(255)
        }
    }
}

fn run(line: &CommandLine, out: &mut impl Write) -> Result<()> {
    let devices = verbs::devices()?;
    if line.list {
        text::list(out, &devices)?;
        return Ok(());
    }
    let chosen: Vec<_> = match &line.ib_dev {
        Some(name) => match devices.find(name) {
            Some(device) => vec![device],
            None => bail!("IB device '{name}' wasn't found"),
        },
        None => devices.iter().collect(),
    };
    if chosen.is_empty() {
        bail!("No IB devices found");
    }
    if let Some(addr) = line.route {
        for device in chosen {
            let routes = device.routes_to(addr)?;
            writeln!(out, "{} to {addr}:\n{routes}\n", device.name())?;
        }
        return Ok(());
    }
    let mut cards = Vec::new();
    for device in chosen {
        let card = Card::read(device, line.ib_port);
        cards.push(card.with_context(|| format!("device {}", device.name()))?);
    }
    if line.json {
        json::cards(out, &cards)?;
    } else {
        for card in &cards {
            text::card(out, card, line.verbose)?;
        }
    }
    Ok(())
}
