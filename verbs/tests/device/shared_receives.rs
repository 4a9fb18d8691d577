//! Shared receive queues.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use verbs::{
    Buf, QueuePair, Rts, SharedReceiveQueue,
    attr::DeviceCaps,
    op,
    qp::{QpId, QpKey},
    srq::SrqAttr,
    work::With,
};

use crate::loopback::{Fixture, leave_out};

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

type Receive = With<Buf, u32>;

/// Two connections, whose passive ends share a receive queue.
struct Shared {
    srq: SharedReceiveQueue<Receive>,
    senders: Vec<QueuePair<verbs::Rc, Rts>>,
    receivers: Vec<QueuePair<verbs::Rc, Rts, Buf, ()>>,
}

fn shared(fixture: &Fixture, cq: &verbs::cq::CqHandle, max_wr: u32) -> Shared {
    let srq = fixture.pd.create_srq::<Receive>(max_wr, 1).unwrap();
    let (mut senders, mut receivers) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let sender = fixture
            .pd
            .qp_builder(cq, cq)
            .max_send_wr(4)
            .create()
            .unwrap();
        let receiver = fixture
            .pd
            .qp_builder(cq, cq)
            .srq(&srq)
            .create_for()
            .unwrap();
        let (sender_num, receiver_num) = (sender.qp_num(), receiver.qp_num());
        senders.push(fixture.bring_up(sender, receiver_num));
        receivers.push(fixture.bring_up(receiver, sender_num));
    }
    Shared {
        srq,
        senders,
        receivers,
    }
}

#[test]
fn shared_receives_complete_for_any_queue_pair() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let Shared {
        mut srq,
        mut senders,
        receivers,
    } = shared(&fixture, &cq, 8);
    for i in 0..4 {
        srq.post(With::new(fixture.pd.alloc_buf(16).unwrap(), i))
            .unwrap();
    }
    assert_eq!(srq.in_flight(), 4);
    for (i, sender) in senders.iter_mut().enumerate() {
        for j in 0..2 {
            let text = format!("{i} {j}");
            sender
                .post(op::Send::new(
                    fixture.pd.register_buf(text.into_bytes()).unwrap(),
                ))
                .unwrap();
        }
    }
    let (mut received, mut contexts) = (Vec::new(), Vec::new());
    while received.len() < 4 {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(
            completions.len() > 0,
            "only {} messages came",
            received.len()
        );
        for wc in completions {
            wc.ok().unwrap();
            if wc.qp_id() == srq.id() {
                let number = wc.qp_num();
                let done = srq.complete(wc).unwrap();
                let to = receivers
                    .iter()
                    .position(|qp| qp.qp_num() == number)
                    .unwrap();
                let text = String::from_utf8(done.received().unwrap().to_vec()).unwrap();
                assert!(text.starts_with(&to.to_string()), "{text} came to {to}");
                received.push(text);
                contexts.push(done.work().unwrap().context);
            } else {
                let sender = senders.iter_mut().find(|qp| qp.id() == wc.qp_id()).unwrap();
                sender.complete(wc).unwrap().ok().unwrap();
            }
        }
    }
    received.sort();
    contexts.sort_unstable();
    assert_eq!(received, ["0 0", "0 1", "1 0", "1 1"]);
    assert_eq!(contexts, [0, 1, 2, 3]);
    assert_eq!(srq.in_flight(), 0);
}

/// Sends a message to a receiver of a shared queue, and returns the key of its queue pair by the completion.
fn key_of_next_message(
    fixture: &Fixture,
    cq: &mut verbs::CompletionQueue,
    srq: &mut SharedReceiveQueue<Receive>,
    sender: &mut QueuePair<verbs::Rc, Rts>,
) -> Option<QpKey> {
    let work = With::new(fixture.pd.alloc_buf(16).unwrap(), 0);
    srq.post(work).unwrap();
    let message = fixture.pd.register_buf(*b"hello").unwrap();
    sender.post(op::Send::new(message)).unwrap();
    let (mut key, mut sent) = (None, false);
    while key.is_none() || !sent {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            let receiver = srq.handle().receiver(&wc);
            match srq.complete(wc) {
                Ok(done) => {
                    done.work().unwrap();
                    key = Some(receiver.and_then(QpId::key));
                }
                Err(wc) => {
                    assert_eq!(receiver, Some(sender.id()));
                    sender.complete(wc).unwrap().ok().unwrap();
                    sent = true;
                }
            }
        }
    }
    key.flatten()
}

