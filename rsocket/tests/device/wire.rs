//! Messages on the wire, seen by a raw peer. These tests also run over iWARP, with separate messages.

use std::{
    io::{Read, Write},
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use cm::ConnectFailure;
use rsocket::{
    Listener, Options, Stream,
    proto::{ByteOrder, ConnectData, Mapping, Target},
};

use crate::{
    local,
    probe::{CREDITS, ListeningProbe, MAPPINGS, Probe},
};

const HALF: u32 = 16 << 10;
/// The receive buffer of an idle stream without an explicit size.
const IDLE_BUFFER: u32 = 32 << 10;
/// Half of the receive buffer in use, without an explicit size.
const HALF_IN_USE: u32 = 64 << 10;
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const KEEPALIVE: u32 = 0xe000_0001;

/// Connects a probe to a new listener. Returns the stream and the probe.
fn accepted_by(options: &Options, encode: impl FnOnce(ConnectData) -> Vec<u8>) -> (Stream, Probe) {
    let listener = options.listen(local()).unwrap();
    let (probe, _) = Probe::connect(listener.local_addr().unwrap(), encode).unwrap();
    let (stream, _) = listener.accept().unwrap();
    (stream, probe)
}

/// Options for a buffer advertised by halves, like librdmacm's, and small enough for a peer that may be forged.
fn halves() -> Options {
    Options::new().receive_buffer(2 * HALF)
}

fn accepted() -> (Stream, Probe) {
    accepted_by(&halves(), plain)
}

fn plain(data: ConnectData) -> Vec<u8> {
    data.encode().to_vec()
}

/// Checks the first message, the grant of the second half of the buffer.
fn recv_second_half_grant(stream: &Stream, probe: &mut Probe) {
    stream.readiness().unwrap();
    assert_eq!(probe.recv_message(), 0x8000_0180);
    let Target { addr, rkey, len } = probe.peer.first;
    assert_eq!(len, HALF);
    let second = Target {
        addr: addr + u64::from(HALF),
        rkey,
        len,
    };
    assert_eq!(Target::decode(&probe.target(1), ByteOrder::HOST), second);
    assert_eq!(
        probe.target(0),
        [0; Target::SIZE],
        "no entry is written yet"
    );
}

/// Checks the first message of a stream whose buffer has been advertised whole.
fn recv_first_credits(stream: &Stream, probe: &mut Probe) {
    stream.readiness().unwrap();
    assert_eq!(probe.recv_message(), 0x8000_0180);
    assert_eq!(probe.target(1), [0; Target::SIZE], "no target");
}

/// Checks private data, including the padding of the connection manager.
fn check_connect_data(private_data: &[u8], is_request: bool, separate: bool) {
    match (separate, is_request) {
        (true, _) => assert_eq!(private_data.len(), ConnectData::SIZE),
        (false, true) => assert_eq!(private_data.len(), 56),
        (false, false) => assert_eq!(private_data.len(), 196),
    }
    let endian = u8::from(ByteOrder::HOST == ByteOrder::Big);
    assert_eq!(private_data[..8], [1, 2 | endian, 1, 0x80, 0, 0, 0, 0]);
    assert_ne!(private_data[8..16], [0; 8], "the table");
    assert_eq!(private_data[20..24], 8_u32.to_be_bytes(), "its entries");
    assert_ne!(private_data[24..32], [0; 8], "the buffer");
    assert_eq!(private_data[36..40], IDLE_BUFFER.to_be_bytes());
    assert!(private_data[40..].iter().all(|&byte| byte == 0));
}

#[test]
fn accept_private_data_has_own_layout() {
    let listener = Listener::bind(local()).unwrap();
    let (mut probe, private_data) = Probe::connect(listener.local_addr().unwrap(), plain).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    check_connect_data(&private_data, false, probe.separate);
    recv_first_credits(&stream, &mut probe);
    // No other message precedes the data.
    stream.write_all(b"data").unwrap();
    assert_eq!(probe.recv_message(), 4);
    assert_eq!(probe.data(4), b"data");
}

#[test]
fn connect_private_data_has_own_layout() {
    let listener = ListeningProbe::new();
    let addr = listener.addr();
    let connecting = thread::spawn(move || Stream::connect(addr).unwrap());
    let (mut probe, private_data) = listener.accept();
    let mut stream = connecting.join().unwrap();
    check_connect_data(&private_data, true, probe.separate);
    recv_first_credits(&stream, &mut probe);
    stream.write_all(b"data").unwrap();
    assert_eq!(probe.recv_message(), 4);
    assert_eq!(probe.data(4), b"data");
}

#[test]
fn connect_with_invalid_private_data_is_refused_and_listener_continues() {
    let listener = Listener::bind(local()).unwrap();
    let refused = |change: &dyn Fn(&mut Vec<u8>)| {
        let connected = Probe::connect(listener.local_addr().unwrap(), |data| {
            let mut private_data = plain(data);
            change(&mut private_data);
            private_data
        });
        assert!(matches!(connected, Err(ConnectFailure::Rejected { .. })));
    };
    for version in [0, 2, 255] {
        refused(&|private_data| private_data[0] = version);
    }
    refused(&|private_data| private_data[2..4].fill(0));
    // A table without room for the second half, and an empty buffer.
    refused(&|private_data| private_data[20..24].fill(0));
    refused(&|private_data| private_data[36..40].fill(0));
    // The connection manager pads short data with zeros, except over iWARP.
    refused(&|private_data| {
        private_data[36..].copy_from_slice(&[0, 0, 0, 200]);
        private_data.truncate(39);
    });
    let (probe, _) = Probe::connect(listener.local_addr().unwrap(), plain).unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"x").unwrap();
    drop(probe);
}

