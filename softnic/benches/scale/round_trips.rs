//! Round trips and one-way transfers between two threads, over a stream and over RDS.

use std::{
    io::{Read, Write},
    time::Instant,
};

use rsocket::{Listener, Stream};

use crate::{Result, any_port, hosts, messages::socket};

const ROUND_TRIPS: u32 = 20_000;
const WARM_UP: u32 = 1000;
const SMALL: usize = 64;
const BLOCKS: u32 = 20_000;
const BLOCK: usize = 4096;

/// Nanoseconds of each of `count` actions, after a warm-up.
fn time_of(count: u32, mut act: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..WARM_UP {
        act()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        act()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(count))
}

/// Nanoseconds of a round trip of [`SMALL`] bytes and of [`BLOCK`] bytes one way, over a stream.
pub(crate) fn stream() -> Result<[f64; 2]> {
    let (_fabric, [client, server]) = hosts();
    let listener = server.run(|| Listener::bind(any_port(&server)))?;
    let addr = listener.local_addr()?;
    let accepting = server.spawn(move || listener.accept().map(|(stream, _)| stream));
    let mut active = client.run(|| Stream::connect(addr))?;
    let mut passive = accepting.join().map_err(|_| "the server has failed")??;
    let echoing = server.spawn(move || -> std::io::Result<Stream> {
        let mut message = [0; SMALL];
        for _ in 0..WARM_UP + ROUND_TRIPS {
            passive.read_exact(&mut message)?;
            passive.write_all(&message)?;
        }
        Ok(passive)
    });
    let mut message = [1; SMALL];
    let round_trip = time_of(ROUND_TRIPS, || {
        active.write_all(&message)?;
        Ok(active.read_exact(&mut message)?)
    })?;
    let mut passive = echoing.join().map_err(|_| "the server has failed")??;
    let sending = client.spawn(move || -> std::io::Result<Stream> {
        for _ in 0..WARM_UP + BLOCKS {
            active.write_all(&[1; BLOCK])?;
        }
        Ok(active)
    });
    let mut block = [0; BLOCK];
    let one_way = time_of(BLOCKS, || Ok(passive.read_exact(&mut block)?))?;
    sending.join().map_err(|_| "the sender has failed")??;
    Ok([round_trip, one_way])
}

/// Nanoseconds of a round trip of [`SMALL`] bytes and of [`BLOCK`] bytes one way, over RDS.
pub(crate) fn messages() -> Result<[f64; 2]> {
    let (_fabric, [client, server]) = hosts();
    let (active, passive) = (socket(&client)?, socket(&server)?);
    let (client_addr, server_addr) = (active.local_addr()?, passive.local_addr()?);
    let echoing = server.spawn(move || -> std::io::Result<rds::Socket> {
        let mut message = [0; SMALL];
        for _ in 0..WARM_UP + ROUND_TRIPS {
            passive.recv(&mut message)?;
            passive.send_to(&message, client_addr)?;
        }
        Ok(passive)
    });
    let mut message = [1; SMALL];
    let round_trip = time_of(ROUND_TRIPS, || {
        active.send_to(&message, server_addr)?;
        active.recv(&mut message)?;
        Ok(())
    })?;
    let passive = echoing.join().map_err(|_| "the server has failed")??;
    let sending = client.spawn(move || -> std::io::Result<rds::Socket> {
        for _ in 0..WARM_UP + BLOCKS {
            active.send_to(&[1; BLOCK], server_addr)?;
        }
        Ok(active)
    });
    let mut block = [0; BLOCK];
    let one_way = time_of(BLOCKS, || {
        passive.recv(&mut block)?;
        Ok(())
    })?;
    sending.join().map_err(|_| "the sender has failed")??;
    Ok([round_trip, one_way])
}
