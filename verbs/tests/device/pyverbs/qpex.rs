//! `test_qpex.py`: the cases about failing posts

use std::{io::ErrorKind, ptr};

use ibverbs_sys as ffi;
use verbs::{
    Buf, QueuePair, RemoteAccess, Reset, Ud, WcStatus,
    ah::GRH_LEN,
    mw::WindowType,
    op::{self, SendOps},
    qp::QpState,
};

use super::traffic::{SIZE, UdQp, datagram_pair, sent};
use crate::loopback::Fixture;

/// A queue pair reset after sending. Posts that must fail there do not compile, so the tests call C
/// directly.
fn after_reset() -> (
    Fixture,
    QueuePair<Ud, Reset, verbs::ah::Addressed<Buf>, Buf>,
) {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let (a, _b) = datagram_pair(&fixture, &cq);
    let (qp, _) = a.to_reset().map_err(|refused| refused.error).unwrap();
    assert_eq!(qp.query().unwrap().state, QpState::RESET);
    (fixture, qp)
}

#[test]
fn post_receive_qp_state_bad_flow() {
    let (_fixture, qp) = after_reset();
    let mut wr = ffi::ibv_recv_wr::zeroed();
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair exists; the request has no memory.
    let errno = unsafe { ffi::ibv_post_recv(qp.as_raw(), &raw mut wr, &raw mut bad) };
    // Some providers return negative error numbers.
    assert_eq!(errno.abs(), libc::EINVAL);
}

#[test]
fn post_send_qp_state_bad_flow() {
    let (fixture, qp) = after_reset();
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    let mut wr = ffi::ibv_send_wr::zeroed();
    wr.opcode = ffi::ibv_wr_opcode::IBV_WR_SEND;
    // `ud` is the larger of the union's two used fields.
    wr.wr.ud.ah = ah.as_raw();
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair and the address exist; the request has no memory.
    let errno = unsafe { ffi::ibv_post_send(qp.as_raw(), &raw mut wr, &raw mut bad) };
    assert_eq!(errno.abs(), libc::EINVAL);
}

fn receiver(fixture: &Fixture) -> UdQp {
    let cq = fixture.cq(64);
    datagram_pair(fixture, &cq).0
}

#[test]
fn full_rq_bad_flow() {
    let fixture = Fixture::new();
    let mut qp = receiver(&fixture);
    let buf = || fixture.pd.alloc_buf(GRH_LEN + SIZE).unwrap();
    for _ in 0..qp.receive_queue().capacity() {
        qp.post_recv(buf()).unwrap();
    }
    let refused = qp.post_recv(buf()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    assert_eq!(refused.value.unwrap().len(), GRH_LEN + SIZE);
}

#[test]
fn rq_with_larger_sgl_bad_flow() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let builder = fixture.pd.qp_builder::<Ud>(&cq, &cq).max_recv_sge(2);
    let qp: QueuePair<Ud, Reset, verbs::ah::Addressed<Buf>, Vec<Buf>> =
        builder.create_for().unwrap();
    let attributes = verbs::qp::Attributes::<Ud, verbs::Init>::new(1, 7);
    let mut qp = qp
        .to_init(&attributes)
        .map_err(|refused| refused.error)
        .unwrap();
    let parts = |count| {
        (0..count)
            .map(|_| fixture.pd.alloc_buf(64).unwrap())
            .collect()
    };
    qp.post_recv(parts(2)).unwrap();
    let refused = qp.post_recv(parts(3)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert!(refused.error.to_string().contains("3 elements"));
    assert_eq!(refused.value.unwrap().len(), 3);
}

/// A window without write access for the peer, on a region with such access.
#[test]
fn qp_ex_rc_bind_mw() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let make = || {
        let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_wr(4);
        let ops = SendOps::RDMA_WRITE | SendOps::BIND_MW;
        builder.send_ops(ops).create().unwrap()
    };
    let (a, b) = (make(), make());
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let mut a = fixture.bring_up(a, b_num);
    let mut b = fixture.bring_up(b, a_num);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let mut batch = b.extended_batch().unwrap();
    let work = fixture.pd.alloc_buf(1).unwrap();
    let token = batch
        .bind_window(&mut window, &region, RemoteAccess::READ, work)
        .unwrap();
    batch.post().unwrap();
    assert_eq!(sent(&mut cq, &mut b).0, WcStatus::SUCCESS);

    let mut batch = a.extended_batch().unwrap();
    let work = fixture.pd.register_buf([1; 8]).unwrap();
    batch.push(op::Write::new(work, token)).unwrap();
    batch.post().unwrap();
    assert_eq!(sent(&mut cq, &mut a).0, WcStatus::REM_ACCESS_ERR);
    assert_eq!(region.load(0), 0);
}
