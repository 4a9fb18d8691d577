//! The rules about shared receive queues, memory windows and requests without bytes: a program that relies on kindness, and the
//! corrected one.

use std::ptr;

use ibverbs_sys::{self as ffi, ibv_access_flags as access, ibv_wc_opcode, ibv_wc_status};
use softnic::Rule;

use crate::{
    raw::{ALL_RIGHTS, Bytes, End, SEND, Sizes, WRITE, c, element_of, remote_request, request},
    rules::{ROUNDS, pair, pair_of, shown_by},
};

/// Posts a receive of a whole region to a shared queue.
fn post_shared(srq: *mut ffi::ibv_srq, wr_id: u64, mr: *mut ffi::ibv_mr) {
    let mut sge = element_of(mr);
    let mut wr = ffi::ibv_recv_wr::zeroed();
    wr.wr_id = wr_id;
    (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
    let mut bad = ptr::null_mut();
    assert_eq!(
        c!(ffi::ibv_post_srq_recv(srq, &raw mut wr, &raw mut bad)),
        0
    );
}

#[test]
fn receives_of_a_shared_queue_have_no_order() {
    shown_by(Rule::Srq, |rule| {
        let mut pair = pair(rule, Sizes::default());
        let srq = pair.share_receives();
        let bytes: Vec<_> = (0..8).map(|_| Bytes::new(8, 0)).collect();
        for (bytes, wr_id) in bytes.iter().zip(0..) {
            post_shared(srq, wr_id, pair.b.register(bytes, ALL_RIGHTS));
        }
        let from = Bytes::new(8, 0);
        let mut sge = element_of(pair.a.register(&from, ALL_RIGHTS));
        let reordered = (0..8).filter(|message| {
            from.set(0, *message);
            assert_eq!(pair.a.send(&mut request(SEND, 1, &mut sge)), 0);
            pair.a.wait();
            let received = pair.b.wait();
            // The corrected program: the completion names the receive.
            let at = usize::try_from(received.wr_id).unwrap();
            assert_eq!(bytes[at].get(0), *message);
            received.wr_id != u64::from(*message)
        });
        reordered.count() as u64
    });
}

/// Binds a type 1 window to a whole region, for writes.
fn bind(end: &End, mr: *mut ffi::ibv_mr) -> *mut ffi::ibv_mw {
    let window = c!(ffi::ibv_alloc_mw(end.pd, ffi::ibv_mw_type::IBV_MW_TYPE_1));
    let mut bind = ffi::ibv_mw_bind::zeroed();
    bind.send_flags = ffi::ibv_send_flags::IBV_SEND_SIGNALED.0;
    let info = &mut bind.bind_info;
    (info.mr, info.addr, info.length) = (mr, element_of(mr).addr, element_of(mr).length.into());
    info.mw_access_flags = access::IBV_ACCESS_REMOTE_WRITE.0;
    assert_eq!(c!(ffi::ibv_bind_mw(end.qp, window, &raw mut bind)), 0);
    let bound = end.wait();
    assert_eq!(bound.status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(bound.opcode, ibv_wc_opcode::IBV_WC_BIND_MW);
    window
}

#[test]
fn region_with_a_bound_window_is_deregistered() {
    shown_by(Rule::BoundDereg, |rule| {
        let deregistered = (0..ROUNDS / 4).filter(|seed| {
            let pair = pair_of(*seed, rule, Sizes::default());
            let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
            let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
            let rights = ALL_RIGHTS | access::IBV_ACCESS_MW_BIND.0;
            let mr = pair.b.register(&to, rights);
            let window = bind(&pair.b, mr);
            let mut write = remote_request(WRITE, 1, &mut from, mr);
            write.wr.rdma.rkey = c!((*window).rkey);
            let ret = c!(ffi::ibv_dereg_mr(mr));
            if ret != 0 {
                assert_eq!(ret, libc::EBUSY);
                return false;
            }
            // No access by the window.
            assert_eq!(pair.a.send(&mut write), 0);
            assert_eq!(pair.a.wait().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
            assert_eq!((0..8).find(|at| to.get(*at) != 0), None);
            // The corrected program destroys the window first; here last.
            assert_eq!(c!(ffi::ibv_dealloc_mw(window)), 0);
            true
        });
        deregistered.count() as u64
    });
}

#[test]
fn write_of_no_bytes_needs_a_key() {
    shown_by(Rule::Zero, |rule| {
        let refused = (0..ROUNDS / 4).filter(|seed| {
            let pair = pair_of(*seed, rule, Sizes::default());
            let (from, to) = (Bytes::new(8, 1), Bytes::new(8, 0));
            let mut from = element_of(pair.a.register(&from, ALL_RIGHTS));
            from.length = 0;
            let mut write = remote_request(WRITE, 1, &mut from, pair.b.register(&to, ALL_RIGHTS));
            // The corrected program: a valid key.
            assert_eq!(pair.a.send(&mut write), 0);
            assert_eq!(pair.a.wait().status, ibv_wc_status::IBV_WC_SUCCESS);
            write.wr.rdma.rkey = 0;
            assert_eq!(pair.a.send(&mut write), 0);
            pair.a.wait().status == ibv_wc_status::IBV_WC_REM_ACCESS_ERR
        });
        refused.count() as u64
    });
}

#[test]
fn registration_of_no_bytes_is_refused() {
    shown_by(Rule::Zero, |rule| {
        let pair = pair(rule, Sizes::default());
        let mr = pair.a.register(&Bytes::new(0, 0), ALL_RIGHTS);
        u64::from(mr.is_null())
    });
}
