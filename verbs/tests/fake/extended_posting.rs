//! Extended batches on a device with every operation, or with failures on demand.

use std::{
    io::{ErrorKind, IoSlice},
    sync::{Arc, Mutex},
};

use ibverbs_sys::{ibv_qp_type, ibv_send_flags, ibv_wr_opcode as opcode};
use softnic::Call;
use verbs::{
    Buf, Completed, CompletionQueue, Gid, Init, QueuePair, RemoteAccess, RemoteToken, Rtr, Rts, Ud,
    WcStatus,
    ah::{AddressVector, Addressed},
    mw::WindowType,
    op::{self, Placement, SendOps},
    qp::{Attributes, ExtendedBatch, Psn},
    work::{Gather, SgeList, With},
};

use crate::{allocations::allocations, fixture::Fixture, provider::PostedSend};

const REMOTE: RemoteToken = RemoteToken {
    addr: 0x1000,
    len: 64,
    rkey: 7,
};

fn extended<SW: Gather + 'static>(
    fixture: &Fixture,
    cq: &CompletionQueue,
    ops: SendOps,
) -> QueuePair<verbs::Rc, Rts, SW> {
    let builder = fixture.pd.qp_builder(cq, cq).max_send_wr(6);
    let builder = builder.max_send_sge(4).max_inline_data(32).send_ops(ops);
    fixture.connect(builder.create_for().unwrap())
}

fn buf(fixture: &Fixture, bytes: &[u8]) -> Buf {
    fixture.pd.register_buf(bytes).unwrap()
}

