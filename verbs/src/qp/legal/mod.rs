//! Mandatory and optional attributes of each transition.
//!
//! The kernel has this table, and returns only `EINVAL` for a violation. Here the table serves to
//! name the missing or excess attribute in errors.
//!
//! From the InfiniBand Architecture Specification 1.4, section 11.2.5.2, tables 96 to 101; where
//! the specification is silent, from the kernel.

use ibverbs_sys::{ibv_qp_attr_mask as Bit, ibv_qp_state, ibv_qp_type};

type On = ibv_qp_type;
type State = ibv_qp_state;

/// The mandatory and the optional attributes of a transition, as masks.
struct Rule {
    needs: u32,
    allows: u32,
}

const NAMES: &[(u32, &str)] = &[
    (Bit::IBV_QP_PORT.0, "PORT"),
    (Bit::IBV_QP_PKEY_INDEX.0, "PKEY_INDEX"),
    (Bit::IBV_QP_ACCESS_FLAGS.0, "ACCESS_FLAGS"),
    (Bit::IBV_QP_QKEY.0, "QKEY"),
    (Bit::IBV_QP_AV.0, "AV"),
    (Bit::IBV_QP_PATH_MTU.0, "PATH_MTU"),
    (Bit::IBV_QP_DEST_QPN.0, "DEST_QPN"),
    (Bit::IBV_QP_RQ_PSN.0, "RQ_PSN"),
    (Bit::IBV_QP_MAX_DEST_RD_ATOMIC.0, "MAX_DEST_RD_ATOMIC"),
    (Bit::IBV_QP_MIN_RNR_TIMER.0, "MIN_RNR_TIMER"),
    (Bit::IBV_QP_SQ_PSN.0, "SQ_PSN"),
    (Bit::IBV_QP_TIMEOUT.0, "TIMEOUT"),
    (Bit::IBV_QP_RETRY_CNT.0, "RETRY_CNT"),
    (Bit::IBV_QP_RNR_RETRY.0, "RNR_RETRY"),
    (Bit::IBV_QP_MAX_QP_RD_ATOMIC.0, "MAX_QP_RD_ATOMIC"),
    (Bit::IBV_QP_ALT_PATH.0, "ALT_PATH"),
    (Bit::IBV_QP_PATH_MIG_STATE.0, "PATH_MIG_STATE"),
    (Bit::IBV_QP_CUR_STATE.0, "CUR_STATE"),
    (Bit::IBV_QP_EN_SQD_ASYNC_NOTIFY.0, "EN_SQD_ASYNC_NOTIFY"),
    (Bit::IBV_QP_CAP.0, "CAP"),
    (Bit::IBV_QP_RATE_LIMIT.0, "RATE_LIMIT"),
];

/// The error in a transition or its attributes, if the table has the transport.
pub(super) fn complaint(transport: On, from: State, to: State, mask: u32) -> Option<String> {
    if !ALL.contains(&transport) {
        return None;
    }
    let Some(Rule { needs, allows }) = rule(transport, from, to) else {
        return Some("there is no such transition".to_owned());
    };
    let set = mask & !Bit::IBV_QP_STATE.0;
    let mut complaint = Vec::new();
    for (what, bits) in [
        ("missing", needs & !set),
        ("not allowed", set & !(needs | allows)),
    ] {
        if bits != 0 {
            complaint.push(format!("{what}: {}", names(bits)));
        }
    }
    (!complaint.is_empty()).then(|| complaint.join("; "))
}

fn names(bits: u32) -> String {
    let named = NAMES
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned());
    let rest = NAMES.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    let unknown = (rest != 0).then(|| format!("{rest:#x}"));
    named.chain(unknown).collect::<Vec<_>>().join(", ")
}

/// Whether an attribute is mandatory or optional in a transition.
#[derive(Clone, Copy, PartialEq)]
enum Stand {
    Needed,
    Allowed,
}
use Stand::{Allowed, Needed};

