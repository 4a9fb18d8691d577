//! Accesses of an adversary after the time at which a kind device makes them.

use std::time::Duration;

use super::{
    memory::{HostRange, Memory},
    packet::Content,
    request::Sge,
    transfer::scatter,
};

/// Request of bytes that are not in the memory yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A peer's write or atomic.
    Remote,
    /// A peer's write that later writes may overtake.
    RemoteRelaxed,
    /// A receive, a read, or a write with immediate data, whose completion comes after the bytes.
    Local,
}

/// Bytes that are not in the memory yet.
#[derive(Debug)]
struct LateWrite {
    qp: u32,
    to: HostRange,
    bytes: Vec<u8>,
    until: Duration,
    cause: Cause,
}

/// Bytes written by the poll of their completion.
#[derive(Debug)]
struct PolledWrite {
    id: u32,
    qp: u32,
    lkeys: Vec<u32>,
    to: Vec<HostRange>,
    bytes: Vec<u8>,
}

/// Bytes that are not in the memory of the host yet.
#[derive(Debug, Default)]
pub(super) struct LateAccess {
    writes: Vec<LateWrite>,
    polled: Vec<PolledWrite>,
    serial: u32,
}

impl LateAccess {
    /// Adds bytes to be written at a time.
    pub(super) fn add(
        &mut self,
        qp: u32,
        (to, bytes): (HostRange, Vec<u8>),
        until: Duration,
        cause: Cause,
    ) {
        self.writes.push(LateWrite {
            qp,
            to,
            bytes,
            until,
            cause,
        });
    }

    /// Orders the bytes of the writes to a queue pair before its next completion.
    pub(super) fn precede_completion(&mut self, qp: u32) {
        let of_qp = self.writes.iter_mut().filter(|write| write.qp == qp);
        of_qp.for_each(|write| write.cause = Cause::Local);
    }

    /// Time at which all bytes of the receives and reads of a queue pair are in the memory; `None` if they are.
    pub(super) fn completes_at(&self, qp: u32) -> Option<Duration> {
        let writes = self.writes.iter();
        let local = writes.filter(|write| write.qp == qp && write.cause == Cause::Local);
        local.map(|write| write.until).max()
    }

    /// Adds bytes that the poll of a completion writes, and returns a number for the completion.
    pub(super) fn add_polled(
        &mut self,
        qp: u32,
        sges: &[Sge],
        to: Vec<HostRange>,
        bytes: Vec<u8>,
    ) -> u32 {
        self.serial = self.serial.wrapping_add(1).max(1);
        self.polled.push(PolledWrite {
            id: self.serial,
            qp,
            lkeys: sges.iter().map(|sge| sge.lkey).collect(),
            to,
            bytes,
        });
        self.serial
    }

    /// Writes the bytes whose time has come.
    pub(super) fn expire(&mut self, now: Duration, memory: &mut dyn Memory) {
        self.write_due(memory, |write| write.until <= now);
    }

    /// Writes the bytes of earlier requests of a queue pair; those of relaxed writes only if `all`.
    pub(super) fn settle(&mut self, qp: u32, all: bool, memory: &mut dyn Memory) {
        self.write_due(memory, |write| {
            write.qp == qp && (all || write.cause != Cause::RemoteRelaxed)
        });
    }

    /// Writes the bytes of the receives and reads of a queue pair that have no completion yet.
    pub(super) fn settle_local(&mut self, qp: u32, memory: &mut dyn Memory) {
        self.write_due(memory, |write| {
            write.qp == qp && write.cause == Cause::Local
        });
    }

    /// Writes the bytes of all requests.
    pub(super) fn settle_all(&mut self, memory: &mut dyn Memory) {
        self.write_due(memory, |_| true);
    }

    fn write_due(&mut self, memory: &mut dyn Memory, is_due: impl Fn(&LateWrite) -> bool) {
        self.writes.retain(|write| {
            let is_due = is_due(write);
            if is_due {
                memory.write(&write.bytes, write.to);
            }
            !is_due
        });
    }

    /// Writes the bytes of a polled completion.
    pub(super) fn poll(&mut self, id: u32, memory: &mut dyn Memory) {
        self.write_polled(memory, |write| write.id == id);
    }

    /// Writes the bytes of the receives and reads of a queue pair, completed or not: a later request may read them.
    pub(super) fn settle_targets(&mut self, qp: u32, memory: &mut dyn Memory) {
        self.write_polled(memory, |write| write.qp == qp);
        self.settle_local(qp, memory);
    }

    fn write_polled(&mut self, memory: &mut dyn Memory, is_due: impl Fn(&PolledWrite) -> bool) {
        self.polled.retain(|write| {
            let is_due = is_due(write);
            if is_due {
                scatter(memory, &write.to, Content::Bytes(&write.bytes));
            }
            !is_due
        });
    }

    /// Drops the bytes of completions of a destroyed or reset queue pair: its memory is the program's.
    pub(super) fn forget_qp(&mut self, qp: u32) {
        self.polled.retain(|write| write.qp != qp);
    }

    /// Drops the bytes of completions with memory of a deregistered region.
    pub(super) fn forget_region(&mut self, lkey: u32) {
        self.polled.retain(|write| !write.lkeys.contains(&lkey));
    }
}
