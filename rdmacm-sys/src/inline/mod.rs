//! The `static inline` functions of `rdma_cma.h`, `rdma_verbs.h` and `ib.h`, in Rust.
//!
//! What they have in common: pointers to objects came from librdmacm or libibverbs and have not
//! been destroyed; other pointers are valid for what the man page says is read or written through
//! them; and the man page's rules on threads hold. Those that return an integer return 0, or -1
//! with errno set.
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
