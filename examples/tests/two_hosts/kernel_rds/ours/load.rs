//! Messages in both directions, between sides that may be killed and restarted.

use std::{
    io::ErrorKind,
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};

use super::{TIMEOUT, next_message, open, pattern, wait_for_acks};

/// Number of messages of the peer before the end.
const ENOUGH: u32 = 50;

/// Duration of the last messages.
const LAST: Duration = Duration::from_secs(3);

/// Messages of one life of the peer.
#[derive(Default)]
struct Seen {
    count: u32,
    next: Option<u32>,
    /// Whether the peer has received enough.
    content: bool,
}

/// Encodes a message: life of the sender, whether it has received enough, and the number.
fn message(life: u8, content: bool, number: u32) -> Vec<u8> {
    let [seed, ..] = number.to_le_bytes();
    let len = [0, 100, 5000, 20_000][usize::from(seed % 4)];
    let mut bytes = vec![life, u8::from(content)];
    bytes.extend(number.to_be_bytes());
    bytes.extend(pattern(seed, len));
    bytes
}

impl Seen {
    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let number = u32::from_be_bytes(bytes[2..6].try_into()?);
        let complete = message(bytes[0], bytes[1] != 0, number);
        ensure!(bytes == complete, "{number} is not whole");
        let next = self.next.unwrap_or(number);
        ensure!(number == next, "{number} instead of {next}");
        self.next = Some(number + 1);
        self.count += 1;
        self.content = bytes[1] != 0;
        Ok(())
    }
}

/// Sends and receives in the life `life`, until enough messages of the peer's life `peers` have
/// arrived at both sides. With 0 for `peers`: until enough messages have arrived, and aborts.
pub(super) fn run(local: SocketAddr, peer: SocketAddr, life: u8, peers: u8) -> Result<()> {
    let socket = open(local)?;
    socket.set_send_limit(200_000)?;
    socket.set_nonblocking(true);
    let limit = Instant::now() + 2 * TIMEOUT;
    let mut received: [Seen; 3] = Default::default();
    let mut number = 0;
    let mut quiet: Option<Instant> = None;
    while quiet.is_none_or(|quiet| Instant::now() < quiet) {
        while let Some(bytes) = next_message(&socket)? {
            ensure!(bytes.len() >= 6 && bytes[0] < 3, "{bytes:?}");
            received[usize::from(bytes[0])].take(&bytes)?;
        }
        if peers == 0 && received.iter().any(|received| received.count >= ENOUGH) {
            println!("dies");
            let local = rustix::process::getpid();
            rustix::process::kill_process(local, rustix::process::Signal::KILL)?;
        }
        let requested = &received[usize::from(peers)];
        let content = peers > 0 && requested.count >= ENOUGH;
        if content && requested.content && quiet.is_none() {
            quiet = Some(Instant::now() + LAST);
        }
        if Instant::now() > limit {
            bail!("{number} sent, {} seen, and not enough", requested.count);
        }
        match socket.send_to(&message(life, content, number), peer) {
            Ok(_) => number += 1,
            Err(err) if err.kind() == ErrorKind::WouldBlock => {}
            Err(err) => return Err(err.into()),
        }
        thread::sleep(Duration::from_millis(10));
    }
    let info = socket.engine().info()?;
    let resets = info.counters.iter().find(|one| one.name == "conn_reset");
    let resets = resets.map_or(0, |one| one.value);
    println!(
        "lived sent {number} seen {} resets {resets}",
        received[usize::from(peers)].count
    );
    // A dead peer acknowledges nothing.
    socket.cancel_sent_to(None)?;
    wait_for_acks(&socket)
}
