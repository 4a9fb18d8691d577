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

use rsocket::{Listener, Options, Stream};
use softnic::{Fabric, Host, Limits};

use crate::{
    ADDR, TEST_TIMEOUT,
    attacks::{Attack, hosts, serve_during},
    child::{forbid_threads, report, with_limits},
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

/// Asks the server for an echo.
fn ask(host: &Host) -> io::Result<Vec<u8>> {
    host.run(|| {
        let mut stream = Options::new().connect_timeout(TEST_TIMEOUT).connect(ADDR)?;
        stream.set_read_timeout(Some(TEST_TIMEOUT));
        stream.write_all(b"hello")?;
        let mut answer = vec![0; 5];
        stream.read_exact(&mut answer)?;
        Ok(answer)
    })
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

/// The limits of `setrlimit(2)`, and no thread can be started once the server runs.
#[test]
fn streams_are_served_within_limits_of_a_process() {
    let name = "streams::streams_are_served_within_limits_of_a_process";
    with_limits(name, 8 << 20, || {
        let [limits, ..] = limits();
        check(Attack::HalfOpen, limits, forbid_threads);
    });
}
