//! The process' memory, as accessed by the engine.

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering},
};

use super::copying::{copy, copy_in, copy_out};
use crate::engine::{Atomic, HostRange, Memory};

/// The memory of this process.
///
/// The engine checks each access against a current registration, and the program keeps registered memory valid until
/// the deregistration, as required by `ibv_reg_mr`. All calls run with the fabric locked, so accesses of the engine
/// never overlap each other. Accesses by the program's threads can overlap, as with any device: see
/// [`copying`](super::copying).
pub(crate) struct ProcessMemory;

impl Memory for ProcessMemory {
    fn read(&mut self, from: HostRange, to: &mut [u8]) {
        // SAFETY: the range is registered (see the type) and so readable.
        unsafe { copy_out(from, to) };
    }

    fn write(&mut self, from: &[u8], to: HostRange) {
        // SAFETY: the range is registered with the right to write (see the type).
        unsafe { copy_in(from, to) };
    }

    fn copy(&mut self, from: HostRange, to: HostRange) {
        // SAFETY: both ranges are registered (see the type), the second one with the right to write.
        unsafe { copy(from, to) };
    }

    fn atomic(&mut self, addr: u64, operation: Atomic) -> u64 {
        let number = usize::try_from(addr).unwrap_or(0);
        let number = ptr::with_exposed_provenance_mut::<u64>(number);
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
    fn number_of_the_process_is_changed() {
        let mut number = 40_u64;
        let addr = (&raw mut number).expose_provenance() as u64;
        assert_eq!(ProcessMemory.atomic(addr, Atomic::FetchAdd(2)), 40);
        assert_eq!(number, 42);
    }
}