const UC_RC_XRC: &[On] = &[
    On::IBV_QPT_UC,
    On::IBV_QPT_RC,
    On::IBV_QPT_XRC_SEND,
    On::IBV_QPT_XRC_RECV,
];
const RC_XRC: &[On] = &[On::IBV_QPT_RC, On::IBV_QPT_XRC_SEND, On::IBV_QPT_XRC_RECV];
const REQUESTER: &[On] = &[On::IBV_QPT_RC, On::IBV_QPT_XRC_SEND];
const RESPONDER: &[On] = &[On::IBV_QPT_RC, On::IBV_QPT_XRC_RECV];
const UD: &[On] = &[On::IBV_QPT_UD];
const UC: &[On] = &[On::IBV_QPT_UC];
const UD_UC: &[On] = &[On::IBV_QPT_UD, On::IBV_QPT_UC];
const RAW: &[On] = &[On::IBV_QPT_RAW_PACKET];
/// Transports with a `P_Key` in their packets.
const PARTITIONED: &[On] = &[
    On::IBV_QPT_UD,
    On::IBV_QPT_UC,
    On::IBV_QPT_RC,
    On::IBV_QPT_XRC_SEND,
    On::IBV_QPT_XRC_RECV,
];
const ALL: &[On] = &[
    On::IBV_QPT_UD,
    On::IBV_QPT_UC,
    On::IBV_QPT_RC,
    On::IBV_QPT_XRC_SEND,
    On::IBV_QPT_XRC_RECV,
    On::IBV_QPT_RAW_PACKET,
];

