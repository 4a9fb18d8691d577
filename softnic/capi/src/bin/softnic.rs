//! `softnic run`: a program of libibverbs and librdmacm on a softnic device, over UDP.

use clap::Parser;
use softnic_capi::command::{Cli, run};

fn main() -> anyhow::Result<()> {
    run(&Cli::parse())
}
