//! Posting and completing on a device with failures on demand.

use std::{
    io::{ErrorKind, IoSlice},
    rc::Rc as Shared,
};

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Buf, Completed, QueuePair, RemoteToken, Rts, SharedBuf, SharedReceiveQueue, WcStatus,
    cq::{WcError, WcOpcode},
    op::{self, SendOps},
    work::{Either, Gather, Scatter, SgeList, With},
};

use crate::{fixture::Fixture, provider::wc, unmapped::refusal};

/// A counted work: the count goes down at its drop.
#[derive(Debug)]
struct Counted(
    Buf,
    #[expect(dead_code, reason = "held to be counted")] Shared<()>,
);

// SAFETY: the elements are the buffer's, owned by `self`.
unsafe impl Gather for Counted {
    fn gather(&self, list: &mut SgeList) {
        self.0.gather(list);
    }
}

// SAFETY: see `Gather`.
unsafe impl Scatter for Counted {}

fn counted(fixture: &Fixture, counter: &Shared<()>) -> Counted {
    Counted(fixture.pd.alloc_buf(8).unwrap(), Shared::clone(counter))
}

#[test]
fn posted_request_reaches_the_device_unchanged() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let hello = fixture.pd.register_buf(*b"hello").unwrap();
    qp.post(op::Send::new(hello).imm_data(7).solicited())
        .unwrap();
    let posted = &fixture.fake.sends(qp.qp_num())[0];
    assert_eq!(posted.opcode, ffi::ibv_wr_opcode::IBV_WR_SEND_WITH_IMM);
    assert_eq!(posted.imm_data, Some(7));
    assert_eq!(posted.bytes(), b"hello");
    assert!(posted.is_signaled());

    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let wc = cq.poll().unwrap().next().unwrap();
    let Completed::Send(done) = qp.complete(wc).unwrap() else {
        panic!("a send has completed");
    };
    assert_eq!(&**done.work().unwrap(), b"hello");
}

#[test]
fn request_with_too_many_elements_is_refused() {
    const ELEMENTS: u8 = 96;
    let fixture = Fixture::new();
    let (mut cq, fake) = (fixture.cq(8), &fixture.fake);
    fake.describe(|device| device.attr.orig_attr.max_sge = ELEMENTS.into());
    let builder = fixture.pd.qp_builder(&cq, &cq).send_ops(SendOps::SEND);
    let builder = builder.max_send_wr(4).max_inline_data(ELEMENTS.into());
    let builder = builder
        .max_send_sge(ELEMENTS.into())
        .max_recv_sge(ELEMENTS.into());
    let mut qp = fixture.connect(builder.create_for::<Vec<Buf>, Vec<Buf>>().unwrap());
    let bytes: Vec<u8> = (0..ELEMENTS).collect();
    let work = || -> Vec<Buf> {
        let buf = |&byte: &u8| fixture.pd.register_buf([byte]).unwrap();
        bytes.iter().map(buf).collect()
    };

    qp.post(op::Send::new(work())).unwrap();
    let mut batch = qp.batch();
    batch.push(op::Send::new(work())).unwrap();
    batch.post().unwrap();
    let mut batch = qp.extended_batch().unwrap();
    batch.push(op::Send::new(work())).unwrap();
    let parts: Vec<_> = bytes.chunks(1).map(IoSlice::new).collect();
    batch
        .push(op::Send::new(vec![]).inline_list(&parts))
        .unwrap();
    batch.post().unwrap();
    let sends = fake.sends(qp.qp_num());
    assert_eq!(sends.len(), 4);
    for (i, send) in sends.iter().enumerate() {
        let sent = send.inline.clone().unwrap_or_else(|| send.bytes());
        assert_eq!(sent, bytes, "request {i}");
    }

    qp.post_recv(work()).unwrap();
    let message: Vec<u8> = bytes.iter().rev().copied().collect();
    fake.complete_receive(qp.qp_num(), &message);
    let wc = cq.poll().unwrap().next().unwrap();
    let Ok(Completed::Receive(done)) = qp.complete(wc) else {
        panic!("a receive has completed");
    };
    let received: Vec<u8> = done
        .work()
        .unwrap()
        .iter()
        .flat_map(|buf| buf.to_vec())
        .collect();
    assert_eq!(received, message);

    let mut receives = work();
    receives.extend(work());
    let refused = qp.post_recv(receives).unwrap_err();
    assert_eq!(refused.value.unwrap().len(), 2 * usize::from(ELEMENTS));
    let error = refused.error.to_string();
    assert!(error.contains("192") && error.contains("96"), "{error}");
}

