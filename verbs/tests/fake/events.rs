//! Asynchronous events, of every kind, from a fake device.

use std::{os::fd::AsFd, time::Duration};

use ibverbs_sys::ibv_event_type as raw;
use verbs::{
    Buf, QueuePair, Rts,
    event::{AsyncEvent, EventObject, EventType},
    fd::wait_readable,
};

use crate::fixture::Fixture;

#[test]
fn event_names_its_object() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let srq = fixture.pd.create_srq::<Buf>(4, 1).unwrap();
    let events = fixture.ctx.async_events().unwrap();
    let fake = &fixture.fake;
    fake.raise(raw::IBV_EVENT_CQ_ERR, cq.as_raw().expose_provenance());
    fake.raise(
        raw::IBV_EVENT_QP_ACCESS_ERR,
        qp.as_raw().expose_provenance(),
    );
    fake.raise(raw::IBV_EVENT_SRQ_ERR, srq.as_raw().expose_provenance());
    fake.raise(raw::IBV_EVENT_PORT_ACTIVE, 1);
    fake.raise(raw::IBV_EVENT_DEVICE_FATAL, 0);
    fake.raise(raw(99), 0);
    let expected = [
        (EventType::CQ_ERR, EventObject::Cq(cq.kernel_handle())),
        (EventType::QP_ACCESS_ERR, EventObject::Qp(qp.qp_num())),
        (EventType::SRQ_ERR, EventObject::Srq(srq.kernel_handle())),
        (EventType::PORT_ACTIVE, EventObject::Port(1)),
        (EventType::DEVICE_FATAL, EventObject::Device),
        (EventType(99), EventObject::Unknown),
    ];
    for (event_type, object) in expected {
        assert!(wait_readable("poll", events.as_fd(), None).unwrap());
        let event = AsyncEvent { event_type, object };
        assert_eq!(events.wait().unwrap(), event);
    }
    assert_eq!(events.try_next().unwrap(), None);
    // The objects are destroyed now, and the fake complains if an event was not acknowledged.
}

#[test]
fn async_event_wait_returns_none_after_timeout() {
    let fixture = Fixture::new();
    let events = fixture.ctx.async_events().unwrap();
    let short = Duration::from_millis(20);
    assert_eq!(events.wait_timeout(short).unwrap(), None);
    fixture.fake.raise(raw::IBV_EVENT_LID_CHANGE, 1);
    assert!(events.wait_timeout(short).unwrap().is_some());
}

#[test]
fn events_keep_the_device_open() {
    let fixture = Fixture::new();
    let Fixture { pd, ctx, fake } = fixture;
    let events = ctx.async_events().unwrap();
    drop(ctx);
    drop(pd);
    assert!(fake.live().contains(&"verbs_context"));
    drop(events);
    assert_eq!(fake.live(), [""; 0]);
}
