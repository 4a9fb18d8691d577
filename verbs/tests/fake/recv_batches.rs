//! Batches of receives, and resizing of shared receive queues.

use std::{io::ErrorKind, sync::Arc};

use softnic::Call;
use verbs::{Buf, QueuePair, Rts, SharedReceiveQueue, work::With};

use crate::fixture::Fixture;

type Work = With<Buf, usize>;

fn work(fixture: &Fixture, number: usize) -> Work {
    With::new(fixture.pd.alloc_buf(number + 1).unwrap(), number)
}

#[test]
fn failed_receive_batch_returns_the_rest() {
    const DEPTH: usize = 5;
    for failing in 0..DEPTH {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(32);
        let mut qp: QueuePair<verbs::Rc, Rts, Buf, Work> = fixture.rc(&cq, 8);
        fixture
            .fake
            .fail_after(failing, Call::PostRecv, libc::ENOMEM);
        let mut batch = qp.recv_batch();
        for number in 0..DEPTH {
            batch.push(work(&fixture, number)).unwrap();
        }
        assert_eq!(batch.len(), DEPTH);
        let refused = batch.post().unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
        let which = format!("receive {failing} of {DEPTH}, counting from 0");
        assert!(refused.to_string().contains(&which), "{refused}");
        let rest: Vec<usize> = refused.value.iter().map(|work| work.context).collect();
        assert_eq!(rest, (failing..DEPTH).collect::<Vec<_>>());
        // The receives before are posted, and later ones follow them.
        qp.post_recv(work(&fixture, 77)).unwrap();
        for expected in (0..failing).chain([77]) {
            fixture.fake.complete_receive(qp.qp_num(), b"x");
            let wc = cq.poll().unwrap().next().unwrap();
            let Ok(verbs::Completed::Receive(done)) = qp.complete(wc) else {
                panic!("a receive has completed");
            };
            assert_eq!(
                (done.work().unwrap().context, done.received().unwrap()),
                (expected, &b"x"[..])
            );
        }
        assert_eq!(qp.receive_queue().in_flight(), 0);
    }
}

#[test]
fn failed_shared_receive_batch_returns_the_rest() {
    const DEPTH: usize = 5;
    for failing in 0..DEPTH {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(32);
        let mut srq: SharedReceiveQueue<Work> = fixture.pd.create_srq(8, 1).unwrap();
        let qp = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
        let qp: QueuePair<verbs::Rc, Rts, Buf, ()> = fixture.connect(qp.create_for().unwrap());
        fixture
            .fake
            .fail_after(failing, Call::PostSrqRecv, libc::ENOMEM);
        let mut batch = srq.batch();
        for number in 0..DEPTH {
            batch.push(work(&fixture, number)).unwrap();
        }
        let refused = batch.post().unwrap_err();
        let which = format!("receive {failing} of {DEPTH}, counting from 0");
        assert!(refused.to_string().contains(&which), "{refused}");
        let rest: Vec<usize> = refused.value.iter().map(|work| work.context).collect();
        assert_eq!(rest, (failing..DEPTH).collect::<Vec<_>>());
        assert_eq!(srq.in_flight(), failing);
        for expected in 0..failing {
            fixture.fake.complete_receive(qp.qp_num(), b"x");
            let wc = cq.poll().unwrap().next().unwrap();
            assert_eq!(srq.complete(wc).unwrap().work().unwrap().context, expected);
        }
    }
}

#[test]
fn dropped_batch_posts_nothing() {
    let fixture = Fixture::new();
    let cq = fixture.cq(32);
    let token = Arc::new(());
    let with_token =
        |token: &Arc<()>| With::new(fixture.pd.alloc_buf(8).unwrap(), Arc::clone(token));
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, With<Buf, Arc<()>>> = fixture.rc(&cq, 2);
    let mut srq = fixture.pd.create_srq(2, 1).unwrap();

    let mut batch = qp.recv_batch();
    batch.push(with_token(&token)).unwrap();
    drop(batch);
    let mut batch = srq.batch();
    batch.push(with_token(&token)).unwrap();
    drop(batch);
    assert_eq!(Arc::strong_count(&token), 1);
    assert_eq!((qp.receive_queue().in_flight(), srq.in_flight()), (0, 0));
    assert!(fixture.fake.receives(qp.qp_num()).is_empty());
    assert!(fixture.fake.srq_receives(srq.as_raw()).is_empty());
    // An empty one is no call at all.
    qp.recv_batch().post().unwrap();
    srq.batch().post().unwrap();
}

