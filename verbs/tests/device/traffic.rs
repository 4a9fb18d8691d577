//! Posting, completing, failing, and dropping with work in flight.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use verbs::{
    Buf, Completed, CompletionQueue, QueuePair, Rts, SharedBuf, WcStatus, cq::WcOpcode, op,
    work::With,
};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// A buffer with the bytes of `text`.
fn filled(fixture: &Fixture, text: &[u8]) -> Buf {
    fixture.pd.register_buf(text).unwrap()
}

/// A returned work: the queue (true: receive), the status, and the work.
type Came<W> = (bool, WcStatus, usize, W);

/// Waits until `count` completions of `qps` have come.
fn reap<W>(
    cq: &mut CompletionQueue,
    qps: &mut [&mut QueuePair<verbs::Rc, Rts, W, W>],
    count: usize,
) -> Vec<Came<W>> {
    let mut done = Vec::new();
    while done.len() < count {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(
            completions.len() > 0,
            "only {} of {count} completions came",
            done.len()
        );
        for wc in completions {
            let id = wc.qp_id();
            let qp = qps
                .iter_mut()
                .find(|qp| qp.id() == id)
                .expect("a stranger's completion");
            let completed = qp.complete(wc).expect("refused by its own queue pair");
            let (receive, byte_len, (status, work)) = match completed {
                Completed::Send(done) => (false, done.byte_len(), done.into_parts()),
                Completed::Receive(done) => (true, done.byte_len(), done.into_parts()),
            };
            done.push((receive, status, byte_len, work));
        }
    }
    done
}

#[test]
fn message_arrives_and_both_buffers_are_returned() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 2);
    b.post_recv(fixture.pd.alloc_buf(64).unwrap()).unwrap();
    a.post(op::Send::new(filled(&fixture, b"hello"))).unwrap();
    assert_eq!(
        (a.send_queue().in_flight(), b.receive_queue().in_flight()),
        (1, 1)
    );
    let mut reaped = reap(&mut cq, &mut [&mut a, &mut b], 2);
    reaped.sort_by_key(|reaped| reaped.0);
    let (receive, status, len, buf) = reaped.pop().unwrap();
    assert!(receive);
    assert_eq!(
        (status, len, &buf[..len]),
        (WcStatus::SUCCESS, 5, &b"hello"[..])
    );
    let (_, status, _, buf) = reaped.pop().unwrap();
    assert_eq!((status, &*buf), (WcStatus::SUCCESS, &b"hello"[..]));
    assert_eq!(
        (a.send_queue().in_flight(), b.receive_queue().in_flight()),
        (0, 0)
    );
}

#[test]
fn immediate_data_arrives_in_the_senders_order() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 2);
    b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    a.post(op::Send::new(filled(&fixture, b"x")).imm_data(0x0102_0304))
        .unwrap();
    let mut imm_data = None;
    while imm_data.is_none() {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            wc.ok().unwrap();
            if wc.is_receive() {
                assert_eq!(wc.opcode(), Some(WcOpcode::RECV));
                imm_data = wc.imm_data();
            } else {
                assert_eq!(wc.imm_data(), None);
            }
        }
    }
    assert_eq!(imm_data, Some(0x0102_0304));
}

#[test]
fn elements_are_gathered_and_scattered() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b) = fixture.pair::<Vec<Buf>, Vec<Buf>>(&cq, 2);
    b.post_recv(vec![
        fixture.pd.alloc_buf(3).unwrap(),
        fixture.pd.alloc_buf(64).unwrap(),
    ])
    .unwrap();
    let parts = ["on", "e tw", "o"].map(|part| filled(&fixture, part.as_bytes()));
    a.post(op::Send::new(parts.into())).unwrap();
    let reaped = reap(&mut cq, &mut [&mut a, &mut b], 2);
    let (_, status, len, parts) = reaped.into_iter().find(|reaped| reaped.0).unwrap();
    assert_eq!((status, len), (WcStatus::SUCCESS, 7));
    assert_eq!((&*parts[0], &parts[1][..4]), (&b"one"[..], &b" two"[..]));
}

#[test]
fn shared_buffer_is_sent_by_many_requests_at_once() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<SharedBuf, Buf>(&cq, 8);
    let shared = filled(&fixture, b"again").freeze();
    for _ in 0..8 {
        b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    }
    for _ in 0..8 {
        a.post(op::Send::new(shared.clone())).unwrap();
    }
    let (mut sent, mut received) = (0, 0);
    while sent < 8 || received < 8 {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            if wc.is_receive() {
                let Completed::Receive(done) = b.complete(wc).unwrap() else {
                    unreachable!()
                };
                assert_eq!(done.received().unwrap(), b"again");
                received += 1;
            } else {
                let Completed::Send(done) = a.complete(wc).unwrap() else {
                    unreachable!()
                };
                done.ok().unwrap();
                sent += 1;
            }
        }
    }
    assert!(shared.thaw().is_some(), "every handle has come back");
}