#[test]
fn forgotten_completions_return_with_later_completions() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
    for _ in 0..3 {
        let buf = fixture.pd.alloc_buf(8).unwrap();
        qp.post(op::Send::new(buf)).unwrap();
    }
    for _ in 0..2 {
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    }
    #[expect(clippy::mem_forget, reason = "this is what is tested")]
    std::mem::forget(cq.poll().unwrap());
    assert_eq!(cq.poll().unwrap().count(), 0);
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let wc = cq.poll().unwrap().next().unwrap();
    let mut earlier = 0;
    drop(qp.complete_each(wc, |_| earlier += 1).unwrap());
    assert_eq!(earlier, 2);
}

#[test]
fn failed_completion_returns_work_and_error() {
    fn sent(done: Completed<'_, Buf, Buf>) -> verbs::Result<Buf> {
        match done {
            Completed::Send(done) => Ok(done.into_work()?),
            Completed::Receive(done) => Ok(done.into_work()?),
        }
    }
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    for (status, kind) in [
        (WcStatus::RETRY_EXC_ERR, ErrorKind::TimedOut),
        (WcStatus::REM_ACCESS_ERR, ErrorKind::PermissionDenied),
        (WcStatus::LOC_QP_OP_ERR, ErrorKind::Other),
    ] {
        qp.post(op::Send::new(fixture.pd.alloc_buf(4).unwrap()))
            .unwrap();
        fixture.fake.complete_send(qp.qp_num(), status);
        let wc = cq.poll().unwrap().next().unwrap();
        let error = sent(qp.complete(wc).unwrap()).unwrap_err();
        assert_eq!((error.call(), error.kind()), ("ibv_wc", kind));
        let failed = WcError::of(&error).unwrap();
        assert_eq!(failed.status, status);
        assert!(error.to_string().contains(&format!("{status:?}")));
    }
    qp.post(op::Send::new(fixture.pd.alloc_buf(4).unwrap()))
        .unwrap();
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let wc = cq.poll().unwrap().next().unwrap();
    assert_eq!(sent(qp.complete(wc).unwrap()).unwrap().len(), 4);
}

#[test]
fn message_arrives_in_the_posted_receive() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    qp.post_recv(fixture.pd.alloc_buf(64).unwrap()).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), b"message");
    let wc = cq.wait(None).unwrap().next().unwrap();
    let Completed::Receive(done) = qp.complete(wc).unwrap() else {
        panic!("a receive has completed");
    };
    assert_eq!(done.received().unwrap(), b"message");
}

#[test]
fn failed_post_returns_the_work_at_any_request() {
    const DEPTH: u8 = 6;
    for failing in 0..DEPTH {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(16);
        let mut qp = fixture.rc::<With<Buf, u8>, Buf>(&cq, DEPTH.into());
        let fake = &fixture.fake;
        fake.fail_after(failing.into(), Call::PostSend, libc::ENOMEM);
        for i in 0..DEPTH {
            let buf = fixture.pd.register_buf([i]).unwrap();
            let posted = qp.post(op::Send::new(With::new(buf, i)));
            assert_eq!(posted.is_err(), i == failing);
            if let Err(refused) = posted {
                assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
                let work = refused.value.unwrap().into_work();
                assert_eq!((&work.work[..], work.context), (&[i][..], i));
            }
        }
        // The others are in flight, and each completion finds its own.
        assert_eq!(qp.send_queue().in_flight(), usize::from(DEPTH) - 1);
        for i in (0..DEPTH).filter(|&i| i != failing) {
            fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
            let wc = cq.poll().unwrap().next().unwrap();
            match qp.complete(wc).unwrap() {
                Completed::Send(done) => assert_eq!(done.work().unwrap().context, i),
                Completed::Receive(_) => panic!("nothing was received"),
            }
        }
        assert_eq!(qp.send_queue().in_flight(), 0);
    }
}

