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

use super::{HELLO, TIMEOUT, next_message, open, pattern, synchronize, wait_for_acks};

/// Length of a message.
const LEN: usize = 64;

/// The message after all acknowledgements.
const END: &[u8] = b"end";

/// Time for the delivery of [`END`] over a faulty link, which may have to be connected again. Until then, the kernel's host may
/// repeat messages whose acknowledgement was lost.
const GRACE: Duration = Duration::from_secs(150);

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
    let mut progress = Instant::now();
    while sent.count < count || received.count < count {
        let before = (sent.count, received.count);
        while sent.count < count && send(&socket, peer, &mut sent)? {}
        while let Some(bytes) = next_message(&socket)? {
            if bytes != HELLO {
                received.add(&bytes);
            }
        }
        if before != (sent.count, received.count) {
            progress = Instant::now();
        }
        ensure!(
            progress.elapsed() < TIMEOUT,
            "sent {}, received {}",
            sent.count,
            received.count
        );
        thread::sleep(Duration::from_millis(1));
    }
    wait_for_acks(&socket)?;
    // The kernel's host stays until then, and may leave before the message is acknowledged.
    socket.send_to(END, peer)?;
    let sent_at = Instant::now();
    while socket.queued()?.0 > 0 && sent_at.elapsed() < GRACE {
        thread::sleep(Duration::from_millis(10));
    }
    println!(
        "{} bytes not acknowledged {:?} after the end; connections: {:?}",
        socket.queued()?.0,
        sent_at.elapsed(),
        socket.engine().connection_stats()?
    );
    println!(
        "hashed sent {} {} received {} {}",
        sent.count,
        sent.hasher.finalize(),
        received.count,
        received.hasher.finalize()
    );
    Ok(())
}
