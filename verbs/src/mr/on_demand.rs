//! Paging on demand: all memory under one registration, and prefetching pages.

use std::{fmt, io, ptr, sync::Arc};

use ibverbs_sys::{self as ffi, ibv_access_flags as flag};

use super::{
    buf::Buf,
    memory::OwnedMemory,
    region::{Mr, Region},
    remote::RemoteRegion,
};
use crate::{
    error::{Error, Refused, Result, cvt_errno},
    named::named,
    pd::ProtectionDomain,
    quirk,
    work::{Gather, MAX_SGE, SgeList},
};

/// All of the process's memory, registered once: implicit paging on demand.
///
/// Buffers of this registration need no registration of their own, no call into the kernel, and no
/// pinned memory. Peers have no access.
///
/// Cloning is cheap: the registration is reference-counted, like an `Arc`.
///
/// # Examples
/// ```no_run
/// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
/// let pd = ctx.alloc_pd()?;
/// let everything = pd.register_everything()?;
/// let buf = everything.buf(b"no registration of its own".to_vec())?;
/// # Ok::<(), verbs::Error>(())
/// ```
#[derive(Clone)]
pub struct Everything {
    mr: Arc<Implicit>,
}

/// The registration.
pub(super) struct Implicit(Mr);

named! {
    /// `ibv_advise_mr_advice`—Advice for the pages of memory registered [on
    /// demand](crate::mr::Registration::on_demand).
    #[doc(alias = "ibv_advise_mr_advice")]
    Advice(u32) {
        /// Fetch the pages, for reads by the device.
        PREFETCH = ffi::ibv_advise_mr_advice::IBV_ADVISE_MR_ADVICE_PREFETCH.0;
        /// Fetch the pages, for writes by the device.
        PREFETCH_WRITE = ffi::ibv_advise_mr_advice::IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE.0;
        /// Give the device the translations of resident pages only.
        PREFETCH_NO_FAULT = ffi::ibv_advise_mr_advice::IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT.0;
    }
}

impl ProtectionDomain {
    /// `ibv_reg_mr`—Registers all memory of this process, now and later, for requests of this
    /// process. Enters the kernel.
    ///
    /// # Errors
    /// - `EINVAL`, `EOPNOTSUPP`: the device does not support it; see
    ///   [`OdpCaps`](crate::attr::OdpCaps).
    /// - `Unsupported`: Soft-RoCE, which accesses the start of a page at any offset.
    ///
    /// # References
    /// [ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)
    #[doc(alias = "ibv_reg_mr")]
    #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
    pub fn register_everything(&self) -> Result<Everything> {
        const CALL: &str = "ibv_reg_mr";
        self.context().check_process(CALL)?;
        let access = flag::IBV_ACCESS_LOCAL_WRITE.0 | flag::IBV_ACCESS_ON_DEMAND.0;
        if quirk::paging_ignores_offsets(self.context())? {
            let reason = "Soft-RoCE accesses the start of a page paged on demand at any offset; register \
                          whole pages by `register`";
            return Err(Error::refused(CALL, io::ErrorKind::Unsupported, reason));
        }
        let (pd, all) = (self.as_raw(), usize::MAX);
        // SAFETY: the domain is allocated for as long as `self` lives. C's notation for all
        // addresses, not a range of valid memory. Only a buffer of `Everything`, the owner of its
        // bytes, can use the key: peers get no access.
        let raw = unsafe { ffi::ibv_reg_mr(pd, ptr::null_mut(), all, access) };
        // SAFETY: `raw` is the call's result.
        let mr = unsafe { Mr::new(CALL, raw, self) };
        let mr = mr.map_err(|err| err.detail("all memory, on demand"))?;
        let mr = Arc::new(Implicit(mr));
        Ok(Everything { mr })
    }

