//! Listeners of `rsocket` under the limits of a process and a device, while peers attack without a pause. The server serves a few
//! streams at a time: their number is the program's to limit.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use rsocket::{Family, Listener, Options, Socket, Stream};
use softnic::{Fabric, Limits};

use crate::{
    ADDR, TEST_TIMEOUT, addr,
    attacks::{Attack, hosts, serve_during},
    child::{forbid_threads, report, with_limits},
    descriptors::open_files,
    half_open::{HalfOpen, request},
    honest::ask,
    strangers::{Strangers, limits},
};

/// Number of streams that the server serves at a time; one more ends the oldest.
const STREAMS: usize = 4;

/// Backlog of the server, fewer than the half-open connections of the hostile host.
const BACKLOG: u32 = 32;

/// Echoes the received bytes of a stream, at most 64. Returns whether the stream goes on.
fn echo(stream: &mut Stream) -> bool {
    let mut buf = [0; 64];
    match stream.read(&mut buf) {
        Ok(0) => false,
        Ok(len) => stream.write(&buf[..len]).is_ok(),
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

/// A server of one thread, until it is over. Serves `most` streams at a time.
fn serve(listener: &Listener, most: usize, is_over: &AtomicBool) {
    let mut streams = VecDeque::new();
    while !is_over.load(Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true);
            streams.push_back(stream);
            if streams.len() > most {
                streams.pop_front();
            }
        }
        streams.retain_mut(echo);
        thread::yield_now();
    }
}

#[track_caller]
fn check(attack: Attack, limits: (&str, Limits), ready: impl FnOnce()) {
    check_with(
        (&Options::new().backlog(BACKLOG), STREAMS),
        attack,
        limits,
        ready,
    );
}

/// An attack on a server with options and a number of streams.
#[track_caller]
fn check_with(
    (options, streams): (&Options, usize),
    attack: Attack,
    (name, limits): (&str, Limits),
    ready: impl FnOnce(),
) {
    let fabric = Fabric::new().keep_objects();
    let [service, hostile, honest] = hosts(&fabric);
    service.set_limits(limits);
    let listener = service.run(|| options.listen(ADDR).unwrap());
    listener.set_nonblocking(true);
    let is_over = Arc::new(AtomicBool::new(false));
    let serving = {
        let is_over = Arc::clone(&is_over);
        service.spawn(move || serve(&listener, streams, &is_over))
    };
    let attacker = (attack, Strangers::new as fn(_) -> _);
    let ends = [&hostile, &honest];
    let time = serve_during(attacker, (name, &fabric), ends, ready, ask);
    report(&format!("rsocket | {attack:?} | {name}"), Some(time));
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
fn streams_are_served_during_half_open_requests_within_limits() {
    check_each(Attack::HalfOpen);
}

#[test]
fn streams_are_served_during_requests_with_forged_sources_within_limits() {
    check_each(Attack::ForgedSources);
}

#[test]
fn streams_are_served_beside_idle_connections_within_limits() {
    check_each(Attack::Idle);
}

#[test]
fn streams_are_served_beside_connections_of_many_addresses_within_limits() {
    check_each(Attack::ManyAddresses);
}

#[test]
fn streams_are_served_during_reconnect_storm_within_limits() {
    check_each(Attack::ReconnectStorm);
}

#[test]
fn streams_are_served_beside_peers_without_room_within_limits() {
    check_each(Attack::NoRoom);
}

#[test]
fn streams_are_served_beside_peers_without_receives_within_limits() {
    check_each(Attack::NoReceives);
}

/// The memory of two connections with small buffers and queues, one of which is half-open. Peers without receives are left out:
/// each dropped stream has this memory for a second, and hinders the hostile host itself before the first client.
#[test]
fn streams_are_served_within_64_kib_of_lockable_memory() {
    let options = Options::new().backlog(BACKLOG);
    let options = options.send_buffer(4096).receive_buffer(4096);
    let options = options.send_queue(16).receive_queue(16);
    let limits = Limits::new().locked_memory(64 << 10);
    for attack in [
        Attack::HalfOpen,
        Attack::ForgedSources,
        Attack::Idle,
        Attack::ManyAddresses,
        Attack::ReconnectStorm,
        Attack::NoRoom,
    ] {
        let limits = ("64 KiB of lockable memory", limits);
        check_with((&options, 1), attack, limits, || ());
    }
}

/// A program of C accepts a connection with descriptors. Without any, half-open connections give way, each of which has one.
#[test]
fn accept_without_descriptors_displaces_half_open_connections() {
    let name = "streams::accept_without_descriptors_displaces_half_open_connections";
    with_limits(name, u64::MAX, || {
        let fabric = Fabric::new().keep_objects();
        let [service, hostile, honest] = hosts(&fabric);
        let listener = service.run(|| {
            let listener = Socket::new(Family::V4).unwrap();
            listener.bind(addr()).unwrap();
            listener.listen(BACKLOG).unwrap();
            listener
        });
        let accept = || {
            service.run(|| {
                listener.accept_with(|accepted| {
                    accepted.descriptor()?;
                    accepted.mirror()
                })
            })
        };
        let options = Options::new().connect_timeout(TEST_TIMEOUT);
        let mut client = honest.run(|| options.connect(ADDR).unwrap());
        client.write_all(b"hello").unwrap();
        let files = open_files();
        // The connection stays the next one.
        for _ in 0..2 {
            let error = accept().unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
        }
        drop(files);
        let _strangers: Vec<HalfOpen> =
            hostile.run(|| (0..12).map(|_| request(None, addr(), true)).collect());
        // Requests are served in their order: those of the strangers are before this one.
        let _other = honest.run(|| options.connect(ADDR).unwrap());
        let _files = open_files();
        let (accepted, _, _mirror) = accept().unwrap();
        let mut hello = [0; 5];
        assert_eq!(accepted.recv(&mut hello).unwrap(), 5);
        assert_eq!(&hello, b"hello");
    });
}

/// The limits of `setrlimit(2)`, and no thread can be started once the server runs.
#[test]
fn streams_are_served_within_limits_of_a_process() {
    let name = "streams::streams_are_served_within_limits_of_a_process";
    with_limits(name, 8 << 20, || {
        let [limits, ..] = limits();
        check(Attack::HalfOpen, limits, forbid_threads);
    });
}
