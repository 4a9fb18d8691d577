//! Mandatory and optional attributes of each transition of a queue pair, of more types and with more attributes than those
//! of the engine.

use ibverbs_sys::{ibv_qp_attr_mask as has, ibv_qp_state as state, ibv_qp_type as of};

use crate::{
    abi::attributes,
    engine::{QpKind, State, transition},
};

/// The mandatory and the optional attributes of a transition, as masks without the state; `None` if
/// there is no such transition.
pub(super) fn attributes_of(from: state, to: state, kind: of) -> Option<(u32, u32)> {
    let (from, to) = (attributes::state(from)?, attributes::state(to)?);
    let kind = match kind {
        of::IBV_QPT_RC => QpKind::Rc,
        of::IBV_QPT_UC => QpKind::Uc,
        of::IBV_QPT_XRC_SEND => QpKind::XrcSend,
        of::IBV_QPT_XRC_RECV => QpKind::XrcRecv,
        of::IBV_QPT_UD => QpKind::Ud,
        of::IBV_QPT_RAW_PACKET => return raw_packet(from, to),
        // A vendor's own queue pairs accept the vendor's attributes.
        _ => {
            let settable = has::IBV_QP_PORT | has::IBV_QP_PKEY_INDEX | has::IBV_QP_ACCESS_FLAGS;
            return Some((0, settable.0));
        }
    };
    let (needs, allows) = transition(from, to, kind)?;
    let alternate = match (from, to) {
        _ if kind == QpKind::Ud => has(0),
        (State::Init, State::Rtr) => has::IBV_QP_ALT_PATH,
        (_, State::Rts) | (State::Sqd, State::Sqd) => {
            has::IBV_QP_ALT_PATH | has::IBV_QP_PATH_MIG_STATE
        }
        _ => has(0),
    };
    Some((needs.0, allows.0 | alternate.0))
}

/// Transitions of queue pairs for raw packets: those of datagrams, without keys and sequence numbers.
fn raw_packet(from: State, to: State) -> Option<(u32, u32)> {
    let (needs, allows) = transition(from, to, QpKind::Ud)?;
    let keys = (has::IBV_QP_PKEY_INDEX | has::IBV_QP_QKEY | has::IBV_QP_SQ_PSN).0;
    let rate = match to {
        State::Rts => has::IBV_QP_RATE_LIMIT.0,
        _ => 0,
    };
    Some((needs.0 & !keys, allows.0 & !keys | rate))
}
