//! `rstream`—Measures a stream: latency, and then bandwidth.
//!
//! It takes the options of librdmacm's program of this name, and either side can be that one.

mod measure;

use clap::Parser;
use examples::rstream::options::Options;

fn main() -> anyhow::Result<()> {
    measure::run(&Options::parse())
}
