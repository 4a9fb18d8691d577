//! Attributes of queue pairs, between C and the engine.

use std::ffi::c_int;

use ibverbs_sys as ffi;

use super::query::{addr, gid, gid_tbl_len};
use crate::{
    card::{Card, Specification},
    engine::{Access, AttributeMask, MAX_RD_ATOMIC, Path, QpAttributes, State},
    fabric::Port,
};

/// Converts a queue pair state from C; `None` for an unknown value.
pub(super) fn state(raw: ffi::ibv_qp_state) -> Option<State> {
    use ffi::ibv_qp_state as of;
    Some(match raw {
        of::IBV_QPS_RESET => State::Reset,
        of::IBV_QPS_INIT => State::Init,
        of::IBV_QPS_RTR => State::Rtr,
        of::IBV_QPS_RTS => State::Rts,
        of::IBV_QPS_SQD => State::Sqd,
        of::IBV_QPS_SQE => State::Sqe,
        of::IBV_QPS_ERR => State::Err,
        _ => return None,
    })
}

/// Converts a queue pair state to C.
pub(super) fn raw_state(state: State) -> ffi::ibv_qp_state {
    use ffi::ibv_qp_state as of;
    match state {
        State::Reset => of::IBV_QPS_RESET,
        State::Init => of::IBV_QPS_INIT,
        State::Rtr => of::IBV_QPS_RTR,
        State::Rts => of::IBV_QPS_RTS,
        State::Sqd => of::IBV_QPS_SQD,
        State::Sqe => of::IBV_QPS_SQE,
        State::Err => of::IBV_QPS_ERR,
    }
}

/// The path of an address vector. `EINVAL` without a GRH, or if port or GID index is not of this device; `ENODATA` for an
/// empty entry of the GID table, as the kernel (`rdma_get_gid_attr`).
pub(super) fn path(port: &Port, av: &ffi::ibv_ah_attr) -> Result<Path, c_int> {
    if av.is_global == 0 || av.port_num != 1 {
        return Err(libc::EINVAL);
    }
    let (addrs, index) = (port.addrs(), av.grh.sgid_index);
    let src = match addrs.get(usize::from(index)) {
        Some(src) => *src,
        None if c_int::from(index) < gid_tbl_len(port) => return Err(libc::ENODATA),
        None => return Err(libc::EINVAL),
    };
    Ok(Path {
        src,
        dst: addr(av.grh.dgid),
        hop_limit: av.grh.hop_limit,
        traffic_class: av.grh.traffic_class,
        flow_label: av.grh.flow_label,
    })
}

/// The address vector of a path from this port.
pub(super) fn address_vector(port: &Port, path: &Path) -> ffi::ibv_ah_attr {
    let mut av = ffi::ibv_ah_attr::zeroed();
    av.is_global = 1;
    av.port_num = 1;
    av.grh.sgid_index = port.addr_index(path.src).unwrap_or(0);
    av.grh.dgid = gid(path.dst);
    av.grh.hop_limit = path.hop_limit;
    av.grh.traffic_class = path.traffic_class;
    av.grh.flow_label = path.flow_label;
    av
}

/// Depth of reads and atomics for a requested depth: rounded up to a power of two up to 128, as on other devices.
fn depth(request: u8) -> u8 {
    match request {
        0 => 0,
        _ => request.checked_next_power_of_two().unwrap_or(request),
    }
}

/// The granted depth of a queue pair, or an errno: with a card, at most the card's maximum and that of the engine.
fn granted_depth(
    card: Option<Card>,
    requested: u8,
    max: fn(&Specification) -> u8,
) -> Result<u8, c_int> {
    let Some(card) = card else {
        return Ok(depth(requested));
    };
    let max = max(card.specification());
    let granted = depth(card.depth(requested, max)?);
    Ok(granted.min(max).min(MAX_RD_ATOMIC))
}

