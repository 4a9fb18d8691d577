//! Scripted devices: the examples of the chapter "Test your protocol", which quotes this file, and the host's list.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::{panic::AssertUnwindSafe, ptr, sync::mpsc, thread, time::Duration};

use softnic::{
    Call, Fabric, Host, When,
    scripted::{
        ffi::{ibv_event_type, ibv_qp_state, ibv_wc_opcode, ibv_wc_status},
        wc,
    },
};
use verbs::{
    Buf, Completed, CompletionQueue, Context, Gid, Init, ProtectionDomain, QueuePair, Rtr, Rts,
    ah::AddressVector,
    flow::{FlowRule, FlowTarget},
    op,
    qp::{Attributes, Psn, QpNum},
};

/// Opens the device with this name of a host.
fn open(host: &Host, name: &str) -> Context {
    let devices = host.run(|| verbs::devices().unwrap());
    devices.find(name).unwrap().open().unwrap()
}

/// A reliable connection to a peer that does not exist.
fn connect(
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
) -> verbs::Result<QueuePair<verbs::Rc, Rts, Buf, Buf>> {
    let qp = pd.qp_builder(cq, cq).max_send_wr(2).create_for()?;
    let psn = Psn::from_low_bits(1);
    let peer = AddressVector::global(1, 1, Gid([0xfe; 16]));
    let qp = qp.to_init(&Attributes::<verbs::Rc, Init>::new(1))?;
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&peer, QpNum::from_low_bits(9), psn);
    Ok(qp
        .to_rtr(&rtr)?
        .to_rts(&Attributes::<verbs::Rc, Rts>::new(psn))?)
}

#[test]
fn refused_flow_is_reported_with_its_error() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    let ctx = open(&host, "scripted0");
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let qp = connect(&pd, &cq).unwrap();

    device.fail(Call::CreateFlow, When::Nth(1), libc::ENOMEM);
    let error = qp.create_flow(&FlowRule::new(1)).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));

    let flow = qp.create_flow(&FlowRule::new(1)).unwrap();
    assert!(device.live().contains(&"ibv_flow"));
    drop(flow);
    assert!(!device.live().contains(&"ibv_flow"));
}

#[test]
fn requests_complete_as_the_test_decides() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    let ctx = open(&host, "scripted0");
    let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let mut qp = connect(&pd, &cq).unwrap();
    let number = qp.qp_num().get();

    let hello = pd.register_buf(*b"hello").unwrap();
    qp.post(op::Send::new(hello)).unwrap();
    qp.post_recv(pd.alloc_buf(64).unwrap()).unwrap();
    assert_eq!(device.sends(number)[0].bytes(), b"hello");

    device.complete_receive(number, b"from nobody");
    device.complete_send(number, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);

    let mut completions = cq.poll().unwrap();
    let Ok(Completed::Receive(done)) = qp.complete(completions.next().unwrap()) else {
        panic!("the message has arrived first");
    };
    assert_eq!(done.received().unwrap(), b"from nobody");
    let Ok(Completed::Send(done)) = qp.complete(completions.next().unwrap()) else {
        panic!("the send has failed");
    };
    let error = done.into_work().unwrap_err().to_string();
    assert!(error.contains("RETRY_EXC_ERR"), "{error}");
}

#[test]
fn host_lists_its_scripted_devices_until_their_drop() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let other = fabric.host("10.9.0.2".parse().unwrap());
    let names = |host: &Host| {
        let devices = host.run(|| verbs::devices().unwrap());
        let names = devices.iter().map(|device| device.name().to_owned());
        names.collect::<Vec<_>>()
    };
    let first = host.add_scripted("first");
    let second = host.add_scripted("second");
    assert_eq!(names(&host), ["softnic0", "first", "second"]);
    assert_eq!(names(&other), ["softnic1"]);
    let ctx = open(&host, "first");
    drop(first);
    assert_eq!(names(&host), ["softnic0", "second"]);
    // An open context keeps its device.
    drop(ctx.alloc_pd().unwrap());
    drop(second);
}

#[test]
fn drop_of_a_scripted_device_reports_unused_failures() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    device.fail(Call::CreateFlow, When::Nth(1), libc::ENOMEM);
    let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(device)));
    let complaint = *dropped.unwrap_err().downcast::<String>().unwrap();
    assert!(complaint.contains("`ibv_create_flow` was to fail, and did not"));
}

/// The message of a closure's panic.
fn refusal<T>(act: impl FnOnce() -> T) -> String {
    let panic = std::panic::catch_unwind(AssertUnwindSafe(act)).map(drop);
    let message = panic.unwrap_err();
    let text = message
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned());
    text.unwrap_or_else(|| *message.downcast::<String>().unwrap())
}

#[test]
fn scripted_device_cannot_name_missing_objects() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    let ctx = open(&host, "scripted0");
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let qp = connect(&pd, &cq).unwrap();
    let unregistered = [0_u64; 64];
    let addr = unregistered.as_ptr().expose_provenance();
    let qp_addr = qp.as_raw().expose_provenance();
    let srq = ptr::with_exposed_provenance_mut(addr);
    let other = ptr::with_exposed_provenance_mut(addr);
    let done = wc(1, ibv_wc_opcode::IBV_WC_SEND);
    let success = ibv_wc_status::IBV_WC_SUCCESS;
    let refusals = [
        refusal(|| device.raise(ibv_event_type::IBV_EVENT_QP_FATAL, addr)),
        refusal(|| device.raise(ibv_event_type::IBV_EVENT_SRQ_ERR, addr)),
        refusal(|| device.raise(ibv_event_type::IBV_EVENT_WQ_FATAL, addr)),
        refusal(|| device.raise(ibv_event_type::IBV_EVENT_CQ_ERR, qp_addr)),
        // SAFETY: a queue that does not exist gets no completion.
        refusal(|| unsafe { device.push(other, done) }),
        refusal(|| device.poll_returns(other, -1)),
        refusal(|| device.cq_flags(other)),
        refusal(|| device.srq_receives(srq)),
        refusal(|| device.fail_tagged(srq, success, 0)),
        refusal(|| device.complete_receive(0xdead, b"")),
        refusal(|| device.complete_send(0xdead, success)),
        refusal(|| device.set_qp_state(0xdead, ibv_qp_state::IBV_QPS_ERR)),
    ];
    for message in refusals {
        assert!(message.contains("there is no "), "{message}");
    }
}