#[test]
fn full_receive_batch_returns_the_work() {
    let fixture = Fixture::new();
    let cq = fixture.cq(32);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Work> = fixture.rc(&cq, 2);
    let mut srq: SharedReceiveQueue<Work> = fixture.pd.create_srq(2, 1).unwrap();
    let mut batch = qp.recv_batch();
    let mut shared = srq.batch();
    for number in 0..2 {
        batch.push(work(&fixture, number)).unwrap();
        shared.push(work(&fixture, number)).unwrap();
    }
    for refused in [
        batch.push(work(&fixture, 9)),
        shared.push(work(&fixture, 9)),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
        assert_eq!(refused.value.context, 9);
    }
    batch.post().unwrap();
    shared.post().unwrap();
    assert_eq!(fixture.fake.receives(qp.qp_num()).len(), 2);
    assert_eq!(fixture.fake.srq_receives(srq.as_raw()).len(), 2);
}

#[test]
fn forgotten_receive_batch_completes_later() {
    let fixture = Fixture::new();
    let cq = fixture.cq(32);
    let mut srq: SharedReceiveQueue<Work> = fixture.pd.create_srq(3, 1).unwrap();
    let mut batch = srq.batch();
    batch.push(work(&fixture, 0)).unwrap();
    #[expect(clippy::mem_forget, reason = "the point of the test")]
    std::mem::forget(batch);
    let mut batch = srq.batch();
    batch.push(work(&fixture, 1)).unwrap();
    batch.post().unwrap();
    assert_eq!(fixture.fake.srq_receives(srq.as_raw()).len(), 1);
    assert_eq!(srq.in_flight(), 2);
    drop(cq);
}

#[test]
fn shared_queue_grows_with_room_for_its_completions() {
    let fixture = Fixture::new();
    let cq = fixture.cq(10);
    let mut srq: SharedReceiveQueue<Work> = fixture.pd.create_srq(2, 1).unwrap();
    let qp = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
    let qp = qp.create_for::<Buf, ()>().unwrap();
    let available = cq.available();
    srq.resize(4).unwrap();
    assert_eq!((srq.capacity(), srq.query().unwrap().max_wr), (4, 4));
    assert_eq!(cq.available(), available - 2);
    for number in 0..4 {
        srq.post(work(&fixture, number)).unwrap();
    }
    // Neither below the number in flight, nor beyond the completion queue, nor against the device's
    // refusal.
    let err = srq.resize(3).unwrap_err();
    assert!(err.to_string().contains("4 are in flight"), "{err}");
    let err = srq.resize(100).unwrap_err();
    assert!(err.to_string().contains("entries left"), "{err}");
    fixture.fake.fail(Call::ModifySrq, libc::EINVAL);
    assert_eq!(
        srq.resize(5).unwrap_err().raw_os_error(),
        Some(libc::EINVAL)
    );
    assert_eq!((srq.capacity(), cq.available()), (4, available - 2));
    drop(qp);
    drop(srq);
}

#[test]
fn resized_shared_queue_shrinks_and_grows() {
    let fixture = Fixture::new();
    let cq = fixture.cq(10);
    let mut srq: SharedReceiveQueue<Work> = fixture.pd.create_srq(4, 1).unwrap();
    let qp = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
    let _qp = qp.create_for::<Buf, ()>().unwrap();
    let available = cq.available();
    srq.resize(1).unwrap();
    srq.post(work(&fixture, 0)).unwrap();
    let refused = srq.post(work(&fixture, 1)).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    // Old completions may be there: their entries are kept, and reused.
    assert_eq!(cq.available(), available);
    srq.resize(4).unwrap();
    assert_eq!(cq.available(), available);
}
