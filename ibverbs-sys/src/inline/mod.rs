//! The `static inline` functions of `verbs.h` in Rust: one file for each object, in the header's order.
//!
//! Most functions call a slot of the provider's operation table: [`dispatch!`] compiles to C's load and indirect jump,
//! plus a branch never taken. An empty slot, a jump to address 0 in C, is handled by [`Unsupported`]. Data-path
//! functions whose slots are never empty omit the branch: [`dispatch_filled!`].
//!
//! Contract of all functions, not repeated in their documentation:
//!
//! **Safety.** Pointers to objects (`ibv_context`, `ibv_qp` and others) come from libibverbs or a provider of
//! rdma-core, and the objects are not destroyed; other pointers are valid for the accesses documented in the man page;
//! and the man page's rules on threads are observed.
//!
//! **Errors.** 0 or an errno value, or NULL with errno set.
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

/// Declares functions that forward their arguments to a slot of a provider's table.
///
/// The expression after `=>` reads the slot, of type `Option<unsafe extern "C" fn>`.
macro_rules! dispatch {
    ($(
        $(#[$attr:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? => $slot:expr;
    )*) => {$(
        $(#[$attr])*
        ///
        /// # Safety
        ///
        /// The objects are live, and the other pointers valid for the accesses documented in the man page.
        #[inline]
        $vis unsafe fn $name($($arg: $type),*) $(-> $ret)? {
            // SAFETY: the caller promises a live object, whose table was filled by the provider before the object
            // was returned.
            let slot = unsafe { $slot };
            match slot {
                // SAFETY: the slot has this function's signature and the same safety contract.
                Some(call) => unsafe { call($($arg),*) },
                None => $crate::inline::Unsupported::unsupported(stringify!($name)),
            }
        }
    )*};
}
use dispatch;

/// Declares functions like [`dispatch!`], for slots of `ibv_context::ops`.
///
/// libibverbs fills these slots with a function that returns EOPNOTSUPP before the provider does (since rdma-core 17,
/// older than the minimum of the bindings).
macro_rules! dispatch_filled {
    ($(
        $(#[$attr:meta])*
        $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty => $slot:expr;
    )*) => {$(
        $(#[$attr])*
        ///
        /// # Safety
        ///
        /// The objects are live, and the other pointers valid for the accesses documented in the man page.
        #[inline]
        $vis unsafe fn $name($($arg: $type),*) -> $ret {
            // SAFETY: the caller promises a live object, whose table was filled by the provider before the object
            // was returned.
            let slot = unsafe { $slot };
            // SAFETY: the caller promises an object of libibverbs, and libibverbs fills the slot.
            let call = unsafe { slot.unwrap_unchecked() };
            // SAFETY: the slot has this function's signature and the same safety contract.
            unsafe { call($($arg),*) }
        }
    )*};
}
use dispatch_filled;
