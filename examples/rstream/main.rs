//! `rstream`—Measures a stream: latency, then bandwidth.
//!
//! Takes the options of librdmacm's program of the same name, and interoperates with it.

mod measure;

use clap::Parser;
use examples::rstream::options::Options;

fn main() -> anyhow::Result<()> {
    examples::trace::print_selected();
    measure::run(&Options::parse())
}
