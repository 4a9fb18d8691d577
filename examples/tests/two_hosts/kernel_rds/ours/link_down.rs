//! RDMA of a kernel on this host's memory, and long messages in both directions, while connections
//! are lost.

use std::{
    collections::HashMap,
    io::{ErrorKind, IoSlice},
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use rds::{Cookie, Event, ExportOptions, RdmaBuffer, SendOptions, Socket};

use super::{HELLO, READ, TIMEOUT, WRITE, open, synchronize, wait_for_acks};

/// Number of places in memory, of which the first half is written.
const PLACES: u8 = 8;
const LEN: usize = 1 << 16;

/// Size of a long message, and maximum number in flight.
const LONG: usize = 1 << 20;
const AT_ONCE: u32 = 3;
const ROOM: u32 = 8 << 20;

/// Type of service of long messages, for a separate connection.
const TOS: u8 = 1;

// Types of messages about places, and of the end.
const NAMED: u8 = b'M';
const DROPPED: u8 = b'X';
const SEEN: u8 = b'O';
const OVER: u8 = b'Z';

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    let mut bytes = super::pattern(seed, 251).repeat(len.div_ceil(251));
    bytes.truncate(len);
    bytes
}

/// The memory, and the operations on it.
struct Places {
    memory: Vec<(RdmaBuffer, Cookie)>,
    /// Last operation by place with a received message.
    last: HashMap<u8, u8>,
    done: u32,
    dropped: u32,
}

impl Places {
    /// Allocates the memory, and sends the cookies, once.
    fn new(socket: &Socket, peer: SocketAddr) -> Result<Self> {
        let mut memory = Vec::new();
        for slot in 0..PLACES {
            let pages = socket.alloc(LEN)?;
            if slot >= PLACES / 2 {
                pages.write(0, &pattern(slot, LEN));
            }
            let cookie = socket.export(&pages, ExportOptions::new())?;
            let options = SendOptions::new().to(peer).cookie(cookie);
            socket.send_msg(&[IoSlice::new(&[NAMED, slot, 0])], &options)?;
            memory.push((pages, cookie));
        }
        Ok(Self {
            memory,
            last: HashMap::new(),
            done: 0,
            dropped: 0,
        })
    }

    /// Handles a message about a place.
    fn take(&mut self, kind: u8, slot: u8, seed: u8) -> Result<()> {
        match kind {
            WRITE | READ => {
                let expected = if kind == WRITE { seed } else { slot };
                let (pages, _) = &self.memory[usize::from(slot % PLACES)];
                let mut bytes = vec![0; LEN];
                pages.read(0, &mut bytes);
                ensure!(bytes == pattern(expected, LEN), "{seed} is not at {slot}");
                let last = self.last.insert(slot, seed);
                ensure!(last != Some(seed), "{seed} has ended before");
                self.done += 1;
            }
            DROPPED => self.dropped += 1,
            _ => bail!("{kind} is nothing that can happen to {slot}"),
        }
        Ok(())
    }
}

/// Long messages in both directions, each answered by its number.
#[derive(Default)]
struct Messages {
    sent: u32,
    answered: u32,
    received: u32,
}

impl Messages {
    /// Sends and receives; returns whether there was progress.
    fn exchange(&mut self, socket: &Socket, peer: SocketAddr) -> Result<bool> {
        let mut any = false;
        while let Some(bytes) = next(socket)? {
            any = true;
            let Some((number, rest)) = bytes.split_first_chunk() else {
                bail!("{} bytes", bytes.len());
            };
            let number = u32::from_be_bytes(*number);
            if rest.is_empty() {
                ensure!(number == self.answered, "{number} is answered");
                self.answered += 1;
                continue;
            }
            ensure!(
                number == self.received,
                "{number} instead of {}",
                self.received
            );
            let [seed, ..] = number.to_le_bytes();
            ensure!(rest == pattern(seed, LONG - 4), "{number} is not whole");
            self.received += 1;
            socket.send_to(&number.to_be_bytes(), peer)?;
        }
        while self.sent - self.answered < AT_ONCE {
            any = true;
            let [seed, ..] = self.sent.to_le_bytes();
            let bytes = [&self.sent.to_be_bytes()[..], &pattern(seed, LONG - 4)].concat();
            socket.send_to(&bytes, peer)?;
            self.sent += 1;
        }
        Ok(any)
    }
}

/// Receives the next message other than a hello, if any.
fn next(socket: &Socket) -> Result<Option<Vec<u8>>> {
    loop {
        match socket.recv_event() {
            Ok(Event::Message(message)) if message.to_vec() == HELLO => {}
            Ok(Event::Message(message)) => return Ok(Some(message.to_vec())),
            Ok(other) => bail!("{other:?}, which is no message"),
            Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(err) => return Err(err.into()),
        }
    }
}

/// The kernel's side ends the run.
pub(super) fn run(local: SocketAddr, peer: SocketAddr) -> Result<()> {
    let outside = |addr: SocketAddr| SocketAddr::new(addr.ip(), addr.port() + 1);
    let (socket, long) = (open(local)?, open(outside(local))?);
    long.set_tos(TOS)?;
    long.set_send_limit(ROOM)?;
    long.set_recv_limit(ROOM)?;
    synchronize(&socket, peer)?;
    synchronize(&long, outside(peer))?;
    let mut slots = Places::new(&socket, peer)?;
    let mut messages = Messages::default();
    socket.set_nonblocking(true);
    long.set_nonblocking(true);
    let mut until = Instant::now() + 2 * TIMEOUT;
    let mut ended = false;
    while !ended {
        let mut any = messages.exchange(&long, outside(peer))?;
        while let Some(bytes) = next(&socket)? {
            any = true;
            until = Instant::now() + 2 * TIMEOUT;
            match bytes[..] {
                [OVER, ..] => ended = true,
                [kind, slot, seed] => {
                    slots.take(kind, slot, seed)?;
                    socket.send_to(&[SEEN, slot, seed, kind], peer)?;
                }
                _ => bail!("{bytes:?}"),
            }
        }
        ensure!(Instant::now() < until, "nothing comes any more");
        if !any {
            thread::sleep(Duration::from_millis(1));
        }
    }
    let Places { done, dropped, .. } = slots;
    let Messages { sent, received, .. } = messages;
    ensure!(socket.exports()? == usize::from(PLACES), "memory is gone");
    println!("link_down done {done} dropped {dropped} sent {sent} seen {received}");
    long.cancel_sent_to(None)?;
    wait_for_acks(&socket)
}
