//! Counters of flows: packets and bytes of a [`Flow`](crate::flow::Flow).
//!
//! Counters of completed requests are in [`completion_counter`](crate::completion_counter).
//!
//! # References
//! [ibv_create_counters(3)](https://man7.org/linux/man-pages/man3/ibv_create_counters.3.html),
//! [ibv_read_counters(3)](https://man7.org/linux/man-pages/man3/ibv_read_counters.3.html)

use std::{fmt, io, ptr, ptr::NonNull, sync::Arc};

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_counter_description, ibv_read_counters_flags};

use crate::{
    context::Context,
    error::{Error, Result, cvt_errno, cvt_ptr},
    named::named,
};

named! {
    /// `ibv_counter_description`—The quantity counted by a counter.
    #[doc(alias = "ibv_counter_description")]
    CounterKind(u32) {
        /// Packets.
        #[doc(alias = "IBV_COUNTER_PACKETS")]
        PACKETS = ibv_counter_description::IBV_COUNTER_PACKETS.0;
        /// Bytes.
        #[doc(alias = "IBV_COUNTER_BYTES")]
        BYTES = ibv_counter_description::IBV_COUNTER_BYTES.0;
    }
}

bitflags! {
    /// `ibv_read_counters_flags`—How counters are read.
    #[doc(alias = "ibv_read_counters_flags")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ReadCounters: u32 {
        /// Accept values cached by the kernel.
        #[doc(alias = "IBV_READ_COUNTERS_ATTR_PREFER_CACHED")]
        const PREFER_CACHED = ibv_read_counters_flags::IBV_READ_COUNTERS_ATTR_PREFER_CACHED.0;
    }
}

/// `ibv_counters`—A set of counters.
///
/// First [attach](Self::attach) each quantity at an index, then [use](crate::flow::FlowRule::count)
/// the set in a flow.
///
/// # Examples
/// ```no_run
/// # let ctx = verbs::devices()?.find("mlx5_0").expect("no such device").open()?;
/// use verbs::{counters::{CounterKind, ReadCounters}, flow::FlowRule};
/// let counters = ctx.create_counters()?;
/// counters.attach(CounterKind::PACKETS, 0)?;
/// counters.attach(CounterKind::BYTES, 1)?;
/// let rule = FlowRule::new(1).count(&counters);
/// // … a flow with that rule, and some traffic
/// let mut values = [0; 2];
/// counters.read(&mut values, ReadCounters::empty())?;
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # References
/// [ibv_create_counters(3)](https://man7.org/linux/man-pages/man3/ibv_create_counters.3.html)
#[doc(alias = "ibv_destroy_counters")]
#[doc(alias = "ibv_counters")]
pub struct Counters {
    inner: Arc<CountersInner>,
}

/// The part shared with flows.
pub(crate) struct CountersInner {
    // INVARIANT: created until `self` is dropped.
    pub(crate) raw: NonNull<ffi::ibv_counters>,
    pub(crate) ctx: Context,
}

// SAFETY: the kernel locks the counters. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for CountersInner {}
// SAFETY: see `Send`.
unsafe impl Sync for CountersInner {}

impl Context {
    /// `ibv_create_counters(ctx, …)`—Creates a set of counters. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`, `ENOSYS`: the device has none.
    /// - `ENOMEM`: out of memory.
    ///
    /// # References
    /// [ibv_create_counters(3)](https://man7.org/linux/man-pages/man3/ibv_create_counters.3.html)
    #[doc(alias = "ibv_create_counters")]
    pub fn create_counters(&self) -> Result<Counters> {
        self.check_process("ibv_create_counters")?;
        let mut attr = ffi::ibv_counters_init_attr::zeroed();
        // SAFETY: the context is open for as long as `self` lives. Assumption: C keeps no pointer
        // to the attributes.
        let raw = unsafe { ffi::ibv_create_counters(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr("ibv_create_counters", raw)?;
        let ctx = self.clone();
        Ok(Counters {
            inner: Arc::new(CountersInner { raw, ctx }),
        })
    }
}

impl Counters {
    /// `ibv_attach_counters_point_flow(counters, …)`—Counts a quantity at an index, for the flows
    /// that will use the set.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not count this quantity.
    /// - `EBUSY`: a flow uses the set already.
    /// - `EINVAL`: the index is too large.
    ///
    /// # References
    /// [ibv_attach_counters_point_flow(3)](https://man7.org/linux/man-pages/man3/ibv_attach_counters_point_flow.3.html)
    #[doc(alias = "ibv_attach_counters_point_flow")]
    pub fn attach(&self, kind: CounterKind, index: u32) -> Result<()> {
        let mut attr = ffi::ibv_counter_attach_attr::zeroed();
        attr.counter_desc = ibv_counter_description(kind.0);
        attr.index = index;
        let raw = &raw mut attr;
        // SAFETY: the counters exist for as long as `self` lives; no flow is named. Assumption: C
        // keeps no pointer to the attributes.
        let errno =
            unsafe { ffi::ibv_attach_counters_point_flow(self.as_raw(), raw, ptr::null_mut()) };
        cvt_errno("ibv_attach_counters_point_flow", errno)
            .map_err(|err| err.detail(format!("{kind:?} at {index}")))
    }

    /// `ibv_read_counters(counters, …)`—Reads the counters into the places of their indices. Enters
    /// the kernel.
    ///
    /// # Errors
    /// - `EINVAL`: no flow uses the set, or the slice does not reach to the highest index.
    ///
    /// # References
    /// [ibv_read_counters(3)](https://man7.org/linux/man-pages/man3/ibv_read_counters.3.html)
    #[doc(alias = "ibv_read_counters")]
    pub fn read(&self, values: &mut [u64], flags: ReadCounters) -> Result<()> {
        const CALL: &str = "ibv_read_counters";
        let count = u32::try_from(values.len()).map_err(|_| {
            let reason = "at most 4294967295 counters";
            Error::refused(CALL, io::ErrorKind::InvalidInput, reason)
        })?;
        let to = values.as_mut_ptr();
        // SAFETY: the counters exist for as long as `self` lives; C writes at most `count` values,
        // and only before the return.
        let errno = unsafe { ffi::ibv_read_counters(self.as_raw(), to, count, flags.bits()) };
        cvt_errno(CALL, errno).map_err(|err| err.detail(format!("{count} values")))
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_counters {
        self.inner.raw.as_ptr()
    }

    pub(crate) fn share(&self) -> Arc<CountersInner> {
        Arc::clone(&self.inner)
    }
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").finish_non_exhaustive()
    }
}

impl fmt::Debug for CountersInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CountersInner").finish_non_exhaustive()
    }
}

impl Drop for CountersInner {
    fn drop(&mut self) {
        let _: i32 = self.ctx.destroy(|| {
            // SAFETY: the counters exist and are destroyed once, here; the context is open, since
            // `self.ctx` is dropped later. Flows with these counters hold an `Arc` of `self`, so none
            // is left, except leaked ones: then this fails, and the counters stay until the context is
            // closed.
            unsafe { ffi::ibv_destroy_counters(self.raw.as_ptr()) }
        });
    }
}
