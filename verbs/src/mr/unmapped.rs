//! Registered memory that is nowhere in this process.

use std::{
    fmt, io,
    ops::Range,
    os::fd::{AsRawFd, BorrowedFd},
    sync::Arc,
};

use ibverbs_sys::{self as ffi, ibv_access_flags as flag};

use super::{
    region::{Mr, push_elements},
    remote::RemoteToken,
};
use crate::{
    access::RemoteAccess,
    dm::{DeviceMemory, DmShare},
    error::{Error, Result},
    pd::ProtectionDomain,
    work::{Gather, Scatter, SgeList},
};

/// Registered memory that the program has no address of: [device memory](DeviceMemory), or a
/// dma-buf.
///
/// Requests read and write it, and so may peers. Many can at once: nobody has a reference to its
/// bytes.
///
/// It is a handle to a shared registration, like an `Arc`.
#[derive(Clone)]
pub struct UnmappedRegion {
    inner: Arc<Inner>,
    // INVARIANT: the device reaches `len` bytes from `addr` on by the registration.
    addr: u64,
    len: u64,
}

struct Inner {
    mr: Mr,
    /// Freed after the registration has ended. The kernel keeps a dma-buf by itself.
    _dm: Option<DmShare>,
}

/// Which part of a dma-buf is registered, and under which addresses; see
/// [`register_dmabuf`](ProtectionDomain::register_dmabuf).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaBufRange {
    /// The first byte's place in the dma-buf.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
    /// What requests call the first byte. It must have the same place in a page as `offset`.
    pub iova: u64,
}

impl ProtectionDomain {
    /// `ibv_reg_dm_mr(pd, dm, …)`—Registers a part of device memory: for requests of this process,
    /// and for what peers may do. Enters the kernel.
    ///
    /// Requests name it by offsets from its first byte. It keeps the device memory allocated.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty, or not inside.
    /// - `EINVAL`: the memory is of another device, or the range is not aligned as it wants.
    /// - `EOPNOTSUPP`: the device cannot do it.
    ///
    /// # Examples
    /// ```no_run
    /// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
    /// use verbs::RemoteAccess;
    /// let pd = ctx.alloc_pd()?;
    /// let mut dm = ctx.alloc_dm(4096, 0)?;
    /// let region = pd.register_dm(&dm, 0..4096, RemoteAccess::ATOMIC)?;
    /// let token = region.token(); // for peers, who find a counter there
    /// dm.write(0, &[0; 8])?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_reg_dm_mr(3)](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn register_dm(
        &self,
        dm: &DeviceMemory,
        range: Range<usize>,
        access: RemoteAccess,
    ) -> Result<UnmappedRegion> {
        const CALL: &str = "ibv_reg_dm_mr";
        let fail = |err: Error| err.detail(format!("{range:?}, {access:?}"));
        let Range { start, end } = range;
        let inside = start < end && dm.len().is_none_or(|len| end <= len);
        if !inside || dm.context() != self.context() {
            let reason = if inside {
                "the memory is of another device".into()
            } else {
                let all = dm.len().unwrap_or(usize::MAX);
                format!("the range is empty, or not inside of {all} bytes")
            };
            return Err(fail(Error::refused(
                CALL,
                io::ErrorKind::InvalidInput,
                reason,
            )));
        }
        let (pd, len) = (self.as_raw(), end - start);
        let rights = rights(access) | flag::IBV_ACCESS_ZERO_BASED.0;
        // SAFETY: the domain and the memory are allocated for as long as `self` and `dm` live, and
        // the region keeps both.
        let raw = unsafe { ffi::ibv_reg_dm_mr(pd, dm.as_raw(), start as u64, len, rights) };
        // SAFETY: what the call has returned.
        let mr = unsafe { Mr::new(CALL, raw, self) }.map_err(fail)?;
        let dm = Some(dm.share());
        Ok(UnmappedRegion::new(mr, dm, 0, len))
    }

    /// `ibv_reg_dmabuf_mr(pd, …, fd, …)`—Registers a part of a dma-buf, memory of another device for
    /// example: for requests of this process, and for what peers may do. Enters the kernel.
    ///
    /// The region keeps the dma-buf, so the descriptor can be closed. What requests write there is
    /// seen by whoever else uses the dma-buf, as what is written to a file is.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty, ends after the last address, or `offset` and `iova`
    ///   have different places in a page of 4096 bytes.
    /// - `EBADF`, `EINVAL`: the descriptor is not one of a dma-buf, or the range is not inside.
    /// - `EOPNOTSUPP`: the device cannot do it.
    ///
    /// # References
    /// [ibv_reg_dmabuf_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf(
        &self,
        fd: BorrowedFd<'_>,
        range: DmaBufRange,
        access: RemoteAccess,
    ) -> Result<UnmappedRegion> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        const PAGE: u64 = 4096;
        let fail = |err: Error| err.detail(format!("{range:?}, {access:?}"));
        let DmaBufRange { offset, len, iova } = range;
        let ends = |start: u64| start.checked_add(len as u64).is_some();
        let reason = if len == 0 {
            "a region has at least one byte"
        } else if !ends(offset) || !ends(iova) {
            "it would end after the last address"
        } else if offset % PAGE != iova % PAGE {
            "offset and iova have different places in a page"
        } else {
            let (pd, fd, rights) = (self.as_raw(), fd.as_raw_fd(), rights(access) as i32);
            // SAFETY: the domain is allocated for as long as `self` lives, and the descriptor is
            // open; the kernel checks that it is one of a dma-buf, and keeps that.
            let raw = unsafe { ffi::ibv_reg_dmabuf_mr(pd, offset, len, iova, fd, rights) };
            // SAFETY: what the call has returned.
            let mr = unsafe { Mr::new(CALL, raw, self) }.map_err(fail)?;
            return Ok(UnmappedRegion::new(mr, None, iova, len));
        };
        Err(fail(Error::refused(
            CALL,
            io::ErrorKind::InvalidInput,
            reason,
        )))
    }
}

