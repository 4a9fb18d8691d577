//! Bindings to libibverbs, regenerated from the installed rdma-core headers.
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
pub use inline::*;
pub use inline::{
    ___ibv_query_port, __ibv_reg_mr, __ibv_reg_mr_iova, ibv_query_port, ibv_reg_mr, ibv_reg_mr_iova,
};
pub use names::*;
#[cfg(not(ibv_comp_cntr))]
pub use newer::*;
pub use strings::ibv_wr_opcode_str;