/// The device's view of one request posted in a batch.
fn posted(add: impl FnOnce(&Fixture, &mut ExtendedBatch<'_, verbs::Rc, Buf, Buf>)) -> PostedSend {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let mut qp = extended(&fixture, &cq, SendOps::all());
    let mut batch = qp.extended_batch().unwrap();
    add(&fixture, &mut batch);
    assert_eq!(batch.len(), 1);
    batch.post().unwrap();
    let mut sends = fixture.fake.sends(qp.qp_num());
    assert_eq!(sends.len(), 1);
    let mut send = sends.remove(0);
    // The memory goes with the fixture.
    send.inline = Some(send.bytes());
    send
}

fn push<R>(make: impl FnOnce(Buf) -> R) -> PostedSend
where
    R: op::ExtendedRequest<verbs::Rc, Work = Buf>,
{
    posted(|fixture, batch| {
        let request = make(buf(fixture, b"8 bytes!"));
        assert!(batch.push(request).is_ok());
    })
}

#[test]
fn extended_sends_reach_the_device_unchanged() {
    let plain = push(|buf| op::Send::new(buf).solicited().fenced());
    assert_eq!(plain.opcode, opcode::IBV_WR_SEND);
    assert_eq!(plain.bytes(), b"8 bytes!");
    let flags = [
        ibv_send_flags::IBV_SEND_SIGNALED,
        ibv_send_flags::IBV_SEND_SOLICITED,
        ibv_send_flags::IBV_SEND_FENCE,
    ];
    assert_eq!(plain.flags, flags.iter().fold(0, |all, flag| all | flag.0));
    let imm = push(|buf| op::Send::new(buf).imm_data(5).unsignaled());
    assert_eq!(imm.opcode, opcode::IBV_WR_SEND_WITH_IMM);
    assert_eq!((imm.imm_data, imm.is_signaled()), (Some(5), false));
    let inv = push(|buf| op::Send::new(buf).invalidate(9));
    assert_eq!(inv.opcode, opcode::IBV_WR_SEND_WITH_INV);
    assert_eq!(inv.invalidate_rkey, Some(9));
    let local = push(|buf| op::LocalInvalidate::new(buf, 9));
    assert_eq!(local.opcode, opcode::IBV_WR_LOCAL_INV);
    assert_eq!(local.invalidate_rkey, Some(9));
    assert!(local.sges.is_empty());
}

#[test]
fn extended_rdma_and_atomics_reach_the_device_unchanged() {
    let remote = Some((REMOTE.addr, REMOTE.rkey));
    let write = push(|buf| op::Write::new(buf, REMOTE));
    assert_eq!(write.opcode, opcode::IBV_WR_RDMA_WRITE);
    assert_eq!(
        (write.remote, &write.bytes()[..]),
        (remote, &b"8 bytes!"[..])
    );
    let imm = push(|buf| op::Write::new(buf, REMOTE).imm_data(6));
    assert_eq!(imm.opcode, opcode::IBV_WR_RDMA_WRITE_WITH_IMM);
    assert_eq!((imm.remote, imm.imm_data), (remote, Some(6)));
    let read = push(|buf| op::Read::new(buf, REMOTE));
    assert_eq!(read.opcode, opcode::IBV_WR_RDMA_READ);
    assert_eq!((read.remote, read.sges.len()), (remote, 1));
    let swap = push(|buf| op::CompareSwap::new(buf, REMOTE, 1, 2));
    assert_eq!(swap.opcode, opcode::IBV_WR_ATOMIC_CMP_AND_SWP);
    assert_eq!((swap.compare_add, swap.swap), (Some(1), Some(2)));
    let add = push(|buf| op::FetchAdd::new(buf, REMOTE, 3));
    assert_eq!(add.opcode, opcode::IBV_WR_ATOMIC_FETCH_AND_ADD);
    assert_eq!((add.remote, add.compare_add), (remote, Some(3)));
    let write = push(|buf| op::AtomicWrite::new(buf, REMOTE, *b"at once!"));
    assert_eq!(write.opcode, opcode::IBV_WR_ATOMIC_WRITE);
    assert_eq!(
        (write.remote, write.atomic_write),
        (remote, Some(*b"at once!"))
    );
    assert!(write.sges.is_empty());
    let flush = push(|buf| op::Flush::new(buf, REMOTE, Placement::GLOBAL));
    assert_eq!(flush.opcode, opcode::IBV_WR_FLUSH);
    assert_eq!((flush.remote, flush.flush), (remote, Some((64, 1, 0))));
    let flush = push(|buf| op::Flush::new(buf, REMOTE, Placement::all()).whole_region());
    assert_eq!(flush.flush, Some((64, 3, 1)));
}

#[test]
fn extended_inline_data_are_copied_by_push() {
    let one = posted(|fixture, batch| {
        let mut data = *b"copied";
        let send = op::Send::new(buf(fixture, b"kept")).inline(&data);
        assert!(batch.push(send).is_ok());
        data.fill(0);
    });
    assert_eq!(one.bytes(), b"copied");
    let list = posted(|fixture, batch| {
        let parts = ["co", "", "pied"].map(|part| IoSlice::new(part.as_bytes()));
        let write = op::Write::new(buf(fixture, b"kept"), REMOTE).inline_list(&parts);
        assert!(batch.push(write).is_ok());
    });
    assert_eq!(list.bytes(), b"copied");
    assert_eq!(list.opcode, opcode::IBV_WR_RDMA_WRITE);
}

#[test]
fn element_lists_of_any_length_reach_the_device() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let mut qp = extended::<Vec<Buf>>(&fixture, &cq, SendOps::SEND);
    let mut batch = qp.extended_batch().unwrap();
    let works = [&["a", "bc", "d"][..], &[], &["efg"]];
    for work in works {
        let work = work.iter().map(|part| buf(&fixture, part.as_bytes()));
        batch.push(op::Send::new(work.collect())).unwrap();
    }
    batch.post().unwrap();
    let sends = fixture.fake.sends(qp.qp_num());
    let sent: Vec<_> = sends
        .iter()
        .map(|send| (send.sges.len(), send.bytes()))
        .collect();
    let expected = [(3, b"abcd".to_vec()), (0, vec![]), (1, b"efg".to_vec())];
    assert_eq!(sent, expected);
}