    /// `ibv_advise_mr(pd, advice, …)`—Prepares the memory of work before posting. The memory must
    /// be registered [on demand](crate::mr::Registration::on_demand). Enters the kernel.
    ///
    /// With `wait`, the device has the pages on return; otherwise, soon after. The kernel can evict
    /// pages at any time; a later access fetches evicted pages again.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `ENOSYS`, and `ENOTSUP` for this advice: not supported by the device.
    /// - `EPERM`, `EFAULT`, `EINVAL`, `ENOENT`: the memory is not registered on demand, or in
    ///   another domain.
    /// - `InvalidInput`: the work has more than [`MAX_SGE`] elements.
    /// - `ENOMEM`: less memory is free.
    ///
    /// # Examples
    /// ```no_run
    /// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
    /// use verbs::mr::Advice;
    /// let pd = ctx.alloc_pd()?;
    /// let buf = pd.register(vec![0; 1 << 20]).on_demand().create_buf()?;
    /// pd.advise(&buf, Advice::PREFETCH_WRITE, true)?;
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_advise_mr(3)](https://man7.org/linux/man-pages/man3/ibv_advise_mr.3.html)
    #[doc(alias = "IBV_ADVISE_MR_FLAG_FLUSH")]
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, work: &impl Gather, advice: Advice, wait: bool) -> Result<()> {
        const CALL: &str = "ibv_advise_mr";
        let mut list = SgeList::of(work);
        let fail = |err: Error| err.detail(format!("{advice:?}"));
        let elements = u32::try_from(list.len()).ok();
        let Some(elements) = elements.filter(|&n| n as usize <= MAX_SGE) else {
            let reason = format!("the work has more than {MAX_SGE} elements");
            return Err(fail(Error::refused(
                CALL,
                io::ErrorKind::InvalidInput,
                reason,
            )));
        };
        let flush = ffi::ib_uverbs_advise_mr_flag::IB_UVERBS_ADVISE_MR_FLAG_FLUSH.0;
        let flags = if wait { flush } else { 0 };
        let (pd, advice) = (self.as_raw(), ffi::ibv_advise_mr_advice(advice.0));
        // SAFETY: the domain is allocated for as long as `self` lives, and the list has `elements`
        // elements, of which C keeps none. Fetching pages does not change their content.
        let ret = unsafe { ffi::ibv_advise_mr(pd, advice, flags, list.as_mut_ptr(), elements) };
        cvt_errno(CALL, ret).map_err(fail)
    }
}

impl Everything {
    /// A buffer, of memory of any kind. Does not enter the kernel.
    ///
    /// # Errors
    /// The error returns the memory:
    /// - `InvalidInput`: the memory has no bytes, or at least 2 GiB.
    pub fn buf<M: OwnedMemory>(&self, mut memory: M) -> Result<Buf, Refused<M>> {
        match Buf::check(memory.range().len()) {
            Ok(()) => Ok(Buf::of_region(Region::covered(&self.mr, memory))),
            Err(error) => Err(Refused {
                value: memory,
                error,
            }),
        }
    }

    /// Memory of any kind for concurrent reads and writes by requests of this process. Peers have
    /// no access, since the registration grants none. Does not enter the kernel.
    ///
    /// # Errors
    /// The error returns the memory:
    /// - `InvalidInput`: the memory has no bytes.
    pub fn region<M: OwnedMemory>(&self, mut memory: M) -> Result<RemoteRegion, Refused<M>> {
        if memory.range().is_empty() {
            let reason = "a region has at least one byte";
            let error = Error::refused("ibv_reg_mr", io::ErrorKind::InvalidInput, reason);
            return Err(Refused {
                value: memory,
                error,
            });
        }
        Ok(RemoteRegion::of_region(Region::covered(&self.mr, memory)))
    }

    /// The protection domain of the registration.
    pub fn pd(&self) -> &ProtectionDomain {
        self.mr.0.pd()
    }
}

impl Implicit {
    pub(super) fn mr(&self) -> &Mr {
        &self.0
    }
}

impl fmt::Debug for Everything {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Everything")
            .field("pd", self.pd())
            .finish_non_exhaustive()
    }
}

impl Drop for Implicit {
    fn drop(&mut self) {
        // SAFETY: once, here. If it fails, the device keeps its access, but no holder of a key is
        // left.
        let _: bool = unsafe { self.0.dereg() };
    }
}
