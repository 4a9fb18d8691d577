//! Failing posts, and the requests in the device's view: with every provider, a request not named
//! as refused stays in flight. `unproven_posts` has the named ones.

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Buf, Completed, Error, QueuePair, Rts, SharedReceiveQueue, WcStatus,
    error::{PostError, Refused},
    op,
    srq::{TagEvent, TagMatchingCapacity, TagMatchingQueue, TagPattern},
};

use crate::{allocations::allocations, fixture::Fixture};

const SOFT_ROCE: u32 = 0xff_ffff;
pub(crate) const SOFT_IWARP: u32 = 0x62_6d74;

/// The doorbell failures after the requests have been posted.
const DOORBELLS: [Call; 2] = [Call::Doorbell, Call::SilentDoorbell];

/// The errors of a doorbell. The last one is also that of libibverbs' stub for a missing function.
const ERRNOS: [i32; 2] = [libc::ENOMEM, libc::EOPNOTSUPP];

/// Devices of several vendors; some ring a doorbell by a system call.
const DEVICES: [fn() -> Fixture; 4] = [
    || of_vendor(Fixture::new(), 0x15b3),
    || of_vendor(Fixture::new(), SOFT_ROCE),
    || of_vendor(Fixture::iwarp(), SOFT_IWARP),
    || of_vendor(Fixture::iwarp(), 0x1425),
];

pub(crate) fn of_vendor(fixture: Fixture, vendor: u32) -> Fixture {
    let describe = |attr: &mut ffi::ibv_device_attr_ex| attr.orig_attr.vendor_id = vendor;
    fixture.fake.describe(|device| describe(&mut device.attr));
    fixture
}

/// A failure of the doorbell.
#[derive(Clone, Copy)]
struct Failure {
    doorbell: Call,
    errno: i32,
}

impl Failure {
    /// Lets the next doorbell fail.
    fn begin(self, fixture: &Fixture) {
        fixture.fake.fail(self.doorbell, self.errno);
    }

    /// Checks the result of a post whose doorbell has failed. Of the providers that ring it by a system
    /// call, and name no request, the source proves that the request is posted.
    fn check<R>(self, fixture: &Fixture, posted: Result<(), PostError<R>>) {
        let vendor = fixture.ctx.query_device().unwrap().vendor_id();
        if self.doorbell == Call::Doorbell && [SOFT_ROCE, SOFT_IWARP].contains(&vendor) {
            posted.unwrap();
        } else {
            self.check_kept(&posted.unwrap_err());
        }
    }

    fn check_kept<R>(self, failed: &PostError<R>) {
        assert!(failed.value.is_none(), "the device has the request");
        assert_eq!(failed.error.raw_os_error(), Some(self.errno));
        let text = failed.error.to_string();
        assert!(text.contains("the device may have the re"), "{text}");
        assert!(text.contains("get the memory back") || text.contains("free the memory"));
    }
}

/// Each device with each doorbell failure.
fn each(test: impl Fn(&Fixture, Failure)) {
    for device in DEVICES {
        for doorbell in DOORBELLS {
            for errno in ERRNOS {
                test(&device(), Failure { doorbell, errno });
            }
        }
    }
}

pub(crate) fn buf(fixture: &Fixture) -> Buf {
    fixture.pd.register_buf(*b"mine").unwrap()
}

fn errno<T>(refused: &Refused<T>) -> Option<i32> {
    refused.error.raw_os_error()
}

#[test]
fn send_whose_doorbell_fails_stays_in_flight() {
    each(|fixture, failure| {
        let mut cq = fixture.cq(8);
        let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 4);
        let number = qp.qp_num();
        failure.begin(fixture);
        let posted = qp.post(op::Send::new(buf(fixture)));
        let is_posted = posted.is_ok();
        failure.check(fixture, posted);
        assert_eq!(qp.send_queue().in_flight(), 1);
        let doorbell = qp.take_doorbell_error();
        let errno = doorbell.and_then(|error| error.raw_os_error());
        assert_eq!(errno, is_posted.then_some(failure.errno));
        assert!(qp.take_doorbell_error().is_none(), "taken once");
        assert_eq!(fixture.fake.sends(number)[0].bytes(), b"mine");
        fixture.fake.complete_send(number, WcStatus::SUCCESS);
        let completion = cq.poll().unwrap().next().unwrap();
        assert!(matches!(qp.complete(completion), Ok(Completed::Send(_))));
    });
}

