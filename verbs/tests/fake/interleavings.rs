//! The two halves of a queue pair, the device, and the ends of their lives, in every order.
//!
//! The halves share no mutable state except the reference count of std: each has its own ring, and
//! C calls are atomic here as there. So two threads can interact only through the order of their
//! calls, and these tests run all orders.

use std::{cell::RefCell, rc::Rc as Shared};

use verbs::{
    Buf, CompletionQueue, WcStatus, op,
    qp::{QpNum, ReceiveQueue, SendQueue},
    work::With,
};

use crate::{fixture::Fixture, provider::wc};

/// Calls `each` with every interleaving of the actors, where actor `i` takes `steps[i]` steps.
fn every_order(steps: &mut [usize], order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    if steps.iter().all(|remaining| *remaining == 0) {
        return each(order);
    }
    for actor in 0..steps.len() {
        if steps[actor] > 0 {
            steps[actor] -= 1;
            order.push(actor);
            every_order(steps, order, each);
            order.pop();
            steps[actor] += 1;
        }
    }
}

/// The numbered works that have not been dropped.
type Alive = Shared<RefCell<Vec<u32>>>;

/// Records the drop of a work.
#[derive(Debug)]
struct Ticket(u32, Alive);

impl Drop for Ticket {
    fn drop(&mut self) {
        self.1.borrow_mut().retain(|number| *number != self.0);
    }
}

type Work = With<Buf, Ticket>;

/// A queue pair whose halves have a completion queue each.
struct Halves<'f> {
    fixture: &'f Fixture,
    number: QpNum,
    send: Option<SendQueue<verbs::Rc, Work, Work>>,
    receive: Option<ReceiveQueue<verbs::Rc, Work, Work>>,
    cqs: [CompletionQueue; 2],
    alive: Alive,
    posted: [Vec<u32>; 2],
    returned: [Vec<u32>; 2],
}

impl<'f> Halves<'f> {
    fn new(fixture: &'f Fixture) -> Self {
        let cqs = [fixture.cq(4), fixture.cq(4)];
        let builder = fixture.pd.qp_builder(&cqs[0], &cqs[1]);
        let qp = builder.max_send_wr(2).max_recv_wr(2).create_for().unwrap();
        let qp = fixture.connect(qp);
        let number = qp.qp_num();
        let (send, receive) = qp.split();
        Self {
            fixture,
            number,
            send: Some(send),
            receive: Some(receive),
            cqs,
            alive: Alive::default(),
            posted: [Vec::new(), Vec::new()],
            returned: [Vec::new(), Vec::new()],
        }
    }

    fn exists(&self) -> bool {
        self.send.is_some() || self.receive.is_some()
    }

    fn work(&mut self, half: usize) -> Work {
        let number = self.posted[half].last().map_or([0, 10][half], |n| n + 1);
        self.posted[half].push(number);
        self.alive.borrow_mut().push(number);
        let buf = self.fixture.pd.alloc_buf(4).unwrap();
        With::new(buf, Ticket(number, Shared::clone(&self.alive)))
    }

    /// The steps of the thread with the send half: two posts, a poll, and the drop.
    fn sender(&mut self, step: usize) {
        let request = (step < 2).then(|| op::Send::new(self.work(0)));
        let send = self.send.as_mut().unwrap();
        match (request, step) {
            (Some(request), _) => send.post(request).unwrap(),
            (None, 2) => {
                for wc in self.cqs[0].poll().unwrap() {
                    let done = send.complete(wc).unwrap();
                    self.returned[0].push(done.into_parts().1.context.0);
                }
            }
            _ => self.send = None,
        }
    }

    /// The steps of the thread with the receive half: two posts, a poll, and the drop.
    fn receiver(&mut self, step: usize) {
        let work = (step < 2).then(|| self.work(1));
        let receive = self.receive.as_mut().unwrap();
        match (work, step) {
            (Some(work), _) => receive.post(work).unwrap(),
            (None, 2) => {
                for wc in self.cqs[1].poll().unwrap() {
                    let done = receive.complete(wc).unwrap();
                    self.returned[1].push(done.into_parts().1.context.0);
                }
            }
            _ => self.receive = None,
        }
    }

    /// The device completes a send, and a receive, and then everything.
    fn device(&self, step: usize) {
        if !self.exists() {
            return;
        }
        let fake = &self.fixture.fake;
        match step {
            0 if !fake.sends(self.number).is_empty() => {
                fake.complete_send(self.number, WcStatus::SUCCESS);
            }
            1 if !fake.receives(self.number).is_empty() => {
                fake.complete_receive(self.number, b"ping");
            }
            2 => fake.flush(self.number),
            _ => {}
        }
    }

