//! `udpong`—Measures datagrams: round trips, and one direction.
//!
//! Takes the options of librdmacm's program of the same name, and interoperates with it.

use clap::Parser;
use examples::udpong::{client, options::Options, server};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match &options.server {
        Some(server) => client::run(&options, server),
        None => server::run(&options),
    }
}
