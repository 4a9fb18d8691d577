//! A device with one queue pair, used as by a program in C.

use std::{cell::UnsafeCell, ffi::c_int, net::IpAddr, ptr};

use ibverbs_sys as ffi;
use softnic::{Fabric, Host};

/// A call of C on live objects.
macro_rules! c {
    ($call:expr) => {
        // SAFETY: the objects are live, and the memory is the test's.
        unsafe { $call }
    };
}
pub(crate) use c;

pub(crate) const SEND: ffi::ibv_wr_opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
pub(crate) const WRITE: ffi::ibv_wr_opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
pub(crate) const READ: ffi::ibv_wr_opcode = ffi::ibv_wr_opcode::IBV_WR_RDMA_READ;

/// Number of polls after which a completion is overdue.
const MAX_POLLS: usize = 10_000_000;

/// Rights of the memory and queue pairs.
pub(crate) const ALL_RIGHTS: u32 = 0xf;

/// Sizes of the queues, and the transport.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) cqe: c_int,
    pub(crate) send_wr: u32,
    pub(crate) recv_wr: u32,
    pub(crate) kind: ffi::ibv_qp_type,
    /// Whether the completion queue has a channel.
    pub(crate) has_channel: bool,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            cqe: 63,
            send_wr: 16,
            recv_wr: 16,
            kind: ffi::ibv_qp_type::IBV_QPT_RC,
            has_channel: false,
        }
    }
}

/// Attributes of a connection.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) rq_psn: u32,
    pub(crate) sq_psn: u32,
    pub(crate) max_dest_rd_atomic: u8,
    pub(crate) rnr_retry: u8,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rq_psn: 0,
            sq_psn: 0,
            max_dest_rd_atomic: 16,
            rnr_retry: 7,
        }
    }
}

/// Memory of a device: other accesses are possible at any time, as in C.
pub(crate) struct Bytes(Box<[UnsafeCell<u8>]>);

impl Bytes {
    pub(crate) fn new(len: usize, value: u8) -> Self {
        Self((0..len).map(|_| UnsafeCell::new(value)).collect())
    }

