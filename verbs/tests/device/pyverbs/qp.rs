//! `test_qp.py`: the cases about creating queue pairs

use verbs::{
    Init, QueuePair, Reset, Rtr, Rts, Uc, Ud,
    op::SendOps,
    qp::{Attributes, Connected, Psn, QpState, QueuePairBuilder, Queued},
};

use crate::loopback::Fixture;

const PLAIN: SendOps = SendOps::empty();
const UD_OPS: SendOps = SendOps::SEND.union(SendOps::SEND_WITH_IMM);
const UC_OPS: SendOps = UD_OPS
    .union(SendOps::RDMA_WRITE)
    .union(SendOps::RDMA_WRITE_WITH_IMM);
const RC_OPS: SendOps = UC_OPS
    .union(SendOps::RDMA_READ)
    .union(SendOps::ATOMIC_CMP_AND_SWP)
    .union(SendOps::ATOMIC_FETCH_AND_ADD);

/// Makes a queue pair, and checks by a query that it is new, with the requested capacities. With
/// operations of extended posting, uses `ibv_create_qp_ex`.
fn create<T: Queued>(fixture: &Fixture, ops: SendOps) -> QueuePair<T, Reset> {
    let cq = fixture.cq(100);
    let builder = fixture.pd.qp_builder::<T>(&cq, &cq).send_ops(ops);
    let builder = builder.max_send_wr(30).max_recv_wr(20);
    let qp = builder.max_send_sge(3).max_recv_sge(2).create().unwrap();
    let attr = qp.query().unwrap();
    assert_eq!(attr.state, QpState::RESET);
    assert!(attr.cap.max_send_wr >= 30 && attr.cap.max_recv_wr >= 20);
    assert!(attr.cap.max_send_sge >= 3 && attr.cap.max_recv_sge >= 2);
    qp
}

/// Brings a queue pair to the last state possible without a peer.
fn to_init<T: Connected>(qp: QueuePair<T, Reset>) {
    let qp = qp.to_init(&Attributes::<T, Init>::new(1));
    let qp = qp.map_err(|refused| refused.error).unwrap();
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.port_num), (QpState::INIT, 1));
}

fn to_rts(qp: QueuePair<Ud, Reset>) {
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 7)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    let qp = qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()));
    let attr = qp.unwrap().query().unwrap();
    assert_eq!((attr.state, attr.qkey), (QpState::RTS, 7));
}

#[test]
fn create_rc_qp_no_attr() {
    create::<verbs::Rc>(&Fixture::new(), PLAIN);
}

#[test]
fn create_uc_qp_no_attr() {
    create::<Uc>(&Fixture::new(), PLAIN);
}

#[test]
fn create_ud_qp_no_attr() {
    create::<Ud>(&Fixture::new(), PLAIN);
}

#[test]
fn create_rc_qp_with_attr() {
    to_init(create::<verbs::Rc>(&Fixture::new(), PLAIN));
}

#[test]
fn create_uc_qp_with_attr() {
    to_init(create::<Uc>(&Fixture::new(), PLAIN));
}

#[test]
fn create_ud_qp_with_attr() {
    to_rts(create::<Ud>(&Fixture::new(), PLAIN));
}

#[test]
fn create_rc_qp_ex_no_attr() {
    create::<verbs::Rc>(&Fixture::new(), RC_OPS);
}

#[test]
fn create_uc_qp_ex_no_attr() {
    create::<Uc>(&Fixture::new(), UC_OPS);
}

#[test]
fn create_ud_qp_ex_no_attr() {
    create::<Ud>(&Fixture::new(), UD_OPS);
}

#[test]
fn create_rc_qp_ex_with_attr() {
    to_init(create::<verbs::Rc>(&Fixture::new(), RC_OPS));
}

#[test]
fn create_uc_qp_ex_with_attr() {
    to_init(create::<Uc>(&Fixture::new(), UC_OPS));
}

#[test]
fn create_ud_qp_ex_with_attr() {
    to_rts(create::<Ud>(&Fixture::new(), UD_OPS));
}

/// Requests more than any device has. The cases are named after raw queue pairs, but make these.
fn too_much(ask: impl FnOnce(QueuePairBuilder<'_, Ud>) -> QueuePairBuilder<'_, Ud>, named: &str) {
    let fixture = Fixture::new();
    let cq = fixture.cq(100);
    let available = cq.available();
    let err = ask(fixture.pd.qp_builder(&cq, &cq)).create().unwrap_err();
    assert!(err.to_string().contains(named), "{err}");
    assert_eq!(cq.available(), available);
}

#[test]
fn create_raw_qp_ex_with_illegal_caps_max_send_wr() {
    too_much(|builder| builder.max_send_wr(u32::MAX), "max_send_wr");
}

#[test]
fn create_raw_qp_ex_with_illegal_caps_max_send_sge() {
    too_much(|builder| builder.max_send_sge(0xffff), "max_send_sge");
}

#[test]
fn create_raw_qp_ex_with_illegal_caps_max_recv_sge() {
    too_much(|builder| builder.max_recv_sge(0xffff), "max_recv_sge");
}

#[test]
fn create_raw_qp_ex_with_illegal_caps_max_recv_wr() {
    too_much(|builder| builder.max_recv_wr(u32::MAX), "max_recv_wr");
}

/// A Q_Key with the highest bit is for privileged users.
#[test]
fn create_ud_qp_with_privileged_qkey() {
    let fixture = Fixture::new();
    for ops in [PLAIN, UD_OPS] {
        let init = Attributes::<Ud, Init>::new(1, 0x8000_0000);
        let qp = create::<Ud>(&fixture, ops).to_init(&init);
        let qp = qp.map_err(|refused| refused.error).unwrap();
        assert_eq!(qp.query().unwrap().qkey, 0x8000_0000);
    }
}

#[test]
fn modify_rc_qp_rd_atomic() {
    let fixture = Fixture::new();
    let qp = create::<verbs::Rc>(&fixture, PLAIN);
    let peer = qp.qp_num();
    let qp = qp.to_init(&fixture.init());
    let qp = qp.map_err(|refused| refused.error).unwrap();
    let psn = Psn::default();
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&fixture.address_vector(), peer, psn);
    let qp = qp.to_rtr(&rtr.max_dest_rd_atomic(12));
    let qp = qp.map_err(|refused| refused.error).unwrap();
    let rts = Attributes::<verbs::Rc, Rts>::new(psn).max_rd_atomic(12);
    let qp = qp.to_rts(&rts).map_err(|refused| refused.error).unwrap();
    let attr = qp.query().unwrap();
    assert!(attr.max_rd_atomic >= 12 && attr.max_dest_rd_atomic >= 12);
}
