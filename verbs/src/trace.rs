//! Events for the crate `tracing`, with the target `verbs`. No code that posts or polls calls this module.

use ibverbs_sys as ffi;
use tracing::{debug, field::display, warn};

use crate::{Gid, attr::Mtu, bounded::QpNum, error::Error, event::AsyncEvent};

const TARGET: &str = "verbs";

/// Reports a call of `ibv_modify_qp`, with the attributes known from `mask`.
pub(crate) fn transition(
    qp_num: u32,
    (from, to): (&str, &str),
    attr: &ffi::ibv_qp_attr,
    mask: u32,
    failure: Option<&Error>,
) {
    use ffi::ibv_qp_attr_mask as bits;
    let has = |bit: bits| mask & bit.0 != 0;
    let qp = QpNum::from_low_bits(qp_num);
    let peer_qp =
        has(bits::IBV_QP_DEST_QPN).then(|| display(QpNum::from_low_bits(attr.dest_qp_num)));
    let peer_gid = (has(bits::IBV_QP_AV) && attr.ah_attr.is_global != 0)
        .then(|| display(Gid::from(attr.ah_attr.grh.dgid)));
    let mtu = has(bits::IBV_QP_PATH_MTU)
        .then(|| Mtu(attr.path_mtu.0).bytes())
        .flatten();
    let timeout = has(bits::IBV_QP_TIMEOUT).then_some(attr.timeout);
    let retries = has(bits::IBV_QP_RETRY_CNT).then_some(attr.retry_cnt);
    match failure {
        None => {
            debug!(target: TARGET, %qp, from, to, peer_qp, peer_gid, mtu, timeout, retries, "queue pair modified");
        }
        Some(error) => {
            warn!(target: TARGET, %qp, from, to, peer_qp, peer_gid, %error, "queue pair not modified");
        }
    }
}

/// Reports an asynchronous event taken by the program.
pub(crate) fn async_event(device: &str, event: &AsyncEvent) {
    let AsyncEvent { event_type, object } = event;
    debug!(target: TARGET, device, event = ?event_type, ?object, "asynchronous event");
}

/// Reports a queue pair that could not be destroyed.
pub(crate) fn leaked(qp: QpNum, error: &Error) {
    warn!(target: TARGET, %qp, %error, "queue pair not destroyed: its memory is leaked");
}
