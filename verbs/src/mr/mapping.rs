//! Memory of whole pages, mapped from the kernel.

use std::{
    fmt, io,
    ops::{Deref, DerefMut},
    ptr::{self, NonNull},
    slice,
};

use super::memory::{Memory, OwnedMemory};
use crate::{
    error::{Error, Result},
    hint,
};

/// `mmap`—Private memory of whole pages, all zero: for registration, alone or as a
/// [pool](crate::mr::BufPool).
///
/// Unlike heap memory, a mapping shares no page with other data: necessary where a child of
/// [`fork`](crate::fork::fork_init) must not inherit the memory. In huge pages the device needs
/// fewer translations: one for 2 MiB, instead of 512.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// use verbs::mr::{HugePage, Mapping};
/// let pd = ctx.alloc_pd()?;
/// let memory = Mapping::huge(16 << 20, HugePage::MIB_2).or_else(|_| Mapping::new(16 << 20))?;
/// let buf = pd.register(memory).create_buf()?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [mmap(2)](https://man7.org/linux/man-pages/man2/mmap.2.html)
#[doc(alias = "mmap")]
#[doc(alias = "MAP_HUGETLB")]
pub struct Mapping {
    // INVARIANT: `mapped` bytes from `start` are mapped, private, readable and writable, until
    // `self` is dropped, and owned by `self` alone.
    start: NonNull<u8>,
    mapped: usize,
    // INVARIANT: at most `mapped`.
    len: usize,
}

/// The size of a huge page: a power of two offered by the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HugePage {
    log2: u32,
}

impl HugePage {
    /// 2 MiB.
    pub const MIB_2: Self = Self { log2: 21 };
    /// 1 GiB.
    pub const GIB_1: Self = Self { log2: 30 };

    /// Another size. `None` unless `bytes` is a power of two, and more than 4 KiB.
    ///
    /// The sizes of a machine are in `/sys/kernel/mm/hugepages`.
    pub const fn of(bytes: usize) -> Option<Self> {
        if bytes.is_power_of_two() && bytes > 4096 {
            Some(Self {
                log2: bytes.trailing_zeros(),
            })
        } else {
            None
        }
    }

    /// The number of bytes.
    pub const fn bytes(self) -> usize {
        1 << self.log2
    }
}

// SAFETY: a mapping owns its bytes alone (invariant), and bytes may be owned by any thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared one only allows reading.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// `mmap`—Maps `len` bytes, of ordinary pages. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or beyond the address space.
    /// - `ENOMEM`: less memory is free.
    pub fn new(len: usize) -> Result<Self> {
        Self::map(len, 1, 0).map_err(|err| err.detail(format!("{len} bytes")))
    }

    /// `mmap`—Maps `len` bytes, of huge pages. Enters the kernel. The last page is used partly if
    /// `len` is not a multiple of the page size.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or beyond the address space.
    /// - `ENOMEM`: too few huge pages of this size are free. The error names the file to raise
    ///   their number in.
    /// - `EINVAL`: the machine has no huge pages of this size.
    pub fn huge(len: usize, page: HugePage) -> Result<Self> {
        #[expect(clippy::cast_possible_wrap, reason = "at most 63 << 26, as C has it")]
        let flags = libc::MAP_HUGETLB | (page.log2 << libc::MAP_HUGE_SHIFT) as i32;
        Self::map(len, page.bytes(), flags).map_err(|err| {
            let hint = hint::huge_pages(err.raw_os_error());
            let kib = page.bytes() / 1024;
            err.detail(format!("{len} bytes, in huge pages of {kib} KiB"))
                .hint(hint)
        })
    }

    fn map(len: usize, granularity: usize, flags: i32) -> Result<Self> {
        const CALL: &str = "mmap";
        let mapped = len.checked_next_multiple_of(granularity);
        let mapped = mapped.filter(|&mapped| mapped > 0 && isize::try_from(mapped).is_ok());
        let Some(mapped) = mapped else {
            let reason = "a mapping has at least one byte, and fits into the address space";
            return Err(Error::refused(CALL, io::ErrorKind::InvalidInput, reason));
        };
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: without an address, the kernel picks unused addresses.
        let start = unsafe { libc::mmap(ptr::null_mut(), mapped, access, flags, -1, 0) };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => {
                Ok(Self { start, mapped, len })
            }
            _ => Err(Error::last_os(CALL)),
        }
    }
}

impl Deref for Mapping {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the bytes are mapped, and owned by `self` alone (invariant); the kernel has
        // zeroed the bytes.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Mapping {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and `&mut self` excludes every other reference.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and unmapped once, here. No reference exists: each
        // borrows `self`.
        let ret = unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
        debug_assert_eq!(ret, 0, "{}", io::Error::last_os_error());
    }
}

// SAFETY: the bytes are mapped until the value is dropped, and references borrow the value, so none
// exist after a move.
unsafe impl Memory for Mapping {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.len)
    }

    fn frees_pages(&self) -> bool {
        true
    }

    fn is_exclusive(&self) -> bool {
        true
    }
}

// SAFETY: a private mapping has one owner (invariant).
unsafe impl OwnedMemory for Mapping {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapping_is_zeroed_and_page_aligned() {
        let mut mapping = Mapping::new(5000).unwrap();
        assert_eq!(mapping.len(), 5000);
        assert_eq!(mapping.as_ptr().align_offset(4096), 0);
        assert!(mapping.iter().all(|&byte| byte == 0));
        mapping[4999] = 7;
        assert_eq!(mapping[4999], 7);
    }

    #[test]
    fn mapping_of_impossible_size_is_refused() {
        for len in [0, usize::MAX, usize::MAX / 2 + 1] {
            let err = Mapping::new(len).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidInput, "{err}");
            let err = Mapping::huge(len, HugePage::MIB_2).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidInput, "{err}");
        }
        assert_eq!(HugePage::of(4096), None);
        assert_eq!(HugePage::of(3 << 20), None);
        assert_eq!(HugePage::of(1 << 21), Some(HugePage::MIB_2));
    }

    #[test]
    fn huge_mapping_with_empty_pool_names_the_pool() {
        // 16 TiB, more than any machine keeps free as huge pages.
        let err = Mapping::huge(1 << 44, HugePage::MIB_2).unwrap_err();
        let text = err.to_string();
        assert!(
            text.contains("too few huge pages of this size are free; raise nr_hugepages in"),
            "{text}"
        );
        let err = Mapping::huge(1 << 20, HugePage::of(8192).unwrap()).unwrap_err();
        assert!(
            err.to_string()
                .contains("the kernel has no huge pages of this size"),
            "{err}"
        );
    }
}
