//! Failed calls of `verbs`.

use std::net::IpAddr;

use softnic::{Call, Fabric, When};
use verbs::{
    Buf, CompletionQueue, Error, Gid, Init, ProtectionDomain, QueuePair, Rtr, Rts, WcStatus,
    ah::AddressVector,
    error::PostError,
    op,
    qp::{Attributes, Psn, QpNum},
};

use crate::open;

/// Text of an error of a call with an errno, which contains `advice`.
#[track_caller]
fn check(error: &Error, call: Call, errno: i32, advice: &str) {
    let found = (error.call(), error.raw_os_error());
    assert_eq!(found, (call.name(), Some(errno)), "{error}");
    let text = error.to_string();
    assert!(text.contains(advice), "{text}");
}

/// A connection to a peer that does not exist.
fn connect(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
) -> verbs::Result<QueuePair<verbs::Rc, Rts, Buf, Buf>> {
    let qp = pd.qp_builder(cq, cq).max_send_wr(4).max_recv_wr(4);
    let qp = qp.create_for()?;
    let psn = Psn::from_low_bits(1);
    let peer = AddressVector::global(1, 0, Gid::from(IpAddr::from([10, 9, 0, 2])));
    let qp = qp.to_init(&Attributes::<verbs::Rc, Init>::new(1))?;
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&peer, QpNum::from_low_bits(9), psn);
    Ok(qp
        .to_rtr(&rtr)?
        .to_rts(&Attributes::<verbs::Rc, Rts>::new(psn))?)
}

#[test]
fn second_registration_fails_and_is_counted() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let pd = open(&host).alloc_pd().unwrap();
    let failing = host.fail(Call::RegMr, When::Nth(2), libc::ENOMEM);
    let _first = pd.alloc_buf(4096).unwrap();
    let error = pd.alloc_buf(4096).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
    assert_eq!((failing.calls(), failing.failed()), (2, 1));
}

#[test]
fn registration_without_memory_names_the_limit() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let pd = open(&host).alloc_pd().unwrap();
    let failing = host.fail(Call::RegMr, When::Nth(3), libc::ENOMEM);
    let regions: Vec<_> = (0..4).map(|_| pd.alloc_buf(4096)).collect();
    for (index, region) in regions.iter().enumerate() {
        match region {
            Ok(_) => assert_ne!(index, 2),
            Err(error) => {
                assert_eq!(index, 2);
                check(error, Call::RegMr, libc::ENOMEM, "RLIMIT_MEMLOCK");
                check(error, Call::RegMr, libc::ENOMEM, "4096 bytes");
            }
        }
    }
    assert_eq!((failing.calls(), failing.failed()), (4, 1));
}

#[test]
fn queue_that_cannot_be_created_is_reported_and_the_next_is_created() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let ctx = open(&host);
    let pd = ctx.alloc_pd().unwrap();

    let failing = host.fail(Call::CreateCq, When::Nth(1), libc::ENOMEM);
    let error = ctx.create_cq(8).unwrap_err();
    check(&error, Call::CreateCq, libc::ENOMEM, "RLIMIT_MEMLOCK");
    let cq = ctx.create_cq(8).unwrap();
    assert_eq!(failing.failed(), 1);

    let failing = host.fail(Call::CreateQp, When::Nth(1), libc::ENOMEM);
    let error = connect(&pd, &cq).unwrap_err();
    check(&error, Call::CreateQp, libc::ENOMEM, "RLIMIT_MEMLOCK");
    connect(&pd, &cq).unwrap();
    assert_eq!(failing.failed(), 1);
}

#[test]
fn each_failed_transition_is_reported_and_leaves_no_queue_pair() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let ctx = open(&host);
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let transitions = ["Reset to Init", "Init to Rtr", "Rtr to Rts"];
    for (number, transition) in (1..).zip(transitions) {
        let failing = host.fail(Call::ModifyQp, When::Nth(number), libc::ENETDOWN);
        let error = connect(&pd, &cq).unwrap_err();
        check(&error, Call::ModifyQp, libc::ENETDOWN, transition);
        assert_eq!((failing.calls(), failing.failed()), (number, 1));
    }
}

#[test]
fn refused_posts_return_their_buffers_and_work_when_repeated() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let ctx = open(&host);
    let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let mut qp = connect(&pd, &cq).unwrap();

    let sends = host.fail(Call::PostSend, When::Nth(1), libc::ENOMEM);
    let request = op::Send::new(pd.register_buf(*b"hello").unwrap());
    let PostError { value, error } = qp.post(request).unwrap_err();
    check(&error, Call::PostSend, libc::ENOMEM, "");
    qp.post(value.unwrap()).unwrap();
    assert_eq!((sends.calls(), sends.failed()), (2, 1));

    let receives = host.fail(Call::PostRecv, When::Nth(1), libc::ENOMEM);
    let PostError { value, error } = qp.post_recv(pd.alloc_buf(64).unwrap()).unwrap_err();
    check(&error, Call::PostRecv, libc::ENOMEM, "");
    qp.post_recv(value.unwrap()).unwrap();
    assert_eq!((receives.calls(), receives.failed()), (2, 1));

    // As the library of Soft-iWARP does with a receive without elements.
    let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let empty = builder.create_for::<Buf, ()>().unwrap();
    let init = Attributes::<verbs::Rc, Init>::new(1);
    let mut empty = empty.to_init(&init).unwrap();
    let receives = host.fail(Call::PostRecv, When::Nth(1), libc::EINVAL);
    let error = empty.post_recv(()).unwrap_err().error;
    check(
        &error,
        Call::PostRecv,
        libc::EINVAL,
        "post a buffer of one byte",
    );
    empty.post_recv(()).unwrap();
    assert_eq!(receives.failed(), 1);
    drop(empty);

    qp.to_error().unwrap();
    let polls = host.fail(Call::PollCq, When::Nth(1), libc::EIO);
    let error = cq.poll().unwrap_err();
    check(&error, Call::PollCq, libc::EIO, "");
    assert_eq!(polls.failed(), 1);
    drop(polls);
    // Both requests are flushed, and each buffer comes back.
    let mut flushed = 0;
    for wc in cq.poll().unwrap() {
        assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
        drop(qp.complete(wc).unwrap());
        flushed += 1;
    }
    assert_eq!(flushed, 2);
}
