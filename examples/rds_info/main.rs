//! `rds-info` of rds-tools, with its options and tables: prints the state of a program's RDS.
//!
//! ```sh
//! cargo run -p examples --bin rds-ping -- --info-socket /run/ping.rds 10.9.0.2 &
//! cargo run -p examples --bin rds-info -- --of /run/ping.rds -nc
//! ```
//!
//! The kernel's RDS has one state per host, open to every process. In user space, each process has
//! its own, so `--of` names a program, started with `--info-socket`.
#![expect(
    clippy::print_stdout,
    reason = "the output is the purpose of the program"
)]
#![expect(
    clippy::print_stderr,
    reason = "the output is the purpose of the program"
)]

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use examples::{
    rds_info::tables::Titled,
    rds_tool::info_socket::{Sections, ask},
};
use rds::info::{AddressFamily, Section};

/// Print the RDS state of a program: everything, or the selected tables
#[derive(Debug, Parser)]
#[command(version)]
#[expect(clippy::struct_excessive_bools, reason = "these are its options")]
struct Options {
    /// Socket of the program, from its `--info-socket`
    #[arg(long, value_name = "SOCKET")]
    of: PathBuf,
    /// Counters
    #[arg(short = 'c')]
    counters: bool,
    /// Sockets
    #[arg(short = 'k')]
    sockets: bool,
    /// Connections
    #[arg(short = 'n')]
    connections: bool,
    /// Receive queues
    #[arg(short = 'r')]
    receiving: bool,
    /// Send queues
    #[arg(short = 's')]
    sending: bool,
    /// Unacknowledged messages
    #[arg(short = 't')]
    retransmitting: bool,
    /// Sockets of the TCP transport (unsupported)
    #[arg(short = 'T')]
    tcp: bool,
    /// RDMA connections
    #[arg(short = 'I')]
    devices: bool,
    /// IPv6 as well
    #[arg(short = 'a')]
    all: bool,
    /// More details of devices
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Options {
    /// The selected tables, in the order of rds-tools.
    fn sections(&self) -> Vec<Section> {
        let family = if self.all {
            AddressFamily::V6
        } else {
            AddressFamily::V4
        };
        let each = [
            (self.devices, Section::DeviceConnections(family)),
            (self.counters, Section::Counters),
            (self.sockets, Section::Sockets(family)),
            (self.connections, Section::Connections(family)),
            (self.receiving, Section::RecvMessages(family)),
            (self.sending, Section::SendMessages(family)),
            (self.retransmitting, Section::RetransMessages(family)),
        ];
        let is_all = !self.tcp && each.iter().all(|(requested, _)| !requested);
        let requested = each
            .into_iter()
            .filter(|(requested, _)| is_all || *requested);
        requested.map(|(_, section)| section).collect()
    }
}

/// Formats the selected tables.
fn text(sections: &Sections, options: &Options) -> Result<String> {
    let mut text = String::new();
    for section in options.sections() {
        let found = sections.iter().find(|(one, _)| *one == section);
        let (_, bytes) =
            found.with_context(|| format!("the program sent no section {section:?}"))?;
        let table = section.decode(bytes);
        let table = table.with_context(|| format!("{section:?} has {} bytes", bytes.len()))?;
        let titled = Titled {
            section,
            table: &table,
            verbose: options.verbose > 0,
        };
        text += &titled.to_string();
    }
    Ok(text)
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let sections =
        ask(&options.of).with_context(|| format!("asking at {}", options.of.display()))?;
    print!("{}", text(&sections, &options)?);
    if options.tcp {
        eprintln!("rds-info: the TCP transport is not supported");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(arguments: &[&str]) -> Options {
        let always = ["rds-info", "--of", "x"];
        Options::parse_from(always.iter().chain(arguments))
    }

    #[test]
    fn no_options_select_all_sections() {
        let all = options(&["-v"]).sections();
        assert_eq!(all.len(), 7);
        assert_eq!(
            all[0],
            Section::DeviceConnections(AddressFamily::V4),
            "capitals come first"
        );
        let some = options(&["-anc"]).sections();
        let connections = Section::Connections(AddressFamily::V6);
        assert_eq!(some, [Section::Counters, connections]);
        assert_eq!(options(&["-T"]).sections(), []);
    }

    #[test]
    fn malformed_answer_is_rejected() {
        let empty = text(&vec![], &options(&["-c"])).unwrap_err();
        assert!(empty.to_string().contains("Counters"), "{empty}");
        let odd = vec![(Section::Counters, vec![0; 41])];
        let odd = text(&odd, &options(&["-c"])).unwrap_err();
        assert!(odd.to_string().contains("41 bytes"), "{odd}");
    }
}
