//! Completion queues beyond plain polling: resizing, moderation, extended queues.

use std::{io::ErrorKind, mem, time::Duration};

use ibverbs_sys as ffi;
use ibverbs_sys::{ibv_create_cq_attr_flags, ibv_wc_flags, ibv_wc_opcode};
use softnic::Call;
use verbs::{
    Buf, Completed, QueuePair, Rts, SharedReceiveQueue, WcStatus,
    cq::{CqKey, ExtendedCq, ExtendedPoll, Notify, TagMatch, WcFields, WcOpcode},
    op,
    qp::QpId,
    srq::TagMatchingCapacity,
};

use crate::{
    fixture::{Fixture, error_text},
    provider::{Extra, wc},
};

#[test]
fn cq_resize_below_the_reserved_entries_is_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 3);
    cq.resize(32).unwrap();
    assert_eq!((cq.capacity(), cq.available()), (32, 26));
    let err = cq.resize(5).unwrap_err();
    assert_eq!(
        err.to_string(),
        "`ibv_resize_cq` failed (5 entries): 6 entries are reserved by queue pairs; destroy some first"
    );
    cq.resize(6).unwrap();
    assert_eq!((cq.capacity(), cq.available()), (6, 0));
    assert!(
        fixture
            .pd
            .qp_builder::<verbs::Rc>(&cq, &cq)
            .create()
            .is_err()
    );
    drop(qp);
    // A refused resize changes nothing.
    fixture.fake.fail(Call::ResizeCq, libc::EINVAL);
    assert_eq!(cq.resize(4).unwrap_err().raw_os_error(), Some(libc::EINVAL));
    assert_eq!((cq.capacity(), cq.available()), (6, 6));
    fixture.fake.fail(Call::ResizeCq, libc::ENOSYS);
    assert!(cq.resize(100).is_err());
    assert_eq!(cq.capacity(), 6);
}

#[test]
fn cq_moderation_reaches_the_device() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    cq.moderate(16, 10).unwrap();
    assert_eq!(fixture.fake.moderation(&cq), (16, 10));
    fixture.fake.fail(Call::ModifyCq, libc::EOPNOTSUPP);
    let err = cq.moderate(1, 2).unwrap_err();
    assert_eq!(
        error_text(&err),
        "`ibv_modify_cq` failed (1 completions, 2 µs): Operation not supported (os error 95)"
    );
}

#[test]
fn extended_cq_has_its_chosen_fields() {
    let fixture = Fixture::new();
    let every = WcFields::all();
    let mut cq = fixture.ctx.cq_ex_builder(4).with(every).create().unwrap();
    let mut wc = wc(1 << 25, ibv_wc_opcode::IBV_WC_RECV);
    wc.byte_len = 99;
    wc.qp_num = 7;
    wc.src_qp = 8;
    wc.slid = 9;
    wc.sl = 3;
    wc.dlid_path_bits = 2;
    wc.vendor_err = 0x77;
    let extra = Extra {
        timestamp: 1234,
        wallclock_ns: 5678,
        cvlan: 42,
        flow_tag: 0xab_cdef,
        tm_tag: 1 << 40,
        tm_priv: 17,
    };
    fixture.fake.push_extended(cq.as_raw(), wc, extra);
    let mut polled = cq.poll().unwrap().unwrap();
    let wc = polled.next().unwrap().unwrap();
    assert_eq!(wc.status(), WcStatus::SUCCESS);
    assert!(wc.ok().is_ok());
    assert_eq!(wc.opcode(), Some(WcOpcode::RECV));
    assert_eq!(wc.vendor_err(), 0, "undefined without a failure");
    assert_eq!(wc.byte_len().unwrap(), 99);
    assert_eq!(wc.qp_num().unwrap().get(), 7);
    assert_eq!(wc.src_qp().unwrap().get(), 8);
    assert_eq!(wc.slid().unwrap(), 9);
    assert_eq!(wc.sl().unwrap(), 3);
    assert_eq!(wc.dlid_path_bits().unwrap(), 2);
    assert_eq!(wc.completion_ts().unwrap(), 1234);
    assert_eq!(wc.completion_wallclock_ns().unwrap(), 5678);
    assert_eq!(wc.cvlan().unwrap(), 42);
    assert_eq!(wc.flow_tag().unwrap(), 0xab_cdef);
    let (tag, private) = (1 << 40, 17);
    assert_eq!(wc.tm_info().unwrap(), TagMatch { tag, private });
    assert_eq!(wc.imm_data().unwrap(), None);
    assert!(polled.next().unwrap().is_none());
    assert!(polled.next().unwrap().is_none());
}