#[test]
fn window_is_bound_and_its_key_sent_in_one_batch() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts> =
        extended(&fixture, &cq, SendOps::BIND_MW | SendOps::SEND);
    let region = fixture.pd.alloc_for_windows(64).unwrap();
    let mut window = fixture.pd.alloc_mw(WindowType::Type2).unwrap();
    let before = window.rkey();
    for (post, refuse) in [(false, false), (true, true), (true, false)] {
        let mut batch = qp.extended_batch().unwrap();
        let access = RemoteAccess::WRITE;
        let work = buf(&fixture, b"kept");
        let token = batch
            .bind_window(&mut window, &region, access, work)
            .unwrap();
        let key = buf(&fixture, &token.rkey.to_ne_bytes());
        batch.push(op::Send::new(key)).unwrap();
        if !post {
            assert_eq!(batch.abort().len(), 2);
            assert_eq!(window.rkey(), before, "it was not bound");
            continue;
        }
        if refuse {
            fixture.fake.fail(Call::WrComplete, libc::ENOMEM);
            assert_eq!(batch.post().unwrap_err().value.len(), 2);
            assert_eq!(window.rkey(), before, "it was not bound");
            continue;
        }
        batch.post().unwrap();
        assert_eq!(window.rkey(), token.rkey);
        assert_ne!(before, token.rkey);
        let sends = fixture.fake.sends(qp.qp_num());
        let (mw, rkey, bind) = sends[0].bind.unwrap();
        assert_eq!((mw, rkey), (window.as_raw().addr(), token.rkey));
        assert_eq!(
            (bind.addr, bind.length, bind.access),
            (token.addr, 64, access.bits())
        );
        assert_eq!(sends[1].bytes(), token.rkey.to_ne_bytes());
    }
    let mut first = fixture.pd.alloc_mw(WindowType::Type1).unwrap();
    let mut batch = qp.extended_batch().unwrap();
    let work = buf(&fixture, b"kept");
    let refused = batch.bind_window(&mut first, &region, RemoteAccess::READ, work);
    assert_eq!(refused.unwrap_err().error.kind(), ErrorKind::InvalidInput);
}

fn datagrams(
    fixture: &Fixture,
    cq: &CompletionQueue,
) -> verbs::Result<QueuePair<Ud, Rts, Addressed<Buf>>> {
    let builder = fixture.pd.qp_builder::<Ud>(cq, cq).max_send_wr(4);
    let builder = builder.send_ops(SendOps::SEND | SendOps::TSO);
    let qp = builder.max_tso_header(54).create_for()?;
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, 1))?;
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new())?;
    Ok(qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))?)
}

#[test]
fn tso_datagrams_beyond_the_device_limits_are_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let err = datagrams(&fixture, &cq).map(drop).unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported, "{err}");
    fixture.fake.describe(|device| {
        device.attr.tso_caps.max_tso = 100;
        device.attr.tso_caps.supported_qpts = 1 << ibv_qp_type::IBV_QPT_UD.0;
    });
    let mut qp = datagrams(&fixture, &cq).unwrap();
    let peer = qp.qp_num();
    let address_vector = AddressVector::global(1, 1, Gid([0xfe; 16]));
    let ah = fixture.pd.create_ah(&address_vector).unwrap();
    let work = |len| Addressed::new(fixture.pd.alloc_buf(len).unwrap(), &ah);
    let header = [1; 55];
    let wrong = [(55, 100, 9), (54, 101, 9), (54, 100, 0)];
    for (header_len, len, mss) in wrong {
        let tso = || op::SendTso::new(work(len), peer, 1, &header[..header_len], mss);
        let refused = qp.post(tso()).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
        let mut batch = qp.extended_batch().unwrap();
        let refused = batch.push(tso()).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
        assert_eq!(refused.value.into_work().work.len(), len);
    }
    // Both ways of posting give the device the same request.
    let tso = || op::SendTso::new(work(100), peer, 8, &header[..54], 9).ip_csum();
    qp.post(tso()).unwrap();
    let mut batch = qp.extended_batch().unwrap();
    batch.push(tso()).unwrap();
    batch.push(op::SendTo::new(work(3), peer, 8)).unwrap();
    batch.post().unwrap();
    let sends = fixture.fake.sends(peer);
    for send in &sends[..2] {
        assert_eq!(send.opcode, opcode::IBV_WR_TSO);
        assert_eq!(send.tso, Some((vec![1; 54], 9)));
        assert_ne!(send.flags & ibv_send_flags::IBV_SEND_IP_CSUM.0, 0);
    }
    for send in &sends {
        assert_eq!(send.datagram, Some((ah.as_raw().addr(), peer.get(), 8)));
    }
    assert_eq!(sends[2].bytes().len(), 3);
}