#[test]
fn completion_of_a_shared_queue_returns_the_key_of_its_queue_pair() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let Shared {
        mut srq,
        mut senders,
        mut receivers,
    } = shared(&fixture, &cq, 8);
    let mut next = |i: usize| key_of_next_message(&fixture, &mut cq, &mut srq, &mut senders[i]);
    assert_eq!(next(0), None, "no key is set");
    for (key, receiver) in (7..).zip(&mut receivers) {
        receiver.set_key(QpKey(key));
    }
    assert_eq!((next(0), next(1)), (Some(QpKey(7)), Some(QpKey(8))));
    receivers[1].set_key(QpKey(u64::MAX));
    assert_eq!((next(1), next(0)), (Some(QpKey(u64::MAX)), Some(QpKey(7))));
}

#[test]
fn key_lives_as_long_as_its_queue_pair() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let srq = fixture.pd.create_srq::<Receive>(2, 1).unwrap();
    let handle = srq.handle().clone();
    drop(srq);
    let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let qp = builder.srq(&handle).key(QpKey(3)).create().unwrap();
    let first = qp.id();
    assert_eq!(first.key(), Some(QpKey(3)));
    let (qp, _) = qp.to_reset().unwrap();
    let second = qp.id();
    assert_eq!((first.key(), second.key()), (None, Some(QpKey(3))));
    drop(qp);
    assert_eq!(second.key(), None);
}

#[test]
fn completion_of_a_destroyed_queue_pair_names_no_receiver() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let Shared {
        mut srq,
        mut senders,
        receivers,
    } = shared(&fixture, &cq, 8);
    srq.post(With::new(fixture.pd.alloc_buf(16).unwrap(), 0))
        .unwrap();
    let message = fixture.pd.register_buf(*b"hello").unwrap();
    senders[0].post(op::Send::new(message)).unwrap();
    let id = receivers[0].id();
    let mut unread = Some(receivers);
    let mut arrived = false;
    while !arrived {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            if wc.qp_id() == srq.id() {
                assert_eq!(srq.receiver(&wc), Some(id));
                // Destroyed between the poll and the use of its completion.
                drop(unread.take());
                assert_eq!(srq.receiver(&wc), None);
                srq.complete(wc).unwrap().work().unwrap();
                arrived = true;
            }
        }
    }
}

#[test]
fn full_shared_receive_queue_returns_the_work() {
    let fixture = Fixture::new();
    let mut srq = fixture.pd.create_srq::<Receive>(2, 1).unwrap();
    for i in 0..2 {
        srq.post(With::new(fixture.pd.alloc_buf(16).unwrap(), i))
            .unwrap();
    }
    let refused = srq
        .post(With::new(fixture.pd.alloc_buf(16).unwrap(), 9))
        .unwrap_err();
    assert_eq!(
        (refused.error.kind(), refused.value.unwrap().context),
        (ErrorKind::WouldBlock, 9)
    );
    let SrqAttr { max_wr, limit, .. } = srq.query().unwrap();
    assert!(max_wr >= 2);
    assert_eq!(limit, 0);
    srq.arm_limit(1).unwrap();
    assert_eq!(srq.query().unwrap().limit, 1);
}

#[test]
fn queue_pair_on_a_shared_queue_refuses_receives() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let srq = fixture.pd.create_srq::<Receive>(2, 1).unwrap();
    let qp = fixture
        .pd
        .qp_builder::<verbs::Rc>(&cq, &cq)
        .srq(&srq)
        .create()
        .unwrap();
    let mut qp = qp.to_init(&fixture.init()).unwrap();
    let refused = qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn cq_reserves_room_for_shared_receives_once() {
    let fixture = Fixture::new();
    let cq = fixture.cq(31);
    let srq = fixture.pd.create_srq::<Receive>(20, 1).unwrap();
    let make = || {
        fixture
            .pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .srq(&srq)
            .create_for::<Buf, ()>()
    };
    let (_a, _b) = (make().unwrap(), make().unwrap());
    assert_eq!(cq.available(), cq.capacity() - 22);
    let other = fixture.pd.create_srq::<Receive>(20, 1).unwrap();
    let refused = fixture
        .pd
        .qp_builder::<verbs::Rc>(&cq, &cq)
        .srq(&other)
        .create();
    assert!(refused.unwrap_err().to_string().contains("entries left"));
}

