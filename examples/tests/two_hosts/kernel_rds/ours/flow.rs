//! Numbered messages in both directions, checked for loss, duplicates and delay.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rds::Socket;

use super::{HELLO, next_message, open, pattern, synchronize};

/// Numbers of the last message of a side, and of its acknowledgement.
const LAST: u64 = 1 << 63;
const HEARD: u64 = 1 << 62;

/// Time for the acknowledgement of the answer, over a connection that may have to be established again.
const LAST_ACK: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Side {
    sent: u64,
    delivered: u64,
    wrong: Vec<String>,
    last_sent: bool,
    received: bool,
    owes: bool,
    peer_over: bool,
}

impl Side {
    fn take(&mut self, bytes: &[u8]) {
        let Some((number, rest)) = bytes.split_first_chunk() else {
            return;
        };
        let number = u64::from_be_bytes(*number);
        if number == HEARD {
            self.received = true;
        } else if number & LAST != 0 {
            (self.peer_over, self.owes) = (true, true);
            if number ^ LAST != self.delivered {
                self.wrong
                    .push(format!("{} of {}", self.delivered, number ^ LAST));
            }
        } else {
            if number != self.delivered || rest != pattern(number.to_le_bytes()[0], rest.len()) {
                self.wrong
                    .push(format!("{number} instead of {}", self.delivered));
            }
            self.delivered = number + 1;
        }
    }

    /// Sends messages, if `is_due`; `false` if the send buffer is full.
    fn send(
        &mut self,
        socket: &Socket,
        peer: SocketAddr,
        is_due: bool,
        ended: bool,
    ) -> Result<bool> {
        let mut bytes = Vec::new();
        if self.owes {
            bytes.extend(HEARD.to_be_bytes());
        } else if is_due {
            let lens = [0, 100, 1000, 5000];
            let [index, ..] = self.sent.to_le_bytes();
            bytes.extend(self.sent.to_be_bytes());
            bytes.extend(pattern(index, lens[usize::from(index % 4)]));
        } else if ended && !self.last_sent {
            bytes.extend((self.sent | LAST).to_be_bytes());
        } else {
            return Ok(true);
        }
        match socket.send_to(&bytes, peer) {
            Ok(_) => {}
            Err(err) if err.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(err) => return Err(err.into()),
        }
        if self.owes {
            self.owes = false;
        } else if is_due {
            self.sent += 1;
        } else {
            self.last_sent = true;
        }
        Ok(true)
    }
}

/// Whether the quiet time after the exchange has passed. Dropping the socket would discard the answer to the peer's last message,
/// and the peer may leave before it acknowledges the answer.
fn may_leave(socket: &Socket, quiet: Option<Instant>) -> Result<bool> {
    let grace = match socket.queued()?.0 {
        0 => Duration::ZERO,
        _ => LAST_ACK,
    };
    Ok(quiet.is_some_and(|quiet| Instant::now() >= quiet + grace))
}

pub(super) fn run(local: SocketAddr, peer: SocketAddr, seconds: f64, pace: f64) -> Result<()> {
    // The check is on used memory, without the kernel's rounding up to huge pages.
    rustix::thread::disable_transparent_huge_pages(true)?;
    let socket = open(local)?;
    socket.set_send_limit(200_000)?;
    socket.set_recv_limit(200_000)?;
    synchronize(&socket, peer)?;
    socket.set_nonblocking(true);
    let pace = Duration::from_secs_f64(pace);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut deadline, mut heard_at, mut gap) = (Instant::now(), Instant::now(), Duration::ZERO);
    let mut side = Side::default();
    let mut memory = None;
    let mut quiet = None;
    while !may_leave(&socket, quiet)? {
        let now = Instant::now();
        if memory.is_none() && now + Duration::from_secs_f64(seconds * 0.9) >= end {
            memory = Some(resident()?);
        }
        if now > end + Duration::from_secs(120) {
            bail!("sent {}, seen {}", side.sent, side.delivered);
        }
        while let Some(bytes) = next_message(&socket)? {
            if !bytes.is_empty() && bytes != HELLO {
                gap = gap.max(heard_at.elapsed());
                heard_at = Instant::now();
                side.take(&bytes);
            }
        }
        let is_due = now < end && now >= deadline;
        let before = side.sent;
        if !side.send(&socket, peer, is_due, now >= end)? {
            thread::sleep(Duration::from_millis(10));
        }
        if side.sent > before {
            deadline = now + pace;
        } else {
            thread::sleep(Duration::from_millis(2));
        }
        if quiet.is_none() && side.received && side.peer_over && !side.owes {
            quiet = Some(Instant::now() + Duration::from_secs(3));
        }
    }
    let Side {
        sent,
        delivered,
        wrong,
        ..
    } = side;
    println!(
        "flow sent {sent} seen {delivered} wrong {} gap {:.1} memory {} {}",
        wrong.len(),
        gap.as_secs_f64(),
        memory.unwrap_or_default(),
        resident()?
    );
    ensure!(wrong.is_empty(), "{:?}", &wrong[..wrong.len().min(5)]);
    Ok(())
}

/// Resident memory of this process, in KiB.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.context("no VmRSS")?.split_whitespace().next();
    Ok(words.context("no VmRSS")?.parse()?)
}
