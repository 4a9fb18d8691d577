//! Shared receive queues with tag matching.

use std::{collections::VecDeque, ffi::c_int};

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    post::{PostedReceive, ring},
    state::{State, state_of},
};
use crate::{abi::post::elements, failure::Call};

/// The lengths of C's headers, and the first byte of one.
const HEADER: usize = 16;
const NO_TAG: u8 = 0;
const RENDEZVOUS: u8 = 1;

/// An operation on the list of tags.
#[derive(Clone, Debug)]
pub struct PostedTagOp {
    wr_id: u64,
    /// Operation.
    pub opcode: ffi::ibv_ops_wr_opcode,
    /// Flags of `ibv_ops_flags`.
    pub flags: u32,
    /// Number of unexpected messages counted by the program.
    pub unexpected_cnt: u32,
    /// Handle of the entry to remove.
    pub handle: u32,
}

/// A tagged buffer.
pub(super) struct Tagged {
    handle: u32,
    buffer: PostedReceive,
    tag: u64,
    mask: u64,
    /// Whether the device has executed the adding operation.
    listed: bool,
    /// Whether a message has matched, whose data are still to come.
    matched: bool,
}

/// The additional state of a tag-matching queue.
#[derive(Default)]
pub(super) struct Tags {
    operations: VecDeque<PostedTagOp>,
    list: Vec<Tagged>,
    handles: u32,
    /// The number of unexpected messages, and the number last reported by the program.
    unexpected: (u32, u32),
}

impl State {
    fn tags(&mut self, srq: usize) -> &mut Tags {
        &mut self.srq_mut(srq).tags
    }

    pub(super) fn tag_operations(&mut self, srq: usize) -> Vec<PostedTagOp> {
        self.tags(srq).operations.iter().cloned().collect()
    }

    /// Executes the oldest operation, and completes it.
    pub(super) fn run_tag_operation(&mut self, srq: usize) {
        use ffi::{ibv_ops_wr_opcode as opcodes, ibv_wc_opcode as done};
        let tags = self.tags(srq);
        let operation = tags.operations.pop_front().unwrap();
        if operation.flags & ffi::ibv_ops_flags::IBV_OPS_TM_SYNC.0 != 0 {
            tags.unexpected.1 = operation.unexpected_cnt;
        }
        let index = |tagged: &Tagged| tagged.handle == operation.handle;
        let index = tags.list.iter().position(index);
        let mut status = ffi::ibv_wc_status::IBV_WC_SUCCESS;
        let opcode = match operation.opcode {
            opcodes::IBV_WR_TAG_ADD => {
                tags.list[index.unwrap()].listed = true;
                done::IBV_WC_TM_ADD
            }
            opcodes::IBV_WR_TAG_DEL => {
                match index {
                    Some(index) if !tags.list[index].matched => drop(tags.list.remove(index)),
                    _ => status = ffi::ibv_wc_status::IBV_WC_TM_ERR,
                }
                done::IBV_WC_TM_DEL
            }
            _ => done::IBV_WC_TM_SYNC,
        };
        let in_sync = tags.unexpected.0 == tags.unexpected.1;
        let mut wc = super::wc(operation.wr_id, opcode);
        wc.status = status;
        if !in_sync {
            wc.wc_flags = ffi::ibv_wc_flags::IBV_WC_TM_SYNC_REQ.0;
        }
        let cq = self.srqs[&srq].cq;
        self.push(cq, wc, Extra::default());
    }

    /// Delivers a message, with its header.
    pub(super) fn arrive_tagged(&mut self, srq: usize, message: &[u8]) {
        use ffi::ibv_wc_flags as flag;
        let (header, data) = message.split_at(HEADER);
        let extra = Extra {
            tm_tag: u64::from_be_bytes(header[8..].try_into().unwrap()),
            tm_priv: u32::from_be_bytes(header[4..8].try_into().unwrap()),
            ..Extra::default()
        };
        let tags = self.tags(srq);
        let fits = |tagged: &Tagged| {
            tagged.listed && !tagged.matched && extra.tm_tag & tagged.mask == tagged.tag
        };
        let index = match header[0] {
            NO_TAG => None,
            _ => tags.list.iter().position(fits),
        };
        let rendezvous = header[0] == RENDEZVOUS;
        let opcode = match header[0] {
            NO_TAG => ffi::ibv_wc_opcode::IBV_WC_TM_NO_TAG,
            _ => ffi::ibv_wc_opcode::IBV_WC_TM_RECV,
        };
        let (buffer, flags) = match index {
            Some(index) if rendezvous => {
                tags.list[index].matched = true;
                (tags.list[index].buffer.clone(), flag::IBV_WC_TM_MATCH)
            }
            Some(index) => {
                let flags = flag::IBV_WC_TM_MATCH | flag::IBV_WC_TM_DATA_VALID;
                (tags.list.remove(index).buffer, flags)
            }
            None => {
                tags.unexpected.0 += u32::from(header[0] != NO_TAG);
                (self.take_from_srq(srq), flag(0))
            }
        };
        let mut wc = super::wc(buffer.wr_id, opcode);
        wc.status = match index {
            Some(_) if rendezvous => ffi::ibv_wc_status::IBV_WC_SUCCESS,
            Some(_) => self.deliver(&buffer.sges, data),
            None => self.deliver(&buffer.sges, message),
        };
        wc.wc_flags = flags.0;
        wc.byte_len = match index {
            Some(_) => data.len(),
            None => message.len(),
        } as u32;
        let cq = self.srqs[&srq].cq;
        self.push(cq, wc, extra);
    }

