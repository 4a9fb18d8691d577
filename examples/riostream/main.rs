//! `riostream`—Measures RDMA writes to mapped memory of the peer: latency, then bandwidth.
//!
//! Takes the options of librdmacm's program of the same name, and interoperates with it. Data arrive without
//! a message; the last byte of a transfer marks the end.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use examples::rstream::{
    connection::{Connection, Source},
    options::Options,
    plan::{Goal, Plan, plans, print_head, report},
    test_option::TestOption,
};
use rsocket::MappedBuffer;

/// Bytes exchanged by both sides before each measurement.
const SYNC: usize = 16;

fn main() -> Result<()> {
    let options = Options::parse();
    if options.has(TestOption::Sockets) {
        bail!("-T s: TCP has no mapped memory");
    }
    let plans = plans(&options);
    let first = plans.first().map_or(Goal::Custom, |(goal, _)| *goal);
    let source = Source::new(&options, first)?;
    print_head();
    let mut bytes = Bytes {
        verify: options.has(TestOption::Verify),
        ..Bytes::default()
    };
    for (goal, plans) in &plans {
        let mut connection = source.connect(&options, *goal)?;
        for plan in plans {
            measure(&options, &mut connection, plan, &mut bytes)?;
        }
        // The peer may have disconnected already.
        drop(connection.shut_down());
    }
    Ok(())
}

/// Data filled with their position in the sequence.
#[derive(Debug, Default)]
struct Bytes {
    verify: bool,
    sent: u8,
    received: u8,
    buffer: Vec<u8>,
}

impl Bytes {
    /// Sends the transfers of a round. Only the last is marked and awaited.
    fn send(&mut self, connection: &Connection, plan: &Plan, marker: u8) -> Result<()> {
        for _ in 1..plan.transfers {
            // Unmarked.
            connection.write_mapped(&self.buffer)?;
        }
        if let Some((last, data)) = self.buffer.split_last_mut() {
            *last = marker;
            if self.verify {
                for byte in data {
                    *byte = self.sent;
                    self.sent = self.sent.wrapping_add(1);
                }
            }
        }
        connection.write_mapped(&self.buffer)
    }

    /// Blocks until the last transfer of a round has arrived.
    fn receive(
        &mut self,
        connection: &Connection,
        mapped: &MappedBuffer,
        marker: u8,
    ) -> Result<()> {
        let data = mapped.len() - 1;
        let mut last = [!marker];
        loop {
            mapped.read(data, &mut last);
            if last == [marker] {
                break;
            }
            // Writes of the peer are visible without a call; the end of the connection is not.
            let ended = connection
                .stream()
                .is_none_or(|stream| stream.take_error().is_some());
            ensure!(!ended, "the peer has gone");
            std::hint::spin_loop();
        }
        if self.verify {
            let mut bytes = vec![0; data];
            mapped.read(0, &mut bytes);
            for (i, byte) in bytes.into_iter().enumerate() {
                ensure!(byte == self.received, "byte {i} of a transfer is wrong");
                self.received = self.received.wrapping_add(1);
            }
        }
        Ok(())
    }
}

fn measure(
    options: &Options,
    connection: &mut Connection,
    plan: &Plan,
    bytes: &mut Bytes,
) -> Result<()> {
    let stream = connection.stream().context("TCP has no mapped memory")?;
    let mapped = stream.map(plan.size, Some(0)).context("cannot map")?;
    mapped.write(plan.size - 1, &[u8::MAX]);
    bytes.buffer.resize(plan.size, 0);
    if let Some(last) = bytes.buffer.last_mut() {
        // Reset, so that no earlier marker matches.
        *last = u8::MAX;
    }
    let client = options.server.is_some();
    let mut sync = [0; SYNC];
    for out in [client, !client] {
        if out {
            connection.send(&sync)?;
        } else {
            connection.receive(&mut sync)?;
        }
    }
    let start = Instant::now();
    let mut marker = 0_u8;
    for _ in 0..plan.rounds {
        for out in [client, !client] {
            if out {
                bytes.send(connection, plan, marker)?;
            } else {
                bytes.receive(connection, &mapped, marker)?;
            }
            marker = marker.wrapping_add(1);
        }
    }
    report(plan, start.elapsed());
    Ok(())
}
