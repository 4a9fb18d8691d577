//! The measured programs of `cargo xtask bench softnic`.
//!
//! ```text
//! fabric round-trip    nanoseconds of a send of 64 bytes and its answer, both ends polled by one thread
//! fabric write         nanoseconds of a write of 64 KiB in packets of 4096 and of 1024 bytes, and of a copy of 64 KiB in
//!                      memory
//! fabric incast        10,000 queue pairs between 100 hosts: seconds of the set-up, bytes of resident memory for each
//!                      queue pair, and seconds of an incast with a loss of 0.1 %
//! ```

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod end;
mod incast;
mod pair;

use verbs::attr::Mtu;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let case = std::env::args().nth(1);
    match case.as_deref() {
        Some("round-trip") => println!("{}", pair::round_trip()?),
        Some("write") => {
            let [large, small] = [pair::write(Mtu::B4096)?, pair::write(Mtu::B1024)?];
            println!("{large} {small} {}", pair::copy()?);
        }
        Some("incast") => {
            let figures = incast::run()?;
            println!(
                "{} {} {}",
                figures.setup_seconds, figures.bytes, figures.incast_seconds
            );
        }
        _ => return Err("usage: fabric round-trip|write|incast".into()),
    }
    Ok(())
}
