//! The process' memory, as accessed by the engine.

use std::{
    ffi::{CStr, c_void},
    mem, ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::param::page_size;

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

/// Whether all bytes of a range are mapped, and none is freed as far as `AddressSanitizer` knows.
pub(crate) fn is_accessible(addr: u64, len: usize) -> bool {
    let Ok(start) = usize::try_from(addr) else {
        return false;
    };
    let Some(end) = start.checked_add(len) else {
        return false;
    };
    let page = start / page_size() * page_size();
    let first = ptr::without_provenance_mut(page);
    // SAFETY: the call neither reads nor changes memory. It fails if a page of the range is not mapped.
    let is_mapped = unsafe { libc::msync(first, end - page, libc::MS_ASYNC) } == 0;
    is_mapped && !is_poisoned(start, len)
}

/// A program or shared library in the process.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoadedObject {
    /// Address of the object.
    pub(crate) start: usize,
    /// Name of the object's file.
    pub(crate) file: String,
}

/// The object of an address; `None` for an address of none.
pub(crate) fn object_of(address: usize) -> Option<LoadedObject> {
    let mut info = mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: any address is allowed; the structure is the caller's.
    let found = unsafe { libc::dladdr(ptr::without_provenance(address), info.as_mut_ptr()) };
    if found == 0 {
        return None;
    }
    // SAFETY: a non-zero result has written the structure.
    let info = unsafe { info.assume_init() };
    // SAFETY: the name is a C string of the loader, valid while the object is loaded.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(LoadedObject {
        start: info.dli_fbase.addr(),
        file: file.to_string_lossy().into_owned(),
    })
}

/// The object that contains softnic.
pub(crate) fn own_object() -> Option<LoadedObject> {
    let function: fn() -> Option<LoadedObject> = own_object;
    object_of(function as usize)
}

/// Whether `AddressSanitizer`, if it is in the process, reports a byte of a range as not accessible.
fn is_poisoned(start: usize, len: usize) -> bool {
    type IsPoisoned = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;
    static FUNCTION: OnceLock<Option<IsPoisoned>> = OnceLock::new();
    let function = FUNCTION.get_or_init(|| {
        let name = c"__asan_region_is_poisoned";
        // SAFETY: a C string, and no library is opened.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        // SAFETY: the function of this name has this type (sanitizer/asan_interface.h); null becomes `None`.
        unsafe { mem::transmute::<*mut c_void, Option<IsPoisoned>>(found) }
    });
    match function {
        // SAFETY: the function reads the sanitizer's own memory for the range.
        Some(function) => !unsafe { function(ptr::without_provenance_mut(start), len) }.is_null(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_is_not_accessible() {
        let two = 2 * page_size();
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                two,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let addr = start.addr() as u64;
        assert!(is_accessible(addr + 5, two - 5));
        let second = start.wrapping_byte_add(page_size());
        // SAFETY: the second page of the mapping, which nothing uses.
        assert_eq!(unsafe { libc::munmap(second, page_size()) }, 0);
        assert!(is_accessible(addr, page_size()));
        assert!(!is_accessible(addr + page_size() as u64 - 1, 2));
        assert!(!is_accessible(u64::MAX, 2));
    }

    #[test]
    fn number_of_the_process_is_changed() {
        let mut number = 40_u64;
        let addr = (&raw mut number).expose_provenance() as u64;
        assert_eq!(ProcessMemory.atomic(addr, Atomic::FetchAdd(2)), 40);
        assert_eq!(number, 42);
    }
}