#[test]
fn work_of_a_dropped_shared_queue_outlives_its_queue_pairs() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let token = Arc::new(());
    let mut srq = fixture.pd.create_srq(4, 1).unwrap();
    srq.post(With::new(
        fixture.pd.alloc_buf(16).unwrap(),
        Arc::clone(&token),
    ))
    .unwrap();
    let qp = fixture
        .pd
        .qp_builder::<verbs::Rc>(&cq, &cq)
        .srq(&srq)
        .create_for::<Buf, ()>()
        .unwrap();
    drop(srq);
    assert_eq!(
        Arc::strong_count(&token),
        2,
        "the device may still write to it"
    );
    drop(qp);
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn recv_batch_posts_all_receives() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut sender, mut receiver) = fixture.pair::<Buf, Receive>(&cq, 8);
    let mut batch = receiver.recv_batch();
    for i in 0..8 {
        batch
            .push(With::new(fixture.pd.alloc_buf(16).unwrap(), i))
            .unwrap();
    }
    batch.post().unwrap();
    for i in 0..8_u8 {
        sender
            .post(op::Send::new(fixture.pd.register_buf([i]).unwrap()))
            .unwrap();
    }
    let mut received = Vec::new();
    while received.len() < 8 {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "only {received:?} came");
        for wc in completions {
            wc.ok().unwrap();
            if wc.qp_id() == sender.id() {
                sender.complete(wc).unwrap().ok().unwrap();
            } else if let Ok(verbs::Completed::Receive(done)) = receiver.complete(wc) {
                received.push((done.work().unwrap().context, done.received().unwrap()[0]));
            }
        }
    }
    let expected: Vec<_> = (0..8).map(|i| (u32::from(i), i)).collect();
    assert_eq!(received, expected);
}

#[test]
fn resized_shared_queue_takes_a_batch_of_its_new_size() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let mut shared = shared(&fixture, &cq, 2);
    let available = cq.available();
    let caps = fixture.ctx.query_device().unwrap().caps();
    if !caps.contains(DeviceCaps::SRQ_RESIZE) {
        shared.srq.resize(20).unwrap_err();
        assert!(shared.srq.capacity() < 20);
        return leave_out("shared receive queues that are resized");
    }
    shared.srq.resize(20).unwrap();
    assert_eq!(shared.srq.capacity(), 20);
    assert!(shared.srq.query().unwrap().max_wr >= 20);
    assert_eq!(cq.available(), available - 18);
    let mut batch = shared.srq.batch();
    for i in 0..20 {
        let work = With::new(fixture.pd.alloc_buf(16).unwrap(), i);
        batch.push(work).unwrap();
    }
    batch.post().unwrap();
    assert_eq!(shared.srq.in_flight(), 20);
    let refused = shared.srq.resize(19).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    // As many messages arrive.
    let mut cq = cq;
    for _ in 0..5 {
        for sender in &mut shared.senders {
            for _ in 0..2 {
                let message = fixture.pd.register_buf(*b"message").unwrap();
                sender.post(op::Send::new(message)).unwrap();
            }
        }
        let mut remaining = 8;
        while remaining > 0 {
            let completions = cq.wait(TEST_TIMEOUT).unwrap();
            assert!(completions.len() > 0, "{remaining} completions are missing");
            for wc in completions {
                wc.ok().unwrap();
                remaining -= 1;
                if wc.qp_id() == shared.srq.id() {
                    assert_eq!(
                        shared.srq.complete(wc).unwrap().received().unwrap(),
                        b"message"
                    );
                } else {
                    let sender = shared.senders.iter_mut().find(|qp| qp.id() == wc.qp_id());
                    sender.unwrap().complete(wc).unwrap().ok().unwrap();
                }
            }
        }
    }
    assert_eq!(shared.srq.in_flight(), 0);
}
