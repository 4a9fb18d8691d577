//! XRC domains: common domains of extended reliable connections' queues.
//!
//! The queue pairs are [`XrcSend`](crate::qp::XrcSend) and [`XrcReceiver`](crate::qp::XrcReceiver).
//!
//! # References
//! [ibv_open_xrcd(3)](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html)

use std::{
    fmt,
    os::fd::{AsRawFd, BorrowedFd},
    ptr::NonNull,
    sync::Arc,
};

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::ibv_xrcd_init_attr_mask as has;

use crate::{
    context::Context,
    error::{Result, cvt_ptr},
};

bitflags! {
    /// Flags for opening a domain shared between processes by a file.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct XrcdOpen: i32 {
        /// Create the domain, unless there is one for the file.
        const CREATE = libc::O_CREAT;
        /// With `CREATE`: fail if there is one.
        const EXCLUSIVE = libc::O_EXCL;
    }
}

/// `ibv_xrcd`—An XRC domain: a queue pair can use the shared receive queues of its own domain.
///
/// Cloning is cheap: the handle is reference-counted, like an `Arc`. The domain is closed after the
/// drop of the last handle and of the last object made in the domain.
///
/// # References
/// [ibv_open_xrcd(3)](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html)
#[doc(alias = "ibv_close_xrcd")]
#[doc(alias = "IBV_QP_INIT_ATTR_XRCD")]
#[doc(alias = "IBV_SRQ_INIT_ATTR_XRCD")]
#[doc(alias = "ibv_xrcd")]
#[derive(Clone)]
pub struct XrcDomain {
    inner: Arc<XrcdInner>,
}

struct XrcdInner {
    // INVARIANT: open until `self` is dropped.
    raw: NonNull<ffi::ibv_xrcd>,
    ctx: Context,
}

// SAFETY: calls change no state of a domain in user space. Assumption: calls of libibverbs may be
// made from any thread, and several at once.
unsafe impl Send for XrcdInner {}
// SAFETY: see `Send`.
unsafe impl Sync for XrcdInner {}

impl Context {
    /// `ibv_open_xrcd(ctx, …)`—Creates an XRC domain of this process alone. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has no extended reliable connections.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_open_xrcd(3)](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html)
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<XrcDomain> {
        self.open_xrcd_raw(-1, XrcdOpen::CREATE)
    }

    /// `ibv_open_xrcd(ctx, …)`—Creates or opens the XRC domain of all processes with the file open.
    /// The file itself is unchanged, and may be closed. Enters the kernel.
    ///
    /// # Errors
    /// - As for [`open_xrcd`](Self::open_xrcd).
    /// - `EEXIST`: a domain exists, and [`EXCLUSIVE`](XrcdOpen::EXCLUSIVE) was given.
    /// - `ENOENT`: there is none, and [`CREATE`](XrcdOpen::CREATE) was not given.
    ///
    /// # References
    /// [ibv_open_xrcd(3)](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html)
    #[doc(alias = "IBV_XRCD_INIT_ATTR_FD")]
    #[doc(alias = "IBV_XRCD_INIT_ATTR_OFLAGS")]
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_shared_xrcd(&self, file: BorrowedFd<'_>, how: XrcdOpen) -> Result<XrcDomain> {
        self.open_xrcd_raw(file.as_raw_fd(), how)
    }

    fn open_xrcd_raw(&self, fd: i32, how: XrcdOpen) -> Result<XrcDomain> {
        self.check_process("ibv_open_xrcd")?;
        let mut attr = ffi::ibv_xrcd_init_attr::zeroed();
        attr.comp_mask = (has::IBV_XRCD_INIT_ATTR_FD | has::IBV_XRCD_INIT_ATTR_OFLAGS).0;
        attr.fd = fd;
        attr.oflags = how.bits();
        // SAFETY: the context is open for as long as `self` lives, and the descriptor during the
        // call, or is none. Assumption: C keeps no pointer to the attributes.
        let raw = unsafe { ffi::ibv_open_xrcd(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr("ibv_open_xrcd", raw)?;
        let ctx = self.clone();
        Ok(XrcDomain {
            inner: Arc::new(XrcdInner { raw, ctx }),
        })
    }
}

impl XrcDomain {
    /// The device this domain belongs to.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. Open as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_xrcd {
        self.inner.raw.as_ptr()
    }
}

impl PartialEq for XrcDomain {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for XrcDomain {}

impl fmt::Debug for XrcDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XrcDomain")
            .field("context", &self.inner.ctx)
            .finish()
    }
}

impl Drop for XrcdInner {
    fn drop(&mut self) {
        let _: i32 = self.ctx.destroy(|| {
            // SAFETY: the domain is open and closed once, here; the context is open, since `self.ctx`
            // is dropped later. Every object made in the domain holds an `Arc` of `self`, so none is
            // left, except leaked ones; then this fails (`EBUSY`), and the domain stays until the
            // context is closed.
            unsafe { ffi::ibv_close_xrcd(self.raw.as_ptr()) }
        });
    }
}
