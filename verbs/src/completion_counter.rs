//! Completion counters: the number of completed requests, or of their bytes.
//!
//! Counters of packets are in [`counters`](crate::counters).
//!
//! # References
//! [ibv_create_comp_cntr(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_create_comp_cntr.3.md)

use std::{fmt, ptr::NonNull, sync::Arc};

use bitflags::bitflags;
use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_comp_cntr_type, ibv_qp_attach_comp_cntr_op as op, late};

use crate::{
    context::Context,
    error::{Error, Result, cvt_errno, cvt_ptr, found},
    named::named,
    qp::{CanAttachCounter, QueuePair, Transport},
};

named! {
    /// `ibv_comp_cntr_type`—The unit of a completion counter.
    #[doc(alias = "ibv_comp_cntr_type")]
    CountedUnit(u32) {
        /// Completed requests.
        REQUESTS = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_WRS.0;
        /// Their bytes.
        BYTES = ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_BYTES.0;
    }
}

bitflags! {
    /// `ibv_qp_attach_comp_cntr_op`—The counted completions of a queue pair. Unknown bits are kept.
    #[doc(alias = "ibv_qp_attach_comp_cntr_op")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct CountedOps: u32 {
        /// Sends of this side.
        const SEND = op::IBV_QP_ATTACH_COMP_CNTR_OP_SEND.0;
        /// Receives of this side.
        const RECV = op::IBV_QP_ATTACH_COMP_CNTR_OP_RECV.0;
        /// RDMA reads by this side.
        const RDMA_READ = op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ.0;
        /// RDMA reads by the peer.
        const REMOTE_RDMA_READ = op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ.0;
        /// RDMA writes by this side.
        const RDMA_WRITE = op::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE.0;
        /// RDMA writes by the peer.
        const REMOTE_RDMA_WRITE = op::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE.0;
    }
}

/// `ibv_comp_cntr_caps`—The capabilities of a device's completion counters.
#[doc(alias = "ibv_comp_cntr_caps")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompletionCounterCaps {
    /// The maximum value. The counter then wraps to zero.
    pub max_value: u64,
    /// Maximum number of counters.
    pub max_counters: u32,
    /// The operations that can be counted.
    pub ops: CountedOps,
}

/// `ibv_comp_cntr`—A counter of completions, and one of failed ones, incremented by the device.
/// Completion queues are not affected. Since rdma-core 65.
///
/// Counts for every queue pair to which the counter is [attached](QueuePair::count_completions). A
/// handle to a shared object, like an `Arc`: each attached queue pair keeps the object.
///
/// # Examples
/// ```no_run
/// # fn f(pd: &verbs::ProtectionDomain, cq: &verbs::cq::CqHandle) -> verbs::Result<()> {
/// use verbs::completion_counter::{CountedOps, CountedUnit};
/// let counter = pd.context().create_completion_counter(CountedUnit::REQUESTS)?;
/// let mut qp = pd.qp_builder::<verbs::Rc>(cq, cq).create()?;
/// qp.count_completions(&counter, CountedOps::REMOTE_RDMA_WRITE)?;
/// // … when the peer has written a few times
/// println!("{} writes, {} failed", counter.read()?, counter.read_errors()?);
/// # Ok(())
/// # }
/// ```
///
/// # References
/// [ibv_create_comp_cntr(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_create_comp_cntr.3.md)
#[doc(alias = "ibv_comp_cntr")]
#[derive(Clone)]
pub struct CompletionCounter {
    inner: Arc<CounterInner>,
}

struct CounterInner {
    // INVARIANT: created until `self` is dropped.
    raw: NonNull<ffi::ibv_comp_cntr>,
    ctx: Context,
}

// SAFETY: the device increments atomically. Assumption: calls of libibverbs may be made from any
// thread, and several at once.
unsafe impl Send for CounterInner {}
// SAFETY: see `Send`.
unsafe impl Sync for CounterInner {}

