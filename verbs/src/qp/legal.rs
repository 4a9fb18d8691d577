//! Which attributes each transition needs, and which it allows.
//!
//! The kernel has this table, and says only `EINVAL` when a transition does not keep to it. Here it
//! is used to say which attribute is missing, or too many.
//!
//! From the InfiniBand Architecture Specification 1.4, section 11.2.5.2, tables 96 to 101.

use ibverbs_sys::{ibv_qp_attr_mask as Bit, ibv_qp_state, ibv_qp_type};

const RESET: ibv_qp_state = ibv_qp_state::IBV_QPS_RESET;
const INIT: ibv_qp_state = ibv_qp_state::IBV_QPS_INIT;
const RTR: ibv_qp_state = ibv_qp_state::IBV_QPS_RTR;
const RTS: ibv_qp_state = ibv_qp_state::IBV_QPS_RTS;
const RC: ibv_qp_type = ibv_qp_type::IBV_QPT_RC;
const UC: ibv_qp_type = ibv_qp_type::IBV_QPT_UC;
const UD: ibv_qp_type = ibv_qp_type::IBV_QPT_UD;

/// What a transition needs and what it allows besides, as masks.
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

/// What is wrong with the attributes of a transition, if it is one that this table knows.
pub(super) fn complaint(
    transport: ibv_qp_type,
    from: ibv_qp_state,
    to: ibv_qp_state,
    mask: u32,
) -> Option<String> {
    let Rule { needs, allows } = rule(transport, from, to)?;
    let given = mask & !Bit::IBV_QP_STATE.0;
    let mut complaint = Vec::new();
    for (what, bits) in [
        ("missing", needs & !given),
        ("not allowed", given & !(needs | allows)),
    ] {
        if bits != 0 {
            complaint.push(format!("{what}: {}", names(bits)));
        }
    }
    (!complaint.is_empty()).then(|| complaint.join("; "))
}

fn names(bits: u32) -> String {
    let known = NAMES
        .iter()
        .filter(|(bit, _)| bits & bit != 0)
        .map(|(_, name)| (*name).to_owned());
    let rest = NAMES.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    let unknown = (rest != 0).then(|| format!("{rest:#x}"));
    known.chain(unknown).collect::<Vec<_>>().join(", ")
}

