//! An iWARP device, where a request can complete before earlier ones.

use std::{cell::RefCell, rc::Rc as Shared, time::Duration};

use softnic::Call;
use verbs::{
    Buf, Completed, CompletionQueue, QueuePair, RemoteToken, Rts, WcStatus,
    op::{self, SendOps},
    work::{Gather, Scatter, SgeList},
};

use crate::fixture::Fixture;

const REMOTE: RemoteToken = RemoteToken {
    addr: 0x1000,
    len: 64,
    rkey: 7,
};

/// A numbered work that records its drop.
#[derive(Debug)]
struct Noting {
    buf: Buf,
    number: usize,
    dropped: Shared<RefCell<Vec<usize>>>,
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.dropped.borrow_mut().push(self.number);
    }
}

// SAFETY: the elements are the buffer's, owned by `self`.
unsafe impl Gather for Noting {
    fn gather(&self, list: &mut SgeList) {
        self.buf.gather(list);
    }
}

// SAFETY: see `Gather`.
unsafe impl Scatter for Noting {}

/// A queue pair on such a device, and the state of its works.
struct Overtaking {
    qp: QueuePair<verbs::Rc, Rts, Noting, Buf>,
    cq: CompletionQueue,
    dropped: Shared<RefCell<Vec<usize>>>,
    /// The requests in flight on the device, in posting order.
    with_device: Vec<usize>,
    posted: usize,
    fixture: Fixture,
}

impl Overtaking {
    fn new(depth: u32) -> Self {
        let fixture = Fixture::iwarp();
        let cq = fixture.cq(4 * depth);
        Self {
            qp: fixture.rc(&cq, depth),
            cq,
            dropped: Shared::default(),
            with_device: Vec::new(),
            posted: 0,
            fixture,
        }
    }

    /// Posts a read, a write or a send, in turn, signaled or not; returns whether there was room.
    fn post(&mut self) -> bool {
        let number = self.posted;
        let work = Noting {
            buf: self.fixture.pd.alloc_buf(8).unwrap(),
            number,
            dropped: Shared::clone(&self.dropped),
        };
        let posted = match number % 5 {
            0 => self.qp.post(op::Read::new(work, REMOTE)).is_ok(),
            1 => self.qp.post(op::Send::new(work)).is_ok(),
            2 => self.qp.post(op::Send::new(work).unsignaled()).is_ok(),
            3 => self
                .qp
                .post(op::Read::new(work, REMOTE).unsignaled())
                .is_ok(),
            _ => self
                .qp
                .post(op::Write::new(work, REMOTE).unsignaled())
                .is_ok(),
        };
        if posted {
            self.posted += 1;
            self.with_device.push(number);
        } else {
            assert_eq!(self.dropped.borrow_mut().pop(), Some(number), "refused");
        }
        posted
    }

    /// Lets the device complete one of the requests in flight, by its position among them.
    fn complete(&mut self, index: usize) -> usize {
        let (qp_num, status) = (self.qp.qp_num(), WcStatus::SUCCESS);
        self.fixture.fake.complete_send_at(qp_num, index, status);
        self.with_device.remove(index)
    }

    /// Completes a request, and takes back only the work of this request.
    fn take_back(&mut self, index: usize) {
        let completed = self.complete(index);
        let before = self.dropped.borrow().len();
        let wc = self.cq.poll().unwrap().next().unwrap();
        let mut along = Vec::new();
        let done = self.qp.complete_each(wc, |work| along.push(work.number));
        assert_eq!(done.unwrap().work().unwrap().number, completed);
        assert_eq!(along, [], "taken along by {completed}");
        assert_eq!(self.dropped.borrow()[before..], [completed]);
        assert_eq!(self.qp.send_queue().in_flight(), self.with_device.len());
    }
}

#[test]
fn send_overtaking_a_read_keeps_the_reads_memory() {
    let mut queue = Overtaking::new(4);
    assert!(queue.post() && queue.post());
    queue.take_back(1);
    // The device still writes there, and the memory is still registered.
    let read = &queue.fixture.fake.sends(queue.qp.qp_num())[0];
    assert_eq!(queue.fixture.fake.collect(read).len(), 8);
    queue.take_back(0);
}

#[test]
fn read_not_overtaken_completes_first() {
    let mut queue = Overtaking::new(4);
    assert!(queue.post() && queue.post());
    queue.take_back(0);
    queue.take_back(0);
}

/// The positions of `n` requests among the remaining ones, in every order of completion.
fn every_order(n: usize) -> Vec<Vec<usize>> {
    (0..n).fold(vec![Vec::new()], |orders, done| {
        let longer = |order: Vec<usize>| {
            (0..n - done).map(move |index| order.iter().copied().chain([index]).collect())
        };
        orders.into_iter().flat_map(longer).collect()
    })
}

#[test]
fn every_order_gives_each_completion_its_own_work() {
    let mut queue = Overtaking::new(5);
    let orders = every_order(5);
    assert_eq!(orders.len(), 120);
    for order in orders {
        for _ in 0..5 {
            assert!(queue.post());
        }
        assert!(!queue.post());
        for index in order {
            queue.take_back(index);
        }
    }
}

