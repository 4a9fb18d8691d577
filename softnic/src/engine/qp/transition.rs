//! Legal transitions of queue pairs, with required and optional attributes.
//!
//! Source: InfiniBand Architecture Specification, volume 1, section 11.2.5.2, and `ibv_modify_qp(3)`.

use super::attributes::{AttributeMask, QpKind, State};

/// Required and optional attributes of a transition; `None` for an illegal transition.
pub(crate) fn transition(
    from: State,
    to: State,
    kind: QpKind,
) -> Option<(AttributeMask, AttributeMask)> {
    use AttributeMask as Has;
    if matches!(kind, QpKind::Dci | QpKind::Dct) {
        return dynamic_transition(from, to, kind);
    }
    let none = Has::default();
    let (reliable, ud) = (kind.is_reliable(), matches!(kind, QpKind::Ud | QpKind::Srd));
    let initiates = reliable && kind != QpKind::XrcRecv;
    let responds = reliable && kind != QpKind::XrcSend;
    let only = |condition: bool, mask: Has| if condition { mask } else { none };
    let init = Has::PKEY_INDEX | Has::PORT | if ud { Has::QKEY } else { Has::ACCESS };
    let running = Has::CUR_STATE
        | only(!ud, Has::ACCESS)
        | only(ud, Has::QKEY)
        | only(responds, Has::MIN_RNR_TIMER);
    let initiator = Has::RETRY_COUNT | Has::RNR_RETRY | Has::MAX_RD_ATOMIC;
    let initiator = only(initiates, initiator);
    Some(match (from, to) {
        // A new queue pair has no work to flush: Linux refuses its transition to the error state.
        (State::Reset, State::Err) => return None,
        (_, State::Reset | State::Err) => (none, none),
        (State::Reset, State::Init) => (init, none),
        (State::Init, State::Init) => (none, init),
        (State::Init, State::Rtr) => {
            let connected = Has::PATH | Has::MTU | Has::DEST_QP | Has::RQ_PSN;
            let responder = Has::MAX_DEST_RD_ATOMIC | Has::MIN_RNR_TIMER;
            let needs = only(!ud, connected) | only(responds, responder);
            let allows = Has::PKEY_INDEX | only(!ud, Has::ACCESS) | only(ud, Has::QKEY);
            (needs, allows)
        }
        (State::Rtr, State::Rts) => {
            let needs = Has::SQ_PSN | only(reliable, Has::TIMEOUT) | initiator;
            (needs, running | only(kind == QpKind::Srd, Has::RNR_RETRY))
        }
        (State::Rts, State::Rts) => (none, running),
        (State::Rts, State::Sqd) => (none, Has::SQD_NOTIFY),
        (State::Sqd, State::Rts) => (none, running),
        (State::Sqd, State::Sqd) => {
            let path = only(!ud, Has::PATH);
            let timers = only(reliable, Has::PORT | Has::TIMEOUT) | initiator;
            let depth = only(responds, Has::MAX_DEST_RD_ATOMIC);
            let running = running.without(Has::CUR_STATE);
            (none, running | Has::PKEY_INDEX | path | timers | depth)
        }
        (State::Sqe, State::Rts) if !reliable => (none, running),
        _ => return None,
    })
}

