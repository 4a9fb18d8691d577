//! Two queue pairs of one process, connected to each other through the device.

use ibverbs_sys as ffi;
use verbs::{
    Attributes, CompletionQueue, Context, Init, ProtectionDomain, QueuePair, Rc, Reset, Rtr, Rts,
    work::{Gather, Scatter},
};

/// The device under test.
pub(crate) fn open() -> Context {
    let devices = verbs::devices().unwrap();
    assert!(
        !devices.is_empty(),
        "these tests need an RDMA device: run `cargo xtask test`"
    );
    devices.iter().next().unwrap().open().unwrap()
}

/// A device with one protection domain.
pub(crate) struct Fixture {
    pub(crate) ctx: Context,
    pub(crate) pd: ProtectionDomain,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let ctx = open();
        let pd = ctx.alloc_pd().unwrap();
        Self { ctx, pd }
    }

    pub(crate) fn cq(&self, entries: u32) -> CompletionQueue {
        self.ctx.cq_builder(entries).waitable().create().unwrap()
    }

    /// A queue pair with room for `depth` requests on each queue.
    pub(crate) fn qp<SW, RW>(
        &self,
        cq: &CompletionQueue,
        depth: u32,
    ) -> QueuePair<Rc, Reset, SW, RW> {
        self.pd
            .qp_builder(cq, cq)
            .max_send_wr(depth)
            .max_recv_wr(depth)
            .max_send_sge(4)
            .max_recv_sge(4)
            .create_for()
            .unwrap()
    }

    /// Two queue pairs that send to each other.
    pub(crate) fn pair<SW: Gather, RW: Scatter>(
        &self,
        cq: &CompletionQueue,
        depth: u32,
    ) -> (QueuePair<Rc, Rts, SW, RW>, QueuePair<Rc, Rts, SW, RW>) {
        let (a, b) = (self.qp(cq, depth), self.qp(cq, depth));
        let (a_num, b_num) = (a.qp_num(), b.qp_num());
        (self.bring_up(a, b_num), self.bring_up(b, a_num))
    }

    pub(crate) fn init(&self) -> Attributes<Init> {
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.port_num = 1;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE
            | ffi::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | ffi::ibv_qp_attr_mask::IBV_QP_PORT
            | ffi::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        Attributes::from_raw(attr, mask.0 as i32)
    }

    pub(crate) fn rtr(&self, peer: u32) -> Attributes<Rtr> {
        let (sgid_index, gid) = self.gid();
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.path_mtu = ffi::ibv_mtu::IBV_MTU_1024;
        attr.dest_qp_num = peer;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = gid;
        attr.ah_attr.grh.sgid_index = sgid_index;
        attr.ah_attr.grh.hop_limit = 1;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE
            | ffi::ibv_qp_attr_mask::IBV_QP_AV
            | ffi::ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | ffi::ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | ffi::ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | ffi::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | ffi::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        Attributes::from_raw(attr, mask.0 as i32)
    }

    pub(crate) fn rts(&self) -> Attributes<Rts> {
        let mut attr = ffi::ibv_qp_attr::zeroed();
        attr.timeout = 14;
        attr.retry_cnt = 6;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 1;
        let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE
            | ffi::ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | ffi::ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | ffi::ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | ffi::ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | ffi::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        Attributes::from_raw(attr, mask.0 as i32)
    }

    pub(crate) fn bring_up<SW: Gather, RW: Scatter>(
        &self,
        qp: QueuePair<Rc, Reset, SW, RW>,
        peer: u32,
    ) -> QueuePair<Rc, Rts, SW, RW> {
        let qp = qp
            .to_init(&self.init())
            .map_err(|refused| refused.error)
            .unwrap();
        let qp = qp
            .to_rtr(&self.rtr(peer))
            .map_err(|refused| refused.error)
            .unwrap();
        qp.to_rts(&self.rts())
            .map_err(|refused| refused.error)
            .unwrap()
    }

    /// The first entry of the GID table that is an IPv4 address.
    fn gid(&self) -> (u8, ffi::ibv_gid) {
        (0..16)
            .find_map(|index| {
                let mut gid = ffi::ibv_gid::default();
                // SAFETY: the context is open, and `gid` is a valid place for the result.
                let ret = unsafe { ffi::ibv_query_gid(self.ctx.as_raw(), 1, index, &raw mut gid) };
                let raw = gid.to_raw();
                let mapped = raw[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
                (ret == 0 && mapped).then_some((u8::try_from(index).unwrap(), gid))
            })
            .expect("the device has no IPv4 address")
    }
}
