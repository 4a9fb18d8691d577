//! Builder of registrations.

use std::{fmt, io};

use ibverbs_sys::ibv_access_flags as flag;

use super::{
    buf::Buf,
    dmah::DmaHandle,
    granule::Granule,
    memory::{Memory, OwnedMemory},
    region::{Region, Terms},
    remote::RemoteRegion,
};
use crate::{
    access::RemoteAccess,
    error::{self, Error, Refused},
    pd::ProtectionDomain,
    quirk,
};

impl ProtectionDomain {
    /// Registers memory of the program, with options.
    ///
    /// Accepts vectors and boxed slices of bytes, a [`Mapping`](crate::mr::Mapping) (also of huge
    /// pages), [`SharedMemory`](crate::mr::SharedMemory), and any other [`Memory`]. Shortcuts:
    /// [`alloc_buf`](Self::alloc_buf), [`register_buf`](Self::register_buf) and
    /// [`alloc_remote`](Self::alloc_remote).
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// use verbs::{RemoteAccess, mr::Mapping};
    /// let pd = ctx.alloc_pd()?;
    /// let buf = pd.register(vec![0; 4096]).relaxed_ordering().create_buf()?;
    /// let memory = Mapping::new(1 << 20)?;
    /// let region = pd.register(memory).remote(RemoteAccess::READ).zero_based().create()?;
    /// assert_eq!(region.token().addr, 0);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    #[doc(alias = "ibv_reg_mr")]
    pub fn register<M: Memory>(&self, memory: M) -> Registration<'_, M> {
        Registration {
            pd: self,
            memory,
            terms: Terms::default(),
        }
    }
}

/// The options of a registration; see [`ProtectionDomain::register`].
///
/// By default all of the memory is pinned, the device may read and write it for requests of this
/// process, and peers have no access.
#[must_use = "nothing is registered until `create_buf` or `create_pool` is called"]
pub struct Registration<'pd, M> {
    pd: &'pd ProtectionDomain,
    memory: M,
    terms: Terms,
}

impl<'pd, M: Memory> Registration<'pd, M> {
    /// `IBV_ACCESS_RELAXED_ORDERING`—Lets the device's writes become visible in any order until
    /// their request has completed, for more throughput on some machines.
    ///
    /// Ignored by a device or kernel without support. Polling memory for data from a peer is not
    /// possible then: the last byte may become visible before the first.
    #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
    pub fn relaxed_ordering(mut self) -> Self {
        self.terms.allow(flag::IBV_ACCESS_RELAXED_ORDERING);
        self
    }

    /// `IBV_ACCESS_ON_DEMAND`—Pins nothing: the device fetches pages on demand (page faults).
    ///
    /// [`DeviceAttr`](crate::attr::DeviceAttr) lists the operations with support for such memory;
    /// others fail. [`advise`](ProtectionDomain::advise) prefetches pages.
    ///
    /// Soft-RoCE accesses the start of a page at any offset of a request. There the memory must be whole pages, such as
    /// a [`Mapping`](crate::mr::Mapping) of a multiple of the page size, and buffers divide it by whole pages; other memory is
    /// refused with `Unsupported`, as are huge pages, windows and other addresses.
    #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
    pub fn on_demand(mut self) -> Self {
        self.terms.allow(flag::IBV_ACCESS_ON_DEMAND);
        self
    }

    /// `IBV_ACCESS_HUGETLB`—States that all of the memory is in huge pages, as from
    /// [`Mapping::huge`](crate::mr::Mapping::huge). For memory paged [on demand](Self::on_demand).
    #[doc(alias = "IBV_ACCESS_HUGETLB")]
    pub fn huge_pages(mut self) -> Self {
        self.terms.allow(flag::IBV_ACCESS_HUGETLB);
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

    /// Lets peers access the memory. The program then has no reference to the bytes. Rights without a
    /// name in [`RemoteAccess`] are refused with `EINVAL`.
    pub fn remote(mut self, access: RemoteAccess) -> RemoteRegistration<'pd, M> {
        self.terms.access |= access.rights();
        self.terms.unknown_rights |= access.bits() & !access.rights();
        RemoteRegistration { inner: self }
    }

    /// The number of bytes.
    pub(super) fn len(&mut self) -> usize {
        self.memory.range().len()
    }

    /// Gives the memory back.
    pub(super) fn refuse(mut self, error: Error) -> Refused<M> {
        let len = self.len();
        let detail = self.terms.describe(len);
        Refused {
            value: self.memory,
            error: error.detail(detail),
        }
    }

    /// Multiples at which buffers of the registration can begin and end.
    pub(super) fn granule(&self) -> error::Result<Granule> {
        Granule::of(self.pd, &self.terms)
    }

    pub(super) fn region(self) -> Result<Region, Refused<M>> {
        let unknown = self.terms.unknown_rights;
        if unknown != 0 {
            let error = Error::from_errno("ibv_reg_mr", libc::EINVAL);
            let error = error.detail(format!("unknown rights {unknown:#x} of peers"));
            return Err(self.refuse(error));
        }
        let (ctx, dmah) = (self.pd.context(), self.terms.dmah.as_ref());
        let same = dmah.map_or(Ok(()), |dmah| {
            ctx.check_same("ibv_reg_mr_ex", "the DMA handle", dmah.context())
        });
        if let Err(error) = same {
            return Err(self.refuse(error));
        }
        Region::register(self.pd, self.memory, self.terms)
    }
}

