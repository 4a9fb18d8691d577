//! Completion queues with the addresses of senders.

use ibverbs_sys as ffi;
use verbs::{
    Gid, Result,
    cq::{ExtendedCq, ExtendedCqBuilder},
};

/// `efadv_create_cq`—Creates an extended queue whose received messages have their
/// [source](verbs::cq::ExtendedCompletion::source), where the device has [it](crate::DeviceCaps::CQ_WITH_SGID).
///
/// Cards report the address of a sender without an address handle on this device; for others, the
/// [`slid`](verbs::cq::ExtendedCompletion::slid) is the number of the handle.
///
/// ```
/// # let (_fabric, ctx) = doctest::device();
/// let mut cq = efa::create_cq(ctx.cq_ex_builder(16))?;
/// if let Some(mut polled) = cq.poll()? {
///     while let Some(wc) = polled.next()? {
///         println!("from {:?}", wc.source());
///     }
/// }
/// # Ok::<(), verbs::Error>(())
/// ```
///
/// # Errors
/// - `EOPNOTSUPP`: the device is no EFA, or has no source addresses, or not all of the fields.
/// - As for [`ExtendedCqBuilder::create`].
#[doc(alias = "efadv_create_cq")]
#[doc(alias = "EFADV_WC_EX_WITH_SGID")]
pub fn create_cq(builder: ExtendedCqBuilder<'_>) -> Result<ExtendedCq> {
    let create = |ctx, attr: &mut ffi::ibv_cq_init_attr_ex| {
        let mut efa = efa_sys::efadv_cq_init_attr::zeroed();
        efa.wc_flags = efa_sys::EFADV_WC_EX_WITH_SGID;
        let len = u32::try_from(size_of_val(&efa)).unwrap_or(0);
        // SAFETY: the context and the objects of the attributes are the builder's. Assumption: libefa keeps no pointer to the
        // attributes of a completion queue.
        unsafe { efa_sys::efadv_create_cq(ctx, attr, &raw mut efa, len) }
    };
    // SAFETY: `create` makes an extended queue of the attributes, or none, with the field that `source` reads.
    unsafe { builder.create_with("efadv_create_cq", create, source) }
}

/// The sender of the current message.
///
/// # Safety
/// - `cq` is a queue of `efadv_create_cq`, polled, and positioned on a received message.
#[doc(alias = "efadv_wc_read_sgid")]
unsafe fn source(cq: *mut ffi::ibv_cq_ex) -> Option<Gid> {
    // SAFETY: the queue exists.
    let cq = unsafe { efa_sys::efadv_cq_from_ibv_cq_ex(cq) };
    let mut gid = ffi::ibv_gid { raw: [0; 16] };
    // SAFETY: the caller's promise.
    let ret = unsafe { efa_sys::efadv_wc_read_sgid(cq, &raw mut gid) };
    (ret == 0).then(|| gid.into())
}
