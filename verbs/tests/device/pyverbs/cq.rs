//! `test_cq.py` and `test_cq_events.py`

use std::{
    io,
    time::{Duration, Instant},
};

use verbs::{
    ah::Addressed,
    cq::{CqKey, Notify},
    op,
};

use super::traffic::{self, NotifiedCq, QKEY, TEST_TIMEOUT};
use crate::loopback::{Fixture, open};

#[test]
fn create_cq() {
    let ctx = open();
    let max_cqe = ctx.query_device().unwrap().max_cqe();
    let vectors = ctx.num_comp_vectors();
    for entries in [1, max_cqe / 2, max_cqe] {
        for vector in [0, vectors - 1] {
            let cq = ctx.cq_builder(entries).comp_vector(vector).create();
            assert!(cq.unwrap().capacity() >= entries);
        }
    }
}

#[test]
fn create_cq_with_comp_channel() {
    let ctx = open();
    let max_cqe = ctx.query_device().unwrap().max_cqe();
    for entries in [1, max_cqe / 2, max_cqe] {
        let channel = ctx.create_comp_channel().unwrap();
        let cq = ctx.cq_builder(entries).channel(&channel, CqKey(1));
        let cq = cq.create().unwrap();
        drop(channel);
        cq.req_notify(Notify::Next).unwrap();
    }
}

#[test]
fn create_cq_bad_flow() {
    let ctx = open();
    let too_many = ctx.query_device().unwrap().max_cqe() + 1;
    let no_vector = ctx.num_comp_vectors() + 1;
    for (entries, vector) in [(too_many, 0), (100, no_vector)] {
        let err = ctx
            .cq_builder(entries)
            .comp_vector(vector)
            .create()
            .unwrap_err();
        assert_eq!(err.raw_os_error(), Some(libc::EINVAL), "{err}");
        assert!(err.to_string().contains(&entries.to_string()), "{err}");
    }
}

/// The case also requests less than the number of completions in the queue. Here, entries reserved
/// by queue pairs are refused before the device is asked, so the test calls C directly.
#[test]
fn resize_cq() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(3);
    for entries in [1, 7, 32] {
        cq.resize(entries).unwrap();
        assert!(cq.capacity() >= entries);
    }
    let (mut a, b) = traffic::datagram_pair(&fixture, &cq);
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    for _ in 0..5 {
        let work = Addressed::new(fixture.pd.alloc_buf(8).unwrap(), &ah);
        a.post(op::SendTo::new(work, b.qp_num(), QKEY)).unwrap();
    }
    let err = cq.resize(1).unwrap_err();
    assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
    assert!(err.to_string().contains("1 entries"), "{err}");
    // Soft-RoCE makes seven entries of four, so this harms nothing while not all five have completed.
    let begin = Instant::now();
    let refused = loop {
        // SAFETY: the queue exists, without a concurrent poll or resize.
        let errno = unsafe { ibverbs_sys::ibv_resize_cq(cq.as_raw(), 4) };
        if errno != 0 || begin.elapsed() > Duration::from_secs(60) {
            break errno;
        }
    };
    assert_eq!(refused, libc::EINVAL);
    let mut remaining = 5;
    while remaining > 0 {
        for wc in cq.wait(TEST_TIMEOUT).unwrap() {
            wc.ok().unwrap();
            assert!(a.complete(wc).is_ok());
            remaining -= 1;
        }
    }
}

/// A queue with notifications on a channel.
fn notified_cq(fixture: &Fixture) -> NotifiedCq {
    let channel = fixture.ctx.create_comp_channel().unwrap();
    let cq = fixture.ctx.cq_builder(64).channel(&channel, CqKey(7));
    NotifiedCq(cq.create().unwrap(), channel)
}

#[test]
fn cq_events_ud() {
    let fixture = Fixture::new();
    let mut cq = notified_cq(&fixture);
    let ends = traffic::datagram_pair(&fixture, &cq.0);
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    traffic::datagrams(&mut cq, &ah, ends, |len| fixture.pd.alloc_buf(len).unwrap());
}

#[test]
fn cq_events_rc() {
    let fixture = Fixture::new();
    let mut cq = notified_cq(&fixture);
    let ends = traffic::rc_pair(&fixture, &cq.0);
    traffic::rc_messages(&mut cq, ends, |len| fixture.pd.alloc_buf(len).unwrap());
}
