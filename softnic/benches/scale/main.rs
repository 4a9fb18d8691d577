//! The measured programs of `cargo xtask bench scale`: `rsocket` and `rds` between hosts of one process.
//!
//! ```text
//! scale limit                 maximum number of streams for the process's limit of descriptors, one for each of two ends
//! scale streams COUNT         streams set up per second, and the 99th percentile of an echo in microseconds, with COUNT
//!                             streams that each send 64 bytes once a second, all on one processor
//! scale idle COUNT            nanoseconds of an echo through an `EventSet` with COUNT idle streams; bytes of resident and of
//!                             pinned memory for each end of a stream
//! scale peers PEERS SOCKETS   nanoseconds of a message, from PEERS hosts in turn to SOCKETS sockets of one host
//! scale pairs COUNT           messages per second of COUNT pairs of threads, one message of each in flight; nanoseconds of
//!                             processor time of a message
//! scale wire COUNT            the same with a delay of 1 ms for every packet
//! scale stream                nanoseconds of a round trip of 64 bytes over a stream, and of 4096 bytes one way
//! scale messages              the same over RDS
//! ```

#![expect(clippy::print_stdout, reason = "a program for the terminal")]

mod idle;
mod memory;
mod messages;
mod round_trips;
mod streams;

use std::{
    env,
    net::{IpAddr, SocketAddr},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softnic::{Fabric, Host};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Number of descriptors for ten thousand streams, both ends of each in this process.
const DESCRIPTORS: u64 = 20_000 + OTHER_DESCRIPTORS;

/// Number of descriptors beside those of streams: of the engine, of sets and of the fabric, with room.
const OTHER_DESCRIPTORS: u64 = 100;

const USAGE: &str = "usage: scale streams|idle|pairs|wire COUNT, scale peers PEERS SOCKETS, or scale limit|stream|messages";

fn main() -> Result<()> {
    raise_descriptor_limit()?;
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let figures = match arguments[..] {
        ["limit"] => vec![stream_limit()],
        ["streams", count] => streams::run(count.parse()?)?.to_vec(),
        ["idle", count] => idle::run(count.parse()?)?.to_vec(),
        ["peers", peers, sockets] => vec![messages::peers(peers.parse()?, sockets.parse()?)?],
        ["pairs", count] => messages::pairs(count.parse()?)?.to_vec(),
        ["wire", count] => messages::pairs_over_wire(count.parse()?)?.to_vec(),
        ["stream"] => round_trips::stream()?.to_vec(),
        ["messages"] => round_trips::messages()?.to_vec(),
        _ => return Err(USAGE.into()),
    };
    let figures: Vec<String> = figures.iter().map(f64::to_string).collect();
    println!("{}", figures.join(" "));
    Ok(())
}

/// Raises the limits of open descriptors to [`DESCRIPTORS`], or the soft limit to the hard one where that is not permitted.
fn raise_descriptor_limit() -> Result<()> {
    let limit = Some(DESCRIPTORS);
    let now = getrlimit(Resource::Nofile);
    if now.current.is_none_or(|limit| limit >= DESCRIPTORS) {
        return Ok(());
    }
    let both = Rlimit {
        current: limit,
        maximum: limit,
    };
    let soft = Rlimit {
        current: now.maximum,
        ..now
    };
    Ok(setrlimit(Resource::Nofile, both).or_else(|_| setrlimit(Resource::Nofile, soft))?)
}

/// Maximum number of streams for the limit of open descriptors, at least ten thousand if that is raised.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn stream_limit() -> f64 {
    let limit = getrlimit(Resource::Nofile).current;
    let ends = limit
        .unwrap_or(DESCRIPTORS)
        .saturating_sub(OTHER_DESCRIPTORS);
    (ends / 2) as f64
}

/// Two hosts of a fabric that keeps its objects, as the engine of `rsocket` does until the process ends.
fn hosts() -> (Fabric, [Host; 2]) {
    let fabric = Fabric::new().keep_objects();
    let both = [1, 2].map(|number| fabric.host(IpAddr::from([10, 9, 0, number])));
    (fabric, both)
}

/// An address of a host, with any free port.
fn any_port(host: &Host) -> SocketAddr {
    SocketAddr::new(host.addr(), 0)
}
