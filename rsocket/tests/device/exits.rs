//! Disconnecting all streams at the exit of a process.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    thread,
    time::Duration,
};

use rsocket::{Family, Options, Socket, disconnect_all, disconnect_at_exit};

use crate::{
    connected, local,
    probe::{DISCONNECT, GRANT, ListeningProbe, Probe, RECEIVES, stalled},
};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const NOT_DELIVERED: Duration = Duration::from_millis(200);

/// Bits of a message with its operation.
const OPERATION: u32 = 0xe000_0000;
/// A message of one byte of data.
const BYTE: u32 = 1;

/// Receives the next message, except credits.
fn recv_message(probe: &mut Probe) -> u32 {
    loop {
        let message = probe.recv_message();
        if message & OPERATION != GRANT {
            return message;
        }
    }
}

/// Receives all bytes, and returns the message after the last.
fn recv_all(probe: &mut Probe, unreceived: u16) -> u32 {
    probe.receive_again();
    for _ in 0..RECEIVES + unreceived {
        assert_eq!(recv_message(probe), BYTE);
    }
    recv_message(probe)
}

#[test]
fn disconnect_all_waits_for_unacknowledged_data() {
    let (stream, mut probe) = stalled(&Options::new(), 3);
    let exiting = thread::spawn(|| disconnect_all(TEST_TIMEOUT));
    thread::sleep(NOT_DELIVERED);
    assert!(!exiting.is_finished());
    assert_eq!(recv_all(&mut probe, 3), DISCONNECT);
    assert!(exiting.join().unwrap());
    drop(stream);
}

/// The program has closed the stream without waiting.
#[test]
fn disconnect_all_waits_for_stream_lingering_in_background() {
    let (stream, mut probe) = stalled(&Options::new(), 3);
    stream.set_nonblocking(true);
    drop(stream);
    let exiting = thread::spawn(|| disconnect_all(TEST_TIMEOUT));
    thread::sleep(NOT_DELIVERED);
    assert!(!exiting.is_finished());
    assert_eq!(recv_all(&mut probe, 3), DISCONNECT);
    assert!(exiting.join().unwrap());
}

#[test]
fn disconnect_all_without_answer_ends_at_the_shorter_limit() {
    let (stream, _probe) = stalled(&Options::new(), 1);
    assert!(!disconnect_all(NOT_DELIVERED));
    stream.set_linger(NOT_DELIVERED);
    assert!(!disconnect_all(Duration::MAX));
}

/// With linger zero, data is discarded at the end.
#[test]
fn disconnect_all_leaves_stream_with_linger_zero() {
    let (mut stream, mut probe) = stalled(&Options::new().linger(Duration::ZERO), 1);
    assert!(disconnect_all(TEST_TIMEOUT));
    stream.write_all(b"x").unwrap();
    assert_eq!(recv_all(&mut probe, 1), BYTE);
}

/// A thread that runs until the process has ended must not observe its end.
#[test]
fn calls_during_disconnect_all_stay_blocked() {
    let (stream, mut probe) = stalled(&Options::new(), 1);
    let (other, mut other_probe) = stalled(&Options::new(), 1);
    let mut reading = stream.try_clone().unwrap();
    let reader = thread::spawn(move || reading.read(&mut [0; 1]).unwrap());
    let exiting = thread::spawn(|| disconnect_all(TEST_TIMEOUT));
    thread::sleep(NOT_DELIVERED);
    stream.set_nonblocking(true);
    let write = (&stream).write(b"y").unwrap_err();
    assert_eq!(write.kind(), io::ErrorKind::WouldBlock);
    other.set_nonblocking(true);
    let read = (&other).read(&mut [0; 1]).unwrap_err();
    assert_eq!(read.kind(), io::ErrorKind::WouldBlock);
    assert!(!reader.is_finished() && !exiting.is_finished());
    for probe in [&mut probe, &mut other_probe] {
        assert_eq!(recv_all(probe, 1), DISCONNECT);
    }
    assert!(exiting.join().unwrap());
    // Later calls return, so that a destructor cannot wait forever.
    let write = (&stream).write(b"y").unwrap_err();
    assert_eq!(write.kind(), io::ErrorKind::BrokenPipe);
    assert!(!reader.is_finished());
    stream.shutdown(Shutdown::Both).unwrap();
    assert_eq!(reader.join().unwrap(), 0);
    assert_eq!((&stream).read(&mut [0; 1]).unwrap(), 0);
}

