//! Bindings to libmlx5: the dynamically connected transport (DC) of NVIDIA's cards.
//!
//! The items of `infiniband/mlx5dv.h` that this transport needs have their C names here and are as `unsafe` as in C; other
//! items of that header are absent. The package `rdma-mlx5` is the safe interface to them. No card has run either.
//!
//! ```no_run
//! # let device: *mut ibverbs_sys::ibv_device = std::ptr::null_mut();
//! // SAFETY: `device` is one of a list of devices.
//! println!("mlx5: {}", unsafe { mlx5_sys::mlx5dv_is_supported(device) });
//! ```
//!
//! Origin of the items, C constructs in Rust, and features are described in [`ibverbs_sys`], whose types this crate uses.
//! [`mlx5dv_wr_set_dc_addr`], `static inline` in C, is written in Rust. Needs rdma-core 39.
//!
//! Environment variables: `MLX5_INCLUDE_DIR`, `MLX5_LIB_DIR` and `MLX5_VERSION`. The headers of libibverbs are those found by
//! ibverbs-sys. Build scripts of dependent crates see `DEP_MLX5_INCLUDE`, `DEP_MLX5_VERSION` and `DEP_MLX5_RELEASE`.
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
    use crate::opaque::*;
    #[cfg(loaded)]
    use ibverbs_sys::loaded;
    use ibverbs_sys::*;

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
mod fields;
mod inline;
#[allow(
    non_camel_case_types,
    clippy::allow_attributes,
    reason = "the names are C's"
)]
mod opaque;

pub use bindings::*;
pub use inline::*;
pub use opaque::*;