#[test]
fn send_named_as_bad_wr_is_returned() {
    for device in DEVICES {
        let fixture = device();
        let cq = fixture.cq(8);
        let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 4);
        fixture.fake.fail(Call::PostSend, libc::ENOMEM);
        let refused = qp.post(op::Send::new(buf(&fixture))).unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(&*refused.value.unwrap().into_work(), b"mine");
        fixture.fake.fail(Call::PostRecv, libc::ENOMEM);
        let refused = qp.post_recv(buf(&fixture)).unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
        assert_eq!(&*refused.value.unwrap(), b"mine");
        assert_eq!(
            qp.send_queue().in_flight() + qp.receive_queue().in_flight(),
            0
        );
    }
}

/// Soft-iWARP's provider reports success, and names the refused request.
#[test]
fn batch_refused_in_part_with_success_returns_the_refused_requests() {
    let fixture = of_vendor(Fixture::iwarp(), SOFT_IWARP);
    let cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 4);
    let mut batch = qp.batch();
    for _ in 0..4 {
        batch.push(op::Send::new(buf(&fixture))).unwrap();
    }
    fixture.fake.fail_after(2, Call::PostSend, libc::ENOMEM);
    let refused = batch.post().unwrap_err();
    assert_eq!(errno(&refused), Some(libc::EINVAL));
    assert_eq!(refused.value.len(), 2);
    let text = refused.error.to_string();
    assert!(text.contains("request 2 of 4"), "{text}");
    assert_eq!(qp.send_queue().in_flight(), 2);
}

#[test]
fn batch_whose_doorbell_fails_stays_in_flight() {
    each(|fixture, failure| {
        let cq = fixture.cq(16);
        let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 4);
        let mut batch = qp.batch();
        for _ in 0..3 {
            batch.push(op::Send::new(buf(fixture))).unwrap();
        }
        failure.begin(fixture);
        let refused = batch.post().unwrap_err();
        assert_eq!(
            (errno(&refused), refused.value.len()),
            (Some(failure.errno), 0)
        );
        assert_eq!(qp.send_queue().in_flight(), 3);
        let mut batch = qp.recv_batch();
        for _ in 0..3 {
            batch.push(buf(fixture)).unwrap();
        }
        failure.begin(fixture);
        let refused = batch.post().unwrap_err();
        assert_eq!(
            (errno(&refused), refused.value.len()),
            (Some(failure.errno), 0)
        );
        assert_eq!(qp.receive_queue().in_flight(), 3);
    });
}

#[test]
fn receive_whose_doorbell_fails_stays_in_flight() {
    each(|fixture, failure| {
        let mut cq = fixture.cq(16);
        let mut qp: QueuePair<verbs::Rc, Rts, Buf, [Buf; 2]> = fixture.rc(&cq, 4);
        failure.begin(fixture);
        let posted = qp.post_recv([buf(fixture), buf(fixture)]);
        failure.check(fixture, posted);
        // Also for elements without bytes.
        failure.begin(fixture);
        let mut first = buf(fixture);
        let rest = first.split_off(4);
        failure.check(fixture, qp.post_recv([first, rest]));
        for _ in 0..2 {
            fixture.fake.complete_receive(qp.qp_num(), b"news");
            let completion = cq.poll().unwrap().next().unwrap();
            let Ok(Completed::Receive(done)) = qp.complete(completion) else {
                panic!("a receive");
            };
            assert_eq!(&*done.work().unwrap()[0], b"news");
        }
    });
}

#[test]
fn shared_receive_whose_doorbell_fails_stays_in_flight() {
    each(|fixture, failure| {
        let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
        failure.begin(fixture);
        failure.check(fixture, srq.post(buf(fixture)));
        let mut batch = srq.batch();
        batch.push(buf(fixture)).unwrap();
        failure.begin(fixture);
        let refused = batch.post().unwrap_err();
        assert_eq!(
            (errno(&refused), refused.value.len()),
            (Some(failure.errno), 0)
        );
        assert_eq!(
            (
                srq.in_flight(),
                fixture.fake.srq_receives(srq.as_raw()).len()
            ),
            (2, 2)
        );
        fixture.fake.fail(Call::PostSrqRecv, libc::ENOMEM);
        let refused = srq.post(buf(fixture)).unwrap_err();
        assert_eq!(&*refused.value.unwrap(), b"mine");
    });
}

