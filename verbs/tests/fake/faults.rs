//! Device failures in the middle of an operation, and completions in unusual orders.

use std::rc::Rc as Shared;

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Buf, Completed, RemoteAccess, SharedReceiveQueue, WcStatus,
    event::{EventObject, EventType},
    mw::WindowType,
    op,
    work::With,
};

use crate::{
    fixture::{Fixture, error_text},
    provider::wc,
};

/// The vendor's number.
const SOFT_ROCE: u32 = 0xff_ffff;

type Numbered = With<Buf, u32>;

fn numbered(fixture: &Fixture, number: u32) -> Numbered {
    With::new(fixture.pd.alloc_buf(4).unwrap(), number)
}

#[test]
fn failed_batch_returns_the_unposted_works() {
    const DEPTH: u32 = 6;
    for (staged, failing) in (1..=DEPTH).flat_map(|n| (0..n).map(move |i| (n, i))) {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(16);
        let mut qp = fixture.rc::<Numbered, Buf>(&cq, DEPTH);
        let fake = &fixture.fake;
        fake.fail_after(failing as usize, Call::PostSend, libc::EFAULT);
        let mut batch = qp.batch();
        for number in 0..staged {
            let request = op::Send::new(numbered(&fixture, number));
            batch.push(request.unsignaled()).unwrap();
        }
        let refused = batch.post().unwrap_err();
        assert_eq!(
            error_text(&refused.error),
            format!(
                "`ibv_post_send` failed (request {failing} of {staged}, counting from 0): \
                 Bad address (os error 14)"
            )
        );
        let numbers: Vec<_> = refused.value.iter().map(|work| work.context).collect();
        assert_eq!(numbers, (failing..staged).collect::<Vec<_>>());
        assert_eq!(fake.sends(qp.qp_num()).len(), failing as usize);
        assert_eq!(qp.send_queue().in_flight(), failing as usize);
        // The posted requests complete together with later ones.
        qp.post(op::Send::new(numbered(&fixture, 99))).unwrap();
        for _ in 0..=failing {
            fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        }
        let mut numbers = Vec::new();
        for wc in cq.poll().unwrap() {
            let mut earlier = Vec::new();
            let done = qp.complete_each(wc, |work: Numbered| earlier.push(work.context));
            let done = done.unwrap();
            numbers.extend(earlier);
            numbers.push(done.work().unwrap().context);
        }
        assert_eq!(numbers, (0..failing).chain([99]).collect::<Vec<_>>());
    }
}

#[test]
fn repeatedly_failing_batches_never_fill_the_queue() {
    const DEPTH: u32 = 6;
    let plans = (1..=3).flat_map(|staged| (0..staged).map(move |failing| (staged, failing)));
    for ((staged, failing), single) in plans.flat_map(|plan| (0..3).map(move |n| (plan, n))) {
        let fixture = Fixture::new();
        let fake = &fixture.fake;
        let mut cq = fixture.cq(16);
        let mut qp = fixture.rc::<Numbered, Buf>(&cq, DEPTH);
        let request = || op::Send::new(numbered(&fixture, 0)).unsignaled();
        for round in 0..20 {
            fake.fail_after(failing, Call::PostSend, libc::EIO);
            let mut batch = qp.batch();
            for _ in 0..staged {
                batch.push(request()).unwrap();
            }
            assert!(batch.post().is_err());
            for _ in 0..single {
                qp.post(request()).unwrap();
            }
            while !fake.sends(qp.qp_num()).is_empty() {
                fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
            }
            for wc in cq.poll().unwrap() {
                assert!(qp.complete(wc).is_ok());
            }
            let in_flight = qp.send_queue().in_flight();
            assert!(
                in_flight < DEPTH as usize / 2,
                "{in_flight} in flight in round {round}"
            );
        }
    }
}

