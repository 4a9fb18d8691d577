//! Strangers that attack an `rds` engine without a pause, from the addresses of one host, while hosts connect and exchange messages.

use std::{
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use rds::{EngineOptions, Socket, proto::wire::Header};
use softnic::Fabric;

use crate::{
    newcomers::{host, serve_each, service_limits, socket, strangers},
    prober::{self, Wire, early_data::EarlyData},
};

/// Number of addresses of the strangers.
const ADDRESSES: u8 = 40;

/// Number of threads of the strangers.
const THREADS: usize = 4;

/// Port of the server whose messages are for strangers.
const PORT: u16 = 4001;

/// A connection request from an address, by its number, to another one.
#[derive(Clone, Copy)]
struct Route {
    number: usize,
    from: IpAddr,
    to: IpAddr,
}

impl Route {
    /// Connects with a type of service and a number of posted receives.
    fn dial(self, tos: u8, receives: u32) -> Option<Wire> {
        let data = prober::proposal(self.from, self.to, tos).encode();
        let answer = prober::dial(self.from, self.to, &data, receives);
        answer.and_then(prober::Answer::accepted).ok()
    }
}

/// Answers the messages of strangers, as far as it can without blocking.
fn answer(socket: &Socket, is_over: &AtomicBool) {
    socket.set_nonblocking(true);
    let mut buf = [0; 64];
    while !is_over.load(Relaxed) {
        match socket.recv_from(&mut buf) {
            // Fails once the send buffer is full.
            Ok((len, from)) => drop(socket.send_to(&buf[..len], from)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => thread::yield_now(),
            Err(error) => unreachable!("{error}"),
        }
    }
}

/// Each thread of the strangers keeps the connections of its last `kept` actions.
fn check<W>(attack: &str, net: u8, kept: usize, act: impl Fn(Route) -> Option<W> + Sync) {
    let fabric = Fabric::new().keep_objects();
    let (evil, addrs) = strangers(&fabric, net, ADDRESSES);
    let to = host(&fabric, net, 1);
    to.set_limits(service_limits());
    let server = socket(&to, EngineOptions::new().receive_memory(4 << 20));
    let answering = server.engine().socket().unwrap();
    answering.bind_to(SocketAddr::new(to.addr(), PORT)).unwrap();
    let newcomers: Vec<Socket> = (2..6)
        .map(|number| socket(&host(&fabric, net, number), EngineOptions::new()))
        .collect();
    let is_over = AtomicBool::new(false);
    let storm = |thread: usize| {
        let mut open = Vec::new();
        for number in (thread..).step_by(THREADS) {
            if is_over.load(Relaxed) {
                return;
            }
            let from = addrs[number % addrs.len()];
            let to = to.addr();
            open.extend(act(Route { number, from, to }));
            if open.len() > kept {
                drop(open.remove(0));
            }
        }
    };
    let served = thread::scope(|scope| {
        scope.spawn(|| answer(&answering, &is_over));
        for thread in 0..THREADS {
            let (storm, evil) = (&storm, &evil);
            scope.spawn(move || evil.run(|| storm(thread)));
        }
        let serving = scope.spawn(|| serve_each(attack, &fabric, &server, &newcomers));
        let served = serving.join();
        is_over.store(true, Relaxed);
        served
    });
    served.unwrap();
}

#[test]
fn newcomers_get_in_beside_silent_connections() {
    check("silent", 81, 40, |route| route.dial(0, 4));
}

/// Each request has another address than the one before, and no handshake is completed.
#[test]
fn newcomers_get_in_during_requests_with_forged_sources() {
    check("forged source", 82, 16, |route| {
        let data = prober::proposal(route.from, route.to, 0).encode();
        EarlyData::dial(route.from, route.to, &data).ok()
    });
}

/// A message that the server answers, on one of two types of service.
fn greet(route: Route, receives: u32) -> Option<Wire> {
    let tos = route.number / usize::from(ADDRESSES) % 2;
    let mut wire = route.dial(u8::try_from(tos).ok()?, receives)?;
    let header = Header {
        sequence: 1,
        len: 1,
        from: 77,
        to: PORT,
        ..Header::default()
    };
    wire.message(&header, b"x").ok()?.then_some(wire)
}

/// The answers are received, and never acknowledged.
#[test]
fn newcomers_get_in_beside_peers_without_room() {
    check("no room", 83, 20, |route| greet(route, 16));
}

#[test]
fn newcomers_get_in_beside_peers_without_receives() {
    check("no receives", 84, 20, |route| greet(route, 0));
}