/// A batch of `len` works, every other one unsignaled.
fn fill<'q>(
    fixture: &Fixture,
    qp: &'q mut QueuePair<verbs::Rc, Rts, With<Buf, u8>>,
    len: u8,
) -> ExtendedBatch<'q, verbs::Rc, With<Buf, u8>, Buf> {
    let mut batch = qp.extended_batch().unwrap();
    for i in 0..len {
        let send = op::Send::new(With::new(buf(fixture, &[i]), i));
        let send = if i % 2 == 0 { send.unsignaled() } else { send };
        batch.push(send).unwrap();
    }
    batch
}

#[test]
fn failed_extended_batch_posts_nothing_at_any_request() {
    const LEN: u8 = 5;
    for failing in 0..=LEN {
        let fixture = Fixture::new();
        let mut cq = fixture.cq(16);
        let mut qp = extended::<With<Buf, u8>>(&fixture, &cq, SendOps::SEND);
        let fake = &fixture.fake;
        if failing < LEN {
            fake.fail_after(failing.into(), Call::PostSend, libc::ENOMEM);
        } else {
            fake.fail(Call::WrComplete, libc::ENOMEM);
        }
        let refused = fill(&fixture, &mut qp, LEN).post().unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::ENOMEM));
        let back: Vec<_> = refused.value.iter().map(|work| work.context).collect();
        assert_eq!(back, [0, 1, 2, 3, 4]);
        assert!(fake.sends(qp.qp_num()).is_empty());
        let queue = qp.send_queue();
        assert_eq!(
            (queue.in_flight(), queue.unsignaled(), queue.capacity()),
            (0, 0, 6)
        );
        // And the queue goes on, either way.
        fill(&fixture, &mut qp, 2).post().unwrap();
        qp.post(op::Send::new(With::new(buf(&fixture, b"x"), 9)))
            .unwrap();
        let mut contexts = Vec::new();
        for _ in 0..3 {
            fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        }
        for wc in cq.poll().unwrap() {
            let done = qp.complete_each(wc, |_| ()).unwrap();
            contexts.push(done.work().unwrap().context);
        }
        assert_eq!(contexts, [1, 9]);
    }
}

#[test]
fn aborted_or_dropped_extended_batch_posts_nothing() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let mut qp = extended::<With<Buf, u8>>(&fixture, &cq, SendOps::SEND);
    let before = op::Send::new(With::new(buf(&fixture, b"before"), 0)).unsignaled();
    qp.post(before).unwrap();
    let back = fill(&fixture, &mut qp, 4).abort();
    assert_eq!(
        back.iter().map(|work| work.context).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    assert_eq!(qp.send_queue().unsignaled(), 1);
    drop(fill(&fixture, &mut qp, 2));
    qp.extended_batch().unwrap().post().unwrap();
    assert_eq!(fixture.fake.sends(qp.qp_num()).len(), 1);
    assert_eq!(qp.send_queue().in_flight(), 1);
    assert_eq!(qp.send_queue().unsignaled(), 1);
    fill(&fixture, &mut qp, 5).post().unwrap();
    assert_eq!(fixture.fake.sends(qp.qp_num()).len(), 6);
}

