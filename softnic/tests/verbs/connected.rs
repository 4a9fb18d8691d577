//! Messages, RDMA and atomics between two hosts.

use softnic::Fabric;
use verbs::{RemoteAccess, WcStatus, cq::WcOpcode, op};

use crate::end::Connected;

#[test]
fn message_arrives() {
    let mut this = Connected::new(Fabric::new());
    this.qp_b
        .post_recv(this.b.pd.alloc_buf(64).unwrap())
        .unwrap();
    let hello = this.a.filled(b"hello");
    this.qp_a
        .post(op::Send::new(hello).imm_data(0xcafe))
        .unwrap();
    let received = this.b.reap(&mut this.qp_b, 1).pop().unwrap();
    assert!(received.is_receive);
    assert_eq!(
        (received.status, received.opcode),
        (WcStatus::SUCCESS, Some(WcOpcode::RECV))
    );
    assert_eq!(
        (&received.buf[..received.len], received.imm),
        (&b"hello"[..], Some(0xcafe))
    );
    let sent = this.a.reap(&mut this.qp_a, 1).pop().unwrap();
    assert_eq!(
        (sent.status, &*sent.buf),
        (WcStatus::SUCCESS, &b"hello"[..])
    );
}

#[test]
fn blocked_receiver_is_woken() {
    let mut this = Connected::new(Fabric::new());
    this.qp_b
        .post_recv(this.b.pd.alloc_buf(64).unwrap())
        .unwrap();
    let hello = this.a.filled(b"hello");
    std::thread::scope(|scope| {
        let (b, qp_b) = (&mut this.b, &mut this.qp_b);
        let receiver = scope.spawn(move || b.reap(qp_b, 1).pop().unwrap().len);
        this.qp_a.post(op::Send::new(hello)).unwrap();
        assert_eq!(receiver.join().unwrap(), 5);
    });
}

/// Sends a message and a write, both longer than the window of 256 packets, and returns the number of frames.
fn frames_of_long_requests(fabric: Fabric) -> u64 {
    const LEN: usize = 300 * 1024 + 1;
    let mut this = Connected::new(fabric);
    let region = this.b.pd.alloc_remote(LEN, RemoteAccess::WRITE).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|i| (i / 7).to_le_bytes()[0]).collect();
    this.qp_b
        .post_recv(this.b.pd.alloc_buf(LEN).unwrap())
        .unwrap();
    let message = this.a.filled(&bytes);
    this.qp_a.post(op::Send::new(message)).unwrap();
    let source = this.a.filled(&bytes);
    let write = op::Write::new(source, region.token());
    this.qp_a.post(write).unwrap();
    let received = this.b.reap(&mut this.qp_b, 1).pop().unwrap();
    assert!(received.buf[..received.len] == bytes);
    for done in this.a.reap(&mut this.qp_a, 2) {
        assert_eq!(done.status, WcStatus::SUCCESS);
    }
    let mut contents = vec![0; LEN];
    region.read(0, &mut contents);
    assert!(contents == bytes);
    this.fabric.traffic().frames
}

#[test]
fn long_requests_have_the_same_frames_with_and_without_recording() {
    let recorded = frames_of_long_requests(Fabric::new().record());
    assert!(recorded > 602, "{recorded} frames");
    assert_eq!(frames_of_long_requests(Fabric::new()), recorded);
}

#[test]
fn writes_and_reads_reach_the_peers_memory() {
    let mut this = Connected::new(Fabric::new());
    let access = RemoteAccess::WRITE | RemoteAccess::READ;
    let region = this.b.pd.alloc_remote(10_000, access).unwrap();
    let bytes: Vec<u8> = (0..10_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let source = this.a.filled(&bytes);
    this.qp_a
        .post(op::Write::new(source, region.token()))
        .unwrap();
    let written = this.a.reap(&mut this.qp_a, 1).pop().unwrap();
    assert_eq!(
        (written.status, written.opcode),
        (WcStatus::SUCCESS, Some(WcOpcode::RDMA_WRITE))
    );
    let mut contents = vec![0; 10_000];
    region.read(0, &mut contents);
    assert_eq!(contents, bytes);

    region.write(5_000, b"changed");
    let target = this.a.pd.alloc_buf(7).unwrap();
    let from = region.token().slice(5_000..5_007).unwrap();
    this.qp_a.post(op::Read::new(target, from)).unwrap();
    let read = this.a.reap(&mut this.qp_a, 1).pop().unwrap();
    assert_eq!(
        (read.status, &*read.buf),
        (WcStatus::SUCCESS, &b"changed"[..])
    );
}

#[test]
fn atomics_change_the_peers_number() {
    let mut this = Connected::new(Fabric::new());
    let region = this.b.pd.alloc_remote(64, RemoteAccess::ATOMIC).unwrap();
    region.store(8, 40);
    let number = region.token().slice(8..16).unwrap();
    let buf = this.a.pd.alloc_buf(8).unwrap();
    this.qp_a.post(op::FetchAdd::new(buf, number, 2)).unwrap();
    let buf = this.a.reap(&mut this.qp_a, 1).pop().unwrap().buf;
    assert_eq!((&*buf, region.load(8)), (&40_u64.to_ne_bytes()[..], 42));
    this.qp_a
        .post(op::CompareSwap::new(buf, number, 42, 7))
        .unwrap();
    let buf = this.a.reap(&mut this.qp_a, 1).pop().unwrap().buf;
    assert_eq!((&*buf, region.load(8)), (&42_u64.to_ne_bytes()[..], 7));
}

#[test]
fn write_without_the_right_fails_both_sides() {
    let mut this = Connected::new(Fabric::new());
    let events = this.b.ctx.async_events().unwrap();
    let region = this.b.pd.alloc_remote(64, RemoteAccess::READ).unwrap();
    let work = this.a.filled(b"forbidden");
    this.qp_a
        .post(op::Write::new(work, region.token()))
        .unwrap();
    let failed = this.a.reap(&mut this.qp_a, 1).pop().unwrap();
    assert_eq!(failed.status, WcStatus::REM_ACCESS_ERR);
    let event = events.wait().unwrap();
    assert_eq!(event.event_type, verbs::event::EventType::QP_ACCESS_ERR);
    assert_eq!(
        event.object,
        verbs::event::EventObject::Qp(this.qp_b.qp_num())
    );
    let mut contents = [0; 64];
    region.read(0, &mut contents);
    assert_eq!(contents, [0; 64]);
}

#[test]
fn hosts_may_have_ipv6_addresses() {
    let fabric = Fabric::new();
    let hosts = ["fd00::1", "fd00::2"].map(|addr| fabric.host(addr.parse().unwrap()));
    let (mut a, b) = (
        crate::end::End::new(&hosts[0]),
        crate::end::End::new(&hosts[1]),
    );
    let (qp_a, qp_b) = (a.qp(), b.qp());
    let (num_a, num_b) = (qp_a.qp_num(), qp_b.qp_num());
    let mut qp_a = a.bring_up(qp_a, (&b, num_b));
    let mut qp_b = b.bring_up(qp_b, (&a, num_a));
    qp_b.post_recv(b.pd.alloc_buf(64).unwrap()).unwrap();
    qp_a.post(op::Send::new(a.filled(b"hello"))).unwrap();
    assert_eq!(a.reap(&mut qp_a, 1)[0].status, WcStatus::SUCCESS);
}
