//! Registered memory without an address in this process.

use std::{any::Any, fmt, io, mem::ManuallyDrop, ops::Range, sync::Arc};

use ibverbs_sys::{self as ffi, ibv_access_flags as flag};

use super::{
    dmah::DmaHandle,
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

/// Registered memory without an address in the program: [device memory](DeviceMemory), a
/// [dma-buf](ProtectionDomain::register_dmabuf), or memory of [others](ProtectionDomain::register_foreign).
///
/// Requests read and write the memory, and so may peers, any number concurrently: no reference to
/// the bytes exists.
///
/// Cloning is cheap: the registration is reference-counted, like an `Arc`.
#[derive(Clone)]
pub struct UnmappedRegion {
    inner: Arc<UnmappedInner>,
    // INVARIANT: the device reaches `len` bytes from `addr` on by the registration.
    addr: u64,
    len: u64,
}

struct UnmappedInner {
    mr: Mr,
    /// Freed after the registration has ended. The kernel keeps a dma-buf by itself.
    _dm: Option<DmShare>,
    /// Dropped after the device has lost its access, or never.
    owner: ManuallyDrop<Box<dyn Any + Send + Sync>>,
    /// Freed after the registration has ended.
    _dmah: Option<DmaHandle>,
}

/// Values kept by a registration: device memory, hints, and the owner of the memory.
pub(super) type Kept = (
    Option<DmShare>,
    Option<DmaHandle>,
    Box<dyn Any + Send + Sync>,
);

/// The part of a dma-buf to register, and its addresses in requests; see
/// [`register_dmabuf`](ProtectionDomain::register_dmabuf).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DmaBufRange {
    /// Offset of the first byte in the dma-buf.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
    /// The address of the first byte in requests. The offset within a page must equal that of
    /// `offset`.
    pub iova: u64,
}

impl ProtectionDomain {
    /// `ibv_reg_dm_mr(pd, dm, …)`—Registers a part of device memory: for requests of this process,
    /// and for peers with the given access. Enters the kernel.
    ///
    /// Requests name the part by offsets from its first byte. The region keeps the device memory
    /// allocated.
    ///
    /// # Errors
    /// - `InvalidInput`: the range is empty, or not inside.
    /// - `EINVAL`: the memory is of another device, or the range lacks the device's alignment.
    /// - `EOPNOTSUPP`: the device does not support registering device memory.
    ///
    /// # Examples
    /// ```no_run
    /// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
    /// use verbs::RemoteAccess;
    /// let pd = ctx.alloc_pd()?;
    /// let mut dm = ctx.alloc_dm(4096, 0)?;
    /// let region = pd.register_dm(&dm, 0..4096, RemoteAccess::ATOMIC)?;
    /// let token = region.token(); // of a counter, for peers
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
        if start >= end || dm.len().is_some_and(|len| end > len) {
            let all = dm.len().unwrap_or(usize::MAX);
            let reason = format!("the range is empty, or not inside of {all} bytes");
            return Err(fail(Error::refused(
                CALL,
                io::ErrorKind::InvalidInput,
                reason,
            )));
        }
        let ctx = self.context();
        ctx.check_same(CALL, "the memory", dm.context())
            .map_err(fail)?;
        let (pd, len) = (self.as_raw(), end - start);
        let rights = rights(access) | flag::IBV_ACCESS_ZERO_BASED.0;
        // SAFETY: the domain and the memory are allocated for as long as `self` and `dm` live, and
        // the region keeps both.
        let raw = unsafe { ffi::ibv_reg_dm_mr(pd, dm.as_raw(), start as u64, len, rights) };
        // SAFETY: `raw` is the call's result.
        let mr = unsafe { Mr::new(CALL, raw, self) }.map_err(fail)?;
        let dm = Some(dm.share());
        Ok(UnmappedRegion::new(mr, (dm, None, Box::new(())), 0, len))
    }
}

/// The access of peers, and local writes for requests of this process.
fn rights(access: RemoteAccess) -> u32 {
    access.rights() | flag::IBV_ACCESS_LOCAL_WRITE.0
}

impl UnmappedRegion {
    /// A registration of `len` bytes from `addr` on, with the values that it keeps.
    pub(super) fn new(mr: Mr, (dm, dmah, owner): Kept, addr: u64, len: usize) -> Self {
        let inner = UnmappedInner {
            mr,
            _dm: dm,
            owner: ManuallyDrop::new(owner),
            _dmah: dmah,
        };
        Self {
            inner: Arc::new(inner),
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

    /// The protection domain of the registration.
    pub fn pd(&self) -> &ProtectionDomain {
        self.inner.mr.pd()
    }

    /// The token with which a peer can access the memory.
    pub fn token(&self) -> RemoteToken {
        RemoteToken {
            addr: self.addr,
            len: self.len,
            rkey: self.inner.mr.rkey(),
        }
    }

    /// A part of the memory, as a handle of its own, with the RKey of the whole: peers can access
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

impl Drop for UnmappedInner {
    fn drop(&mut self) {
        // SAFETY: once, here. If it fails, the device keeps its access to memory: the kernel keeps a dma-buf, and the owner of
        // other memory is never dropped.
        if unsafe { self.mr.dereg() } {
            // SAFETY: once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}

// SAFETY: the elements are inside the registration, kept by `self`. This process has no reference
// to the bytes.
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
