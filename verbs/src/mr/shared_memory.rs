//! Memory shared between processes.

use std::{
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::{self, NonNull},
};

use super::memory::Memory;
use crate::error::{Error, Result, cvt_neg};

/// `memfd_create`—Memory that processes share by its descriptor, mapped here.
///
/// Every process may write at any time, so no reference to the bytes exists. Registered, shared
/// memory is a [`RemoteRegion`](crate::RemoteRegion), which copies in and out. The file cannot
/// shrink, so no access can fail for lack of pages.
///
/// # Examples
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// # fn send_to_the_other_process(fd: std::os::fd::BorrowedFd<'_>) {}
/// use std::os::fd::AsFd;
///
/// use verbs::{RemoteAccess, mr::SharedMemory};
/// let pd = ctx.alloc_pd()?;
/// let memory = SharedMemory::create(1 << 20)?;
/// send_to_the_other_process(memory.as_fd());
/// let region = pd.register(memory).remote(RemoteAccess::WRITE).create()?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [memfd_create(2)](https://man7.org/linux/man-pages/man2/memfd_create.2.html)
#[doc(alias = "memfd_create")]
pub struct SharedMemory {
    // INVARIANT: `len` bytes from `start` are a shared mapping, readable and writable, of a file
    // that cannot shrink, until `self` is dropped.
    start: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: `self` only has the address; every user must expect concurrent writes.
unsafe impl Send for SharedMemory {}
// SAFETY: see `Send`.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// `memfd_create`—Creates a file of `len` zero bytes in memory, and maps the file. Enters the
    /// kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: `len` is zero, or more than a file can have.
    /// - `ENOMEM`: less memory is free.
    /// - `EMFILE`, `ENFILE`: too many descriptors are open.
    pub fn create(len: usize) -> Result<Self> {
        const CALL: &str = "memfd_create";
        let size = libc::off_t::try_from(len).ok().filter(|&size| size > 0);
        let Some(size) = size else {
            let reason = "shared memory has at least one byte, and fits into a file";
            return Err(Error::refused(CALL, io::ErrorKind::InvalidInput, reason)
                .detail(format!("{len} bytes")));
        };
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a string, copied by C.
        let fd = unsafe { libc::memfd_create(c"verbs".as_ptr(), flags) };
        let fd = cvt_neg(CALL, fd)?;
        // SAFETY: fresh, with no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: takes numbers, of an open descriptor.
        let ret = unsafe { libc::ftruncate(fd.as_raw_fd(), size) };
        cvt_neg("ftruncate", ret).map_err(|err| err.detail(format!("{len} bytes")))?;
        Self::open(fd)
    }

    /// Maps the whole of a memory file created elsewhere. Enters the kernel.
    ///
    /// The file is sealed against shrinking (`F_SEAL_SHRINK`), unless already sealed.
    ///
    /// # Errors
    /// - `InvalidInput`: the file is empty.
    /// - `EINVAL`: the file is not from `memfd_create`, so sealing is impossible.
    /// - `EPERM`: the file was made without `MFD_ALLOW_SEALING`, or is not open for writing.
    /// - `ENOMEM`: not enough address space.
    pub fn open(fd: OwnedFd) -> Result<Self> {
        seal(fd.as_fd())?;
        // SAFETY: takes numbers, of an open descriptor, and returns one.
        let len = unsafe { libc::lseek(fd.as_raw_fd(), 0, libc::SEEK_END) };
        let len = usize::try_from(len).map_err(|_| Error::last_os("lseek"))?;
        if len == 0 {
            let reason = "the file is empty";
            return Err(Error::refused("mmap", io::ErrorKind::InvalidInput, reason));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let raw = fd.as_raw_fd();
        // SAFETY: without an address, the kernel picks unused addresses.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_SHARED, raw, 0) };
        match NonNull::new(start.cast()) {
            Some(start) if start.as_ptr() != libc::MAP_FAILED.cast() => Ok(Self { start, len, fd }),
            _ => Err(Error::last_os("mmap").detail(format!("{len} bytes"))),
        }
    }

    /// The number of bytes, never zero.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len
    }
}

/// Seals a memory file against shrinking.
fn seal(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: takes numbers, of an open descriptor, and returns one.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    let seals = cvt_neg("F_GET_SEALS", seals)
        .map_err(|err| err.detail("pass a descriptor from memfd_create"))?;
    if seals & libc::F_SEAL_SHRINK != 0 {
        return Ok(());
    }
    // SAFETY: as above.
    let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
    cvt_neg("F_ADD_SEALS", ret)
        .map_err(|err| err.detail("F_SEAL_SHRINK"))
        .map(drop)
}

impl AsFd for SharedMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory")
            .field("len", &self.len)
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and unmapped once, here; the address has no other owner,
        // since an owner would own `self`.
        let ret = unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert_eq!(ret, 0, "{}", io::Error::last_os_error());
    }
}

// SAFETY: the bytes are mapped until the value is dropped, and there are no references to them.
unsafe impl Memory for SharedMemory {
    fn range(&mut self) -> NonNull<[u8]> {
        NonNull::slice_from_raw_parts(self.start, self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn shared_memory_file_cannot_shrink() {
        let memory = SharedMemory::create(5000).unwrap();
        assert_eq!(memory.len(), 5000);
        let file = File::from(memory.as_fd().try_clone_to_owned().unwrap());
        assert_eq!(
            file.set_len(4999).unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
        file.set_len(6000).unwrap();
        assert_eq!(SharedMemory::open(file.into()).unwrap().len(), 6000);
    }

    #[test]
    fn shared_memory_of_unsealable_file_is_refused() {
        let file = File::open("/proc/self/exe").unwrap();
        let err = SharedMemory::open(file.into()).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EINVAL), "{err}");
        // SAFETY: the name is a string.
        let fd = unsafe { libc::memfd_create(c"unsealable".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: fresh, with no other owner.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(100).unwrap();
        let err = SharedMemory::open(file.into()).unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EPERM), "{err}");
        assert_eq!(
            SharedMemory::create(0).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
    }
}
