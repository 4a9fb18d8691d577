//! Panics of the program's own code, in the drop of work and of registered memory.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use verbs::{
    Buf, QueuePair, RemoteAccess, RemoteRegion, Rts, SharedReceiveQueue,
    mr::Memory,
    mw::WindowType,
    op::{self, SendOps},
    work::With,
};

use crate::fixture::Fixture;

const DEPTH: u32 = 4;

/// A context that counts its drop, and then panics if `panics` is set.
struct Context {
    drops: Arc<AtomicU32>,
    panics: bool,
}

impl Drop for Context {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Relaxed);
        assert!(!self.panics, "on purpose");
    }
}

type Work = With<Buf, Context>;

/// Makes works with numbers from 0, of which one panics when dropped.
struct Works<'f> {
    fixture: &'f Fixture,
    panicking: u32,
    created: u32,
    drops: Arc<AtomicU32>,
}

impl<'f> Works<'f> {
    fn new(fixture: &'f Fixture, panicking: u32) -> Self {
        Self {
            fixture,
            panicking,
            created: 0,
            drops: Arc::default(),
        }
    }

    fn next(&mut self) -> Work {
        let context = Context {
            drops: Arc::clone(&self.drops),
            panics: self.created == self.panicking,
        };
        self.created += 1;
        With::new(self.fixture.pd.alloc_buf(4).unwrap(), context)
    }

    /// Runs `act`, which panics. All works must then have been dropped.
    fn dropped_by(&self, act: impl FnOnce()) {
        let before = self.drops.load(Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(act)).is_err());
        let dropped = self.drops.load(Relaxed);
        assert!(before < dropped, "it panics in a drop");
        assert_eq!(
            dropped, self.created,
            "with work {} panicking",
            self.panicking
        );
    }
}

#[test]
fn panic_in_the_drop_of_a_batch_leaves_nothing_in_flight() {
    for panicking in 0..DEPTH {
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        let builder = fixture.pd.qp_builder(&cq, &cq).send_ops(SendOps::SEND);
        let builder = builder.max_send_wr(DEPTH).max_recv_wr(DEPTH);
        let qp = builder.create_for().unwrap();
        let mut qp: QueuePair<verbs::Rc, Rts, Work, Work> = fixture.connect(qp);
        let mut srq: SharedReceiveQueue<Work> = fixture.pd.create_srq(DEPTH, 1).unwrap();

        let mut works = Works::new(&fixture, panicking);
        let mut batch = qp.batch();
        (0..DEPTH).for_each(|_| batch.push(op::Send::new(works.next())).unwrap());
        works.dropped_by(|| drop(batch));
        assert_eq!(qp.send_queue().in_flight(), 0);

        let mut works = Works::new(&fixture, panicking);
        let mut batch = qp.extended_batch().unwrap();
        (0..DEPTH).for_each(|_| batch.push(op::Send::new(works.next())).unwrap());
        works.dropped_by(|| drop(batch));
        assert_eq!(qp.send_queue().in_flight(), 0);

        let mut works = Works::new(&fixture, panicking);
        let mut batch = qp.recv_batch();
        (0..DEPTH).for_each(|_| batch.push(works.next()).unwrap());
        works.dropped_by(|| drop(batch));
        assert_eq!(qp.receive_queue().in_flight(), 0);

        let mut works = Works::new(&fixture, panicking);
        let mut batch = srq.batch();
        (0..DEPTH).for_each(|_| batch.push(works.next()).unwrap());
        works.dropped_by(|| drop(batch));
        assert_eq!(srq.in_flight(), 0);
        assert!(srq.batch().is_empty());
    }
}

#[test]
fn panic_in_the_drop_of_work_in_flight_frees_everything_else() {
    for panicking in 0..2 * DEPTH {
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        let mut works = Works::new(&fixture, panicking);
        let mut qp: QueuePair<verbs::Rc, Rts, Work, Work> = fixture.rc(&cq, DEPTH);
        (0..DEPTH).for_each(|_| qp.post(op::Send::new(works.next())).unwrap());
        (0..DEPTH).for_each(|_| qp.post_recv(works.next()).unwrap());
        works.dropped_by(|| drop(qp));

        let mut works = Works::new(&fixture, panicking % DEPTH);
        let mut srq: SharedReceiveQueue<Work> = fixture.pd.create_srq(DEPTH, 1).unwrap();
        (0..DEPTH).for_each(|_| srq.post(works.next()).unwrap());
        works.dropped_by(|| drop(srq));

        let mut works = Works::new(&fixture, panicking % DEPTH);
        let wq = fixture.pd.wq_builder(&cq).max_wr(DEPTH);
        let mut wq = wq.create_for().unwrap();
        wq.to_ready().unwrap();
        (0..DEPTH).for_each(|_| wq.post(works.next()).unwrap());
        works.dropped_by(|| drop(wq));

        drop(cq);
        let Fixture { pd, ctx, fake } = fixture;
        drop((pd, ctx));
        assert_eq!(fake.live(), [""; 0]);
    }
}

/// Memory that panics when dropped.
#[derive(Debug)]
struct Panicking(Vec<u8>);

impl Drop for Panicking {
    fn drop(&mut self) {
        // Not while the test fails for another reason.
        assert!(std::thread::panicking(), "on purpose");
    }
}

// SAFETY: a vector is one.
unsafe impl Memory for Panicking {
    fn range(&mut self) -> NonNull<[u8]> {
        self.0.range()
    }
}

/// The third binding releases the region of the first.
#[test]
fn panic_in_the_drop_of_a_bound_region_leaves_the_binding_in_flight() {
    for window_type in [WindowType::Type1, WindowType::Type2] {
        let fixture = Fixture::new();
        let cq = fixture.cq(64);
        let mut qp: QueuePair<verbs::Rc, Rts, With<(), u32>> = fixture.rc(&cq, DEPTH);
        let mut window = fixture.pd.alloc_mw(window_type).unwrap();
        let mut bind = |region: RemoteRegion, work| {
            let bound = qp.bind_window(
                &mut window,
                &region,
                RemoteAccess::READ,
                With::new((), work),
            );
            bound.map(drop).unwrap();
        };
        let memory = fixture.pd.register(Panicking(vec![0; 8]));
        let first = memory.remote(RemoteAccess::empty()).windows().create();
        bind(first.unwrap(), 0);
        bind(fixture.pd.alloc_for_windows(8).unwrap(), 1);
        let third = fixture.pd.alloc_for_windows(8).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| bind(third, 2))).is_err());
        let posted = fixture.fake.sends(qp.qp_num()).len();
        assert_eq!((posted, qp.send_queue().in_flight()), (3, 3));
        let leftover = qp.to_reset().map_err(|refused| refused.error).unwrap().1;
        let leftover: Vec<u32> = leftover.send.iter().map(|work| work.context).collect();
        assert_eq!(leftover, [0, 1, 2]);
    }
}