#[test]
fn unordered_queue_completes_many_rounds() {
    for depth in [1, 2, 3, 7, 8] {
        let mut queue = Overtaking::new(depth);
        let mut random = 1_u32;
        for _ in 0..2000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let first = queue.with_device.first().copied();
            // Holes are not reusable before the completion of the first request.
            let in_flight = first.map_or(0, |first| queue.posted - first);
            if random >> 30 < 2 {
                assert_eq!(queue.post(), in_flight < depth as usize);
            } else if first.is_some() {
                let index = (random >> 16) as usize % queue.with_device.len();
                queue.take_back(index);
            }
        }
        assert!(queue.posted > 200);
    }
}

#[test]
fn lost_completion_keeps_its_work_until_the_queue_pair_is_destroyed() {
    let mut queue = Overtaking::new(4);
    for _ in 0..4 {
        assert!(queue.post());
    }
    // The completion of 1 is dropped unread.
    queue.complete(1);
    assert_eq!(queue.cq.poll().unwrap().count(), 1);
    queue.take_back_beside_lost(2, 3);
    queue.take_back_beside_lost(0, 2);
    // 1 is the oldest now, and 3 was posted later.
    assert_eq!(*queue.dropped.borrow(), [3, 0]);
    let leftover = queue.qp.destroy().unwrap();
    let numbers: Vec<_> = leftover.send.iter().map(|work| work.number).collect();
    assert_eq!(numbers, [1, 2]);
    assert_eq!(queue.dropped.borrow().len(), 2);
    drop(leftover);
    assert_eq!(*queue.dropped.borrow(), [3, 0, 1, 2]);
}

impl Overtaking {
    /// As [`take_back`](Self::take_back), with `in_flight` requests in flight afterwards in the
    /// program's view.
    fn take_back_beside_lost(&mut self, index: usize, in_flight: usize) {
        let completed = self.complete(index);
        let wc = self.cq.poll().unwrap().next().unwrap();
        let done = self.qp.complete_each(wc, drop).unwrap();
        assert_eq!(done.work().unwrap().number, completed);
        assert_eq!(self.qp.send_queue().in_flight(), in_flight);
    }
}

#[test]
fn dropping_a_queue_pair_with_holes_drops_each_work_once() {
    for completed in 0..64_usize {
        let mut queue = Overtaking::new(6);
        // The first request is then not in the first slot.
        for _ in 0..5 {
            assert!(queue.post());
            queue.take_back(0);
        }
        for _ in 0..6 {
            assert!(queue.post());
        }
        for index in (0..6).rev().filter(|index| completed & 1 << index != 0) {
            queue.take_back(index);
        }
        let dropped = Shared::clone(&queue.dropped);
        drop(queue);
        let mut dropped = dropped.take();
        dropped.sort_unstable();
        assert!(dropped.into_iter().eq(0..11), "{completed:#b}");
    }
}

#[test]
fn unordered_queue_drains() {
    let mut queue = Overtaking::new(6);
    for _ in 0..6 {
        assert!(queue.post());
    }
    queue.take_back(1);
    queue.take_back(3);
    let mut completed_numbers = Vec::new();
    let drained = queue.qp.drain(
        &mut [&mut queue.cq],
        Duration::from_secs(60),
        |done| match done {
            Ok(Completed::Send(done)) => {
                let (status, work) = done.into_parts();
                completed_numbers.push((work.number, status));
            }
            other => panic!("{other:?}"),
        },
    );
    drained.unwrap();
    let flushed = [0, 2, 3, 5].map(|number| (number, WcStatus::WR_FLUSH_ERR));
    assert_eq!(completed_numbers, flushed);
}

#[test]
fn unordered_queue_reset_starts_empty() {
    let mut queue = Overtaking::new(6);
    for _ in 0..6 {
        assert!(queue.post());
    }
    queue.take_back(1);
    queue.take_back(4);
    // Not polled before the reset of the queue pair.
    queue.complete(1);
    let Overtaking {
        qp,
        mut cq,
        fixture,
        ..
    } = queue;
    let (qp, leftover) = qp.to_reset().map_err(|refused| refused.error).unwrap();
    let numbers: Vec<_> = leftover.send.iter().map(|work| work.number).collect();
    assert_eq!(numbers, [0, 2, 3, 4]);
    let mut qp = fixture.connect(qp);
    assert_eq!(qp.send_queue().in_flight(), 0);
    for work in leftover.send {
        qp.post(op::Read::new(work, REMOTE)).unwrap();
    }
    let wc = cq.poll().unwrap().next().unwrap();
    assert!(qp.complete(wc).is_err(), "of before");
    assert_eq!(qp.send_queue().in_flight(), 4);
}