impl Context {
    /// `ibv_query_comp_cntr_caps(ctx, …)`—Capabilities of the device's completion counters. Enters
    /// the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device has no such counters, or the library is older than rdma-core 65.
    ///
    /// # References
    /// [ibv_query_comp_cntr_caps(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_query_comp_cntr_caps.3.md)
    #[doc(alias = "ibv_query_comp_cntr_caps")]
    pub fn query_completion_counter_caps(&self) -> Result<CompletionCounterCaps> {
        let mut caps = ffi::ibv_comp_cntr_caps {
            max_value: 0,
            max_counters: 0,
            supported_qp_attach_ops: 0,
        };
        // SAFETY: the context is open for as long as `self` lives, and `caps` is a valid place.
        let errno = unsafe { ffi::ibv_query_comp_cntr_caps(self.as_raw(), &raw mut caps) };
        cvt_errno("ibv_query_comp_cntr_caps", errno)?;
        Ok(CompletionCounterCaps {
            max_value: caps.max_value,
            max_counters: caps.max_counters,
            ops: CountedOps::from_bits_retain(caps.supported_qp_attach_ops),
        })
    }

    /// `ibv_create_comp_cntr(ctx, …)`—Creates a counter of completions, at zero. Enters the kernel.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not count this unit, or the library is older than rdma-core
    ///   65.
    /// - `ENOMEM`: out of memory, or of counters.
    ///
    /// # References
    /// [ibv_create_comp_cntr(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_create_comp_cntr.3.md)
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_completion_counter(&self, unit: CountedUnit) -> Result<CompletionCounter> {
        const CALL: &str = "ibv_create_comp_cntr";
        let fail = |err: Error| err.detail(format!("{unit:?}"));
        self.check_process(CALL).map_err(fail)?;
        let create = found(CALL, late::ibv_create_comp_cntr()).map_err(fail)?;
        let mut attr = ffi::ibv_comp_cntr_init_attr {
            comp_mask: 0,
            type_: ibv_comp_cntr_type(unit.0),
            flags: 0,
        };
        // SAFETY: the context is open for as long as `self` lives. Assumption: C keeps no pointer
        // to the attributes.
        let raw = unsafe { create(self.as_raw(), &raw mut attr) };
        let raw = cvt_ptr(CALL, raw).map_err(fail)?;
        let ctx = self.clone();
        Ok(CompletionCounter {
            inner: Arc::new(CounterInner { raw, ctx }),
        })
    }
}

/// Declares calls with a number.
macro_rules! numbers {
    ($(
        $(#[$doc:meta])*
        $verb:ident($number:ident) = $function:ident;
    )*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        /// - `EOPNOTSUPP`: the device does not support the call.
        ///
        /// # References
        /// [ibv_create_comp_cntr(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_create_comp_cntr.3.md)
        pub fn $verb(&self, $number: u64) -> Result<()> {
            const CALL: &str = stringify!($function);
            let call = found(CALL, late::$function())?;
            // SAFETY: the counter exists for as long as `self` lives.
            let errno = unsafe { call(self.as_raw(), $number) };
            cvt_errno(CALL, errno).map_err(|err| err.detail($number.to_string()))
        }
    )*};
}

impl CompletionCounter {
    numbers! {
        /// `ibv_set_comp_cntr(counter, value)`—Sets the number of completions. Concurrent
        /// completions may be lost.
        #[doc(alias = "ibv_set_comp_cntr")]
        set(value) = ibv_set_comp_cntr;
        /// `ibv_set_err_comp_cntr(counter, value)`—Sets the number of failed completions.
        /// Concurrent completions may be lost.
        #[doc(alias = "ibv_set_err_comp_cntr")]
        set_errors(value) = ibv_set_err_comp_cntr;
        /// `ibv_inc_comp_cntr(counter, amount)`—Adds to the number of completions.
        #[doc(alias = "ibv_inc_comp_cntr")]
        add(amount) = ibv_inc_comp_cntr;
        /// `ibv_inc_err_comp_cntr(counter, amount)`—Adds to the number of failed completions.
        #[doc(alias = "ibv_inc_err_comp_cntr")]
        add_errors(amount) = ibv_inc_err_comp_cntr;
    }