#[test]
fn failed_receive_returns_the_work_at_any_receive() {
    for failing in 0..4 {
        let fixture = Fixture::new();
        let cq = fixture.cq(16);
        let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
        fixture
            .fake
            .fail_after(failing, Call::PostRecv, libc::EINVAL);
        for i in 0..4 {
            let posted = qp.post_recv(fixture.pd.alloc_buf(i + 1).unwrap());
            assert_eq!(posted.is_err(), i == failing);
            if let Err(refused) = posted {
                assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
                assert_eq!(refused.value.unwrap().len(), i + 1);
            }
        }
        assert_eq!(qp.receive_queue().in_flight(), 3);
    }
}

#[test]
fn flushed_work_returns_with_its_status() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
    for len in 1..=3 {
        qp.post(op::Send::new(fixture.pd.alloc_buf(len).unwrap()))
            .unwrap();
        qp.post_recv(fixture.pd.alloc_buf(len + 10).unwrap())
            .unwrap();
    }
    qp.to_error().unwrap();
    // Works posted from now on return as well.
    qp.post(op::Send::new(fixture.pd.alloc_buf(4).unwrap()).unsignaled())
        .unwrap();
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    for wc in cq.poll().unwrap() {
        assert_eq!(wc.status(), WcStatus::WR_FLUSH_ERR);
        match qp.complete(wc).unwrap() {
            Completed::Send(done) => sends.push(done.into_parts().1.len()),
            Completed::Receive(done) => {
                assert!(done.received().is_err());
                receives.push(done.into_parts().1.len());
            }
        }
    }
    assert_eq!((sends, receives), (vec![1, 2, 3, 4], vec![11, 12, 13]));
}

#[test]
fn foreign_and_stale_completions_are_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(32);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
    let mut other: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
    qp.post(op::Send::new(fixture.pd.alloc_buf(8).unwrap()))
        .unwrap();
    let wr_id = fixture.fake.sends(qp.qp_num())[0].wr_id;
    let send = ffi::ibv_wc_opcode::IBV_WC_SEND;
    let push = |wr_id| fixture.fake.push(&cq, wc(wr_id, send));
    // An unknown identifier, one not posted yet, one of the other queue, and then the right one
    // twice.
    for wr_id in [0, u64::MAX, wr_id + 1, wr_id | 1 << 24, wr_id, wr_id] {
        push(wr_id);
    }
    let mut matched = Vec::new();
    for wc in cq.poll().unwrap() {
        let Err(wc) = other.complete(wc) else {
            panic!("the other queue pair has nothing in flight");
        };
        matched.push(qp.complete(wc).is_ok());
    }
    assert_eq!(matched, [false, false, false, false, true, false]);
}

#[test]
fn failed_poll_completes_nothing() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    qp.post(op::Send::new(fixture.pd.alloc_buf(8).unwrap()))
        .unwrap();
    for (ret, errno) in [(-1, libc::EIO), (-libc::EINVAL, libc::EINVAL)] {
        fixture.fake.poll_returns(&cq, ret);
        assert_eq!(cq.poll().unwrap_err().raw_os_error(), Some(errno));
    }
    assert_eq!(qp.send_queue().in_flight(), 1);
    // And the queue goes on.
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let wc = cq.poll().unwrap().next().unwrap();
    assert!(qp.complete(wc).is_ok());
}