#[test]
fn single_threaded_cq_flag_reaches_the_device() {
    let fixture = Fixture::new();
    let single = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    let builder = || fixture.ctx.cq_ex_builder(4);
    // SAFETY: this test has one thread.
    let cq = unsafe { builder().single_threaded() }.create().unwrap();
    assert_eq!(fixture.fake.cq_flags(cq.handle()), single);
    let cq = builder().create().unwrap();
    assert_eq!(fixture.fake.cq_flags(cq.handle()), 0);
}

#[test]
fn wc_field_not_chosen_is_an_error() {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.cq_ex_builder(4).create().unwrap();
    assert_eq!(cq.fields(), WcFields::STANDARD);
    fixture.fake.push(&cq, wc(1, ibv_wc_opcode::IBV_WC_SEND));
    let mut polled = cq.poll().unwrap().unwrap();
    let wc = polled.next().unwrap().unwrap();
    let err = wc.completion_ts().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    assert_eq!(
        err.to_string(),
        "`ibv_wc_read_completion_ts` failed: \
         the queue was made without WcFields(COMPLETION_TIMESTAMP)"
    );
    assert!(wc.cvlan().is_err() && wc.flow_tag().is_err() && wc.tm_info().is_err());
}

fn take<SW, RW>(cq: &mut ExtendedCq, qp: &mut QueuePair<verbs::Rc, Rts, SW, RW>) -> Vec<String>
where
    RW: AsRef<[u8]>,
{
    let mut completed = Vec::new();
    if let Some(mut polled) = cq.poll().unwrap() {
        while let Some(wc) = polled.next().unwrap() {
            completed.push(match qp.complete(wc.into_work_completion()) {
                Ok(Completed::Send(done)) => format!("sent {:?}", done.status()),
                Ok(Completed::Receive(done)) => {
                    let text =
                        String::from_utf8_lossy(done.received().unwrap_or_default()).into_owned();
                    format!("{text} {:?}", done.imm_data())
                }
                Err(_) => "foreign".to_owned(),
            });
        }
    }
    completed
}

#[test]
fn extended_cq_completes_work() {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.cq_ex_builder(8).waitable().create().unwrap();
    let qp = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let qp = qp.max_send_wr(2).max_recv_wr(2).create().unwrap();
    assert_eq!(cq.available(), 4);
    let mut qp = fixture.connect(qp);
    let buf = |len| fixture.pd.alloc_buf(len).unwrap();
    qp.post(op::Send::new(buf(4))).unwrap();
    qp.post_recv(buf(16)).unwrap();
    qp.post_recv(buf(16)).unwrap();
    let fake = &fixture.fake;
    fake.complete_receive_with(qp.qp_num(), b"hello", |wc| {
        wc.wc_flags = ibv_wc_flags::IBV_WC_WITH_IMM.0;
        wc.__bindgen_anon_1.imm_data = ibverbs_sys::__be32::from_ne(77);
    });
    fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    assert_eq!(take(&mut cq, &mut qp), ["hello Some(77)", "sent SUCCESS"]);
    assert_eq!(take(&mut cq, &mut qp), [""; 0]);

    // With a wait, and flushed works.
    let short = Some(Duration::from_millis(20));
    assert!(cq.wait(short).unwrap().is_none());
    qp.to_error().unwrap();
    // Completions not taken are returned again.
    assert!(cq.wait(None).unwrap().is_some());
    qp.post(op::Send::new(buf(1))).unwrap();
    assert_eq!(take(&mut cq, &mut qp), [" None", "sent WR_FLUSH_ERR"]);
}

