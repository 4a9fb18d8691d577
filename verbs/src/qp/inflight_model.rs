//! A ring, its slots and its cursors, checked against a list: every sequence of a few operations,
//! in both orders of completion, from just before the sequence number wraps.
//!
//! Only one thread at a time uses a ring, so there is nothing to interleave.

use std::{collections::VecDeque, rc::Rc};

use super::*;

/// Maximum number of requests in the ring, one less than its slots.
const LIMIT: u32 = 3;

/// Operations of a sequence.
const DEPTH: u32 = if cfg!(miri) { 2 } else { 5 };

/// The operations on a ring.
#[derive(Clone, Copy, Debug)]
enum ModelStep {
    Push,
    /// Takes the request at this position, counted from the oldest in flight.
    Take(usize),
    /// Takes a completed request, or one not posted yet.
    TakeStale,
    TakeNext,
    Unpush,
    /// Posts a batch of this number of requests.
    Batch(u32),
    /// Forgets a batch of this number of requests.
    Forget(u32),
    Restart,
}

const OPERATIONS: [ModelStep; 11] = [
    ModelStep::Push,
    ModelStep::Take(0),
    ModelStep::Take(1),
    ModelStep::Take(2),
    ModelStep::TakeStale,
    ModelStep::TakeNext,
    ModelStep::Unpush,
    ModelStep::Batch(2),
    ModelStep::Forget(1),
    ModelStep::Forget(2),
    ModelStep::Restart,
];

