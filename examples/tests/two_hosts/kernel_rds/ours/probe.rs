//! Reaction of a kernel to protocol violations.

use std::{net::IpAddr, thread, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use rds::proto::wire::{ConnectData, Family, Header, REJECTED, Version};

use crate::prober::{Answer, Prober, Wire, dial, proposal};

/// Source port.
const PORT: u16 = 4321;

/// Silence before a frame counts as unnoticed.
const ASLEEP: Duration = Duration::from_secs(3);

/// A connection to a kernel.
struct Probe {
    prober: Prober,
    peer: IpAddr,
    wire: Wire,
    sequence: u64,
    pings: u32,
}

impl Probe {
    fn ping(&mut self) -> Header {
        self.sequence += 1;
        self.pings += 1;
        Header {
            sequence: self.sequence,
            from: PORT,
            ..Header::default()
        }
    }

    /// Waits for the answer to a ping.
    fn pong(&mut self) -> Result<()> {
        let (header, _) = self.wire.recv_frame()?.context("the connection is lost")?;
        let ends = (header.from, header.to, header.len);
        ensure!(ends == (0, PORT, 0), "{header:?}, and no answer");
        Ok(())
    }

    /// Pings, and waits for the answer.
    fn ping_and_wait(&mut self) -> Result<()> {
        let ping = self.ping().encode();
        ensure!(self.wire.send(&ping, true)?, "a ping is not delivered");
        self.pong()
    }

    /// Checks that the kernel drops the connection and requests another.
    fn dropped(&mut self, what: &str) -> Result<()> {
        ensure!(self.wire.is_lost()?, "{what} is accepted");
        self.wire = self.prober.accept()?;
        self.ping_and_wait()
    }

    /// Whether an unsolicited ping is unnoticed until a solicited one.
    fn sleeps(&mut self) -> Result<bool> {
        // Earlier work of the kernel must be over, because that work would poll the ping as well.
        while self.wire.frame_within(ASLEEP / 3)?.is_some() {}
        let ping = self.ping().encode();
        ensure!(self.wire.send(&ping, false)?, "a ping is not delivered");
        let slept = self.wire.frame_within(ASLEEP)?.is_none();
        if slept {
            ensure!(self.wire.acknowledge(0)?, "nothing is taken");
            self.pong()?;
        }
        Ok(slept)
    }

    fn bad_frames(&mut self) -> Result<u32> {
        let mut damaged = self.ping().encode();
        self.pings -= 1;
        damaged[31] ^= 1;
        let long = Header {
            len: 10_000,
            to: PORT,
            ..self.ping()
        };
        self.pings -= 1;
        let other = Header {
            to: PORT + 1,
            ..long
        };
        let frame = |header: &Header| [&header.encode()[..], &[7; 4096][..]].concat();
        let rows = [
            ("a damaged header", vec![damaged.to_vec()]),
            ("a frame of 20 bytes", vec![vec![0; 20]]),
            (
                "a frame of another message",
                vec![frame(&long), frame(&other)],
            ),
        ];
        let mut count = 0;
        for (what, frames) in rows {
            for frame in frames {
                self.wire.send(&frame, true)?;
            }
            self.dropped(what)?;
            count += 1;
        }
        Ok(count)
    }

    fn asks_again(&mut self) -> Result<()> {
        let data = self.prober.proposal(self.peer, 0).encode();
        let refused = self.prober.dial(self.peer, &data)?.rejected()?;
        ensure!(refused == (28, REJECTED.to_vec()), "{refused:?}");
        self.dropped("a second request")
    }

    fn versions(&self) -> Result<()> {
        for (tos, [major, minor], minors, answer) in [
            (1, [4, 1], 3, Some([4, 1])),
            (2, [4, 0], 1, Some([4, 0])),
            (3, [3, 0], 3, None),
            (4, [5, 1], 3, None),
        ] {
            let version = Version { major, minor };
            let data = ConnectData {
                version,
                minors,
                ..self.prober.proposal(self.peer, tos)
            };
            let response = self.prober.dial(self.peer, &data.encode())?;
            if let Some([major, minor]) = answer {
                let reply = ConnectData::decode(&response.accepted()?.private_data, Family::V4)?;
                ensure!(reply.version == Version { major, minor }, "{reply:?}");
            } else {
                let refused = response.rejected()?;
                ensure!(refused == (28, REJECTED.to_vec()), "{version}: {refused:?}");
            }
        }
        Ok(())
    }
}

/// Expects the number of answered pings of the kernel.
pub(super) fn run(local: IpAddr, peer: IpAddr) -> Result<()> {
    let prober = Prober::new(local)?;
    let data = prober.proposal(peer, 0).encode();
    let wire = prober.dial(peer, &data)?.accepted()?;
    let mut probe = Probe {
        prober,
        peer,
        wire,
        sequence: 0,
        pings: 0,
    };
    probe.ping_and_wait()?;
    let mut slept = false;
    for _ in 0..5 {
        slept = slept || probe.sleeps()?;
    }
    ensure!(slept, "the kernel polls unsolicited frames");
    let count = probe.bad_frames()?;
    println!("bad frames {count}");
    probe.asks_again()?;
    probe.versions()?;
    println!("asked {}", probe.pings);
    Ok(())
}

/// Requests a connection in the name of a connected host, as a third party.
pub(super) fn rival(local: IpAddr, peer: IpAddr) -> Result<()> {
    let data = proposal(local, peer, 0).encode();
    for _ in 0..60 {
        // There may be no connection at the moment, or an attempt.
        match dial(local, peer, &data, 0) {
            Ok(Answer::Rejected { reason: 28, data }) if data.starts_with(&REJECTED) => {
                println!("rival refused");
                return Ok(());
            }
            Ok(Answer::Accepted(wire)) => wire.disconnect(),
            other => println!("rival: {other:?}"),
        }
        thread::sleep(Duration::from_millis(500));
    }
    bail!("it is never refused")
}
