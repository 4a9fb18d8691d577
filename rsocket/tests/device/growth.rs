//! Growth of buffers under load, observed in the kernel's list of memory regions.

use std::{
    io::{Read, Write},
    thread,
    time::Instant,
};

use rsocket::{Options, Stream};

use crate::{
    leaks::{self, wait_for_earlier_tests},
    streams::{TEST_TIMEOUT, pair, pattern},
};

const LEN: usize = 4 << 20;
const IN_USE: usize = 128 << 10;

/// Number of the host's memory regions of `bytes` bytes.
fn regions(bytes: usize) -> usize {
    leaks::regions().iter().filter(|&&len| len == bytes).count()
}

/// Sends bytes in one direction, read in pieces of `piece` bytes.
fn send(from: &mut Stream, to: &mut Stream, piece: usize) {
    let bytes = pattern(0, LEN);
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&bytes).unwrap());
        let mut got = vec![0; LEN];
        for buf in got.chunks_mut(piece) {
            to.read_exact(buf).unwrap();
        }
        assert!(got == bytes, "received bytes differ from sent bytes");
    });
}

/// Sends the sum of `pieces`, and reads one piece after another once all bytes have arrived.
fn send_and_peek(from: &mut Stream, to: &mut Stream, pieces: &[usize]) {
    let size: usize = pieces.iter().sum();
    let bytes = pattern(size.to_le_bytes()[0], size);
    let mut buf = vec![0; size];
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(&bytes).unwrap());
        let until = Instant::now() + TEST_TIMEOUT;
        while to.peek(&mut buf).unwrap() < size {
            assert!(Instant::now() < until, "message incomplete");
        }
    });
    assert!(buf == bytes, "peeked bytes differ from sent bytes");
    buf.fill(0);
    let mut rest = &mut buf[..];
    for &piece in pieces {
        let (buf, after) = rest.split_at_mut(piece);
        to.read_exact(buf).unwrap();
        rest = after;
    }
    assert!(buf == bytes, "read bytes differ from sent bytes");
}

/// Fills the peer's buffer of `size` bytes, then reads all of it.
fn fill(from: &mut Stream, to: &mut Stream, size: usize) {
    send_and_peek(from, to, &[size]);
}

#[test]
fn buffers_of_busy_stream_grow() {
    const SIZES: [usize; 4] = [16 << 10, 32 << 10, IN_USE, LARGER];
    const LARGER: usize = 512 << 10;
    let found = || SIZES.map(regions);
    wait_for_earlier_tests();
    for piece in [LEN, 16 << 10] {
        let (mut client, mut server) = pair(&Options::new());
        assert_eq!(found(), [2, 2, 0, 0], "two idle ends");
        fill(&mut client, &mut server, IN_USE);
        assert_eq!(found(), [1, 1, 2, 0], "the sender's and the receiver's");
        for _ in 0..8 {
            fill(&mut client, &mut server, IN_USE);
        }
        assert_eq!(found()[3], 1, "the receiver's");
        // The client's buffer grows while a write waits for the server.
        let until = Instant::now() + TEST_TIMEOUT;
        loop {
            send(&mut client, &mut server, piece);
            let now = found();
            if now == [1, 1, 0, 2] {
                break;
            }
            assert!(Instant::now() < until, "{now:?}");
        }
        fill(&mut client, &mut server, LARGER);
        // The grown buffers work in the other direction, too.
        send(&mut server, &mut client, piece);
        drop((client, server));
        assert_eq!(found(), [0; 4]);
    }
}

/// A message spanning the old and the new buffer.
#[test]
fn message_during_growth_of_the_buffer_arrives_whole() {
    // The explicit size prevents growth.
    let fixed = Options::new().send_buffer(256 << 10);
    wait_for_earlier_tests();
    let (mut client, mut server) = pair(&fixed);
    // The first time, the idle buffer grows to the size in use.
    for _ in 0..8 {
        fill(&mut client, &mut server, IN_USE);
    }
    // The first piece grants half of the buffer to the client; the second causes the last stall before
    // growth.
    let (before, last) = (regions(IN_USE), IN_USE - 70_000);
    send_and_peek(&mut client, &mut server, &[70_000, last]);
    send_and_peek(&mut client, &mut server, &[65_000]);
    assert_eq!(regions(IN_USE), before, "536 bytes of room are left in it");
    send_and_peek(&mut client, &mut server, &[100, 500, 400]);
    assert_eq!(regions(IN_USE), before - 1, "it is used up, and read");
    send_and_peek(&mut client, &mut server, &[300_000]);
}

#[test]
fn buffers_with_fixed_size_do_not_grow() {
    const SIZE: usize = 96 << 10;
    let fixed = Options::new()
        .send_buffer(96 << 10)
        .receive_buffer(96 << 10);
    wait_for_earlier_tests();
    let (mut client, mut server) = pair(&fixed);
    // Over iWARP the accepted stream's buffer has its size from the first stall on.
    fill(&mut client, &mut server, SIZE);
    assert_eq!(regions(SIZE), 4);
    for _ in 0..20 {
        fill(&mut client, &mut server, SIZE);
    }
    send(&mut client, &mut server, LEN);
    assert_eq!(regions(SIZE), 4);
}
