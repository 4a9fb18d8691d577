//! `rds-info` of rds-tools, with its options and tables: what a program's RDS does.
//!
//! ```sh
//! cargo run -p examples --bin rds-ping -- --info-socket /run/ping.rds 10.9.0.2 &
//! cargo run -p examples --bin rds-info -- --of /run/ping.rds -nc
//! ```
//!
//! Where RDS is the kernel's, there is one of it on a host, and anybody can ask. In user space each
//! process has its own, and what it knows is in that process: so one says whom to ask, and the
//! program has to have said that it answers.
#![expect(clippy::print_stdout, reason = "this is what the program is for")]
#![expect(clippy::print_stderr, reason = "this is what the program is for")]

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::Parser;
use examples::{
    rds_info::tables::Titled,
    rds_tool::info_socket::{Sections, ask},
};
use rds::info::{AddressFamily, Section};

/// Show what the RDS of a program does: all of it, or what is asked for
#[derive(Debug, Parser)]
#[command(version)]
#[expect(clippy::struct_excessive_bools, reason = "these are its options")]
struct Options {
    /// Where the program can be asked, as its `--info-socket` says
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
    /// Messages that wait to be received
    #[arg(short = 'r')]
    receiving: bool,
    /// Messages that wait to be sent
    #[arg(short = 's')]
    sending: bool,
    /// Messages that wait to be acknowledged
    #[arg(short = 't')]
    retransmitting: bool,
    /// Sockets of the TCP transport, which is not here
    #[arg(short = 'T')]
    tcp: bool,
    /// Connections of RDMA devices
    #[arg(short = 'I')]
    devices: bool,
    /// IPv6 as well
    #[arg(short = 'a')]
    all: bool,
    /// More of devices
    #[arg(short = 'v', action = clap::ArgAction::Count)]
    verbose: u8,
}

impl Options {
    /// What is wanted, in the order of rds-tools'.
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
        let is_all = !self.tcp && each.iter().all(|(wanted, _)| !wanted);
        let wanted = each.into_iter().filter(|(wanted, _)| is_all || *wanted);
        wanted.map(|(_, section)| section).collect()
    }
}

/// The tables that are wanted.
fn text(sections: &Sections, options: &Options) -> Result<String> {
    let mut text = String::new();
    for section in options.sections() {
        let found = sections.iter().find(|(one, _)| *one == section);
        let (_, bytes) = found.with_context(|| format!("nothing is said of {section:?}"))?;
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
        eprintln!("rds-info: there is no TCP transport");
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
    fn without_options_everything_is_shown() {
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
    fn a_program_that_says_nonsense_is_refused() {
        let nothing = text(&vec![], &options(&["-c"])).unwrap_err();
        assert!(nothing.to_string().contains("Counters"), "{nothing}");
        let odd = vec![(Section::Counters, vec![0; 41])];
        let odd = text(&odd, &options(&["-c"])).unwrap_err();
        assert!(odd.to_string().contains("41 bytes"), "{odd}");
    }
}
