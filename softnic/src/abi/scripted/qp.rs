//! Queue pairs: creation, transitions, and attached objects.

use std::{collections::VecDeque, ffi::c_int, ptr};

use ibverbs_sys as ffi;

use super::{
    post::{PostedReceive, PostedSend},
    post_ex,
    state::{State, state_of, state_of_context},
    table::attributes_of,
};
use crate::abi::{null, qp_ex::Table};

/// A queue pair.
pub(super) struct ScriptedQp {
    pub(super) number: u32,
    pub(super) kind: ffi::ibv_qp_type,
    pub(super) state: ffi::ibv_qp_state,
    pub(super) cap: ffi::ibv_qp_cap,
    pub(super) signal_all: bool,
    pub(super) send_cq: usize,
    pub(super) recv_cq: usize,
    pub(super) srq: usize,
    pub(super) sends: VecDeque<PostedSend>,
    pub(super) receives: VecDeque<PostedReceive>,
    /// The attributes set up to now.
    pub(super) attr: ffi::ibv_qp_attr,
    pub(super) rate_limit: ffi::ibv_qp_rate_limit_attr,
    /// The operations of the extended interface, chosen at creation.
    pub(super) operations: u64,
    /// The handling of packets, as `ibv_qp_create_flags`.
    pub(super) create_flags: u32,
    pub(super) building: Option<Vec<PostedSend>>,
    groups: Vec<[u8; 16]>,
    /// The counters of its completions, and the counted operations.
    pub(super) comp_cntrs: Vec<(usize, u32)>,
    /// The function, the key and the fields of the packet hash.
    pub(super) rx_hash: Option<(u8, Vec<u8>, u64)>,
    ece: ffi::ibv_ece,
}

impl ScriptedQp {
    /// A queue pair after its creation with these attributes.
    fn in_reset(number: u32, attr: &ffi::ibv_qp_init_attr_ex) -> Self {
        let mut current = ffi::ibv_qp_attr::zeroed();
        current.cap = attr.cap;
        Self {
            number,
            kind: attr.qp_type,
            state: ffi::ibv_qp_state::IBV_QPS_RESET,
            cap: attr.cap,
            signal_all: attr.sq_sig_all != 0,
            send_cq: attr.send_cq.addr(),
            recv_cq: attr.recv_cq.addr(),
            srq: attr.srq.addr(),
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            attr: current,
            rate_limit: ffi::ibv_qp_rate_limit_attr::zeroed(),
            operations: 0,
            create_flags: 0,
            building: None,
            groups: Vec::new(),
            comp_cntrs: Vec::new(),
            rx_hash: None,
            ece: ffi::ibv_ece {
                vendor_id: 0x15b3,
                options: 0x10,
                comp_mask: 0,
            },
        }
    }
}

/// Fills the fields of a new queue pair.
fn describe(
    qp: &mut ffi::ibv_qp,
    ctx: *mut ffi::ibv_context,
    attr: &ffi::ibv_qp_init_attr_ex,
    number: u32,
) {
    qp.context = ctx;
    qp.qp_context = attr.qp_context;
    qp.pd = attr.pd;
    qp.send_cq = attr.send_cq;
    qp.recv_cq = attr.recv_cq;
    qp.srq = attr.srq;
    qp.handle = number;
    qp.qp_num = number;
    qp.qp_type = attr.qp_type;
}

impl State {
    pub(super) fn qp(&self, number: u32) -> &ScriptedQp {
        let found = self.qps.values().find(|qp| qp.number == number);
        found.unwrap_or_else(|| panic!("there is no queue pair {number:#x}"))
    }

    pub(super) fn qp_by_number(&mut self, number: u32) -> &mut ScriptedQp {
        let found = self.qps.values_mut().find(|qp| qp.number == number);
        found.unwrap_or_else(|| panic!("there is no queue pair {number:#x}"))
    }

    /// The attributes of a queue pair, with its state.
    pub(super) fn qp_attr(&self, number: u32) -> ffi::ibv_qp_attr {
        let qp = self.qp(number);
        ffi::ibv_qp_attr {
            qp_state: qp.state,
            ..qp.attr
        }
    }

    pub(super) fn qp_mut(&mut self, qp: usize) -> &mut ScriptedQp {
        self.qps.get_mut(&qp).unwrap()
    }

