//! Sending to and fro.

use std::time::Instant;

use anyhow::{Result, ensure};
use examples::rstream::{
    connection::{Connection, Source},
    options::Options,
    plan::{Goal, Plan, plans, print_head, report},
    test_option::TestOption,
};

/// Bytes exchanged by both sides before each measurement.
const SYNC: usize = 16;

pub(crate) fn run(options: &Options) -> Result<()> {
    let plans = plans(options);
    let first = plans.first().map_or(Goal::Custom, |(goal, _)| *goal);
    let source = Source::new(options, first)?;
    print_head();
    let mut data = Data::default();
    for (goal, plans) in &plans {
        measure_all(options, &source, *goal, plans, &mut data)?;
    }
    Ok(())
}

/// Data filled with their position in the sequence.
#[derive(Debug, Default)]
struct Data {
    verify: bool,
    sent: u8,
    received: u8,
    buffer: Vec<u8>,
}

impl Data {
    fn send(&mut self, connection: &mut Connection, size: usize) -> Result<()> {
        self.buffer.resize(size.max(self.buffer.len()), 0);
        let bytes = &mut self.buffer[..size];
        if self.verify {
            for byte in &mut *bytes {
                *byte = self.sent;
                self.sent = self.sent.wrapping_add(1);
            }
        }
        connection.send(bytes)
    }

    fn receive(&mut self, connection: &mut Connection, size: usize) -> Result<()> {
        self.buffer.resize(size.max(self.buffer.len()), 0);
        let bytes = &mut self.buffer[..size];
        connection.receive(bytes)?;
        if self.verify {
            for (i, &byte) in bytes.iter().enumerate() {
                ensure!(byte == self.received, "byte {i} of a transfer is wrong");
                self.received = self.received.wrapping_add(1);
            }
        }
        Ok(())
    }

    /// Transfers in one direction; the client starts.
    fn transfer(&mut self, connection: &mut Connection, out: bool, size: usize) -> Result<()> {
        if out {
            self.send(connection, size)
        } else {
            self.receive(connection, size)
        }
    }
}

fn measure_all(
    options: &Options,
    source: &Source,
    goal: Goal,
    plans: &[Plan],
    data: &mut Data,
) -> Result<()> {
    data.verify = options.has(TestOption::Verify);
    let mut connection = source.connect(options, goal)?;
    let client = options.server.is_some();
    for plan in plans {
        data.transfer(&mut connection, client, SYNC)?;
        data.transfer(&mut connection, !client, SYNC)?;
        let start = Instant::now();
        for _ in 0..plan.rounds {
            for out in [client, !client] {
                for _ in 0..plan.transfers {
                    data.transfer(&mut connection, out, plan.size)?;
                }
            }
        }
        report(plan, start.elapsed());
    }
    // The peer may have disconnected already.
    drop(connection.shut_down());
    Ok(())
}