#[test]
fn full_send_queue_returns_the_request() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 2);
    for _ in 0..2 {
        b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    }
    let refused = b.post_recv(filled(&fixture, b"mine")).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    assert_eq!(&*refused.value.unwrap(), b"mine");
    for _ in 0..2 {
        a.post(op::Send::new(filled(&fixture, b"x"))).unwrap();
    }
    let refused = a
        .post(op::Send::new(filled(&fixture, b"mine")))
        .unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    assert_eq!(&*refused.value.unwrap().into_work(), b"mine");
}

#[test]
fn excess_elements_are_refused_with_the_limit() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let (mut a, _b) = fixture.pair::<Vec<Buf>, Buf>(&cq, 2);
    let five: Vec<Buf> = (0..5).map(|_| fixture.pd.alloc_buf(1).unwrap()).collect();
    let refused = a.post(op::Send::new(five)).unwrap_err();
    assert_eq!(
        refused.error.to_string(),
        "`ibv_post_send` failed: 5 elements, and the queue pair was made for 4; raise `max_send_sge`"
    );
    assert_eq!(refused.value.unwrap().into_work().len(), 5);
}

#[test]
fn unsignaled_work_returns_with_a_later_completion() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<With<Buf, u32>, With<Buf, u32>>(&cq, 16);
    for i in 0..8 {
        b.post_recv(With::new(fixture.pd.alloc_buf(8).unwrap(), i))
            .unwrap();
    }
    for i in 0..3 {
        a.post(op::Send::new(With::new(filled(&fixture, b"quiet"), i)).unsignaled())
            .unwrap();
    }
    a.post(op::Send::new(With::new(filled(&fixture, b"loud"), 3)))
        .unwrap();
    let mut earlier = Vec::new();
    let mut last = None;
    while last.is_none() {
        for wc in cq.wait(TEST_TIMEOUT).unwrap().filter(|wc| !wc.is_receive()) {
            let done = a
                .complete_each(wc, |work| earlier.push(work.context))
                .expect("its own");
            done.ok().unwrap();
            last = Some(done.work().unwrap().context);
        }
    }
    assert_eq!((earlier, last), (vec![0, 1, 2], Some(3)));
}

#[test]
fn unsignaled_work_never_fills_the_send_queue() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 4);
    let (mut sent, mut received) = (0, 0);
    while received < 100 {
        while b.receive_queue().in_flight() < 4 {
            b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
        }
        while sent < 100 && a.send_queue().in_flight() < 4 {
            a.post(op::Send::new(filled(&fixture, b"quiet")).unsignaled())
                .unwrap();
            sent += 1;
        }
        let flushed = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(
            flushed.len() > 0,
            "stuck after {sent} sent and {received} received"
        );
        for wc in flushed {
            wc.ok().unwrap();
            received += usize::from(wc.is_receive());
            let qp = if wc.qp_id() == a.id() { &mut a } else { &mut b };
            qp.complete(wc).unwrap().ok().unwrap();
        }
    }
}

#[test]
fn error_state_flushes_all_work() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, _b) = fixture.pair::<With<Buf, u32>, With<Buf, u32>>(&cq, 4);
    for i in 0..3 {
        a.post_recv(With::new(fixture.pd.alloc_buf(8).unwrap(), i))
            .unwrap();
    }
    a.to_error().unwrap();
    a.post(op::Send::new(With::new(filled(&fixture, b"late"), 9)))
        .unwrap();
    let reaped = reap(&mut cq, &mut [&mut a], 4);
    let contexts: Vec<_> = reaped
        .iter()
        .filter(|reaped| reaped.0)
        .map(|reaped| reaped.3.context)
        .collect();
    assert_eq!(contexts, [0, 1, 2]);
    for (_, status, _, _) in &reaped {
        assert_eq!(*status, WcStatus::WR_FLUSH_ERR);
    }
}

/// Soft-RoCE leaves such a receive in its queue until the next change to the error state.
#[test]
fn receive_posted_in_the_error_state_returns_after_another_to_error() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, _b) = fixture.pair::<Buf, Buf>(&cq, 2);
    a.to_error().unwrap();
    a.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    a.to_error().unwrap();
    let wc = cq.wait(TEST_TIMEOUT).unwrap().next();
    let wc = wc.expect("it is flushed");
    assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
    assert!(matches!(a.complete(wc), Ok(Completed::Receive(_))));
}

#[test]
fn completion_of_another_queue_pair_is_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b) = fixture.pair::<Buf, Buf>(&cq, 2);
    a.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    a.to_error().unwrap();
    let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
    let wc = b.complete(wc).expect_err("not its own");
    assert!(matches!(a.complete(wc), Ok(Completed::Receive(_))));
}

