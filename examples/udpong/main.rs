//! `udpong`—Measures datagrams: there and back, and one way.
//!
//! It takes the options of librdmacm's program of this name, and either side can be that one.

use clap::Parser;
use examples::udpong::{client, options::Options, server};

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    match &options.server {
        Some(server) => client::run(&options, server),
        None => server::run(&options),
    }
}