/// Numbered work, whose drop is counted.
#[derive(Debug)]
struct Work(u32, #[expect(dead_code, reason = "only counted")] Rc<()>);

/// The ring, and the list with its expected content.
struct Model {
    ring: InFlight<Work>,
    /// The numbers of the requests, the oldest in flight first; `None` for one completed before an
    /// older one.
    list: VecDeque<(WrId, Option<u32>)>,
    stale: Option<WrId>,
    next: u32,
    alive: Rc<()>,
    forgotten: usize,
}

/// A ring whose next request is this one.
fn ring_from(first: WrId, order: Order) -> InFlight<Work> {
    let mut ring = InFlight::new(first.queue(), LIMIT, order);
    ring.cursor = Cursor::stopped(first);
    match &mut ring.unordered {
        None => ring.head = first,
        Some(books) => **books = Unordered::new(first, ring.slots.count()),
    }
    ring
}

impl Model {
    fn new(order: Order) -> Self {
        let first = QueueId::send(QpId::next()).wr_id(0xff_fffd);
        Self {
            ring: ring_from(first, order),
            list: VecDeque::new(),
            stale: None,
            next: 0,
            alive: Rc::new(()),
            forgotten: 0,
        }
    }

    fn work(&mut self) -> Work {
        self.next += 1;
        Work(self.next, Rc::clone(&self.alive))
    }

    fn is_full(&self) -> bool {
        self.list.len() == LIMIT as usize
    }

    fn run(&mut self, operation: ModelStep) {
        match operation {
            ModelStep::Push => self.push(),
            ModelStep::Take(position) => self.take(position),
            ModelStep::TakeStale => {
                if let Some(id) = self.stale {
                    assert!(
                        self.ring
                            .take(id, |_| panic!("nothing is before it"))
                            .is_none()
                    );
                }
            }
            ModelStep::TakeNext => {
                let id = self.ring.next();
                assert!(
                    self.ring
                        .take(id, |_| panic!("nothing is before it"))
                        .is_none()
                );
            }
            ModelStep::Unpush => self.unpush(),
            ModelStep::Batch(requests) => self.batch(requests),
            ModelStep::Forget(requests) => self.forget(requests),
            ModelStep::Restart => self.restart(),
        }
    }

    fn push(&mut self) {
        let work = self.work();
        let full = self.is_full();
        let Some(vacancy) = self.ring.vacancy() else {
            assert!(full, "there is room");
            return;
        };
        assert!(!full, "there is no room");
        let (id, number) = (vacancy.id(), work.0);
        vacancy.fill(work);
        self.list.push_back((id, Some(number)));
    }

    fn take(&mut self, position: usize) {
        let in_flight = self
            .list
            .iter()
            .filter_map(|(id, number)| Some((*id, (*number)?)));
        let Some((id, number)) = in_flight.clone().nth(position) else {
            return;
        };
        let mut expected: Vec<_> = in_flight.take(position).map(|(_, number)| number).collect();
        let ordered = self.ring.order() == Order::Posted;
        let mut earlier = Vec::new();
        let popped = self.ring.take(id, |work| earlier.push(work.0));
        assert_eq!(popped.map(|work| work.0), Some(number));
        if !ordered {
            expected.clear();
        }
        assert_eq!(earlier, expected);
        for (other, number) in &mut self.list {
            if *other == id || ordered && number.is_some_and(|number| earlier.contains(&number)) {
                *number = None;
            }
        }
        while let Some((_, None)) = self.list.front() {
            self.list.pop_front();
        }
        self.stale = Some(id);
    }

    fn unpush(&mut self) {
        let last = self.list.back().and_then(|(_, number)| *number);
        let popped = self.ring.unpush().map(|work| work.0);
        assert_eq!(popped, last);
        if last.is_some() {
            // The next request reuses the number.
            self.list.pop_back();
        }
    }

    /// Puts up to `requests` requests behind a lent cursor, as room permits.
    fn lent(&mut self, requests: u32) -> (Cursor<Work>, Vec<(WrId, Option<u32>)>) {
        let mut cursor = self.ring.lend();
        let mut added = Vec::new();
        for _ in 0..requests {
            if cursor.is_stopped() {
                let full = self.list.len() + added.len() == LIMIT as usize;
                let moved = self.ring.moved_on(cursor.tail);
                assert_eq!(moved.is_none(), full);
                let Some(moved) = moved else { break };
                cursor = moved;
            }
            let work = self.work();
            added.push((cursor.tail, Some(work.0)));
            // SAFETY: the cursor was lent by the ring, unchanged since, and has not stopped.
            unsafe { cursor.put(cursor.tail, work) };
        }
        (cursor, added)
    }

    fn batch(&mut self, requests: u32) {
        let (cursor, added) = self.lent(requests);
        self.ring.keep(cursor);
        self.list.extend(added);
    }

    fn forget(&mut self, requests: u32) {
        let (_, added) = self.lent(requests);
        self.forgotten += added.len();
    }

    fn restart(&mut self) {
        let queue = QueueId::send(QpId::next());
        let stale = self.list.front().map(|(id, _)| *id);
        let all: Vec<_> = self.ring.restart(queue).iter().map(|work| work.0).collect();
        let expected: Vec<_> = self
            .list
            .drain(..)
            .filter_map(|(_, number)| number)
            .collect();
        assert_eq!(all, expected);
        self.stale = stale.or(self.stale);
    }

    fn check(&self) {
        let in_flight = self
            .list
            .iter()
            .filter(|(_, number)| number.is_some())
            .count();
        assert_eq!(self.ring.len() as usize, in_flight);
        assert_eq!(
            Rc::strong_count(&self.alive),
            1 + in_flight + self.forgotten,
            "each work has one owner"
        );
    }
}

#[test]
fn ring_agrees_with_a_list_after_every_sequence() {
    let operations = u32::try_from(OPERATIONS.len()).unwrap();
    for order in [Order::Posted, Order::Any] {
        for mut sequence in 0..operations.pow(DEPTH) {
            let mut model = Model::new(order);
            for _ in 0..DEPTH {
                model.run(OPERATIONS[(sequence % operations) as usize]);
                model.check();
                sequence /= operations;
            }
            let (alive, forgotten) = (Rc::clone(&model.alive), model.forgotten);
            drop(model);
            assert_eq!(Rc::strong_count(&alive), 1 + forgotten);
        }
    }
}