#[test]
fn batch_of_any_length_is_one_call() {
    const LEN: u32 = 5;
    let fixture = Fixture::new();
    let (cq, fake) = (fixture.cq(64), &fixture.fake);
    let builder = fixture.pd.qp_builder(&cq, &cq).send_ops(SendOps::SEND);
    let builder = builder.max_send_wr(4 * LEN).max_recv_wr(4 * LEN);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(builder.create().unwrap());
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(2 * LEN, 1).unwrap();
    let buf = || fixture.pd.alloc_buf(8).unwrap();

    let mut batch = qp.batch();
    (0..LEN).for_each(|_| batch.push(op::Send::new(buf())).unwrap());
    assert_eq!(fake.doorbells(), 0, "not yet");
    batch.post().unwrap();
    assert_eq!(fake.doorbells(), 1);
    let mut batch = qp.extended_batch().unwrap();
    (0..LEN).for_each(|_| batch.push(op::Send::new(buf())).unwrap());
    batch.post().unwrap();
    assert_eq!(fake.doorbells(), 1);
    let mut batch = qp.recv_batch();
    (0..LEN).for_each(|_| batch.push(buf()).unwrap());
    batch.post().unwrap();
    assert_eq!(fake.doorbells(), 1);
    let mut batch = srq.batch();
    (0..LEN).for_each(|_| batch.push(buf()).unwrap());
    batch.post().unwrap();
    assert_eq!(fake.doorbells(), 1);
    assert_eq!(fake.sends(qp.qp_num()).len(), 2 * LEN as usize);
    assert_eq!(fake.receives(qp.qp_num()).len(), LEN as usize);
    assert_eq!(srq.in_flight(), LEN as usize);

    (0..LEN).for_each(|_| qp.post(op::Send::new(buf())).unwrap());
    (0..LEN).for_each(|_| qp.post_recv(buf()).unwrap());
    (0..LEN).for_each(|_| srq.post(buf()).unwrap());
    assert_eq!(fake.doorbells(), 3 * LEN, "one for each");
}

#[test]
fn batches_of_any_length_wrap_around_the_ring() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts, With<Buf, u32>> = fixture.rc(&cq, 5);
    let send = |number| op::Send::new(With::new(fixture.pd.alloc_buf(8).unwrap(), number));
    let mut numbers = 0..;
    for round in 0..60 {
        // A forgotten or dropped batch posts no request, at any position in the ring.
        let mut forgotten = qp.batch();
        (0..round % 4).for_each(|_| forgotten.push(send(u32::MAX)).unwrap());
        #[expect(clippy::mem_forget, reason = "the point of the test")]
        std::mem::forget(forgotten);
        let mut dropped = qp.batch();
        (0..round % 3).for_each(|_| dropped.push(send(u32::MAX)).unwrap());
        drop(dropped);
        assert_eq!(qp.send_queue().in_flight(), 0);

        let numbers: Vec<u32> = numbers.by_ref().take(round % 6).collect();
        let (single, together) = numbers.split_at(numbers.len().min(round % 2));
        let singles = single.iter().map(|&number| send(number));
        singles.for_each(|send| qp.post(send).unwrap());
        let mut batch = qp.batch();
        together
            .iter()
            .for_each(|&number| batch.push(send(number)).unwrap());
        assert_eq!(batch.len(), together.len());
        batch.post().unwrap();
        assert_eq!(qp.send_queue().in_flight(), numbers.len());
        for number in numbers {
            fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
            let wc = cq.poll().unwrap().next().unwrap();
            let done = qp
                .complete_each(wc, |_| panic!("unsignaled work that was not posted"))
                .unwrap();
            assert_eq!(done.work().unwrap().context, number);
        }
    }
}

#[test]
fn unsupported_poll_is_an_error_for_any_batch() {
    let fixture = Fixture::new();
    for batch in [1, 16, 1000] {
        // libibverbs' stub for the function returns the number unchanged.
        fixture.fake.fail(Call::PollCq, libc::EOPNOTSUPP);
        let ctx = &fixture.ctx;
        let mut cq = ctx.cq_builder(8).batch(batch).create().unwrap();
        for _ in 0..2 {
            let err = cq.poll().unwrap_err();
            assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
        }
    }
}