    /// Removing the completions of a queue pair from its completion queues takes their locks.
    fn lock_cqs_of(&mut self, call: &'static str, qp: usize) {
        if let Some(this) = self.qps.get(&qp) {
            for cq in [this.send_cq, this.recv_cq] {
                self.lock_cq(call, cq);
            }
        }
    }

    fn rx_hash(&self, attr: &ffi::ibv_qp_init_attr_ex) -> Option<(u8, Vec<u8>, u64)> {
        let rx_hash = ffi::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_RX_HASH.0;
        (attr.comp_mask & rx_hash != 0).then(|| {
            let hash = &attr.rx_hash_conf;
            let len = usize::from(hash.rx_hash_key_len);
            // SAFETY: the caller's key has the stated length.
            let key = unsafe { std::slice::from_raw_parts(hash.rx_hash_key, len) };
            (
                hash.rx_hash_function,
                key.to_vec(),
                hash.rx_hash_fields_mask,
            )
        })
    }

    /// Makes a queue pair of complete attributes.
    fn create_qp(
        &mut self,
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
        call: &'static str,
    ) -> *mut ffi::ibv_qp {
        use ffi::ibv_qp_init_attr_mask as has;
        let max = &self.properties.attr.orig_attr;
        let (max_wr, max_sge) = (max.max_qp_wr as u32, max.max_sge as u32);
        let cap = attr.cap;
        if cap.max_send_wr > max_wr
            || cap.max_recv_wr > max_wr
            || cap.max_send_sge > max_sge
            || cap.max_recv_sge > max_sge
            || cap.max_inline_data > 512
        {
            return null(libc::EINVAL);
        }
        let parents = [
            attr.pd.addr(),
            attr.send_cq.addr(),
            attr.recv_cq.addr(),
            attr.srq.addr(),
            attr.xrcd.addr(),
            attr.rwq_ind_tbl.addr(),
        ];
        let requested = |bit: has| attr.comp_mask & bit.0 != 0;
        let operations = match requested(has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) {
            true => attr.send_ops_flags,
            false => 0,
        };
        let create_flags = match requested(has::IBV_QP_INIT_ATTR_CREATE_FLAGS) {
            true => attr.create_flags,
            false => 0,
        };
        let offered = operations & !self.properties.promised;
        let mut number = 0;
        let raw = self.make(call, &parents, |table: &mut Table, num| {
            number = num;
            describe(&mut table.ex.qp_base, ctx, attr, number);
            if operations != 0 {
                post_ex::fill(table, offered);
            }
        });
        // Providers often grant more than requested.
        attr.cap.max_inline_data = attr.cap.max_inline_data.max(16);
        let state = ScriptedQp {
            operations,
            create_flags,
            rx_hash: self.rx_hash(attr),
            ..ScriptedQp::in_reset(number, attr)
        };
        self.qps.insert(raw.addr(), state);
        raw.cast()
    }
}

pub(in crate::abi) unsafe extern "C" fn create_qp(
    pd: *mut ffi::ibv_pd,
    attr: *mut ffi::ibv_qp_init_attr,
) -> *mut ffi::ibv_qp {
    // SAFETY: live.
    let ctx = unsafe { (*pd).context };
    // SAFETY: the caller's attributes.
    let attr = unsafe { &mut *attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(pd) };
    let mut full = ffi::ibv_qp_init_attr_ex::zeroed();
    full.qp_context = attr.qp_context;
    full.send_cq = attr.send_cq;
    full.recv_cq = attr.recv_cq;
    full.srq = attr.srq;
    full.cap = attr.cap;
    full.qp_type = attr.qp_type;
    full.sq_sig_all = attr.sq_sig_all;
    full.pd = pd;
    let qp = state.create_qp(ctx, &mut full, "ibv_create_qp");
    attr.cap = full.cap;
    qp
}

pub(in crate::abi) unsafe extern "C" fn create_qp_ex(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_init_attr_ex,
) -> *mut ffi::ibv_qp {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &mut *attr };
    // SAFETY: an open context.
    unsafe { state_of_context(ctx) }.create_qp(ctx, attr, "ibv_create_qp_ex")
}

