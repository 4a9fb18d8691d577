//! Faults of order and overlap: destructions, critical regions, empty receive queues.

use std::{ptr, thread, time::Duration};

use ibverbs_sys::{self as ffi, ibv_wc_status};
use softnic::{Call, Check, Fabric, Host};

use crate::{
    checks::{found, reports},
    raw::{ALL_RIGHTS, Bytes, End, Limits, Pair, SEND, Sizes, c, element_of, request},
};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// The address of an object, for another thread.
#[derive(Clone, Copy)]
struct Shared(usize);

impl Shared {
    fn new<T>(object: *mut T) -> Self {
        Self(object.expose_provenance())
    }

    fn get<T>(self) -> *mut T {
        ptr::with_exposed_provenance_mut(self.0)
    }
}

#[test]
fn completion_queue_is_destroyed_before_its_queue_pair() {
    let words = [
        "ibv_destroy_cq has failed with EBUSY, since queue pair",
        "has not been repeated",
    ];
    found(Check::DestroyedInUse, &words, |fabric, is_faulty| {
        let pair = Pair::new(fabric, Sizes::default());
        if is_faulty {
            assert_eq!(c!(ffi::ibv_destroy_cq(pair.a.cq)), libc::EBUSY);
        }
        assert_eq!(c!(ffi::ibv_destroy_qp(pair.a.qp)), 0);
        if !is_faulty {
            assert_eq!(c!(ffi::ibv_destroy_cq(pair.a.cq)), 0);
        }
    });
}

#[test]
fn protection_domain_is_destroyed_before_its_region() {
    let words = [
        "ibv_dealloc_pd has failed with EBUSY, since the region of 8 bytes",
        "registered by",
    ];
    found(Check::DestroyedInUse, &words, |fabric, is_faulty| {
        let pair = Pair::new(fabric, Sizes::default());
        let bytes = Bytes::new(8, 0);
        let pd = c!(ffi::ibv_alloc_pd(pair.a.ctx));
        let addr = ptr::with_exposed_provenance_mut(usize::try_from(bytes.addr()).unwrap());
        let mr = c!(ffi::ibv_reg_mr(pd, addr, bytes.len(), ALL_RIGHTS));
        if is_faulty {
            assert_eq!(c!(ffi::ibv_dealloc_pd(pd)), libc::EBUSY);
        }
        assert_eq!(c!(ffi::ibv_dereg_mr(mr)), 0);
        if !is_faulty {
            assert_eq!(c!(ffi::ibv_dealloc_pd(pd)), 0);
        }
    });
}

