//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::{bench, test};

/// Developer commands.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = false
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Install the packages that the other commands need
    Setup {
        /// Only report missing packages
        #[arg(long)]
        check: bool,
    },
    /// Run two programs over RDMA and explain each step
    ///
    /// Both programs run in one process on softnic, the RDMA devices of this project, and each frame between them is
    /// shown. Needs Rust and its crates only. Exits with 1 if a program fails or a message does not arrive.
    Demo {
        /// Run on two guests with Soft-RoCE in their kernels; installs packages, and takes minutes the first time
        #[arg(long)]
        guests: bool,
        /// Run a server in C and the client in Rust, in two processes on softnic's library; installs rdma-core's headers
        #[arg(long, conflicts_with_all = ["guests", "loss"])]
        original: bool,
        /// Probability of the loss of a frame, 0 to 1: the devices retransmit
        #[arg(long, value_name = "PROBABILITY", value_parser = probability, conflicts_with = "guests")]
        loss: Option<f64>,
        /// Write the sequence of lines and frames to this file, as an image
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Run the tests: on the host, and in guests with a software RDMA device
    Test(test::Options),
    /// Measure the crates against C programs; only `counts` is part of `ci`
    Bench {
        /// Set of benchmarks
        #[arg(value_enum)]
        name: bench::Name,
        /// Exit with an error if a bar is missed, or a count differs from the table
        #[arg(long)]
        check: bool,
        /// Skip measurements in guests
        #[arg(long)]
        host_only: bool,
        /// Write 1 GiB in the `write_all` benchmark; takes minutes
        #[arg(long)]
        long: bool,
    },
    /// Insert known faults into a copy of the sources, one at a time; a test must detect each
    Mutants {
        /// Only mutants with this text in the name or file
        filter: Option<String>,
    },
    /// Run all checks and tests required of a change
    Ci {
        /// Repeat the guest tests in QEMU with the distribution's kernel; takes hours without KVM
        #[arg(long)]
        long: bool,
    },
    /// Check the project's rules not covered by a lint
    Tidy,
    /// Package the crates, and test a foreign crate on the packages
    Packages,
    /// Build the book as HTML with a search; installs mdBook below `target` at the first use
    Book,
    /// Compare the published packages' interfaces with a release, by cargo-semver-checks
    Semver {
        /// Revision of git with the release, such as its tag
        baseline: String,
    },
    /// Regenerate the checked-in bindings of the -sys crates
    Codegen {
        /// Only check, and exit with an error if the bindings are stale
        #[arg(long)]
        check: bool,
    },
    /// Run commands beside a software RDMA device
    SoftRoce {
        #[command(subcommand)]
        command: soft_roce::cli::Command,
    },
}

fn probability(text: &str) -> Result<f64, String> {
    let probability = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1.0).contains(&probability) {
        Ok(probability)
    } else {
        Err("not between 0 and 1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_and_benchmarks_are_in_the_document() {
        let document = include_str!("../../CONTRIBUTING.md");
        let cli = Cli::command();
        for command in cli.get_subcommands() {
            let name = command.get_name();
            let line = format!("cargo xtask {name}");
            assert!(document.contains(&line), "`{line}` is missing");
            let options = command.get_arguments().filter_map(|arg| arg.get_long());
            for option in options.filter(|_| name == "test") {
                let option = format!("--{option}");
                assert!(document.contains(&option), "`{option}` is missing");
            }
        }
        for name in bench::Name::value_variants() {
            let name = name.to_possible_value().unwrap();
            let row = format!("| `{}` |", name.get_name());
            assert!(document.contains(&row), "no row of `bench {row}`");
        }
    }

    #[test]
    fn demo_takes_a_probability_without_guests() {
        let parse = |words: &str| Cli::try_parse_from(words.split(' '));
        for accepted in [
            "demo",
            "demo --guests",
            "demo --loss 0.2",
            "demo --loss 1",
            "demo --original",
        ] {
            assert!(parse(&format!("xtask {accepted}")).is_ok(), "{accepted}");
        }
        for refused in [
            "--loss",
            "--loss x",
            "--loss 1.5",
            "--loss -1",
            "--loss NaN",
            "--guests --loss 0.1",
            "--guests --original",
            "--original --loss 0.1",
        ] {
            assert!(
                parse(&format!("xtask demo {refused}")).is_err(),
                "{refused}"
            );
        }
    }
}
