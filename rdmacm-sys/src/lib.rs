//! Bindings to librdmacm: connection management for RDMA queue pairs, by IP address.
//!
//! Every item of `rdma/rdma_cma.h`, `rdma_verbs.h`, `rsocket.h` and `infiniband/ib.h` has its C name here and is as
//! `unsafe` as in C. The crate `cm` is the safe interface to the same functions.
//!
//! ```no_run
//! unsafe {
//!     let channel = rdmacm_sys::rdma_create_event_channel();
//!     assert!(!channel.is_null(), "no RDMA in this kernel");
//!     rdmacm_sys::rdma_destroy_event_channel(channel);
//! }
//! ```
//!
//! Origin of the items, C constructs in Rust, and features are described in [`ibverbs_sys`]. This crate uses the types
//! of [`ibverbs_sys`]: a [`rdma_cm_id::qp`] is an [`ibverbs_sys::ibv_qp`]. In particular:
//!
//! - The `static inline` functions (18 in `rdma_cma.h` and `rdma_verbs.h`, 4 in `ib.h`) are written in Rust. C's
//!   `assert` is `debug_assert!`.
//! - Functions newer than rdma-core 39 are in [`late`].
//! - [`rdma_cm_event`] is neither `Copy` nor `Clone`: each event is acknowledged exactly once.
//! - The addresses in [`rdma_addr`] are methods that return pointers into the union.
//! - Functions return 0, or -1 with `errno` set; `rdma_getaddrinfo` also returns the codes of `getaddrinfo`.
//!
//! With the feature `dlopen`, librdmacm is loaded at the first call, as libibverbs is. A program that calls [`rfcntl`],
//! which has variable arguments, has to link the library all the same.
//!
//! Environment variables: `RDMACM_INCLUDE_DIR`, `RDMACM_LIB_DIR` and `RDMACM_VERSION`. The headers of libibverbs are
//! those found by ibverbs-sys. Build scripts of dependent crates see `DEP_RDMACM_INCLUDE`, `DEP_RDMACM_VERSION` and
//! `DEP_RDMACM_RELEASE`.
#[allow(
    dead_code,
    missing_debug_implementations,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    unused_imports,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::use_self,
    clippy::wildcard_imports,
    reason = "bindgen writes it, and what it is like depends on the headers"
)]
mod bindings {
    #[cfg(loaded)]
    use ibverbs_sys::loaded;
    use ibverbs_sys::*;
    use libc::{
        epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, sockaddr_in,
        sockaddr_in6, sockaddr_storage, socklen_t, timeval,
    };

    type __u8 = u8;
    type __u64 = u64;

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
mod fields;
mod inline;
pub mod late;
mod names;

pub use bindings::*;
pub use inline::*;
pub use names::*;