#[test]
fn unread_completions_are_returned_by_the_next_poll() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, _b) = fixture.pair::<With<Buf, u32>, With<Buf, u32>>(&cq, 4);
    for i in 0..4 {
        a.post_recv(With::new(fixture.pd.alloc_buf(8).unwrap(), i))
            .unwrap();
    }
    a.to_error().unwrap();
    for expected in 0..4 {
        // One of the batch is taken, the others are left in the iterator.
        let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
        let Ok(Completed::Receive(done)) = a.complete(wc) else {
            panic!("not its own")
        };
        assert_eq!(done.into_parts().1.context, expected);
    }
}

#[test]
fn completion_dropped_unread_loses_no_work() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let token = Arc::new(());
    let (mut a, _b) = fixture.pair::<Buf, With<Buf, Arc<()>>>(&cq, 4);
    for _ in 0..3 {
        a.post_recv(With::new(
            fixture.pd.alloc_buf(8).unwrap(),
            Arc::clone(&token),
        ))
        .unwrap();
    }
    a.to_error().unwrap();
    let mut remaining = 3;
    while remaining > 0 {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            remaining -= 1;
            if remaining == 0 {
                drop(a.complete(wc).unwrap());
            }
        }
    }
    assert_eq!(a.receive_queue().in_flight(), 0);
    assert_eq!(Arc::strong_count(&token), 1);
}

#[test]
fn dropping_a_queue_pair_drops_its_work_and_frees_its_entries() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let token = Arc::new(());
    for _ in 0..20 {
        let (mut a, b) = fixture.pair::<Buf, With<Buf, Arc<()>>>(&cq, 3);
        for _ in 0..3 {
            a.post_recv(With::new(
                fixture.pd.alloc_buf(8).unwrap(),
                Arc::clone(&token),
            ))
            .unwrap();
        }
        // Some of them complete, without a poll.
        a.to_error().unwrap();
        drop(a);
        drop(b);
        assert_eq!(Arc::strong_count(&token), 1);
        // Entries of unpolled completions stay reserved until an empty poll.
        while cq.poll().unwrap().count() > 0 {}
        assert_eq!(cq.available(), cq.capacity());
    }
}

#[test]
#[expect(clippy::mem_forget, reason = "the point of the test")]
fn forgotten_queue_pair_frees_nothing() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let token = Arc::new(());
    let (mut a, _b) = fixture.pair::<Buf, With<Buf, Arc<()>>>(&cq, 2);
    a.post_recv(With::new(
        fixture.pd.alloc_buf(8).unwrap(),
        Arc::clone(&token),
    ))
    .unwrap();
    std::mem::forget(a);
    drop(cq);
    drop(fixture);
    assert_eq!(Arc::strong_count(&token), 2);
}

#[test]
fn queue_pair_halves_post_from_two_threads() {
    const MESSAGES: usize = 200;
    let fixture = Fixture::new();
    let (mut a_cq, mut b_cq) = (fixture.cq(64), fixture.cq(64));
    let (a, b) = (
        fixture.qp::<Buf, Buf>(&a_cq, 8),
        fixture.qp::<Buf, Buf>(&b_cq, 8),
    );
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let (a, b) = (fixture.bring_up(a, b_num), fixture.bring_up(b, a_num));
    let (mut send, unused_receive) = a.split();
    let (unused_send, mut receive) = b.split();
    let bufs: Vec<Buf> = (0..8).map(|_| fixture.pd.alloc_buf(8).unwrap()).collect();
    for buf in bufs {
        receive.post(buf).unwrap();
    }
    let receiver = std::thread::spawn(move || {
        let mut expected = 0_u64;
        while expected < MESSAGES as u64 {
            for wc in b_cq.wait(TEST_TIMEOUT).unwrap() {
                let done = receive.complete(wc).unwrap();
                done.ok().unwrap();
                assert_eq!(**done.work().unwrap(), expected.to_ne_bytes());
                expected += 1;
                receive.post(done.into_work().unwrap()).unwrap();
            }
        }
        // This half goes first; the other one keeps the queue pair.
        drop(unused_send);
    });
    let mut idle: Vec<Buf> = (0..8).map(|_| fixture.pd.alloc_buf(8).unwrap()).collect();
    for i in 0..MESSAGES as u64 {
        while idle.is_empty() {
            for wc in a_cq.wait(TEST_TIMEOUT).unwrap() {
                let done = send.complete(wc).unwrap();
                done.ok().unwrap();
                idle.push(done.into_work().unwrap());
            }
        }
        let mut buf = idle.pop().unwrap();
        buf.copy_from_slice(&i.to_ne_bytes());
        send.post(op::Send::new(buf)).unwrap();
    }
    receiver.join().unwrap();
    drop(unused_receive);
}
