//! Messages in both directions, hashed by both sides.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use crc32fast::Hasher;
use rds::Socket;

use super::{ACK_TIMEOUT, HELLO, links, next_message, open, pattern, synchronize, wait_for_acks};

/// Length of a message.
const LEN: usize = 64;

/// The message of a side after the acknowledgement of all of its messages.
const END: &[u8] = b"end";

/// The messages of one direction.
#[derive(Default)]
struct Direction {
    count: u32,
    hasher: Hasher,
}

impl Direction {
    fn add(&mut self, bytes: &[u8]) {
        self.count += 1;
        self.hasher.update(bytes);
    }
}

/// Sends the next message; `false` if the send buffer is full.
fn send(socket: &Socket, peer: SocketAddr, sent: &mut Direction) -> Result<bool> {
    let number = sent.count.to_be_bytes();
    let bytes = [&number[..], &pattern(number[3], LEN - number.len())].concat();
    match socket.send_to(&bytes, peer) {
        Ok(_) => {}
        Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(false),
        Err(err) => return Err(err.into()),
    }
    sent.add(&bytes);
    Ok(true)
}

pub(super) fn run(local: SocketAddr, peer: SocketAddr, count: u32) -> Result<()> {
    let socket = open(local)?;
    synchronize(&socket, peer)?;
    socket.set_nonblocking(true);
    let (mut sent, mut received) = (Direction::default(), Direction::default());
    let (mut progress, mut is_over) = (Instant::now(), false);
    while sent.count < count || received.count < count {
        let before = (sent.count, received.count);
        while sent.count < count && send(&socket, peer, &mut sent)? {}
        while let Some(bytes) = next_message(&socket)? {
            is_over |= bytes == END;
            if bytes != HELLO && bytes != END {
                received.add(&bytes);
            }
        }
        if before != (sent.count, received.count) {
            progress = Instant::now();
        }
        ensure!(
            progress.elapsed() < ACK_TIMEOUT,
            "sent {}, received {}; {}",
            sent.count,
            received.count,
            links(&socket)?
        );
        thread::sleep(Duration::from_millis(1));
    }
    wait_for_acks(&socket)?;
    socket.send_to(END, peer)?;
    // After a lost connection, the kernel repeats messages although they were received. A process that has left acknowledges
    // nothing, so the kernel's side reports the acknowledgement of its messages.
    let sent_at = Instant::now();
    while !is_over || socket.queued()?.0 > 0 {
        is_over |= next_message(&socket)?.is_some_and(|bytes| bytes == END);
        ensure!(
            sent_at.elapsed() < ACK_TIMEOUT,
            "the end has arrived: {is_over}; {}",
            links(&socket)?
        );
        thread::sleep(Duration::from_millis(10));
    }
    println!("{}", links(&socket)?);
    // For the acknowledgement of the last message.
    thread::sleep(Duration::from_secs(2));
    println!(
        "hashed sent {} {} received {} {}",
        sent.count,
        sent.hasher.finalize(),
        received.count,
        received.hasher.finalize()
    );
    Ok(())
}
