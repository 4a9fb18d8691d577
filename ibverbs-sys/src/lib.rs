//! Bindings to libibverbs, the user-space half of RDMA on Linux: the verbs, as C has them.
//!
//! Everything in `infiniband/verbs.h`, `sa.h` and `tm_types.h` is here under its C name, and as
//! `unsafe` as there. The crate `verbs` is the safe way to the same things.
//!
//! ```no_run
//! let mut number = 0;
//! unsafe {
//!     let list = ibverbs_sys::ibv_get_device_list(&mut number);
//!     println!("{number} RDMA devices");
//!     if !list.is_null() {
//!         ibverbs_sys::ibv_free_device_list(list);
//!     }
//! }
//! ```
//!
//! # What comes from where
//!
//! - **Types, constants and the library's functions** are bindgen's work, anew in every build, of
//!   the headers that are installed: rdma-core 39 or newer.
//! - **`static inline` functions**, of which `verbs.h` has 95 in rdma-core 44, are Rust: the calls
//!   that post and poll inline into their callers, and compile to the load and the indirect jump
//!   of C plus a branch that is never taken.
//! - **Functions that a macro hides** ([`ibv_query_port`], [`ibv_reg_mr`], [`ibv_reg_mr_iova`]) do
//!   here, too, what the macro makes of them.
//! - **What appeared after rdma-core 39** is here whatever is installed: types and constants the
//!   headers lack are declared by the crate, and functions are found in [`late`] when the program
//!   runs, so that it also starts where the library lacks them.
//!
//! # How C looks in Rust
//!
//! | C | Rust |
//! |---|---|
//! | `enum ibv_mtu` | a transparent struct with constants, [`ibv_mtu::IBV_MTU_1024`]; a newer kernel may return a value that has no name |
//! | `enum ibv_access_flags` | the same, with `\|` and `&`; C passes flags as integers, and so take `.0` |
//! | `enum` without a name, macro | a constant, of the type it has where it is used |
//! | `__be32` | [`__be32`], which does not mix with `u32` |
//! | `union ibv_gid` | [`ibv_gid`], with `Eq`, `Hash` and `Debug` |
//! | union without a name | methods, [`ibv_wc::imm_data`]; or the field `__bindgen_anon_1` |
//! | `struct ibv_qp_attr attr = {}` | [`ibv_qp_attr::zeroed()`](ibv_qp_attr::zeroed) |
//! | `struct ibv_qp`, `struct ibv_async_event` | neither `Copy` nor `Clone`: there is one, to be given back once |
//! | `pthread_mutex_t`, `timespec` | those of the crate `libc` |
//!
//! # Errors
//!
//! As the man pages say: mostly 0 or an errno value, or a pointer that is NULL with `errno` set.
//! An operation that the provider lacks is EOPNOTSUPP. Where C would jump to address 0, namely in
//! `ibv_wr_*`, `ibv_end_poll` and `ibv_wc_read_*` with an operation or a field that was not asked
//! for when the queue was created, these functions panic; and those which return an integer return
//! EOPNOTSUPP, [`ibv_poll_cq`] as well: more than any number of completions that was asked for is
//! an error.
//!
//! # Features and environment
//!
//! - `bindgen` (default): regenerate the bindings, for which libclang is needed. Without the
//!   feature, without libclang (then with a warning), and on docs.rs, the checked-in ones are used,
//!   made of rdma-core 44 for 64-bit Linux. Names are the same.
//! - `provided`: a crate of the program defines the functions, as `softnic` does. Where libibverbs is not installed,
//!   nothing is linked, and the checked-in bindings are used.
//! - `IBVERBS_INCLUDE_DIR`, `IBVERBS_LIB_DIR`: where headers and library are, instead of asking
//!   pkg-config; `IBVERBS_VERSION`: the version to report then, such as `1.14.44.0`.
//! - What the pkg-config crate reads: `PKG_CONFIG_PATH`, `LIBIBVERBS_STATIC` and so on. A program
//!   that links statically names its providers itself, see `ibv_static_providers` in rdma-core.
//! - Build scripts of crates that depend on this one find `DEP_IBVERBS_INCLUDE`,
//!   `DEP_IBVERBS_VERSION` and `DEP_IBVERBS_RELEASE` (44).
//!
//! # What is not here
//!
//! Providers' own interfaces (`mlx5dv.h` and others), the kernel's (`rdma/ib_user_verbs.h`), the
//! obsolete `arch.h`, and symbols that libibverbs exports only to providers.
#![expect(non_camel_case_types, reason = "the names are C's")]

mod be;
#[allow(
    dead_code,
    missing_debug_implementations,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    unreachable_pub,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::use_self,
    reason = "bindgen writes it, and what it is like depends on the headers"
)]
mod bindings {
    use crate::{__be16, __be32, __be64, ibv_gid};
    use libc::{pthread_cond_t, pthread_mutex_t, timespec};

    type __u8 = u8;
    type __u16 = u16;
    type __u32 = u32;
    type __u64 = u64;

    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}
mod fields;
mod gid;
mod inline;
pub mod late;
mod names;
#[cfg(not(ibv_comp_cntr))]
mod newer;
mod strings;
mod zeroed;

pub use be::{__be16, __be32, __be64};
pub use bindings::*;
pub use gid::{ibv_gid, ibv_gid_global};
// Over the function of this name in `bindings`.
pub use inline::ibv_query_port;
pub use inline::*;
pub use names::*;
#[cfg(not(ibv_comp_cntr))]
pub use newer::*;
pub use strings::ibv_wr_opcode_str;