/// A queue with completions of these requests, not posted by any queue pair.
fn with_completions(fixture: &Fixture, requests: u64) -> ExtendedCq {
    let cq = fixture.ctx.cq_ex_builder(16).batch(2).create().unwrap();
    for wr_id in 0..requests {
        let completion = wc(wr_id << 32, ibv_wc_opcode::IBV_WC_SEND);
        fixture.fake.push(&cq, completion);
    }
    cq
}

/// Takes the next completion of a poll, and identifies its queue pair.
fn next_of(polled: &mut ExtendedPoll<'_>) -> Option<QpId> {
    let completed = polled.next().unwrap();
    completed.map(|completion| completion.qp_id())
}

#[test]
fn dropped_forgotten_or_panicked_poll_loses_no_completion() {
    let ways: [fn(ExtendedPoll<'_>); 4] = [
        |_dropped| (),
        #[expect(clippy::forget_non_drop, reason = "that is the test")]
        |polled| mem::forget(polled),
        |polled| {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _polled = polled;
                panic!("in the middle of a poll");
            }));
            assert!(panicked.is_err());
        },
        |polled| {
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    let _polled = polled;
                });
            });
        },
    ];
    for way in ways {
        let fixture = Fixture::new();
        let mut cq = with_completions(&fixture, 5);
        let mut ids = Vec::new();
        while let Some(mut polled) = cq.poll().unwrap() {
            ids.extend(next_of(&mut polled));
            way(polled);
        }
        assert_eq!(ids.len(), 5);
        ids.dedup();
        assert_eq!(ids.len(), 5, "each comes once");
    }
}

#[test]
fn extended_poll_continues_until_the_cq_is_empty() {
    let fixture = Fixture::new();
    let mut cq = with_completions(&fixture, 5);
    let mut polled = cq.poll().unwrap().unwrap();
    let ids: Vec<QpId> = std::iter::from_fn(|| next_of(&mut polled)).collect();
    assert_eq!(ids.len(), 5);
    assert_eq!(next_of(&mut polled), None);
    assert!(cq.poll().unwrap().is_none());
}

/// The provider may hold the queue's lock from `ibv_start_poll` to `ibv_end_poll`: the fake reports
/// a call that would block on the lock.
#[test]
fn provider_holds_no_lock_during_extended_poll() {
    for forgotten in [false, true] {
        let fixture = Fixture::new();
        let mut cq = fixture.ctx.cq_ex_builder(64).waitable().create().unwrap();
        let handle = cq.handle().clone();
        let make = || {
            let builder = fixture.pd.qp_builder::<verbs::Rc>(&handle, &handle);
            let builder = builder.max_send_wr(2).max_recv_wr(2);
            fixture.connect::<Buf, Buf>(builder.create().unwrap())
        };
        let mut queue_pairs = [make(), make(), make()];
        let mut wq = fixture.pd.wq_builder(&handle).create().unwrap();
        let buf = || fixture.pd.alloc_buf(4).unwrap();
        queue_pairs[0].post(op::Send::new(buf())).unwrap();
        let number = queue_pairs[0].qp_num();
        fixture.fake.complete_send(number, WcStatus::SUCCESS);
        let mut polled = cq.poll().unwrap().unwrap();
        assert!(next_of(&mut polled).is_some());
        let rest = if forgotten {
            #[expect(clippy::forget_non_drop, reason = "that is the test")]
            mem::forget(polled);
            None
        } else {
            Some(polled)
        };
        let [mut first, mut second, third] = queue_pairs;
        for _ in 0..2 {
            second.post(op::Send::new(buf())).unwrap();
            second.post_recv(buf()).unwrap();
        }
        assert!(second.post(op::Send::new(buf())).is_err(), "it is full");
        let before_reset = second.id();
        drop(second.to_reset().unwrap());
        first.to_error().unwrap();
        drop(first);
        third.destroy().unwrap();
        handle.req_notify(Notify::Next).unwrap();
        wq.to_ready().unwrap();
        drop(wq);
        if let Some(mut rest) = rest {
            // The completions left by the reset.
            while let Some(id) = next_of(&mut rest) {
                assert_eq!(id, before_reset);
            }
        }
        cq.resize(99).unwrap();
    }
}