#[test]
fn failed_shared_receive_returns_the_work() {
    for failing in 0..4 {
        let fixture = Fixture::new();
        let mut srq = fixture.pd.create_srq::<Numbered>(4, 1).unwrap();
        let call = Call::PostSrqRecv;
        fixture
            .fake
            .fail_after(failing as usize, call, libc::ENOMEM);
        for number in 0..4 {
            let posted = srq.post(numbered(&fixture, number));
            assert_eq!(posted.is_err(), number == failing);
            if let Err(refused) = posted {
                assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
                assert_eq!(refused.value.unwrap().context, number);
            }
        }
        assert_eq!(srq.in_flight(), 3);
        // The slot is free.
        srq.post(numbered(&fixture, 4)).unwrap();
        assert!(srq.post(numbered(&fixture, 5)).is_err());
        assert_eq!(fixture.fake.srq_receives(srq.as_raw()).len(), 4);
    }
}

/// Every order of the numbers below `n`.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    let Some(last) = n.checked_sub(1) else {
        return vec![Vec::new()];
    };
    let insert = |order: Vec<usize>| {
        (0..n).map(move |at| {
            let mut order = order.clone();
            order.insert(at, last);
            order
        })
    };
    permutations(last).into_iter().flat_map(insert).collect()
}

/// Completes a shared queue's receive with this identifier.
fn receive_wc(wr_id: u64, qp: u32) -> ffi::ibv_wc {
    let mut wc = wc(wr_id, ffi::ibv_wc_opcode::IBV_WC_RECV);
    wc.qp_num = qp;
    wc
}

#[test]
fn shared_receives_complete_in_any_order() {
    for order in permutations(4) {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(32);
        let mut srq: SharedReceiveQueue<Numbered> = fixture.pd.create_srq(4, 1).unwrap();
        let qp = || {
            let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
            builder.create_for::<Buf, ()>().unwrap()
        };
        let mut qps = [fixture.connect(qp()), fixture.connect(qp())];
        // Twice, so that the slots are reused in completion order.
        for round in 0..2 {
            for number in 0..4 {
                srq.post(numbered(&fixture, round * 10 + number)).unwrap();
            }
            let posted = fixture.fake.take_srq_receives(srq.as_raw());
            for &i in &order {
                let number = qps[i % 2].qp_num().get();
                let wc = receive_wc(posted[i].wr_id, number);
                fixture.fake.push(&cq, wc);
                // A repeated completion finds nothing.
                fixture.fake.push(&cq, wc);
            }
            let (mut numbers, mut refused) = (Vec::new(), 0);
            for wc in cq.poll().unwrap() {
                // The queue pairs have no receives of their own.
                let wc = qps[0].complete(wc).unwrap_err();
                let wc = qps[1].complete(wc).unwrap_err();
                match srq.complete(wc) {
                    Ok(done) => numbers.push(done.work().unwrap().context as usize),
                    Err(_) => refused += 1,
                }
            }
            let base = round as usize * 10;
            let expected: Vec<_> = order.iter().map(|i| base + i).collect();
            assert_eq!((numbers, refused), (expected, 4));
            assert_eq!(srq.in_flight(), 0);
        }
    }
}

/// A repeated completion arrives after another receive has taken over the slot.
#[test]
fn stale_completions_of_shared_receives_are_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(32);
    let mut srq: SharedReceiveQueue<Numbered> = fixture.pd.create_srq(3, 1).unwrap();
    let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
    let qp = fixture.connect(builder.create_for::<Buf, ()>().unwrap());
    let mut stale = Vec::new();
    for round in 0..40 {
        // In between, the queue grows, and shrinks.
        match round {
            10 => srq.resize(5).unwrap(),
            20 => srq.resize(2).unwrap(),
            30 => srq.resize(9).unwrap(),
            _ => {}
        }
        while srq.in_flight() < srq.capacity() {
            srq.post(numbered(&fixture, round)).unwrap();
        }
        let first = fixture.fake.srq_receives(srq.as_raw())[0].wr_id;
        for &wr_id in &stale {
            fixture.fake.push(&cq, receive_wc(wr_id, qp.qp_num().get()));
            let wc = cq.poll().unwrap().next().unwrap();
            assert!(srq.complete(wc).is_err(), "in round {round}");
        }
        fixture.fake.complete_receive(qp.qp_num(), b"x");
        let wc = cq.poll().unwrap().next().unwrap();
        assert!(srq.complete(wc).is_ok());
        stale.push(first);
        while round == 19 && srq.in_flight() > 2 {
            fixture.fake.complete_receive(qp.qp_num(), b"x");
            let wc = cq.poll().unwrap().next().unwrap();
            drop(srq.complete(wc).unwrap());
        }
    }
}

