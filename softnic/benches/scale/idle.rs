//! Costs of idle streams: the time of an event of another stream, and memory.

use std::time::Instant;

use crate::{
    Result, hosts,
    memory::resident_bytes,
    streams::{Streams, serve},
};

const WARM_UP: u32 = 100;
const EXCHANGES: u32 = 2000;

/// Nanoseconds of an echo; bytes of resident and of registered memory for each end of a stream.
#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn run(count: usize) -> Result<[f64; 3]> {
    let (fabric, [client, server]) = hosts();
    let addr = serve(&server)?;
    // The first stream is not counted: it starts the engine.
    let first = client.run(|| Streams::connect(addr, 1))?;
    first.exchange(0)?;
    let ends = 2.0 * count as f64;
    let before = (resident_bytes()?, fabric.books().registered_bytes());
    let streams = client.run(|| Streams::connect(addr, count))?;
    for _ in 0..WARM_UP {
        streams.exchange(0)?;
    }
    let resident = (resident_bytes()? - before.0) / ends;
    let registered = (fabric.books().registered_bytes() - before.1) as f64 / ends;
    let start = Instant::now();
    for _ in 0..EXCHANGES {
        streams.exchange(0)?;
    }
    let exchange = start.elapsed().as_secs_f64() * 1e9 / f64::from(EXCHANGES);
    Ok([exchange, resident, registered])
}
