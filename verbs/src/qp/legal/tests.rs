//! The table of transitions, against the attribute builders.

use super::*;
use crate::{
    Gid, Init, RemoteAccess, Reset, Rtr, Rts, Uc, Ud,
    ah::AddressVector,
    qp::{
        self, AckTimeout, AlternatePath, Attributes, MigState, Psn, QpNum, QpState, RawPacket,
        RetryCount, RnrRetry, RnrTimer, Sqd, State as Typed, Transport, XrcRecv, XrcSend,
    },
};

fn of<T: Transport, From: Typed, To: Typed>(attributes: &Attributes<T, To>) -> Option<String> {
    complaint(T::RAW, From::RAW, To::RAW, attributes.as_raw().1)
}

fn address_vector() -> AddressVector {
    AddressVector::global(1, 0, Gid([1; 16]))
}

fn other_way() -> AlternatePath {
    AlternatePath {
        vector: address_vector(),
        pkey_index: 1,
        timeout: AckTimeout::MAX,
    }
}

/// Checks all attributes settable in a transition of this transport: legal, and complete in
/// comparison with the table.
fn complete<T: Transport, From: Typed, To: Typed>(attributes: &Attributes<T, To>) {
    let name = format!("{} {} to {}", T::NAME, From::NAME, To::NAME);
    assert_eq!(of::<T, From, To>(attributes), None, "{name}");
    let Rule { needs, allows } = rule(T::RAW, From::RAW, To::RAW).unwrap();
    let set = attributes.as_raw().1 & !Bit::IBV_QP_STATE.0;
    assert_eq!(names((needs | allows) & !set), "", "{name} has no method");
}

macro_rules! routed {
    ($($transport:ty),+) => {$(
        let (peer, psn) = (QpNum::from_low_bits(5), Psn::from_low_bits(9));
        let access = RemoteAccess::all();
        complete::<$transport, Reset, Init>(&Attributes::<$transport, Init>::new(1));
        complete::<$transport, Init, Init>(
            &Attributes::<$transport, Init>::unchanged().port(1).pkey_index(1).access(access),
        );
        complete::<$transport, Init, Rtr>(
            &Attributes::<$transport, Rtr>::new(&address_vector(), peer, psn)
                .alternate_path(&other_way())
                .access(access)
                .pkey_index(0),
        );
    )+};
}

#[test]
fn legal_attribute_has_a_method() {
    routed!(qp::Rc, Uc, XrcSend, XrcRecv);
    let psn = Psn::from_low_bits(9);
    let (timer, timeout) = (RnrTimer::MAX, AckTimeout::MAX);
    let access = RemoteAccess::all();
    macro_rules! moving {
        ($attributes:expr) => {
            $attributes
                .access(access)
                .alternate_path(&other_way())
                .path_mig_state(MigState::REARM)
        };
    }
    let now = QpState::RTR;
    // To RTS, and changes there.
    macro_rules! rts {
        ($transport:ty $(, $responder:ident)?) => {{
            type To = Attributes<$transport, Rts>;
            let set = |to: To| moving!(to).cur_state(now)$(.$responder(timer))?;
            complete::<$transport, Rtr, Rts>(&set(To::new(psn)));
            complete::<$transport, Rts, Rts>(&set(To::unchanged()));
            complete::<$transport, Sqd, Rts>(&set(To::unchanged()));
            let drained = Attributes::<$transport, Sqd>::new().notify_when_drained();
            complete::<$transport, Rts, Sqd>(&drained);
        }};
    }
    rts!(qp::Rc, min_rnr_timer);
    rts!(Uc);
    rts!(XrcSend);
    rts!(XrcRecv, min_rnr_timer);
    // Changes in SQD.
    macro_rules! sqd {
        ($transport:ty, |$to:ident| $more:expr) => {{
            let $to = Attributes::<$transport, Sqd>::unchanged();
            let $to = moving!($to).path(&address_vector()).pkey_index(0);
            complete::<$transport, Sqd, Sqd>(&$more);
        }};
    }
    let (retries, rnr) = (RetryCount::MAX, RnrRetry::MAX);
    sqd!(Uc, |to| to);
    sqd!(qp::Rc, |to| to
        .port(1)
        .timeout(timeout)
        .retry_count(retries)
        .rnr_retry(rnr)
        .max_rd_atomic(1)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(timer));
    sqd!(XrcSend, |to| to
        .port(1)
        .timeout(timeout)
        .retry_count(retries)
        .rnr_retry(rnr)
        .max_rd_atomic(1));
    sqd!(XrcRecv, |to| to
        .port(1)
        .timeout(timeout)
        .max_dest_rd_atomic(1)
        .min_rnr_timer(timer));

    every_attribute_of_ud(psn, now);
    every_attribute_of_raw_packets();
}