#[test]
fn shared_receives_of_a_failed_queue_pair_complete_or_stay() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(32);
    let mut srq: SharedReceiveQueue<Numbered> = fixture.pd.create_srq(4, 1).unwrap();
    let builder = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq);
    let mut qp = fixture.connect(builder.create_for::<Buf, ()>().unwrap());
    for number in 0..3 {
        srq.post(numbered(&fixture, number)).unwrap();
    }
    // The queue pair had consumed one of them before its failure. The others belong to the queue.
    let posted = fixture.fake.srq_receives(srq.as_raw());
    qp.to_error().unwrap();
    let mut flushed = receive_wc(posted[1].wr_id, qp.qp_num().get());
    flushed.status = ffi::ibv_wc_status::IBV_WC_WR_FLUSH_ERR;
    fixture.fake.push(&cq, flushed);
    let done = srq.complete(cq.poll().unwrap().next().unwrap()).unwrap();
    let failed = done.received().unwrap_err();
    assert_eq!(failed.status, WcStatus::WR_FLUSH_ERR);
    assert_eq!(done.work().unwrap_err(), failed);
    assert_eq!(done.into_work().unwrap_err().work.context, 1);
    drop(qp);
    assert_eq!(srq.in_flight(), 2);
}

#[test]
fn queue_pair_with_a_failed_destroy_still_works() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut qp = fixture.rc::<Numbered, Numbered>(&cq, 4);
    qp.post(op::Send::new(numbered(&fixture, 1))).unwrap();
    qp.post_recv(numbered(&fixture, 2)).unwrap();
    fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
    let refused = qp.destroy().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EBUSY));
    let mut qp = refused.value.unwrap();
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let wc = cq.poll().unwrap().next().unwrap();
    assert!(
        matches!(qp.complete(wc), Ok(Completed::Send(done)) if done.work().unwrap().context == 1)
    );
    let leftover = qp.destroy().map_err(|refused| refused.error).unwrap();
    assert_eq!((leftover.send.len(), leftover.receive[0].context), (0, 2));
}

/// The providers of Soft-iWARP and of ocrdma unmap or free the queues first.
#[test]
fn queue_pair_without_queues_is_not_used_after_its_failed_destroy() {
    for vendor in [0x62_6d74, 0x10df] {
        let destroys = |fixture: &Fixture| {
            let calls = fixture.fake.calls();
            calls.iter().filter(|c| **c == Call::DestroyQp).count()
        };
        let fixture = Fixture::new();
        let fake = &fixture.fake;
        fake.describe(|device| device.attr.orig_attr.vendor_id = vendor);
        let mut cq = fixture.cq(16);
        let token = Shared::new(());
        let connected = || {
            let mut qp = fixture.rc::<With<Buf, Shared<()>>, Buf>(&cq, 2);
            let work = With::new(fixture.pd.alloc_buf(4).unwrap(), Shared::clone(&token));
            qp.post(op::Send::new(work)).unwrap();
            qp
        };
        let (destroyed, dropped) = (connected(), connected());
        fake.fail(Call::DestroyQp, libc::EBUSY);
        let refused = destroyed.destroy().unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::EBUSY));
        assert!(refused.value.is_none());
        assert_eq!(destroys(&fixture), 1);
        fake.fail(Call::DestroyQp, libc::EBUSY);
        drop(dropped);
        assert_eq!(destroys(&fixture), 2);
        assert_eq!(Shared::strong_count(&token), 3, "the works are leaked");
        assert_eq!(cq.poll().unwrap().count(), 0);
    }
}

