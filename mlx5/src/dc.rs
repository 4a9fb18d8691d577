//! The two ends of the transport.

use ibverbs_sys as ffi;
use ibverbs_sys::ibv_qp_attr_mask as has;
use mlx5_sys::{mlx5dv_dc_type, mlx5dv_qp_init_attr, mlx5dv_qp_init_attr_mask};
use verbs::{
    Context, Init, QueuePair, RemoteAccess, Reset, Result, Rtr, Rts,
    ah::AddressVector,
    attr::Mtu,
    qp::{Attributes, Partitioned, QueuePairBuilder, VendorTransport},
};

/// Dynamically connected initiator: the sending end, connected to one target at a time.
#[doc(alias = "MLX5DV_DCTYPE_DCI")]
#[derive(Debug)]
pub struct Dci(());

/// Dynamically connected target: the receiving end, for any number of initiators. It needs a
/// [shared receive queue](verbs::qp::QueuePairBuilder::srq).
///
/// [`create`](QueuePairBuilder::create) makes a target with the key 0, and [`create_target`] one with another key.
#[doc(alias = "MLX5DV_DCTYPE_DCT")]
#[derive(Debug)]
pub struct Dct(());

/// Creates one of the two ends.
///
/// # Safety
/// - As for [`VendorTransport::create`].
unsafe fn create(
    ctx: *mut ffi::ibv_context,
    attr: &mut ffi::ibv_qp_init_attr_ex,
    dc_type: mlx5dv_dc_type,
    key: u64,
) -> *mut ffi::ibv_qp {
    let mut mlx5 = mlx5dv_qp_init_attr::zeroed();
    mlx5.comp_mask = mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_DC
        .0
        .into();
    mlx5.dc_init_attr.dc_type = dc_type;
    mlx5.dc_init_attr.__bindgen_anon_1.dct_access_key = key;
    // SAFETY: the caller's promise, and local attributes.
    unsafe { mlx5_sys::mlx5dv_create_qp(ctx, attr, &raw mut mlx5) }
}

// SAFETY: `mlx5dv_create_qp` makes a queue pair of the attributes, or none. Assumption: libmlx5 changes the capacities alone, and
// keeps no pointer to the attributes of a queue pair. Assumption: requests of an initiator complete once, and in order.
unsafe impl VendorTransport for Dci {
    const NAME: &'static str = "Dci";
    const CREATE: &'static str = "mlx5dv_create_qp";
    const IN_ORDER: bool = true;
    const RECEIVES: bool = false;
    type Attributes = Self;

    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp {
        // libmlx5 destroys a queue pair with both completion queues.
        let mut both = *attr;
        both.recv_cq = both.send_cq;
        // SAFETY: the caller's promise. An initiator has no key.
        let qp = unsafe { create(ctx, &mut both, mlx5dv_dc_type::MLX5DV_DCTYPE_DCI, 0) };
        attr.cap = both.cap;
        qp
    }
}

// SAFETY: as for `Dci`. Assumption: messages to a target complete receives of its shared queue.
unsafe impl VendorTransport for Dct {
    const NAME: &'static str = "Dct";
    const CREATE: &'static str = "mlx5dv_create_qp";
    const IN_ORDER: bool = true;
    type Attributes = Self;

    unsafe fn create(
        ctx: *mut ffi::ibv_context,
        attr: &mut ffi::ibv_qp_init_attr_ex,
    ) -> *mut ffi::ibv_qp {
        // SAFETY: the caller's promise.
        unsafe { create(ctx, attr, mlx5dv_dc_type::MLX5DV_DCTYPE_DCT, 0) }
    }
}

impl Partitioned for Dci {}
impl Partitioned for Dct {}

/// `mlx5dv_is_supported`—Whether a device has the driver mlx5. Not every card with this driver has the transport.
#[doc(alias = "mlx5dv_is_supported")]
pub fn is_supported(ctx: &Context) -> bool {
    // SAFETY: the context is open for as long as `ctx` lives, and its device is set.
    let device = unsafe { (*ctx.as_raw()).device };
    // SAFETY: the device of an open context exists.
    unsafe { mlx5_sys::mlx5dv_is_supported(device) }
}

