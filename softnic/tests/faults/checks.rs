//! Known faults of programs, each found and named, and the corrected program without a report.

use std::{
    num::NonZero,
    ptr,
    sync::{Arc, Mutex},
};

use ibverbs_sys::{self as ffi, ibv_send_flags, ibv_wc_status};
use softnic::{Check, CheckReport, Fabric, Rule};

use crate::raw::{
    ALL_RIGHTS, Bytes, End, Pair, READ, SEND, Sizes, WRITE, c, element_of, remote_request, request,
};

/// Runs a program on a fabric with checks, and returns the reports.
pub(crate) fn reports(fabric: Fabric, program: impl FnOnce(Fabric)) -> Vec<CheckReport> {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    program(fabric.on_report(move |report| sink.lock().unwrap().push(report.clone())));
    let reports = reports.lock().unwrap();
    reports.clone()
}

/// Asserts that the faulty program has one report, with the words, and names a function of this file; and that the correct
/// program has none.
pub(crate) fn found(check: Check, words: &[&str], program: impl Fn(Fabric, bool)) {
    found_on(|| Fabric::seeded(7), check, words, program);
}

pub(crate) fn found_on(
    fabric: impl Fn() -> Fabric,
    check: Check,
    words: &[&str],
    program: impl Fn(Fabric, bool),
) {
    let found = reports(fabric(), |fabric| program(fabric, true));
    let [report] = found.as_slice() else {
        panic!("not one report: {found:#?}");
    };
    assert_eq!(report.check, check, "{report}");
    let text = report.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
    assert!(text.contains("SOFTNIC_SEED=7"), "{text}");
    for location in report.origin.iter().chain(&report.found_in) {
        let (file, _) = location.line.as_ref().expect(&text);
        assert!(file.contains("tests/faults"), "{text}");
    }
    let correct = reports(fabric(), |fabric| program(fabric, false));
    assert!(correct.is_empty(), "{correct:#?}");
}

/// A connection, and memory of `len` bytes at both ends.
struct Ends {
    pair: Pair,
    bytes: [Bytes; 2],
    mrs: [*mut ffi::ibv_mr; 2],
}

fn ends(fabric: Fabric, sizes: Sizes, len: usize) -> Ends {
    let pair = Pair::new(fabric, sizes);
    let bytes = [Bytes::new(len, 1), Bytes::new(len, 2)];
    let mrs = [
        pair.a.register(&bytes[0], ALL_RIGHTS),
        pair.b.register(&bytes[1], ALL_RIGHTS),
    ];
    Ends { pair, bytes, mrs }
}

#[test]
fn completion_queue_is_one_entry_short() {
    let words = ["makes 16 requests", "has 15 entries"];
    found(Check::CqTooSmall, &words, |fabric, is_faulty| {
        let cqe = if is_faulty { 15 } else { 16 };
        let ends = ends(
            fabric,
            Sizes {
                cqe,
                ..Sizes::default()
            },
            8,
        );
        let mut sge = element_of(ends.mrs[0]);
        (0..16).for_each(|wr_id| assert_eq!(ends.pair.a.recv(wr_id, &mut sge), 0));
    });
}

#[test]
fn no_request_is_signaled() {
    let words = ["request 17 ", "behind 16 unsignaled ones"];
    found(Check::NoSignaledRequest, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let mut sge = element_of(ends.mrs[0]);
        for wr_id in 1..=40 {
            let mut wr = remote_request(WRITE, wr_id, &mut sge, ends.mrs[1]);
            let is_signaled = !is_faulty && wr_id % 8 == 0;
            if !is_signaled {
                wr.send_flags = 0;
            }
            assert_eq!(ends.pair.a.send(&mut wr), 0);
            if is_signaled {
                ends.pair.a.wait();
            }
        }
    });
}

