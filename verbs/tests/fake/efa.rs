//! Devices whose library looks up the requests of completions when polled, as that of EFA does.

use std::{io::ErrorKind, sync::Arc as Shared};

use softnic::Call;
use verbs::{Buf, QueuePair, Rts, op, work::With};

use crate::{fixture::Fixture, refused_posts::of_vendor};

const AMAZON: u32 = 0x1d0f;

type Counted = With<Buf, Shared<()>>;

fn sending(
    fixture: &Fixture,
    cq: &verbs::CompletionQueue,
    token: &Shared<()>,
) -> QueuePair<verbs::Rc, Rts, Counted, Buf> {
    let mut qp = fixture.rc::<Counted, Buf>(cq, 2);
    let work = With::new(fixture.pd.alloc_buf(4).unwrap(), Shared::clone(token));
    qp.post(op::Send::new(work)).unwrap();
    qp.post_recv(fixture.pd.alloc_buf(4).unwrap()).unwrap();
    qp
}

fn count(fixture: &Fixture, call: Call) -> usize {
    let calls = fixture.fake.calls();
    calls.iter().filter(|made| **made == call).count()
}

#[test]
fn reset_that_would_confuse_completions_is_refused() {
    let fixture = of_vendor(Fixture::new(), AMAZON);
    let mut cq = fixture.cq(16);
    let token = Shared::new(());
    let qp = sending(&fixture, &cq, &token);
    let modified = count(&fixture, Call::ModifyQp);
    let refused = qp.to_reset().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
    assert_eq!(count(&fixture, Call::ModifyQp), modified);
    let mut qp = refused.value;
    drain(&fixture, &mut cq, &mut qp);
    let refused = qp.to_reset().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
    refused.value.destroy().unwrap();
}

fn drain(
    fixture: &Fixture,
    cq: &mut verbs::CompletionQueue,
    qp: &mut QueuePair<verbs::Rc, Rts, Counted, Buf>,
) {
    fixture.fake.flush(qp.qp_num());
    for wc in cq.poll().unwrap() {
        assert!(qp.complete(wc).is_ok());
    }
    let (sends, receives) = (qp.send_queue(), qp.receive_queue());
    assert_eq!((sends.in_flight(), receives.in_flight()), (0, 0));
}

#[test]
fn queue_pair_with_requests_in_flight_is_not_destroyed() {
    let fixture = of_vendor(Fixture::new(), AMAZON);
    let mut cq = fixture.cq(16);
    let token = Shared::new(());
    let qp = sending(&fixture, &cq, &token);
    let refused = qp.destroy().unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::ResourceBusy);
    let text = refused.error.to_string();
    assert!(
        text.contains("1 sends and 1 receives are in flight"),
        "{text}"
    );
    assert_eq!(count(&fixture, Call::DestroyQp), 0);
    let mut qp = refused.value.unwrap();
    let state = fixture.fake.qp_state(qp.qp_num());
    assert_eq!(state, ibverbs_sys::ibv_qp_state::IBV_QPS_ERR);
    drain(&fixture, &mut cq, &mut qp);
    let leftover = qp.destroy().unwrap();
    assert_eq!((leftover.send.len(), leftover.receive.len()), (0, 0));
    assert_eq!(Shared::strong_count(&token), 1);
    assert_eq!(cq.available(), cq.capacity());
}

#[test]
fn dropped_queue_pair_with_requests_in_flight_is_leaked() {
    let fixture = of_vendor(Fixture::new(), AMAZON);
    let cq = fixture.cq(16);
    let token = Shared::new(());
    let qp = sending(&fixture, &cq, &token);
    let number = qp.qp_num();
    drop(qp);
    assert_eq!(count(&fixture, Call::DestroyQp), 0);
    let state = fixture.fake.qp_state(number);
    assert_eq!(state, ibverbs_sys::ibv_qp_state::IBV_QPS_ERR);
    assert_eq!(Shared::strong_count(&token), 2, "the work is leaked");
    assert!(cq.available() < cq.capacity(), "its entries are in use");
}

#[test]
fn failed_destruction_leaks_the_queue_pair() {
    let fixture = of_vendor(Fixture::new(), AMAZON);
    let cq = fixture.cq(16);
    let qp = fixture.rc::<Buf, Buf>(&cq, 2);
    fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
    let refused = qp.destroy().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EBUSY));
    assert!(refused.value.is_none());
    assert_eq!(count(&fixture, Call::DestroyQp), 1);
}

#[test]
fn receive_without_elements_is_refused() {
    let fixture = of_vendor(Fixture::new(), AMAZON);
    let cq = fixture.cq(16);
    let mut qp = fixture.rc::<Buf, Vec<Buf>>(&cq, 2);
    let refused = qp.post_recv(Vec::new()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    let mut batch = qp.recv_batch();
    let refused = batch.push(Vec::new()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    drop(batch);
    assert_eq!(fixture.fake.receives(qp.qp_num()).len(), 0);
    assert_eq!(qp.receive_queue().in_flight(), 0);
}
