//! `rstream`—Measures a stream: latency, and then bandwidth.
//!
//! It takes the options of librdmacm's program of this name, and either side can be that one.

mod connection;
mod measure;
mod options;

use clap::Parser;

use crate::options::Options;

fn main() -> anyhow::Result<()> {
    measure::run(&Options::parse())
}