    /// Delivers the data of the matched rendezvous, complete.
    pub(super) fn finish_rendezvous(&mut self, srq: usize, data: &[u8]) {
        let tags = self.tags(srq);
        let index = tags.list.iter().position(|tagged| tagged.matched).unwrap();
        let buffer = tags.list.remove(index).buffer;
        let mut wc = super::wc(buffer.wr_id, ffi::ibv_wc_opcode::IBV_WC_TM_RECV);
        wc.status = self.deliver(&buffer.sges, data);
        wc.wc_flags = ffi::ibv_wc_flags::IBV_WC_TM_DATA_VALID.0;
        wc.byte_len = data.len() as u32;
        let cq = self.srqs[&srq].cq;
        self.push(cq, wc, Extra::default());
    }

    /// Ends the oldest tagged buffer with a status and flags, and keeps the buffer if its data are
    /// still to come, as a program does.
    pub(super) fn fail_tagged(&mut self, srq: usize, status: u32, flags: u32) {
        let status = ffi::ibv_wc_status(status);
        let continues = status == ffi::ibv_wc_status::IBV_WC_SUCCESS
            || status == ffi::ibv_wc_status::IBV_WC_TM_RNDV_INCOMPLETE;
        let is_whole = flags & ffi::ibv_wc_flags::IBV_WC_TM_DATA_VALID.0 != 0;
        let tags = self.tags(srq);
        let buffer = if continues && !is_whole {
            tags.list[0].matched = true;
            tags.list[0].buffer.clone()
        } else {
            tags.list.remove(0).buffer
        };
        let mut wc = super::wc(buffer.wr_id, ffi::ibv_wc_opcode::IBV_WC_TM_RECV);
        wc.status = status;
        wc.wc_flags = flags;
        let cq = self.srqs[&srq].cq;
        self.push(cq, wc, Extra::default());
    }
}

pub(super) unsafe extern "C" fn post_srq_ops(
    srq: *mut ffi::ibv_srq,
    mut wr: *mut ffi::ibv_ops_wr,
    bad: *mut *mut ffi::ibv_ops_wr,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(srq) };
    state.used("ibv_post_srq_ops", srq.addr());
    while !wr.is_null() {
        if let Err(errno) = state.attempt(Call::PostSrqOps) {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return errno;
        }
        // SAFETY: the caller's chain of operations; the handle is for the provider to write.
        let wr_now = unsafe { &mut *wr };
        if wr_now.opcode == ffi::ibv_ops_wr_opcode::IBV_WR_TAG_ADD {
            let add = &wr_now.tm.add;
            let buffer = PostedReceive {
                wr_id: add.recv_wr_id,
                // SAFETY: the caller's elements.
                sges: unsafe { elements(add.sg_list, add.num_sge) }.to_vec(),
            };
            state.check_receive(&buffer);
            let tags = state.tags(srq.addr());
            tags.handles += 1;
            wr_now.tm.handle = tags.handles;
            tags.list.push(Tagged {
                handle: tags.handles,
                buffer,
                tag: add.tag,
                mask: add.mask,
                listed: false,
                matched: false,
            });
        }
        let operation = PostedTagOp {
            wr_id: wr_now.wr_id,
            opcode: wr_now.opcode,
            flags: wr_now.flags as u32,
            unexpected_cnt: wr_now.tm.unexpected_cnt,
            handle: wr_now.tm.handle,
        };
        state.tags(srq.addr()).operations.push_back(operation);
        wr = wr_now.next;
    }
    // SAFETY: the caller's place.
    unsafe { ring(&mut state, bad) }
}