/// `mlx5dv_create_qp`—Creates a target with an access key, which initiators need beside its number.
///
/// # Errors
/// - `EOPNOTSUPP`: the device has another driver, or no such transport.
/// - `EINVAL`: the builder has no [shared receive queue](QueuePairBuilder::srq), or operations to send.
/// - As for [`QueuePairBuilder::create`].
#[doc(alias = "mlx5dv_create_qp")]
#[doc(alias = "dct_access_key")]
pub fn create_target(
    builder: QueuePairBuilder<'_, Dct>,
    key: u64,
) -> Result<QueuePair<Dct, Reset, (), ()>> {
    let create = |ctx, attr: &mut ffi::ibv_qp_init_attr_ex| {
        // SAFETY: the context and the objects of the attributes are the builder's.
        unsafe { create(ctx, attr, mlx5dv_dc_type::MLX5DV_DCTYPE_DCT, key) }
    };
    // SAFETY: `create` makes a target of the attributes, or none, as the one of `Dct`. A target has no requests of its own.
    unsafe { builder.create_with("mlx5dv_create_qp", create) }
}

/// Brings an initiator up on port `port_num`, counting from 1, with the timers and retries of reliable connections: requests can be
/// posted.
///
/// For other attributes, use the transitions of [`QueuePair`] with [`Attributes::from_raw`].
///
/// # Errors
/// The device refused a transition. The queue pair is dropped.
pub fn bring_up_initiator<SW, RW>(
    qp: QueuePair<Dci, Reset, SW, RW>,
    port_num: u8,
    mtu: Mtu,
    timers: &Attributes<verbs::Rc, Rts>,
) -> Result<QueuePair<Dci, Rts, SW, RW>> {
    let mut attr = ffi::ibv_qp_attr::zeroed();
    attr.port_num = port_num;
    attr.path_mtu = ffi::ibv_mtu(mtu.0);
    let init = has::IBV_QP_STATE | has::IBV_QP_PKEY_INDEX | has::IBV_QP_PORT;
    let init = Attributes::<Dci, Init>::from_raw(attr, init.0);
    let qp = qp.to_init(&init).map_err(|refused| refused.error)?;
    let rtr = has::IBV_QP_STATE | has::IBV_QP_PATH_MTU;
    let rtr = Attributes::<Dci, Rtr>::from_raw(attr, rtr.0);
    let qp = qp.to_rtr(&rtr).map_err(|refused| refused.error)?;
    let (attr, mask) = timers.as_raw();
    let rts = Attributes::<Dci, Rts>::from_raw(*attr, mask);
    qp.to_rts(&rts).map_err(|refused| refused.error)
}

/// Brings a target up: messages arrive, and initiators have these rights to memory. Of the vector, the port, the index of the GID and
/// the fields of packets count: traffic class, flow label and hop limit. The [number](QueuePair::qp_num) of the target is known
/// afterwards.
///
/// For other attributes, use the transitions of [`QueuePair`] with [`Attributes::from_raw`].
///
/// # Errors
/// The device refused a transition. The queue pair is dropped.
pub fn bring_up_target<SW, RW>(
    qp: QueuePair<Dct, Reset, SW, RW>,
    vector: &AddressVector,
    mtu: Mtu,
    access: RemoteAccess,
) -> Result<QueuePair<Dct, Rtr, SW, RW>> {
    /// Code of the delay of an initiator whose message has no receive: 640 µs.
    const MIN_RNR_TIMER: u8 = 12;
    let mut attr = ffi::ibv_qp_attr::zeroed();
    attr.ah_attr = vector.to_raw();
    attr.port_num = attr.ah_attr.port_num;
    attr.path_mtu = ffi::ibv_mtu(mtu.0);
    attr.qp_access_flags = access.bits();
    attr.min_rnr_timer = MIN_RNR_TIMER;
    let init = has::IBV_QP_STATE | has::IBV_QP_PKEY_INDEX | has::IBV_QP_PORT;
    let init = Attributes::<Dct, Init>::from_raw(attr, (init | has::IBV_QP_ACCESS_FLAGS).0);
    let qp = qp.to_init(&init).map_err(|refused| refused.error)?;
    let rtr = has::IBV_QP_STATE | has::IBV_QP_PATH_MTU | has::IBV_QP_AV;
    let rtr = Attributes::<Dct, Rtr>::from_raw(attr, (rtr | has::IBV_QP_MIN_RNR_TIMER).0);
    qp.to_rtr(&rtr).map_err(|refused| refused.error)
}
