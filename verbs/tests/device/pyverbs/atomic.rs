//! `test_atomic.py`

use std::ptr::NonNull;

use verbs::{
    Buf, CompletionQueue, Init, QueuePair, RemoteAccess, RemoteRegion, RemoteToken, Rtr, Rts,
    WcStatus,
    attr::AtomicCap,
    op,
    qp::{Attributes, Psn},
    work::{Gather, Scatter, Sge, SgeList},
};

use super::traffic::{RcQp, sent};
use crate::loopback::Fixture;

/// The byte `number`, eight times.
fn eight(number: u8) -> u64 {
    u64::from_ne_bytes([number; 8])
}

/// Two connected queue pairs, and a number for each, open to the other's changes.
struct Players {
    cq: CompletionQueue,
    sides: [(RcQp, RemoteRegion); 2],
    fixture: Fixture,
}

impl Players {
    fn new() -> Self {
        let fixture = Fixture::new();
        assert_ne!(
            fixture.ctx.query_device().unwrap().atomic_cap(),
            AtomicCap::NONE
        );
        let cq = fixture.cq(64);
        let (a, b) = fixture.pair(&cq, 4);
        let number = || fixture.pd.alloc_remote(16, RemoteAccess::ATOMIC).unwrap();
        let sides = [(a, number()), (b, number())];
        Self { cq, sides, fixture }
    }

    /// Lets each side change the other's number with a request made by `post`.
    fn each_way(&mut self, before: u64, after: u64, post: impl Fn(&mut RcQp, Buf, RemoteToken)) {
        for _ in 0..10 {
            let [(active, _), (_, passive)] = &mut self.sides;
            passive.store(0, before);
            let work = self.fixture.pd.alloc_buf(8).unwrap();
            post(active, work, passive.token().slice(0..8).unwrap());
            let (status, work) = sent(&mut self.cq, active);
            assert_eq!(status, WcStatus::SUCCESS);
            let old = u64::from_ne_bytes(work[..].try_into().unwrap());
            assert_eq!((old, passive.load(0)), (before, after));
            self.sides.reverse();
        }
    }

    /// Adds to a number where the request must fail without effect.
    fn fail(mut self, target: impl FnOnce(RemoteToken) -> RemoteToken, expected: WcStatus) {
        let [(active, _), (_, passive)] = &mut self.sides;
        passive.store(0, 7);
        let token = target(passive.token());
        let work = self.fixture.pd.alloc_buf(8).unwrap();
        active.post(op::FetchAdd::new(work, token, 1)).unwrap();
        assert_eq!(sent(&mut self.cq, active).0, expected);
        assert_eq!((passive.load(0), passive.load(8)), (7, 0));
    }
}

#[test]
fn atomic_cmp_and_swap() {
    let mut players = Players::new();
    // First the comparison fails, and then succeeds.
    for (compare, after) in [(2, 1), (1, 0)] {
        players.each_way(eight(1), eight(after), |qp, work, number| {
            let request = op::CompareSwap::new(work, number, eight(compare), 0);
            qp.post(request).unwrap();
        });
    }
}

#[test]
fn atomic_fetch_and_add() {
    Players::new().each_way(eight(1), eight(3), |qp, work, number| {
        qp.post(op::FetchAdd::new(work, number, eight(2))).unwrap();
    });
}

/// The peer's queue pair was made for no access at all.
#[test]
fn atomic_invalid_qp_access() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (a, b): (
        QueuePair<verbs::Rc, verbs::Reset>,
        QueuePair<verbs::Rc, verbs::Reset>,
    ) = (fixture.qp(&cq, 4), fixture.qp(&cq, 4));
    let (a_num, psn) = (a.qp_num(), Psn::from_low_bits(0xff_fff0));
    let mut a: RcQp = fixture.bring_up(a, b.qp_num());
    let closed = Attributes::<verbs::Rc, Init>::new(1).access(RemoteAccess::empty());
    let b = b.to_init(&closed).map_err(|refused| refused.error).unwrap();
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&fixture.address_vector(), a_num, psn)
        .max_dest_rd_atomic(4);
    let b = b.to_rtr(&rtr).map_err(|refused| refused.error).unwrap();
    let b: RcQp = b.to_rts(&Attributes::<verbs::Rc, Rts>::new(psn)).unwrap();
    let region = fixture.pd.alloc_remote(8, RemoteAccess::ATOMIC).unwrap();
    let work = fixture.pd.alloc_buf(8).unwrap();
    a.post(op::FetchAdd::new(work, region.token(), 1)).unwrap();
    let (status, _) = sent(&mut cq, &mut a);
    // Soft-RoCE's answer; other devices may answer with `REM_ACCESS_ERR`.
    assert_eq!(status, WcStatus::REM_INV_REQ_ERR);
    assert_eq!(region.load(0), 0);
    drop(b);
}

#[test]
fn atomic_invalid_mr_access() {
    let players = Players::new();
    let closed = players
        .fixture
        .pd
        .alloc_remote(8, RemoteAccess::READ)
        .unwrap();
    players.fail(|_| closed.token(), WcStatus::REM_ACCESS_ERR);
    assert_eq!(closed.load(0), 0);
}

/// Soft-RoCE detects the error at once, softnic at the responder.
#[test]
fn atomic_non_aligned_addr() {
    let mut players = Players::new();
    let [(active, _), (_, passive)] = &mut players.sides;
    let token = passive.token().slice(1..9).unwrap();
    let work = players.fixture.pd.register_buf(*b"the work").unwrap();
    let posted = active.post(op::FetchAdd::new(work, token, 1));
    if players.fixture.is_soft_roce() {
        let refused = posted.unwrap_err();
        assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(&*refused.value.unwrap().into_work(), b"the work");
    } else {
        posted.unwrap();
        assert_eq!(sent(&mut players.cq, active).0, WcStatus::REM_INV_REQ_ERR);
    }
    assert_eq!((passive.load(0), passive.load(8)), (0, 0));
}

/// Memory, under a wrong key.
#[derive(Debug)]
struct WrongKey {
    buf: Buf,
    lkey: u32,
}

// SAFETY: the memory is the buffer's, for as long as the buffer lives. The device must detect the
// invalid key.
unsafe impl Gather for WrongKey {
    fn gather(&self, list: &mut SgeList) {
        let start = NonNull::from(&self.buf[..]).cast();
        // SAFETY: as above.
        list.push(unsafe { Sge::new(start, 8, self.lkey) });
    }
}

// SAFETY: as above; the buffer is owned, so writing is allowed.
unsafe impl Scatter for WrongKey {}

#[test]
fn atomic_invalid_lkey() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, _b) = fixture.pair::<WrongKey, Buf>(&cq, 4);
    let region = fixture.pd.alloc_remote(8, RemoteAccess::ATOMIC).unwrap();
    region.store(0, 7);
    let work = WrongKey {
        buf: fixture.pd.alloc_buf(8).unwrap(),
        lkey: region.token().rkey + 1,
    };
    a.post(op::FetchAdd::new(work, region.token(), 1)).unwrap();
    let (status, work) = sent(&mut cq, &mut a);
    assert_eq!(status, WcStatus::LOC_PROT_ERR);
    assert_eq!(&*work.buf, &[0; 8]);
}

#[test]
fn atomic_invalid_rkey() {
    Players::new().fail(
        |token| RemoteToken {
            rkey: token.rkey + 1,
            ..token
        },
        WcStatus::REM_ACCESS_ERR,
    );
}