/// As [`transition`], of the dynamically connected transport. A target is not reset, and fails only with its device.
///
/// Source: `modify_dci_qp_is_ok` and `mlx5_ib_modify_dct` of Linux.
fn dynamic_transition(
    from: State,
    to: State,
    kind: QpKind,
) -> Option<(AttributeMask, AttributeMask)> {
    use AttributeMask as Has;
    let none = Has::default();
    let init = Has::PKEY_INDEX | Has::PORT;
    let timers = Has::TIMEOUT | Has::RETRY_COUNT | Has::RNR_RETRY | Has::MAX_RD_ATOMIC;
    Some(match (kind, from, to) {
        (QpKind::Dct, State::Reset, State::Init) => (init | Has::ACCESS, none),
        (QpKind::Dct, State::Init, State::Rtr) => (Has::PATH | Has::MTU | Has::MIN_RNR_TIMER, none),
        (QpKind::Dct, ..) | (_, State::Reset, State::Err) => return None,
        (_, _, State::Reset | State::Err) => (none, none),
        (_, State::Reset, State::Init) => (init, none),
        (_, State::Init, State::Init) => (none, init),
        (_, State::Init, State::Rtr) => (Has::MTU, Has::PKEY_INDEX | Has::PATH),
        (_, State::Rtr, State::Rts) => (timers | Has::SQ_PSN, Has::MIN_RNR_TIMER),
        (_, State::Rts, State::Rts) => (none, Has::MIN_RNR_TIMER),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [State; 7] = [
        State::Reset,
        State::Init,
        State::Rtr,
        State::Rts,
        State::Sqd,
        State::Sqe,
        State::Err,
    ];

    #[test]
    fn states_are_passed_in_order() {
        for kind in [
            QpKind::Rc,
            QpKind::Uc,
            QpKind::Ud,
            QpKind::XrcSend,
            QpKind::XrcRecv,
        ] {
            let legal = |from| -> Vec<_> {
                let to = STATES.into_iter();
                to.filter(|to| transition(from, *to, kind).is_some())
                    .collect()
            };
            use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
            assert_eq!(legal(Reset), [Reset, Init]);
            assert_eq!(legal(Init), [Reset, Init, Rtr, Err]);
            assert_eq!(legal(Rtr), [Reset, Rts, Err]);
            assert_eq!(legal(Rts), [Reset, Rts, Sqd, Err]);
            assert_eq!(legal(Sqd), [Reset, Rts, Sqd, Err]);
            assert_eq!(legal(Err), [Reset, Err]);
            let recovers = matches!(kind, QpKind::Uc | QpKind::Ud);
            assert_eq!(legal(Sqe).contains(&Rts), recovers);
        }
    }

    #[test]
    fn reliable_connections_need_their_timers() {
        let (needs, _) = transition(State::Rtr, State::Rts, QpKind::Rc).unwrap();
        assert!(needs.contains(AttributeMask::TIMEOUT | AttributeMask::RETRY_COUNT));
        let (needs, allows) = transition(State::Rtr, State::Rts, QpKind::Ud).unwrap();
        assert_eq!(needs, AttributeMask::SQ_PSN);
        assert!(!allows.contains(AttributeMask::ACCESS));
    }

    #[test]
    fn targets_pass_two_states_and_initiators_three() {
        let legal = |kind, from| -> Vec<_> {
            let to = STATES.into_iter();
            to.filter(|to| transition(from, *to, kind).is_some())
                .collect()
        };
        use State::{Err, Init, Reset, Rtr, Rts, Sqd};
        assert_eq!(legal(QpKind::Dct, Reset), [Init]);
        assert_eq!(legal(QpKind::Dct, Init), [Rtr]);
        assert_eq!(legal(QpKind::Dct, Rtr), []);
        assert_eq!(legal(QpKind::Dci, Reset), [Reset, Init]);
        assert_eq!(legal(QpKind::Dci, Init), [Reset, Init, Rtr, Err]);
        assert_eq!(legal(QpKind::Dci, Rtr), [Reset, Rts, Err]);
        assert_eq!(legal(QpKind::Dci, Rts), [Reset, Rts, Err]);
        assert_eq!(legal(QpKind::Dci, Sqd), [Reset, Err]);
        let (needs, allows) = transition(Reset, Init, QpKind::Dci).unwrap();
        assert!(!(needs | allows).contains(AttributeMask::ACCESS));
    }

    #[test]
    fn ends_of_extended_connections_need_the_attributes_of_their_direction() {
        use AttributeMask as Has;
        let responder = Has::MAX_DEST_RD_ATOMIC | Has::MIN_RNR_TIMER;
        let initiator = Has::RETRY_COUNT | Has::RNR_RETRY | Has::MAX_RD_ATOMIC;
        let needs = |from, to, kind| transition(from, to, kind).unwrap().0;
        for (kind, responds) in [(QpKind::XrcSend, false), (QpKind::XrcRecv, true)] {
            let rtr = needs(State::Init, State::Rtr, kind);
            assert_eq!(rtr.contains(responder), responds);
            assert_eq!(rtr.contains(Has::MIN_RNR_TIMER), responds);
            let rts = needs(State::Rtr, State::Rts, kind);
            assert!(rts.contains(Has::TIMEOUT | Has::SQ_PSN));
            assert_eq!(rts.contains(initiator), !responds);
            assert_eq!(rts.contains(Has::RETRY_COUNT), !responds);
        }
    }
}
