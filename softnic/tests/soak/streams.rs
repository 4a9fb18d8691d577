//! Streams and listeners of `rsocket`.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr},
    thread,
};

use fastrand::Rng;
use rsocket::{Listener, Options, Stream};
use softnic::{Fabric, Host, Limits};

use crate::{
    TEST_TIMEOUT,
    half_open::{HalfOpen, request},
    run_exclusively, soak,
};

/// Number of streams in a round.
const STREAMS: usize = 200;

/// Number of hostile actions before the next honest client.
const ACTIONS: usize = 24;

fn listen(host: &Host) -> (Listener, SocketAddr) {
    let listener = host.run(|| Listener::bind((host.addr(), 0)).unwrap());
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

fn connect(host: &Host, addr: SocketAddr) -> std::io::Result<Stream> {
    host.run(|| Options::new().connect_timeout(TEST_TIMEOUT).connect(addr))
}

/// Exchanges a byte over a new connection of a client; the streams of strangers are closed.
fn exchange(client: &Host, listener: &Listener, addr: SocketAddr) {
    thread::scope(|scope| {
        let local = scope.spawn(|| {
            let mut client = connect(client, addr).unwrap();
            client.write_all(b"x").unwrap();
            client.set_read_timeout(Some(TEST_TIMEOUT));
            client.read_exact(&mut [0]).unwrap();
            client.local_addr().unwrap()
        });
        loop {
            let (mut server, peer) = listener.accept().unwrap();
            if peer.ip() == client.addr() {
                server.set_read_timeout(Some(TEST_TIMEOUT));
                server.read_exact(&mut [0]).unwrap();
                server.write_all(b"y").unwrap();
                assert_eq!(local.join().unwrap(), peer);
                return;
            }
        }
    });
}

#[test]
fn ended_streams_leave_no_memory() {
    let _alone = run_exclusively();
    let fabric = Fabric::new().keep_objects();
    let [server, client] = [1, 2].map(|number| fabric.host(IpAddr::from([10, 9, 90, number])));
    let (listener, addr) = listen(&server);
    soak(&fabric, STREAMS, || {
        for _ in 0..STREAMS {
            exchange(&client, &listener, addr);
        }
    });
}

/// The peers of a listener, with random actions.
struct Strangers {
    rng: Rng,
    addr: SocketAddr,
    half_open: Vec<HalfOpen>,
    streams: Vec<Stream>,
}

impl Strangers {
    fn act(&mut self) {
        let source = SocketAddr::from(([10, 9, 91, self.rng.u8(100..140)], 0));
        match self.rng.u8(0..10) {
            0..4 => {
                let requested = request(Some(source), self.addr, self.rng.u8(..) < 230);
                self.half_open.push(requested);
            }
            4..6 => {
                // Held while the streams not accepted have all memory.
                let options = Options::new().connect_timeout(TEST_TIMEOUT / 12);
                self.streams.extend(options.connect(self.addr).ok());
            }
            6 if !self.streams.is_empty() => {
                let index = self.rng.usize(0..self.streams.len());
                // Fails once the server has closed the stream.
                drop(self.streams[index].write(&[0; 100]));
            }
            7 if !self.streams.is_empty() => {
                let index = self.rng.usize(0..self.streams.len());
                drop(self.streams.swap_remove(index));
            }
            _ if !self.half_open.is_empty() => {
                let index = self.rng.usize(0..self.half_open.len());
                drop(self.half_open.swap_remove(index));
            }
            _ => {}
        }
    }
}

#[test]
fn strangers_of_a_listener_leave_nothing() {
    let _alone = run_exclusively();
    let fabric = Fabric::new().keep_objects();
    let [server, client] = [1, 2].map(|number| fabric.host(IpAddr::from([10, 9, 91, number])));
    let addrs: Vec<_> = (100..140)
        .map(|number| IpAddr::from([10, 9, 91, number]))
        .collect();
    let evil = fabric.host_with_addrs(&addrs);
    server.set_limits(Limits::new().locked_memory(8 << 20).descriptors(256));
    let (listener, addr) = listen(&server);
    let mut strangers = Strangers {
        rng: Rng::with_seed(fabric.seed()),
        addr,
        half_open: Vec::new(),
        streams: Vec::new(),
    };
    soak(&fabric, 4 * (ACTIONS + 1) + 1, || {
        for _ in 0..4 {
            evil.run(|| (0..ACTIONS).for_each(|_| strangers.act()));
            exchange(&client, &listener, addr);
        }
        evil.run(|| {
            strangers.half_open.clear();
            strangers.streams.clear();
        });
        // Accepts the rest.
        exchange(&client, &listener, addr);
    });
}
