//! Mandatory and optional attributes of each transition of a queue pair: InfiniBand Architecture
//! Specification 1.4, section 11.2.5.2, as in `ibv_modify_qp(3)`.

use ibverbs_sys::{ibv_qp_attr_mask as has, ibv_qp_state as state, ibv_qp_type as of};

/// The mandatory and the optional attributes of a transition, as masks without the state; `None` if
/// there is no such transition.
#[expect(clippy::too_many_lines, reason = "one table of transitions")]
pub(super) fn transition(from: state, to: state, kind: of) -> Option<(u32, u32)> {
    let bits = |flags: &[has]| flags.iter().fold(0, |bits, flag| bits | flag.0);
    let rc = matches!(
        kind,
        of::IBV_QPT_RC | of::IBV_QPT_XRC_SEND | of::IBV_QPT_XRC_RECV
    );
    let initiates = rc && kind != of::IBV_QPT_XRC_RECV;
    let responds = rc && kind != of::IBV_QPT_XRC_SEND;
    let uc = kind == of::IBV_QPT_UC;
    let ud = kind == of::IBV_QPT_UD;
    let raw = kind == of::IBV_QPT_RAW_PACKET;
    let init = match () {
        () if rc || uc => bits(&[
            has::IBV_QP_PKEY_INDEX,
            has::IBV_QP_PORT,
            has::IBV_QP_ACCESS_FLAGS,
        ]),
        () if ud => bits(&[has::IBV_QP_PKEY_INDEX, has::IBV_QP_PORT, has::IBV_QP_QKEY]),
        () => bits(&[has::IBV_QP_PORT]),
    };
    let path = bits(&[
        has::IBV_QP_ALT_PATH,
        has::IBV_QP_ACCESS_FLAGS,
        has::IBV_QP_PATH_MIG_STATE,
    ]);
    let rnr = if responds {
        has::IBV_QP_MIN_RNR_TIMER.0
    } else {
        0
    };
    let rate = if raw { has::IBV_QP_RATE_LIMIT.0 } else { 0 };
    let cur = has::IBV_QP_CUR_STATE.0;
    let qkey = if ud { has::IBV_QP_QKEY.0 } else { 0 };
    let path = if rc || uc { path } else { 0 };
    let own = [
        has::IBV_QP_PORT,
        has::IBV_QP_PKEY_INDEX,
        has::IBV_QP_ACCESS_FLAGS,
    ];
    Some(match (from, to) {
        // A vendor's own queue pairs accept the vendor's attributes.
        _ if kind == of::IBV_QPT_DRIVER => (0, bits(&own)),
        (_, state::IBV_QPS_RESET) if from != state::IBV_QPS_RESET => (0, 0),
        (_, state::IBV_QPS_ERR) => (0, 0),
        (state::IBV_QPS_RESET, state::IBV_QPS_INIT) => (init, 0),
        (state::IBV_QPS_INIT, state::IBV_QPS_INIT) => (0, init),
        (state::IBV_QPS_INIT, state::IBV_QPS_RTR) => {
            let mut needs = 0;
            if rc || uc {
                needs |= bits(&[
                    has::IBV_QP_AV,
                    has::IBV_QP_PATH_MTU,
                    has::IBV_QP_DEST_QPN,
                    has::IBV_QP_RQ_PSN,
                ]);
            }
            if responds {
                needs |= bits(&[has::IBV_QP_MAX_DEST_RD_ATOMIC, has::IBV_QP_MIN_RNR_TIMER]);
            }
            let pkey = if raw { 0 } else { has::IBV_QP_PKEY_INDEX.0 };
            let alternate = bits(&[has::IBV_QP_ALT_PATH, has::IBV_QP_ACCESS_FLAGS]);
            let alternate = if rc || uc { alternate } else { 0 };
            (needs, pkey | alternate | qkey)
        }
        (state::IBV_QPS_RTR, state::IBV_QPS_RTS) => {
            let mut needs = if raw { 0 } else { has::IBV_QP_SQ_PSN.0 };
            if rc {
                needs |= has::IBV_QP_TIMEOUT.0;
            }
            if initiates {
                needs |= bits(&[
                    has::IBV_QP_RETRY_CNT,
                    has::IBV_QP_RNR_RETRY,
                    has::IBV_QP_MAX_QP_RD_ATOMIC,
                ]);
            }
            (needs, cur | path | rnr | qkey | rate)
        }
        (state::IBV_QPS_RTS, state::IBV_QPS_RTS) => (0, cur | path | rnr | qkey | rate),
        (state::IBV_QPS_RTS, state::IBV_QPS_SQD) => (0, has::IBV_QP_EN_SQD_ASYNC_NOTIFY.0),
        (state::IBV_QPS_SQD, state::IBV_QPS_RTS) => (0, cur | path | rnr | qkey),
        (state::IBV_QPS_SQD, state::IBV_QPS_SQD) => {
            let mut allows = bits(&[has::IBV_QP_PKEY_INDEX]) | path | rnr | qkey;
            if rc || uc {
                allows |= has::IBV_QP_AV.0;
            }
            if rc {
                allows |= bits(&[has::IBV_QP_PORT, has::IBV_QP_TIMEOUT]);
            }
            if initiates {
                allows |= bits(&[
                    has::IBV_QP_RETRY_CNT,
                    has::IBV_QP_RNR_RETRY,
                    has::IBV_QP_MAX_QP_RD_ATOMIC,
                ]);
            }
            if responds {
                allows |= has::IBV_QP_MAX_DEST_RD_ATOMIC.0;
            }
            (0, allows)
        }
        (state::IBV_QPS_SQE, state::IBV_QPS_RTS) if !rc => (0, cur | path | qkey),
        _ => return None,
    })
}