#[test]
fn refused_push_leaves_the_extended_batch_unchanged() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let mut qp = extended::<With<Buf, u8>>(&fixture, &cq, SendOps::SEND);
    let work = || With::new(buf(&fixture, b"work"), 7);
    let mut batch = fill(&fixture, &mut qp, 5);
    let long = batch
        .push(op::Send::new(work()).inline(&[0; 33]))
        .unwrap_err();
    assert_eq!(long.error.kind(), ErrorKind::InvalidInput);
    let other = batch.push(op::Write::new(work(), REMOTE)).unwrap_err();
    assert_eq!(other.error.kind(), ErrorKind::Unsupported);
    let message = other.error.to_string();
    let expected = "`ibv_wr_rdma_write` failed: the queue pair was not made for SendOps(RDMA_WRITE); \
                    build it with `send_ops`";
    assert_eq!(message, expected);
    assert_eq!(other.value.into_work().context, 7);
    batch.push(op::Send::new(work())).unwrap();
    let full = batch.push(op::Send::new(work())).unwrap_err();
    assert_eq!(full.error.kind(), ErrorKind::WouldBlock);
    assert_eq!(batch.len(), 6);
    batch.post().unwrap();
    assert_eq!(fixture.fake.sends(qp.qp_num()).len(), 6);
}

#[test]
fn unsignaled_requests_of_batches_never_fill_the_queue() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts> = extended(&fixture, &cq, SendOps::SEND);
    for _ in 0..50 {
        let mut batch = qp.extended_batch().unwrap();
        for _ in 0..3 {
            let send = op::Send::new(buf(&fixture, b"x")).unsignaled();
            batch.push(send).unwrap();
        }
        batch.post().unwrap();
        for _ in 0..3 {
            fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
        }
        for wc in cq.poll().unwrap() {
            assert!(matches!(qp.complete(wc), Ok(Completed::Send(_))));
        }
    }
}

#[test]
#[expect(clippy::mem_forget, reason = "the point of the test")]
fn forgotten_batch_posts_nothing_and_locks_nothing() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut qp = extended::<With<Buf, u8>>(&fixture, &cq, SendOps::SEND);
    let fake = &fixture.fake;
    for _ in 0..3 {
        std::mem::forget(fill(&fixture, &mut qp, 6));
        assert_eq!(qp.send_queue().in_flight(), 0);
        qp.post(op::Send::new(With::new(buf(&fixture, b"plain"), 7)))
            .unwrap();
        fill(&fixture, &mut qp, 2).post().unwrap();
        let sent: Vec<_> = fake.sends(qp.qp_num()).iter().map(|s| s.bytes()).collect();
        assert_eq!(sent, [&b"plain"[..], &[0], &[1]]);
        (0..3).for_each(|_| fake.complete_send(qp.qp_num(), WcStatus::SUCCESS));
        let mut contexts = Vec::new();
        for wc in cq.poll().unwrap() {
            let done = qp.complete_each(wc, |earlier| contexts.push(earlier.context));
            contexts.push(done.unwrap().work().unwrap().context);
        }
        assert_eq!(contexts, [7, 0, 1]);
    }
    // The fake reports a destruction during building.
    std::mem::forget(fill(&fixture, &mut qp, 2));
    drop(qp);
}

/// A work that polls while gathered.
struct Polling {
    buf: Buf,
    cq: Arc<Mutex<CompletionQueue>>,
}

// SAFETY: the buffer's elements.
unsafe impl Gather for Polling {
    fn gather(&self, list: &mut SgeList) {
        assert_eq!(self.cq.lock().unwrap().poll().unwrap().count(), 0);
        self.buf.gather(list);
    }
}

/// A provider can hold the lock of the send queue from `ibv_wr_start` to `ibv_wr_complete`. EFA's
/// poll of a completion of the queue pair takes the same lock.
#[test]
fn provider_holds_no_lock_while_an_extended_batch_is_open() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let mut qp = extended::<Polling>(&fixture, &cq, SendOps::SEND);
    let cq = Arc::new(Mutex::new(cq));
    let mut batch = qp.extended_batch().unwrap();
    for _ in 0..2 {
        let (buf, cq) = (buf(&fixture, b"polled"), Arc::clone(&cq));
        batch.push(op::Send::new(Polling { buf, cq })).unwrap();
    }
    batch.post().unwrap();
    assert_eq!(fixture.fake.sends(qp.qp_num()).len(), 2);
}

