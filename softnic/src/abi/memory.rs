//! The process' memory, as accessed by the engine.

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use crate::engine::{Atomic, Memory};

/// The memory of this process.
///
/// The engine checks each access against a current registration, and the program keeps registered memory valid until
/// the deregistration, as required by `ibv_reg_mr`. All calls run with the fabric locked, so accesses of the engine
/// never overlap each other. Accesses by the program's threads can overlap, as with any device.
pub(crate) struct ProcessMemory;

fn place(addr: u64) -> *mut u8 {
    // Addresses of this process fit.
    ptr::with_exposed_provenance_mut(usize::try_from(addr).unwrap_or(0))
}

impl Memory for ProcessMemory {
    fn read(&mut self, addr: u64, to: &mut [u8]) {
        let from = place(addr);
        // SAFETY: the range is registered (see the type) and so readable. The payload of a frame belongs to the engine,
        // and does not overlap.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    fn write(&mut self, addr: u64, from: &[u8]) {
        let to = place(addr);
        // SAFETY: the range is registered with the right to write (see the type). The payload of a frame belongs to the
        // engine, and does not overlap.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    fn copy(&mut self, from: u64, to: u64, len: usize) {
        // SAFETY: both ranges are registered (see the type), the second one with the right to write. They may overlap.
        unsafe { ptr::copy(place(from), place(to), len) };
    }

    fn atomic(&mut self, addr: u64, operation: Atomic) -> u64 {
        let number = place(addr).cast::<u64>();
        // SAFETY: the eight bytes are registered with the right to change them (see the type), and the engine has
        // checked the alignment to 8 bytes.
        let number = unsafe { AtomicU64::from_ptr(number) };
        let change = |old| Some(operation.apply(old));
        match number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, change) {
            Ok(old) | Err(old) => old,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_that_of_the_process() {
        let mut bytes = [1_u8, 2, 3];
        let addr = bytes.as_mut_ptr().expose_provenance() as u64;
        let mut seen = [0; 2];
        ProcessMemory.read(addr + 1, &mut seen);
        assert_eq!(seen, [2, 3]);
        ProcessMemory.write(addr, &[7]);
        assert_eq!(bytes, [7, 2, 3]);
        ProcessMemory.copy(addr, addr + 1, 2);
        assert_eq!(bytes, [7, 7, 2], "ranges may overlap");
        let mut number = 40_u64;
        let addr = (&raw mut number).expose_provenance() as u64;
        assert_eq!(ProcessMemory.atomic(addr, Atomic::FetchAdd(2)), 40);
        assert_eq!(number, 42);
    }
}
