//! The process' memory with checks before each access of the device.

use std::sync::Arc;

use super::Checker;
use crate::{
    abi::{ProcessMemory, is_accessible},
    engine::{Atomic, HostRange, Memory, Shared},
};

/// A range of plain memory.
pub(super) fn range(addr: u64, len: usize) -> HostRange {
    HostRange {
        addr,
        len,
        shared: Shared::default(),
    }
}

/// Maximum number of bytes compared at once: those of a page, in the processor's cache.
const CHUNK: usize = 4096;

/// Reads bytes of the process. Returns false, and reads none, if not all of them are mapped.
pub(super) fn read(addr: u64, to: &mut [u8]) -> bool {
    let is_accessible = is_accessible(addr, to.len());
    if is_accessible {
        ProcessMemory.read(range(addr, to.len()), to);
    }
    is_accessible
}

/// The first byte of the process that differs from the expected one: its offset and value. `None` if not all bytes are mapped.
pub(super) fn first_difference(addr: u64, expected: &[u8]) -> Option<(usize, u8)> {
    if !is_accessible(addr, expected.len()) {
        return None;
    }
    let mut buffer = [0; CHUNK];
    for (index, old) in expected.chunks(CHUNK).enumerate() {
        let offset = index * CHUNK;
        let new = buffer.get_mut(..old.len())?;
        ProcessMemory.read(range(addr + offset as u64, new.len()), new);
        if old != &*new {
            let at = old.iter().zip(&*new).position(|(old, new)| old != new)?;
            return Some((offset + at, *new.get(at)?));
        }
    }
    None
}

/// The memory of this process, for a fabric with checks. Memory that is not mapped is reported, and not accessed.
pub(crate) struct CheckedMemory {
    checker: Arc<Checker>,
}

impl CheckedMemory {
    pub(crate) fn new(checker: &Arc<Checker>) -> Self {
        Self {
            checker: Arc::clone(checker),
        }
    }

    /// Whether the device may access a range. Reports memory that is gone.
    fn check(&self, range: HostRange) -> bool {
        let is_accessible = range.len == 0 || is_accessible(range.addr, range.len);
        if !is_accessible {
            self.checker.memory_gone(range);
        }
        is_accessible
    }
}

impl Memory for CheckedMemory {
    fn read(&mut self, from: HostRange, to: &mut [u8]) {
        if self.check(from) {
            ProcessMemory.read(from, to);
        }
    }

    fn write(&mut self, from: &[u8], to: HostRange) {
        if self.check(to) {
            self.checker.before_write(to);
            ProcessMemory.write(from, to);
            self.checker.after_write(to);
        }
    }

    fn copy(&mut self, from: HostRange, to: HostRange) {
        if self.check(from) && self.check(to) {
            self.checker.before_write(to);
            ProcessMemory.copy(from, to);
            self.checker.after_write(to);
        }
    }

    fn atomic(&mut self, addr: u64, operation: Atomic) -> u64 {
        let number = range(addr, size_of::<u64>());
        if !self.check(number) {
            return 0;
        }
        let old = ProcessMemory.atomic(addr, operation);
        self.checker.after_write(number);
        old
    }
}
