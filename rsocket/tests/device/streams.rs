//! Data in both directions.

use std::{
    io::{self, Read, Write},
    net::Shutdown,
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use rsocket::{Listener, Options, Stream};

use crate::{local, often};

pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates both ends of a connection.
pub(crate) fn pair(options: &Options) -> (Stream, Stream) {
    let listener = options.listen(local()).unwrap();
    let client = options.connect(listener.local_addr().unwrap()).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!(peer, client.local_addr().unwrap());
    assert_eq!(server.local_addr().unwrap(), client.peer_addr().unwrap());
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(TEST_TIMEOUT));
        stream.set_write_timeout(Some(TEST_TIMEOUT));
    }
    (client, server)
}

pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| {
            let [byte, ..] = (i.wrapping_mul(0x9e37_79b1) >> 9).to_le_bytes();
            byte ^ seed
        })
        .collect()
}

#[test]
fn stream_message_round_trips() {
    let (mut client, mut server) = pair(&Options::new());
    client.write_all(b"hello").unwrap();
    let mut buf = [0; 16];
    assert_eq!(server.peek(&mut buf).unwrap(), 5);
    assert_eq!(server.read(&mut buf).unwrap(), 5);
    assert_eq!(&buf[..5], b"hello");
    server.write_all(b"and back").unwrap();
    assert_eq!(client.read(&mut buf).unwrap(), 8);
    assert_eq!(&buf[..8], b"and back");
}

#[test]
fn readable_wait_is_not_woken_by_send_completions() {
    const SHORTLY: Duration = Duration::from_millis(20);
    let (mut client, mut server) = pair(&Options::new());
    // The first message of each side is a grant of credits.
    client.write_all(&[0]).unwrap();
    server.read_exact(&mut [0]).unwrap();
    server.write_all(&[0]).unwrap();
    client.read_exact(&mut [0]).unwrap();
    client.set_nonblocking(true);
    let readable = |stream: &Stream, timeout| {
        verbs::fd::wait_readable("poll", stream.as_fd(), Some(timeout)).unwrap()
    };
    for round in 0..10 {
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(client.write(&[round]).unwrap(), 1);
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [round]);
        assert!(!readable(&client, SHORTLY), "in round {round}");
        server.write_all(&[round]).unwrap();
        assert!(readable(&client, TEST_TIMEOUT), "in round {round}");
        assert_eq!(client.read(&mut byte).unwrap(), 1);
    }
}