#[test]
fn buffer_is_reused_after_the_post() {
    let words = ["was 0x01 when request 7, a send", "is 0x09 before"];
    found(Check::SendMemoryChanged, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 64);
        assert_eq!(ends.pair.b.recv(1, &mut element_of(ends.mrs[1])), 0);
        assert_eq!(
            ends.pair
                .a
                .send(&mut request(SEND, 7, &mut element_of(ends.mrs[0]))),
            0
        );
        if is_faulty {
            ends.bytes[0].set(40, 9);
        }
        ends.pair.a.wait();
        ends.bytes[0].set(40, 9);
    });
}

/// The bytes that the device writes to the memory of a request are no change by the program.
#[test]
fn writes_of_the_device_are_no_reuse() {
    let silent = reports(Fabric::seeded(7), |fabric| {
        let ends = ends(fabric, Sizes::default(), 64);
        assert_eq!(ends.pair.b.recv(1, &mut element_of(ends.mrs[1])), 0);
        assert_eq!(
            ends.pair
                .a
                .send(&mut request(SEND, 2, &mut element_of(ends.mrs[0]))),
            0
        );
        // The peer writes to the memory of the send, which is not polled yet.
        let mut sge = element_of(ends.mrs[1]);
        let mut wr = remote_request(WRITE, 3, &mut sge, ends.mrs[0]);
        assert_eq!(ends.pair.b.send(&mut wr), 0);
        ends.pair.b.wait();
        ends.pair.b.wait();
        ends.pair.a.wait();
        // Inline data are the program's after the post.
        let mut wr = request(SEND, 4, &mut sge);
        wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        assert_eq!(ends.pair.a.recv(5, &mut element_of(ends.mrs[0])), 0);
        assert_eq!(ends.pair.b.send(&mut wr), 0);
        ends.bytes[1].set(0, 77);
        ends.pair.b.wait();
    });
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn request_is_reused_at_the_reply() {
    let words = ["request 3, a send", "before its completion has been polled"];
    found(Check::SendMemoryChanged, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let pair = &ends.pair;
        let inbox = Bytes::new(8, 0);
        let mut inbox_sge = element_of(pair.a.register(&inbox, ALL_RIGHTS));
        assert_eq!(pair.a.recv(1, &mut inbox_sge), 0);
        assert_eq!(pair.b.recv(2, &mut element_of(ends.mrs[1])), 0);
        assert_eq!(
            pair.a
                .send(&mut request(SEND, 3, &mut element_of(ends.mrs[0]))),
            0
        );
        pair.b.wait();
        assert_eq!(
            pair.b
                .send(&mut request(SEND, 4, &mut element_of(ends.mrs[1]))),
            0
        );
        pair.b.wait();
        // The program looks at the reply in memory.
        assert_eq!(inbox.get(0), 1);
        if is_faulty {
            ends.bytes[0].set(0, 5);
        }
        pair.a.wait();
        pair.a.wait();
    });
}

/// Steps of a manual fabric until nothing is pending.
fn run(fabric: &Fabric) {
    while fabric.step() {}
}

/// A mapping of one page.
fn map() -> *mut u8 {
    let len = NonZero::new(4096).unwrap();
    let (prot, flags) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
    );
    let page = c!(libc::mmap(ptr::null_mut(), len.get(), prot, flags, -1, 0));
    assert_ne!(page, libc::MAP_FAILED);
    page.cast()
}

fn register_page(end: &End, page: *mut u8) -> *mut ffi::ibv_mr {
    c!(ffi::ibv_reg_mr(end.pd, page.cast(), 4096, ALL_RIGHTS))
}

#[test]
fn memory_is_freed_at_a_timeout_while_a_read_is_in_flight() {
    let words = ["1024 bytes at", "request 5, an RDMA read", "not mapped"];
    let manual = || Fabric::manual(7);
    found_on(manual, Check::MemoryGone, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 4096);
        let page = map();
        let mut sge = element_of(register_page(&ends.pair.a, page));
        let mut read = remote_request(READ, 5, &mut sge, ends.mrs[1]);
        assert_eq!(ends.pair.a.send(&mut read), 0);
        assert!(ends.pair.a.poll().is_none(), "the program's timeout");
        if is_faulty {
            assert_eq!(c!(libc::munmap(page.cast(), 4096)), 0);
        }
        run(&ends.pair.fabric);
        ends.pair.a.wait();
    });
}

