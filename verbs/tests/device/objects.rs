//! Creation of objects, refusals, and teardown in every order.

use std::{io::ErrorKind, time::Duration};

use verbs::{
    QueuePair, Reset, SharedBuf,
    cq::{CqKey, Notify},
    work::MAX_SGE,
};

use crate::loopback::{Fixture, open, tested};

#[test]
fn devices_are_listed_and_opened_by_name() {
    let devices = verbs::devices().unwrap();
    let name = tested().name().to_owned();
    let ctx = devices.find(&name).unwrap().open().unwrap();
    // An open device outlives its list.
    drop(devices);
    assert_eq!(ctx.name(), name);
    assert!(ctx.alloc_pd().is_ok());
    assert!(verbs::devices().unwrap().find("no such device").is_none());
}

#[test]
fn device_outlives_its_list() {
    let device = tested();
    assert!(!device.name().is_empty());
    assert!(device.open().is_ok());
}

#[test]
fn device_opened_twice_has_two_contexts() {
    let (a, b) = (open(), open());
    assert_ne!(a, b);
    assert_eq!(a, a.clone());
}

#[test]
fn children_keep_their_parents() {
    let Fixture { ctx, pd } = Fixture::new();
    let cq = ctx.create_cq(8).unwrap();
    let qp: QueuePair<verbs::Rc, Reset> = pd.qp_builder(&cq, &cq).create().unwrap();
    let buf = pd.alloc_buf(64).unwrap();
    drop(ctx);
    drop(cq);
    drop(pd);
    assert_eq!(&*buf, &[0; 64]);
    assert!(qp.qp_num().get() > 0);
    drop(qp);
    drop(buf);
}

#[test]
fn buffer_can_be_split_and_frozen() {
    let Fixture { pd, .. } = Fixture::new();
    let mut head = pd.register_buf(*b"one two three").unwrap();
    let mut tail = head.split_off(4);
    assert_eq!((&*head, &*tail), (&b"one "[..], &b"two three"[..]));
    tail.set_len(3);
    assert_eq!((&*tail, tail.capacity()), (&b"two"[..], 9));
    tail.set_full();
    assert_eq!(&*tail, b"two three");
    drop(head);

    let shared: SharedBuf = tail.freeze();
    let other = shared.clone();
    assert!(shared.clone().thaw().is_none(), "there is another handle");
    drop(other);
    assert_eq!(&*shared.thaw().unwrap(), b"two three");
}

#[test]
fn buffer_without_bytes_is_refused() {
    let Fixture { pd, .. } = Fixture::new();
    let err = pd.alloc_buf(0).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        err.to_string(),
        "`ibv_reg_mr` failed (0 bytes): a buffer has at least one byte"
    );
}

#[test]
fn cq_without_entries_is_refused_by_the_device() {
    let err = open().create_cq(0).unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert!(
        err.to_string()
            .starts_with("`ibv_create_cq` failed (0 entries, vector 0): ")
    );
}

#[test]
fn queue_pair_beyond_the_cq_capacity_is_refused() {
    let Fixture { ctx, pd } = Fixture::new();
    let cq = ctx.create_cq(10).unwrap();
    let depth = cq.capacity() / 2;
    let build = |depth| {
        pd.qp_builder::<verbs::Rc>(&cq, &cq)
            .max_send_wr(depth)
            .max_recv_wr(depth)
    };
    let first = build(depth).create().unwrap();
    let err = build(1).create().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::InvalidInput);
    assert!(err.to_string().contains("entries left"), "{err}");
    drop(first);
    assert_eq!(
        cq.available(),
        cq.capacity(),
        "a queue pair gives back what it reserved"
    );
    build(depth).create().unwrap();
}

#[test]
fn refused_queue_pair_releases_its_cq_entries() {
    let Fixture { ctx, pd } = Fixture::new();
    let cq = ctx.create_cq(4).unwrap();
    let elements = u32::try_from(MAX_SGE).unwrap();
    let with = |elements| {
        let builder = pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_sge(elements);
        builder.create().unwrap_err().to_string()
    };
    assert_eq!(
        with(elements + 1),
        "`ibv_create_qp` failed: max_send_sge is 129, and at most 128"
    );
    let refused = with(elements);
    assert!(refused.starts_with("`ibv_create_qp` failed"), "{refused}");
    assert!(refused.contains("Invalid argument"), "{refused}");
    assert_eq!(cq.available(), cq.capacity());
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let Fixture { pd, .. } = Fixture::new();
    let cq = open().create_cq(4).unwrap();
    let err = pd.qp_builder::<verbs::Rc>(&cq, &cq).create().unwrap_err();
    assert!(
        err.to_string().contains("the completion queue is of"),
        "{err}"
    );
}

#[test]
fn failed_transition_returns_the_queue_pair() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Reset> = fixture.qp(&cq, 2);
    let attr = *fixture.init().as_raw().0;
    // The port, the P_Key index and the access flags are missing.
    let bare = verbs::qp::Attributes::from_raw(attr, 1);
    let refused = qp.to_init(&bare).unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
    assert_eq!(
        refused.error.to_string(),
        "`ibv_modify_qp` failed (Rc Reset to Init, missing: PORT, PKEY_INDEX, ACCESS_FLAGS): \
         Invalid argument (os error 22)"
    );
    assert!(refused.value.to_init(&fixture.init()).is_ok());
}

#[test]
fn channel_has_no_event_before_a_completion() {
    let Fixture { ctx, .. } = Fixture::new();
    let channel = ctx.create_comp_channel().unwrap();
    let mut cq = ctx
        .cq_builder(8)
        .channel(&channel, CqKey(5))
        .create()
        .unwrap();
    cq.req_notify(Notify::Next).unwrap();
    assert_eq!(channel.try_next().unwrap(), None);
    assert_eq!(
        channel.wait_timeout(Duration::from_millis(20)).unwrap(),
        None
    );
    assert_eq!(cq.poll().unwrap().count(), 0);
    // The queue keeps its channel.
    drop(channel);
    cq.req_notify(Notify::Solicited).unwrap();
}

#[test]
fn wait_on_cq_without_channel_is_refused() {
    let mut cq = open().create_cq(8).unwrap();
    assert_eq!(
        cq.req_notify(Notify::Next).unwrap_err().kind(),
        ErrorKind::Unsupported
    );
    assert_eq!(cq.wait(None).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn cq_wait_returns_none_after_timeout() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    assert_eq!(cq.wait(Some(Duration::from_millis(20))).unwrap().len(), 0);
}
