//! Bringing a queue pair up with the attributes that the connection manager knows.

use ibverbs_sys::{ibv_qp_attr, ibv_qp_state};
use rdmacm_sys as ffi;
use verbs::{
    Attributes, Init, QueuePair, Rc, Refused, Reset, Result, Rtr, Rts, State, error::cvt_neg,
};

use crate::id::{
    CmId,
    phases::{HasDevice, IdPhase},
};

/// Bits that kernels of 2014 and 2015 reported, and that no call takes.
const KERNEL_INTERNAL: u32 = 0xf << 21;

impl<P: HasDevice> CmId<P> {
    /// `rdma_init_qp_attr`—Brings a queue pair of the identifier's device to
    /// [`Init`](verbs::Init), where receives can be posted.
    ///
    /// # Errors
    /// The queue pair is given back.
    ///
    /// # References
    /// [rdma_create_qp(3)](https://man7.org/linux/man-pages/man3/rdma_create_qp.3.html)
    #[doc(alias = "rdma_init_qp_attr")]
    #[doc(alias = "rdma_create_qp")]
    #[expect(
        clippy::type_complexity,
        reason = "the queue pair that the caller gave"
    )]
    pub fn init_qp<SW, RW>(
        &self,
        qp: QueuePair<Rc, Reset, SW, RW>,
    ) -> Result<QueuePair<Rc, Init, SW, RW>, Refused<QueuePair<Rc, Reset, SW, RW>>> {
        match self.attributes(ibv_qp_state::IBV_QPS_INIT) {
            Ok(attributes) => qp.to_init(&attributes),
            Err(error) => Err(Refused { value: qp, error }),
        }
    }
}

impl<P: IdPhase> CmId<P> {
    /// `rdma_init_qp_attr`—What the connection manager knows for a transition to `S`.
    fn attributes<S: State>(&self, state: ibv_qp_state) -> Result<Attributes<Rc, S>> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = state;
        let mut mask = 0;
        // SAFETY: the identifier exists for as long as `self` lives; the two places are valid, and
        // C keeps no pointer to them.
        let ret = unsafe { ffi::rdma_init_qp_attr(self.as_raw(), &raw mut attr, &raw mut mask) };
        cvt_neg("rdma_init_qp_attr", ret).map_err(|err| err.detail(format!("to {}", S::NAME)))?;
        #[expect(clippy::cast_sign_loss, reason = "a mask, which C keeps in an int")]
        let mask = mask as u32;
        Ok(Attributes::from_raw(attr, mask & !KERNEL_INTERNAL))
    }

    /// Brings a queue pair all the way up. `responder_resources` and `initiator_depth` replace what
    /// the connection manager knows, if given; iWARP negotiates them by itself.
    pub(crate) fn bring_up<SW, RW>(
        &self,
        mut qp: QueuePair<Rc, Init, SW, RW>,
        responder_resources: Option<u8>,
        initiator_depth: Option<u8>,
    ) -> Result<QueuePair<Rc, Rts, SW, RW>> {
        // The port and the P_Key may have become known, or others, since the queue pair was
        // initialised.
        qp.modify(&self.attributes(ibv_qp_state::IBV_QPS_INIT)?)?;
        let iwarp = qp.pd().context().is_iwarp();
        let mut to_rtr: Attributes<Rc, Rtr> = self.attributes(ibv_qp_state::IBV_QPS_RTR)?;
        if let Some(count) = responder_resources.filter(|_| !iwarp) {
            to_rtr = to_rtr.max_dest_rd_atomic(count);
        }
        let qp = qp.to_rtr(&to_rtr)?;
        let mut to_rts: Attributes<Rc, Rts> = self.attributes(ibv_qp_state::IBV_QPS_RTS)?;
        if let Some(count) = initiator_depth.filter(|_| !iwarp) {
            to_rts = to_rts.max_rd_atomic(count);
        }
        Ok(qp.to_rts(&to_rts)?)
    }
}
