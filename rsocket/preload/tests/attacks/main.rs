//! A server unaware of RDMA, under the library and with the limits of a service, while peers that follow the protocol attack
//! without a pause. The server serves a few streams at a time: their number is the program's to limit.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(
    dead_code,
    reason = "the hostile hosts are those of softnic's tests, which use more of them"
)]

// The test is linked with the library, whose functions come before the C library's.
extern crate rspreload as _;

#[path = "../../../../softnic/tests/services/attacks.rs"]
mod attacks;
#[path = "../../../../softnic/tests/services/child.rs"]
mod child;
#[path = "../../../../softnic/tests/services/descriptors.rs"]
mod descriptors;
#[path = "../../../../softnic/tests/services/half_open.rs"]
mod half_open;
#[path = "../../../../softnic/tests/services/honest.rs"]
mod honest;
#[path = "../../../../softnic/tests/services/stalled.rs"]
mod stalled;
#[path = "../../../../softnic/tests/services/strangers.rs"]
mod strangers;

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use rsocket::Options;
use rustix::net::{AddressFamily, sockopt::socket_domain};
use softnic::{Fabric, Limits};

use attacks::{Attack, hosts, serve_during};
use child::{forbid_threads, report, with_limits};
use descriptors::open_files;
use half_open::{HalfOpen, request};
use honest::ask;
use strangers::{Strangers, limits};

/// Timeout of everything that must happen.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Address of the service.
const ADDR: &str = "10.9.0.1:7471";

/// Number of streams that the server serves at a time; one more ends the oldest.
const STREAMS: usize = 4;

fn addr() -> SocketAddr {
    ADDR.parse().unwrap()
}

/// Echoes the received bytes of a stream, at most 64. Returns whether the stream goes on.
fn echo(stream: &mut TcpStream) -> bool {
    let mut buf = [0; 64];
    match stream.read(&mut buf) {
        Ok(0) => false,
        Ok(len) => stream.write(&buf[..len]).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// A server of one thread, until it is over.
fn serve(listener: &TcpListener, is_over: &AtomicBool) {
    let mut streams = VecDeque::new();
    while !is_over.load(Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            streams.push_back(stream);
            if streams.len() > STREAMS {
                streams.pop_front();
            }
        }
        streams.retain_mut(echo);
        thread::yield_now();
    }
}

#[track_caller]
fn check(attack: Attack, (name, limits): (&str, Limits), ready: impl FnOnce()) {
    let fabric = Fabric::new().keep_objects();
    let [service, hostile, honest] = hosts(&fabric);
    service.set_limits(limits);
    let listener = service.run(|| TcpListener::bind(ADDR).unwrap());
    let is_local = socket_domain(listener.as_fd()).unwrap() == AddressFamily::UNIX;
    assert!(is_local, "the listener is a socket of the kernel's TCP");
    listener.set_nonblocking(true).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let serving = {
        let is_over = Arc::clone(&is_over);
        service.spawn(move || serve(&listener, &is_over))
    };
    let attacker = (attack, Strangers::new as fn(_) -> _);
    let time = serve_during(attacker, (name, &fabric), [&hostile, &honest], ready, ask);
    report(&format!("preload | {attack:?} | {name}"), Some(time));
    is_over.store(true, Relaxed);
    serving.join().unwrap();
}

#[track_caller]
fn check_each(attack: Attack) {
    for limits in limits() {
        check(attack, limits, || ());
    }
}

#[test]
fn program_serves_during_half_open_requests_within_limits() {
    check_each(Attack::HalfOpen);
}

#[test]
fn program_serves_during_requests_with_forged_sources_within_limits() {
    check_each(Attack::ForgedSources);
}

#[test]
fn program_serves_beside_idle_connections_within_limits() {
    check_each(Attack::Idle);
}

#[test]
fn program_serves_beside_connections_of_many_addresses_within_limits() {
    check_each(Attack::ManyAddresses);
}

#[test]
fn program_serves_during_reconnect_storm_within_limits() {
    check_each(Attack::ReconnectStorm);
}

#[test]
fn program_serves_beside_peers_without_room_within_limits() {
    check_each(Attack::NoRoom);
}

#[test]
fn program_serves_beside_peers_without_receives_within_limits() {
    check_each(Attack::NoReceives);
}

/// A connection takes descriptors once accepted. Half-open connections give way, each of which has one.
#[test]
fn accept_without_descriptors_displaces_half_open_connections() {
    let name = "accept_without_descriptors_displaces_half_open_connections";
    with_limits(name, u64::MAX, || {
        let fabric = Fabric::new().keep_objects();
        let [service, hostile, honest] = hosts(&fabric);
        let listener = service.run(|| TcpListener::bind(ADDR).unwrap());
        let options = Options::new().connect_timeout(TEST_TIMEOUT);
        let mut client = honest.run(|| options.connect(ADDR).unwrap());
        client.write_all(b"hello").unwrap();
        let files = open_files();
        // The connection stays the next one.
        for _ in 0..2 {
            let error = listener.accept().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
        }
        drop(files);
        let _strangers: Vec<HalfOpen> =
            hostile.run(|| (0..12).map(|_| request(None, addr(), true)).collect());
        // Requests are served in their order: those of the strangers are before this one.
        let _other = honest.run(|| options.connect(ADDR).unwrap());
        let _files = open_files();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut hello = [0; 5];
        accepted.read_exact(&mut hello).unwrap();
        assert_eq!(&hello, b"hello");
    });
}

/// The limits of `setrlimit(2)`, and no thread can be started once the server runs.
#[test]
fn program_serves_within_limits_of_a_process() {
    let name = "program_serves_within_limits_of_a_process";
    with_limits(name, 8 << 20, || {
        let [limits, ..] = limits();
        check(Attack::HalfOpen, limits, forbid_threads);
    });
}