#[test]
fn failed_poll_completes_nothing() {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.cq_ex_builder(4).create().unwrap();
    fixture.fake.push(&cq, wc(1, ibv_wc_opcode::IBV_WC_SEND));
    fixture.fake.fail(Call::StartPoll, libc::EIO);
    assert_eq!(cq.poll().unwrap_err().raw_os_error(), Some(libc::EIO));
    fixture.fake.fail(Call::NextPoll, libc::EINVAL);
    let mut polled = cq.poll().unwrap().unwrap();
    assert!(polled.next().unwrap().is_some());
    let err = polled.next().unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert!(polled.next().unwrap().is_none());
    assert!(cq.poll().unwrap().is_none(), "the failure is reported once");
}

#[test]
fn extended_poll_with_false_completion_stops() {
    let fixture = Fixture::new();
    fixture
        .fake
        .describe(|device| device.attr.orig_attr.vendor_id = 0xff_ffff);
    let mut cq = with_completions(&fixture, 3);
    let mut polled = cq.poll().unwrap().unwrap();
    let ids: Vec<QpId> = std::iter::from_fn(|| next_of(&mut polled)).collect();
    assert_eq!(ids.len(), 3);
    let mended = ibverbs_sys::late::ibv_reg_mr_ex().is_some();
    assert_eq!(fixture.fake.next_polls() > 0, mended);
}

#[test]
fn extended_queues_share_a_channel_with_others() {
    let fixture = Fixture::new();
    let channel = fixture.ctx.create_comp_channel().unwrap();
    let extended = fixture.ctx.cq_ex_builder(4).channel(&channel, CqKey(5));
    let mut extended = extended.comp_vector(1).create().unwrap();
    let plain = fixture.ctx.cq_builder(4).channel(&channel, CqKey(6));
    let plain = plain.create().unwrap();
    let send = ibv_wc_opcode::IBV_WC_SEND;
    extended.req_notify(Notify::Next).unwrap();
    plain.req_notify(Notify::Next).unwrap();
    fixture.fake.push(&plain, wc(0, send));
    fixture.fake.push(&extended, wc(0, send));
    assert_eq!(channel.wait().unwrap(), CqKey(6));
    assert_eq!(channel.wait().unwrap(), CqKey(5));
    assert_eq!(channel.try_next().unwrap(), None);
    assert_eq!(
        extended.wait(None).map(drop).map_err(|err| err.kind()),
        Ok(())
    );
}

#[test]
fn extended_cq_with_unsupported_options_is_an_error() {
    let fixture = Fixture::new();
    fixture.fake.fail(Call::CreateCqEx, libc::EOPNOTSUPP);
    let err = fixture.ctx.cq_ex_builder(4).create().unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert!(
        err.to_string()
            .starts_with("`ibv_create_cq_ex` failed (4 entries, vector 0, with")
    );
    let mut cq = fixture.ctx.cq_ex_builder(4).create().unwrap();
    assert_eq!(cq.wait(None).unwrap_err().kind(), ErrorKind::Unsupported);
    cq.resize(9).unwrap();
    assert_eq!(cq.capacity(), 9);
}