    pub(crate) fn addr(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    pub(crate) fn set(&self, at: usize, value: u8) {
        c!(ptr::write_volatile(self.0[at].get(), value));
    }

    pub(crate) fn get(&self, at: usize) -> u8 {
        c!(ptr::read_volatile(self.0[at].get()))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A host's device and its objects.
pub(crate) struct End {
    pub(crate) ctx: *mut ffi::ibv_context,
    pub(crate) pd: *mut ffi::ibv_pd,
    pub(crate) channel: *mut ffi::ibv_comp_channel,
    pub(crate) cq: *mut ffi::ibv_cq,
    pub(crate) qp: *mut ffi::ibv_qp,
}

impl End {
    /// Opens the device of a host.
    pub(crate) fn open(host: &Host) -> *mut ffi::ibv_context {
        host.run(|| {
            let mut count = 0;
            let list = c!(ffi::ibv_get_device_list(&raw mut count));
            let device = c!(list.read());
            let ctx = c!(ffi::ibv_open_device(device));
            c!(ffi::ibv_free_device_list(list));
            ctx
        })
    }

    pub(crate) fn new(host: &Host, sizes: Sizes) -> Self {
        let ctx = Self::open(host);
        assert!(!ctx.is_null());
        let pd = c!(ffi::ibv_alloc_pd(ctx));
        let channel = match sizes.has_channel {
            true => c!(ffi::ibv_create_comp_channel(ctx)),
            false => ptr::null_mut(),
        };
        let cq = c!(ffi::ibv_create_cq(
            ctx,
            sizes.cqe,
            ptr::null_mut(),
            channel,
            0
        ));
        let mut end = Self {
            ctx,
            pd,
            channel,
            cq,
            qp: ptr::null_mut(),
        };
        end.qp = end.create_qp(sizes);
        end
    }

    pub(crate) fn create_qp(&self, sizes: Sizes) -> *mut ffi::ibv_qp {
        self.create_qp_with(sizes, ptr::null_mut())
    }

    /// Creates a queue pair that takes its receives from a shared queue, if any.
    fn create_qp_with(&self, sizes: Sizes, srq: *mut ffi::ibv_srq) -> *mut ffi::ibv_qp {
        let mut init = ffi::ibv_qp_init_attr::zeroed();
        (init.send_cq, init.recv_cq) = (self.cq, self.cq);
        init.qp_type = sizes.kind;
        init.srq = srq;
        (init.cap.max_send_wr, init.cap.max_recv_wr) = (sizes.send_wr, sizes.recv_wr);
        (init.cap.max_send_sge, init.cap.max_recv_sge) = (2, 2);
        init.cap.max_inline_data = 64;
        let qp = c!(ffi::ibv_create_qp(self.pd, &raw mut init));
        assert!(!qp.is_null());
        qp
    }

    pub(crate) fn qp_num(&self) -> u32 {
        c!((*self.qp).qp_num)
    }

    pub(crate) fn register(&self, bytes: &Bytes, access: u32) -> *mut ffi::ibv_mr {
        let addr = ptr::with_exposed_provenance_mut(usize::try_from(bytes.addr()).unwrap());
        c!(ffi::ibv_reg_mr(self.pd, addr, bytes.len(), access))
    }

    pub(crate) fn send(&self, wr: &mut ffi::ibv_send_wr) -> c_int {
        let mut bad = ptr::null_mut();
        c!(ffi::ibv_post_send(self.qp, wr, &raw mut bad))
    }

    pub(crate) fn recv(&self, wr_id: u64, sge: &mut ffi::ibv_sge) -> c_int {
        let mut wr = ffi::ibv_recv_wr::zeroed();
        wr.wr_id = wr_id;
        (wr.sg_list, wr.num_sge) = (sge, 1);
        let mut bad = ptr::null_mut();
        c!(ffi::ibv_post_recv(self.qp, &raw mut wr, &raw mut bad))
    }

    /// Polls once.
    pub(crate) fn poll(&self) -> Option<ffi::ibv_wc> {
        let mut wc = ffi::ibv_wc::zeroed();
        match c!(ffi::ibv_poll_cq(self.cq, 1, &raw mut wc)) {
            0 => None,
            1 => Some(wc),
            error => panic!("ibv_poll_cq returned {error}"),
        }
    }

    /// Polls until a completion comes.
    pub(crate) fn wait(&self) -> ffi::ibv_wc {
        let mut polls = (0..MAX_POLLS).map(|_| self.poll());
        polls.find_map(|wc| wc).expect("no completion")
    }

    pub(crate) fn gid(&self) -> ffi::ibv_gid {
        let mut gid = ffi::ibv_gid::from_raw([0; 16]);
        assert_eq!(c!(ffi::ibv_query_gid(self.ctx, 1, 0, &raw mut gid)), 0);
        gid
    }

    pub(crate) fn path_to(&self, peer: &Self) -> ffi::ibv_ah_attr {
        let mut ah = ffi::ibv_ah_attr::zeroed();
        ah.is_global = 1;
        ah.port_num = 1;
        ah.grh.dgid = peer.gid();
        ah.grh.hop_limit = 64;
        ah
    }

    /// Brings the queue pair to INIT.
    pub(crate) fn init(&self) {
        use ffi::ibv_qp_attr_mask as mask;
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = 1;
        attr.qkey = 7;
        attr.qp_access_flags = ALL_RIGHTS;
        let kind = c!((*self.qp).qp_type);
        let last = match kind {
            ffi::ibv_qp_type::IBV_QPT_UD => mask::IBV_QP_QKEY,
            _ => mask::IBV_QP_ACCESS_FLAGS,
        };
        let set = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | last;
        self.modify(&mut attr, set.0);
    }

    pub(crate) fn modify(&self, attr: &mut ffi::ibv_qp_attr, mask: u32) {
        assert_eq!(c!(ffi::ibv_modify_qp(self.qp, attr, mask.cast_signed())), 0);
    }

    /// Brings the queue pair from INIT to RTS.
    pub(crate) fn bring_up(&self, peer: &Self) {
        self.bring_up_from(peer, 0, 0);
    }

    /// Brings the queue pair from INIT to RTS, with packet sequence numbers.
    pub(crate) fn bring_up_from(&self, peer: &Self, rq_psn: u32, sq_psn: u32) {
        let limits = Limits {
            rq_psn,
            sq_psn,
            ..Limits::default()
        };
        self.bring_up_with(peer, limits);
    }

    /// Brings the queue pair from INIT to RTS.
    pub(crate) fn bring_up_with(&self, peer: &Self, limits: Limits) {
        use ffi::ibv_qp_attr_mask as mask;
        let is_ud = c!((*self.qp).qp_type) == ffi::ibv_qp_type::IBV_QPT_UD;
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTR;
        attr.path_mtu = ffi::ibv_mtu::IBV_MTU_1024;
        attr.dest_qp_num = peer.qp_num();
        (attr.rq_psn, attr.sq_psn) = (limits.rq_psn, limits.sq_psn);
        attr.ah_attr = self.path_to(peer);
        attr.max_dest_rd_atomic = limits.max_dest_rd_atomic;
        attr.min_rnr_timer = 1;
        let connected = mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        let state = mask::IBV_QP_STATE.0;
        self.modify(&mut attr, state | if is_ud { 0 } else { connected.0 });
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_RTS;
        attr.max_rd_atomic = 16;
        attr.timeout = 10;
        attr.retry_cnt = 7;
        attr.rnr_retry = limits.rnr_retry;
        let connected = mask::IBV_QP_MAX_QP_RD_ATOMIC
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY;
        let psn = state | mask::IBV_QP_SQ_PSN.0;
        self.modify(&mut attr, psn | if is_ud { 0 } else { connected.0 });
    }

    /// Moves the queue pair to the error state.
    pub(crate) fn fail(&self) {
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.qp_state = ffi::ibv_qp_state::IBV_QPS_ERR;
        self.modify(&mut attr, ffi::ibv_qp_attr_mask::IBV_QP_STATE.0);
    }
}

/// An element that names a whole region.
pub(crate) fn element_of(mr: *mut ffi::ibv_mr) -> ffi::ibv_sge {
    ffi::ibv_sge {
        addr: c!((*mr).addr).expose_provenance() as u64,
        length: u32::try_from(c!((*mr).length)).unwrap(),
        lkey: c!((*mr).lkey),
    }
}

/// A signaled request with one element.
pub(crate) fn request(
    opcode: ffi::ibv_wr_opcode,
    wr_id: u64,
    sge: &mut ffi::ibv_sge,
) -> ffi::ibv_send_wr {
    let mut wr = ffi::ibv_send_wr::zeroed();
    wr.wr_id = wr_id;
    wr.opcode = opcode;
    wr.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
    (wr.sg_list, wr.num_sge) = (sge, 1);
    wr
}

/// A signaled request to memory of the peer, with one element.
pub(crate) fn remote_request(
    opcode: ffi::ibv_wr_opcode,
    wr_id: u64,
    sge: &mut ffi::ibv_sge,
    peer: *mut ffi::ibv_mr,
) -> ffi::ibv_send_wr {
    let mut wr = request(opcode, wr_id, sge);
    wr.wr.rdma.remote_addr = c!((*peer).addr).expose_provenance() as u64;
    wr.wr.rdma.rkey = c!((*peer).rkey);
    wr
}

/// Two hosts with a connection.
pub(crate) struct Pair {
    pub(crate) a: End,
    pub(crate) b: End,
    /// The last field, so dropped last.
    pub(crate) fabric: Fabric,
}

/// Connects the queue pairs of two ends.
fn connect(a: &End, b: &End) {
    for (end, peer) in [(a, b), (b, a)] {
        end.init();
        end.bring_up(peer);
    }
}

impl Pair {
    pub(crate) fn new(fabric: Fabric, sizes: Sizes) -> Self {
        let fabric = fabric.keep_objects();
        let host = |last| fabric.host(IpAddr::from([10, 9, 0, last]));
        let (a, b) = (End::new(&host(1), sizes), End::new(&host(2), sizes));
        connect(&a, &b);
        Self { a, b, fabric }
    }

    /// Connects another queue pair of each end, and returns the one of the first.
    pub(crate) fn connect_again(&self) -> End {
        let [a, b] = [&self.a, &self.b].map(|end| End {
            qp: end.create_qp(Sizes::default()),
            ..*end
        });
        connect(&a, &b);
        a
    }

    /// Connects new queue pairs; the second end takes its receives from a shared queue of 16, which is returned.
    pub(crate) fn share_receives(&mut self) -> *mut ffi::ibv_srq {
        let mut init = ffi::ibv_srq_init_attr::zeroed();
        (init.attr.max_wr, init.attr.max_sge) = (16, 1);
        let srq = c!(ffi::ibv_create_srq(self.b.pd, &raw mut init));
        self.a.qp = self.a.create_qp(Sizes::default());
        self.b.qp = self.b.create_qp_with(Sizes::default(), srq);
        connect(&self.a, &self.b);
        srq
    }
}
