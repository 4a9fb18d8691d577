//! Peers that complete the handshake, and then grant no room or post no receives.

use std::{
    io::{ErrorKind, Read, Write},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use rsocket::{
    Listener, Options, Stream,
    proto::{ConnectData, Target},
};

use crate::local;
use crate::probe::{DISCONNECT, GRANT, Probe, stalled};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

/// Connects a raw peer that grants one byte. Returns the peer and its memory after this byte.
fn connect_with_one_byte(listener: &Listener) -> (Probe, Target) {
    let mut first = Target::default();
    let encode = |data: ConnectData| {
        first = Target {
            addr: data.first.addr + 1,
            ..data.first
        };
        let mut data = data;
        data.first.len = 1;
        data.encode().to_vec()
    };
    let (probe, _) = Probe::connect(listener.local_addr().unwrap(), encode).unwrap();
    (probe, first)
}

/// A stream with timeouts, and its peer with one byte of room.
fn without_room(options: &Options) -> (Stream, Probe, Target) {
    let listener = options.listen(local()).unwrap();
    let (probe, target) = connect_with_one_byte(&listener);
    let (stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT));
    stream.set_write_timeout(Some(TEST_TIMEOUT));
    (stream, probe, target)
}

/// Receives the byte that had room, and grants more in a target.
fn grant(probe: &mut Probe, target: Target) {
    while probe.recv_message() != 1 {}
    probe.grant(target, 1000);
}

/// Receives messages until the disconnect. Returns the number of bytes.
fn bytes_until_disconnect(probe: &mut Probe) -> usize {
    let mut bytes = 0;
    loop {
        match probe.recv_message() {
            DISCONNECT => return bytes,
            // Credits of the stream.
            word if word >= GRANT => {}
            len => bytes += len as usize,
        }
    }
}

#[test]
fn write_without_room_returns_once_buffered() {
    let (mut stream, mut probe, target) = without_room(&Options::new());
    stream.write_all(RESPONSE).unwrap();
    stream.write_all(b"and more").unwrap();
    // Without further calls of the program.
    grant(&mut probe, target);
    let mut received = 1;
    while received < RESPONSE.len() + 8 {
        let word = probe.recv_message();
        received += if word < GRANT { word as usize } else { 0 };
    }
    let bytes = [RESPONSE, b"and more"].concat();
    assert_eq!(probe.data(bytes.len()), bytes);
    // The order is kept by later writes.
    stream.write_all(b"!").unwrap();
    stream.shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(bytes_until_disconnect(&mut probe), 1);
    assert_eq!(probe.data(bytes.len() + 1), [&bytes[..], b"!"].concat());
}

#[test]
fn write_beyond_the_send_buffer_waits_for_room() {
    let (mut stream, mut probe, target) = without_room(&Options::new().send_buffer(4096));
    stream.set_write_timeout(Some(Duration::from_millis(50)));
    // The timeout may elapse before the first byte has left the buffer.
    let (mut written, until) = (0, Instant::now() + TEST_TIMEOUT);
    while written < 1 + 4096 {
        written += stream.write(&[7; 10_000]).unwrap_or(0);
        assert!(Instant::now() < until, "{written} bytes");
    }
    assert_eq!(written, 1 + 4096);
    let full = stream.write(&[8]).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    grant(&mut probe, target);
    stream.set_write_timeout(Some(TEST_TIMEOUT));
    stream.write_all(&[9; 10_000]).unwrap();
    drop(stream);
    assert_eq!(bytes_until_disconnect(&mut probe), 4096 + 10_000);
    let expected = [vec![7; 1 + 4096], vec![9; 10_000]].concat();
    assert!(probe.data(expected.len()) == expected);
}

#[test]
fn drop_without_room_delivers_in_the_background() {
    let (mut stream, mut probe, target) = without_room(&Options::new());
    stream.write_all(RESPONSE).unwrap();
    drop(stream);
    grant(&mut probe, target);
    assert_eq!(bytes_until_disconnect(&mut probe), RESPONSE.len() - 1);
    assert_eq!(probe.data(RESPONSE.len()), RESPONSE);
}

#[test]
fn drop_with_peer_without_receives_delivers_in_the_background() {
    let (stream, mut probe) = stalled(&Options::new(), 1);
    drop(stream);
    probe.receive_again();
    while probe.recv_message() != DISCONNECT {}
}

#[test]
fn user_timeout_without_room_expires() {
    let options = Options::new().user_timeout(Duration::from_secs(1));
    // A blocked writer, and a reader with buffered data.
    let (mut stream, _probe, _) = without_room(&options);
    let written = stream.write_all(&[0; 1 << 20]);
    assert_eq!(written.unwrap_err().kind(), ErrorKind::TimedOut);
    let (mut stream, _probe, _) = without_room(&options);
    stream.write_all(RESPONSE).unwrap();
    let read = stream.read(&mut [0]);
    assert_eq!(read.unwrap_err().kind(), ErrorKind::TimedOut);
}

/// Keepalive probes are acknowledged: a peer that reads nothing is alive.
#[test]
fn keepalive_without_room_does_not_expire() {
    let options = Options::new().keep_alive(Duration::from_millis(100));
    let (mut stream, mut probe, target) = without_room(&options);
    stream.write_all(RESPONSE).unwrap();
    while stream.stats().keep_alive_probes < 20 {
        thread::sleep(Duration::from_millis(10));
    }
    grant(&mut probe, target);
    drop(stream);
    assert_eq!(bytes_until_disconnect(&mut probe), RESPONSE.len() - 1);
}

/// A server with blocking calls, one connection at a time.
#[test]
fn server_with_peers_without_room_serves_others() {
    let listener = Listener::bind(local()).unwrap();
    let mut stalled: Vec<_> = (0..20).map(|_| connect_with_one_byte(&listener)).collect();
    for (probe, _) in &mut stalled {
        probe.send(b"GET /");
    }
    let addr = listener.local_addr().unwrap();
    let (sender, answer) = mpsc::channel();
    let client = thread::spawn(move || {
        let mut client = Stream::connect(addr).unwrap();
        client.write_all(b"GET /").unwrap();
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).unwrap();
        sender.send(bytes).unwrap();
    });
    for stream in listener.incoming().take(stalled.len() + 1) {
        let mut stream = stream.unwrap();
        stream.read_exact(&mut [0; 5]).unwrap();
        stream.write_all(RESPONSE).unwrap();
    }
    assert_eq!(answer.recv_timeout(TEST_TIMEOUT).unwrap(), RESPONSE);
    client.join().unwrap();
}
