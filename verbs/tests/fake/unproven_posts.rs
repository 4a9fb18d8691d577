//! Failing posts whose effect the provider's source does not prove: the queue keeps the work until
//! its end.

use softnic::Call;
use verbs::{
    Buf, QueuePair, RemoteAccess, Rts, SharedReceiveQueue, WcStatus,
    error::PostError,
    mw::WindowType,
    op::{self, SendOps},
    srq::{TagMatchingCapacity, TagMatchingQueue, TagPattern},
};

use crate::{
    fixture::Fixture,
    refused_posts::{buf, of_vendor},
    tag_matching::can_match,
};

const MLX5: u32 = 0x15b3;
const MANA: u32 = 0x1414;
const IRDMA: u32 = 0x8086;
const SOFT_ROCE: u32 = 0xff_ffff;
/// A vendor without a provider in rdma-core.
const NO_VENDOR: u32 = 0xdead;

type Pair = QueuePair<verbs::Rc, Rts, Buf, Buf>;

fn of(vendor: u32) -> Fixture {
    of_vendor(Fixture::new(), vendor)
}

fn check_kept<R>(failed: &PostError<R>) {
    assert!(failed.value.is_none());
    let text = failed.error.to_string();
    assert!(text.contains("the device may have the"), "{text}");
}

/// The requests named by `bad_wr` of every call.
#[test]
fn request_named_by_an_unknown_provider_stays_with_its_queue() {
    let fixture = of(NO_VENDOR);
    let (cq, fake) = (fixture.cq(32), &fixture.fake);
    let mut qp: Pair = fixture.rc(&cq, 4);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let mut wq = fixture.pd.wq_builder(&cq).max_wr(4).create().unwrap();
    wq.to_ready().unwrap();
    fake.fail(Call::PostSend, libc::EINVAL);
    check_kept(&qp.post(op::Send::new(buf(&fixture))).unwrap_err());
    fake.fail(Call::PostRecv, libc::EINVAL);
    check_kept(&qp.post_recv(buf(&fixture)).unwrap_err());
    fake.fail(Call::PostSrqRecv, libc::EINVAL);
    check_kept(&srq.post(buf(&fixture)).unwrap_err());
    fake.fail(Call::PostWqRecv, libc::EINVAL);
    check_kept(&wq.post(buf(&fixture)).unwrap_err());
    let counts = [
        qp.send_queue().in_flight(),
        qp.receive_queue().in_flight(),
        srq.in_flight(),
        wq.in_flight(),
    ];
    assert_eq!(counts, [1; 4]);
    // The end of the queues returns the work.
    let leftover = qp.destroy().map_err(|refused| refused.error).unwrap();
    assert_eq!(
        (&*leftover.send[0], &*leftover.receive[0]),
        (&b"mine"[..], &b"mine"[..])
    );
    assert_eq!(&*wq.to_reset().unwrap()[0], b"mine");
}

#[test]
fn batch_of_an_unknown_provider_stays_with_its_queue() {
    let fixture = of(NO_VENDOR);
    let (cq, fake) = (fixture.cq(32), &fixture.fake);
    let mut qp: Pair = fixture.rc(&cq, 4);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let mut sends = qp.batch();
    (0..3).for_each(|_| sends.push(op::Send::new(buf(&fixture))).unwrap());
    fake.fail_after(1, Call::PostSend, libc::EINVAL);
    let refused = sends.post().unwrap_err();
    let mut texts = vec![(refused.value.len(), refused.error.to_string())];
    let mut receives = qp.recv_batch();
    (0..3).for_each(|_| receives.push(buf(&fixture)).unwrap());
    fake.fail_after(1, Call::PostRecv, libc::EINVAL);
    let refused = receives.post().unwrap_err();
    texts.push((refused.value.len(), refused.error.to_string()));
    let mut shared = srq.batch();
    (0..3).for_each(|_| shared.push(buf(&fixture)).unwrap());
    fake.fail_after(1, Call::PostSrqRecv, libc::EINVAL);
    let refused = shared.post().unwrap_err();
    texts.push((refused.value.len(), refused.error.to_string()));
    for (returned, text) in texts {
        assert_eq!(returned, 0);
        assert!(text.contains("the device may have the"), "{text}");
    }
    let counts = [
        qp.send_queue().in_flight(),
        qp.receive_queue().in_flight(),
        srq.in_flight(),
    ];
    assert_eq!(counts, [3; 3]);
}

#[test]
fn tagged_buffer_named_by_an_unknown_provider_stays_with_its_queue() {
    let fixture = of(NO_VENDOR);
    can_match(&fixture);
    let capacity = TagMatchingCapacity {
        max_wr: 4,
        max_sge: 1,
        max_num_tags: 4,
        max_ops: 4,
    };
    let cq = fixture.cq(64);
    let mut queue: TagMatchingQueue = fixture.pd.create_tag_matching(&cq, capacity).unwrap();
    fixture.fake.fail(Call::PostSrqOps, libc::EINVAL);
    check_kept(&queue.add(TagPattern::exact(7), buf(&fixture)).unwrap_err());
    assert_eq!(queue.tags_in_flight(), 1);
    fixture.fake.fail(Call::PostSrqOps, libc::EINVAL);
    let failed = queue.sync().unwrap_err().to_string();
    assert!(failed.contains("the device may have the"), "{failed}");
}