#[test]
fn unknown_control_message_is_ignored() {
    let (mut stream, mut probe) = accepted();
    recv_second_half_grant(&stream, &mut probe);
    for argument in [1, 0x77, 0x1fff_ffff] {
        probe.send_message(7 << 29 | argument);
    }
    probe.send(b"still");
    stream.read_exact(&mut [0; 5]).unwrap();
    stream.write_all(b"here").unwrap();
    assert_eq!(probe.recv_message(), 4);
}

#[test]
fn credits_are_returned_after_half_of_the_queue() {
    let (mut stream, mut probe) = accepted();
    recv_second_half_grant(&stream, &mut probe);
    for _ in 0..CREDITS {
        probe.send(b"x");
        stream.read_exact(&mut [0]).unwrap();
    }
    for limit in [0x8000_0240, 0x8000_0300] {
        assert_eq!(probe.recv_message(), limit);
    }
    assert_eq!(probe.target(0), [0; Target::SIZE], "there is room yet");
    stream.write_all(b"data").unwrap();
    assert_eq!(probe.recv_message(), 4);
}

/// Connections use the sizes of their listener.
#[test]
fn credits_match_the_receive_queue_of_the_listener() {
    let options = Options::new().receive_queue(32).receive_buffer(8192);
    let (_stream, probe) = accepted_by(&options, plain);
    assert_eq!(probe.peer.credits, 32);
    assert_eq!(probe.peer.first.len, 4096);
}

/// Peeking returns no credits.
#[test]
fn peek_returns_no_credits() {
    const COUNT: u16 = CREDITS / 2 + 8;
    let (mut stream, mut probe) = accepted();
    recv_second_half_grant(&stream, &mut probe);
    for _ in 0..COUNT {
        probe.send(b"x");
    }
    // The buffer is larger than the available data.
    let mut received = [0; CREDITS as usize];
    let start = Instant::now();
    while stream.peek(&mut received).unwrap() < usize::from(COUNT) {
        assert!(start.elapsed() < TEST_TIMEOUT);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(stream.peek(&mut received).unwrap(), usize::from(COUNT));
    stream.write_all(b"data").unwrap();
    assert_eq!(probe.recv_message(), 4);
    stream
        .read_exact(&mut received[..usize::from(COUNT)])
        .unwrap();
    assert_eq!(probe.recv_message(), 0x8000_0180 + u32::from(COUNT));
}

#[test]
fn first_half_of_receive_buffer_is_granted_again_after_read() {
    let (mut stream, mut probe) = accepted();
    recv_second_half_grant(&stream, &mut probe);
    for len in [8000, 8000, 384] {
        let bytes: Vec<u8> = (0..len).map(|at: usize| at.to_le_bytes()[0]).collect();
        probe.send(&bytes);
        let mut got = vec![0; len];
        stream.read_exact(&mut got).unwrap();
        assert!(got == bytes);
    }
    assert_eq!(probe.recv_message(), 0x8000_0183);
    let first = Target::decode(&probe.target(0), ByteOrder::HOST);
    assert_eq!(first, probe.peer.first);
}

/// The reply names 32 KiB of a larger buffer. The rest is granted once the peer has completed the handshake, before any
/// call of the program. Over iWARP the rest follows the peer's first message: the device of a peer that has not read the
/// reply yet ends the connection at a message.
#[test]
fn accepted_receive_buffer_grows_after_the_handshake() {
    const SIZE: u32 = 128 << 10;
    let listener = Options::new().receive_buffer(SIZE).listen(local()).unwrap();
    let (mut probe, _) = Probe::connect(listener.local_addr().unwrap(), plain).unwrap();
    assert_eq!(probe.peer.first.len, IDLE_BUFFER);
    // As much as librdmacm's first target.
    let bytes: Vec<u8> = (0..HALF * 4).map(|at| at.to_le_bytes()[1]).collect();
    let (first, rest) = bytes.split_at(IDLE_BUFFER as usize);
    let mut accepted = None;
    if probe.separate {
        probe.send(first);
        let (stream, _) = listener.accept().unwrap();
        let mut start = vec![0; first.len()];
        let began = Instant::now();
        while stream.peek(&mut start).unwrap() < first.len() {
            assert!(began.elapsed() < TEST_TIMEOUT);
        }
        accepted = Some(stream);
    }
    assert_eq!(probe.recv_message(), 0x8000_0180);
    let second = Target::decode(&probe.target(1), ByteOrder::HOST);
    assert_eq!(second.len, SIZE / 2);
    assert_ne!(second.rkey, probe.peer.first.rkey, "another buffer");
    if accepted.is_none() {
        probe.send(first);
    }
    probe.send_to(rest, second);
    let mut stream = accepted.unwrap_or_else(|| listener.accept().unwrap().0);
    let mut received = vec![0; bytes.len()];
    stream.read_exact(&mut received).unwrap();
    assert!(received == bytes);
}

#[test]
fn table_entries_have_the_byte_order_of_the_peer() {
    let other = match ByteOrder::HOST {
        ByteOrder::Little => ByteOrder::Big,
        ByteOrder::Big => ByteOrder::Little,
    };
    let (mut stream, mut probe) = accepted_by(&halves(), |mut data| {
        data.order = other;
        plain(data)
    });
    stream.readiness().unwrap();
    assert_eq!(probe.recv_message(), 0x8000_0180);
    let Target { addr, rkey, len } = probe.peer.first;
    let second = Target {
        addr: addr + u64::from(HALF),
        rkey,
        len,
    };
    assert_eq!(probe.target(1), second.encode(other));
    // Data is not byte-swapped.
    stream.write_all(b"as it is").unwrap();
    assert_eq!(probe.recv_message(), 8);
    assert_eq!(probe.data(8), b"as it is");
}

#[test]
fn map_with_old_peer_is_refused() {
    let (mut stream, mut probe) = accepted_by(&halves(), |mut data| {
        data.iomap_size = None;
        plain(data)
    });
    let refused = stream.map(4096, None).map(drop);
    assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::OutOfMemory);
    recv_second_half_grant(&stream, &mut probe);
    stream.write_all(b"data").unwrap();
    assert_eq!(probe.recv_message(), 4);
}

