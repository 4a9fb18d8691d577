//! Flows: rules in force.

use std::{any::Any, fmt, mem::ManuallyDrop, ptr::NonNull, sync::Arc};

use ibverbs_sys as ffi;

use super::rule::FlowRule;
use crate::{
    context::Context,
    counters::CountersInner,
    error::{Error, Result, cvt_errno, cvt_ptr},
    qp::{QueuePair, State, Transport},
};

mod sealed {
    use std::{any::Any, sync::Arc};

    use ibverbs_sys as ffi;

    use crate::context::Context;

    /// A queue pair as a destination for steered packets.
    pub trait Steerable {
        /// The device of the queue pair.
        fn ctx(&self) -> &Context;

        /// The queue pair.
        fn raw_qp(&self) -> *mut ffi::ibv_qp;

        /// A share of the queue pair, which exists as long as the share.
        fn share(&self) -> Arc<dyn Any + Send + Sync>;
    }
}

pub(crate) use sealed::Steerable;

/// A destination for steered packets: a queue pair of datagrams or raw packets, or one that spreads
/// packets over receive queues.
pub trait FlowTarget: Steerable {
    /// `ibv_create_flow(qp, …)`—Steers the packets of a rule here. Enters the kernel.
    ///
    /// Dropping the [`Flow`] ends the rule. The queue pair exists until then.
    ///
    /// # Errors
    /// - `InvalidInput`: the counters of the rule are of another device.
    /// - `EOPNOTSUPP`: the device does not steer packets, or not by this rule.
    /// - `EPERM`: raw packets need `CAP_NET_RAW`.
    /// - `EINVAL`: the device does not understand the rule.
    /// - `ENOMEM`: out of memory, or of rules.
    ///
    /// # References
    /// [ibv_create_flow(3)](https://man7.org/linux/man-pages/man3/ibv_create_flow.3.html)
    #[doc(alias = "ibv_create_flow")]
    fn create_flow(&self, rule: &FlowRule) -> Result<Flow> {
        const CALL: &str = "ibv_create_flow";
        let fail = |err: Error| err.detail(rule.to_string());
        self.ctx().check_process(CALL).map_err(fail)?;
        if let Some(counters) = rule.counters() {
            let same = self
                .ctx()
                .check_same(CALL, "the set of counters", &counters.ctx);
            same.map_err(fail)?;
        }
        let qp = self.raw_qp();
        let raw = rule.with_raw(|attr| {
            // SAFETY: the queue pair exists for as long as `self` lives, and then for as long as
            // the flow has its share; the attributes are complete, followed by the specifications.
            // C keeps no pointer to either.
            let raw = unsafe { ffi::ibv_create_flow(qp, attr) };
            cvt_ptr(CALL, raw)
        })?;
        let raw = raw.map_err(fail)?;
        Ok(Flow {
            raw,
            destroyed: false,
            qp: ManuallyDrop::new(self.share()),
            counters: ManuallyDrop::new(rule.counters()),
            ctx: self.ctx().clone(),
        })
    }
}

impl<T: Transport, S: State, SW, RW> Steerable for QueuePair<T, S, SW, RW>
where
    SW: Send + 'static,
    RW: Send + 'static,
{
    fn ctx(&self) -> &Context {
        self.pd().context()
    }

    fn raw_qp(&self) -> *mut ffi::ibv_qp {
        self.as_raw()
    }

    fn share(&self) -> Arc<dyn Any + Send + Sync> {
        self.share_inner()
    }
}

impl<T: Transport, S: State, SW, RW> FlowTarget for QueuePair<T, S, SW, RW>
where
    SW: Send + 'static,
    RW: Send + 'static,
{
}

/// `ibv_flow`—A rule in force until the value is dropped.
///
/// A flow keeps its queue pair; the queue pair is destroyed later.
///
/// # References
/// [ibv_create_flow(3)](https://man7.org/linux/man-pages/man3/ibv_create_flow.3.html)
#[doc(alias = "ibv_flow")]
pub struct Flow {
    // INVARIANT: created, unless `destroyed`.
    raw: NonNull<ffi::ibv_flow>,
    destroyed: bool,
    // Dropped after the flow has been destroyed, or never.
    qp: ManuallyDrop<Arc<dyn Any + Send + Sync>>,
    counters: ManuallyDrop<Option<Arc<CountersInner>>>,
    ctx: Context,
}

// SAFETY: the only operation on a flow is its destruction, allowed from any thread.
unsafe impl Send for Flow {}
// SAFETY: nothing is done with a shared flow.
unsafe impl Sync for Flow {}

impl Flow {
    /// `ibv_destroy_flow`—Ends the rule, as dropping the flow does, and returns errors.
    ///
    /// # Errors
    /// The device refused. The rule stays in force, and its queue pair is leaked.
    ///
    /// # References
    /// [ibv_create_flow(3)](https://man7.org/linux/man-pages/man3/ibv_create_flow.3.html)
    #[doc(alias = "ibv_destroy_flow")]
    pub fn destroy(mut self) -> Result<()> {
        self.ctx.check_process("ibv_destroy_flow")?;
        let errno = self.end();
        cvt_errno("ibv_destroy_flow", errno)
    }

    /// Ends the rule, and releases the queue pair; keeps the queue pair after a failure.
    fn end(&mut self) -> i32 {
        if self.destroyed {
            return 0;
        }
        self.destroyed = true;
        let errno = self.ctx.destroy(|| {
            // SAFETY: the flow is created (invariant) and destroyed once, here; its queue pair and
            // its counters exist, since their fields are dropped later.
            unsafe { ffi::ibv_destroy_flow(self.raw.as_ptr()) }
        });
        if errno == 0 {
            // SAFETY: dropped once, here, since `destroyed` was not set before.
            unsafe { ManuallyDrop::drop(&mut self.counters) };
            // SAFETY: dropped once, here, since `destroyed` was not set before.
            unsafe { ManuallyDrop::drop(&mut self.qp) };
        }
        errno
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").finish_non_exhaustive()
    }
}
