//! The `static inline` functions of `verbs.h`, in Rust: by object, in the header's order.
//!
//! Most of them look a function up in a table that the provider filled, and call it; here that is
//! [`dispatch!`], which compiles to C's load and indirect jump, plus a branch that is never taken.
//! An empty slot, where C would jump to address 0, behaves as [`Unsupported`] says. Those on the data path
//! whose slots are never empty do without the branch: [`dispatch_filled!`].
//!
//! What the functions have in common, and their documentation does not repeat:
//!
//! **Safety.** Pointers to objects (`ibv_context`, `ibv_qp`…) came from libibverbs or rdma-core's
//! provider and have not been destroyed; other pointers are valid for what the man page says is
//! read or written through them; and the man page's rules on threads hold.
//!
//! **Errors.** 0 or an errno value, or a pointer that is NULL with errno set.
#![expect(clippy::multiple_unsafe_ops_per_block, reason = "op-table dispatch")]

#[macro_use]
mod context;
mod ah;
mod comp_cntr;
mod counters;
mod cq;
mod cq_ex;
mod dm;
mod flow;
mod mr;
mod mw;
mod pd;
mod port;
mod qp;
mod qp_ex;
mod srq;
mod unsupported;
mod wq;
mod xrcd;

pub use ah::*;
pub use comp_cntr::*;
pub use context::*;
pub use counters::*;
pub use cq::*;
pub use cq_ex::*;
pub use dm::*;
pub use flow::*;
pub use mr::*;
pub use mw::*;
pub use pd::*;
pub use port::*;
pub use qp::*;
pub use qp_ex::*;
pub use srq::*;
pub use wq::*;
pub use xrcd::*;

use unsupported::Unsupported;

/// Declares functions that pass their arguments on to a slot of a provider's table.
///
/// After `=>` stands an expression that reads the slot, of type `Option<unsafe extern "C" fn>`.
macro_rules! dispatch {
    ($(
        $(#[$attr:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? => $slot:expr;
    )*) => {$(
        $(#[$attr])*
        ///
        /// # Safety
        ///
        /// The objects are live, and the other pointers valid for what the man page says.
        #[inline]
        $vis unsafe fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: the table hangs off a live object, the caller's promise; filling it is the
            // last thing a provider does before it hands the object out.
            let slot = unsafe { $slot };
            match slot {
                // SAFETY: the slot has this function's signature, and asks of its arguments what
                // this function asks of its caller.
                Some(call) => unsafe { call($($arg),*) },
                None => $crate::inline::Unsupported::unsupported(stringify!($name)),
            }
        }
    )*};
}
use dispatch;

/// As [`dispatch!`], to slots of `ibv_context::ops`.
///
/// libibverbs fills each of them before the provider does, with a function that answers EOPNOTSUPP (since
/// rdma-core 17, which is older than the oldest that there are bindings for).
macro_rules! dispatch_filled {
    ($(
        $(#[$attr:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty => $slot:expr;
    )*) => {$(
        $(#[$attr])*
        ///
        /// # Safety
        ///
        /// The objects are live, and the other pointers valid for what the man page says.
        #[inline]
        $vis unsafe fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the table hangs off a live object, the caller's promise; filling it is the
            // last thing a provider does before it hands the object out.
            let slot = unsafe { $slot };
            // SAFETY: libibverbs has filled it, the caller's promise that the object is from there.
            let call = unsafe { slot.unwrap_unchecked() };
            // SAFETY: the slot has this function's signature, and asks of its arguments what
            // this function asks of its caller.
            unsafe { call($($arg),*) }
        }
    )*};
}
use dispatch_filled;
