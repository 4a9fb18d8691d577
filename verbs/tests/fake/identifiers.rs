//! Request identifiers: no held completion names a later request.
#![expect(clippy::mem_forget, reason = "the point of these tests")]

use std::io::ErrorKind;

use verbs::{Buf, Completed, QueuePair, Rts, op, rss::WorkQueue};

use crate::fixture::Fixture;

fn buf(fixture: &Fixture) -> Buf {
    fixture.pd.alloc_buf(8).unwrap()
}

/// The queue pair and the queue of a work request identifier: all but its sequence number.
fn queue_of(wr_id: u64) -> u64 {
    wr_id >> 25
}

/// Sequence numbers of 24 bits wrap around. A reset empties the queues without completions, so
/// nothing else bounds the number of wrap-arounds while a completion is held.
#[test]
fn reset_queue_pair_has_a_new_id() {
    for unread in 0..3 {
        let fixture = Fixture::new();
        let fake = &fixture.fake;
        let mut cq = fixture.cq(256);
        let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
        let mut numbers = Vec::new();
        for _ in 0..3 {
            qp.post(op::Send::new(buf(&fixture))).unwrap();
            qp.post_recv(buf(&fixture)).unwrap();
        }
        fake.complete_receive(qp.qp_num(), b"old");
        fake.complete_send(qp.qp_num(), verbs::WcStatus::SUCCESS);
        let mut completions = cq.poll().unwrap();
        let old = completions.by_ref().nth(unread % 2).unwrap();
        for _ in 0..=unread {
            let queues = [
                queue_of(fake.sends(qp.qp_num())[0].wr_id),
                queue_of(fake.receives(qp.qp_num())[0].wr_id),
            ];
            numbers.extend(queues);
            let before = qp.id();
            let (reset, _) = qp.to_reset().unwrap();
            assert_ne!(reset.id(), before);
            assert_eq!(reset.id(), reset.send_queue().id());
            assert_eq!(reset.id(), reset.receive_queue().id());
            qp = fixture.connect(reset);
            for _ in 0..4 {
                qp.post(op::Send::new(buf(&fixture))).unwrap();
                qp.post_recv(buf(&fixture)).unwrap();
            }
        }
        let mut queues = numbers.clone();
        queues.sort_unstable();
        queues.dedup();
        assert_eq!(
            queues.len(),
            numbers.len(),
            "each reset makes two other queues: {numbers:x?}"
        );
        let old = qp.complete(old).map(drop).unwrap_err();
        assert_ne!(old.qp_id(), qp.id());
        assert_eq!(
            (qp.send_queue().in_flight(), qp.receive_queue().in_flight()),
            (4, 4)
        );
    }
}

#[test]
fn reset_queue_pair_works_like_a_new_one() {
    for iwarp in [false, true] {
        let fixture = if iwarp {
            Fixture::iwarp()
        } else {
            Fixture::new()
        };
        let mut cq = fixture.cq(256);
        let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 3);
        for _ in 0..5 {
            qp.post(op::Send::new(buf(&fixture)).unsignaled()).unwrap();
            qp.post_recv(buf(&fixture)).unwrap();
            let (reset, leftover) = qp.to_reset().unwrap();
            assert_eq!((leftover.send.len(), leftover.receive.len()), (1, 1));
            qp = fixture.connect(reset);
            for _ in 0..3 {
                qp.post(op::Send::new(buf(&fixture))).unwrap();
                fixture
                    .fake
                    .complete_send(qp.qp_num(), verbs::WcStatus::SUCCESS);
                let mut of_this = 0;
                for wc in cq.poll().unwrap() {
                    of_this += usize::from(qp.complete(wc).is_ok());
                }
                assert_eq!(of_this, 1);
            }
        }
    }
}

#[test]
fn receives_of_forgotten_batches_fill_their_queue() {
    const DEPTH: usize = 4;
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Option<Buf>> = fixture.rc(&cq, 4);
    qp.post_recv(Some(buf(&fixture))).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"held");
    let completion = cq.poll().unwrap().next().unwrap();
    let mut pushed = 0;
    let full = loop {
        let mut batch = qp.recv_batch();
        match batch.push(None) {
            Ok(()) => pushed += 1,
            Err(refused) => break refused.error.kind(),
        }
        std::mem::forget(batch);
    };
    assert_eq!((pushed, full), (DEPTH - 1, ErrorKind::WouldBlock));
    let Ok(Completed::Receive(done)) = qp.complete(completion) else {
        panic!("it is that of the first receive");
    };
    assert_eq!(done.work().unwrap().as_deref().unwrap()[..4], *b"held");
}

#[test]
fn reset_work_queue_has_a_new_id() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let mut wq: WorkQueue = fixture.pd.wq_builder(&cq).max_wr(4).create().unwrap();
    wq.to_ready().unwrap();
    wq.post(buf(&fixture)).unwrap();
    fixture.fake.complete_wq(wq.as_raw(), b"old");
    let completion = cq.poll().unwrap().next().unwrap();
    let before = wq.id();
    assert_eq!(wq.to_reset().unwrap().len(), 1);
    assert_ne!(wq.id(), before);
    wq.to_ready().unwrap();
    wq.post(buf(&fixture)).unwrap();
    assert!(wq.complete(completion).is_err());
    assert_eq!(wq.in_flight(), 1);
}