fn rule(transport: ibv_qp_type, from: ibv_qp_state, to: ibv_qp_state) -> Option<Rule> {
    let mask = |bits: &[Bit]| bits.iter().fold(0, |mask, bit| mask | bit.0);
    let rule = |needs: &[Bit], allows: &[Bit]| {
        Some(Rule {
            needs: mask(needs),
            allows: mask(allows),
        })
    };
    let moved = [
        Bit::IBV_QP_CUR_STATE,
        Bit::IBV_QP_ACCESS_FLAGS,
        Bit::IBV_QP_ALT_PATH,
    ];
    let moved = [&moved[..], &[Bit::IBV_QP_PATH_MIG_STATE]].concat();
    match (from, to, transport) {
        (RESET, INIT, RC | UC) => rule(
            &[
                Bit::IBV_QP_PORT,
                Bit::IBV_QP_PKEY_INDEX,
                Bit::IBV_QP_ACCESS_FLAGS,
            ],
            &[],
        ),
        (RESET, INIT, UD) => rule(
            &[Bit::IBV_QP_PORT, Bit::IBV_QP_PKEY_INDEX, Bit::IBV_QP_QKEY],
            &[],
        ),
        (INIT, INIT, RC | UC) => rule(
            &[],
            &[
                Bit::IBV_QP_PORT,
                Bit::IBV_QP_PKEY_INDEX,
                Bit::IBV_QP_ACCESS_FLAGS,
            ],
        ),
        (INIT, INIT, UD) => rule(
            &[],
            &[Bit::IBV_QP_PORT, Bit::IBV_QP_PKEY_INDEX, Bit::IBV_QP_QKEY],
        ),
        (INIT, RTR, RC) => rule(
            &[
                Bit::IBV_QP_AV,
                Bit::IBV_QP_PATH_MTU,
                Bit::IBV_QP_DEST_QPN,
                Bit::IBV_QP_RQ_PSN,
                Bit::IBV_QP_MAX_DEST_RD_ATOMIC,
                Bit::IBV_QP_MIN_RNR_TIMER,
            ],
            &[
                Bit::IBV_QP_ALT_PATH,
                Bit::IBV_QP_ACCESS_FLAGS,
                Bit::IBV_QP_PKEY_INDEX,
            ],
        ),
        (INIT, RTR, UC) => rule(
            &[
                Bit::IBV_QP_AV,
                Bit::IBV_QP_PATH_MTU,
                Bit::IBV_QP_DEST_QPN,
                Bit::IBV_QP_RQ_PSN,
            ],
            &[
                Bit::IBV_QP_ALT_PATH,
                Bit::IBV_QP_ACCESS_FLAGS,
                Bit::IBV_QP_PKEY_INDEX,
            ],
        ),
        (INIT, RTR, UD) => rule(&[], &[Bit::IBV_QP_PKEY_INDEX, Bit::IBV_QP_QKEY]),
        (RTR, RTS, RC) => rule(
            &[
                Bit::IBV_QP_SQ_PSN,
                Bit::IBV_QP_TIMEOUT,
                Bit::IBV_QP_RETRY_CNT,
                Bit::IBV_QP_RNR_RETRY,
                Bit::IBV_QP_MAX_QP_RD_ATOMIC,
            ],
            &[&moved[..], &[Bit::IBV_QP_MIN_RNR_TIMER]].concat(),
        ),
        (RTR, RTS, UC) => rule(&[Bit::IBV_QP_SQ_PSN], &moved),
        (RTR, RTS, UD) => rule(
            &[Bit::IBV_QP_SQ_PSN],
            &[Bit::IBV_QP_CUR_STATE, Bit::IBV_QP_QKEY],
        ),
        (RTS, RTS, RC) => rule(&[], &[&moved[..], &[Bit::IBV_QP_MIN_RNR_TIMER]].concat()),
        (RTS, RTS, UC) => rule(&[], &moved),
        (RTS, RTS, UD) => rule(&[], &[Bit::IBV_QP_CUR_STATE, Bit::IBV_QP_QKEY]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        AddressVector, Attributes, Gid, Init, Psn, QpNum, Rc, Reset, Rtr, Rts, State, Transport,
        Uc, Ud,
    };

    fn of<T: Transport, From: State, To: State>(attributes: &Attributes<T, To>) -> Option<String> {
        complaint(T::RAW, From::RAW, To::RAW, attributes.as_raw().1)
    }

    #[test]
    fn what_the_constructors_make_is_complete() {
        let (peer, psn) = (QpNum::from_low_bits(5), Psn::from_low_bits(9));
        let way = AddressVector::global(1, 0, Gid([1; 16]));
        assert_eq!(of::<Rc, Reset, Init>(&Attributes::<Rc, Init>::new(1)), None);
        assert_eq!(of::<Uc, Reset, Init>(&Attributes::<Uc, Init>::new(1)), None);
        assert_eq!(
            of::<Ud, Reset, Init>(&Attributes::<Ud, Init>::new(1, 7)),
            None
        );
        assert_eq!(
            of::<Rc, Init, Rtr>(&Attributes::<Rc, Rtr>::new(&way, peer, psn)),
            None
        );
        assert_eq!(
            of::<Uc, Init, Rtr>(&Attributes::<Uc, Rtr>::new(&way, peer, psn)),
            None
        );
        assert_eq!(of::<Ud, Init, Rtr>(&Attributes::<Ud, Rtr>::new()), None);
        assert_eq!(of::<Rc, Rtr, Rts>(&Attributes::<Rc, Rts>::new(psn)), None);
        assert_eq!(of::<Uc, Rtr, Rts>(&Attributes::<Uc, Rts>::new(psn)), None);
        assert_eq!(of::<Ud, Rtr, Rts>(&Attributes::<Ud, Rts>::new(psn)), None);
    }

    #[test]
    fn what_is_missing_or_too_much_is_named() {
        let port = Bit::IBV_QP_PORT.0;
        assert_eq!(
            complaint(RC, RESET, INIT, port).as_deref(),
            Some("missing: PKEY_INDEX, ACCESS_FLAGS")
        );
        assert_eq!(
            complaint(UD, INIT, RTR, Bit::IBV_QP_AV.0 | 1 << 30).as_deref(),
            Some("not allowed: AV, 0x40000000")
        );
        assert_eq!(
            complaint(UD, RTR, RTS, Bit::IBV_QP_TIMEOUT.0).as_deref(),
            Some("missing: SQ_PSN; not allowed: TIMEOUT")
        );
        assert_eq!(complaint(RC, RTS, RESET, 0), None);
    }
}
