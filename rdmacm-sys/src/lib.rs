//! Bindings to librdmacm, which connects RDMA queue pairs by IP address, as C has them.
//!
//! Everything in `rdma/rdma_cma.h`, `rdma_verbs.h`, `rsocket.h` and `infiniband/ib.h` is here under
//! its C name, and as `unsafe` as there. The crate `cm` is the safe way to the same things.
//!
//! ```no_run
//! unsafe {
//!     let channel = rdmacm_sys::rdma_create_event_channel();
//!     assert!(!channel.is_null(), "no RDMA in this kernel");
//!     rdmacm_sys::rdma_destroy_event_channel(channel);
//! }
//! ```
//!
//! What comes from where, how C looks in Rust, and what features there are, is as in
//! [`ibverbs_sys`], whose types this crate uses: a [`rdma_cm_id::qp`] is an
//! [`ibverbs_sys::ibv_qp`]. In particular:
//!
//! - The `static inline` functions, 18 of them in `rdma_cma.h` and `rdma_verbs.h` and 4 in `ib.h`,
//!   are Rust. What C checks with `assert` is a `debug_assert!`.
//! - What appeared after rdma-core 39 is in [`late`].
//! - [`rdma_cm_event`] is neither `Copy` nor `Clone`: it is acknowledged once.
//! - The addresses in [`rdma_addr`] are methods, which point to them.
//! - Functions return 0, or -1 with `errno` set; `rdma_getaddrinfo` also the codes of
//!   `getaddrinfo`.
//!
//! The environment variables are `RDMACM_INCLUDE_DIR`, `RDMACM_LIB_DIR` and `RDMACM_VERSION`; the
//! headers of libibverbs are those that ibverbs-sys has found. Build scripts of crates that depend
//! on this one find `DEP_RDMACM_INCLUDE`, `DEP_RDMACM_VERSION` and `DEP_RDMACM_RELEASE`.
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