/// A refused window stays as if bound: its region is kept.
#[test]
fn window_bound_by_an_unknown_provider_keeps_its_region() {
    for (window_type, call) in [
        (WindowType::Type1, Call::BindMw),
        (WindowType::Type2, Call::PostSend),
    ] {
        let fixture = of(NO_VENDOR);
        let cq = fixture.cq(8);
        let mut qp: Pair = fixture.rc(&cq, 4);
        let region = fixture.pd.alloc_for_windows(64).unwrap();
        let mut window = fixture.pd.alloc_mw(window_type).unwrap();
        fixture.fake.fail(call, libc::EINVAL);
        let bound = qp.bind_window(&mut window, &region, RemoteAccess::WRITE, buf(&fixture));
        check_kept(&bound.unwrap_err());
        assert_eq!(qp.send_queue().in_flight(), 1);
        drop(region);
        assert!(!fixture.fake.calls().contains(&Call::DeregMr));
    }
}

/// By `ibv_wr_post(3)` a failed `ibv_wr_complete` has posted nothing. That holds for some providers only.
#[test]
fn extended_batch_of_an_unproven_provider_stays_in_flight() {
    for vendor in [NO_VENDOR, SOFT_ROCE, IRDMA] {
        for errno in [libc::ENOMEM, libc::EOPNOTSUPP] {
            let fixture = of(vendor);
            let mut cq = fixture.cq(16);
            let builder = fixture.pd.qp_builder(&cq, &cq).max_send_wr(4);
            let builder = builder.send_ops(SendOps::SEND | SendOps::BIND_MW);
            let mut qp: QueuePair<verbs::Rc, Rts, Buf> =
                fixture.connect(builder.create_for().unwrap());
            let region = fixture.pd.alloc_for_windows(64).unwrap();
            let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
            let before = window.rkey();
            let mut batch = qp.extended_batch().unwrap();
            batch.push(op::Send::new(buf(&fixture))).unwrap();
            let access = RemoteAccess::WRITE;
            let token = batch.bind_window(&mut window, &region, access, buf(&fixture));
            let token = token.unwrap();
            fixture.fake.fail(Call::Doorbell, errno);
            let failed = batch.post().unwrap_err();
            assert_eq!(failed.error.raw_os_error(), Some(errno));
            let text = failed.error.to_string();
            assert!(text.contains("the device may have the request"), "{text}");
            assert!(failed.value.is_empty());
            // The device has them, and carries them out.
            assert_eq!(fixture.fake.sends(qp.qp_num()).len(), 2);
            assert_eq!(qp.send_queue().in_flight(), 2);
            assert_eq!(window.rkey(), token.rkey);
            assert_ne!(window.rkey(), before);
            fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
            let wc = cq.poll().unwrap().next().unwrap();
            assert!(qp.complete(wc).is_ok());
        }
    }
}

/// mana's library posts the elements of a read before the request that it may refuse.
#[test]
fn read_refused_by_mana_stays_in_flight() {
    let fixture = of(MANA);
    let cq = fixture.cq(8);
    let mut qp: Pair = fixture.rc(&cq, 4);
    let remote = verbs::RemoteToken {
        addr: 0x1000,
        len: 4,
        rkey: 7,
    };
    fixture.fake.fail(Call::PostSend, libc::EINVAL);
    let failed = qp.post(op::Read::new(buf(&fixture), remote)).unwrap_err();
    check_kept(&failed);
    fixture.fake.fail(Call::PostRecv, libc::EINVAL);
    let refused = qp.post_recv(buf(&fixture)).unwrap_err();
    assert_eq!(&*refused.value.unwrap(), b"mine");
}

/// After exactly one posted request, mlx5's library hands the last descriptor to the device: the
/// refused one.
#[test]
fn second_request_refused_by_mlx5_stays_in_flight() {
    for (posted, returned) in [(0, 3), (1, 0), (2, 1)] {
        let fixture = of(MLX5);
        let cq = fixture.cq(8);
        let mut qp: Pair = fixture.rc(&cq, 4);
        let mut batch = qp.batch();
        (0..3).for_each(|_| batch.push(op::Send::new(buf(&fixture))).unwrap());
        fixture
            .fake
            .fail_after(posted, Call::PostSend, libc::EOPNOTSUPP);
        assert_eq!(batch.post().unwrap_err().value.len(), returned);
        assert_eq!(qp.send_queue().in_flight(), 3 - returned);
    }
}
