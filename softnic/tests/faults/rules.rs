//! Each rule of an adversarial device: a kind device never shows the behaviour, an adversary does in some rounds.

use std::{
    ffi::c_int,
    os::fd::BorrowedFd,
    ptr,
    time::{Duration, Instant},
};

use ibverbs_sys::{self as ffi, ibv_send_flags, ibv_wc_opcode, ibv_wc_status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softnic::{Fabric, Rule};

use crate::raw::{
    ALL_RIGHTS, Bytes, End, Pair, READ, SEND, Sizes, WRITE, c, element_of, remote_request, request,
};

/// Number of rounds: an adversary decides for each behaviour with a probability of a quarter at least.
pub(crate) const ROUNDS: u64 = 48;

/// Two hosts whose devices have a rule, or are kind.
pub(crate) fn pair(rule: Option<Rule>, sizes: Sizes) -> Pair {
    pair_of(7, rule, sizes)
}

/// Two such hosts with a seed, for behaviour with one decision for each queue pair.
pub(crate) fn pair_of(seed: u64, rule: Option<Rule>, sizes: Sizes) -> Pair {
    let fabric = Fabric::seeded(seed);
    Pair::new(
        match rule {
            Some(rule) => fabric.rule(rule),
            None => fabric,
        },
        sizes,
    )
}

/// Asserts that `count` is 0 on kind devices, and is not on those with the rule.
pub(crate) fn shown_by(rule: Rule, count: impl Fn(Option<Rule>) -> u64) {
    assert_eq!(count(None), 0, "a kind device behaves as one with {rule}");
    assert_ne!(count(Some(rule)), 0, "{rule} has no effect");
}

#[test]
fn opcode_of_a_failed_completion_is_undefined() {
    shown_by(Rule::StaleFields, |rule| {
        let pair = pair(rule, Sizes::default());
        let bytes = Bytes::new(64, 0);
        let mut sge = element_of(pair.a.register(&bytes, ALL_RIGHTS));
        (0..16).for_each(|wr_id| assert_eq!(pair.a.recv(wr_id, &mut sge), 0));
        pair.a.fail();
        let wrong = (0..16).filter(|wr_id| {
            let wc = pair.a.wait();
            // The corrected program: these fields are defined.
            assert_eq!(
                (wc.wr_id, wc.status),
                (*wr_id, ibv_wc_status::IBV_WC_WR_FLUSH_ERR)
            );
            assert_eq!(wc.qp_num, pair.a.qp_num());
            wc.opcode != ibv_wc_opcode::IBV_WC_RECV
        });
        wrong.count() as u64
    });
}

#[test]
fn length_of_a_send_completion_is_undefined() {
    shown_by(Rule::StaleFields, |rule| {
        let pair = pair(rule, Sizes::default());
        let (from, to) = (Bytes::new(64, 1), Bytes::new(64, 0));
        let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
        let mut to = element_of(pair.b.register(&to, ALL_RIGHTS));
        let wrong = (0..ROUNDS).filter(|wr_id| {
            assert_eq!(pair.b.recv(*wr_id, &mut to), 0);
            assert_eq!(pair.a.send(&mut request(SEND, *wr_id, &mut from)), 0);
            let (sent, received) = (pair.a.wait(), pair.b.wait());
            assert_eq!(
                (sent.opcode, sent.wr_id),
                (ibv_wc_opcode::IBV_WC_SEND, *wr_id)
            );
            assert_eq!(
                (received.opcode, received.byte_len),
                (ibv_wc_opcode::IBV_WC_RECV, 64)
            );
            sent.byte_len != 64
        });
        wrong.count() as u64
    });
}

/// Posts 40 writes to a queue of 16, and polls after each signaled one. Returns the number of refused posts.
fn refused_writes(rule: Option<Rule>, signaled_interval: u64) -> u64 {
    let pair = pair(rule, Sizes::default());
    let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
    let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
    let to = pair.b.register(&to, ALL_RIGHTS);
    let refused = (1..=40).filter(|wr_id| {
        let mut wr = remote_request(WRITE, *wr_id, &mut from, to);
        let is_signaled = wr_id % signaled_interval == 0;
        if !is_signaled {
            wr.send_flags = 0;
        }
        let ret = pair.a.send(&mut wr);
        if is_signaled && ret == 0 {
            pair.a.wait();
        }
        ret == libc::ENOMEM
    });
    refused.count() as u64
}

#[test]
fn slots_of_unsignaled_requests_stay_occupied() {
    shown_by(Rule::SlotAtPoll, |rule| refused_writes(rule, 1000));
    assert_eq!(refused_writes(Some(Rule::SlotAtPoll), 1000), 24);
    assert_eq!(refused_writes(Some(Rule::SlotAtPoll), 16), 0);
}

#[test]
fn slots_of_receives_are_free_once_polled() {
    shown_by(Rule::SlotAtPoll, |rule| {
        let pair = pair(rule, Sizes::default());
        let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
        let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
        let mut to = element_of(pair.b.register(&to, ALL_RIGHTS));
        (0..16).for_each(|wr_id| assert_eq!(pair.b.recv(wr_id, &mut to), 0));
        assert_eq!(pair.a.send(&mut request(SEND, 0, &mut from)), 0);
        pair.a.wait();
        // The message has arrived, but the receiver has not polled.
        let refused = pair.b.recv(16, &mut to) != 0;
        pair.b.wait();
        if refused {
            assert_eq!(pair.b.recv(17, &mut to), 0, "the slot is free");
        }
        u64::from(refused)
    });
}

/// Rounds with an event: those without a completion at the first poll after the event.
#[test]
fn event_comes_without_a_completion() {
    shown_by(Rule::Coalesced, |rule| {
        let sizes = Sizes {
            has_channel: true,
            ..Sizes::default()
        };
        let pair = pair(rule, sizes);
        let channel = pair.a.channel;
        let fd = c!((*channel).fd);
        let empty = (0..ROUNDS).filter(|_| {
            assert_eq!(c!(ffi::ibv_req_notify_cq(pair.a.cq, 0)), 0);
            // Nothing is posted: no completion can follow the event.
            let has_event = is_readable(fd);
            if has_event {
                let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
                let ret = c!(ffi::ibv_get_cq_event(
                    channel,
                    &raw mut cq,
                    &raw mut context
                ));
                assert_eq!(ret, 0);
                c!(ffi::ibv_ack_cq_events(cq, 1));
            }
            assert!(pair.a.poll().is_none());
            has_event
        });
        empty.count() as u64
    });
}

/// Whether a descriptor is readable now.
fn is_readable(fd: c_int) -> bool {
    // SAFETY: the channel is open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn reply_comes_before_the_completion_of_its_request() {
    shown_by(Rule::RecvBeforeSend, |rule| {
        let pair = pair(rule, Sizes::default());
        let (bytes_a, bytes_b) = (Bytes::new(8, 1), Bytes::new(8, 0));
        let mut a = element_of(pair.a.register(&bytes_a, ALL_RIGHTS));
        let mut b = element_of(pair.b.register(&bytes_b, ALL_RIGHTS));
        let early = (0..ROUNDS).filter(|_| {
            assert_eq!(pair.a.recv(1, &mut a), 0);
            assert_eq!(pair.b.recv(2, &mut b), 0);
            assert_eq!(pair.a.send(&mut request(SEND, 3, &mut a)), 0);
            while pair.b.wait().wr_id != 2 {}
            assert_eq!(pair.b.send(&mut request(SEND, 4, &mut b)), 0);
            assert_eq!(pair.b.wait().wr_id, 4);
            let order = [pair.a.wait().wr_id, pair.a.wait().wr_id];
            assert!(order == [1, 3] || order == [3, 1], "{order:?}");
            order == [1, 3]
        });
        early.count() as u64
    });
}

#[test]
fn flushes_of_the_two_queues_interleave() {
    shown_by(Rule::FlushOrder, |rule| {
        let mixed = (0..8).filter(|seed| {
            let pair = pair_of(*seed, rule, Sizes::default());
            let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
            let mut sge = element_of(pair.a.register(&from, ALL_RIGHTS));
            let to = pair.b.register(&to, ALL_RIGHTS);
            pair.b.fail();
            for wr_id in 0..4 {
                assert_eq!(pair.a.recv(100 + wr_id, &mut sge), 0);
                let mut wr = remote_request(WRITE, wr_id, &mut sge, to);
                assert_eq!(pair.a.send(&mut wr), 0);
            }
            pair.a.fail();
            let order: Vec<u64> = (0..8).map(|_| pair.a.wait().wr_id).collect();
            let (sends, receives): (Vec<_>, Vec<_>) = order.iter().partition(|id| **id < 100);
            assert_eq!((sends, receives), ((0..4).collect(), (100..104).collect()));
            order != [0, 1, 2, 3, 100, 101, 102, 103]
        });
        mixed.count() as u64
    });
}

#[test]
fn completions_of_a_destroyed_queue_pair_vanish() {
    shown_by(Rule::DestroyedCqes, |rule| {
        let lost = (0..ROUNDS / 4).filter(|seed| {
            let pair = pair_of(*seed, rule, Sizes::default());
            let bytes = Bytes::new(8, 0);
            let mut sge = element_of(pair.a.register(&bytes, ALL_RIGHTS));
            assert_eq!(pair.a.recv(1, &mut sge), 0);
            pair.a.fail();
            assert_eq!(c!(ffi::ibv_destroy_qp(pair.a.qp)), 0);
            pair.a.poll().is_none()
        });
        lost.count() as u64
    });
}

#[test]
fn local_key_is_no_remote_key() {
    let status = |rule, key: fn(*mut ffi::ibv_mr) -> u32| {
        let pair = pair(rule, Sizes::default());
        let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
        let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
        let to = pair.b.register(&to, ALL_RIGHTS);
        let mut wr = remote_request(WRITE, 1, &mut from, to);
        wr.wr.rdma.rkey = key(to);
        assert_eq!(pair.a.send(&mut wr), 0);
        pair.a.wait().status
    };
    shown_by(Rule::Keys, |rule| {
        u64::from(status(rule, |mr| c!((*mr).lkey)) == ibv_wc_status::IBV_WC_REM_ACCESS_ERR)
    });
    let correct = status(Some(Rule::Keys), |mr| c!((*mr).rkey));
    assert_eq!(correct, ibv_wc_status::IBV_WC_SUCCESS);
    shown_by(Rule::Keys, |rule| {
        let pair = pair(rule, Sizes::default());
        let bytes = Bytes::new(8, 0);
        let keys = (0..16).map(|_| c!((*pair.a.register(&bytes, 1)).rkey));
        keys.filter(|rkey| *rkey == 0).count() as u64
    });
}

#[test]
fn start_of_the_header_of_a_datagram_is_undefined() {
    shown_by(Rule::Grh, |rule| {
        let kind = ffi::ibv_qp_type::IBV_QPT_UD;
        let pair = pair(
            rule,
            Sizes {
                kind,
                ..Sizes::default()
            },
        );
        let (from, to) = (Bytes::new(8, 1), Bytes::new(48, 0));
        let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
        let mut sge = element_of(pair.b.register(&to, ALL_RIGHTS));
        let mut path = pair.a.path_to(&pair.b);
        let ah = c!(ffi::ibv_create_ah(pair.a.pd, &raw mut path));
        let garbage = (0..ROUNDS).map(|_| {
            assert_eq!(pair.b.recv(1, &mut sge), 0);
            let mut wr = request(SEND, 2, &mut from);
            (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (ah, pair.b.qp_num(), 7);
            assert_eq!(pair.a.send(&mut wr), 0);
            pair.a.wait();
            let mut wc = pair.b.wait();
            assert_eq!(wc.byte_len, 48);
            assert_eq!(to.get(20), 0x45, "the IPv4 header");
            // libibverbs recognizes the header among the garbage.
            let mut path = ffi::ibv_ah_attr::zeroed();
            let header = ptr::with_exposed_provenance_mut(usize::try_from(to.addr()).unwrap());
            let init = c!(ffi::ibv_init_ah_from_wc(
                pair.b.ctx,
                1,
                &raw mut wc,
                header,
                &raw mut path
            ));
            assert_eq!(init, 0);
            (0..20).filter(|at| to.get(*at) != 0).count() as u64
        });
        garbage.sum()
    });
}

#[test]
fn numbers_of_two_devices_are_equal() {
    shown_by(Rule::Colliding, |rule| {
        let pair = pair(rule, Sizes::default());
        let bytes = Bytes::new(8, 0);
        let keys = [&pair.a, &pair.b].map(|end| c!((*end.register(&bytes, ALL_RIGHTS)).rkey));
        u64::from(pair.a.qp_num() == pair.b.qp_num() && keys[0] == keys[1])
    });
}

/// Rounds in which the peer receives bytes written after the post; `waits` for the completion before the change.
fn changed_messages(rule: Option<Rule>, waits: bool) -> u64 {
    let pair = pair(rule, Sizes::default());
    let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
    let mut from_sge = element_of(pair.a.register(&from, ALL_RIGHTS));
    let mut to_sge = element_of(pair.b.register(&to, ALL_RIGHTS));
    let changed = (0..ROUNDS).filter(|wr_id| {
        from.set(0, 1);
        assert_eq!(pair.b.recv(*wr_id, &mut to_sge), 0);
        assert_eq!(pair.a.send(&mut request(SEND, *wr_id, &mut from_sge)), 0);
        if waits {
            pair.a.wait();
        }
        from.set(0, 2);
        if !waits {
            pair.a.wait();
        }
        pair.b.wait();
        to.get(0) == 2
    });
    changed.count() as u64
}

#[test]
fn memory_is_read_after_the_post() {
    shown_by(Rule::LateReads, |rule| changed_messages(rule, false));
    assert_eq!(changed_messages(Some(Rule::LateReads), true), 0);
}

/// Rounds in which a message has the bytes from before the read that was posted before it.
fn stale_messages(rule: Option<Rule>, flags: ibv_send_flags) -> u64 {
    let pair = pair(rule, Sizes::default());
    let (buffer, source, to) = (Bytes::new(8, 0), Bytes::new(8, 9), Bytes::new(8, 0));
    let mut sge = element_of(pair.a.register(&buffer, ALL_RIGHTS));
    let source = pair.b.register(&source, ALL_RIGHTS);
    let mut to_sge = element_of(pair.b.register(&to, ALL_RIGHTS));
    let stale = (0..ROUNDS).filter(|_| {
        buffer.set(0, 0);
        assert_eq!(pair.b.recv(1, &mut to_sge), 0);
        let mut other = sge;
        let mut read = remote_request(READ, 2, &mut sge, source);
        let mut send = request(SEND, 3, &mut other);
        send.send_flags |= flags.0;
        read.next = &raw mut send;
        assert_eq!(pair.a.send(&mut read), 0);
        assert_eq!([pair.a.wait().wr_id, pair.a.wait().wr_id], [2, 3]);
        pair.b.wait();
        to.get(0) == 0
    });
    stale.count() as u64
}

#[test]
fn send_without_fence_overtakes_a_read() {
    shown_by(Rule::Unfenced, |rule| {
        stale_messages(rule, ibv_send_flags(0))
    });
    let fence = ibv_send_flags::IBV_SEND_FENCE;
    assert_eq!(stale_messages(Some(Rule::Unfenced), fence), 0);
}

#[test]
fn flushed_receive_has_changed_bytes() {
    shown_by(Rule::Partial, |rule| {
        let changed = (0..ROUNDS / 4).filter(|seed| {
            let pair = pair_of(*seed, rule, Sizes::default());
            let bytes = Bytes::new(64, 5);
            let mut sge = element_of(pair.a.register(&bytes, ALL_RIGHTS));
            assert_eq!(pair.a.recv(1, &mut sge), 0);
            pair.a.fail();
            pair.a.wait();
            (0..64).any(|at| bytes.get(at) != 5)
        });
        changed.count() as u64
    });
}

#[test]
fn full_queue_is_reported_with_either_sign() {
    shown_by(Rule::ErrnoSign, |rule| {
        let pair = pair(rule, Sizes::default());
        let bytes = Bytes::new(8, 0);
        let mut sge = element_of(pair.a.register(&bytes, ALL_RIGHTS));
        (0..16).for_each(|wr_id| assert_eq!(pair.a.recv(wr_id, &mut sge), 0));
        let refusals: Vec<c_int> = (0..16).map(|wr_id| pair.a.recv(wr_id, &mut sge)).collect();
        assert!(refusals.iter().all(|ret| ret.abs() == libc::ENOMEM));
        refusals.iter().filter(|ret| **ret < 0).count() as u64
    });
}

/// A sleep never ends early, so the sum of the delays has a minimum.
#[test]
fn destroying_takes_time() {
    let pair = pair(Some(Rule::SlowTeardown), Sizes::default());
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let pd = c!(ffi::ibv_alloc_pd(pair.a.ctx));
        assert_eq!(c!(ffi::ibv_dealloc_pd(pd)), 0);
    }
    assert!(start.elapsed() > Duration::from_millis(ROUNDS / 2));
}

#[test]
fn creation_is_refused() {
    shown_by(Rule::Refusal, |rule| {
        let fabric = Fabric::seeded(7).keep_objects();
        let fabric = match rule {
            Some(rule) => fabric.rule(rule),
            None => fabric,
        };
        let ctx = open(&fabric);
        let refused = (0..ROUNDS).filter(|_| c!(ffi::ibv_alloc_pd(ctx)).is_null());
        refused.count() as u64
    });
}

/// The device of a new host.
fn open(fabric: &Fabric) -> *mut ffi::ibv_context {
    End::open(&fabric.host([10, 9, 0, 1].into()))
}

#[test]
fn list_fails_in_its_middle() {
    shown_by(Rule::Batch, |rule| {
        let pair = pair(rule, Sizes::default());
        let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
        let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
        let to = pair.b.register(&to, ALL_RIGHTS);
        let failed = (0..ROUNDS).filter(|_| {
            let mut second = remote_request(WRITE, 2, &mut from, to);
            let mut first = second;
            first.wr_id = 1;
            first.next = &raw mut second;
            let mut bad = ptr::null_mut();
            let ret = c!(ffi::ibv_post_send(pair.a.qp, &raw mut first, &raw mut bad));
            assert_eq!(
                pair.a.wait().wr_id,
                1,
                "the request before the failed one is posted"
            );
            if ret == 0 {
                assert_eq!(pair.a.wait().wr_id, 2);
            } else {
                assert_eq!((ret, bad), (libc::ENOMEM, &raw mut second));
                assert!(pair.a.poll().is_none());
            }
            ret != 0
        });
        failed.count() as u64
    });
}
