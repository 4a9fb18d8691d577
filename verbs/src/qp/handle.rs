//! The shareable part of a queue pair.

use std::{fmt, marker::PhantomData, sync::Arc};

use ibverbs_sys as ffi;

use super::{
    modify,
    pair::QueuePair,
    queues::Inner,
    state::{Rts, State},
    transport::Transport,
};
use crate::{context::Context, error::Result};

/// The shareable part of a queue pair: ends its traffic, while another thread posts requests and
/// takes completions.
///
/// A handle keeps the queue pair alive: [`QueuePair::destroy`] is refused until all handles are
/// dropped.
pub struct QpHandle<T> {
    inner: Arc<dyn Raw>,
    transport: PhantomData<T>,
}

/// A queue pair of any work.
trait Raw: Send + Sync {
    fn ctx(&self) -> &Context;
    fn raw(&self) -> *mut ffi::ibv_qp;
}

impl<SW: Send, RW: Send> Raw for Inner<SW, RW> {
    fn ctx(&self) -> &Context {
        self.pd.context()
    }

    fn raw(&self) -> *mut ffi::ibv_qp {
        self.raw.as_ptr()
    }
}

impl<T: Transport, S: State, SW: Send + 'static, RW: Send + 'static> QueuePair<T, S, SW, RW> {
    /// Returns the shareable part of the queue pair. A queue pair of a [scope](crate::scope()) has
    /// none: its work is not `'static`.
    pub fn handle(&self) -> QpHandle<T> {
        QpHandle {
            inner: Arc::clone(self.inner()) as _,
            transport: PhantomData,
        }
    }
}

impl<T: Transport> QpHandle<T> {
    /// `ibv_modify_qp(qp, IBV_QPS_ERR)`—Puts the queue pair into the error state; see
    /// [`QueuePair::to_error`].
    ///
    /// # Errors
    /// The device refused, or is gone.
    ///
    /// # References
    /// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
    #[doc(alias = "ibv_modify_qp")]
    pub fn to_error(&self) -> Result<()> {
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE;
        // SAFETY: the queue pair exists for as long as `self` lives.
        unsafe { modify::modify::<T, Rts>(self.inner.ctx(), self.inner.raw(), attr, mask.0, "ERR") }
    }
}

impl<T: Transport> fmt::Debug for QpHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QpHandle")
            .field("transport", &T::NAME)
            .finish_non_exhaustive()
    }
}
