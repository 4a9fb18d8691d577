//! Requests of 2 GiB and more: providers keep the length of an element in 31 bits.
//!
//! Receives end before the queue pair does, since the device writes all bytes of the others then.

use verbs::{
    QueuePair, RemoteAccess, RemoteRegion, Rts, SharedReceiveQueue,
    cq::WcFields,
    mr::{Mapping, NullBuf},
    op::{self, SendOps},
    srq::TagPattern,
};

use crate::{
    fixture::Fixture,
    tag_matching::{ROOM, can_match},
    unmapped::refusal,
};

const GIB: u32 = 1 << 30;

/// A request of `parts` with these bytes is refused by every call that posts.
fn check(parts: &[u32], bytes: u64) {
    let fixture = Fixture::new();
    let null = fixture.pd.alloc_null_mr().unwrap();
    let work = || -> Vec<NullBuf> { parts.iter().map(|&len| null.buf(len)).collect() };
    let cq = fixture.cq(32);
    let builder = fixture.pd.qp_builder(&cq, &cq).send_ops(SendOps::SEND);
    let builder = builder.max_send_sge(4).max_recv_sge(4);
    let mut qp: QueuePair<verbs::Rc, Rts, Vec<NullBuf>, Vec<NullBuf>> =
        fixture.connect(builder.create_for().unwrap());
    let reason = format!(
        "{bytes} bytes; a request has at most 2147483648, and an element at most 2147483647: \
         post the memory in parts"
    );
    let found = refusal(qp.post(op::Send::new(work())));
    assert_eq!(found, format!("`ibv_post_send` failed: {reason}"));
    let found = refusal(qp.batch().push(op::Send::new(work())));
    assert_eq!(found, format!("`ibv_post_send` failed: {reason}"));
    let found = refusal(qp.extended_batch().unwrap().push(op::Send::new(work())));
    assert_eq!(found, format!("`ibv_wr_send` failed: {reason}"));
    let found = refusal(qp.post_recv(work()));
    assert_eq!(found, format!("`ibv_post_recv` failed: {reason}"));
    let found = refusal(qp.recv_batch().push(work()));
    assert_eq!(found, format!("`ibv_post_recv` failed: {reason}"));
    let mut srq: SharedReceiveQueue<Vec<NullBuf>> = fixture.pd.create_srq(8, 4).unwrap();
    let found = refusal(srq.post(work()));
    assert_eq!(found, format!("`ibv_post_srq_recv` failed: {reason}"));
    let found = refusal(srq.batch().push(work()));
    assert_eq!(found, format!("`ibv_post_srq_recv` failed: {reason}"));
    let builder = fixture.pd.wq_builder(&cq).max_wr(2).max_sge(4);
    let mut wq = builder.create_for::<Vec<NullBuf>>().unwrap();
    wq.to_ready().unwrap();
    let found = refusal(wq.post(work()));
    assert_eq!(found, format!("`ibv_post_wq_recv` failed: {reason}"));
    // Nothing is in flight.
    assert!(fixture.fake.sends(qp.qp_num()).is_empty());
    assert_eq!(qp.receive_queue().in_flight(), 0);
}

#[test]
fn request_longer_than_any_message_is_refused() {
    check(&[3 * GIB], 3 << 30);
    check(&[u32::MAX, u32::MAX], 2 * u64::from(u32::MAX));
    check(&[GIB, GIB, 1], (2 << 30) + 1);
}

#[test]
fn element_of_2_gib_is_refused() {
    check(&[2 * GIB], 2 << 30);
    check(&[0, 2 * GIB], 2 << 30);
}

#[test]
fn tagged_buffer_of_2_gib_is_refused() {
    let fixture = Fixture::new();
    can_match(&fixture);
    let null = fixture.pd.alloc_null_mr().unwrap();
    let cq = fixture.ctx.cq_ex_builder(64).with(WcFields::TM_INFO);
    let cq = cq.create().unwrap();
    let mut queue = fixture.pd.create_tag_matching(cq.handle(), ROOM).unwrap();
    let found = refusal(queue.add(TagPattern::exact(1), null.buf(2 * GIB)).map(drop));
    assert!(found.contains("2147483648 bytes; a request has"), "{found}");
    let found = refusal(queue.post(null.buf(2 * GIB)));
    assert!(found.contains("2147483648 bytes; a request has"), "{found}");
    assert_eq!((queue.in_flight(), queue.tags_in_flight()), (0, 0));
}

#[test]
fn receive_of_2_gib_in_two_elements_is_posted() {
    let fixture = Fixture::new();
    let null = fixture.pd.alloc_null_mr().unwrap();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, (), [NullBuf; 2]> = fixture.rc(&cq, 2);
    qp.post_recv([null.buf(GIB), null.buf(GIB)])
        .map_err(|it| it.error)
        .unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"x");
}

#[test]
fn buffer_is_shorter_than_2_gib() {
    let fixture = Fixture::new();
    let mapping = |len| fixture.pd.register(Mapping::new(len).unwrap());
    let buf = mapping(i32::MAX as usize).create_buf();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let buf = buf.map_err(|it| it.error).unwrap();
    qp.post_recv(buf).map_err(|it| it.error).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"x");
    let refused = mapping(1 << 31).create_buf().unwrap_err();
    assert_eq!(
        refused.error.to_string(),
        "`ibv_reg_mr` failed (2147483648 bytes): a buffer is at most 2147483647 bytes long; use several, or a \
         `RemoteRegion`"
    );
}

#[test]
fn pool_buffer_and_scoped_memory_are_shorter_than_2_gib() {
    let fixture = Fixture::new();
    let mut memory = Mapping::new(1 << 31).unwrap();
    verbs::scope(&fixture.pd, |scope| {
        let (shorter, all) = (scope.register_shared(&memory[1..]), memory.len());
        assert_eq!(shorter.unwrap().len(), all - 1);
        let error = scope.register_shared(&memory).unwrap_err().to_string();
        assert!(error.contains("from 1 to 2147483647 bytes"), "{error}");
    });
    verbs::scope(&fixture.pd, |scope| {
        assert!(scope.register(&mut memory).is_err());
    });
    let refused = fixture.pd.register(memory).create_pool(1 << 31);
    let error = refused.unwrap_err().error.to_string();
    assert!(error.contains("from 1 to 2147483647 bytes"), "{error}");
}

#[test]
fn region_of_2_gib_is_posted_in_two_elements() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, RemoteRegion, RemoteRegion> = fixture.rc(&cq, 2);
    let region = |len| {
        let memory = fixture.pd.register(Mapping::new(len).unwrap());
        let region = memory.remote(RemoteAccess::READ).create();
        region.map_err(|it| it.error).unwrap()
    };
    qp.post_recv(region(1 << 31))
        .map_err(|it| it.error)
        .unwrap();
    let posted = fixture.fake.receives(qp.qp_num());
    let lengths: Vec<u32> = posted[0].sges.iter().map(|sge| sge.length).collect();
    // The second element begins at a page of every size up to 64 KiB.
    assert_eq!(lengths, [0x7fff_0000, 0x1_0000]);
    fixture.fake.complete_receive(qp.qp_num(), b"x");
    let found = refusal(qp.post_recv(region((1 << 31) + 1)));
    assert!(found.contains("2147483649 bytes; a request has"), "{found}");
}
