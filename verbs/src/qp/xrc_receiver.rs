//! The receiving end of an extended reliable connection.

use std::{fmt, io, marker::PhantomData, ptr::NonNull};

use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_qp_init_attr_mask, ibv_qp_open_attr_mask as has};

use super::{
    attributes::Attributes,
    modify,
    query::{self, QpAttr},
    state::{Init, QpState, Reset, Rtr, Rts, State},
    transport::{Transport, XrcRecv},
};
use crate::{
    bounded::QpNum,
    error::{Error, Refused, Result, cvt_errno, cvt_ptr},
    xrcd::XrcDomain,
};

/// `ibv_qp` of type `IBV_QPT_XRC_RECV`—The receiving end of an extended reliable connection.
///
/// Without queues: a message consumes a receive of the shared receive queue
/// [named](crate::op::ToSrq) by the sender, possibly of another process that shares the
/// [`XrcDomain`]. The receiving end itself can be shared by its [number](XrcDomain::open_qp), and
/// exists until the last process has dropped its handle.
///
/// # Examples
/// ```
/// # use verbs::{Init, Rtr, qp::{Attributes, Psn, XrcRecv}};
/// # let (peer, connected, _cq) = doctest::connected();
/// # let (vector, psn) = (&peer.path(), Psn::from_low_bits(7));
/// # let peer = connected.qp_num();
/// # let xrcd = connected.pd().context().open_xrcd()?;
/// let qp = xrcd.create_qp()?;
/// let qp = qp.to_init(&Attributes::<XrcRecv, Init>::new(1))?;
/// let qp = qp.to_rtr(&Attributes::<XrcRecv, Rtr>::new(vector, peer, psn))?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)
#[doc(alias = "IBV_QPT_XRC_RECV")]
pub struct XrcReceiver<S> {
    inner: XrcReceiverInner,
    state: PhantomData<S>,
}

struct XrcReceiverInner {
    // INVARIANT: created or opened, and destroyed only in `drop` or `destroy`.
    raw: NonNull<ffi::ibv_qp>,
    destroyed: bool,
    xrcd: XrcDomain,
}

// SAFETY: the queue pair has no state here. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for XrcReceiverInner {}
// SAFETY: see `Send`.
unsafe impl Sync for XrcReceiverInner {}

impl XrcDomain {
    /// `ibv_create_qp_ex(ctx, …)`—Creates the receiving end of an extended reliable connection in
    /// this domain. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has no extended reliable connections.
    /// - `ENOMEM`: out of memory, or of queue pairs.
    ///
    /// # References
    /// [ibv_create_qp_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html)
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_qp(&self) -> Result<XrcReceiver<Reset>> {
        self.context().check_process("ibv_create_qp_ex")?;
        let mut attr = ffi::ibv_qp_init_attr_ex::zeroed();
        attr.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
        attr.qp_type = XrcRecv::RAW;
        attr.xrcd = self.as_raw();
        // SAFETY: the context and the domain are open for as long as `self` lives, and then for as
        // long as the queue pair has its share. Assumption: C keeps no pointer to the attributes.
        let raw = unsafe { ffi::ibv_create_qp_ex(self.context().as_raw(), &raw mut attr) };
        let raw = cvt_ptr("ibv_create_qp_ex", raw).map_err(|err| err.detail(XrcRecv::NAME))?;
        Ok(XrcReceiver::new(raw, self))
    }

    /// `ibv_open_qp(ctx, …)`—Opens a receiving end created by some process in this domain, and
    /// brought to the state `S`. Enters the kernel.
    ///
    /// Other owners can change the state.
    ///
    /// # Errors
    /// - `EINVAL`, `ENOENT`: there is no such queue pair in the domain.
    /// - `InvalidInput`: the receiving end is in another state.
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has no extended reliable connections.
    ///
    /// # Examples
    /// ```no_run
    /// # fn f(xrcd: &verbs::xrcd::XrcDomain, number: verbs::qp::QpNum) -> verbs::Result<()> {
    /// let qp = xrcd.open_qp::<verbs::Rts>(number)?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "IBV_QP_OPEN_ATTR_NUM")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_XRCD")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_TYPE")]
    #[doc(alias = "IBV_QP_OPEN_ATTR_CONTEXT")]
    #[doc(alias = "ibv_open_qp")]
    pub fn open_qp<S: State>(&self, number: QpNum) -> Result<XrcReceiver<S>> {
        const CALL: &str = "ibv_open_qp";
        self.context().check_process(CALL)?;
        let mut attr = ffi::ibv_qp_open_attr::zeroed();
        let mask = has::IBV_QP_OPEN_ATTR_NUM | has::IBV_QP_OPEN_ATTR_XRCD;
        attr.comp_mask = (mask | has::IBV_QP_OPEN_ATTR_TYPE).0;
        attr.qp_num = number.get();
        attr.xrcd = self.as_raw();
        attr.qp_type = XrcRecv::RAW;
        // SAFETY: as for creating one.
        let raw = unsafe { ffi::ibv_open_qp(self.context().as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw).map_err(|err| err.detail(number.to_string()))?;
        let opened = XrcReceiver::<S>::new(raw, self);
        let state = opened.query()?.state;
        if state == QpState(S::RAW.0) {
            return Ok(opened);
        }
        let reason = format!("the queue pair is in {state:?}, and not in {}", S::NAME);
        let err = Error::refused(CALL, io::ErrorKind::InvalidInput, reason);
        Err(err.detail(number.to_string()))
    }
}

impl<S> XrcReceiver<S> {
    fn new(raw: NonNull<ffi::ibv_qp>, xrcd: &XrcDomain) -> Self {
        let inner = XrcReceiverInner {
            raw,
            destroyed: false,
            xrcd: xrcd.clone(),
        };
        let state = PhantomData;
        Self { inner, state }
    }
}

impl<S: State> XrcReceiver<S> {
    /// The number used by the device, the peer and other processes for this queue pair.
    pub fn qp_num(&self) -> QpNum {
        // SAFETY: the queue pair exists (invariant), and its number never changes.
        QpNum::from_low_bits(unsafe { (*self.as_raw()).qp_num })
    }