#[test]
fn broken_cq_is_reported_and_its_work_returns_at_destroy() {
    let fixture = Fixture::new();
    let events = fixture.ctx.async_events().unwrap();
    let mut cq = fixture.cq(16);
    let token = Shared::new(());
    let mut qp = fixture.rc::<With<Buf, Shared<()>>, Buf>(&cq, 4);
    for _ in 0..3 {
        let buf = fixture.pd.alloc_buf(4).unwrap();
        let work = With::new(buf, Shared::clone(&token));
        qp.post(op::Send::new(work)).unwrap();
    }
    let raw = cq.as_raw().expose_provenance();
    fixture
        .fake
        .raise(ffi::ibv_event_type::IBV_EVENT_CQ_ERR, raw);
    for _ in 0..3 {
        fixture.fake.poll_returns(&cq, -1);
    }
    let event = events.wait().unwrap();
    assert_eq!(event.event_type, EventType::CQ_ERR);
    assert_eq!(event.object, EventObject::Cq(cq.kernel_handle()));
    assert!(cq.poll().is_err());
    assert!(cq.wait(None).is_err());
    assert!(cq.poll_or_arm().is_err());
    assert_eq!(Shared::strong_count(&token), 4, "nothing has completed");
    let leftover = qp.destroy().map_err(|refused| refused.error).unwrap();
    assert_eq!(leftover.send.len(), 3);
    drop(leftover);
    assert_eq!(Shared::strong_count(&token), 1);
}

#[test]
fn window_binding_with_a_failed_doorbell_stays_posted() {
    let fixture = Fixture::new();
    let fake = &fixture.fake;
    fake.describe(|device| device.attr.orig_attr.vendor_id = SOFT_ROCE);
    let mut cq = fixture.cq(8);
    let mut qp = fixture.rc::<Numbered, Buf>(&cq, 4);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    for window_type in [WindowType::Type1, WindowType::Type2] {
        let mut window = fixture.pd.alloc_mw(window_type).unwrap();
        let before = window.rkey();
        let mut bind = |number| {
            let access = RemoteAccess::READ;
            let bound = qp.bind_window(&mut window, &region, access, numbered(&fixture, number));
            (bound, window.rkey())
        };

        // Not posted: the state is unchanged.
        fake.fail(Call::PostSend, libc::EINVAL);
        let (bound, rkey) = bind(1);
        let refused = bound.unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(refused.value.unwrap().context, 1);
        assert_eq!(rkey, before);

        // Posted: the work stays in flight, and the window has its new key.
        fake.fail(Call::Doorbell, libc::ENOSPC);
        let (bound, rkey) = bind(2);
        assert_eq!(bound.unwrap().rkey, rkey);
        assert_ne!(rkey, before);
        let doorbell = qp.take_doorbell_error().unwrap();
        assert_eq!(doorbell.raw_os_error(), Some(libc::ENOSPC));
        assert_eq!(qp.send_queue().in_flight(), 1);
        fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        let wc = cq.poll().unwrap().next().unwrap();
        let done = qp.complete(wc).unwrap();
        assert!(matches!(done, Completed::Send(done) if done.work().unwrap().context == 2));
    }
}

#[test]
fn failed_post_without_bad_request_keeps_the_work_in_flight() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp = fixture.rc::<Numbered, Buf>(&cq, 4);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type1).unwrap();
    // Providers other than Soft-RoCE's have posted nothing after a failure.
    fixture.fake.fail(Call::BindMw, libc::EINVAL);
    let work = numbered(&fixture, 1);
    let refused = qp.bind_window(&mut window, &region, RemoteAccess::READ, work);
    assert_eq!(
        refused.unwrap_err().error.raw_os_error(),
        Some(libc::EINVAL)
    );
    assert_eq!(qp.send_queue().in_flight(), 0);
}
