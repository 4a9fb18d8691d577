//! Extended completion queues, polled field by field.
//!
//! A field can be read between a successful `ibv_start_poll` or `ibv_next_poll` and `ibv_end_poll`, and only if
//! requested at creation of the queue.

use super::dispatch;
use crate::{__be32, ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc_opcode, ibv_wc_tm_info};
use core::ffi::{c_int, c_uint};

/// `ibv_cq_ex_to_cq(cq)`—The queue as a plain `ibv_cq`.
#[inline]
#[must_use]
pub const fn ibv_cq_ex_to_cq(cq: *mut ibv_cq_ex) -> *mut ibv_cq {
    cq.cast()
}

dispatch! {
    /// `ibv_start_poll(cq, attr)`—Starts polling at the first completion; ENOENT if there is none.
    pub fn ibv_start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int
        => (*cq).start_poll;

    /// `ibv_next_poll(cq)`—Advances to the next completion; ENOENT if there is none.
    pub fn ibv_next_poll(cq: *mut ibv_cq_ex) -> c_int => (*cq).next_poll;

    /// `ibv_end_poll(cq)`—Ends polling after a successful [`ibv_start_poll`].
    pub fn ibv_end_poll(cq: *mut ibv_cq_ex) => (*cq).end_poll;

    /// `ibv_wc_read_opcode(cq)`—Reads the completed operation.
    pub fn ibv_wc_read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode => (*cq).read_opcode;

    /// `ibv_wc_read_vendor_err(cq)`—Reads the vendor's error code.
    pub fn ibv_wc_read_vendor_err(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_vendor_err;

    /// `ibv_wc_read_byte_len(cq)`—Reads the number of bytes transferred.
    pub fn ibv_wc_read_byte_len(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_byte_len;

    /// `ibv_wc_read_imm_data(cq)`—Reads the immediate data.
    pub fn ibv_wc_read_imm_data(cq: *mut ibv_cq_ex) -> __be32 => (*cq).read_imm_data;
}

/// `ibv_wc_read_invalidated_rkey(cq)`—Reads the key invalidated by the peer.
///
/// # Safety
///
/// As for [`ibv_wc_read_imm_data`]; the key shares its slot.
#[inline]
pub unsafe fn ibv_wc_read_invalidated_rkey(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: as the caller promised. The key is in native order already.
    unsafe { ibv_wc_read_imm_data(cq) }.0
}

dispatch! {
    /// `ibv_wc_read_qp_num(cq)`—Reads the number of the local queue pair.
    pub fn ibv_wc_read_qp_num(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_qp_num;

    /// `ibv_wc_read_src_qp(cq)`—Reads the number of the sender's queue pair.
    pub fn ibv_wc_read_src_qp(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_src_qp;

    /// `ibv_wc_read_wc_flags(cq)`—Reads the flags, of `ibv_wc_flags`.
    pub fn ibv_wc_read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint => (*cq).read_wc_flags;

    /// `ibv_wc_read_slid(cq)`—Reads the sender's LID.
    pub fn ibv_wc_read_slid(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_slid;

    /// `ibv_wc_read_sl(cq)`—Reads the service level.
    pub fn ibv_wc_read_sl(cq: *mut ibv_cq_ex) -> u8 => (*cq).read_sl;

    /// `ibv_wc_read_dlid_path_bits(cq)`—Reads the path bits of the destination LID.
    pub fn ibv_wc_read_dlid_path_bits(cq: *mut ibv_cq_ex) -> u8 => (*cq).read_dlid_path_bits;

    /// `ibv_wc_read_completion_ts(cq)`—Reads the completion time, in ticks of the device's clock.
    pub fn ibv_wc_read_completion_ts(cq: *mut ibv_cq_ex) -> u64 => (*cq).read_completion_ts;

    /// `ibv_wc_read_completion_wallclock_ns(cq)`—Reads the completion time, in nanoseconds of the wall clock.
    pub fn ibv_wc_read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64
        => (*cq).read_completion_wallclock_ns;

    /// `ibv_wc_read_cvlan(cq)`—Reads the VLAN tag.
    pub fn ibv_wc_read_cvlan(cq: *mut ibv_cq_ex) -> u16 => (*cq).read_cvlan;

    /// `ibv_wc_read_flow_tag(cq)`—Reads the tag of the matched flow.
    pub fn ibv_wc_read_flow_tag(cq: *mut ibv_cq_ex) -> u32 => (*cq).read_flow_tag;

    /// `ibv_wc_read_tm_info(cq, tm_info)`—Reads the tag-matching result.
    pub fn ibv_wc_read_tm_info(cq: *mut ibv_cq_ex, tm_info: *mut ibv_wc_tm_info)
        => (*cq).read_tm_info;
}