    /// `ibv_read_comp_cntr(counter, …)`—The number of completions. A recent set or add may become
    /// visible a little later.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support the call.
    ///
    /// # References
    /// [ibv_create_comp_cntr(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_create_comp_cntr.3.md)
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn read(&self) -> Result<u64> {
        self.read_by("ibv_read_comp_cntr", late::ibv_read_comp_cntr())
    }

    /// `ibv_read_err_comp_cntr(counter, …)`—The number of failed completions. A recent set or add
    /// may become visible a little later.
    ///
    /// # Errors
    /// - `EOPNOTSUPP`: the device does not support the call.
    ///
    /// # References
    /// [ibv_create_comp_cntr(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_create_comp_cntr.3.md)
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read_errors(&self) -> Result<u64> {
        self.read_by("ibv_read_err_comp_cntr", late::ibv_read_err_comp_cntr())
    }

    fn read_by(&self, call: &'static str, function: Option<Read>) -> Result<u64> {
        let read = found(call, function)?;
        let mut value = 0;
        // SAFETY: the counter exists for as long as `self` lives, and `value` is a valid place.
        let errno = unsafe { read(self.as_raw(), &raw mut value) };
        cvt_errno(call, errno)?;
        Ok(value)
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.inner.ctx
    }

    /// The C object, for calls that this crate does not wrap. Valid as long as `self` lives.
    pub fn as_raw(&self) -> *mut ffi::ibv_comp_cntr {
        self.inner.raw.as_ptr()
    }
}

type Read = unsafe extern "C" fn(*mut ffi::ibv_comp_cntr, *mut u64) -> i32;

impl<T: Transport, S: CanAttachCounter, SW, RW> QueuePair<T, S, SW, RW> {
    /// `ibv_qp_attach_comp_cntr(qp, …)`—Attaches a counter for the completions of these operations,
    /// until the queue pair is destroyed. A queue pair can have several counters, each for other
    /// operations. Enters the kernel.
    ///
    /// # Errors
    /// - `InvalidInput`: the counter is of another device.
    /// - `EBUSY`: one of the operations has a counter.
    /// - `EOPNOTSUPP`: the device does not count one of the operations.
    ///
    /// # References
    /// [ibv_qp_attach_comp_cntr(3)](https://github.com/linux-rdma/rdma-core/blob/master/libibverbs/man/ibv_qp_attach_comp_cntr.3.md)
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn count_completions(
        &mut self,
        counter: &CompletionCounter,
        ops: CountedOps,
    ) -> Result<()> {
        const CALL: &str = "ibv_qp_attach_comp_cntr";
        let fail = |err: Error| err.detail(format!("{ops:?}"));
        let ctx = self.pd().context();
        ctx.check_same(CALL, "the counter", counter.context())
            .map_err(fail)?;
        let attach = found(CALL, late::ibv_qp_attach_comp_cntr()).map_err(fail)?;
        let mut attr = ffi::ibv_qp_attach_comp_cntr_attr {
            comp_mask: 0,
            op_mask: ops.bits(),
        };
        // SAFETY: the queue pair exists for as long as `self` lives; the counter for as long as
        // `counter` does, and then for as long as the queue pair, which gets a share. Assumption: C
        // keeps no pointer to the attributes.
        let errno = unsafe { attach(self.as_raw(), counter.as_raw(), &raw mut attr) };
        cvt_errno(CALL, errno).map_err(fail)?;
        self.keep(counter.clone());
        Ok(())
    }
}

impl fmt::Debug for CompletionCounter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionCounter")
            .field("context", &self.inner.ctx)
            .finish_non_exhaustive()
    }
}

impl Drop for CounterInner {
    fn drop(&mut self) {
        if let Some(destroy) = late::ibv_destroy_comp_cntr() {
            let _: i32 = self.ctx.destroy(|| {
                // SAFETY: the counter exists and is destroyed once, here; the context is open, since
                // its field is dropped later. Attached queue pairs hold an `Arc` of `self`, so none is
                // left, except leaked ones; then this fails (`EBUSY`), and the counter stays until the
                // context is closed.
                unsafe { destroy(self.raw.as_ptr()) }
            });
        }
    }
}