#[test]
fn packet_receive_whose_doorbell_fails_stays_in_flight() {
    each(|fixture, failure| {
        let mut cq = fixture.cq(8);
        let mut wq = fixture.pd.wq_builder(&cq).max_wr(4).create().unwrap();
        wq.to_ready().unwrap();
        failure.begin(fixture);
        failure.check(fixture, wq.post(buf(fixture)));
        fixture.fake.complete_wq(wq.as_raw(), b"news");
        let completion = cq.poll().unwrap().next().unwrap();
        assert_eq!(
            wq.complete(completion).unwrap().received().unwrap(),
            b"news"
        );
        fixture.fake.fail(Call::PostWqRecv, libc::ENOMEM);
        let refused = wq.post(buf(fixture)).unwrap_err();
        assert_eq!(&*refused.value.unwrap(), b"mine");
    });
}

/// The handle of such a buffer is unknown, so the buffer cannot be removed, but returns by
/// completion.
#[test]
fn tagged_buffer_whose_doorbell_fails_stays_in_flight() {
    let capacity = TagMatchingCapacity {
        max_wr: 4,
        max_sge: 1,
        max_num_tags: 4,
        max_ops: 4,
    };
    each(|fixture, failure| {
        fixture.fake.describe(|device| {
            device.attr.tm_caps.max_num_tags = 4;
            device.attr.tm_caps.max_ops = 4;
            device.attr.tm_caps.max_sge = 1;
        });
        let mut cq = fixture.cq(64);
        let mut queue: TagMatchingQueue = fixture.pd.create_tag_matching(&cq, capacity).unwrap();
        failure.begin(fixture);
        let failed = queue.add(TagPattern::exact(7), buf(fixture)).unwrap_err();
        failure.check_kept(&failed);
        fixture.fake.run_tag_operation(queue.as_raw());
        let mut message = verbs::srq::TagHeader {
            operation: verbs::srq::TagOperation::EAGER,
            private: 0,
            tag: 7,
        }
        .to_bytes()
        .to_vec();
        message.extend_from_slice(b"news");
        fixture.fake.arrive_tagged(queue.as_raw(), &message);
        let mut messages = Vec::new();
        let mut removed = Vec::new();
        for completion in cq.poll().unwrap() {
            match queue.complete(completion).unwrap().event {
                TagEvent::Added(entry) => removed.push(queue.remove(entry)),
                TagEvent::Received { work, .. } => messages.push(work.to_vec()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(messages, [b"news"]);
        assert!(matches!(removed[..], [Err(_)]), "its handle is not known");
        fixture.fake.fail(Call::PostSrqOps, libc::ENOMEM);
        let refused = queue.add(TagPattern::exact(8), buf(fixture)).unwrap_err();
        assert_eq!(&*refused.value.unwrap(), b"mine");
    });
}

/// A full queue is part of the ordinary course.
#[test]
fn full_queue_refuses_without_an_allocation() {
    let fixture = Fixture::new();
    let cq = fixture.cq(32);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 1);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(1, 1).unwrap();
    let mut wq = fixture.pd.wq_builder(&cq).max_wr(1).create().unwrap();
    qp.post(op::Send::new(buf(&fixture))).unwrap();
    qp.post_recv(buf(&fixture)).unwrap();
    srq.post(buf(&fixture)).unwrap();
    wq.post(buf(&fixture)).unwrap();
    let mut again = Some(buf(&fixture));
    let mut refuse = |post: &mut dyn FnMut(Buf) -> PostError<Buf>| {
        let work = again.take().unwrap();
        let count = allocations(|| again = post(work).value);
        assert_eq!(count, 0);
    };
    refuse(&mut |work| {
        qp.post(op::Send::new(work))
            .unwrap_err()
            .map(op::Send::into_work)
    });
    refuse(&mut |work| qp.post_recv(work).unwrap_err());
    refuse(&mut |work| qp.recv_batch().push(work).unwrap_err().into());
    refuse(&mut |work| srq.post(work).unwrap_err());
    refuse(&mut |work| srq.batch().push(work).unwrap_err().into());
    refuse(&mut |work| wq.post(work).unwrap_err());
    let mut batch = qp.batch();
    refuse(&mut |work| {
        let refused = batch.push(op::Send::new(work)).unwrap_err();
        refused.map(op::Send::into_work).into()
    });
}

#[test]
fn full_queue_refuses_with_would_block() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp: QueuePair<verbs::Rc, Rts, Buf, Buf> = fixture.rc(&cq, 1);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(1, 1).unwrap();
    let mut refusals: Vec<Error> = Vec::new();
    for round in 0..2 {
        let send = qp.post(op::Send::new(buf(&fixture))).map_err(Error::from);
        let receive = qp.post_recv(buf(&fixture)).map_err(Error::from);
        let shared = srq.post(buf(&fixture)).map_err(Error::from);
        let results = [send, receive, shared];
        assert!(round == 1 || results.iter().all(Result::is_ok));
        refusals.extend(results.into_iter().filter_map(Result::err));
    }
    let texts: Vec<String> = refusals.iter().map(Error::to_string).collect();
    assert_eq!(
        texts,
        [
            "`ibv_post_send` failed: every request that the queue can hold is in flight; poll its completion queue",
            "`ibv_post_recv` failed: every request that the queue can hold is in flight; poll its completion queue",
            "`ibv_post_srq_recv` failed: every receive that the queue can hold is in flight; poll its completion queue",
        ]
    );
    for refusal in refusals {
        assert_eq!(refusal.kind(), std::io::ErrorKind::WouldBlock);
        assert_eq!(refusal.raw_os_error(), None);
    }
}

/// Every limit that was chosen by the program: the error has the value, the limit, and the way out.
#[test]
fn refusal_by_a_limit_of_the_program_names_the_way_out() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(32);
    let two = || [(); 2].map(|()| buf(&fixture));
    let qp = fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let qp = qp.max_inline_data(8).create_for().unwrap();
    let mut qp: QueuePair<verbs::Rc, Rts, [Buf; 2], [Buf; 2]> = fixture.connect(qp);
    let mut srq: SharedReceiveQueue<[Buf; 2]> = fixture.pd.create_srq(1, 1).unwrap();
    let mut wq = fixture.pd.wq_builder(&cq).create_for().unwrap();
    let max_inline = qp.send_queue().max_inline_data();
    let long = vec![0; max_inline + 1];
    let sizes = (
        format!("{} bytes inline", max_inline + 1),
        format!("made for {max_inline}"),
    );
    let refusals: [(Error, &[&str]); 6] = [
        (
            qp.post(op::Send::new(two())).unwrap_err().error,
            &["2 elements", "made for 1", "; raise `max_send_sge`"],
        ),
        (
            qp.post(op::Send::new(two()).inline(&long))
                .unwrap_err()
                .error,
            &[&sizes.0, &sizes.1, "; raise `max_inline_data`"],
        ),
        (
            qp.post_recv(two()).unwrap_err().error,
            &["2 elements", "made for 1", "; make the queue for more"],
        ),
        (
            srq.post(two()).unwrap_err().error,
            &["2 elements", "made for 1", "; make the queue for more"],
        ),
        (
            wq.post(two()).unwrap_err().error,
            &["2 elements", "made for 1", "; make the queue for more"],
        ),
        (
            cq.resize(1).unwrap_err(),
            &[
                "1 entries",
                "3 entries are reserved",
                "; destroy some first",
            ],
        ),
    ];
    for (error, parts) in refusals {
        let text = error.to_string();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn shared_queue_of_another_domain_is_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let srq: SharedReceiveQueue = fixture.pd.create_srq(1, 1).unwrap();
    let other = fixture.ctx.alloc_pd().unwrap();
    let refused = other.qp_builder::<verbs::Rc>(&cq, &cq).srq(&srq).create();
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
    let text = refused.to_string();
    assert!(text.contains("another protection domain"), "{text}");
    // For the device, a parent domain and the domain underneath are the same, in either role.
    let parent = fixture.pd.parent_domain_builder().create().unwrap();
    let of_parent: SharedReceiveQueue = parent.create_srq(1, 1).unwrap();
    for (pd, srq) in [(&parent, &srq), (&fixture.pd, &of_parent)] {
        pd.qp_builder::<verbs::Rc>(&cq, &cq)
            .srq(srq)
            .create()
            .unwrap();
    }
}
