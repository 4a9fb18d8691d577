//! Memory behind a descriptor: dma-bufs of `udmabuf` and other exporters, and memory files in the place of such.
//!
//! The engine copies with the processor, so the memory is mapped here until the end of the registration, also where the
//! program has no mapping of its own. Descriptors and ranges are checked as by the kernel's `ib_umem_dmabuf_get`: a range that
//! is not inside is `EINVAL`, as is a descriptor of another kind. Memory files are sealed against shrinking, as `udmabuf`
//! demands, so that no copy can fail.

use std::{
    ffi::{c_int, c_void},
    io, ptr,
};

use rustix::param::page_size;

/// Magic number of the file system of dma-bufs (`linux/magic.h`).
const DMA_BUF_MAGIC: i64 = 0x444d_4142;

/// A mapping of some bytes behind a descriptor.
pub(super) struct DmaBufMapping {
    // INVARIANT: `len` bytes from `start` are a shared mapping, readable and writable, of memory that does not shrink, until
    // `self` is dropped; `start` is a page's.
    start: *mut c_void,
    len: usize,
    /// Offset of the first byte in its page.
    lead: usize,
}

// SAFETY: an address of memory that belongs to no thread; the engine's copies follow the rule of `copying`.
unsafe impl Send for DmaBufMapping {}
// SAFETY: see `Send`.
unsafe impl Sync for DmaBufMapping {}

impl DmaBufMapping {
    /// Maps `len` bytes from `offset` of the memory behind a descriptor, or returns an errno.
    ///
    /// The program may use the descriptor and the memory in any way.
    pub(super) fn new(fd: c_int, offset: u64, len: usize) -> Result<Self, c_int> {
        let end = offset.checked_add(len as u64).ok_or(libc::EINVAL)?;
        check_kind(fd)?;
        // SAFETY: takes numbers.
        let size = unsafe { libc::lseek(fd, 0, libc::SEEK_END) };
        let size = u64::try_from(size).map_err(|_| errno())?;
        if len == 0 || end > size {
            return Err(libc::EINVAL);
        }
        let page = page_size();
        let lead = usize::try_from(offset % page as u64).map_err(|_| libc::EINVAL)?;
        let first = libc::off_t::try_from(offset - lead as u64).map_err(|_| libc::EINVAL)?;
        let len = lead.checked_add(len).ok_or(libc::EINVAL)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without an address, the kernel picks unused addresses.
        let start =
            unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, fd, first) };
        if start == libc::MAP_FAILED {
            // Memory that the processor cannot reach is none for this device.
            return Err(match errno() {
                libc::ENOMEM => libc::ENOMEM,
                _ => libc::EOPNOTSUPP,
            });
        }
        Ok(Self { start, len, lead })
    }

    /// The address of the first byte.
    pub(super) fn first(&self) -> *mut c_void {
        self.start.wrapping_byte_add(self.lead)
    }
}

impl Drop for DmaBufMapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length (invariant), and unmapped once, here, after the end of the registration.
        let ret = unsafe { libc::munmap(self.start, self.len) };
        debug_assert_eq!(ret, 0, "{}", io::Error::last_os_error());
    }
}

/// Refuses a descriptor that is neither of a dma-buf nor of a memory file that cannot shrink.
fn check_kind(fd: c_int) -> Result<(), c_int> {
    // SAFETY: takes numbers, and returns one.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals >= 0 {
        return match seals & libc::F_SEAL_SHRINK {
            0 => Err(libc::EINVAL),
            _ => Ok(()),
        };
    }
    if errno() == libc::EBADF {
        return Err(libc::EBADF);
    }
    // SAFETY: integers; zero is a value of each.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: takes a number and writes the structure.
    let ret = unsafe { libc::fstatfs(fd, &raw mut status) };
    match ret {
        0 if status.f_type == DMA_BUF_MAGIC => Ok(()),
        _ => Err(libc::EINVAL),
    }
}

fn errno() -> c_int {
    io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}
