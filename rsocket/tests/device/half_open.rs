//! Peers that request connections without completing the handshake.

use std::{
    io::{Read, Write},
    thread,
    time::{Duration, Instant},
};

use cm::{ConnParam, ConnectResponse, Event, EventChannel};
use rsocket::{Listener, Options, Refusals, Stream, proto::ConnectData};
use verbs::{CompletionQueue, Init, QueuePair};

use crate::{
    handshakes::{data, raw_qp},
    leaks::{regions, wait_for_earlier_tests, wait_for_regions},
    local,
    probe::{Probe, resolved},
};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A peer with a reply and an incomplete handshake, until dropped.
struct HalfOpen {
    _response: ConnectResponse,
    _qp: QueuePair<verbs::Rc, Init>,
    _cq: CompletionQueue,
    _channel: EventChannel,
}

/// Requests a connection and stops after the reply. `None` if rejected.
fn half_open(listener: &Listener) -> Option<HalfOpen> {
    let (channel, id) = resolved(listener.local_addr().unwrap());
    let (qp, cq) = raw_qp(&id);
    let param = ConnParam::new().private_data(data().encode());
    id.connect(&qp, &param).unwrap();
    match channel.wait().unwrap() {
        Event::ConnectResponse(response) => Some(HalfOpen {
            _response: response,
            _qp: qp,
            _cq: cq,
            _channel: channel,
        }),
        Event::ConnectFailed { .. } => None,
        other => unreachable!("{other:?}"),
    }
}

/// Waits for the expected refusal counts.
fn wait_for(listener: &Listener, expected: impl Fn(&Refusals) -> bool) {
    let start = Instant::now();
    while !expected(&listener.refusals()) {
        assert!(start.elapsed() < TEST_TIMEOUT, "{:?}", listener.refusals());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn connect_during_flood_of_half_open_connections_succeeds() {
    const BACKLOG: usize = 8;
    let options = Options::new().backlog(u32::try_from(BACKLOG).unwrap());
    let listener = options.listen(local()).unwrap();
    // The flood continues during the connect.
    let flood: Vec<_> = (0..2 * BACKLOG).map(|_| half_open(&listener)).collect();
    let start = Instant::now();
    let mut client = loop {
        match Stream::connect(listener.local_addr().unwrap()) {
            Ok(client) => break client,
            Err(err) => assert!(start.elapsed() < TEST_TIMEOUT, "{err}"),
        }
    };
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let Refusals {
        rejected,
        displaced,
        timed_out,
        invalid,
        failed,
        ..
    } = listener.refusals();
    assert!(displaced >= 1, "the client has taken the place of another");
    assert!(rejected + displaced > BACKLOG as u64);
    assert_eq!((timed_out, invalid, failed), (0, 0, 0));
    drop(flood);
}

#[test]
fn half_open_connections_time_out_and_release_memory() {
    wait_for_earlier_tests();
    let options = Options::new().handshake_timeout(Duration::from_secs(3));
    let listener = options.listen(local()).unwrap();
    let flood = [(); 4].map(|()| half_open(&listener).unwrap());
    wait_for(&listener, |refusals| refusals.timed_out == 4);
    wait_for_regions(0);
    // A late handshake finds no half-open connection.
    drop(flood);
    let _client = Stream::connect(listener.local_addr().unwrap()).unwrap();
    listener.accept().unwrap();
    assert_eq!(listener.refusals().failed, 0);
}

#[test]
fn half_open_connection_has_no_send_buffer() {
    wait_for_earlier_tests();
    let listener = Listener::bind(local()).unwrap();
    let raw = half_open(&listener).unwrap();
    // The reply names the table and the receive buffer.
    assert_eq!(regions().len(), 2);
    let HalfOpen {
        _response: response,
        _qp: qp,
        _cq,
        _channel,
    } = raw;
    let peer = response.establish(qp).unwrap();
    let (stream, _) = listener.accept().unwrap();
    assert_eq!(regions().len(), 3);
    drop((stream, peer));
    wait_for_regions(0);
}

#[test]
fn half_open_connections_beyond_the_address_limit_are_rejected() {
    wait_for_earlier_tests();
    let options = Options::new().half_open_per_address(2);
    let listener = options.listen(local()).unwrap();
    let flood: Vec<_> = (0..6).map(|_| half_open(&listener)).collect();
    let refusals = listener.refusals();
    // Displaced only on a machine slow enough for the first to be older than a second.
    assert_eq!(refusals.rejected + refusals.displaced, 4);
    wait_for_regions(2 * 2);
    drop(flood);
}

#[test]
fn half_open_connections_of_dropped_listener_release_memory() {
    wait_for_earlier_tests();
    let listener = Listener::bind(local()).unwrap();
    let flood = [(); 3].map(|()| half_open(&listener).unwrap());
    drop(listener);
    wait_for_regions(0);
    drop(flood);
}

#[test]
fn aborted_handshake_releases_memory_and_is_counted() {
    wait_for_earlier_tests();
    let listener = Listener::bind(local()).unwrap();
    drop(half_open(&listener).unwrap());
    wait_for(&listener, |refusals| refusals.failed == 1);
    wait_for_regions(0);
}

#[test]
fn request_with_invalid_private_data_is_counted() {
    let listener = Listener::bind(local()).unwrap();
    let encode = |data: ConnectData| {
        let mut private_data = data.encode().to_vec();
        private_data[0] = 9;
        private_data
    };
    assert!(Probe::connect(listener.local_addr().unwrap(), encode).is_err());
    let refusals = listener.refusals();
    assert_eq!((refusals.invalid, refusals.rejected), (1, 0));
}
