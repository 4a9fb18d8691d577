//! Asynchronous events.

use std::time::Duration;

use verbs::{
    Buf, Completed, QueuePair, Rts,
    event::{EventObject, EventType},
    op,
};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn idle_device_has_no_events() {
    let fixture = Fixture::new();
    let events = fixture.ctx.async_events().unwrap();
    assert_eq!(events.try_next().unwrap(), None);
    assert_eq!(
        events.wait_timeout(Duration::from_millis(20)).unwrap(),
        None
    );
}

#[test]
fn srq_limit_event_is_reported() {
    let fixture = Fixture::new();
    let events = fixture.ctx.async_events().unwrap();
    let mut cq = fixture.cq(64);
    let mut srq = fixture.pd.create_srq::<Buf>(8, 1).unwrap();
    let qp = |srq: &verbs::SharedReceiveQueue<Buf>| {
        fixture
            .pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .max_send_wr(4)
            .srq(srq)
            .create()
            .unwrap()
    };
    let (a, b) = (qp(&srq), qp(&srq));
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let mut a: QueuePair<verbs::Rc, Rts> = fixture.bring_up(a, b_num);
    let _b: QueuePair<verbs::Rc, Rts> = fixture.bring_up(b, a_num);
    for _ in 0..4 {
        srq.post(fixture.pd.alloc_buf(16).unwrap()).unwrap();
    }
    srq.arm_limit(3).unwrap();
    for _ in 0..2 {
        a.post(op::Send::new(fixture.pd.alloc_buf(8).unwrap()))
            .unwrap();
    }
    let mut remaining = 4;
    while remaining > 0 {
        for wc in cq.wait(None).unwrap() {
            remaining -= 1;
            if wc.is_receive() {
                assert!(srq.complete(wc).is_ok());
            } else {
                assert!(matches!(a.complete(wc), Ok(Completed::Send(_))));
            }
        }
    }
    let event = events.wait_timeout(TEST_TIMEOUT).unwrap().unwrap();
    assert_eq!(event.event_type, EventType::SRQ_LIMIT_REACHED);
    assert_eq!(event.object, EventObject::Srq(srq.kernel_handle()));
    assert_eq!(events.try_next().unwrap(), None);
}
