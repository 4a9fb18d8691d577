//! Builder of registrations without an address in the program.

use std::{
    any::Any,
    fmt, io, mem,
    os::fd::{AsRawFd, BorrowedFd},
};

use ibverbs_sys::{self as ffi, ibv_access_flags as flag};

use super::{
    dmah::DmaHandle,
    granule::page_size,
    region::{Mr, Terms},
    unmapped::{DmaBufRange, UnmappedRegion},
};
use crate::{
    access::RemoteAccess,
    error::{Error, Result, found},
    pd::ProtectionDomain,
    quirk,
};

impl ProtectionDomain {
    /// Registers a part of a dma-buf, for example memory of another device, with the options of all
    /// registrations.
    ///
    /// The region keeps the dma-buf, so the descriptor can be closed. Every other user of the
    /// dma-buf sees the requests' writes, as with a file.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use std::os::fd::AsFd;
    ///
    /// use verbs::{RemoteAccess, mr::{DmaBufRange, SharedMemory}};
    /// let pd = ctx.alloc_pd()?;
    /// // softnic takes memory files, too.
    /// let gpu = SharedMemory::create(8192)?;
    /// let range = DmaBufRange { offset: 4096, len: 4096, iova: 0x1000 };
    /// let registration = pd.register_dmabuf(gpu.as_fd(), range);
    /// let region = registration.remote(RemoteAccess::WRITE).relaxed_ordering().create()?;
    /// assert_eq!(region.token().addr, 0x1000);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn register_dmabuf<'a>(
        &'a self,
        fd: BorrowedFd<'a>,
        range: DmaBufRange,
    ) -> UnmappedRegistration<'a> {
        self.register_unmapped(Source::DmaBuf(fd, range))
    }

    /// Registers memory of others, without access by this crate: for example of a GPU, at an address by which the kernel's
    /// peer memory clients know it, or tensors of a framework.
    ///
    /// No method reads or writes the bytes, so other code may, under rules of its own: a device accesses the memory for
    /// requests and peers as it would a file. `owner` is dropped after the device has lost its access, or never.
    ///
    /// # Safety
    /// Until `owner` is dropped, or for the life of the process if `ibv_dereg_mr` fails:
    /// - the `len` bytes from `start` on are memory that the device may read and write, and that keeps its address;
    /// - no Rust code has a reference to the bytes, or accesses them without atomics, while a peer may write them or a request
    ///   of this process with the region is in flight.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use std::sync::Arc;
    /// use verbs::RemoteAccess;
    ///
    /// /// Memory of a framework, freed by the drop.
    /// struct Tensor(*mut u8, usize);
    /// // SAFETY: an address.
    /// unsafe impl Send for Tensor {}
    /// // SAFETY: an address.
    /// unsafe impl Sync for Tensor {}
    ///
    /// let pd = ctx.alloc_pd()?;
    /// # let mut bytes = vec![0; 4096];
    /// let tensor = Arc::new(Tensor(bytes.as_mut_ptr(), 4096));
    /// // SAFETY: the framework leaves the tensor alone until its last owner is dropped.
    /// let registration = unsafe { pd.register_foreign(tensor.0, tensor.1, Arc::clone(&tensor)) };
    /// let region = registration.remote(RemoteAccess::READ).create()?;
    /// # drop(region);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_foreign(
        &self,
        start: *mut u8,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> UnmappedRegistration<'_> {
        self.register_unmapped(Source::Foreign {
            start,
            len,
            owner: Box::new(owner),
        })
    }

    fn register_unmapped<'a>(&'a self, source: Source<'a>) -> UnmappedRegistration<'a> {
        let mut terms = Terms::default();
        terms.allow(flag::IBV_ACCESS_LOCAL_WRITE);
        UnmappedRegistration {
            pd: self,
            source,
            terms,
        }
    }
}

/// Memory to register.
enum Source<'a> {
    DmaBuf(BorrowedFd<'a>, DmaBufRange),
    // INVARIANT: as `register_foreign` demands.
    Foreign {
        start: *mut u8,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    },
}

/// The options of a registration without an address in the program; see [`ProtectionDomain::register_dmabuf`] and
/// [`ProtectionDomain::register_foreign`].
///
/// By default the device may read and write the memory for requests of this process, and peers have no access.
#[must_use = "nothing is registered until `create` is called"]
pub struct UnmappedRegistration<'a> {
    pd: &'a ProtectionDomain,
    source: Source<'a>,
    terms: Terms,
}

