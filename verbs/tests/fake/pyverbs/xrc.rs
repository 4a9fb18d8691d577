//! The cases about extended reliable connections, from several files

use verbs::{
    Buf, Completed, QueuePair, RemoteToken, Rts, SharedReceiveQueue, WcStatus,
    cq::{CqHandle, WcOpcode},
    op,
    qp::{QpNum, XrcReceiver, XrcSend},
    srq::SrqNum,
};

use super::traffic::{Poll, ROUNDS};
use crate::{
    fixture::Fixture,
    xrc::{receiver, sender},
};

const REMOTE: SrqNum = SrqNum::from_low_bits(0x1234);

/// Both ends of an extended connection on this side.
pub(super) struct Ends {
    sender: QueuePair<XrcSend, Rts>,
    receiver: XrcReceiver<Rts>,
    srq: SharedReceiveQueue,
}

impl Ends {
    pub(super) fn new(fixture: &Fixture, cq: &CqHandle) -> Self {
        let xrcd = fixture.ctx.open_xrcd().unwrap();
        let srq = fixture.pd.create_xrc_srq(&xrcd, cq, 4, 1).unwrap();
        let receiver = receiver(&xrcd, QpNum::from_low_bits(0x99));
        let sender = sender(fixture, cq, receiver.qp_num());
        Self {
            sender,
            receiver,
            srq,
        }
    }

    /// Sends messages to the queue, and receives answers, in memory registered by `alloc`.
    pub(super) fn traffic(
        &mut self,
        fixture: &Fixture,
        poll: &mut Poll<'_>,
        alloc: impl Fn() -> Buf,
    ) {
        let fake = &fixture.fake;
        for round in 0..ROUNDS {
            let mut work = alloc();
            work.fill(round);
            let request = op::ToSrq::new(op::Send::new(work), REMOTE);
            self.sender.post(request).unwrap();
            let posted = &fake.sends(self.sender.qp_num())[0];
            assert_eq!(posted.remote_srqn, Some(REMOTE.get()));
            assert!(posted.bytes().iter().all(|byte| *byte == round));
            fake.complete_send(self.sender.qp_num(), WcStatus::SUCCESS);
            let mut back = None;
            poll(&mut |wc| {
                wc.ok().unwrap();
                if let Ok(Completed::Send(done)) = self.sender.complete(wc) {
                    back = Some(done.into_work().unwrap());
                }
            });
            self.srq.post(back.expect("it has completed")).unwrap();
            let queue = self.srq.as_raw();
            fake.complete_xrc(self.receiver.qp_num(), queue, b"answer", None);
            let mut received = Vec::new();
            poll(&mut |wc| {
                assert_eq!(wc.qp_num(), self.receiver.qp_num());
                received = self.srq.complete(wc).unwrap().received().unwrap().to_vec();
            });
            assert_eq!(received, b"answer");
        }
    }
}

#[test]
fn xrc_traffic_cq_ex() {
    let fixture = Fixture::new();
    let mut cq = fixture.ctx.cq_ex_builder(16).create().unwrap();
    let mut ends = Ends::new(&fixture, &cq);
    let mut poll = |take: &mut dyn FnMut(verbs::WorkCompletion<'_>)| {
        let mut polled = cq.poll().unwrap().expect("something has completed");
        while let Some(wc) = polled.next().unwrap() {
            take(wc.into_work_completion());
        }
    };
    ends.traffic(&fixture, &mut poll, || fixture.pd.alloc_buf(64).unwrap());
}

/// The number itself is in the peer's memory, absent on a fake: this checks the request in the
/// device's view.
#[test]
fn xrc_atomic_cmp_and_swap() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut ends = Ends::new(&fixture, &cq);
    let remote = RemoteToken {
        addr: 0x1000,
        len: 8,
        rkey: 5,
    };
    for (compare, swap) in [(2, 0), (1, 0)] {
        let work = fixture.pd.alloc_buf(8).unwrap();
        let request = op::CompareSwap::new(work, remote, compare, swap);
        ends.sender.post(op::ToSrq::new(request, REMOTE)).unwrap();
        let number = ends.sender.qp_num();
        let posted = &fixture.fake.sends(number)[0];
        assert_eq!(
            (posted.compare_add, posted.swap),
            (Some(compare), Some(swap))
        );
        assert_eq!(
            (posted.remote, posted.remote_srqn),
            (Some((0x1000, 5)), Some(0x1234))
        );
        fixture.fake.complete_send(number, WcStatus::SUCCESS);
        let wc = cq.poll().unwrap().next().unwrap();
        assert_eq!(wc.opcode(), Some(WcOpcode::COMP_SWAP));
        assert!(ends.sender.complete(wc).is_ok());
    }
}

#[test]
fn ro_xrc_traffic() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(16);
    let mut ends = Ends::new(&fixture, &cq);
    let relaxed = ibverbs_sys::ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING.0;
    let alloc = || {
        let buf = fixture
            .pd
            .register(vec![0; 64])
            .relaxed_ordering()
            .create_buf();
        assert_ne!(fixture.fake.region().2 & relaxed, 0);
        buf.unwrap()
    };
    let mut poll = |take: &mut dyn FnMut(verbs::WorkCompletion<'_>)| {
        cq.poll().unwrap().for_each(take);
    };
    ends.traffic(&fixture, &mut poll, alloc);
}