pub(in crate::abi) unsafe extern "C" fn open_qp(
    ctx: *mut ffi::ibv_context,
    attr: *mut ffi::ibv_qp_open_attr,
) -> *mut ffi::ibv_qp {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an open context.
    let mut state = unsafe { state_of_context(ctx) };
    let source = state.qps.values().find(|qp| qp.number == attr.qp_num);
    let Some((to, source_attr)) = source.map(|qp| (qp.state, qp.attr)) else {
        return null(libc::EINVAL);
    };
    let mut full = ffi::ibv_qp_init_attr_ex::zeroed();
    full.qp_context = attr.qp_context;
    full.qp_type = attr.qp_type;
    full.xrcd = attr.xrcd;
    let raw = state.create_qp(ctx, &mut full, "ibv_open_qp");
    if let Some(opened) = state.qps.get_mut(&raw.addr()) {
        (opened.number, opened.state, opened.attr) = (attr.qp_num, to, source_attr);
        // SAFETY: fresh.
        unsafe { (*raw).qp_num = attr.qp_num };
    }
    raw
}

pub(in crate::abi) unsafe extern "C" fn modify_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.used("ibv_modify_qp", qp.addr());
    state.lock_cqs_of("ibv_modify_qp", qp.addr());
    let this = state.qp_mut(qp.addr());
    let mask = mask as u32;
    let state_bit = ffi::ibv_qp_attr_mask::IBV_QP_STATE.0;
    let from = this.state;
    let to = if mask & state_bit != 0 {
        attr.qp_state
    } else {
        from
    };
    let Some((needs, allows)) = attributes_of(from, to, this.kind) else {
        return libc::EINVAL;
    };
    let set = mask & !state_bit;
    let assumes = mask & ffi::ibv_qp_attr_mask::IBV_QP_CUR_STATE.0 != 0;
    if set & needs != needs
        || set & !(needs | allows) != 0
        || (assumes && attr.cur_qp_state != from)
    {
        return libc::EINVAL;
    }
    if mask & ffi::ibv_qp_attr_mask::IBV_QP_PORT.0 != 0 && attr.port_num != 1 {
        return libc::EINVAL;
    }
    this.remember(attr, mask);
    this.state = to;
    // SAFETY: live, and the field is the library's.
    unsafe { (*qp).state = to };
    let number = this.number;
    match to {
        ffi::ibv_qp_state::IBV_QPS_RESET => {
            // Work in flight is dropped silently.
            state.last_moment(qp.addr());
            let this = state.qp_mut(qp.addr());
            this.sends.clear();
            this.receives.clear();
            state.forget_copies(qp.addr());
        }
        ffi::ibv_qp_state::IBV_QPS_ERR => state.flush(number),
        ffi::ibv_qp_state::IBV_QPS_SQD if from != to => {
            let notify = ffi::ibv_qp_attr_mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;
            if mask & notify != 0 && attr.en_sqd_async_notify != 0 {
                state.raise(
                    ffi::ibv_event_type::IBV_EVENT_SQ_DRAINED,
                    qp.expose_provenance(),
                );
            }
        }
        _ => {}
    }
    0
}

impl ScriptedQp {
    /// Records the attributes selected by the mask, for `ibv_query_qp`.
    fn remember(&mut self, attr: &ffi::ibv_qp_attr, mask: u32) {
        use ffi::ibv_qp_attr_mask as has;
        macro_rules! keep {
            ($($bit:ident: $($field:ident),+;)*) => {$(
                if mask & has::$bit.0 != 0 {
                    $(self.attr.$field = attr.$field;)+
                }
            )*};
        }
        keep! {
            IBV_QP_ACCESS_FLAGS: qp_access_flags;
            IBV_QP_PKEY_INDEX: pkey_index;
            IBV_QP_PORT: port_num;
            IBV_QP_QKEY: qkey;
            IBV_QP_AV: ah_attr;
            IBV_QP_PATH_MTU: path_mtu;
            IBV_QP_TIMEOUT: timeout;
            IBV_QP_RETRY_CNT: retry_cnt;
            IBV_QP_RNR_RETRY: rnr_retry;
            IBV_QP_RQ_PSN: rq_psn;
            IBV_QP_MAX_QP_RD_ATOMIC: max_rd_atomic;
            IBV_QP_ALT_PATH: alt_ah_attr, alt_pkey_index, alt_port_num, alt_timeout;
            IBV_QP_MIN_RNR_TIMER: min_rnr_timer;
            IBV_QP_SQ_PSN: sq_psn;
            IBV_QP_MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
            IBV_QP_PATH_MIG_STATE: path_mig_state;
            IBV_QP_DEST_QPN: dest_qp_num;
            IBV_QP_RATE_LIMIT: rate_limit;
        }
    }
}