/// Every call that reserves entries of a completion queue.
#[test]
fn refusal_for_missing_entries_names_the_call_and_the_numbers() {
    let fixture = Fixture::new();
    fixture.fake.describe(|device| {
        device.attr.tm_caps.max_num_tags = 8;
        device.attr.tm_caps.max_ops = 8;
        device.attr.tm_caps.max_sge = 1;
    });
    let pd = &fixture.pd;
    let cq = fixture.ctx.create_cq(3).unwrap();
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let capacity = TagMatchingCapacity {
        max_wr: 1,
        max_sge: 1,
        max_num_tags: 1,
        max_ops: 2,
    };
    let mut wq = pd.wq_builder(&cq).max_wr(1).create().unwrap();
    wq.to_ready().unwrap();
    wq.post(pd.alloc_buf(1).unwrap()).unwrap();
    let mut srq: SharedReceiveQueue = pd.create_srq(1, 1).unwrap();
    let qp = || pd.qp_builder::<verbs::Rc>(&cq, &cq).max_send_wr(1);
    let mut shared: QueuePair<verbs::Rc, Rts> = fixture.connect(qp().srq(&srq).create().unwrap());
    shared
        .post(op::Send::new(pd.alloc_buf(1).unwrap()))
        .unwrap();
    assert_eq!(cq.available(), 0);
    let other: SharedReceiveQueue = pd.create_srq(1, 1).unwrap();
    let refusals = [
        (qp().create().map(drop), "ibv_create_qp"),
        (
            qp().max_send_wr(0).srq(&other).create().map(drop),
            "ibv_create_qp",
        ),
        (pd.wq_builder(&cq).create().map(drop), "ibv_create_wq"),
        (
            pd.create_xrc_srq::<Buf>(&xrcd, &cq, 1, 1).map(drop),
            "ibv_create_srq_ex",
        ),
        (
            pd.create_tag_matching::<Buf>(&cq, capacity).map(drop),
            "ibv_create_srq_ex",
        ),
        (srq.resize(2), "ibv_modify_srq"),
        (wq.to_reset().map(drop), "ibv_modify_wq"),
        (
            shared.to_reset().map(drop).map_err(|refused| refused.error),
            "ibv_modify_qp",
        ),
    ];
    for (refused, call) in refusals {
        let error = refused.unwrap_err();
        assert_eq!(error.call(), call, "{error}");
        for part in [
            "0 of 3 entries left",
            "needed",
            "make the completion queue larger",
        ] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

/// A queue pair that has not been created has left nothing in the queue.
#[test]
fn failed_queue_pair_gives_its_entries_back_at_once() {
    let fixture = Fixture::new();
    let cq = fixture.ctx.create_cq(8).unwrap();
    let srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let create = || {
        let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
        builder.max_send_wr(4).create()
    };
    fixture.fake.fail(Call::CreateQp, libc::ENOMEM);
    assert!(create().is_err());
    assert_eq!(cq.available(), 8);
    let qp = create().unwrap();
    assert_eq!(cq.available(), 0);
    drop(qp);
    // Receives may have completed in the queue.
    assert_eq!(cq.available(), 4);
}

/// According to `ibv_poll_cq(3)`, few fields of a failed completion are written.
#[test]
fn failed_completion_shows_no_memory_of_the_allocator() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf> = fixture.rc(&cq, 1);
    qp.post(op::Send::new(fixture.pd.alloc_buf(1).unwrap()))
        .unwrap();
    fixture
        .fake
        .complete_send(qp.qp_num(), WcStatus::LOC_PROT_ERR);
    let wc = cq.poll().unwrap().next().unwrap();
    assert_eq!(
        (wc.status(), wc.qp_num()),
        (WcStatus::LOC_PROT_ERR, qp.qp_num())
    );
    assert_eq!((wc.byte_len(), wc.slid(), wc.sl()), (0, None, None));
    assert_eq!(
        (wc.src_qp(), wc.imm_data(), wc.invalidated_rkey()),
        (None, None, None)
    );
    assert!(format!("{wc:?}").contains("byte_len: 0"), "{wc:?}");
}

/// Flags and numbers of an earlier message stay in the memory of a device that does not set them.
#[test]
fn failed_receive_shows_no_field_of_a_message() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut wc = wc(1 << 25, ibv_wc_opcode::IBV_WC_RECV);
    wc.qp_num = 7;
    wc.vendor_err = 0x77;
    wc.byte_len = 99;
    wc.src_qp = 8;
    wc.slid = 9;
    wc.sl = 3;
    wc.__bindgen_anon_1.invalidated_rkey = 5;
    wc.wc_flags = !0;
    fixture.fake.push(&cq, wc);
    let done = cq.poll().unwrap().next().unwrap();
    let message = (done.imm_data(), done.invalidated_rkey(), done.has_grh());
    assert_eq!(message, (Some(u32::from_be(5)), Some(5), true));
    assert_eq!((done.byte_len(), done.opcode()), (99, Some(WcOpcode::RECV)));
    wc.status = ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    fixture.fake.push(&cq, wc);
    let done = cq.poll().unwrap().next().unwrap();
    assert_eq!((done.qp_num().get(), done.vendor_err()), (7, 0x77));
    let message = (done.imm_data(), done.invalidated_rkey(), done.has_grh());
    assert_eq!(message, (None, None, false));
    assert_eq!((done.src_qp(), done.slid(), done.sl()), (None, None, None));
    assert_eq!((done.byte_len(), done.opcode()), (0, None));
    let refused = fixture.pd.vector_from_wc(&done, &[0; 40], 1).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let refused = fixture
        .pd
        .create_ah_from_wc(&done, &[0; 40], 1)
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

/// A request to send has no message. The device may have left fields of an earlier one.
#[test]
fn completed_send_shows_no_field_of_a_message() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let mut wc = wc(1, ibv_wc_opcode::IBV_WC_SEND);
    wc.src_qp = 8;
    wc.slid = 9;
    wc.sl = 3;
    wc.wc_flags = !0;
    fixture.fake.push(&cq, wc);
    let done = cq.poll().unwrap().next().unwrap();
    let message = (done.imm_data(), done.invalidated_rkey(), done.has_grh());
    assert_eq!(message, (None, None, false));
    assert_eq!((done.src_qp(), done.slid(), done.sl()), (None, None, None));
    assert_eq!(done.opcode(), Some(WcOpcode::SEND));
}

