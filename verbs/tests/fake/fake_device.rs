//! The fake device shows the worst permitted behaviour: otherwise the other tests would find
//! nothing.

use verbs::{Buf, QueuePair, RemoteAccess, Rts, WcStatus, op};

use crate::fixture::Fixture;

#[test]
fn keys_of_a_released_region_are_issued_again_at_once() {
    let fixture = Fixture::new();
    let rkey = || {
        let region = fixture.pd.alloc_remote(8, RemoteAccess::WRITE).unwrap();
        region.token().rkey
    };
    assert_eq!(rkey(), rkey());
}

#[test]
fn message_is_written_to_the_region_with_the_current_key() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 2);
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    let sge = fixture.fake.receives(qp.qp_num())[0].sges[0];
    let mut beyond = sge;
    beyond.addr += 1;
    assert_eq!(
        fixture.fake.deliver(&[beyond], b"message"),
        WcStatus::LOC_PROT_ERR
    );
    assert_eq!(fixture.fake.deliver(&[sge], b"message"), WcStatus::SUCCESS);
    let leftover = qp.destroy().map_err(|refused| refused.error).unwrap();
    assert_eq!(&*leftover.receive[0], b"message\0");
    drop(leftover);
    let again = fixture.pd.alloc_buf(4).unwrap();
    assert!(format!("{again:?}").contains(&sge.lkey.to_string()));
    assert_eq!(
        fixture.fake.deliver(&[sge], b"message"),
        WcStatus::LOC_PROT_ERR
    );
}

/// Until `ibv_destroy_qp` has returned, the device uses the memory of requests in flight.
#[test]
fn region_deregistered_before_its_queue_pair_is_reported() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 2);
    qp.post(op::Send::new(fixture.pd.alloc_buf(8).unwrap()))
        .unwrap();
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    // As if the program had given the memory back.
    fixture.fake.lose_registrations();
    drop(qp);
    for _ in 0..2 {
        fixture
            .fake
            .forgive("had work in flight whose memory was given back");
    }
}

/// A library need not remove the completions of a queue pair that is destroyed.
#[test]
fn completions_of_a_destroyed_queue_pair_stay() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 2);
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    drop(qp);
    assert_eq!(cq.poll().unwrap().count(), 1);
}

/// mlx5's library copies short messages when it is polled.
#[test]
fn polled_completion_copies_the_message_again() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 2);
    qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"message");
    fixture.fake.lose_registrations();
    assert_eq!(cq.poll().unwrap().count(), 1);
    fixture
        .fake
        .forgive("a poll copied a message to memory that was given back");
}

#[test]
fn queue_size_is_not_limited() {
    let fixture = Fixture::new();
    let cq = fixture.ctx.create_cq(i32::MAX as u32).unwrap();
    let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let builder = builder.max_send_wr(1 << 22).max_recv_wr(1 << 22);
    let qp = builder.create_for::<(), ()>();
    assert!(qp.is_ok(), "{qp:?}");
}