#[test]
fn megabytes_in_both_directions_at_once_arrive() {
    let len = (often(8, 32) as usize) << 20;
    let (client, server) = pair(&Options::new());
    thread::scope(|scope| {
        for (seed, stream) in [(1, &client), (2, &server)] {
            scope.spawn(move || {
                let bytes = pattern(seed, len);
                let mut remaining = &bytes[..];
                let mut size = 1;
                while !remaining.is_empty() {
                    size = size * 7 % ((1 << 20) - 3) + 1;
                    let (piece, rest) = remaining.split_at(size.min(remaining.len()));
                    (&*stream).write_all(piece).unwrap();
                    remaining = rest;
                }
                stream.shutdown(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut bytes = Vec::new();
                (&*stream).read_to_end(&mut bytes).unwrap();
                assert!(
                    bytes == pattern(3 - seed, len),
                    "received bytes differ from sent bytes"
                );
            });
        }
    });
}

#[test]
fn smallest_buffers_transfer_everything() {
    let options = Options::new()
        .send_queue(16)
        .receive_queue(16)
        .send_buffer(4096)
        .receive_buffer(4096)
        .inline(0);
    let (mut client, mut server) = pair(&options);
    let bytes = pattern(0, 200_000);
    thread::scope(|scope| {
        scope.spawn(|| client.write_all(&bytes).unwrap());
        let mut back = vec![0; bytes.len()];
        server.read_exact(&mut back).unwrap();
        assert!(back == bytes);
    });
}

#[test]
fn options_out_of_range_are_clamped() {
    let least = Options::new().send_queue(0).receive_queue(1);
    let odd = Options::new().send_queue(u16::MAX).receive_queue(u16::MAX);
    for (options, depths) in [
        (least.send_buffer(0).receive_buffer(0), 16..17),
        // More than the default, but less than requested: limited by the device.
        (odd.send_buffer(1).receive_buffer(4097), 385..u16::MAX),
    ] {
        let (mut client, server) = pair(&options);
        for stream in [&client, &server] {
            let settings = stream.settings();
            assert!(depths.contains(&settings.send_depth), "{settings:?}");
            assert!(depths.contains(&settings.recv_depth), "{settings:?}");
            assert_eq!(settings.send_buffer, 4096);
            let half = settings.recv_buffer / 2;
            assert!(
                half >= 2048 && half * 2 == settings.recv_buffer,
                "{settings:?}"
            );
        }
        let bytes = pattern(0, 50_000);
        thread::scope(|scope| {
            scope.spawn(|| {
                (&server).write_all(&bytes).unwrap();
                let mut received = vec![0; bytes.len()];
                (&server).read_exact(&mut received).unwrap();
                assert!(received == bytes, "received bytes differ from sent bytes");
            });
            let mut back = vec![0; bytes.len()];
            client.read_exact(&mut back).unwrap();
            assert!(back == bytes, "returned bytes differ from sent bytes");
            client.write_all(&bytes).unwrap();
        });
    }
}

/// The peer's buffer is full.
#[test]
fn drop_with_unread_data_delivers_to_slow_reader() {
    let (client, mut server) = pair(&Options::new());
    client.set_nonblocking(true);
    let chunk = pattern(0, 10_000);
    let mut bytes = vec![];
    loop {
        match (&client).write(&chunk) {
            Ok(sent) => bytes.extend_from_slice(&chunk[..sent]),
            Err(err) => {
                assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    assert!(bytes.len() >= server.settings().recv_buffer_idle as usize / 2);
    client.set_nonblocking(false);
    client.set_linger(TEST_TIMEOUT);
    thread::scope(|scope| {
        scope.spawn(|| drop(client));
        thread::sleep(Duration::from_millis(200));
        let mut back = vec![];
        server.read_to_end(&mut back).unwrap();
        assert!(back == bytes, "{} of {}", back.len(), bytes.len());
    });
}

#[test]
fn drop_after_write_delivers_everything() {
    let (mut client, mut server) = pair(&Options::new());
    // As much as fits before the server's first call.
    let bytes = pattern(0, 30_000);
    client.write_all(&bytes).unwrap();
    drop(client);
    let mut back = vec![];
    server.read_to_end(&mut back).unwrap();
    assert!(back == bytes);
    let err = server.write_all(&bytes).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn connect_without_listener_is_refused() {
    let closed_addr = Listener::bind(local()).unwrap().local_addr().unwrap();
    let err = Stream::connect(closed_addr).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::ConnectionRefused, "{err}");
}

#[test]
fn nonblocking_stream_descriptor_is_readable_on_data_and_room() {
    let (client, mut server) = pair(&Options::new());
    client.set_nonblocking(true);
    let mut buf = [0; 1000];
    let err = (&client).read(&mut buf).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
    let quiet = Some(Duration::from_millis(20));
    // Late setup messages may wake the stream.
    while verbs::fd::wait_readable("poll", client.as_fd(), quiet).unwrap() {
        (&client).read(&mut buf).unwrap_err();
    }
    server.write_all(b"now").unwrap();
    assert!(verbs::fd::wait_readable("poll", client.as_fd(), Some(TEST_TIMEOUT)).unwrap());
    assert_eq!((&client).read(&mut buf).unwrap(), 3);

    let mut sent = 0;
    let chunk = pattern(0, 10_000);
    let err = loop {
        match (&client).write(&chunk) {
            Ok(len) => sent += len,
            Err(err) => break err,
        }
    };
    assert_eq!(err.kind(), io::ErrorKind::WouldBlock);
    let mut back = vec![0; sent];
    server.read_exact(&mut back).unwrap();
    let start = Instant::now();
    while !client.readiness().unwrap().writable {
        assert!(start.elapsed() < TEST_TIMEOUT);
        verbs::fd::wait_readable("poll", client.as_fd(), Some(TEST_TIMEOUT)).unwrap();
    }
    assert!((&client).write(&chunk).unwrap() > 0);
}

#[test]
fn map_memory_with_shorter_length_bounds_writes() {
    let (client, server) = pair(&Options::new().iomap_size(1));
    let memory = verbs::mr::Mapping::new(8192).unwrap();
    let refused = server.map_memory(verbs::mr::Mapping::new(64).unwrap(), 65, Some(0));
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let mapped = server.map_memory(memory, 100, Some(0)).unwrap();
    assert_eq!(mapped.len(), 100);
    (&server).write_all(b"!").unwrap();
    (&client).read_exact(&mut [0]).unwrap();
    assert_eq!(client.write_at(&[7; 200], 0).unwrap(), 100);
    assert_eq!(client.write_at(&[7; 200], 99).unwrap(), 1);
}

#[test]
fn write_at_completes_before_the_next_message() {
    let options = Options::new().iomap_size(1);
    let (mut client, mut server) = pair(&options);
    let mapped = server.map(100_000, None).unwrap();
    assert_eq!(
        server.map(1, None).unwrap_err().kind(),
        io::ErrorKind::OutOfMemory
    );
    server.write_all(&mapped.offset().to_le_bytes()).unwrap();
    let mut offset = [0; 8];
    client.read_exact(&mut offset).unwrap();
    let offset = u64::from_le_bytes(offset);
    let bytes = pattern(9, 100_000);
    assert_eq!(client.write_at(&bytes, offset).unwrap(), bytes.len());
    assert_eq!(
        client.write_at(&bytes, offset + 99_000).unwrap(),
        1000,
        "the rest is outside"
    );
    assert_eq!(
        client.write_at(&bytes, 7).unwrap(),
        0,
        "nothing is mapped there"
    );
    client.write_all(b"!").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let mut stored = vec![0; 99_000];
    mapped.read(0, &mut stored);
    assert!(stored == bytes[..99_000]);
}

/// The connection ends with the last handle.
#[test]
fn stream_clone_shares_connection_and_mode() {
    let listener = Listener::bind(local()).unwrap();
    let client = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let mut other = client.try_clone().unwrap();
    client.set_nonblocking(true);
    let error = other.read(&mut [0]).unwrap_err();
    assert_eq!(
        error.kind(),
        io::ErrorKind::WouldBlock,
        "the mode is shared"
    );
    drop(client);
    other.write_all(b"still here").unwrap();
    let mut received = [0; 10];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"still here");
    drop(other);
    assert_eq!(server.read(&mut received).unwrap(), 0);
}