#[test]
fn memory_of_a_cancelled_read_is_used_for_something_else() {
    let words = [
        "was 0x01 when request 5, an RDMA read",
        "is 0x2a before the device writes it",
    ];
    let manual = || Fabric::manual(7);
    found_on(manual, Check::TargetChanged, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 64);
        let mut sge = element_of(ends.mrs[0]);
        let mut read = remote_request(READ, 5, &mut sge, ends.mrs[1]);
        assert_eq!(ends.pair.a.send(&mut read), 0);
        if is_faulty {
            ends.bytes[0].set(8, 42);
        }
        run(&ends.pair.fabric);
        ends.pair.a.wait();
        ends.bytes[0].set(8, 42);
    });
}

/// Bytes behind a short message stay the program's, as do bytes prepared before the post.
#[test]
fn prepared_and_short_receives_are_no_fault() {
    let silent = reports(Fabric::seeded(7), |fabric| {
        let ends = ends(fabric, Sizes::default(), 64);
        ends.bytes[1].set(0, 99);
        assert_eq!(ends.pair.b.recv(1, &mut element_of(ends.mrs[1])), 0);
        let mut sge = element_of(ends.mrs[0]);
        sge.length = 8;
        ends.bytes[1].set(20, 3);
        assert_eq!(ends.pair.a.send(&mut request(SEND, 2, &mut sge)), 0);
        assert_eq!(ends.pair.b.wait().byte_len, 8);
        ends.pair.a.wait();
    });
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn registration_outlives_its_mapping() {
    let words = ["64 bytes at", "a peer accesses it by its key"];
    found(Check::MemoryGone, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 64);
        let page = map();
        let mr = register_page(&ends.pair.b, page);
        if is_faulty {
            assert_eq!(c!(libc::munmap(page.cast(), 4096)), 0);
        }
        let mut sge = element_of(ends.mrs[0]);
        assert_eq!(
            ends.pair
                .a
                .send(&mut remote_request(WRITE, 1, &mut sge, mr)),
            0
        );
        ends.pair.a.wait();
    });
}

#[test]
fn region_is_deregistered_before_the_queue_pair() {
    let words = ["request 3, a receive of queue pair", "names it"];
    found(Check::RegionInUse, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 64);
        assert_eq!(ends.pair.a.recv(3, &mut element_of(ends.mrs[0])), 0);
        if !is_faulty {
            ends.pair.a.fail();
            assert_eq!(ends.pair.a.wait().wr_id, 3);
        }
        assert_eq!(c!(ffi::ibv_dereg_mr(ends.mrs[0])), 0);
    });
}

/// The completion queue's events of one send, received by the program.
fn receive_event(end: &End) -> *mut ffi::ibv_cq {
    let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
    let ret = c!(ffi::ibv_get_cq_event(
        end.channel,
        &raw mut cq,
        &raw mut context
    ));
    assert_eq!(ret, 0);
    cq
}

/// A pair whose first end has a completion and an event.
fn with_event(fabric: Fabric) -> Ends {
    let sizes = Sizes {
        has_channel: true,
        ..Sizes::default()
    };
    let ends = ends(fabric, sizes, 8);
    assert_eq!(c!(ffi::ibv_req_notify_cq(ends.pair.a.cq, 0)), 0);
    let mut sge = element_of(ends.mrs[0]);
    let mut wr = remote_request(WRITE, 1, &mut sge, ends.mrs[1]);
    assert_eq!(ends.pair.a.send(&mut wr), 0);
    ends
}

#[test]
fn event_is_acknowledged_twice() {
    let words = ["2 events", "1 have been received"];
    found(Check::TooManyAcknowledged, &words, |fabric, is_faulty| {
        let ends = with_event(fabric);
        let cq = receive_event(&ends.pair.a);
        c!(ffi::ibv_ack_cq_events(cq, if is_faulty { 2 } else { 1 }));
    });
}

