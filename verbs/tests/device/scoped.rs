//! Borrowed memory.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use verbs::{
    Buf, QueuePair, Rts, WcStatus, op,
    scope::{ScopedBuf, ScopedSlice},
};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn scoped_message_between_stacks_arrives() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let question = *b"from the stack";
    let mut answer = [0; 32];
    verbs::scope(&fixture.pd, |scope| {
        let (mut a, mut b) = fixture.scoped_pair(scope, &cq, 4);
        b.post_recv(scope.register(&mut answer).unwrap()).unwrap();
        a.post(op::Send::new(scope.register_shared(&question).unwrap()))
            .unwrap();
        let mut done = 0;
        while done < 2 {
            for wc in cq.wait(TEST_TIMEOUT).unwrap() {
                wc.ok().unwrap();
                let qp = if wc.qp_id() == a.id() { &mut a } else { &mut b };
                qp.complete(wc).unwrap().ok().unwrap();
                done += 1;
            }
        }
    });
    assert_eq!(&answer[..14], b"from the stack");
}

#[test]
#[expect(clippy::mem_forget, reason = "the point of the test")]
fn message_to_a_queue_pair_forgotten_in_a_scope_does_not_arrive() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let mut memory = [7; 32];
    let sender = fixture.qp::<Buf, Buf>(&cq, 4);
    let from = sender.qp_num();
    let to = verbs::scope(&fixture.pd, |scope| {
        let receiver = scope.create_qp(fixture.builder(&cq, 4)).unwrap();
        let mut receiver: QueuePair<verbs::Rc, Rts, ScopedSlice<'_>, ScopedBuf<'_>> =
            fixture.bring_up(receiver, from);
        receiver
            .post_recv(scope.register(&mut memory).unwrap())
            .unwrap();
        let to = receiver.qp_num();
        std::mem::forget(receiver);
        to
    });
    let mut sender = fixture.bring_up(sender, to);
    let message = fixture.pd.register_buf(*b"to nothing").unwrap();
    sender.post(op::Send::new(message)).unwrap();
    let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
    assert_eq!(wc.status(), WcStatus::RETRY_EXC_ERR);
    assert_eq!(memory, [7; 32]);
}

#[test]
fn panicking_scope_ends_its_work_in_flight() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let mut memory = [0; 32];
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        verbs::scope(&fixture.pd, |scope| {
            let (_a, mut b) = fixture.scoped_pair(scope, &cq, 4);
            b.post_recv(scope.register(&mut memory).unwrap()).unwrap();
            b.to_error().unwrap();
            let wc = cq.wait(TEST_TIMEOUT).unwrap().next().unwrap();
            assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err());
    memory.fill(2);
    assert_eq!(memory, [2; 32]);
}

#[test]
fn scoped_registration_of_no_bytes_is_refused() {
    let fixture = Fixture::new();
    verbs::scope(&fixture.pd, |scope| {
        let err = scope.register(&mut []).map(drop).unwrap_err();
        assert_eq!(err.call(), "ibv_reg_mr");
        assert!(err.to_string().contains("from 1 to"), "{err}");
    });
}
