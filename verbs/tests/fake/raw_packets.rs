//! Raw packets, and queue pairs of a device's maker.

use ibverbs_sys as ffi;
use verbs::{
    Attributes, Buf, Driver, FlowRule, FlowTarget, Init, QpState, QueuePair, RawPacket, Reset, Rtr,
    Rts, WcStatus, op::SendFrame,
};

use crate::fixture::Fixture;

const FRAME: &[u8; 18] = b"\x33\x33\0\0\0\x01\x02\0\0\0\0\x01\x88\xb5data";

fn bring_up(qp: QueuePair<RawPacket, Reset>) -> QueuePair<RawPacket, Rts> {
    let qp = qp.to_init(&Attributes::<RawPacket, Init>::new(1)).unwrap();
    let qp = qp.to_rtr(&Attributes::<RawPacket, Rtr>::new()).unwrap();
    qp.to_rts(&Attributes::<RawPacket, Rts>::new().rate_limit(9))
        .unwrap()
}

#[test]
fn create_raw_qp_with_attr() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let builder = fixture
        .pd
        .qp_builder(&cq, &cq)
        .max_send_wr(2)
        .max_inline_data(64);
    let mut qp = bring_up(builder.create().unwrap());
    // Everything of the first port comes here.
    let _flow = qp.create_flow(&FlowRule::new(1)).unwrap();
    qp.post_recv(fixture.pd.alloc_buf(64).unwrap()).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), FRAME);

    let frame = fixture.pd.register_buf(*FRAME).unwrap();
    qp.post(SendFrame::new(frame).ip_checksum()).unwrap();
    let posted = &fixture.fake.sends(qp.qp_num())[0];
    assert_eq!(posted.bytes(), FRAME);
    assert_ne!(posted.flags & ffi::ibv_send_flags::IBV_SEND_IP_CSUM.0, 0);
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let mut work = Vec::new();
    for wc in cq.poll().unwrap() {
        match qp.complete(wc).unwrap() {
            verbs::Completed::Send(done) => work.push(done.work.to_vec()),
            verbs::Completed::Receive(done) => work.push(done.received().to_vec()),
        }
    }
    assert_eq!(work, [FRAME, FRAME]);

    let nothing = fixture.pd.alloc_buf(1).unwrap();
    qp.post(SendFrame::new(nothing).inline(&FRAME[..])).unwrap();
    assert_eq!(fixture.fake.sends(qp.qp_num())[0].bytes(), FRAME);
}

#[test]
fn query_raw_qp() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp = bring_up(fixture.pd.qp_builder(&cq, &cq).create().unwrap());
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.port_num), (QpState::RTS, 1));
    assert_eq!(attr.cap.max_send_wr, 1);
}

#[test]
fn create_raw_qp_with_illegal_caps() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let builder = || fixture.pd.qp_builder::<RawPacket>(&cq, &cq);
    for builder in [
        builder().max_send_wr(u32::MAX),
        builder().max_recv_wr(u32::MAX),
        builder().max_send_sge(u32::MAX),
        builder().max_recv_sge(u32::MAX),
    ] {
        let shown = format!("{builder:?}");
        assert!(builder.create().is_err(), "{shown}");
    }
}

#[test]
fn the_privilege_that_is_missing_is_named() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    fixture.fake.fail("ibv_create_qp", libc::EPERM);
    let refused = fixture
        .pd
        .qp_builder::<RawPacket>(&cq, &cq)
        .create()
        .unwrap_err();
    assert_eq!(
        refused.to_string(),
        "`ibv_create_qp` failed (raw packets need the capability CAP_NET_RAW): \
         Operation not permitted (os error 1)"
    );
}

/// Creates a queue pair as the library of a device's maker does.
fn driver_qp(fixture: &Fixture, cq: &verbs::CqHandle) -> verbs::Result<QueuePair<Driver, Reset>> {
    let builder = fixture.pd.qp_builder::<Driver>(cq, cq).max_recv_wr(2);
    // SAFETY: the context is that of the domain.
    let create = |ctx, attr: &mut _| unsafe { ffi::ibv_create_qp_ex(ctx, attr) };
    // SAFETY: it makes the queue pair that the attributes say, or none.
    unsafe { builder.create_with("fakedv_create_qp", create) }
}

#[test]
fn a_queue_pair_of_the_devices_maker_receives() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let qp = driver_qp(&fixture, &cq).unwrap();
    let mut attr = ffi::ibv_qp_attr::zeroed();
    attr.port_num = 1;
    let mask = ffi::ibv_qp_attr_mask::IBV_QP_STATE | ffi::ibv_qp_attr_mask::IBV_QP_PORT;
    let mut qp = qp.to_init(&Attributes::from_raw(attr, mask.0)).unwrap();
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"whatever");
    let wc = cq.poll().unwrap().next().unwrap();
    let Ok(verbs::Completed::Receive(done)) = qp.complete(wc) else {
        panic!("a receive has completed");
    };
    assert_eq!(done.received(), b"whatever");
    let leftover: verbs::Leftover<Buf, Buf> = qp.destroy().unwrap();
    assert_eq!((leftover.send.len(), leftover.receive.len()), (0, 0));
}

#[test]
fn a_queue_pair_that_the_maker_refuses_reserves_nothing() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    fixture.fake.fail("ibv_create_qp", libc::EINVAL);
    let err = driver_qp(&fixture, &cq).unwrap_err();
    assert!(
        err.to_string()
            .starts_with("`fakedv_create_qp` failed (Driver, "),
        "{err}"
    );
    assert_eq!(cq.available(), cq.capacity());
}