#[test]
fn failed_extended_completion_refuses_the_fields_of_a_message() {
    let fixture = Fixture::new();
    let every = WcFields::all();
    let mut cq = fixture.ctx.cq_ex_builder(4).with(every).create().unwrap();
    let mut wc = wc(1 << 25, ibv_wc_opcode::IBV_WC_RECV);
    wc.status = ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    wc.qp_num = 7;
    wc.vendor_err = 0x77;
    wc.wc_flags = !0;
    fixture
        .fake
        .push_extended(cq.as_raw(), wc, Extra::default());
    let mut polled = cq.poll().unwrap().unwrap();
    let wc = polled.next().unwrap().unwrap();
    assert_eq!((wc.qp_num().unwrap().get(), wc.vendor_err()), (7, 0x77));
    assert_eq!((wc.opcode(), wc.imm_data().unwrap()), (None, None));
    let refusals = [
        wc.byte_len().map(drop),
        wc.src_qp().map(drop),
        wc.slid().map(drop),
        wc.sl().map(drop),
        wc.dlid_path_bits().map(drop),
        wc.completion_ts().map(drop),
        wc.completion_wallclock_ns().map(drop),
        wc.cvlan().map(drop),
        wc.flow_tag().map(drop),
        wc.tm_info().map(drop),
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(error.to_string().contains("WR_FLUSH_ERR"), "{error}");
    }
    let plain = wc.into_work_completion();
    assert_eq!(
        (plain.imm_data(), plain.has_grh(), plain.byte_len()),
        (None, false, 0)
    );
}

#[test]
fn batch_of_any_size_fits_into_memory() {
    let fixture = Fixture::new();
    let mut cq = fixture
        .ctx
        .cq_builder(8)
        .batch(usize::MAX)
        .create()
        .unwrap();
    assert_eq!(cq.poll().unwrap().len(), 0);
    let extended = fixture.ctx.cq_ex_builder(8).batch(u32::MAX);
    assert!(extended.create().unwrap().poll().unwrap().is_none());
}
