//! Calls under a limit of the process: each fails at one limit or the other, in the kernel or in the provider.

use rustix::param::page_size;
use verbs::{
    Buf, QueuePair, RemoteAccess, Reset, SharedReceiveQueue,
    mr::{Mapping, PoolBuf},
    mw::WindowType,
};

use crate::{loopback::Fixture, memory::exchange};

/// Number of the calls.
pub(crate) const CALLS: usize = 13;

/// Whether each call has succeeded. The first six make or change queues, the last four register memory.
pub(crate) type Made = [bool; CALLS];

/// Makes the calls in `limited`, and checks afterwards that the objects of the device work.
pub(crate) fn make(
    fixture: &Fixture,
    limited: impl FnOnce(Box<dyn FnOnce() -> Made + Send + '_>) -> Made,
) -> Made {
    let mut cq = fixture.cq(64);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let qp: QueuePair<verbs::Rc, Reset> = fixture.qp(&cq, 4);
    let available = cq.available();
    // The allocator keeps this memory for small objects.
    drop(vec![0_u8; 100 << 10]);
    let succeeded = limited(Box::new(|| {
        let another: Result<QueuePair<verbs::Rc, Reset>, _> = fixture.builder(&cq, 16).create();
        let receives: Result<SharedReceiveQueue, _> = fixture.pd.create_srq(64, 1);
        let page = page_size();
        let memory = |pages| Mapping::new(pages * page).map_err(|_| ());
        let buf = memory(2).and_then(|it| fixture.pd.register(it).create_buf().map_err(|_| ()));
        let remote = fixture.pd.alloc_remote(5 * page, RemoteAccess::WRITE);
        let pool: Result<Vec<PoolBuf>, _> = fixture
            .pd
            .alloc_pool(32, page)
            .map(|pool| (0..32).filter_map(|_| pool.try_take()).collect());
        [
            another.is_ok(),
            receives.is_ok(),
            fixture.ctx.create_cq(64).is_ok(),
            fixture.ctx.cq_ex_builder(64).create().is_ok(),
            srq.resize(256).is_ok(),
            cq.resize(1024).is_ok(),
            fixture.ctx.alloc_pd().is_ok(),
            fixture.pd.alloc_mw(WindowType::Type2).is_ok(),
            qp.to_init(&fixture.init()).is_ok(),
            fixture.pd.alloc_buf(8).is_ok(),
            buf.is_ok(),
            remote.is_ok(),
            pool.is_ok_and(|bufs| bufs.len() == 32),
        ]
    }));
    // Only its queue pair has reserved entries, and is gone.
    if !succeeded[5] {
        assert!(cq.available() >= available);
    }
    drop((cq, srq));
    let buf = |bytes: &[u8; 8]| -> Buf { fixture.pd.register_buf(*bytes).unwrap() };
    let (_, received) = exchange(fixture, buf(b"messages"), buf(b"        "));
    assert_eq!(received[..], *b"messages");
    succeeded
}
