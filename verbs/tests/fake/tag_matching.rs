//! Shared receive queues with tag matching. Tests called `tm_…` are twins of pyverbs' tests.

use std::{io::ErrorKind, sync::Arc as Shared};

use ibverbs_sys::{ibv_ops_flags, ibv_ops_wr_opcode, ibv_wc_flags};
use softnic::Call;
use verbs::{
    Buf, RemoteToken, Uc, WcStatus,
    cq::{ExtendedCq, TagMatch, WcFields, WcOpcode},
    srq::{
        RendezvousHeader, TagCompletion, TagEntry, TagEvent, TagHeader, TagMatchingCapacity,
        TagMatchingQueue, TagOperation, TagPattern,
    },
    work::With,
};

use crate::fixture::Fixture;

pub(crate) const ROOM: TagMatchingCapacity = TagMatchingCapacity {
    max_wr: 4,
    max_sge: 1,
    max_num_tags: 10,
    max_ops: 10,
};

/// The tag of messages without a match.
const OTHER: u64 = 0x1234;

/// As many as pyverbs sends.
const TAGS: std::ops::Range<u64> = 1..10;

/// A tag-matching queue, on a device with support.
struct Matching {
    queue: TagMatchingQueue<Buf>,
    cq: ExtendedCq,
    fixture: Fixture,
}

impl Matching {
    fn new() -> Self {
        let fixture = Fixture::new();
        can_match(&fixture);
        let cq = fixture.ctx.cq_ex_builder(64).with(WcFields::TM_INFO);
        let cq = cq.create().unwrap();
        let queue = fixture.pd.create_tag_matching(cq.handle(), ROOM).unwrap();
        Self { queue, cq, fixture }
    }

    fn buf(&self) -> Buf {
        self.fixture.pd.alloc_buf(64).unwrap()
    }

    /// Adds a buffer for the low bits of a tag, and lets the device execute the operation.
    fn add(&mut self, tag: u64) -> TagEntry {
        let pattern = TagPattern { tag, mask: 0xffff };
        let entry = self.queue.add(pattern, self.buf()).unwrap();
        self.run();
        let (opcode, event) = self.next(|wc, _| {
            (
                wc.opcode(),
                matches!(wc.event, TagEvent::Added(added) if added == entry),
            )
        });
        assert_eq!((opcode, event), (Some(WcOpcode::TM_ADD), true));
        entry
    }

    fn run(&self) {
        self.fixture.fake.run_tag_operation(self.queue.as_raw());
    }

    fn arrive(&self, operation: TagOperation, tag: u64, data: &[u8]) {
        let header = TagHeader {
            operation,
            private: 7,
            tag,
        };
        let message = [&header.to_bytes()[..], data].concat();
        self.fixture
            .fake
            .arrive_tagged(self.queue.as_raw(), &message);
    }

