//! The two halves of a queue pair, the device, and the ends of their lives, in every order.
//!
//! The halves share nothing that changes but their number, which std counts: each has its own ring,
//! and the calls of C are indivisible here as there. So what two threads can do to each other is
//! what the order of their calls does, and these tests go through all orders.

use std::{cell::RefCell, rc::Rc as Shared};

use verbs::{Buf, CompletionQueue, QpNum, Rc, ReceiveQueue, SendQueue, WcStatus, With, op::Send};

use crate::{fixture::Fixture, provider::wc};

/// Calls `each` with every sequence in which the first of `steps` stands for itself so many times,
/// and so on.
fn every_order(steps: &mut [usize], order: &mut Vec<usize>, each: &mut impl FnMut(&[usize])) {
    if steps.iter().all(|left| *left == 0) {
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

/// What has become of the numbered works: those not yet dropped.
type Alive = Shared<RefCell<Vec<u32>>>;

/// Says when a work is dropped.
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
    send: Option<SendQueue<Rc, Work, Work>>,
    receive: Option<ReceiveQueue<Rc, Work, Work>>,
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

    /// The steps of the thread with the send half: it posts twice, polls, and goes.
    fn sender(&mut self, step: usize) {
        let request = (step < 2).then(|| Send::new(self.work(0)));
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

    /// The same for the receive half.
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

    /// While the queue pair exists, what was posted and has not come back is kept; afterwards,
    /// nothing is.
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

/// Everything can change threads. What is shared between them is what never changes, or whose calls
/// libibverbs says are safe; what is posted to or polled needs `&mut`, and could be shared for
/// nothing else.
#[test]
fn objects_can_change_threads() {
    fn send<T: std::marker::Send>() {}
    fn shared<T: std::marker::Send + Sync>() {}
    send::<verbs::QueuePair<Rc, verbs::Rts>>();
    send::<SendQueue<Rc, Buf, Buf>>();
    send::<ReceiveQueue<Rc, Buf, Buf>>();
    send::<CompletionQueue>();
    send::<verbs::ExtendedCq>();
    send::<verbs::SharedReceiveQueue>();
    send::<verbs::TagMatchingQueue>();
    send::<verbs::WorkQueue>();
    send::<verbs::XrcReceiver<verbs::Rts>>();
    send::<verbs::PoolBuf>();
    send::<verbs::DeviceMemory>();
    send::<verbs::ScopedBuf<'_>>();
    shared::<verbs::DeviceList>();
    shared::<verbs::Context>();
    shared::<verbs::ProtectionDomain>();
    shared::<verbs::ThreadDomain>();
    shared::<verbs::XrcDomain>();
    shared::<verbs::CqHandle>();
    shared::<verbs::CompletionChannel>();
    shared::<verbs::AddressHandle>();
    shared::<verbs::AsyncEvents>();
    shared::<Buf>();
    shared::<verbs::SharedBuf>();
    shared::<verbs::BufPool>();
    shared::<verbs::RemoteRegion>();
    shared::<verbs::UnmappedRegion>();
    shared::<verbs::NullRegion>();
    shared::<verbs::Everything>();
    shared::<verbs::MemoryWindow>();
    shared::<verbs::Flow>();
    shared::<verbs::Counters>();
    shared::<verbs::CompletionCounter>();
    shared::<verbs::IndirectionTable>();
    shared::<verbs::RssQueuePair>();
}

#[test]
fn the_halves_do_no_harm_to_each_other_in_any_order() {
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
fn each_completion_comes_once_however_it_is_taken() {
    /// How many of those that it has fetched a poller takes.
    const WAYS: [usize; 3] = [0, 1, usize::MAX];
    let fixture = Fixture::new();
    let send = ibverbs_sys::ibv_wc_opcode::IBV_WC_SEND;
    for batch in 1..4 {
        // Five polls, each of one of the ways, with two completions before each of the first three.
        for plan in 0..3_usize.pow(5) {
            let cq = fixture.ctx.cq_builder(8).batch(batch);
            let mut cq = cq.create().unwrap();
            let (mut pushed, mut taken) = (0, Vec::new());
            for poll in 0..5 {
                if poll < 3 {
                    for _ in 0..2 {
                        // The sender's number is nobody's business, and tells them apart.
                        let mut wc = wc(0, send);
                        wc.vendor_err = pushed;
                        fixture.fake.push(&cq, wc);
                        pushed += 1;
                    }
                }
                let count = WAYS[plan / 3_usize.pow(poll) % 3];
                let fetched = cq.poll().unwrap().take(count);
                taken.extend(fetched.map(|wc| wc.vendor_err()));
            }
            loop {
                let before = taken.len();
                taken.extend(cq.poll().unwrap().map(|wc| wc.vendor_err()));
                if taken.len() == before {
                    break;
                }
            }
            assert_eq!(taken, (0..pushed).collect::<Vec<_>>());
        }
    }
}