pub(in crate::abi) unsafe extern "C" fn query_qp(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_attr,
    _mask: c_int,
    init: *mut ffi::ibv_qp_init_attr,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.used("ibv_query_qp", qp.addr());
    let this = state.qp_mut(qp.addr());
    // SAFETY: live.
    let raw = unsafe { &*qp };
    let mut found = this.attr;
    found.qp_state = this.state;
    found.cur_qp_state = this.state;
    let mut created = ffi::ibv_qp_init_attr::zeroed();
    created.qp_context = raw.qp_context;
    created.send_cq = raw.send_cq;
    created.recv_cq = raw.recv_cq;
    created.srq = raw.srq;
    created.cap = this.cap;
    created.qp_type = this.kind;
    created.sq_sig_all = this.signal_all.into();
    // SAFETY: the caller's place.
    unsafe { *attr = found };
    // SAFETY: the caller's place.
    unsafe { *init = created };
    0
}

pub(in crate::abi) unsafe extern "C" fn query_qp_data_in_order(
    _qp: *mut ffi::ibv_qp,
    op: ffi::ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    (op == ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE).into()
}

pub(in crate::abi) unsafe extern "C" fn destroy_qp(qp: *mut ffi::ibv_qp) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.lock_cqs_of("ibv_destroy_qp", qp.addr());
    let this = state.qps.get(&qp.addr());
    if this.is_some_and(|qp| !qp.groups.is_empty()) {
        return libc::EBUSY;
    }
    let ret = state.unmake("ibv_destroy_qp", qp.cast::<Table>());
    if ret == 0 {
        state.last_moment(qp.addr());
    }
    let removed = (ret == 0).then(|| state.qps.remove(&qp.addr())).flatten();
    if removed.is_some_and(|qp| qp.building.is_some()) {
        state.complain("a queue pair was destroyed while requests were built".to_owned());
    }
    ret
}

pub(in crate::abi) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ffi::ibv_qp) -> *mut ffi::ibv_qp_ex {
    // SAFETY: an object of the device.
    let state = unsafe { state_of(qp) };
    match state.qps.get(&qp.addr()) {
        Some(this) if this.operations != 0 => qp.cast(),
        _ => ptr::null_mut(),
    }
}

pub(in crate::abi) unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ffi::ibv_qp,
    attr: *mut ffi::ibv_qp_rate_limit_attr,
) -> c_int {
    // SAFETY: the caller's attributes.
    let attr = unsafe { &*attr };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    let this = state.qp_mut(qp.addr());
    if this.state != ffi::ibv_qp_state::IBV_QPS_RTS {
        return libc::EINVAL;
    }
    this.rate_limit = *attr;
    0
}

pub(in crate::abi) unsafe extern "C" fn attach_mcast(
    qp: *mut ffi::ibv_qp,
    gid: *const ffi::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: live.
    let gid = unsafe { *gid }.to_raw();
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    let this = state.qp_mut(qp.addr());
    if this.kind != ffi::ibv_qp_type::IBV_QPT_UD {
        return libc::EINVAL;
    }
    if !this.groups.contains(&gid) {
        this.groups.push(gid);
    }
    0
}

pub(in crate::abi) unsafe extern "C" fn detach_mcast(
    qp: *mut ffi::ibv_qp,
    gid: *const ffi::ibv_gid,
    _lid: u16,
) -> c_int {
    // SAFETY: live.
    let gid = unsafe { *gid }.to_raw();
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    let groups = &mut state.qp_mut(qp.addr()).groups;
    match groups.iter().position(|group| *group == gid) {
        Some(found) => {
            groups.remove(found);
            0
        }
        None => libc::EINVAL,
    }
}

pub(in crate::abi) unsafe extern "C" fn set_ece(
    qp: *mut ffi::ibv_qp,
    ece: *mut ffi::ibv_ece,
) -> c_int {
    // SAFETY: the caller's attributes.
    let ece = unsafe { *ece };
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    state.qp_mut(qp.addr()).ece = ece;
    0
}

pub(in crate::abi) unsafe extern "C" fn query_ece(
    qp: *mut ffi::ibv_qp,
    ece: *mut ffi::ibv_ece,
) -> c_int {
    // SAFETY: an object of the device.
    let mut state = unsafe { state_of(qp) };
    // SAFETY: the caller's place.
    unsafe { *ece = state.qp_mut(qp.addr()).ece };
    0
}