/// A destruction that is tried until no other object uses the object is no fault.
#[test]
fn refused_destruction_is_repeated() {
    let silent = reports(Fabric::seeded(7), |fabric| {
        let sizes = Sizes {
            has_channel: true,
            ..Sizes::default()
        };
        let Pair { a, fabric, .. } = Pair::new(fabric, sizes);
        let ret = c!(ffi::ibv_destroy_comp_channel(a.channel));
        assert_eq!(ret, libc::EBUSY);
        assert_eq!(c!(ffi::ibv_destroy_cq(a.cq)), libc::EBUSY);
        assert_eq!(c!(ffi::ibv_dealloc_pd(a.pd)), libc::EBUSY);
        assert_eq!(c!(ffi::ibv_destroy_qp(a.qp)), 0);
        assert_eq!(c!(ffi::ibv_destroy_cq(a.cq)), 0);
        assert_eq!(c!(ffi::ibv_destroy_comp_channel(a.channel)), 0);
        assert_eq!(c!(ffi::ibv_dealloc_pd(a.pd)), 0);
        drop(fabric);
    });
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn receive_queue_is_empty_until_the_retries_are_used() {
    let words = [
        "request 7, a send of queue pair",
        "has used all RNR retries",
        "the receive queue of the peer's queue pair",
    ];
    found(Check::NoReceive, &words, |fabric, is_faulty| {
        let fabric = fabric.keep_objects();
        let host = |last| fabric.host([10, 9, 0, last].into());
        let [a, b] = [1, 2].map(|last| End::new(&host(last), Sizes::default()));
        a.init();
        b.init();
        let limits = Limits {
            rnr_retry: 1,
            ..Limits::default()
        };
        a.bring_up_with(&b, limits);
        b.bring_up(&a);
        let bytes = [Bytes::new(8, 1), Bytes::new(8, 2)];
        let mut from = element_of(a.register(&bytes[0], ALL_RIGHTS));
        let mut to = element_of(b.register(&bytes[1], ALL_RIGHTS));
        if !is_faulty {
            assert_eq!(b.recv(1, &mut to), 0);
        }
        assert_eq!(a.send(&mut request(SEND, 7, &mut from)), 0);
        let expected = match is_faulty {
            true => ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
            false => ibv_wc_status::IBV_WC_SUCCESS,
        };
        assert_eq!(a.wait().status, expected);
    });
}

/// A host with a completion queue for polls by fields, and two completions in the queue.
struct Polled {
    cq: *mut ffi::ibv_cq_ex,
    host: Host,
    _fabric: Fabric,
}

impl Polled {
    fn new(fabric: Fabric, flags: u32) -> Self {
        let fabric = fabric.keep_objects();
        let host = fabric.host([10, 9, 0, 1].into());
        let mut end = End::new(&host, Sizes::default());
        let mut attr = ffi::ibv_cq_init_attr_ex::zeroed();
        attr.cqe = 15;
        attr.comp_mask = ffi::ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
        attr.flags = flags;
        let cq = c!(ffi::ibv_create_cq_ex(end.ctx, &raw mut attr));
        assert!(!cq.is_null());
        end.cq = ffi::ibv_cq_ex_to_cq(cq);
        end.qp = end.create_qp(Sizes::default());
        end.init();
        let bytes = Bytes::new(8, 0);
        let mr = end.register(&bytes, ALL_RIGHTS);
        (0..2).for_each(|wr_id| assert_eq!(end.recv(wr_id, &mut element_of(mr)), 0));
        end.fail();
        assert_eq!(c!(ffi::ibv_destroy_qp(end.qp)), 0);
        Self {
            cq,
            host,
            _fabric: fabric,
        }
    }

    fn start(&self) {
        let mut attr = ffi::ibv_poll_cq_attr { comp_mask: 0 };
        assert_eq!(c!(ffi::ibv_start_poll(self.cq, &raw mut attr)), 0);
    }

    fn end(&self) {
        c!(ffi::ibv_end_poll(self.cq));
    }
}

#[test]
fn queue_for_one_thread_is_polled_by_two() {
    let words = ["the completion queue of 15 entries is used by two threads"];
    found(Check::OverlappingUse, &words, |fabric, is_faulty| {
        let flag = ffi::ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
        let polled = Polled::new(fabric, flag.0);
        polled.start();
        if !is_faulty {
            polled.end();
        }
        let cq = Shared::new(polled.cq);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut wc = ffi::ibv_wc::zeroed();
                assert_eq!(c!(ffi::ibv_poll_cq(cq.get(), 1, &raw mut wc)), 1);
            });
        });
        polled.end();
    });
}

/// Without the promise, the library has a lock: threads may poll at once, and a poll may move to another thread.
#[test]
fn queue_for_all_threads_is_polled_by_two() {
    let silent = reports(Fabric::seeded(7), |fabric| {
        let polled = Polled::new(fabric, 0);
        polled.start();
        let cq = Shared::new(polled.cq);
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut wc = ffi::ibv_wc::zeroed();
                assert_eq!(c!(ffi::ibv_poll_cq(cq.get(), 1, &raw mut wc)), 1);
                c!(ffi::ibv_end_poll(cq.get()));
            });
        });
    });
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn poll_is_started_twice() {
    let words = ["before this thread has called ibv_end_poll"];
    found(Check::OverlappingUse, &words, |fabric, is_faulty| {
        let polled = Polled::new(fabric, 0);
        polled.start();
        if !is_faulty {
            polled.end();
        }
        polled.start();
        polled.end();
    });
}

