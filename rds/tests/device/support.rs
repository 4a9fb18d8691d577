//! Sockets and addresses of the device that the tests share.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Once,
    time::Duration,
};

use rds::{Engine, EngineOptions, Socket};

use crate::addresses::add;

pub(crate) const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// A socket on its own engine. Receives have no timeout; the guest's time limit applies.
pub(crate) fn socket(addr: SocketAddr) -> Socket {
    let engine = EngineOptions::new().start().unwrap();
    let socket = engine.socket().unwrap();
    socket.bind_to(addr).unwrap();
    socket.set_write_timeout(TEST_TIMEOUT);
    socket
}

pub(crate) fn addr(socket: &Socket) -> SocketAddr {
    socket.local_addr().unwrap()
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(0x9e37_79b1) >> 9).to_le_bytes()[0] ^ seed)
        .collect()
}

/// Address of the guest's RDMA device.
pub(crate) fn local() -> Ipv4Addr {
    let address = std::env::var("A").expect("these tests run in the guest: `cargo xtask test`");
    address.parse().unwrap()
}

/// The local address with any port.
pub(crate) fn any() -> SocketAddr {
    SocketAddr::new(local().into(), 0)
}

/// Another socket on the same engine and address.
pub(crate) fn another_of(socket: &Socket) -> Socket {
    let another = socket.engine().socket().unwrap();
    another
        .bind_to(SocketAddr::new(addr(socket).ip(), 0))
        .unwrap();
    another.set_read_timeout(TEST_TIMEOUT);
    another
}

/// A second address of the device, another host to RDS: that of the variable `A2`, or an added one.
pub(crate) fn other() -> SocketAddr {
    static ADDED: Once = Once::new();
    address_in("A2").unwrap_or_else(|| add_address(77, &ADDED))
}

/// A third address of the device: that of the variable `A3`, or an added one.
pub(crate) fn third() -> SocketAddr {
    static ADDED: Once = Once::new();
    address_in("A3").unwrap_or_else(|| add_address(78, &ADDED))
}

fn address_in(variable: &str) -> Option<SocketAddr> {
    let ip: IpAddr = std::env::var(variable).ok()?.parse().unwrap();
    Some(SocketAddr::new(ip, 0))
}

fn add_address(last: u8, added: &Once) -> SocketAddr {
    let [a, b, c, _] = local().octets();
    let ip = IpAddr::from([a, b, c, last]);
    // Forced, because a test may have been left out there.
    added.call_once_force(|_| add(ip, 24));
    SocketAddr::new(ip, 0)
}

/// A statistics counter of an engine.
pub(crate) fn counter(engine: &Engine, name: &str) -> u64 {
    let info = engine.info().unwrap();
    let counter = info.counters.iter().find(|counter| counter.name == name);
    counter.unwrap_or_else(|| panic!("no {name}")).value
}

/// Two IPv6 addresses of the device.
pub(crate) fn v6_pair() -> (SocketAddr, SocketAddr) {
    static ADDED: Once = Once::new();
    let local =
        std::env::var("A6").expect("left out: the device has no IPv6 address (variable A6)");
    let local: Ipv6Addr = local.parse().unwrap();
    let mut segments = local.segments();
    segments[7] = 0x77;
    let other = IpAddr::from(segments);
    ADDED.call_once_force(|_| add(other, 64));
    (SocketAddr::new(local.into(), 0), SocketAddr::new(other, 0))
}