#[test]
fn mapping_is_advertised_before_following_data() {
    let (mut stream, mut probe) = accepted();
    recv_second_half_grant(&stream, &mut probe);
    let mapped: Vec<_> = (0..MAPPINGS)
        .map(|index| stream.map(4096, Some(u64::from(index) * 5000)).unwrap())
        .collect();
    assert!(stream.map(4096, None).is_err(), "there is no room for more");
    stream.write_all(b"data").unwrap();
    for (index, mapped) in (0..MAPPINGS).zip(&mapped) {
        assert_eq!(probe.recv_message(), 0xc000_0000 | u32::from(index));
        let entry = Mapping::decode(&probe.mapping(index), ByteOrder::HOST);
        assert_eq!((entry.offset, entry.len), (mapped.offset(), 4096));
        assert!(entry.addr != 0 && entry.rkey != 0);
    }
    assert_eq!(probe.recv_message(), 4);
}

#[test]
fn shutdown_of_write_direction_sends_control_message() {
    let (stream, mut probe) = accepted();
    recv_second_half_grant(&stream, &mut probe);
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(probe.recv_message(), 0xe000_0002);
    stream.shutdown(Shutdown::Read).unwrap();
    assert_eq!(probe.recv_message(), 0xe000_0000);

    let (mut stream, mut probe) = accepted();
    recv_second_half_grant(&stream, &mut probe);
    stream.shutdown(Shutdown::Read).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    stream.write_all(b"data").unwrap();
    assert_eq!(probe.recv_message(), 4, "no message before the data");
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(probe.recv_message(), 0xe000_0000);
}

/// Keepalive probes are not messages.
#[test]
fn keepalive_probes_are_not_messages() {
    let options = halves().keep_alive(Duration::from_millis(20));
    let (mut stream, mut probe) = accepted_by(&options, plain);
    recv_second_half_grant(&stream, &mut probe);
    thread::sleep(Duration::from_millis(300));
    stream.write_all(b"data").unwrap();
    assert_eq!(probe.recv_message(), 4);
    // Keepalive messages of old peers are ignored.
    probe.send_message(KEEPALIVE);
    probe.send(b"x");
    stream.read_exact(&mut [0]).unwrap();
    assert!(stream.take_error().is_none());
}

/// A peer with librdmacm's two entries is notified of a larger buffer once the idle one is full.
#[test]
fn full_idle_buffer_is_followed_by_a_larger_one() {
    let (stream, mut probe) = accepted_by(&Options::new(), plain);
    probe.send(&[7; IDLE_BUFFER as usize]);
    stream.peek(&mut [0]).unwrap();
    // No message has been read, so the limit of credits is the first one.
    let mut next = |entry| {
        assert_eq!(probe.recv_message(), 0x8000_0180);
        Target::decode(&probe.target(entry), ByteOrder::HOST)
    };
    let [first, second] = [next(1), next(0)];
    assert_eq!((first.len, second.len), (HALF_IN_USE, HALF_IN_USE));
    assert_eq!(second.addr, first.addr + u64::from(HALF_IN_USE));
    assert_eq!(second.rkey, first.rkey);
    assert_ne!(first.rkey, probe.peer.first.rkey);
}