    /// The XRC domain of the queue pair.
    pub fn xrcd(&self) -> &XrcDomain {
        &self.inner.xrcd
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_qp {
        self.inner.raw.as_ptr()
    }

    /// `ibv_query_qp`—Queries the attributes of the queue pair; see
    /// [`QueuePair::query`](crate::QueuePair::query).
    ///
    /// # Errors
    /// The device is gone.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        // SAFETY: the queue pair exists (invariant).
        unsafe { query::query(self.as_raw()) }
    }

    /// `ibv_modify_qp`—Changes attributes without leaving the state.
    ///
    /// # Errors
    /// - `EINVAL`: an attribute is wrong, or cannot be changed in this state.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&mut self, attributes: &Attributes<XrcRecv, S>) -> Result<()> {
        self.modify_to(attributes)
    }

    /// `ibv_destroy_qp`—Releases the queue pair, as dropping the value does, and returns errors.
    ///
    /// # Errors
    /// The device refused. The error returns the queue pair.
    ///
    /// # References
    /// [ibv_destroy_qp(3)](https://man7.org/linux/man-pages/man3/ibv_create_qp.3.html)
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy(mut self) -> Result<(), Refused<Self>> {
        const CALL: &str = "ibv_destroy_qp";
        let process = self.inner.xrcd.context().check_process(CALL);
        match process.and_then(|()| cvt_errno(CALL, self.inner.destroy())) {
            Ok(()) => Ok(()),
            Err(error) => Err(Refused { value: self, error }),
        }
    }

    fn modify_to<To: State>(&self, attributes: &Attributes<XrcRecv, To>) -> Result<()> {
        let (attr, mask) = attributes.as_raw();
        // SAFETY: the queue pair exists (invariant).
        unsafe {
            modify::modify::<XrcRecv, S>(
                self.inner.xrcd.context(),
                self.as_raw(),
                *attr,
                mask,
                To::NAME,
            )
        }
    }

    fn transition<To: State>(
        self,
        attributes: &Attributes<XrcRecv, To>,
    ) -> Result<XrcReceiver<To>, Refused<Self>> {
        let (_, mask) = attributes.as_raw();
        let complete = modify::check_target(self.inner.xrcd.context(), mask, To::NAME);
        match complete.and_then(|()| self.modify_to(attributes)) {
            Ok(()) => Ok(XrcReceiver {
                inner: self.inner,
                state: PhantomData,
            }),
            Err(error) => Err(Refused { value: self, error }),
        }
    }
}

/// The transitions.
macro_rules! transitions {
    ($($(#[$doc:meta])* $from:ident, $name:ident, $to:ident;)*) => {$(
        impl XrcReceiver<$from> {
            $(#[$doc])*
            ///
            /// # Errors
            /// - `EINVAL`: an attribute is missing, or wrong.
            ///
            /// The error returns the queue pair, unchanged.
            ///
            /// # References
            /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
            #[doc(alias = "ibv_modify_qp")]
            pub fn $name(
                self,
                attributes: &Attributes<XrcRecv, $to>,
            ) -> Result<XrcReceiver<$to>, Refused<Self>> {
                self.transition(attributes)
            }
        }
    )*};
}

transitions! {
    /// `ibv_modify_qp`—Brings the queue pair to [`Init`].
    Reset, to_init, Init;
    /// `ibv_modify_qp`—Brings the queue pair to [`Rtr`], ready to receive.
    Init, to_rtr, Rtr;
    /// `ibv_modify_qp`—Brings the queue pair to [`Rts`], needed by some devices for responses.
    Rtr, to_rts, Rts;
}

impl XrcReceiverInner {
    fn destroy(&mut self) -> i32 {
        let errno = self.xrcd.context().destroy(|| {
            // SAFETY: the queue pair exists (invariant), and its domain is open, since the domain is
            // dropped later. Destroyed once: `destroyed` is not set yet, and will be.
            unsafe { ffi::ibv_destroy_qp(self.raw.as_ptr()) }
        });
        self.destroyed = errno == 0;
        errno
    }
}

impl Drop for XrcReceiverInner {
    fn drop(&mut self) {
        if !self.destroyed {
            // After a failure, the queue pair stays until the context is closed. No memory is
            // involved.
            self.destroy();
        }
    }
}

impl<S: State> fmt::Debug for XrcReceiver<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcReceiver")
            .field("state", &S::NAME)
            .field("qp_num", &self.qp_num())
            .finish_non_exhaustive()
    }
}