    /// Hands the next completion to `look`, with its tag information.
    fn next<T>(&mut self, look: impl FnOnce(TagCompletion<'_, Buf>, TagMatch) -> T) -> T {
        let mut poll = self.cq.poll().unwrap().unwrap();
        let wc = poll.next().unwrap().unwrap();
        // A failed request has none.
        let info = wc.tm_info().unwrap_or(TagMatch { tag: 0, private: 0 });
        look(
            self.queue.complete(wc.into_work_completion()).unwrap(),
            info,
        )
    }
}

pub(crate) fn can_match(fixture: &Fixture) {
    fixture.fake.describe(|device| {
        device.attr.tm_caps.max_num_tags = 127;
        device.attr.tm_caps.max_ops = 64;
        device.attr.tm_caps.max_sge = 1;
        device.attr.tm_caps.flags = 1;
    });
}

#[test]
fn tm_traffic() {
    let mut matching = Matching::new();
    let entries: Vec<_> = TAGS.map(|tag| matching.add(tag)).collect();
    for (tag, entry) in TAGS.zip(entries).collect::<Vec<_>>().into_iter().rev() {
        matching.arrive(TagOperation::EAGER, tag, b"eager");
        matching.next(|wc, info| {
            assert_eq!(info, TagMatch { tag, private: 7 });
            assert!(wc.is_match() && !wc.sync_requested());
            assert_eq!((wc.opcode(), wc.byte_len()), (Some(WcOpcode::TM_RECV), 5));
            let TagEvent::Received {
                entry: received,
                work,
                incomplete: false,
            } = wc.event
            else {
                panic!("a message has come");
            };
            assert_eq!((received, &work[..5]), (entry, &b"eager"[..]));
        });
    }
    assert_eq!(
        (matching.queue.tags_in_flight(), matching.queue.unexpected()),
        (0, 0)
    );
}

#[test]
fn tm_unexpected_tag() {
    let mut matching = Matching::new();
    for tag in TAGS {
        matching.add(tag);
    }
    for (count, _) in (1..).zip(TAGS) {
        let untagged = matching.buf();
        matching.queue.post(untagged).unwrap();
        matching.arrive(TagOperation::EAGER, OTHER, b"data");
        matching.next(|wc, _| {
            assert!(!wc.is_match());
            let len = wc.byte_len();
            let TagEvent::Unexpected(work) = wc.event else {
                panic!("no operation on the list has this tag");
            };
            assert_eq!(TagHeader::from_message(&work).unwrap().tag, OTHER);
            assert_eq!(&work[TagHeader::LEN..len], b"data");
        });
        assert_eq!(matching.queue.unexpected(), count);
        matching.queue.sync().unwrap();
        let operations = matching
            .fixture
            .fake
            .tag_operations(matching.queue.as_raw());
        assert_eq!(operations[0].opcode, ibv_ops_wr_opcode::IBV_WR_TAG_SYNC);
        assert_eq!(operations[0].unexpected_cnt, count);
        matching.run();
        matching.next(|wc, _| {
            assert!(matches!(wc.event, TagEvent::Synced));
            assert_eq!(
                (wc.opcode(), wc.sync_requested()),
                (Some(WcOpcode::TM_SYNC), false)
            );
        });
    }
    assert_eq!(matching.queue.tags_in_flight(), 9);
}

#[test]
fn tm_no_tag() {
    let mut matching = Matching::new();
    for tag in TAGS {
        matching.add(tag);
    }
    for tag in TAGS {
        let untagged = matching.buf();
        matching.queue.post(untagged).unwrap();
        // A buffer waits for this tag, but the header has no tag.
        matching.arrive(TagOperation::NO_TAG, tag, b"data");
        matching.next(|wc, _| {
            assert_eq!(wc.opcode(), Some(WcOpcode::TM_NO_TAG));
            let TagEvent::NoTag(work) = wc.event else {
                panic!("it has no tag");
            };
            assert_eq!(&work[TagHeader::LEN..][..4], b"data");
        });
    }
    assert_eq!(
        (matching.queue.unexpected(), matching.queue.tags_in_flight()),
        (0, 9)
    );
}

#[test]
fn tm_rndv() {
    let mut matching = Matching::new();
    let entries: Vec<_> = TAGS.map(|tag| matching.add(tag)).collect();
    let token = RemoteToken {
        addr: 0x1000,
        len: 9,
        rkey: 5,
    };
    let header = RendezvousHeader::new(token).unwrap().to_bytes();
    for (tag, entry) in TAGS.zip(entries).collect::<Vec<_>>().into_iter().rev() {
        matching.arrive(TagOperation::RENDEZVOUS, tag, &header);
        matching.next(|wc, info| {
            assert_eq!((info.tag, wc.is_match()), (tag, true));
            assert!(matches!(wc.event, TagEvent::Matched(matched) if matched == entry));
        });
        // The buffer is still the device's.
        let srq = matching.queue.as_raw();
        matching.fixture.fake.finish_rendezvous(srq, b"all of it");
        matching.next(|wc, _| {
            assert!(!wc.is_match());
            let TagEvent::Received {
                entry: received,
                work,
                incomplete: false,
            } = wc.event
            else {
                panic!("the data have come");
            };
            assert_eq!((received, &work[..9]), (entry, &b"all of it"[..]));
        });
    }
    assert_eq!(matching.queue.tags_in_flight(), 0);
}

#[test]
fn tagged_buffer_is_removed_unless_already_matched() {
    let mut matching = Matching::new();
    let (first, second) = (matching.add(1), matching.add(2));
    matching.queue.remove(first).unwrap();
    let twice = matching.queue.remove(first).unwrap_err();
    assert!(
        twice
            .to_string()
            .contains("not on the list any more, or is being removed"),
        "{twice}"
    );
    matching.run();
    matching.next(|wc, _| {
        assert_eq!(wc.opcode(), Some(WcOpcode::TM_DEL));
        assert!(
            matches!(wc.event, TagEvent::Removed(entry, work) if entry == first && work.len() == 64)
        );
    });
    assert_eq!(
        matching.queue.remove(first).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );

    // A message matches before the device executes the removal: the message's completion returns
    // the buffer.
    matching.queue.remove(second).unwrap();
    matching.arrive(TagOperation::RENDEZVOUS, 2, &[0; 16]);
    matching.run();
    matching.next(|wc, _| assert!(matches!(wc.event, TagEvent::Matched(entry) if entry == second)));
    matching.next(|wc, _| {
        assert_eq!(wc.status(), WcStatus::TM_ERR);
        assert!(matches!(wc.event, TagEvent::NotRemoved(entry) if entry == second));
    });
    assert_eq!(matching.queue.tags_in_flight(), 1);
    matching
        .fixture
        .fake
        .finish_rendezvous(matching.queue.as_raw(), b"data");
    matching.next(|wc, _| {
        assert!(matches!(wc.event, TagEvent::Received { entry, .. } if entry == second))
    });

    // Or the message is complete: then its completion comes first.
    let third = matching.add(3);
    matching.queue.remove(third).unwrap();
    matching.arrive(TagOperation::EAGER, 3, b"data");
    matching.run();
    matching.next(|wc, _| assert!(matches!(wc.event, TagEvent::Received { .. })));
    assert_eq!(
        matching.queue.tags_in_flight(),
        1,
        "the removal is still to complete"
    );
    matching
        .next(|wc, _| assert!(matches!(wc.event, TagEvent::NotRemoved(entry) if entry == third)));
    assert_eq!(matching.queue.tags_in_flight(), 0);
}

#[test]
fn tagged_receive_waits_for_unexpected_messages() {
    let mut matching = Matching::new();
    let untagged = matching.buf();
    matching.queue.post(untagged).unwrap();
    matching.arrive(TagOperation::EAGER, OTHER, b"data");
    // The buffer is added without knowing of the message.
    let buf = matching.buf();
    let entry = matching.queue.add(TagPattern::exact(1), buf).unwrap();
    let operations = matching
        .fixture
        .fake
        .tag_operations(matching.queue.as_raw());
    let flags = ibv_ops_flags::IBV_OPS_SIGNALED | ibv_ops_flags::IBV_OPS_TM_SYNC;
    assert_eq!(
        (operations[0].flags, operations[0].unexpected_cnt),
        (flags.0, 0)
    );
    matching.run();
    matching.next(|wc, _| assert!(matches!(wc.event, TagEvent::Unexpected(_))));
    matching.next(|wc, _| {
        assert!(matches!(wc.event, TagEvent::Added(added) if added == entry));
        assert!(wc.sync_requested());
    });
    // Every operation reports the count.
    matching.queue.remove(entry).unwrap();
    let operations = matching
        .fixture
        .fake
        .tag_operations(matching.queue.as_raw());
    assert_eq!(operations[0].opcode, ibv_ops_wr_opcode::IBV_WR_TAG_DEL);
    assert_eq!(operations[0].unexpected_cnt, 1);
    matching.run();
    matching.next(|wc, _| assert!(!wc.sync_requested()));
}

#[test]
fn rendezvous_larger_than_the_buffer_leaves_its_headers() {
    let incomplete = WcStatus::TM_RNDV_INCOMPLETE;
    let mut matching = Matching::new();
    let entry = matching.add(1);
    let fake = &matching.fixture.fake;
    fake.fail_tagged(
        matching.queue.as_raw(),
        incomplete,
        ibv_wc_flags::IBV_WC_TM_MATCH.0,
    );
    // The device still writes the headers.
    matching.next(|wc, _| {
        assert_eq!(wc.status(), incomplete);
        assert!(matches!(wc.event, TagEvent::Matched(matched) if matched == entry));
    });
    matching
        .fixture
        .fake
        .finish_rendezvous(matching.queue.as_raw(), &[1; 32]);
    matching.next(|wc, _| {
        let TagEvent::Received {
            work,
            incomplete: true,
            ..
        } = wc.event
        else {
            panic!("the headers have come");
        };
        assert_eq!(
            TagHeader::from_message(&work).unwrap().operation,
            TagOperation::RENDEZVOUS
        );
    });

    // Or all at once.
    matching.add(2);
    let flags = ibv_wc_flags::IBV_WC_TM_DATA_VALID.0;
    matching
        .fixture
        .fake
        .fail_tagged(matching.queue.as_raw(), incomplete, flags);
    matching.next(|wc, _| {
        assert!(matches!(
            wc.event,
            TagEvent::Received {
                incomplete: true,
                ..
            }
        ))
    });
}

#[test]
fn failed_tagged_buffer_is_returned() {
    let mut matching = Matching::new();
    matching.add(1);
    let fake = &matching.fixture.fake;
    fake.fail_tagged(matching.queue.as_raw(), WcStatus::LOC_LEN_ERR, 0);
    matching.next(|wc, _| {
        assert_eq!(wc.ok().unwrap_err().status, WcStatus::LOC_LEN_ERR);
        assert!(matches!(wc.event, TagEvent::EntryFailed(_, work) if work.len() == 64));
    });
    assert_eq!(matching.queue.tags_in_flight(), 0);
}

#[test]
fn tag_queue_beyond_its_limits_returns_would_block() {
    let fixture = Fixture::new();
    can_match(&fixture);
    let cq = fixture.cq(64);
    let capacity = TagMatchingCapacity {
        max_num_tags: 1,
        max_ops: 2,
        ..ROOM
    };
    let available = cq.available();
    let token = Shared::new(());
    let work = || {
        With::new(
            vec![fixture.pd.alloc_buf(8).unwrap()],
            Shared::clone(&token),
        )
    };
    let mut queue = fixture.pd.create_tag_matching(&cq, capacity).unwrap();
    // Untagged receives, two for each tag, and one for each operation.
    assert_eq!(cq.available(), available - (4 + 2 + 2));
    queue.add(TagPattern::exact(1), work()).unwrap();
    {
        let refused = queue.add(TagPattern::exact(2), work()).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
        assert_eq!(refused.value.unwrap().work.len(), 1);
        let never = TagPattern { tag: 3, mask: 1 };
        let refused = queue.add(never, work()).unwrap_err();
        let reason = "no tag can be 0x3 in the bits 0x1";
        assert!(refused.to_string().contains(reason), "{refused}");
        let mut two = work();
        two.work.push(fixture.pd.alloc_buf(8).unwrap());
        let refused = queue.add(TagPattern::exact(1), two).unwrap_err();
        let reason = "2 elements, and a tagged buffer has at most 1";
        assert!(refused.to_string().contains(reason), "{refused}");
    }
    queue.sync().unwrap();
    assert_eq!(queue.sync().unwrap_err().kind(), ErrorKind::WouldBlock);
    // Buffers on the list are dropped only with the queue.
    assert_eq!(Shared::strong_count(&token), 2);
    fixture.fake.fail(Call::DestroySrq, libc::EBUSY);
    drop(queue);
    assert_eq!(
        Shared::strong_count(&token),
        2,
        "the device may still write to it"
    );
}

#[test]
fn refused_tag_operation_returns_the_work() {
    let mut matching = Matching::new();
    matching.fixture.fake.fail(Call::PostSrqOps, libc::ENOMEM);
    let buf = matching.buf();
    let refused = matching.queue.add(TagPattern::exact(1), buf).unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
    assert_eq!(
        (
            refused.value.unwrap().len(),
            matching.queue.tags_in_flight()
        ),
        (64, 0)
    );
    let entry = matching.add(1);
    matching.fixture.fake.fail(Call::PostSrqOps, libc::ENOMEM);
    assert_eq!(
        matching.queue.remove(entry).unwrap_err().raw_os_error(),
        Some(libc::ENOMEM)
    );
    // The removal can be repeated.
    matching.queue.remove(entry).unwrap();
    matching.run();
    matching.next(|wc, _| assert!(matches!(wc.event, TagEvent::Removed(..))));
}

#[test]
fn tag_matching_queue_pair_cannot_post() {
    let matching = Matching::new();
    let (pd, cq) = (&matching.fixture.pd, matching.cq.handle());
    let qp = pd
        .qp_builder::<verbs::Rc>(cq, cq)
        .tag_matching(&matching.queue);
    assert_eq!(qp.create().unwrap().query().unwrap().cap.max_send_wr, 0);
    let uc = pd.qp_builder::<Uc>(cq, cq).tag_matching(&matching.queue);
    let err = uc.create().unwrap_err();
    assert!(
        err.to_string()
            .contains("Uc does not receive by this shared queue"),
        "{err}"
    );
    let sends = pd
        .qp_builder::<verbs::Rc>(cq, cq)
        .tag_matching(&matching.queue)
        .max_send_wr(1);
    let err = sends.create().unwrap_err();
    assert!(
        err.to_string().contains("the send queue is the device's"),
        "{err}"
    );
}

#[test]
fn tag_matching_without_device_support_is_an_error() {
    let fixture = Fixture::new();
    let cq = fixture.cq(64);
    let err = fixture
        .pd
        .create_tag_matching::<Buf>(&cq, ROOM)
        .unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    assert!(
        err.to_string().contains("fake0 does not match tags"),
        "{err}"
    );
    can_match(&fixture);
    fixture.fake.fail(Call::CreateSrqEx, libc::EINVAL);
    let err = fixture
        .pd
        .create_tag_matching::<Buf>(&cq, ROOM)
        .unwrap_err();
    assert!(
        err.to_string()
            .contains("4 receives of 1 elements, 10 tags, 10 operations"),
        "{err}"
    );
    assert_eq!(cq.available(), cq.capacity());
}
