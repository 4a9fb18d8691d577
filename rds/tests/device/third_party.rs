//! Connections replaced by a third party. A prober requests a connection in the name of one engine,
//! receives nothing, and disconnects.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use rds::{Event, ExportOptions, Notification, Rdma, RdmaBuffer, SendOptions, Socket, Status};

use crate::{
    TEST_TIMEOUT, addr, any,
    bidirectional::{StopOnDrop, everything_arrives},
    counter, other, pattern,
    prober::{Answer, dial, proposal},
    socket,
};

/// Replaces the connection to `b` at `a`, and disconnects. Messages of `a` sent meanwhile are lost.
fn replace_connection(a: &Socket, b: &Socket) {
    let (to, local) = (addr(a).ip(), addr(b).ip());
    let data = proposal(local, to, 0).encode();
    // While dialing, `a` may reject the request; a request of `b` may even replace an accepted one.
    let until = Instant::now() + TEST_TIMEOUT.unwrap();
    let wire = loop {
        match dial(local, to, &data, 0).and_then(Answer::accepted) {
            Ok(wire) => break wire,
            Err(err) => assert!(Instant::now() < until, "{err}"),
        }
        thread::sleep(Duration::from_millis(20));
    };
    wire.disconnect();
}

#[test]
fn connection_replaced_by_third_party_loses_nothing() {
    let (a, b) = (socket(any()), socket(other()));
    everything_arrives(&a, &b, |progress| {
        for _ in 0..3 {
            progress();
            replace_connection(&a, &b);
            progress();
            replace_connection(&b, &a);
        }
    });
    assert!(counter(a.engine(), "conn_reset") >= 6);
}

/// Length of an operation in bytes.
const LEN: usize = 1 << 20;

/// Numbers of operations done, of those acknowledged, and dropped.
#[derive(Debug, Default)]
struct Ends {
    done: u32,
    acknowledged: u32,
    dropped: u32,
}

impl Ends {
    fn count(&mut self, seed: u8, status: Status) {
        match status {
            Status::Success => {
                self.done += 1;
                self.acknowledged += u32::from(is_acknowledged(seed));
            }
            Status::Dropped => self.dropped += 1,
            other => panic!("ended with {other:?}"),
        }
    }
}

/// Each operation ends once, as done or dropped; data of
/// successful writes is present; exports stay valid. Every other operation is notified after the acknowledgement of its message,
/// which proves the message received; the message of any other is lost with its connection.
#[test]
fn operations_end_done_or_dropped_on_reconnect() {
    const AT_ONCE: usize = 6;
    let (client, server) = (socket(any()), socket(other()));
    let memory: Vec<_> = (0..AT_ONCE).map(|_| client.alloc(LEN).unwrap()).collect();
    let export = |pages| client.export(pages, ExportOptions::new()).unwrap();
    let cookies: Vec<_> = memory.iter().map(export).collect();
    let local: Vec<_> = (0..AT_ONCE).map(|_| server.alloc(LEN).unwrap()).collect();
    let begin = |index: usize, seed: u8| {
        local[index].write(0, &pattern(LEN, seed));
        let piece = vec![local[index].slice(0..LEN)];
        let mut rdma = Rdma::write(piece, cookies[index]).notify();
        if is_acknowledged(seed) {
            rdma = rdma.remote_complete();
        }
        begin(&server, &client, rdma.token(index as u64));
    };
    let holds = |index: usize, seed: u8| holds(&memory[index], &pattern(LEN, seed));
    let stop = AtomicBool::new(false);
    // Seed of the operation in progress at each place.
    let mut seeds = [None; AT_ONCE];
    let mut ends = Ends::default();
    thread::scope(|scope| {
        scope.spawn(|| replace_connections(&client, &server, &stop));
        let end = StopOnDrop(&stop);
        let (until, mut seed) = (Instant::now() + TEST_TIMEOUT.unwrap(), 0_u8);
        loop {
            assert!(Instant::now() < until, "{ends:?}");
            let goes_on = ends.done == 0 || ends.dropped == 0;
            stop.store(!goes_on, Relaxed);
            for (index, under_way) in seeds.iter_mut().enumerate() {
                if goes_on && under_way.is_none() {
                    seed = seed.wrapping_add(1);
                    begin(index, seed);
                    *under_way = Some(seed);
                }
            }
            if seeds.iter().all(Option::is_none) {
                break;
            }
            let (index, status) = ended(&server);
            let seed = seeds[index].take().expect("it has ended before");
            assert!(
                status != Status::Success || holds(index, seed),
                "a completed operation has no effect"
            );
            ends.count(seed, status);
        }
        drop(end);
    });
    // The exports are still valid.
    for index in 0..AT_ONCE {
        begin(index, 201);
        assert_eq!(ended(&server), (index, Status::Success));
        assert!(holds(index, 201));
        ends.count(201, Status::Success);
    }
    // Each acknowledged operation has its message; any other may have.
    server.send_to(b"over", addr(&client)).unwrap();
    let got = messages_before_last(&client);
    let possible = ends.acknowledged..=ends.done + ends.dropped;
    assert!(possible.contains(&got), "{ends:?} {got}");
    wait_until_acknowledged(&server);
}

/// Whether the operation with this seed is notified after the acknowledgement of its message.
fn is_acknowledged(seed: u8) -> bool {
    seed % 2 == 1
}

/// Sends an operation without a message.
fn begin(from: &Socket, to: &Socket, rdma: Rdma) {
    let options = SendOptions::new().to(addr(to)).rdma(rdma);
    from.send_msg(&[], &options).unwrap();
}

fn holds(memory: &RdmaBuffer, bytes: &[u8]) -> bool {
    let mut stored = vec![0; bytes.len()];
    memory.read(0, &mut stored);
    stored == bytes
}

fn wait_until_acknowledged(socket: &Socket) {
    while socket.queued().unwrap().0 > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Replaces the connection at both sides in turn, until `stop`.
fn replace_connections(a: &Socket, b: &Socket, stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        replace_connection(a, b);
        thread::sleep(Duration::from_millis(100));
        replace_connection(b, a);
        thread::sleep(Duration::from_millis(100));
    }
}

/// Receives the notification of an operation: its place, and its status.
fn ended(socket: &Socket) -> (usize, Status) {
    match socket.recv_event().unwrap() {
        Event::Operation(Notification { token, status }) => {
            (usize::try_from(token).unwrap(), status)
        }
        other => panic!("{other:?}"),
    }
}

/// Number of messages before the message `stop`.
fn messages_before_last(socket: &Socket) -> u32 {
    let mut got = 0;
    loop {
        match socket.recv_event().unwrap() {
            Event::Message(message) if message.len() == 4 => return got,
            Event::Message(_) => got += 1,
            other => panic!("{other:?}"),
        }
    }
}