/// The transitions besides those to RESET and ERR, their transports, and the transports' attributes
/// there.
#[expect(clippy::type_complexity, reason = "a table")]
const TRANSITIONS: &[(State, State, &[On], &[(Stand, Bit, &[On])])] = &[
    (
        State::IBV_QPS_RESET,
        State::IBV_QPS_INIT,
        ALL,
        &[
            (Needed, Bit::IBV_QP_PORT, ALL),
            (Needed, Bit::IBV_QP_PKEY_INDEX, PARTITIONED),
            (Needed, Bit::IBV_QP_ACCESS_FLAGS, UC_RC_XRC),
            (Needed, Bit::IBV_QP_QKEY, UD),
        ],
    ),
    (
        State::IBV_QPS_INIT,
        State::IBV_QPS_INIT,
        PARTITIONED,
        &[
            (Allowed, Bit::IBV_QP_PORT, PARTITIONED),
            (Allowed, Bit::IBV_QP_PKEY_INDEX, PARTITIONED),
            (Allowed, Bit::IBV_QP_ACCESS_FLAGS, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_QKEY, UD),
        ],
    ),
    (
        State::IBV_QPS_INIT,
        State::IBV_QPS_RTR,
        ALL,
        &[
            (Needed, Bit::IBV_QP_AV, UC_RC_XRC),
            (Needed, Bit::IBV_QP_PATH_MTU, UC_RC_XRC),
            (Needed, Bit::IBV_QP_DEST_QPN, UC_RC_XRC),
            (Needed, Bit::IBV_QP_RQ_PSN, UC_RC_XRC),
            (Needed, Bit::IBV_QP_MAX_DEST_RD_ATOMIC, RESPONDER),
            (Needed, Bit::IBV_QP_MIN_RNR_TIMER, RESPONDER),
            (Allowed, Bit::IBV_QP_ALT_PATH, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_ACCESS_FLAGS, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_PKEY_INDEX, PARTITIONED),
            (Allowed, Bit::IBV_QP_QKEY, UD),
        ],
    ),
    (
        State::IBV_QPS_RTR,
        State::IBV_QPS_RTS,
        ALL,
        &[
            (Needed, Bit::IBV_QP_SQ_PSN, PARTITIONED),
            (Needed, Bit::IBV_QP_TIMEOUT, RC_XRC),
            (Needed, Bit::IBV_QP_RETRY_CNT, REQUESTER),
            (Needed, Bit::IBV_QP_RNR_RETRY, REQUESTER),
            (Needed, Bit::IBV_QP_MAX_QP_RD_ATOMIC, REQUESTER),
            (Allowed, Bit::IBV_QP_CUR_STATE, PARTITIONED),
            (Allowed, Bit::IBV_QP_QKEY, UD),
            (Allowed, Bit::IBV_QP_ALT_PATH, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_ACCESS_FLAGS, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_PATH_MIG_STATE, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_MIN_RNR_TIMER, RESPONDER),
            (Allowed, Bit::IBV_QP_RATE_LIMIT, RAW),
        ],
    ),
    (
        State::IBV_QPS_RTS,
        State::IBV_QPS_RTS,
        ALL,
        &[
            (Allowed, Bit::IBV_QP_CUR_STATE, PARTITIONED),
            (Allowed, Bit::IBV_QP_QKEY, UD),
            (Allowed, Bit::IBV_QP_ALT_PATH, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_ACCESS_FLAGS, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_PATH_MIG_STATE, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_MIN_RNR_TIMER, RESPONDER),
            (Allowed, Bit::IBV_QP_RATE_LIMIT, RAW),
        ],
    ),
    (
        State::IBV_QPS_RTS,
        State::IBV_QPS_SQD,
        ALL,
        &[(Allowed, Bit::IBV_QP_EN_SQD_ASYNC_NOTIFY, PARTITIONED)],
    ),
    (
        State::IBV_QPS_SQD,
        State::IBV_QPS_SQD,
        ALL,
        &[
            (Allowed, Bit::IBV_QP_PKEY_INDEX, PARTITIONED),
            (Allowed, Bit::IBV_QP_QKEY, UD),
            (Allowed, Bit::IBV_QP_PORT, RC_XRC),
            (Allowed, Bit::IBV_QP_AV, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_ALT_PATH, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_ACCESS_FLAGS, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_PATH_MIG_STATE, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_TIMEOUT, RC_XRC),
            (Allowed, Bit::IBV_QP_RETRY_CNT, REQUESTER),
            (Allowed, Bit::IBV_QP_RNR_RETRY, REQUESTER),
            (Allowed, Bit::IBV_QP_MAX_QP_RD_ATOMIC, REQUESTER),
            (Allowed, Bit::IBV_QP_MAX_DEST_RD_ATOMIC, RESPONDER),
            (Allowed, Bit::IBV_QP_MIN_RNR_TIMER, RESPONDER),
        ],
    ),
    (
        State::IBV_QPS_SQD,
        State::IBV_QPS_RTS,
        ALL,
        &[
            (Allowed, Bit::IBV_QP_CUR_STATE, PARTITIONED),
            (Allowed, Bit::IBV_QP_QKEY, UD),
            (Allowed, Bit::IBV_QP_ALT_PATH, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_ACCESS_FLAGS, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_PATH_MIG_STATE, UC_RC_XRC),
            (Allowed, Bit::IBV_QP_MIN_RNR_TIMER, RESPONDER),
        ],
    ),
    // Transports whose send queue can fail alone.
    (
        State::IBV_QPS_SQE,
        State::IBV_QPS_RTS,
        UD_UC,
        &[
            (Allowed, Bit::IBV_QP_CUR_STATE, UD_UC),
            (Allowed, Bit::IBV_QP_QKEY, UD),
            (Allowed, Bit::IBV_QP_ACCESS_FLAGS, UC),
        ],
    ),
];

/// The rule of a transition, or `None` if there is no such transition.
fn rule(transport: On, from: State, to: State) -> Option<Rule> {
    let mut rule = Rule {
        needs: 0,
        allows: 0,
    };
    if matches!(to, State::IBV_QPS_RESET | State::IBV_QPS_ERR) {
        return Some(rule);
    }
    let (.., attributes) = TRANSITIONS.iter().find(|(start, end, transports, _)| {
        (*start, *end) == (from, to) && transports.contains(&transport)
    })?;
    for (stand, bit, _) in attributes
        .iter()
        .filter(|(.., transports)| transports.contains(&transport))
    {
        match stand {
            Needed => rule.needs |= bit.0,
            Allowed => rule.allows |= bit.0,
        }
    }
    Some(rule)
}

#[cfg(test)]
mod tests;