/// Attributes that one end of an extended connection lacks: the sending end answers no requests, and the receiving end
/// sends none. In the mask of `ibv_modify_qp` they have no effect, as in the kernel (`modify_qp_mask`).
pub(super) fn absent(kind: ffi::ibv_qp_type) -> AttributeMask {
    match kind {
        ffi::ibv_qp_type::IBV_QPT_XRC_SEND => {
            AttributeMask::MAX_DEST_RD_ATOMIC | AttributeMask::MIN_RNR_TIMER
        }
        ffi::ibv_qp_type::IBV_QPT_XRC_RECV => {
            AttributeMask::RETRY_COUNT | AttributeMask::RNR_RETRY | AttributeMask::MAX_RD_ATOMIC
        }
        _ => AttributeMask(0),
    }
}

/// Converts attributes from C. Only the attributes in `mask` are valid. Fails as [`path`] does, and for depths that a card refuses.
pub(super) fn attributes(
    port: &Port,
    raw: &ffi::ibv_qp_attr,
    mask: AttributeMask,
) -> Result<QpAttributes, c_int> {
    let mut attributes = QpAttributes {
        access: Access(raw.qp_access_flags),
        pkey_index: raw.pkey_index,
        port: raw.port_num,
        qkey: raw.qkey,
        path: None,
        mtu: 0,
        dest_qp: raw.dest_qp_num,
        rq_psn: raw.rq_psn,
        sq_psn: raw.sq_psn,
        timeout: raw.timeout,
        retry_count: raw.retry_cnt,
        rnr_retry: raw.rnr_retry,
        min_rnr_timer: raw.min_rnr_timer,
        max_rd_atomic: raw.max_rd_atomic,
        max_dest_rd_atomic: raw.max_dest_rd_atomic,
        sqd_notify: raw.en_sqd_async_notify != 0,
    };
    if mask.contains(AttributeMask::PATH) {
        attributes.path = Some(path(port, &raw.ah_attr)?);
    }
    if mask.contains(AttributeMask::MTU) && raw.path_mtu.0 <= 5 {
        attributes.mtu = 128 << raw.path_mtu.0;
    }
    let card = port.card();
    if mask.contains(AttributeMask::MAX_RD_ATOMIC) {
        attributes.max_rd_atomic =
            granted_depth(card, raw.max_rd_atomic, |row| row.max_qp_init_rd_atom)?;
    }
    if mask.contains(AttributeMask::MAX_DEST_RD_ATOMIC) {
        attributes.max_dest_rd_atomic =
            granted_depth(card, raw.max_dest_rd_atomic, |row| row.max_qp_rd_atom)?;
    }
    Ok(attributes)
}

/// Converts attributes to C.
pub(super) fn raw_attributes(
    port: &Port,
    state: State,
    attributes: &QpAttributes,
) -> ffi::ibv_qp_attr {
    let mut raw = ffi::ibv_qp_attr::zeroed();
    raw.qp_state = raw_state(state);
    raw.cur_qp_state = raw.qp_state;
    raw.path_mtu = ffi::ibv_mtu((attributes.mtu / 128).max(1).ilog2());
    raw.path_mig_state = ffi::ibv_mig_state::IBV_MIG_MIGRATED;
    raw.qkey = attributes.qkey;
    raw.rq_psn = attributes.rq_psn;
    raw.sq_psn = attributes.sq_psn;
    raw.dest_qp_num = attributes.dest_qp;
    raw.qp_access_flags = attributes.access.0;
    if let Some(path) = &attributes.path {
        raw.ah_attr = address_vector(port, path);
    }
    raw.pkey_index = attributes.pkey_index;
    raw.max_rd_atomic = attributes.max_rd_atomic;
    raw.max_dest_rd_atomic = attributes.max_dest_rd_atomic;
    raw.min_rnr_timer = attributes.min_rnr_timer;
    raw.port_num = attributes.port;
    raw.timeout = attributes.timeout;
    raw.retry_cnt = attributes.retry_count;
    raw.rnr_retry = attributes.rnr_retry;
    raw
}