impl UnmappedRegistration<'_> {
    /// `IBV_ACCESS_RELAXED_ORDERING`—Lets the device's writes become visible in any order until their request has
    /// completed; see [`Registration::relaxed_ordering`](crate::mr::Registration::relaxed_ordering). Memory of a GPU
    /// often needs this for the full rate.
    #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
    pub fn relaxed_ordering(mut self) -> Self {
        self.terms.allow(flag::IBV_ACCESS_RELAXED_ORDERING);
        self
    }

    /// Lets peers access the memory. Rights without a name in [`RemoteAccess`] are refused with `EINVAL`.
    pub fn remote(mut self, access: RemoteAccess) -> Self {
        self.terms.access |= access.rights();
        self.terms.unknown_rights |= access.bits() & !access.rights();
        self
    }

    /// `ibv_reg_mr_ex`—Attaches hints to each access. The handle must be of the same device.
    ///
    /// Registering fails with `EOPNOTSUPP` if the library is older than rdma-core 59.
    #[doc(alias = "ibv_reg_mr_ex")]
    pub fn dma_handle(mut self, handle: &DmaHandle) -> Self {
        self.terms.dmah = Some(handle.clone());
        self
    }

    /// `ibv_reg_dmabuf_mr`, `ibv_reg_mr`—Registers the memory. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the memory has no bytes, ends after the last address, or `offset` and `iova`
    ///   have different offsets in a page; or the DMA handle is of another device.
    /// - `EBADF`, `EINVAL`: the descriptor is not one of a dma-buf, the range is not inside, or the device does not support
    ///   a chosen option.
    /// - `Unsupported`: on Soft-iWARP, memory of others with rights of peers.
    /// - `EFAULT`: the kernel knows no memory at the address.
    /// - `EOPNOTSUPP`: the device or kernel does not support dma-bufs, or the library no hints.
    ///
    /// # References
    /// [ibv_reg_dmabuf_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html),
    /// [ibv_reg_mr_ex(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_reg_mr.3)
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    #[doc(alias = "ibv_reg_mr")]
    pub fn create(self) -> Result<UnmappedRegion> {
        let call = self.call();
        let detail = match &self.source {
            Source::DmaBuf(_, range) => format!("{range:?}, {}", self.terms.describe(range.len)),
            Source::Foreign { start, len, .. } => {
                format!("{start:?}, {}", self.terms.describe(*len))
            }
        };
        let fail = |err: Error| err.detail(detail.clone());
        self.check(call).map_err(fail)?;
        // SAFETY: a new registration of this domain, or null with `errno` set.
        let mr =
            unsafe { Mr::new(call, self.register(call).map_err(fail)?, self.pd) }.map_err(fail)?;
        let Self { source, terms, .. } = self;
        let (addr, len, owner): (u64, usize, Box<dyn Any + Send + Sync>) = match source {
            Source::DmaBuf(_, DmaBufRange { len, iova, .. }) => (iova, len, Box::new(())),
            Source::Foreign { start, len, owner } => (start.expose_provenance() as u64, len, owner),
        };
        Ok(UnmappedRegion::new(
            mr,
            (None, terms.dmah, owner),
            addr,
            len,
        ))
    }

    /// The C function of the registration.
    fn call(&self) -> &'static str {
        match (&self.terms.dmah, &self.source) {
            (Some(_), _) => "ibv_reg_mr_ex",
            (None, Source::DmaBuf(..)) => "ibv_reg_dmabuf_mr",
            (None, Source::Foreign { .. }) => "ibv_reg_mr",
        }
    }

    fn check(&self, call: &'static str) -> Result<()> {
        let ctx = self.pd.context();
        ctx.check_process(call)?;
        if let Some(dmah) = &self.terms.dmah {
            ctx.check_same(call, "the DMA handle", dmah.context())?;
        }
        let is_foreign = matches!(self.source, Source::Foreign { .. });
        if is_foreign && self.is_for_peers() && quirk::access_outlives_registration(ctx)? {
            let reason = "Soft-iWARP may access memory for a peer after the end of its registration, and the drop of the owner";
            return Err(Error::refused(call, io::ErrorKind::Unsupported, reason));
        }
        let unknown = self.terms.unknown_rights;
        if unknown != 0 {
            let error = Error::from_errno(call, libc::EINVAL);
            return Err(error.detail(format!("unknown rights {unknown:#x} of peers")));
        }
        let page = page_size() as u64;
        let (len, offset, iova) = match &self.source {
            Source::DmaBuf(_, DmaBufRange { offset, len, iova }) => (*len, *offset, *iova),
            Source::Foreign { start, len, .. } => (*len, start.addr() as u64, start.addr() as u64),
        };
        let ends = |start: u64| start.checked_add(len as u64).is_some();
        let reason = if len == 0 {
            "a region has at least one byte"
        } else if !ends(offset) || !ends(iova) {
            "it would end after the last address"
        } else if offset % page != iova % page {
            "offset and iova have different places in a page"
        } else {
            return Ok(());
        };
        Err(Error::refused(call, io::ErrorKind::InvalidInput, reason))
    }

    fn is_for_peers(&self) -> bool {
        let rights = flag::IBV_ACCESS_REMOTE_READ
            | flag::IBV_ACCESS_REMOTE_WRITE
            | flag::IBV_ACCESS_REMOTE_ATOMIC;
        self.terms.access & rights.0 != 0
    }

    /// Calls C, and returns the result.
    fn register(&self, call: &'static str) -> Result<*mut ffi::ibv_mr> {
        let (pd, rights) = (self.pd.as_raw(), self.terms.access);
        let hints = self.terms.dmah.as_ref().map(DmaHandle::as_raw);
        match (&self.source, hints) {
            (Source::DmaBuf(fd, DmaBufRange { offset, len, iova }), None) => {
                let (fd, rights) = (fd.as_raw_fd(), rights as i32);
                // SAFETY: the domain is allocated for as long as `self.pd` lives, and the descriptor is
                // open; the kernel checks for a dma-buf, and keeps a reference.
                Ok(unsafe { ffi::ibv_reg_dmabuf_mr(pd, *offset, *len, *iova, fd, rights) })
            }
            (Source::Foreign { start, len, .. }, None) => {
                let iova = start.expose_provenance() as u64;
                let rights = rights | quirk::rights_of_shared_memory(self.pd.context());
                // SAFETY: the domain as above; the caller of `register_foreign` vouches for the range, which the owner keeps
                // until the registration has ended. C does not touch the bytes.
                Ok(unsafe { ffi::ibv_reg_mr_iova(pd, start.cast(), *len, iova, rights) })
            }
            (source, Some(hints)) => {
                let reg_mr_ex = found(call, ffi::late::ibv_reg_mr_ex())?;
                let mut attr = attributes(source);
                attr.comp_mask |= u64::from(ffi::ibv_mr_init_attr_mask::IBV_REG_MR_MASK_DMAH.0);
                attr.access = rights as i32;
                attr.dmah = hints;
                // SAFETY: as for the calls above; the region keeps the handle. Assumption: C keeps no
                // pointer to the attributes.
                Ok(unsafe { reg_mr_ex(pd, &raw mut attr) })
            }
        }
    }
}

/// The attributes that name the memory.
fn attributes(source: &Source<'_>) -> ffi::ibv_mr_init_attr {
    use ffi::ibv_mr_init_attr_mask as has;
    // SAFETY: integers and pointers; zero is a value of each.
    let mut attr: ffi::ibv_mr_init_attr = unsafe { mem::zeroed() };
    let mask = match source {
        Source::DmaBuf(fd, range) => {
            attr.length = range.len;
            attr.iova = range.iova;
            attr.fd = fd.as_raw_fd();
            attr.fd_offset = range.offset;
            has::IBV_REG_MR_MASK_FD.0 | has::IBV_REG_MR_MASK_FD_OFFSET.0
        }
        Source::Foreign { start, len, .. } => {
            attr.length = *len;
            attr.iova = start.expose_provenance() as u64;
            attr.addr = start.cast();
            has::IBV_REG_MR_MASK_ADDR.0
        }
    };
    attr.comp_mask = u64::from(mask | has::IBV_REG_MR_MASK_IOVA.0);
    attr
}

impl fmt::Debug for UnmappedRegistration<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnmappedRegistration")
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
