//! Bindings to libefa: AWS's Elastic Fabric Adapter, beyond libibverbs.
//!
//! Every item of `infiniband/efadv.h` has its C name here and is as `unsafe` as in C. The package `rdma-efa` is the safe
//! interface to the same functions. No card has run either.
//!
//! ```no_run
//! # let ctx: *mut ibverbs_sys::ibv_context = std::ptr::null_mut();
//! let mut attr = efa_sys::efadv_device_attr::zeroed();
//! let len = size_of_val(&attr) as u32;
//! // SAFETY: `ctx` is an open device, and the attributes have this length.
//! assert_eq!(unsafe { efa_sys::efadv_query_device(ctx, &raw mut attr, len) }, 0);
//! ```
//!
//! Origin of the items, C constructs in Rust, and features are described in [`ibverbs_sys`], whose types this crate uses. Items
//! newer than the installed header are absent, and structs end with that header's fields: C functions take the length.
//! [`efadv_wc_read_sgid`], `static inline` in C, is written in Rust. Needs rdma-core 44.
//!
//! Environment variables: `EFA_INCLUDE_DIR`, `EFA_LIB_DIR` and `EFA_VERSION`. The headers of libibverbs are those found by
//! ibverbs-sys. Build scripts of dependent crates see `DEP_EFA_INCLUDE`, `DEP_EFA_VERSION` and `DEP_EFA_RELEASE`.
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

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
mod fields;
mod inline;
mod names;

pub use bindings::*;
pub use inline::*;
pub use names::*;