/// What peers may do, and what requests of this process always may.
fn rights(access: RemoteAccess) -> u32 {
    access.bits() | flag::IBV_ACCESS_LOCAL_WRITE.0
}

impl UnmappedRegion {
    fn new(mr: Mr, dm: Option<DmShare>, addr: u64, len: usize) -> Self {
        Self {
            inner: Arc::new(Inner { mr, _dm: dm }),
            addr,
            len: len as u64,
        }
    }

    /// The number of bytes.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a region may be empty only by slicing"
    )]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The domain it is registered in.
    pub fn pd(&self) -> &ProtectionDomain {
        self.inner.mr.pd()
    }

    /// What a peer must know to reach the memory.
    pub fn token(&self) -> RemoteToken {
        RemoteToken {
            addr: self.addr,
            len: self.len,
            rkey: self.inner.mr.rkey(),
        }
    }

    /// A part of the memory, as a handle of its own. The RKey is that of the whole: peers can reach
    /// the rest, too.
    ///
    /// # Panics
    /// Panics when the range is not inside.
    #[must_use]
    pub fn slice(&self, range: Range<u64>) -> Self {
        let Range { start, end } = range;
        assert!(
            start <= end && end <= self.len,
            "{start}..{end} is not inside of {} bytes",
            self.len
        );
        Self {
            inner: Arc::clone(&self.inner),
            addr: self.addr + start,
            len: end - start,
        }
    }
}

impl fmt::Debug for UnmappedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnmappedRegion")
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: once, here. If it fails, the device keeps its access to memory that the kernel
        // keeps as well.
        let _: bool = unsafe { self.mr.dereg() };
    }
}

// SAFETY: the elements are inside the registration, which `self` keeps. This process has no
// reference to the bytes.
unsafe impl Gather for UnmappedRegion {
    #[inline]
    fn gather(&self, list: &mut SgeList) {
        let mr = &self.inner.mr;
        let device = Some(mr.pd().context().id());
        // SAFETY: the range is registered with this key, under this address (invariant).
        unsafe { push_elements(list, self.addr, self.len, mr.lkey(), device) };
    }
}

// SAFETY: see `Gather`; registered for local writing.
unsafe impl Scatter for UnmappedRegion {}
