//! `test_qp.py`: the cases about queue pairs for raw packets

use verbs::{
    Init, QueuePair, Reset, Rtr, Rts,
    op::SendOps,
    qp::{Attributes, QpState, RawPacket},
};

use crate::fixture::Fixture;

fn create(fixture: &Fixture, ops: SendOps) -> QueuePair<RawPacket, Reset> {
    let cq = fixture.cq(100);
    let builder = fixture.pd.qp_builder::<RawPacket>(&cq, &cq).send_ops(ops);
    let builder = builder.max_send_wr(30).max_recv_wr(20);
    let qp = builder.max_send_sge(3).max_recv_sge(2).create().unwrap();
    let attr = qp.query().unwrap();
    assert_eq!(attr.state, QpState::RESET);
    assert_eq!((attr.cap.max_send_wr, attr.cap.max_recv_wr), (30, 20));
    assert_eq!((attr.cap.max_send_sge, attr.cap.max_recv_sge), (3, 2));
    qp
}

fn bring_up(qp: QueuePair<RawPacket, Reset>) {
    let qp = qp.to_init(&Attributes::<RawPacket, Init>::new(1)).unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::INIT);
    let qp = qp.to_rtr(&Attributes::<RawPacket, Rtr>::new()).unwrap();
    let qp = qp.to_rts(&Attributes::<RawPacket, Rts>::new()).unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::RTS);
}

#[test]
fn create_raw_qp_no_attr() {
    create(&Fixture::new(), SendOps::empty());
}

#[test]
fn create_raw_qp_with_attr() {
    bring_up(create(&Fixture::new(), SendOps::empty()));
}

#[test]
fn create_raw_qp_ex_no_attr() {
    create(&Fixture::new(), SendOps::SEND);
}

#[test]
fn create_raw_qp_ex_with_attr() {
    bring_up(create(&Fixture::new(), SendOps::SEND));
}

#[test]
fn query_raw_qp() {
    let fixture = Fixture::new();
    for ops in [SendOps::empty(), SendOps::SEND] {
        let qp = create(&fixture, ops);
        let qp = qp.to_init(&Attributes::<RawPacket, Init>::new(1)).unwrap();
        let attr = qp.query().unwrap();
        assert_eq!((attr.state, attr.port_num), (QpState::INIT, 1));
    }
}
