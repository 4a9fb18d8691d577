//! `ibv_wr_opcode_str`, reimplemented: the library's symbol has a different name in each release.

use crate::ibv_wr_opcode;
use core::ffi::{CStr, c_char};

/// `ibv_wr_opcode_str(opcode)`—Name of a work request's operation.
///
/// Declared in `verbs.h` since rdma-core 49. The library's own symbol is versioned per release, and a program linked to
/// it would not start with any other release.
#[must_use]
pub const fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    let name: &CStr = match opcode {
        ibv_wr_opcode::IBV_WR_RDMA_WRITE => c"rdma-write",
        ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM => c"rdma-write-with-imm",
        ibv_wr_opcode::IBV_WR_SEND => c"send",
        ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => c"send-with-imm",
        ibv_wr_opcode::IBV_WR_RDMA_READ => c"rdma-read",
        ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => c"atomic-cmp-and-swp",
        ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => c"atomic-fetch-and-add",
        ibv_wr_opcode::IBV_WR_LOCAL_INV => c"local-inv",
        ibv_wr_opcode::IBV_WR_BIND_MW => c"bind-mw",
        ibv_wr_opcode::IBV_WR_SEND_WITH_INV => c"send-with-inv",
        ibv_wr_opcode::IBV_WR_TSO => c"tso",
        ibv_wr_opcode::IBV_WR_DRIVER1 => c"driver1",
        ibv_wr_opcode::IBV_WR_FLUSH => c"flush",
        ibv_wr_opcode::IBV_WR_ATOMIC_WRITE => c"atomic-write",
        _ => c"unknown",
    };
    name.as_ptr()
}
