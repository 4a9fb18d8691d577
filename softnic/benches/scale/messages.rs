//! Messages over RDS, from many hosts, to many sockets, and between many threads.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use rds::{EngineOptions, Socket};
use rustix::time::{ClockId, clock_gettime};
use softnic::{Fabric, Host};

use crate::{Result, hosts};

const MESSAGE: [u8; 64] = [1; 64];
const TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
/// Receive queue of each connection: 1,000 connections need 3.2 GB with the default.
const RECEIVES: u32 = 64;
const MEMORY: u64 = 1 << 32;
const MESSAGES: u32 = 20_000;
const PORT: u16 = 4000;
/// Maximum number of addresses of a host.
const ADDRESSES: u16 = 100;
/// Duration of [`pairs`].
const TIME: Duration = Duration::from_secs(2);
/// Delay of every packet in [`pairs_over_wire`]: several times the processor time of a round trip.
const WIRE: Duration = Duration::from_millis(1);

fn options() -> EngineOptions {
    EngineOptions::new()
        .receives(RECEIVES)
        .receive_memory(MEMORY)
        .max_connections(4096, 4096)
}

/// A socket on an engine of its own.
pub(crate) fn socket(host: &Host) -> Result<Socket> {
    host.run(|| bound(&options().start()?, SocketAddr::new(host.addr(), PORT)))
}

fn bound(engine: &rds::Engine, addr: SocketAddr) -> Result<Socket> {
    let socket = engine.socket()?;
    socket.bind_to(addr)?;
    socket.set_read_timeout(TIMEOUT);
    socket.set_write_timeout(TIMEOUT);
    Ok(socket)
}

/// Nanoseconds of a message from one of `peers` addresses in turn to one of `sockets` sockets of a host in turn. Every address
/// has a connection of its own.
pub(crate) fn peers(peers: u16, sockets: u16) -> Result<f64> {
    let fabric = Fabric::new().keep_objects();
    let server = fabric.host(IpAddr::from([10, 8, 0, 1]));
    let receivers = sockets_of(
        &server,
        (0..sockets).map(|number| SocketAddr::new(server.addr(), PORT + number)),
    )?;
    let mut senders = Vec::new();
    for first in (0..peers).step_by(usize::from(ADDRESSES)) {
        let addrs: Vec<IpAddr> = (first..peers.min(first + ADDRESSES)).map(address).collect();
        let host = fabric.host_with_addrs(&addrs);
        senders.extend(sockets_of(
            &host,
            addrs.iter().map(|&addr| SocketAddr::new(addr, PORT)),
        )?);
    }
    // Connects, and touches each receive buffer once: a device pins their pages at registration, and a fabric does not.
    for _ in 0..RECEIVES {
        for sender in &senders {
            deliver(sender, &receivers[0])?;
        }
    }
    let turns = senders.iter().cycle().zip(receivers.iter().cycle());
    let turns = turns.take(usize::try_from(MESSAGES)?);
    let start = Instant::now();
    for (from, to) in turns {
        deliver(from, to)?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(MESSAGES))
}

fn address(number: u16) -> IpAddr {
    let [high, low] = number.to_be_bytes();
    IpAddr::from([10, 9, high, low])
}

/// Sockets of one engine on a host.
fn sockets_of(host: &Host, addrs: impl Iterator<Item = SocketAddr>) -> Result<Vec<Socket>> {
    host.run(|| {
        let engine = options().start()?;
        addrs.map(|addr| bound(&engine, addr)).collect()
    })
}

fn deliver(from: &Socket, to: &Socket) -> Result<()> {
    from.send_to(&MESSAGE, to.local_addr()?)?;
    let len = to.recv(&mut [0; MESSAGE.len()])?;
    if len == MESSAGE.len() {
        Ok(())
    } else {
        Err(format!("a message of {len} bytes").into())
    }
}

/// Messages per second between `count` pairs of threads, which send one message back and forth, and the processor time of a
/// message in nanoseconds. All sockets of a host have one engine.
pub(crate) fn pairs(count: u16) -> Result<[f64; 2]> {
    pairs_on(hosts(), count)
}

/// As [`pairs`], with a delay of [`WIRE`] for every packet: the threads wait most of the time.
pub(crate) fn pairs_over_wire(count: u16) -> Result<[f64; 2]> {
    let (fabric, both) = hosts();
    pairs_on((fabric.delay(WIRE..WIRE), both), count)
}

fn pairs_on((_fabric, both): (Fabric, [Host; 2]), count: u16) -> Result<[f64; 2]> {
    let first = both.each_ref().map(socket);
    let [first_a, first_b] = first;
    let (first_a, first_b) = (first_a?, first_b?);
    let [host_a, host_b] = &both;
    let begin = Arc::new(Barrier::new(usize::from(count) * 2 + 1));
    let mut asking = Vec::new();
    for number in 1..=count {
        let port = PORT + number;
        let [a, b] = [(host_a, &first_a), (host_b, &first_b)].map(|(host, first)| {
            let addr = SocketAddr::new(host.addr(), port);
            host.run(|| bound(first.engine(), addr))
        });
        let (a, b) = (a?, b?);
        let dest = b.local_addr()?;
        let begun = Arc::clone(&begin);
        host_b.spawn(move || {
            begun.wait();
            let mut buf = [0; 64];
            // Until the asking thread drops its socket: the last reply is received by none.
            while let Ok((len, from)) = b.recv_from(&mut buf) {
                if b.send_to(&buf[..len], from).is_err() {
                    break;
                }
            }
        });
        let here = Arc::clone(&begin);
        asking.push(host_a.spawn(move || {
            here.wait();
            let (start, mut messages) = (Instant::now(), 0_u32);
            let mut buf = [0; 64];
            while start.elapsed() < TIME {
                a.send_to(&MESSAGE, dest).expect("the peer is there");
                a.recv(&mut buf).expect("the peer answers");
                messages += 2;
            }
            messages
        }));
    }
    begin.wait();
    let before = (Instant::now(), processor_time());
    let counts = asking.into_iter().map(thread::JoinHandle::join);
    let counts = counts.map(|count| count.map_err(|_| "a thread has failed".into()));
    let messages: u32 = counts.collect::<Result<Vec<u32>>>()?.iter().sum();
    let messages = f64::from(messages);
    let used = processor_time() - before.1;
    Ok([
        messages / before.0.elapsed().as_secs_f64(),
        used.as_secs_f64() * 1e9 / messages,
    ])
}

/// Processor time of all threads of this process.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("it is not negative")
}
