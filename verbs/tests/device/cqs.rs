//! Completion queues beyond plain polling, on a real device.

use verbs::{
    Completed, Error, QueuePair, Rts, WcStatus,
    cq::{ExtendedCq, WcFields, WcOpcode},
    op,
};

use crate::loopback::Fixture;

#[test]
fn cq_resize_keeps_completions() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let (mut a, mut b): (QueuePair<verbs::Rc, Rts>, QueuePair<verbs::Rc, Rts>) =
        fixture.pair(&cq, 2);
    b.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    a.post(op::Send::new(fixture.pd.register_buf(*b"message").unwrap()))
        .unwrap();
    assert!(cq.wait(None).unwrap().len() > 0);
    cq.resize(200).unwrap();
    assert!(cq.capacity() >= 200);
    let mut remaining = 2;
    while remaining > 0 {
        for wc in cq.wait(None).unwrap() {
            remaining -= 1;
            assert!(wc.ok().is_ok());
            let wc = a.complete(wc).err();
            if let Some(Ok(Completed::Receive(done))) = wc.map(|wc| b.complete(wc)) {
                assert_eq!(done.received().unwrap(), b"message");
            }
        }
    }
    cq.resize(8).unwrap();
    assert!(cq.capacity() >= 8);
    assert!(cq.resize(7).is_err(), "the queue pairs need 8");
    assert!(cq.resize(u32::MAX).is_err());
}

#[test]
fn cq_moderation_without_device_support_is_an_error() {
    let fixture = Fixture::new();
    let caps = fixture.ctx.query_device().unwrap().cq_mod_caps();
    let moderated = fixture.cq(4).moderate(1, 1);
    let errno = moderated.map_err(|err| err.raw_os_error());
    if caps.max_cq_count == 0 {
        assert_eq!(errno, Err(Some(libc::EOPNOTSUPP)));
    } else {
        assert_eq!(errno, Ok(()));
    }
}

/// Extended queues are missing on Soft-iWARP.
fn extended(fixture: &Fixture) -> Result<ExtendedCq, Error> {
    fixture.ctx.cq_ex_builder(64).waitable().create()
}

#[test]
fn extended_cq_receives_messages() {
    let fixture = Fixture::new();
    if fixture.ctx.is_iwarp() {
        assert!(extended(&fixture).is_err());
        return;
    }
    let mut cq = extended(&fixture).unwrap();
    let qp = || {
        let qp = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
        qp.max_send_wr(8).max_recv_wr(8).create().unwrap()
    };
    let (a, b) = (qp(), qp());
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let mut a: QueuePair<verbs::Rc, Rts> = fixture.bring_up(a, b_num);
    let mut b: QueuePair<verbs::Rc, Rts> = fixture.bring_up(b, a_num);
    // Many rounds, to detect a provider that invents completions.
    for round in 0..40_u32 {
        let batch = round % 4 + 1;
        for i in 0..batch {
            b.post_recv(fixture.pd.alloc_buf(64).unwrap()).unwrap();
            let buf = fixture.pd.alloc_buf(10 + i as usize).unwrap();
            a.post(op::Send::new(buf).imm_data(round)).unwrap();
        }
        let (mut sent, mut received) = (0, 0);
        while sent + received < 2 * batch {
            let mut polled = cq.wait(None).unwrap().unwrap();
            while let Some(wc) = polled.next().unwrap() {
                assert_eq!(wc.status(), WcStatus::SUCCESS);
                if wc.is_receive() {
                    assert_eq!(wc.opcode(), Some(WcOpcode::RECV));
                    assert_eq!(wc.byte_len().unwrap(), 10 + received as usize);
                    assert_eq!(wc.imm_data().unwrap(), Some(round));
                    assert_eq!(wc.qp_num().unwrap(), b.qp_num());
                    assert!(b.complete(wc.into_work_completion()).is_ok());
                    received += 1;
                } else {
                    assert!(a.complete(wc.into_work_completion()).is_ok());
                    sent += 1;
                }
            }
        }
        assert!(cq.poll().unwrap().is_none());
    }
}

#[test]
fn extended_cq_fields_without_device_support_are_an_error() {
    let fixture = Fixture::new();
    let attr = fixture.ctx.query_device().unwrap();
    let builder = fixture.ctx.cq_ex_builder(4);
    let timed = builder.with(WcFields::COMPLETION_TIMESTAMP).create();
    if attr.completion_timestamp_mask() == 0 {
        assert_eq!(timed.unwrap_err().raw_os_error(), Some(libc::EOPNOTSUPP));
    } else {
        assert!(
            timed
                .unwrap()
                .fields()
                .contains(WcFields::COMPLETION_TIMESTAMP)
        );
    }
}