fn every_attribute_of_ud(psn: Psn, now: QpState) {
    complete::<Ud, Reset, Init>(&Attributes::<Ud, Init>::new(1, 7));
    let changed = Attributes::<Ud, Init>::unchanged();
    complete::<Ud, Init, Init>(&changed.port(1).pkey_index(0).qkey(7));
    complete::<Ud, Init, Rtr>(&Attributes::<Ud, Rtr>::new().pkey_index(0).qkey(7));
    let to_rts = Attributes::<Ud, Rts>::new(psn);
    complete::<Ud, Rtr, Rts>(&to_rts.cur_state(now).qkey(7));
    let changed = || Attributes::<Ud, Rts>::unchanged().cur_state(now).qkey(7);
    complete::<Ud, Rts, Rts>(&changed());
    complete::<Ud, Sqd, Rts>(&changed());
    complete::<Ud, Rts, Sqd>(&Attributes::<Ud, Sqd>::new().notify_when_drained());
    let drained = Attributes::<Ud, Sqd>::unchanged();
    complete::<Ud, Sqd, Sqd>(&drained.pkey_index(0).qkey(7));
}

fn every_attribute_of_raw_packets() {
    complete::<RawPacket, Reset, Init>(&Attributes::<RawPacket, Init>::new(1));
    complete::<RawPacket, Init, Rtr>(&Attributes::<RawPacket, Rtr>::new());
    let paced = || Attributes::<RawPacket, Rts>::new().rate_limit(1000);
    complete::<RawPacket, Rtr, Rts>(&paced());
    complete::<RawPacket, Rts, Rts>(&paced());
}

#[test]
fn attribute_constructors_set_all_mandatory_attributes() {
    let psn = Psn::from_low_bits(9);
    assert_eq!(
        of::<qp::Rc, Rtr, Rts>(&Attributes::<qp::Rc, Rts>::new(psn)),
        None
    );
    assert_eq!(of::<Ud, Rtr, Rts>(&Attributes::<Ud, Rts>::new(psn)), None);
    let to_rtr = Attributes::<Uc, Rtr>::new(&address_vector(), QpNum::from_low_bits(5), psn);
    assert_eq!(of::<Uc, Init, Rtr>(&to_rtr), None);
}

#[test]
fn illegal_transition_names_missing_and_excess_attributes() {
    use crate::qp::state::Reset;
    let (rc, ud) = (qp::Rc::RAW, Ud::RAW);
    let port = Bit::IBV_QP_PORT.0;
    assert_eq!(
        complaint(rc, Reset::RAW, Init::RAW, port).as_deref(),
        Some("missing: PKEY_INDEX, ACCESS_FLAGS")
    );
    assert_eq!(
        complaint(ud, Init::RAW, Rtr::RAW, Bit::IBV_QP_AV.0 | 1 << 30).as_deref(),
        Some("not allowed: AV, 0x40000000")
    );
    assert_eq!(
        complaint(ud, Rtr::RAW, Rts::RAW, Bit::IBV_QP_TIMEOUT.0).as_deref(),
        Some("missing: SQ_PSN; not allowed: TIMEOUT")
    );
    assert_eq!(complaint(rc, Rts::RAW, Reset::RAW, 0), None);
    assert_eq!(
        complaint(rc, Reset::RAW, Sqd::RAW, 0).as_deref(),
        Some("there is no such transition")
    );
    // Only a send queue without acknowledgements fails alone.
    let sqe = State::IBV_QPS_SQE;
    assert_eq!(complaint(ud, sqe, Rts::RAW, Bit::IBV_QP_QKEY.0), None);
    assert!(complaint(rc, sqe, Rts::RAW, 0).is_some());
    // A vendor's own transport is unknown to the table.
    let driver = ibv_qp_type::IBV_QPT_DRIVER;
    assert_eq!(complaint(driver, Reset::RAW, Sqd::RAW, port), None);
}