/// A peer that closes in answer wakes no thread before the process has ended.
#[test]
fn calls_of_other_threads_stay_blocked_after_disconnect_at_exit() {
    let (stream, mut probe) = stalled(&Options::new(), 1);
    let mut reading = stream.try_clone().unwrap();
    let reader = thread::spawn(move || reading.read(&mut [0; 1]).unwrap());
    let answering = thread::spawn(move || {
        assert_eq!(recv_all(&mut probe, 1), DISCONNECT);
        probe
    });
    assert!(disconnect_at_exit(TEST_TIMEOUT));
    let _probe = answering.join().unwrap();
    stream.set_nonblocking(true);
    let calls_of_other = thread::scope(|scope| {
        let calls = scope.spawn(|| [(&stream).read(&mut [0; 1]), (&stream).write(b"y")]);
        calls.join().unwrap()
    });
    for call in calls_of_other {
        assert_eq!(call.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
    assert!(!reader.is_finished());
    // Calls of this thread return, and let others return, so that a destructor can wait for the thread.
    let write = (&stream).write(b"y").unwrap_err();
    assert_eq!(write.kind(), io::ErrorKind::BrokenPipe);
    assert_eq!((&stream).read(&mut [0; 1]).unwrap(), 0);
    stream.shutdown(Shutdown::Both).unwrap();
    assert_eq!(reader.join().unwrap(), 0);
}

#[test]
fn disconnect_all_serves_every_socket_and_repeats() {
    assert!(disconnect_all(TEST_TIMEOUT));
    let pairs: Vec<_> = (0..3).map(|_| connected()).collect();
    let sender = Socket::datagram(Family::V4).unwrap();
    sender.bind(local()).unwrap();
    let to_itself = sender.local_addr().unwrap();
    for _ in 0..20 {
        sender.send_to(b"datagram", to_itself).unwrap();
    }
    for (client, _) in &pairs {
        client.send(b"data").unwrap();
    }
    for _ in 0..2 {
        assert!(disconnect_all(TEST_TIMEOUT));
        for (client, server) in &pairs {
            for socket in [client, server] {
                let err = socket.send(b"data").unwrap_err();
                assert_eq!(err.kind(), io::ErrorKind::BrokenPipe);
            }
        }
    }
    // New sockets are not affected.
    let (client, _server) = connected();
    client.send(b"data").unwrap();
}

/// A program that waits for the end of its data before it exits reads this number.
#[test]
fn unacked_bytes_of_socket_are_counted_until_the_peer_receives() {
    let listener = ListeningProbe::new();
    let addr = listener.addr();
    let connecting = thread::spawn(move || {
        let socket = Socket::new(Family::V4).unwrap();
        assert_eq!(
            socket.unacked().unwrap_err().kind(),
            io::ErrorKind::NotConnected
        );
        socket.connect(addr).unwrap();
        socket
    });
    let (mut probe, _) = listener.accept();
    let socket = connecting.join().unwrap();
    assert_eq!(socket.unacked().unwrap(), 0);
    probe.withhold_receives();
    probe.send_message(GRANT + 2 * u32::from(RECEIVES));
    let send = |bytes: &[u8]| socket.send(bytes).unwrap();
    for _ in 0..RECEIVES {
        send(b"x");
    }
    // Too long for inline data.
    send(&[b'y'; 1000]);
    send(b"z");
    assert!(socket.unacked().unwrap() >= 1000);
    assert_eq!(recv_all(&mut probe, 0), 1000);
    assert_eq!(recv_message(&mut probe), BYTE);
    while socket.unacked().unwrap() > 0 {}
}
