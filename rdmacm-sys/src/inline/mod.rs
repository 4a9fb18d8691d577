//! The `static inline` functions of `rdma_cma.h`, `rdma_verbs.h` and `ib.h`, in Rust.
//!
//! Common contract: pointers to objects come from librdmacm or libibverbs, and the objects are not destroyed; other
//! pointers are valid for the accesses documented in the man page; and the man page's rules on threads are observed.
//! Functions with an integer result return 0, or -1 with errno set.
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "as dense as the C they follow"
)]

mod completion;
mod ib;
mod id;
mod memory;
mod post;

pub use completion::*;
pub use ib::*;
pub use id::*;
pub use memory::*;
pub use post::*;