impl<M: OwnedMemory> Registration<'_, M> {
    /// `ibv_reg_mr`—Registers the memory as one buffer of this process. Enters the kernel.
    ///
    /// # Errors
    /// The error returns the memory:
    /// - `InvalidInput`: the memory has no bytes, or at least 2 GiB, more than an element of a
    ///   request can have.
    /// - `ENOMEM`: the limit on locked memory (`ulimit -l`) is exceeded, or memory is exhausted.
    /// - `EINVAL`, `EOPNOTSUPP`: the device does not support a chosen option.
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn create_buf(mut self) -> Result<Buf, Refused<M>> {
        if let Err(error) = Buf::check(self.len()) {
            return Err(self.refuse(error));
        }
        Ok(Buf::of_region(self.region()?))
    }
}

impl<M> fmt::Debug for Registration<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}

/// The options of a registration for peers; see [`Registration::remote`].
#[must_use = "nothing is registered until `create` is called"]
#[derive(Debug)]
pub struct RemoteRegistration<'pd, M> {
    inner: Registration<'pd, M>,
}

impl<'pd, M: Memory> RemoteRegistration<'pd, M> {
    /// A registration with these options.
    pub(super) fn of_options(pd: &'pd ProtectionDomain, memory: M, terms: Terms) -> Self {
        let inner = Registration { pd, memory, terms };
        Self { inner }
    }

    /// The domain, the memory and the options.
    pub(super) fn into_options(self) -> (&'pd ProtectionDomain, M, Terms) {
        let Registration { pd, memory, terms } = self.inner;
        (pd, memory, terms)
    }

    /// `IBV_ACCESS_MW_BIND`—Allows binding [memory windows](crate::MemoryWindow) to the region.
    #[doc(alias = "IBV_ACCESS_MW_BIND")]
    pub fn windows(mut self) -> Self {
        self.inner.terms.allow(flag::IBV_ACCESS_MW_BIND);
        self
    }

    /// `ibv_reg_mr_iova`—Sets the address of the first byte in requests, independent of the virtual
    /// address.
    ///
    /// The offset within a page must equal the virtual address's.
    #[doc(alias = "ibv_reg_mr_iova2")]
    #[doc(alias = "ibv_reg_mr_iova")]
    #[doc(alias = "hca_va")]
    pub fn iova(mut self, iova: u64) -> Self {
        self.inner.terms.iova = Some(iova);
        self.inner.terms.access &= !flag::IBV_ACCESS_ZERO_BASED.0;
        self
    }

    /// `IBV_ACCESS_ZERO_BASED`—Lets requests name the memory by offsets from its first byte. The
    /// memory must begin on a page boundary, as a [`Mapping`](crate::mr::Mapping) does.
    #[doc(alias = "IBV_ACCESS_ZERO_BASED")]
    pub fn zero_based(mut self) -> Self {
        self.inner.terms.iova = Some(0);
        self.inner.terms.allow(flag::IBV_ACCESS_ZERO_BASED);
        self
    }

    /// `ibv_reg_mr`—Registers the memory. Enters the kernel.
    ///
    /// # Errors
    /// The error returns the memory:
    /// - `InvalidInput`: the memory has no bytes, or the addresses from [`iova`](Self::iova) on do
    ///   not suffice.
    /// - `ENOMEM`: the limit on locked memory (`ulimit -l`) is exceeded, or memory is exhausted.
    /// - `EINVAL`, `EOPNOTSUPP`: the device does not support a chosen option, or the `iova` has
    ///   another offset within a page.
    /// - `Unsupported`: on Soft-iWARP, memory with rights of peers that the drop does not give back to the
    ///   kernel ([`Memory::frees_pages`]): use a [`Mapping`](crate::mr::Mapping).
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    pub fn create(mut self) -> Result<RemoteRegion, Refused<M>> {
        let len = self.inner.len();
        let iova = self.inner.terms.iova.unwrap_or(0);
        let reason = if len == 0 {
            "a region has at least one byte"
        } else if iova.checked_add(len as u64).is_none() {
            "it would end after the last address"
        } else {
            if let Err(error) = self.check_pages() {
                return Err(self.inner.refuse(error));
            }
            self.inner.terms.access |= quirk::rights_of_shared_memory(self.inner.pd.context());
            return Ok(RemoteRegion::of_region(self.inner.region()?));
        };
        let error = Error::refused("ibv_reg_mr", io::ErrorKind::InvalidInput, reason);
        Err(self.inner.refuse(error))
    }

    /// Refuses memory that the process may use again while the device accesses it for a peer.
    fn check_pages(&self) -> error::Result<()> {
        let rights = flag::IBV_ACCESS_REMOTE_READ
            | flag::IBV_ACCESS_REMOTE_WRITE
            | flag::IBV_ACCESS_REMOTE_ATOMIC;
        let is_for_peers = self.inner.terms.access & rights.0 != 0;
        if !is_for_peers
            || self.inner.memory.frees_pages()
            || !quirk::access_outlives_registration(self.inner.pd.context())?
        {
            return Ok(());
        }
        let reason = "Soft-iWARP may access memory for a peer after the end of its registration; register pages \
                      that are given back to the kernel, such as a `Mapping`";
        Err(Error::refused(
            "ibv_reg_mr",
            io::ErrorKind::Unsupported,
            reason,
        ))
    }
}