    /// While the queue pair exists, every work in flight is kept; afterwards, none is.
    fn check(&self) {
        for half in 0..2 {
            let (posted, returned) = (&self.posted[half], &self.returned[half]);
            assert!(posted.starts_with(returned), "in the order of posting");
        }
        let mut expected = Vec::new();
        if self.exists() {
            expected.extend(&self.posted[0][self.returned[0].len()..]);
            expected.extend(&self.posted[1][self.returned[1].len()..]);
        }
        let mut alive = self.alive.borrow().clone();
        alive.sort_unstable();
        assert_eq!(alive, expected);
    }
}

/// All objects are `Send`. The `Sync` ones are immutable, or libibverbs documents their calls as
/// thread-safe; posting and polling need `&mut`, so sharing such an object allows nothing else.
#[test]
fn objects_are_send() {
    fn send<T: Send>() {}
    fn shared<T: Send + Sync>() {}
    send::<verbs::QueuePair<verbs::Rc, verbs::Rts>>();
    send::<SendQueue<verbs::Rc, Buf, Buf>>();
    send::<ReceiveQueue<verbs::Rc, Buf, Buf>>();
    send::<CompletionQueue>();
    send::<verbs::cq::ExtendedCq>();
    send::<verbs::SharedReceiveQueue>();
    send::<verbs::srq::TagMatchingQueue>();
    send::<verbs::rss::WorkQueue>();
    send::<verbs::qp::XrcReceiver<verbs::Rts>>();
    send::<verbs::mr::PoolBuf>();
    send::<verbs::dm::DeviceMemory>();
    send::<verbs::scope::ScopedBuf<'_>>();
    shared::<verbs::device::DeviceList>();
    shared::<verbs::Context>();
    shared::<verbs::ProtectionDomain>();
    shared::<verbs::pd::ThreadDomain>();
    shared::<verbs::xrcd::XrcDomain>();
    shared::<verbs::cq::CqHandle>();
    shared::<verbs::cq::CompletionChannel>();
    shared::<verbs::AddressHandle>();
    shared::<verbs::event::AsyncEvents>();
    shared::<Buf>();
    shared::<verbs::SharedBuf>();
    shared::<verbs::mr::BufPool>();
    shared::<verbs::RemoteRegion>();
    shared::<verbs::mr::UnmappedRegion>();
    shared::<verbs::mr::NullRegion>();
    shared::<verbs::mr::Everything>();
    shared::<verbs::MemoryWindow>();
    shared::<verbs::flow::Flow>();
    shared::<verbs::counters::Counters>();
    shared::<verbs::completion_counter::CompletionCounter>();
    shared::<verbs::rss::IndirectionTable>();
    shared::<verbs::rss::RssQueuePair>();
}

#[test]
fn queue_pair_halves_are_independent() {
    let mut orders = 0;
    let fixture = Fixture::new();
    every_order(&mut [4, 4, 3], &mut Vec::new(), &mut |order| {
        let mut halves = Halves::new(&fixture);
        let mut steps = [0; 3];
        for &actor in order {
            match actor {
                0 => halves.sender(steps[0]),
                1 => halves.receiver(steps[1]),
                _ => halves.device(steps[2]),
            }
            steps[actor] += 1;
            halves.check();
        }
        assert!(!fixture.fake.live().contains(&"ibv_qp_ex"), "{order:?}");
        for cq in &mut halves.cqs {
            while cq.poll().unwrap().count() > 0 {}
            assert_eq!(cq.available(), cq.capacity(), "{order:?}");
        }
        orders += 1;
    });
    assert_eq!(orders, 11_550);
}

#[test]
fn completion_is_returned_once_in_any_order() {
    /// The number of fetched completions taken by a poller.
    const WAYS: [usize; 3] = [0, 1, usize::MAX];
    let fixture = Fixture::new();
    let send = ibverbs_sys::ibv_wc_opcode::IBV_WC_SEND;
    for batch in 1..4 {
        // Five polls, each of one of the ways, with two completions before each of the first three.
        for plan in 0..3_usize.pow(5) {
            let cq = fixture.ctx.cq_builder(8).batch(batch);
            let mut cq = cq.create().unwrap();
            let (mut pushed, mut fetched_errs) = (0, Vec::new());
            for poll in 0..5 {
                if poll < 3 {
                    for _ in 0..2 {
                        // The sender's number, unused otherwise, identifies the completions.
                        let mut wc = wc(0, send);
                        wc.vendor_err = pushed;
                        fixture.fake.push(&cq, wc);
                        pushed += 1;
                    }
                }
                let count = WAYS[plan / 3_usize.pow(poll) % 3];
                let fetched = cq.poll().unwrap().take(count);
                fetched_errs.extend(fetched.map(|wc| wc.vendor_err()));
            }
            loop {
                let before = fetched_errs.len();
                fetched_errs.extend(cq.poll().unwrap().map(|wc| wc.vendor_err()));
                if fetched_errs.len() == before {
                    break;
                }
            }
            assert_eq!(fetched_errs, (0..pushed).collect::<Vec<_>>());
        }
    }
}