#[test]
fn bytes_of_a_request_are_read_in_flight_only() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    let ctx = open(&host, "scripted0");
    let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let mut qp = connect(&pd, &cq).unwrap();
    let number = qp.qp_num().get();
    for bytes in [b"first ", b"second"] {
        let work = pd.register_buf(*bytes).unwrap();
        qp.post(op::Send::new(work)).unwrap();
    }
    let mut sends = device.sends(number);
    // The elements of the posted request count, not changed ones.
    sends[0].sges = sends[1].sges.clone();
    assert_eq!(sends[0].bytes(), b"first ");
    assert_eq!(device.collect(&sends[1]), b"second");
    let other = host.add_scripted("scripted1");
    let message = refusal(|| other.collect(&sends[0]));
    assert!(
        message.contains("not in flight on this device"),
        "{message}"
    );

    let success = ibv_wc_status::IBV_WC_SUCCESS;
    let message = refusal(|| device.complete_send_at(number, 1, success));
    assert!(message.contains("only over iWARP"), "{message}");
    device.complete_send(number, success);
    let completion = cq.poll().unwrap().next().unwrap();
    assert!(qp.complete(completion).is_ok());
    for message in [
        refusal(|| sends[0].bytes()),
        refusal(|| device.collect(&sends[0])),
    ] {
        assert!(message.contains("not in flight"), "{message}");
    }
}

#[test]
fn poll_without_completions_returns_no_number_of_completions() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    let ctx = open(&host, "scripted0");
    let mut cq = ctx.create_cq(8).unwrap();
    let message = refusal(|| device.poll_returns(cq.as_raw(), 1));
    assert!(message.contains("a poll that returns 1"), "{message}");
    assert_eq!(cq.poll().unwrap().count(), 0);
}

/// Runs `act` in a thread, and returns its result; fails instead of waiting for ever.
fn within_a_minute<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(act()));
    result.recv_timeout(Duration::from_secs(60)).unwrap()
}

#[test]
fn closure_that_calls_its_own_device_returns() {
    within_a_minute(|| {
        let fabric = Fabric::new();
        let host = fabric.host("10.9.0.1".parse().unwrap());
        let device = host.add_scripted("scripted0");
        device.describe(|properties| {
            properties.attr.orig_attr.max_pd = 7;
            // The listing reads the attributes.
            drop(open(&host, "scripted0"));
        });
        let ctx = open(&host, "scripted0");
        assert_eq!(ctx.query_device().unwrap().max_pd(), 7);
        let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
        let mut qp = connect(&pd, &cq).unwrap();
        let number = qp.qp_num().get();
        device.change_qp(number, |attr| {
            attr.qkey = 9;
            assert_ne!(qp.query().unwrap().qkey, 9);
        });
        assert_eq!(qp.query().unwrap().qkey, 9);
        qp.post_recv(pd.alloc_buf(8).unwrap()).unwrap();
        // SAFETY: the completion stays the same.
        unsafe {
            device.complete_receive_with(number, b"message", |_| {
                assert_eq!(device.receives(number).len(), 1);
            });
        }
        assert_eq!(device.receives(number).len(), 0);
    });
}

#[test]
fn change_within_a_change_is_refused() {
    let (describe, change_qp) = within_a_minute(|| {
        let fabric = Fabric::new();
        let host = fabric.host("10.9.0.1".parse().unwrap());
        let device = host.add_scripted("scripted0");
        let describe = refusal(|| device.describe(|_| device.describe(|_| ())));
        let change_qp = refusal(|| device.describe(|_| device.change_qp(1, |_| ())));
        // A refused change ends the turn of the other one.
        device.describe(|properties| properties.guid = 7);
        (describe, change_qp)
    });
    assert_eq!(
        describe,
        "`describe` was called from within the closure of `describe`"
    );
    assert_eq!(
        change_qp,
        "`change_qp` was called from within the closure of `describe`"
    );
}

/// A message of a queue pair that has been reset since is not copied again by a poll.
#[test]
fn reset_queue_pair_gets_no_late_copy() {
    let fabric = Fabric::new();
    let host = fabric.host("10.9.0.1".parse().unwrap());
    let device = host.add_scripted("scripted0");
    let ctx = open(&host, "scripted0");
    let (pd, mut cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let mut qp = connect(&pd, &cq).unwrap();
    qp.post_recv(pd.alloc_buf(7).unwrap()).unwrap();
    device.complete_receive(qp.qp_num().get(), b"message");
    let (_qp, mut leftover) = qp.to_reset().map_err(|refused| refused.error).unwrap();
    let mut work = leftover.receive.remove(0);
    work.fill(b'-');
    cq.poll().unwrap().for_each(drop);
    assert_eq!(&*work, b"-------");
}
