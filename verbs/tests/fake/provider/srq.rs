//! Shared receive queues.

use std::{collections::VecDeque, ffi::c_int};

use ibverbs_sys as ffi;

use super::{
    cq::Extra,
    post::{PostedReceive, ring},
    state::{Ptr, State, device_of, device_of_context, null},
    tags::Tags,
};

/// A shared receive queue.
pub(super) struct Srq {
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
        if let Err(errno) = self.called(call) {
            return null(errno);
        }
        let parents = [attr.pd.addr(), attr.xrcd.addr(), attr.cq.addr()];
        let srq: *mut ffi::ibv_srq = self.make(call, &parents);
        let number = self.next();
        // SAFETY: fresh.
        unsafe {
            (*srq).context = ctx;
            (*srq).srq_context = attr.srq_context;
            (*srq).pd = attr.pd;
            (*srq).handle = number;
        }
        let state = Srq {
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

    pub(super) fn take_from_srq(&mut self, srq: usize) -> PostedReceive {
        let this = self.srqs.get_mut(&srq).unwrap();
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_srq_init_attr,
) -> *mut ffi::ibv_srq {
    // SAFETY: one of the fake's, and the caller's attributes.
    let (shared, ctx, attr) = unsafe { (device_of(pd), (*pd).context, &*attr) };
    let mut full = ffi::ibv_srq_init_attr_ex::zeroed();
    full.srq_context = attr.srq_context;
    full.attr = attr.attr;
    full.pd = pd;
    shared.lock().create_srq("ibv_create_srq", ctx, &full)
}

pub(super) unsafe extern "C" fn create_srq_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_srq_init_attr_ex,
) -> *mut ffi::ibv_srq {
    // SAFETY: an open context, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of_context(ctx), &*attr) };
    shared.lock().create_srq("ibv_create_srq_ex", ctx, attr)
}

pub(super) unsafe extern "C" fn get_srq_num(srq: *mut ffi::ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(srq) };
    let state = shared.lock();
    let this = &state.srqs[&srq.addr()];
    if this.kind == ffi::ibv_srq_type::IBV_SRQT_BASIC {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: the caller's place.
    unsafe { *number = this.number };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ffi::ibv_srq,
    attr: *mut ffi::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: one of the fake's, and the caller's attributes.
    let (shared, attr) = unsafe { (device_of(srq), &*attr) };
    let mut state = shared.lock();
    state.used("ibv_modify_srq", srq.addr());
    if let Err(errno) = state.called("ibv_modify_srq") {
        return errno;
    }
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

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ffi::ibv_srq, attr: *mut ffi::ibv_srq_attr) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(srq) };
    let mut state = shared.lock();
    if let Err(errno) = state.called("ibv_query_srq") {
        return errno;
    }
    // SAFETY: the caller's place.
    unsafe { *attr = state.srqs[&srq.addr()].attr };
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ffi::ibv_srq) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(srq) };
    let mut state = shared.lock();
    let ret = state.unmake("ibv_destroy_srq", srq);
    if ret == 0
        && let Some(gone) = state.srqs.remove(&srq.addr())
    {
        for receive in &gone.receives {
            state.touch("a shared receive queue", &receive.sges);
        }
    }
    ret
}

pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ffi::ibv_srq,
    mut wr: *mut ffi::ibv_recv_wr,
    bad: *mut *mut ffi::ibv_recv_wr,
) -> c_int {
    // SAFETY: one of the fake's.
    let shared = unsafe { device_of(srq) };
    let mut state = shared.lock();
    state.used("ibv_post_srq_recv", srq.addr());
    state.doorbells += 1;
    while !wr.is_null() {
        // SAFETY: the caller's chain of requests.
        let posted = unsafe { PostedReceive::read(&*wr) };
        state.check_receive(&posted);
        let failed = state.attempt("ibv_post_srq_recv");
        let this = state.srqs.get_mut(&srq.addr()).unwrap();
        let ret = match failed {
            Err(errno) => errno,
            Ok(()) if posted.sges.len() > this.attr.max_sge as usize => libc::EINVAL,
            Ok(()) if this.receives.len() >= this.attr.max_wr as usize => libc::ENOMEM,
            Ok(()) => 0,
        };
        if ret != 0 {
            // SAFETY: the caller's place.
            unsafe { *bad = wr };
            return ret;
        }
        this.receives.push_back(posted);
        // SAFETY: the caller's chain of requests.
        wr = unsafe { (*wr).next };
    }
    // SAFETY: the caller's place.
    unsafe { ring(&mut state, bad) }
}