#[test]
fn queue_is_destroyed_with_an_event_not_acknowledged() {
    let words = ["ibv_destroy_cq waits", "would block for ever"];
    found(Check::EventsNotAcknowledged, &words, |fabric, is_faulty| {
        let ends = with_event(fabric);
        let cq = receive_event(&ends.pair.a);
        assert_eq!(c!(ffi::ibv_destroy_qp(ends.pair.a.qp)), 0);
        if !is_faulty {
            c!(ffi::ibv_ack_cq_events(cq, 1));
        }
        assert_eq!(c!(ffi::ibv_destroy_cq(cq)), 0);
    });
}

#[test]
fn read_is_sent_on_without_a_fence() {
    let words = [
        "request 3 of queue pair",
        "request 2, an RDMA read",
        "IBV_SEND_FENCE",
    ];
    found(Check::UnfencedSource, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        assert_eq!(ends.pair.b.recv(1, &mut element_of(ends.mrs[1])), 0);
        let mut sge = element_of(ends.mrs[0]);
        assert_eq!(
            ends.pair
                .a
                .send(&mut remote_request(READ, 2, &mut sge, ends.mrs[1])),
            0
        );
        let mut send = request(SEND, 3, &mut sge);
        if !is_faulty {
            send.send_flags |= ibv_send_flags::IBV_SEND_FENCE.0;
        }
        assert_eq!(ends.pair.a.send(&mut send), 0);
        ends.pair.a.wait();
        ends.pair.a.wait();
        ends.pair.b.wait();
    });
}

/// Posts a write of 8 bytes, and returns its status.
fn write_status(
    ends: &Ends,
    sge: &mut ffi::ibv_sge,
    (remote_addr, rkey): (u64, u32),
) -> ibv_wc_status {
    let mut wr = remote_request(WRITE, 6, sge, ends.mrs[1]);
    (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = (remote_addr, rkey);
    assert_eq!(ends.pair.a.send(&mut wr), 0);
    ends.pair.a.wait().status
}

#[test]
fn remote_key_is_that_of_another_device() {
    let words = [
        "an RDMA write",
        "on another device than the peer's",
        "registered by",
    ];
    found(Check::RemoteAccess, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let mr = if is_faulty { ends.mrs[0] } else { ends.mrs[1] };
        let peer = (ends.bytes[1].addr(), c!((*mr).rkey));
        write_status(&ends, &mut element_of(ends.mrs[0]), peer);
    });
}

#[test]
fn write_ends_behind_the_region_of_the_peer() {
    let words = [
        "8 bytes at",
        "ends 3 bytes behind it",
        "the region of 8 bytes",
    ];
    found(Check::RemoteAccess, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let offset = if is_faulty { 3 } else { 0 };
        let peer = (ends.bytes[1].addr() + offset, c!((*ends.mrs[1]).rkey));
        write_status(&ends, &mut element_of(ends.mrs[0]), peer);
    });
}

#[test]
fn local_key_is_taken_for_the_remote_key() {
    let words = ["the key is a local key of the peer: use `rkey`"];
    let fabric = || Fabric::seeded(7).rule(Rule::Keys);
    found_on(fabric, Check::RemoteAccess, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let mr = ends.mrs[1];
        let key = if is_faulty {
            c!((*mr).lkey)
        } else {
            c!((*mr).rkey)
        };
        write_status(
            &ends,
            &mut element_of(ends.mrs[0]),
            (ends.bytes[1].addr(), key),
        );
    });
}

#[test]
fn request_names_a_deregistered_region() {
    let words = ["request 6, an RDMA write", "has been deregistered by"];
    found(Check::LocalAccess, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let mut sge = element_of(ends.mrs[0]);
        if is_faulty {
            assert_eq!(c!(ffi::ibv_dereg_mr(ends.mrs[0])), 0);
        }
        let peer = (ends.bytes[1].addr(), c!((*ends.mrs[1]).rkey));
        write_status(&ends, &mut sge, peer);
    });
}

