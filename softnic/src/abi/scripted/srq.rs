//! Shared receive queues.

use std::{collections::VecDeque, ffi::c_int};

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    post::{PostedReceive, post_receives},
    state::{Ptr, State, state_of, state_of_context},
    tags::Tags,
};
use crate::failure::Call;

/// A shared receive queue.
pub(super) struct ScriptedSrq {
    raw: Ptr<ffi::ibv_srq>,
    pub(super) receives: VecDeque<PostedReceive>,
    attr: ffi::ibv_srq_attr,
    /// The number of the queue for XRC senders.
    number: u32,
    kind: ffi::ibv_srq_type,
    /// The completion queue of its receives; 0 for those of the queue pairs.
    pub(super) cq: usize,
    pub(super) tags: Tags,
}

impl State {
    fn create_srq(
        &mut self,
        call: &'static str,
        ctx: *mut ffi::ibv_context,
        attr: &ffi::ibv_srq_init_attr_ex,
    ) -> *mut ffi::ibv_srq {
        let parents = [attr.pd.addr(), attr.xrcd.addr(), attr.cq.addr()];
        let mut number = 0;
        let srq = self.make(call, &parents, |srq: &mut ffi::ibv_srq, num| {
            number = num;
            srq.context = ctx;
            srq.srq_context = attr.srq_context;
            srq.pd = attr.pd;
            srq.handle = number;
        });
        let state = ScriptedSrq {
            raw: Ptr(srq),
            receives: VecDeque::new(),
            attr: attr.attr,
            number,
            kind: attr.srq_type,
            cq: attr.cq.addr(),
            tags: Tags::default(),
        };
        self.srqs.insert(srq.addr(), state);
        srq
    }

    pub(super) fn complete_xrc(
        &mut self,
        qp_num: u32,
        srq: usize,
        message: &[u8],
        imm_data: Option<u32>,
    ) {
        assert_eq!(self.qp(qp_num).kind, ffi::ibv_qp_type::IBV_QPT_XRC_RECV);
        let posted = self.take_from_srq(srq);
        let cq = self.srqs[&srq].cq;
        let mut wc = super::wc(posted.wr_id, ffi::ibv_wc_opcode::IBV_WC_RECV);
        wc.qp_num = qp_num;
        wc.byte_len = message.len() as u32;
        wc.status = self.deliver_to(srq, cq, &posted, message);
        if let Some(imm_data) = imm_data {
            wc.wc_flags = ffi::ibv_wc_flags::IBV_WC_WITH_IMM.0;
            wc.__bindgen_anon_1.imm_data = ffi::__be32::from_ne(imm_data);
        }
        self.push(cq, wc, Extra::default());
    }

    pub(super) fn srq_mut(&mut self, srq: usize) -> &mut ScriptedSrq {
        let found = self.srqs.get_mut(&srq);
        found.unwrap_or_else(|| panic!("there is no shared receive queue at {srq:#x}"))
    }

    pub(super) fn take_from_srq(&mut self, srq: usize) -> PostedReceive {
        let this = self.srq_mut(srq);
        let posted = this.receives.pop_front().unwrap();
        if this.receives.len() < this.attr.srq_limit as usize {
            // Reaching the limit disarms the limit.
            this.attr.srq_limit = 0;
            let element = this.raw.0.expose_provenance();
            self.raise(ffi::ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED, element);
        }
        posted
    }
}

pub(in crate::abi) unsafe extern "C" fn create_srq(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_srq_init_attr,
) -> *mut ffi::ibv_srq {
    // SAFETY: live.
    let ctx = unsafe { (*pd).context };
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    let mut full = ffi::ibv_srq_init_attr_ex::zeroed();
    full.srq_context = attr.srq_context;
    full.attr = attr.attr;
    full.pd = pd;
    // SAFETY: an object of the device.
    unsafe { state_of(pd) }.create_srq("ibv_create_srq", ctx, &full)
}

pub(in crate::abi) unsafe extern "C" fn create_srq_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_srq_init_attr_ex,
) -> *mut ffi::ibv_srq {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an open context.
    unsafe { state_of_context(ctx) }.create_srq("ibv_create_srq_ex", ctx, attr)
}

pub(in crate::abi) unsafe extern "C" fn get_srq_num(
    srq: *mut ffi::ibv_srq,
    number: *mut u32,
) -> c_int {
    // SAFETY: an object of the device.
    let state = unsafe { state_of(srq) };
    let this = &state.srqs[&srq.addr()];
    if this.kind == ffi::ibv_srq_type::IBV_SRQT_BASIC {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the caller's place.
    unsafe { *number = this.number };
    0
}

pub(in crate::abi) unsafe extern "C" fn modify_srq(
    srq: *mut ffi::ibv_srq,
    attr: *mut ffi::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(srq) };
    state.used("ibv_modify_srq", srq.addr());
    let this = state.srqs.get_mut(&srq.addr()).unwrap();
    let mask = mask as u32;
    if mask & ffi::ibv_srq_attr_mask::IBV_SRQ_MAX_WR.0 != 0 {
        if (attr.max_wr as usize) < this.receives.len() {
            return libc::EINVAL;
        }
        this.attr.max_wr = attr.max_wr;
    }
    if mask & ffi::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 != 0 {
        if attr.srq_limit > this.attr.max_wr {
            return libc::EINVAL;
        }
        this.attr.srq_limit = attr.srq_limit;
    }
    0
}

pub(in crate::abi) unsafe extern "C" fn query_srq(
    srq: *mut ffi::ibv_srq,
    attr: *mut ffi::ibv_srq_attr,
) -> c_int {
    // SAFETY: an object of the device.
    let state = unsafe { state_of(srq) };
    // SAFETY: the caller's place.
    unsafe { *attr = state.srqs[&srq.addr()].attr };
    0
}

pub(in crate::abi) unsafe extern "C" fn destroy_srq(srq: *mut ffi::ibv_srq) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(srq) };
    let ret = state.unmake("ibv_destroy_srq", srq);
    if ret == 0
        && let Some(removed) = state.srqs.remove(&srq.addr())
    {
        for receive in &removed.receives {
            state.touch("a shared receive queue", &receive.sges);
        }
    }
    ret
}

impl State {
    /// Takes a shared receive, or returns the error of posting.
    fn take_shared_receive(&mut self, srq: usize, posted: PostedReceive) -> c_int {
        self.check_receive(&posted);
        if let Err(errno) = self.attempt(Call::PostSrqRecv) {
            return errno;
        }
        let this = self.srqs.get_mut(&srq).unwrap();
        if posted.sges.len() > this.attr.max_sge as usize {
            return libc::EINVAL;
        }
        if this.receives.len() >= this.attr.max_wr as usize {
            return libc::ENOMEM;
        }
        this.receives.push_back(posted);
        0
    }
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ffi::ibv_srq,
    wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(srq) };
    state.used("ibv_post_srq_recv", srq.addr());
    state.doorbells += 1;
    let take = |state: &mut State, posted| state.take_shared_receive(srq.addr(), posted);
    // SAFETY: the caller's chain and place.
    unsafe { post_receives(&mut state, wr, bad, take) }
}
