//! The attributes of a state transition.

use std::{fmt, marker::PhantomData};

use ibverbs_sys as ffi;

use super::state::State;

/// `ibv_qp_attr` and its mask—What a queue pair is given on its way to the state `S`.
///
/// The connection manager makes these: see the crate `cm`.
///
/// # References
/// [ibv_modify_qp(3)](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html)
#[doc(alias = "ibv_qp_attr")]
pub struct Attributes<S> {
    attr: ffi::ibv_qp_attr,
    mask: i32,
    state: PhantomData<S>,
}

impl<S: State> Attributes<S> {
    /// Takes attributes as C has them. Which of them count is said by `mask`, of `IBV_QP_*` bits;
    /// the state itself always does.
    ///
    /// No attribute can make a program unsafe: the kernel validates them, and what is wrong makes
    /// the transition fail, or the queue pair useless.
    pub fn from_raw(mut attr: ffi::ibv_qp_attr, mask: i32) -> Self {
        attr.qp_state = S::RAW;
        Self {
            attr,
            mask,
            state: PhantomData,
        }
    }

    /// The attributes as C has them, and which of them count.
    pub fn as_raw(&self) -> (&ffi::ibv_qp_attr, i32) {
        (&self.attr, self.mask)
    }

    /// Changes the attributes; see [`from_raw`](Self::from_raw).
    pub fn as_raw_mut(&mut self) -> (&mut ffi::ibv_qp_attr, &mut i32) {
        (&mut self.attr, &mut self.mask)
    }
}

impl<S: State> fmt::Debug for Attributes<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attributes")
            .field("state", &S::NAME)
            .field("mask", &format_args!("{:#x}", self.mask))
            .finish_non_exhaustive()
    }
}
