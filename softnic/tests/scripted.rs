//! Scripted devices: the examples of the chapter "Test your protocol", which quotes this file, and the host's list.
#![expect(clippy::unwrap_used, reason = "a test, outside of its functions too")]

use std::panic::AssertUnwindSafe;

use softnic::{Call, Fabric, Host, When, scripted::ffi::ibv_wc_status};
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
    let qp = pd.qp_builder(cq, cq).create_for()?;
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
