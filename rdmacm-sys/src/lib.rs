//! Bindings to librdmacm, regenerated from the installed rdma-core headers.
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
        epoll_event, fd_set, iovec, msghdr, nfds_t, off_t, pollfd, sockaddr, sockaddr_in, sockaddr_in6,
        sockaddr_storage, socklen_t, timeval,
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
