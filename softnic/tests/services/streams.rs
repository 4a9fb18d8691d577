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

/// A server of one thread, until it is over.
fn serve(listener: &Listener, is_over: &AtomicBool) {
    let mut streams = VecDeque::new();
    while !is_over.load(Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true);
            streams.push_back(stream);
            if streams.len() > STREAMS {
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
fn check(attack: Attack, (name, limits): (&str, Limits), ready: impl FnOnce()) {
    let fabric = Fabric::new().keep_objects();
    let [service, hostile, honest] = hosts(&fabric);
    service.set_limits(limits);
    let options = Options::new().backlog(BACKLOG);
    let listener = service.run(|| options.listen(ADDR).unwrap());
    listener.set_nonblocking(true);
    let is_over = Arc::new(AtomicBool::new(false));
    let serving = {
        let is_over = Arc::clone(&is_over);
        service.spawn(move || serve(&listener, &is_over))
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

/// The limits of `setrlimit(2)`, and no thread can be started once the server runs.
#[test]
fn streams_are_served_within_limits_of_a_process() {
    let name = "streams::streams_are_served_within_limits_of_a_process";
    with_limits(name, 8 << 20, || {
        let [limits, ..] = limits();
        check(Attack::HalfOpen, limits, forbid_threads);
    });
}
