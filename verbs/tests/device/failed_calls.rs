//! Calls of which the kernel has done its part, and the provider fails: a process without address space. Soft-RoCE's
//! provider unmaps a queue before it maps the resized one.

use std::io::ErrorKind;

use rustix::{
    param::page_size,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};
use verbs::{Buf, QueuePair, Reset, Rts, SharedReceiveQueue, cq::Notify, op};

use crate::{
    limited_calls::{self, CALLS},
    loopback::Fixture,
    memory::exchange,
};

/// Makes a call, during which the process maps no more memory.
fn without_address_space<T>(call: impl FnOnce() -> T) -> T {
    with_address_space(1 << 20, call)
}

/// Makes a call, during which the process has at most `bytes` of address space, and maps no more memory if it has more.
fn with_address_space<T>(bytes: u64, call: impl FnOnce() -> T) -> T {
    let before = getrlimit(Resource::As);
    let limit = Rlimit {
        current: Some(bytes),
        maximum: before.maximum,
    };
    setrlimit(Resource::As, limit).unwrap();
    let result = call();
    setrlimit(Resource::As, before).unwrap();
    result
}

#[test]
fn queue_that_cannot_be_mapped_after_its_resize_is_not_used() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b): (QueuePair<verbs::Rc, Rts>, QueuePair<verbs::Rc, Rts>) =
        fixture.pair(&cq, 2);
    b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    let message = fixture.pd.register_buf(*b"message").unwrap();
    a.post(op::Send::new(message)).unwrap();
    let failed = without_address_space(|| cq.resize(4000)).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::ENOMEM), "{failed}");
    let poll = cq.poll().map(drop).unwrap_err();
    let arm = cq.req_notify(Notify::Next).unwrap_err();
    for error in [poll, arm] {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    }
    // Every object is destroyed, and the next ones work.
    a.destroy().map_err(|refused| refused.error).unwrap();
    b.destroy().map_err(|refused| refused.error).unwrap();
    drop(cq);
    let mut cq = fixture.cq(16);
    cq.resize(4000).unwrap();
    assert_eq!(cq.poll().unwrap().count(), 0);
}

#[test]
fn shared_queue_that_cannot_be_mapped_after_its_resize_is_not_used() {
    let fixture = Fixture::new();
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let buf = || fixture.pd.alloc_buf(8).unwrap();
    srq.post(buf()).unwrap();
    let failed = without_address_space(|| srq.resize(4000)).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(libc::ENOMEM), "{failed}");
    let refused = srq.post(buf()).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(srq.query().unwrap_err().kind(), ErrorKind::BrokenPipe);
    drop(srq);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    srq.resize(4000).unwrap();
    srq.post(buf()).unwrap();
}

/// The kernel has made each object before the provider cannot map its queue.
#[test]
fn objects_whose_queues_cannot_be_mapped_leave_the_others_working() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let available = cq.available();
    for _ in 0..5 {
        let succeeded = without_address_space(|| {
            let builder = fixture.builder(&cq, 16);
            let qp: Result<QueuePair<verbs::Rc, Reset>, _> = builder.create();
            let srq: Result<SharedReceiveQueue, _> = fixture.pd.create_srq(16, 1);
            [
                fixture.ctx.create_cq(64).is_ok(),
                fixture.ctx.cq_ex_builder(64).create().is_ok(),
                qp.is_ok(),
                srq.is_ok(),
            ]
        });
        assert_eq!(succeeded, [false; 4]);
        assert_eq!(cq.available(), available);
        let buf = |bytes: &[u8; 8]| -> Buf { fixture.pd.register_buf(*bytes).unwrap() };
        let (_, received) = exchange(&fixture, buf(b"messages"), buf(b"        "));
        assert_eq!(received[..], *b"messages");
    }
}

/// The process's address space, in pages.
fn mapped_pages() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn calls_under_a_shrinking_address_space_leave_the_objects_working() {
    let fixture = Fixture::new();
    for pages in [1000, 100, 50, 30, 20, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1, 0] {
        let succeeded = limited_calls::make(&fixture, |calls| {
            let limit = match pages {
                0 => 1 << 20,
                _ => (mapped_pages() + pages) * page_size() as u64,
            };
            with_address_space(limit, calls)
        });
        match pages {
            1000 => assert_eq!(succeeded, [true; CALLS]),
            0 => assert_eq!(succeeded[..6], [false; 6], "{succeeded:?}"),
            _ => {}
        }
    }
}
