//! Draining, destroying and resetting queue pairs with work in flight.

use std::{io::ErrorKind, thread, time::Duration};

use verbs::{Buf, Completed, WcStatus, op, work::With};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

type Work = With<Buf, u32>;

fn work(fixture: &Fixture, context: u32) -> Work {
    With::new(fixture.pd.alloc_buf(8).unwrap(), context)
}

#[test]
fn drain_returns_all_work_and_foreign_completions() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Work, Work>(&cq, 4);
    for i in 0..3 {
        a.post_recv(work(&fixture, i)).unwrap();
        b.post_recv(work(&fixture, 10 + i)).unwrap();
    }
    b.to_error().unwrap();
    let (mut mine, mut foreign) = (Vec::new(), 0);
    a.drain(&mut [&mut cq], TEST_TIMEOUT, |done| match done {
        Ok(Completed::Receive(done)) => {
            let (status, work) = done.into_parts();
            mine.push((work.context, status));
        }
        Ok(Completed::Send(_)) => panic!("nothing was sent"),
        Err(wc) => {
            assert!(matches!(b.complete(wc), Ok(Completed::Receive(_))));
            foreign += 1;
        }
    })
    .unwrap();
    assert_eq!(
        mine,
        [0, 1, 2].map(|context| (context, WcStatus::WR_FLUSH_ERR))
    );
    b.drain(&mut [&mut cq], TEST_TIMEOUT, |done| {
        // The first drain may have met only a part of them.
        assert!(matches!(done, Ok(Completed::Receive(_))));
        foreign += 1;
    })
    .unwrap();
    assert_eq!(foreign, 3);
    assert_eq!(
        a.receive_queue().in_flight() + b.receive_queue().in_flight(),
        0
    );
}

#[test]
fn queue_pair_ended_through_a_handle_flushes_and_is_destroyed_after_it() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = fixture.pair::<Work, Work>(&cq, 4);
    a.post_recv(work(&fixture, 7)).unwrap();
    let handle = a.handle();
    thread::scope(|scope| {
        scope.spawn(|| handle.to_error().unwrap());
    });
    let wc = cq.wait(Some(TEST_TIMEOUT)).unwrap().next().unwrap();
    let Ok(Completed::Receive(done)) = a.complete(wc) else {
        panic!("it is the receive");
    };
    let (status, work) = done.into_parts();
    assert_eq!((work.context, status), (7, WcStatus::WR_FLUSH_ERR));
    let refused = a.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::ResourceBusy);
    drop(handle);
    refused.value.unwrap().destroy().unwrap();
}

#[test]
fn unsignaled_work_returns_once_until_destroy() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = fixture.pair::<Work, Work>(&cq, 8);
    for i in 0..2 {
        b.post_recv(work(&fixture, i)).unwrap();
    }
    for i in 0..2 {
        a.post(op::Send::new(work(&fixture, i)).unsignaled())
            .unwrap();
    }
    let mut received = 0;
    while received < 2 {
        for wc in cq.wait(Some(TEST_TIMEOUT)).unwrap() {
            wc.ok().unwrap();
            b.complete(wc).unwrap().ok().unwrap();
            received += 1;
        }
    }
    // Sends not acknowledged yet are flushed with completions; the others have none.
    let mut contexts = Vec::new();
    a.drain(&mut [&mut cq], TEST_TIMEOUT, |done| {
        let Ok(Completed::Send(done)) = done else {
            panic!("another completion")
        };
        contexts.push(done.into_parts().1.context);
    })
    .unwrap();
    let leftover = a.destroy().map_err(|refused| refused.error).unwrap();
    contexts.extend(leftover.send.iter().map(|work| work.context));
    assert_eq!(contexts, [0, 1]);
}

#[test]
fn destroy_returns_work_in_posting_order() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, b) = fixture.pair::<Work, Work>(&cq, 4);
    for i in 0..4 {
        a.post_recv(work(&fixture, i)).unwrap();
    }
    let leftover = a.destroy().map_err(|refused| refused.error).unwrap();
    assert_eq!(
        leftover
            .receive
            .iter()
            .map(|work| work.context)
            .collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    assert!(leftover.send.is_empty());
    drop(b);
    while cq.poll().unwrap().count() > 0 {}
    assert_eq!(cq.available(), cq.capacity());
}

#[test]
fn reset_returns_work_and_restarts_the_queue_pair() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, b) = fixture.pair::<Work, Work>(&cq, 4);
    for i in 0..3 {
        a.post_recv(work(&fixture, i)).unwrap();
    }
    let (a, leftover) = a.to_reset().map_err(|refused| refused.error).unwrap();
    assert_eq!(leftover.receive.len(), 3);
    let (b, _) = b.to_reset().map_err(|refused| refused.error).unwrap();
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let (mut a, mut b) = (fixture.bring_up(a, b_num), fixture.bring_up(b, a_num));
    b.post_recv(work(&fixture, 7)).unwrap();
    a.post(op::Send::new(work(&fixture, 8))).unwrap();
    let mut contexts = Vec::new();
    while contexts.len() < 2 {
        for wc in cq.wait(Some(TEST_TIMEOUT)).unwrap() {
            wc.ok().unwrap();
            let qp = if wc.qp_id() == a.id() { &mut a } else { &mut b };
            contexts.push(match qp.complete(wc).unwrap() {
                Completed::Send(done) => done.into_parts().1.context,
                Completed::Receive(done) => done.into_parts().1.context,
            });
        }
    }
    contexts.sort_unstable();
    assert_eq!(contexts, [7, 8]);
}

#[test]
fn completions_from_before_a_reset_are_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = fixture.pair::<Work, Work>(&cq, 4);
    a.post_recv(work(&fixture, 1)).unwrap();
    a.to_error().unwrap();
    // The flushed receive has completed, and its completion is not polled.
    while cq.wait(Some(TEST_TIMEOUT)).unwrap().len() == 0 {}
    let (mut a, leftover) = a.to_reset().map_err(|refused| refused.error).unwrap();
    assert_eq!(leftover.receive.len(), 1);
    let wc = cq
        .poll()
        .unwrap()
        .next()
        .expect("the old completion is still there");
    assert!(a.complete(wc).is_err());
    while cq.poll().unwrap().count() > 0 {}
    drop(a);
}

#[test]
fn drain_of_an_unfinished_queue_times_out() {
    let fixture = Fixture::new();
    let (cq, mut other) = (fixture.cq(64), fixture.cq(64));
    let (mut a, _b) = fixture.pair::<Work, Work>(&cq, 4);
    a.post_recv(work(&fixture, 1)).unwrap();
    // The completions go to the other queue, so this drain cannot see them.
    let short = Duration::from_millis(50);
    let err = a
        .drain(&mut [&mut other], short, |_| panic!("nothing comes here"))
        .unwrap_err();
    assert_eq!(err.kind(), ErrorKind::TimedOut);
    assert_eq!(
        err.to_string(),
        "`QueuePair::drain` failed: 0 sends and 1 receives are still in flight"
    );
}
