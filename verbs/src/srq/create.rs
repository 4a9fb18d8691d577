//! Creation of shared receive queues.

use std::{
    io,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_srq_init_attr_mask as has;

use super::{
    Kind, SharedReceiveQueue, SrqHandle, SrqInner, entries::Books, receivers::Receivers, slab::Slab,
};
use crate::{
    cq::CqHandle,
    error::{Error, Result, cvt_ptr},
    hint,
    pd::ProtectionDomain,
    recv_limits::RecvLimits,
    recv_list::RecvList,
    work::MAX_SGE,
    wr_id::{MAX_IN_FLIGHT, OwnedQpId, QueueId},
    xrcd::XrcDomain,
};

impl ProtectionDomain {
    /// `ibv_create_srq(pd, …)`—Creates a shared receive queue for `max_wr` receives of `max_sge`
    /// elements. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: a number is beyond this crate's limits.
    /// - `EINVAL`: a number is more than the device allows.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_srq(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq.3.html)
    #[doc(alias = "IBV_SRQT_BASIC")]
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq<RW: Send + 'static>(
        &self,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue<RW>> {
        const CALL: &str = "ibv_create_srq";
        check(CALL, max_wr, max_sge)?;
        self.context().check_process(CALL)?;
        let mut attr = ffi::ibv_srq_init_attr::zeroed();
        attr.attr.max_wr = max_wr;
        attr.attr.max_sge = max_sge;
        // SAFETY: the domain is allocated for as long as `self` lives; C writes only `attr`.
        // Assumption: C keeps no pointer to the attributes.
        let raw = unsafe { ffi::ibv_create_srq(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw).map_err(|err| self.refused_srq(err, max_wr, max_sge))?;
        // SAFETY: it has just been created, in this domain.
        Ok(unsafe { adopt(raw, max_wr, max_sge, Books::new(max_wr), Kind::Basic, self) })
    }

    /// `ibv_create_srq_ex(ctx, …)`—Creates a shared receive queue for extended reliable
    /// connections. Senders name the queue by its [number](SrqHandle::srq_num). Receives
    /// complete in `cq`. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the completion queue has too few entries left; an object is of another
    ///   device; or a number is beyond this crate's limits.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has no extended reliable connections.
    /// - `EINVAL`: a number is more than the device allows.
    /// - `ENOMEM`: out of memory.
    ///
    /// # Examples
    /// ```
    /// # let (_fabric, ctx) = doctest::device();
    /// # let (pd, cq) = (&ctx.alloc_pd()?, &ctx.create_cq(64)?);
    /// let xrcd = pd.context().open_xrcd()?;
    /// let mut srq = pd.create_xrc_srq(&xrcd, cq, 16, 1)?;
    /// srq.post(pd.alloc_buf(1024)?)?;
    /// println!("send to {}", srq.srq_num()?);
    /// # Ok::<(), verbs::Error>(())
    /// ```
    ///
    /// # References
    /// [ibv_create_srq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html)
    #[doc(alias = "IBV_SRQT_XRC")]
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_xrc_srq<RW: Send + 'static>(
        &self,
        xrcd: &XrcDomain,
        cq: &CqHandle,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<SharedReceiveQueue<RW>> {
        const CALL: &str = "ibv_create_srq_ex";
        check(CALL, max_wr, max_sge)?;
        let ctx = self.context();
        ctx.check_same(CALL, "the XRC domain", xrcd.context())?;
        ctx.check_same(CALL, "the completion queue", cq.context())?;
        let books = Books::on(CALL, cq, max_wr, 0)?;
        let mask = has::IBV_SRQ_INIT_ATTR_TYPE | has::IBV_SRQ_INIT_ATTR_PD;
        let mask = mask | has::IBV_SRQ_INIT_ATTR_XRCD | has::IBV_SRQ_INIT_ATTR_CQ;
        let mut attr = ffi::ibv_srq_init_attr_ex::zeroed();
        attr.attr.max_wr = max_wr;
        attr.attr.max_sge = max_sge;
        attr.comp_mask = mask.0;
        attr.srq_type = ffi::ibv_srq_type::IBV_SRQT_XRC;
        attr.pd = self.as_raw();
        attr.xrcd = xrcd.as_raw();
        attr.cq = cq.as_raw();
        // SAFETY: the context and the objects exist for as long as they are borrowed, and then for
        // as long as the queue has its shares; C writes only `attr`. Assumption: C keeps no pointer
        // to the attributes.
        let raw = unsafe { ffi::ibv_create_srq_ex(self.context().as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw).map_err(|err| self.refused_srq(err, max_wr, max_sge))?;
        let kind = Kind::Xrc {
            _domain: xrcd.clone(),
        };
        // SAFETY: just created, with these.
        Ok(unsafe { adopt(raw, max_wr, max_sge, books, kind, self) })
    }
}

impl ProtectionDomain {
    /// The error of a shared receive queue that the device has refused.
    fn refused_srq(&self, err: Error, max_wr: u32, max_sge: u32) -> Error {
        let err = err.detail(detail(max_wr, max_sge));
        hint::limits::srq(err, self.context(), max_wr, max_sge)
    }
}

pub(super) fn detail(max_wr: u32, max_sge: u32) -> String {
    format!("{max_wr} receives of {max_sge} elements")
}

pub(super) fn check(call: &'static str, max_wr: u32, max_sge: u32) -> Result<()> {
    if max_wr > MAX_IN_FLIGHT || max_sge as usize > MAX_SGE {
        let reason = format!("at most {MAX_IN_FLIGHT} receives of {MAX_SGE} elements");
        let err = Error::refused(call, io::ErrorKind::InvalidInput, reason);
        return Err(err.detail(detail(max_wr, max_sge)));
    }
    Ok(())
}

/// # Safety
/// - `raw` is a queue with no other owner, made in `pd`, of this kind and with these maximum
///   numbers of receives and elements.
pub(super) unsafe fn adopt<RW: Send + 'static>(
    raw: NonNull<ffi::ibv_srq>,
    max_wr: u32,
    max_sge: u32,
    books: Books,
    kind: Kind,
    pd: &ProtectionDomain,
) -> SharedReceiveQueue<RW> {
    let id = OwnedQpId::new();
    let inner = SrqInner {
        raw,
        queue: QueueId::receive(id.id()),
        id,
        limits: RecvLimits::shared(pd, max_sge),
        parked: Mutex::default(),
        books: Mutex::new(books.created()),
        receivers: Receivers::default(),
        kind,
        pd: pd.clone(),
    };
    SharedReceiveQueue {
        handle: SrqHandle {
            inner: Arc::new(inner),
        },
        posted: Slab::new(max_wr),
        staging: RecvList::default(),
    }
}