/// The batch holds no lock of its thread.
#[test]
fn extended_batch_is_posted_by_another_thread() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let mut qp = extended::<With<Buf, u8>>(&fixture, &cq, SendOps::SEND);
    let batch = fill(&fixture, &mut qp, 3);
    std::thread::scope(|threads| {
        threads.spawn(move || batch.post().unwrap());
    });
    assert_eq!(fixture.fake.sends(qp.qp_num()).len(), 3);
}

#[test]
fn extended_batch_allocates_for_its_greatest_length_only() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts, Option<Buf>> = extended(&fixture, &cq, SendOps::SEND);
    let mut bufs: Vec<_> = (0..3).map(|_| fixture.pd.alloc_buf(8).ok()).collect();
    let mut round = |fixture: &Fixture| {
        let mut batch = qp.extended_batch().unwrap();
        let allocated = allocations(|| {
            for buf in &mut bufs {
                let send = op::Send::new(buf.take()).unsignaled();
                batch.push(send).unwrap();
            }
        });
        batch.post().unwrap();
        (0..3).for_each(|_| fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS));
        let mut back = 0;
        for wc in cq.poll().unwrap() {
            let mut keep = |work| {
                bufs[back] = work;
                back += 1;
            };
            if let Ok(done) = qp.complete_each(wc, &mut keep) {
                keep(done.into_parts().1);
            }
        }
        allocated
    };
    assert_ne!(round(&fixture), 0);
    assert_eq!(round(&fixture), 0);
}

#[test]
fn extended_posting_without_device_support_names_the_function() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    let builder = || fixture.pd.qp_builder::<verbs::Rc>(&cq, &cq);
    let create = || builder().send_ops(SendOps::SEND | SendOps::FLUSH).create();

    fixture.fake.fail(Call::CreateQpEx, libc::EOPNOTSUPP);
    let err = create().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    assert!(
        err.to_string().contains("for SendOps(SEND | FLUSH)"),
        "{err}"
    );

    fixture.fake.fail(Call::QpToQpEx, libc::EOPNOTSUPP);
    let err = create().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    assert!(err.to_string().contains("ibv_wr_start"), "{err}");

    // The device agrees to an operation, but lacks its function.
    for op in SendOps::all() {
        fixture.fake.describe(|device| device.promised = op.bits());
        let err = builder().send_ops(SendOps::all()).create().unwrap_err();
        assert_eq!(err.kind(), ErrorKind::Unsupported, "{op:?}");
        let reason = "the device agreed to `ibv_wr_";
        assert!(err.to_string().contains(reason), "{err}");
    }
    fixture.fake.describe(|device| device.promised = 0);
    assert!(!fixture.fake.live().contains(&"ibv_qp_ex"));

    let mut plain: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 2);
    let err = plain.extended_batch().unwrap_err();
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    assert!(
        err.to_string().contains("build it with `send_ops`"),
        "{err}"
    );
}

#[test]
fn differing_element_lengths_are_refused_on_soft_roce() {
    let fixture = Fixture::new();
    let cq = fixture.cq(16);
    // Soft-RoCE, with a library without `ibv_alloc_buf`.
    fixture
        .fake
        .describe(|device| device.attr.orig_attr.vendor_id = 0xff_ffff);
    let mut qp = extended::<Vec<Buf>>(&fixture, &cq, SendOps::SEND);
    let mut batch = qp.extended_batch().unwrap();
    let work = |parts: [&str; 2]| parts.map(|part| buf(&fixture, part.as_bytes())).into();
    let refused = batch
        .push(op::Send::new(work(["short", "longer"])))
        .unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
    assert_eq!(refused.value.into_work().len(), 2);
    batch.push(op::Send::new(work(["equal", "equal"]))).unwrap();
    let parts = ["un", "equal"].map(|part| IoSlice::new(part.as_bytes()));
    batch
        .push(op::Send::new(vec![]).inline_list(&parts))
        .unwrap();
    batch.post().unwrap();
    let sends = fixture.fake.sends(qp.qp_num());
    assert_eq!(sends[1].inline.as_deref(), Some(&b"unequal"[..]));
}
