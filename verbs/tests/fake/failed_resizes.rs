//! Failed resizes of completion queues and shared receive queues: some providers free or unmap a queue first.

use std::io::ErrorKind;

use ibverbs_sys::ibv_wc_opcode;
use softnic::Call;
use verbs::{Buf, QueuePair, Rts, SharedReceiveQueue, WcStatus, cq::Notify, op};

use crate::{fixture::Fixture, provider::wc};

/// The PCI vendor ID of Broadcom.
const BROADCOM: u32 = 0x14e4;

/// Errors of `mmap`, after the kernel has resized the queue.
const HALFWAY: [i32; 4] = [libc::ENOMEM, libc::EAGAIN, libc::EPERM, libc::EACCES];

#[test]
fn queue_is_not_used_after_its_failed_resize() {
    for errno in HALFWAY {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(8);
        let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
        let buf = || fixture.pd.alloc_buf(8).unwrap();
        qp.post(op::Send::new(buf())).unwrap();
        qp.post(op::Send::new(buf())).unwrap();
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        // Polled, and not taken.
        drop(cq.poll().unwrap());
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        fixture.fake.fail(Call::ResizeCq, errno);
        let failed = cq.resize(100).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(errno));
        let wc = cq.poll().unwrap().next().expect("polled before the resize");
        assert!(qp.complete(wc).is_ok());
        let builder = || fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
        let created = builder().max_send_wr(1).max_recv_wr(1).create();
        let mut refusals = vec![
            created.map(drop).unwrap_err(),
            cq.req_notify(Notify::Next).unwrap_err(),
            cq.moderate(1, 1).unwrap_err(),
        ];
        // The completion in the device's queue is not fetched.
        refusals.push(cq.poll().map(drop).unwrap_err());
        refusals.push(cq.poll_or_arm().map(drop).unwrap_err());
        refusals.push(cq.wait(None).map(drop).unwrap_err());
        refusals.push(cq.resize(9).unwrap_err());
        for error in refusals {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            assert!(error.to_string().contains("create new ones"), "{error}");
        }
        // The work returns without the queue.
        let leftover = qp.destroy().map_err(|refused| refused.error).unwrap();
        assert_eq!(leftover.send.len(), 1);
    }
}

#[test]
fn extended_queue_is_not_used_after_its_failed_resize() {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.cq_ex_builder(4).waitable().create().unwrap();
    fixture.fake.push(&cq, wc(1, ibv_wc_opcode::IBV_WC_SEND));
    fixture.fake.fail(Call::ResizeCq, libc::ENOMEM);
    assert!(cq.resize(100).is_err());
    for error in [
        cq.poll().map(drop).unwrap_err(),
        cq.poll_or_arm().map(drop).unwrap_err(),
        cq.wait(None).map(drop).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
    }
}

/// The provider frees the queue's memory if the kernel refuses with any error.
#[test]
fn resize_by_a_provider_that_frees_the_queue_is_refused() {
    let fixture = Fixture::new();
    let fake = &fixture.fake;
    fake.describe(|device| device.attr.orig_attr.vendor_id = BROADCOM);
    let mut cq = fixture.cq(8);
    let refused = cq.resize(16).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    assert!(!fake.calls().contains(&Call::ResizeCq));
    assert_eq!(cq.poll().unwrap().count(), 0, "the queue is unchanged");
}

#[test]
fn shared_queue_is_not_used_after_its_failed_resize() {
    for errno in HALFWAY {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(16);
        let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
        let builder = || {
            let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
            builder.max_send_wr(1).srq(&srq)
        };
        let qp: QueuePair<verbs::Rc, Rts> = fixture.connect(builder().create().unwrap());
        let buf = || fixture.pd.alloc_buf(8).unwrap();
        srq.post(buf()).unwrap();
        fixture.fake.fail(Call::ModifySrq, errno);
        let failed = srq.resize(8).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(errno));
        let mut batch = srq.batch();
        let pushed = batch.push(buf()).unwrap_err();
        drop(batch);
        let posted = srq.post(buf()).unwrap_err();
        assert_eq!(posted.value.unwrap().len(), 8, "the buffer returns");
        let other = fixture.cq(16);
        let created = fixture.pd.qp_builder::<verbs::Rc>(&other, &other);
        let created = created.max_send_wr(1).srq(&srq).create();
        for error in [
            pushed.error,
            posted.error,
            created.map(drop).unwrap_err(),
            srq.arm_limit(1).unwrap_err(),
            srq.query().map(drop).unwrap_err(),
            srq.resize(4).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
        }
        // The receive in flight completes.
        fixture.fake.complete_receive(qp.qp_num(), b"message");
        let wc = cq.poll().unwrap().next().unwrap();
        assert_eq!(srq.complete(wc).unwrap().received().unwrap(), b"message");
        let posted: Buf = srq.post(buf()).unwrap_err().value.unwrap();
        drop((qp, srq, posted));
    }
}
