//! `rstream`—Measures a stream: latency, then bandwidth.
//!
//! Takes the options of librdmacm's program of the same name, and interoperates with it.

mod measure;

use clap::Parser;
use examples::rstream::options::Options;

fn main() -> anyhow::Result<()> {
    measure::run(&Options::parse())
}
