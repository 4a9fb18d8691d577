//! Faults of protocols that need no rule: lost datagrams, events before arming, depths of reads.

use std::ptr;

use ibverbs_sys::{self as ffi, ibv_wc_status};
use softnic::{Check, Fabric};

use crate::{
    checks::found_on,
    raw::{
        ALL_RIGHTS, Bytes, End, Limits, Pair, READ, SEND, Sizes, WRITE, c, element_of,
        remote_request, request,
    },
};

/// Maximum number of datagrams of a handshake.
const REPEATS: u64 = 64;

/// Sends the datagram of a handshake up to a number of times, and returns whether the peer has received one.
fn shakes_hands(seed: u64, repeats: u64) -> bool {
    let sizes = Sizes {
        kind: ffi::ibv_qp_type::IBV_QPT_UD,
        ..Sizes::default()
    };
    let pair = Pair::new(Fabric::seeded(seed).loss(0.5), sizes);
    let bytes = [Bytes::new(8, 1), Bytes::new(48, 0)];
    let mut from = element_of(pair.a.register(&bytes[0], ALL_RIGHTS));
    let mut to = element_of(pair.b.register(&bytes[1], ALL_RIGHTS));
    assert_eq!(pair.b.recv(1, &mut to), 0);
    let mut path = pair.a.path_to(&pair.b);
    let ah = c!(ffi::ibv_create_ah(pair.a.pd, &raw mut path));
    (0..repeats).any(|wr_id| {
        let mut wr = request(SEND, wr_id, &mut from);
        (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (ah, pair.b.qp_num(), 7);
        assert_eq!(pair.a.send(&mut wr), 0);
        assert_eq!(pair.a.wait().status, ibv_wc_status::IBV_WC_SUCCESS);
        // Frames without a delay arrive in the call of the sender.
        pair.b.poll().is_some()
    })
}

#[test]
fn handshake_by_a_datagram_is_sent_once() {
    let complete = (0..32).filter(|seed| shakes_hands(*seed, 1)).count();
    assert!((1..32).contains(&complete), "{complete} of 32 handshakes");
    assert!((0..32).all(|seed| shakes_hands(seed, REPEATS)));
}

/// Completions from before the request for a notification cause no event: the program that does not poll after the request
/// would wait for ever.
#[test]
fn queue_is_not_polled_after_arming() {
    let sizes = Sizes {
        has_channel: true,
        ..Sizes::default()
    };
    let pair = Pair::new(Fabric::seeded(7), sizes);
    let bytes = [Bytes::new(8, 1), Bytes::new(8, 0)];
    let mut from = element_of(pair.a.register(&bytes[0], ALL_RIGHTS));
    let to = pair.b.register(&bytes[1], ALL_RIGHTS);
    let fd = c!((*pair.a.channel).fd);
    // SAFETY: a descriptor of the channel, open until the end of the test.
    let flags = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(flags, 0);
    let mut wr = remote_request(WRITE, 1, &mut from, to);
    assert_eq!(pair.a.send(&mut wr), 0);
    // The write is complete before the request for a notification.
    while bytes[1].get(0) == 0 {}
    assert_eq!(c!(ffi::ibv_req_notify_cq(pair.a.cq, 0)), 0);
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    let ret = c!(ffi::ibv_get_cq_event(
        pair.a.channel,
        &raw mut cq,
        &raw mut context
    ));
    assert_eq!(ret, -1, "no event comes");
    // The corrected program polls until the queue is empty.
    assert_eq!(pair.a.poll().map(|wc| wc.wr_id), Some(1));
}

#[test]
fn more_reads_are_in_flight_than_the_peer_accepts() {
    let words = [
        "an RDMA read of queue pair",
        "has max_rd_atomic 16",
        "accepts max_dest_rd_atomic 1",
    ];
    let manual = || Fabric::manual(7);
    found_on(manual, Check::ReadDepth, &words, |fabric, is_faulty| {
        let fabric = fabric.keep_objects();
        let host = |last| fabric.host([10, 9, 0, last].into());
        let [a, b] = [1, 2].map(|last| End::new(&host(last), Sizes::default()));
        a.init();
        b.init();
        a.bring_up(&b);
        let limits = Limits {
            max_dest_rd_atomic: if is_faulty { 1 } else { 16 },
            ..Limits::default()
        };
        b.bring_up_with(&a, limits);
        let bytes = [Bytes::new(64, 0), Bytes::new(64, 2)];
        let sge = element_of(a.register(&bytes[0], ALL_RIGHTS));
        let from = b.register(&bytes[1], ALL_RIGHTS);
        let mut sges: Vec<_> = (0..8)
            .map(|at| ffi::ibv_sge {
                addr: sge.addr + 8 * at,
                length: 8,
                ..sge
            })
            .collect();
        let mut list: Vec<_> = (0..)
            .zip(&mut sges)
            .map(|(wr_id, sge)| remote_request(READ, wr_id, sge, from))
            .collect();
        for at in 1..list.len() {
            let next: *mut ffi::ibv_send_wr = &raw mut list[at];
            list[at - 1].next = next;
        }
        assert_eq!(a.send(&mut list[0]), 0);
        // All reads are in flight before the peer replies.
        while fabric.step() {}
        let failed = (0..8).filter(|_| a.wait().status != ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!(failed.count() > 0, is_faulty);
    });
}
