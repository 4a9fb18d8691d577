//! A host's memory that panics at accesses outside of registered ranges.

use softnic::engine::{Atomic, HostRange, Memory};

/// Address of the first byte of every shadow memory.
pub(crate) const BASE: u64 = 0x10_0000;

/// A host's memory; the engine may access only the ranges opened by a test.
pub(crate) struct Shadow {
    bytes: Vec<u8>,
    /// Start, end, and whether the engine may write.
    open: Vec<(u64, u64, bool)>,
}

impl Shadow {
    pub(crate) fn new(len: usize) -> Self {
        Self {
            bytes: vec![0; len],
            open: Vec::new(),
        }
    }

    /// Opens a range to the engine.
    pub(crate) fn open(&mut self, addr: u64, len: u64, writable: bool) {
        self.open.push((addr, addr + len, writable));
    }

    /// Closes a range.
    pub(crate) fn close(&mut self, addr: u64) {
        self.open.retain(|(start, ..)| *start != addr);
    }

    /// The bytes, for the test.
    pub(crate) fn at(&mut self, addr: u64, len: usize) -> &mut [u8] {
        let start = usize::try_from(addr - BASE).unwrap();
        &mut self.bytes[start..start + len]
    }

    fn check(&self, addr: u64, len: usize, writes: bool) {
        let end = addr + len as u64;
        let inside = |(start, stop, writable): &(u64, u64, bool)| {
            addr >= *start && end <= *stop && (!writes || *writable)
        };
        let allowed = len == 0 || self.open.iter().any(inside);
        assert!(allowed, "{len} bytes at {addr:#x}, writes: {writes}");
    }
}

impl Memory for Shadow {
    fn read(&mut self, from: HostRange, to: &mut [u8]) {
        self.check(from.addr, from.len, false);
        to.copy_from_slice(self.at(from.addr, from.len));
    }

    fn write(&mut self, from: &[u8], to: HostRange) {
        self.check(to.addr, to.len, true);
        self.at(to.addr, to.len).copy_from_slice(from);
    }

    fn copy(&mut self, from: HostRange, to: HostRange) {
        let mut bytes = vec![0; from.len];
        self.read(from, &mut bytes);
        self.write(&bytes, to);
    }

    fn atomic(&mut self, addr: u64, operation: Atomic) -> u64 {
        self.check(addr, 8, true);
        assert!(addr.is_multiple_of(8));
        let word = self.at(addr, 8);
        let old = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&operation.apply(old).to_ne_bytes());
        old
    }
}
