//! The transport.

use ibverbs_sys as ffi;
use verbs::{
    Init, QueuePair, Reset, Result, Rtr, Rts, Ud,
    qp::{Attributes, Datagram, Partitioned, Psn, VendorTransport},
};

/// Scalable Reliable Datagram: messages with an address each, which arrive once, in any order.
#[doc(alias = "EFADV_QP_DRIVER_TYPE_SRD")]
#[doc(alias = "efadv_create_qp_ex")]
#[doc(alias = "efadv_create_driver_qp")]
#[derive(Debug)]
pub struct Srd(());

// SAFETY: `efadv_create_qp_ex` makes a queue pair of the attributes, or none. Assumption: libefa changes the capacities alone, and
// keeps no pointer to the attributes of a queue pair. Assumption: a request of a queue pair of libefa's completes once, in any
// order.
unsafe impl VendorTransport for Srd {
    const NAME: &'static str = "Srd";
    const CREATE: &'static str = "efadv_create_qp_ex";
    const IN_ORDER: bool = false;
    type Attributes = Ud;

    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp {
        let mut efa = efa_sys::efadv_qp_init_attr::zeroed();
        efa.driver_qp_type = efa_sys::EFADV_QP_DRIVER_TYPE_SRD;
        let len = u32::try_from(size_of_val(&efa)).unwrap_or(0);
        // SAFETY: the caller's promise, and local attributes of this length.
        unsafe { efa_sys::efadv_create_qp_ex(ctx, attr, &raw mut efa, len) }
    }
}

// SAFETY: Assumption: libefa sends messages of reliable datagrams as those of unreliable ones.
unsafe impl Datagram for Srd {}

impl Partitioned for Srd {}

/// Brings a queue pair up on port `port_num`, counting from 1: messages with the Q_Key `qkey` arrive, and requests can be posted.
///
/// For other attributes, use the transitions of [`QueuePair`], with [`Attributes::of_vendor`] or
/// [`Attributes::from_raw`]: `IBV_QP_RNR_RETRY` with the transition to RTS is the number of retries without a receive.
///
/// # Errors
/// The device refused a transition. The queue pair is dropped.
pub fn bring_up<SW, RW>(
    qp: QueuePair<Srd, Reset, SW, RW>,
    port_num: u8,
    qkey: u32,
) -> Result<QueuePair<Srd, Rts, SW, RW>> {
    let init = Attributes::<Ud, Init>::new(port_num, qkey).of_vendor();
    let qp = qp.to_init(&init).map_err(|refused| refused.error)?;
    let rtr = Attributes::<Ud, Rtr>::new().of_vendor();
    let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error)?;
    let rts = Attributes::<Ud, Rts>::new(Psn::default()).of_vendor();
    qp.to_rts(&rts).map_err(|refused| refused.error)
}