#[test]
fn work_is_dropped_after_the_queue_pair() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let counter = Shared::new(());
    let mut qp = fixture.rc::<Counted, Counted>(&cq, 4);
    for _ in 0..3 {
        qp.post(op::Send::new(counted(&fixture, &counter))).unwrap();
        qp.post_recv(counted(&fixture, &counter)).unwrap();
    }
    assert_eq!(Shared::strong_count(&counter), 7);
    drop(qp);
    assert_eq!(Shared::strong_count(&counter), 1);
    let calls = fixture.fake.calls();
    let destroyed = calls.iter().position(|call| *call == Call::DestroyQp);
    let deregistered = calls.iter().position(|call| *call == Call::DeregMr);
    assert!(destroyed.unwrap() < deregistered.unwrap());
    assert!(!fixture.fake.live().contains(&"ibv_mr"));
}

#[test]
fn work_of_an_undestroyed_queue_pair_is_never_freed() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let counter = Shared::new(());
    let mut qp = fixture.rc::<Counted, Counted>(&cq, 4);
    qp.post(op::Send::new(counted(&fixture, &counter))).unwrap();
    qp.post_recv(counted(&fixture, &counter)).unwrap();
    fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
    drop(qp);
    drop(cq);
    // The device may still write the one and read the other.
    assert_eq!(Shared::strong_count(&counter), 3);
    let live = [
        "ibv_comp_channel",
        "ibv_cq",
        "ibv_mr",
        "ibv_mr",
        "ibv_pd",
        "ibv_qp_ex",
    ];
    assert_eq!(fixture.fake.live()[..6], live);
}

#[test]
fn memory_with_a_failed_deregistration_is_never_freed() {
    let fixture = Fixture::new();
    let buf = fixture
        .pd
        .register_buf(*b"still read by the device")
        .unwrap();
    let bytes = buf.as_ptr();
    fixture.fake.fail(Call::DeregMr, libc::EBUSY);
    drop(buf);
    assert!(fixture.fake.live().contains(&"ibv_mr"));
    // SAFETY: given up, and so initialised and unchanged for ever.
    assert_eq!(unsafe { *bytes }, b's');
}

#[test]
fn objects_are_destroyed_in_dependency_order() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let Fixture { pd, ctx, fake } = fixture;
    drop(ctx);
    drop(pd);
    drop(cq);
    assert!(fake.live().contains(&"ibv_qp_ex"));
    drop(qp);
    assert_eq!(fake.live(), [""; 0]);
    let calls = fake.calls();
    let last = &calls[calls.len() - 5..];
    for call in [
        Call::DestroyQp,
        Call::DestroyCq,
        Call::DeallocPd,
        Call::CloseDevice,
    ] {
        assert!(last.contains(&call), "{last:?}");
    }
}

#[test]
fn unsignaled_requests_never_fill_the_queue() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
    let mut completions = 0;
    for _ in 0..100 {
        qp.post(op::Send::new(fixture.pd.alloc_buf(1).unwrap()).unsignaled())
            .unwrap();
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        for wc in cq.poll().unwrap() {
            assert!(qp.complete(wc).is_ok());
            completions += 1;
        }
    }
    assert!((25..=50).contains(&completions), "{completions}");
}

/// Some devices write 8 bytes regardless of the element's length.
#[test]
fn atomic_operation_has_one_element_of_8_bytes() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let remote = RemoteToken {
        addr: 64,
        len: 8,
        rkey: 9,
    };
    let mut qp: QueuePair<verbs::Rc, Rts, Vec<Buf>> = fixture.rc(&cq, 2);
    for lens in [&[][..], &[4], &[9], &[4, 4]] {
        let buf = |&len: &usize| fixture.pd.alloc_buf(len).unwrap();
        let work = || lens.iter().map(buf).collect::<Vec<_>>();
        let added = refusal(qp.post(op::FetchAdd::new(work(), remote, 1)));
        let swapped = refusal(qp.post(op::CompareSwap::new(work(), remote, 1, 2)));
        let batched = refusal(qp.batch().push(op::FetchAdd::new(work(), remote, 1)));
        for refused in [added, swapped, batched] {
            assert!(refused.contains("has one of 8 bytes"), "{refused}");
        }
    }
    let work = vec![fixture.pd.alloc_buf(8).unwrap()];
    qp.post(op::FetchAdd::new(work, remote, 1)).unwrap();
}