#[test]
fn repeated_completion_is_refused() {
    let mut queue = Overtaking::new(4);
    for _ in 0..3 {
        assert!(queue.post());
    }
    let ids: Vec<_> = (queue.fixture.fake.sends(queue.qp.qp_num()).iter())
        .map(|send| send.wr_id)
        .collect();
    let again = |queue: &mut Overtaking, id| {
        let opcode = ibverbs_sys::ibv_wc_opcode::IBV_WC_SEND;
        let wc = crate::provider::wc(id, opcode);
        queue.fixture.fake.push(&queue.cq, wc);
        let wc = queue.cq.poll().unwrap().next().unwrap();
        assert!(queue.qp.complete(wc).is_err());
    };
    queue.take_back(1);
    again(&mut queue, ids[1]);
    queue.take_back(0);
    again(&mut queue, ids[0]);
    again(&mut queue, ids[1]);
    again(&mut queue, ids[2] + (1 << 40));
    assert_eq!(queue.qp.send_queue().in_flight(), 1);
}

#[test]
fn iwarp_request_is_signaled_by_each_post_call() {
    let fixture = Fixture::iwarp();
    let cq = fixture.cq(16);
    let buf = || fixture.pd.alloc_buf(8).unwrap();
    let builder = fixture.pd.qp_builder(&cq, &cq).max_send_wr(8);
    let builder = builder.send_ops(SendOps::SEND | SendOps::RDMA_READ);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(builder.create_for().unwrap());
    qp.post(op::Read::new(buf(), REMOTE).unsignaled()).unwrap();
    let mut batch = qp.batch();
    batch.push(op::Send::new(buf()).unsignaled()).unwrap();
    batch
        .push(op::Read::new(buf(), REMOTE).unsignaled())
        .unwrap();
    batch.post().unwrap();
    let mut batch = qp.extended_batch().unwrap();
    batch
        .push(op::Read::new(buf(), REMOTE).unsignaled())
        .unwrap();
    batch.push(op::Send::new(buf()).unsignaled()).unwrap();
    batch.post().unwrap();
    let sends = fixture.fake.sends(qp.qp_num());
    assert_eq!(sends.len(), 5);
    assert!(sends.iter().all(crate::provider::PostedSend::is_signaled));
    assert_eq!(qp.send_queue().unsignaled(), 0);
}

#[test]
fn unordered_queue_keeps_holes_after_refused_batch() {
    let mut queue = Overtaking::new(5);
    for _ in 0..3 {
        assert!(queue.post());
    }
    queue.take_back(1);
    queue.take_back(1);
    let work = |number| Noting {
        buf: queue.fixture.pd.alloc_buf(8).unwrap(),
        number,
        dropped: Shared::clone(&queue.dropped),
    };
    for fails in [true, false] {
        let mut batch = queue.qp.batch();
        batch.push(op::Send::new(work(10))).unwrap();
        batch.push(op::Send::new(work(11))).unwrap();
        if fails {
            queue.fixture.fake.fail(Call::PostSend, libc::ENOMEM);
            let refused = batch.post().unwrap_err();
            let given_back: Vec<_> = refused.value.iter().map(|work| work.number).collect();
            assert_eq!(given_back, [10, 11]);
        } else {
            drop(batch);
        }
        assert_eq!(queue.qp.send_queue().in_flight(), 1);
    }
    queue.take_back(0);
    assert_eq!(*queue.dropped.borrow(), [1, 2, 10, 11, 11, 10, 0]);
}

#[test]
fn extended_cq_completes_work_in_any_order() {
    let fixture = Fixture::iwarp();
    let mut cq = fixture.ctx.cq_ex_builder(8).create().unwrap();
    let builder = fixture.pd.qp_builder(&cq, &cq).max_send_wr(4);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.connect(builder.create_for().unwrap());
    for len in 1..=3 {
        let read = op::Read::new(fixture.pd.alloc_buf(len).unwrap(), REMOTE);
        qp.post(read).unwrap();
    }
    for (index, len) in [(1, 2), (1, 3), (0, 1)] {
        let (qp_num, status) = (qp.qp_num(), WcStatus::SUCCESS);
        fixture.fake.complete_send_at(qp_num, index, status);
        let mut polled = cq.poll().unwrap().unwrap();
        let wc = polled.next().unwrap().unwrap();
        let done = qp.complete_each(wc.into_work_completion(), |_| panic!("not yet done"));
        assert_eq!(done.unwrap().work().unwrap().len(), len);
    }
}

#[test]
fn unordered_queue_completes_receives_in_order() {
    let fixture = Fixture::iwarp();
    let mut cq = fixture.cq(16);
    let mut qp: QueuePair<verbs::Rc, Rts> = fixture.rc(&cq, 4);
    for _ in 0..2 {
        qp.post_recv(fixture.pd.alloc_buf(8).unwrap()).unwrap();
        fixture.fake.complete_receive(qp.qp_num(), b"message");
    }
    // The first is dropped unread, and comes back with the second.
    let wc = cq.poll().unwrap().nth(1).unwrap();
    assert!(qp.complete(wc).is_ok());
    assert_eq!(qp.receive_queue().in_flight(), 0);
}