#[test]
fn receive_lacks_the_right_to_write() {
    let words = ["a receive of queue pair", "lacks IBV_ACCESS_LOCAL_WRITE"];
    found(Check::LocalAccess, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let bytes = Bytes::new(8, 0);
        let mr = ends.pair.b.register(&bytes, u32::from(!is_faulty));
        assert_eq!(ends.pair.b.recv(1, &mut element_of(mr)), 0);
        assert_eq!(
            ends.pair
                .a
                .send(&mut request(SEND, 2, &mut element_of(ends.mrs[0]))),
            0
        );
        ends.pair.b.wait();
        ends.pair.a.wait();
    });
}

#[test]
fn rights_of_peers_need_the_local_right() {
    let words = ["the rights 0x2 let peers write"];
    found(
        Check::RightsWithoutLocalWrite,
        &words,
        |fabric, is_faulty| {
            let pair = Pair::new(fabric, Sizes::default());
            let bytes = Bytes::new(8, 0);
            let mr = pair.a.register(&bytes, if is_faulty { 2 } else { 3 });
            assert_eq!(mr.is_null(), is_faulty);
        },
    );
}

#[test]
fn peer_sends_from_another_sequence_number_on() {
    let words = ["sends from sq_psn 0x7 on", "expects rq_psn 0x0"];
    found(Check::PsnMismatch, &words, |fabric, is_faulty| {
        let fabric = fabric.keep_objects();
        let host = |last| fabric.host([10, 9, 0, last].into());
        let [a, b] = [1, 2].map(|last| End::new(&host(last), Sizes::default()));
        a.init();
        b.init();
        a.bring_up_from(&b, 3, 7);
        b.bring_up_from(&a, if is_faulty { 0 } else { 7 }, 3);
    });
}

#[test]
fn address_handle_is_destroyed_before_its_request() {
    let words = ["address handle to 10.9.0.2", "completion of request 2"];
    found(Check::AhInUse, &words, |fabric, is_faulty| {
        let kind = ffi::ibv_qp_type::IBV_QPT_UD;
        let ends = ends(
            fabric,
            Sizes {
                kind,
                ..Sizes::default()
            },
            48,
        );
        let pair = &ends.pair;
        let mut path = pair.a.path_to(&pair.b);
        let ah = c!(ffi::ibv_create_ah(pair.a.pd, &raw mut path));
        let mut sge = element_of(ends.mrs[0]);
        let mut wr = request(SEND, 2, &mut sge);
        (wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) = (ah, pair.b.qp_num(), 7);
        assert_eq!(pair.a.send(&mut wr), 0);
        if !is_faulty {
            pair.a.wait();
        }
        assert_eq!(c!(ffi::ibv_destroy_ah(ah)), 0);
    });
}

#[test]
fn inline_data_exceed_the_maximum() {
    let words = ["has 65 bytes of inline data", "max_inline_data 64"];
    found(Check::InlineTooLong, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 65);
        let mut sge = element_of(ends.mrs[0]);
        sge.length = if is_faulty { 65 } else { 64 };
        let mut wr = remote_request(WRITE, 1, &mut sge, ends.mrs[1]);
        wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
        assert_eq!(ends.pair.a.send(&mut wr) != 0, is_faulty);
    });
}

#[test]
fn flag_is_not_one_of_the_opcode() {
    let words = ["IBV_SEND_SOLICITED, which is valid for sends"];
    found(Check::FlagOfOtherOpcode, &words, |fabric, is_faulty| {
        let ends = ends(fabric, Sizes::default(), 8);
        let mut sge = element_of(ends.mrs[0]);
        let mut wr = remote_request(READ, 1, &mut sge, ends.mrs[1]);
        if is_faulty {
            wr.send_flags |= ibv_send_flags::IBV_SEND_SOLICITED.0;
        }
        assert_eq!(ends.pair.a.send(&mut wr), 0);
        ends.pair.a.wait();
    });
}