/// Bytes of an earlier message in the memory of a receive are not reported as received.
#[test]
fn received_length_follows_the_opcode() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp = fixture.rc::<Buf, Buf>(&cq, 4);
    let cases = [
        (WcOpcode::RECV, 4),
        (WcOpcode::RECV_RDMA_WITH_IMM, 0),
        (WcOpcode(0x1234), 0),
    ];
    for (opcode, len) in cases {
        let stale = fixture.pd.register_buf(*b"stale bytes").unwrap();
        qp.post_recv(stale).unwrap();
        fixture.fake.complete_receive_with(qp.qp_num(), b"", |wc| {
            wc.opcode = ffi::ibv_wc_opcode(opcode.0);
            wc.byte_len = 4;
        });
        let completion = cq.poll().unwrap().next().unwrap();
        let Ok(Completed::Receive(done)) = qp.complete(completion) else {
            panic!("a receive has completed");
        };
        assert_eq!(
            done.received().unwrap(),
            &b"stale bytes"[..len],
            "{opcode:?}"
        );
    }
}

#[test]
fn received_bytes_of_other_opcodes_are_empty() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp = fixture.rc::<Buf, Buf>(&cq, 4);
    let token = RemoteToken {
        addr: 8,
        rkey: 7,
        len: 8,
    };
    let buf = || fixture.pd.register_buf(*b"peer's 8").unwrap();
    qp.post(op::Read::new(buf(), token)).unwrap();
    qp.post(op::FetchAdd::new(buf(), token, 1)).unwrap();
    qp.post(op::CompareSwap::new(buf(), token, 1, 2)).unwrap();
    qp.post(op::Write::new(buf(), token)).unwrap();
    for expected in [8, 8, 8, 0] {
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        let completion = cq.poll().unwrap().next().unwrap();
        let Ok(Completed::Send(done)) = qp.complete(completion) else {
            panic!("a request has completed");
        };
        assert_eq!(done.received().unwrap(), &b"peer's 8"[..expected]);
    }
}

#[test]
fn send_queue_returns_work_of_two_types() {
    type Work = Either<Buf, With<SharedBuf, u32>>;
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Work, Either<Buf, (Buf, Buf)>> = fixture.rc(&cq, 4);
    let shared = fixture.pd.register_buf(*b"shared").unwrap().freeze();
    let local = fixture.pd.register_buf(*b"own").unwrap();
    qp.post(op::Send::new(Either::Left(local))).unwrap();
    qp.post(op::Send::new(Either::Right(With::new(shared, 7))))
        .unwrap();
    let buf = || fixture.pd.alloc_buf(4).unwrap();
    qp.post_recv(Either::Right((buf(), buf()))).unwrap();
    let sends = fixture.fake.sends(qp.qp_num());
    let sent: Vec<Vec<u8>> = sends
        .iter()
        .map(|send| fixture.fake.collect(send))
        .collect();
    assert_eq!(sent, [&b"own"[..], b"shared"]);
    for _ in 0..2 {
        fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    }
    fixture.fake.complete_receive(qp.qp_num(), b"in two");
    let mut back = Vec::new();
    for wc in cq.poll().unwrap() {
        match qp.complete(wc).unwrap() {
            Completed::Send(done) => back.push(match done.work().unwrap() {
                Either::Left(local) => local.to_vec(),
                Either::Right(With { work, context: 7 }) => work.to_vec(),
                Either::Right(other) => panic!("{other:?}"),
            }),
            Completed::Receive(done) => {
                let Either::Right((first, second)) = done.work().unwrap() else {
                    panic!("{:?}", done.work());
                };
                assert_eq!((&**first, &second[..2]), (&b"in t"[..], &b"wo"[..]));
            }
        }
    }
    assert_eq!(back, sent);
}