#[test]
fn queue_is_destroyed_within_a_poll() {
    let words = ["is destroyed between ibv_start_poll and ibv_end_poll"];
    found(Check::OverlappingUse, &words, |fabric, is_faulty| {
        let polled = Polled::new(fabric, 0);
        polled.start();
        if !is_faulty {
            polled.end();
        }
        assert_eq!(c!(ffi::ibv_destroy_cq(ffi::ibv_cq_ex_to_cq(polled.cq))), 0);
    });
}

#[test]
fn queue_is_destroyed_during_a_call_of_another_thread() {
    let words = ["is destroyed during a call of another thread"];
    found(Check::OverlappingUse, &words, |fabric, is_faulty| {
        let polled = Polled::new(fabric, 0);
        let holding = polled.host.hold(Call::PollCq);
        let cq = Shared::new(polled.cq);
        thread::scope(|scope| {
            let poll = scope.spawn(move || {
                let mut wc = ffi::ibv_wc::zeroed();
                c!(ffi::ibv_poll_cq(cq.get(), 1, &raw mut wc))
            });
            assert!(holding.wait_for_call(TEST_TIMEOUT));
            let mut holding = Some(holding);
            let mut poll = Some(poll);
            if !is_faulty {
                holding = None;
                assert_eq!(poll.take().unwrap().join().unwrap(), 1);
            }
            assert_eq!(c!(ffi::ibv_destroy_cq(cq.get())), 0);
            // The other thread's call ends only now.
            drop(holding);
        });
    });
}

/// A queue pair for extended requests, between `ibv_wr_start` and `ibv_wr_complete`.
fn building(fabric: Fabric) -> (Fabric, End, *mut ffi::ibv_qp_ex) {
    use ffi::ibv_qp_init_attr_mask as has;
    let fabric = fabric.keep_objects();
    let mut end = End::new(&fabric.host([10, 9, 0, 1].into()), Sizes::default());
    let mut init = ffi::ibv_qp_init_attr_ex::zeroed();
    (init.send_cq, init.recv_cq, init.pd) = (end.cq, end.cq, end.pd);
    init.qp_type = ffi::ibv_qp_type::IBV_QPT_RC;
    (init.cap.max_send_wr, init.cap.max_send_sge) = (4, 1);
    init.comp_mask = (has::IBV_QP_INIT_ATTR_PD | has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).0;
    init.send_ops_flags = ffi::ibv_qp_create_send_ops_flags::IBV_QP_EX_WITH_SEND
        .0
        .into();
    end.qp = c!(ffi::ibv_create_qp_ex(end.ctx, &raw mut init));
    assert!(!end.qp.is_null());
    let qp = c!(ffi::ibv_qp_to_qp_ex(end.qp));
    c!(ffi::ibv_wr_start(qp));
    (fabric, end, qp)
}

#[test]
fn request_is_posted_within_a_critical_region() {
    let words = ["is used by ibv_post_send before this thread has called"];
    found(Check::OverlappingUse, &words, |fabric, is_faulty| {
        let (_fabric, end, qp) = building(fabric);
        if !is_faulty {
            c!(ffi::ibv_wr_abort(qp));
        }
        let mut wr = ffi::ibv_send_wr::zeroed();
        // Refused: the queue pair is not connected.
        assert_ne!(end.send(&mut wr), 0);
    });
}

#[test]
fn critical_region_is_started_twice() {
    let words = ["is used by ibv_wr_start before this thread has called"];
    found(Check::OverlappingUse, &words, |fabric, is_faulty| {
        let (_fabric, _end, qp) = building(fabric);
        if !is_faulty {
            c!(ffi::ibv_wr_abort(qp));
        }
        c!(ffi::ibv_wr_start(qp));
        c!(ffi::ibv_wr_abort(qp));
    });
}

#[test]
fn queue_pair_is_destroyed_within_a_critical_region() {
    let words = ["is destroyed between ibv_wr_start and ibv_wr_complete"];
    found(Check::OverlappingUse, &words, |fabric, is_faulty| {
        let (_fabric, end, qp) = building(fabric);
        if !is_faulty {
            c!(ffi::ibv_wr_abort(qp));
        }
        assert_eq!(c!(ffi::ibv_destroy_qp(end.qp)), 0);
    });
}
