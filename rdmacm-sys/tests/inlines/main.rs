//! The static inlines in Rust behave like the C originals, on an in-memory provider: same calls with the same
//! arguments, same return value, same errno.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]
#![expect(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a test calls C and Rust side by side"
)]

#[path = "../compiler/mod.rs"]
mod compiler;

mod ib;
mod id;
mod library;
mod original;
mod world;

const INCLUDE: &str = env!("RDMACM_INCLUDE");
const HEADERS: &[&str] = &[
    "sys/types.h",
    "rdma/rdma_cma.h",
    "rdma/rdma_verbs.h",
    "infiniband/ib.h",
];

/// Functions with a C original.
const NAMES: &str = "
    rdma_get_local_addr rdma_get_peer_addr rdma_seterrno rdma_reg_msgs rdma_reg_read rdma_reg_write
    rdma_dereg_mr rdma_post_recvv rdma_post_sendv rdma_post_readv rdma_post_writev rdma_post_recv
    rdma_post_send rdma_post_read rdma_post_write rdma_post_ud_send rdma_get_send_comp
    rdma_get_recv_comp ib_addr_any ib_addr_loopback ib_addr_set ib_addr_cmp";

/// Functions with a C original only in newer headers.
const NEWER: &[&str] = &[];

/// Calls the Rust and the C function, compares, and returns the outcome.
macro_rules! both {
    ($name:ident: fn($($type:ty),*) -> $ret:ty, $($value:expr),*) => {{
        let original: unsafe extern "C" fn($($type),*) -> $ret =
            $crate::original::original!(stringify!($name));
        let rust = $crate::world::observe(|| {
            // SAFETY: the arguments outlive the call, and spies dereference only valid pointers.
            format!("{:?}", unsafe { rdmacm_sys::$name($($value),*) })
        });
        let c = $crate::world::observe(|| {
            // SAFETY: the arguments outlive the call, and spies dereference only valid pointers.
            format!("{:?}", unsafe { original($($value),*) })
        });
        assert_eq!(rust, c, stringify!($name));
        rust
    }};
}
use both;
