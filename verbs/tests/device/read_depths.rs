//! Queue pairs with a limited number of reads and atomics at once.

use std::{io::ErrorKind, time::Duration};

use verbs::{
    Buf, CompletionQueue, Error, QueuePair, RemoteAccess, Reset, Rtr, Rts, WcStatus, op,
    qp::{Attributes, Psn, QpNum},
};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));

/// The depths of a queue pair: of its own reads, and of the peer's.
type Depths = (u8, u8);

fn bring_up(
    fixture: &Fixture,
    qp: QueuePair<verbs::Rc, Reset>,
    peer: QpNum,
    (initiated, served): Depths,
) -> QueuePair<verbs::Rc, Rts> {
    let psn = Psn::from_low_bits(7);
    let vector = fixture.address_vector();
    let rtr = Attributes::<verbs::Rc, Rtr>::new(&vector, peer, psn).max_dest_rd_atomic(served);
    let rts = Attributes::<verbs::Rc, Rts>::new(psn).max_rd_atomic(initiated);
    let qp = qp.to_init(&fixture.init()).unwrap().to_rtr(&rtr).unwrap();
    qp.to_rts(&rts).unwrap()
}

fn pair(
    fixture: &Fixture,
    cq: &CompletionQueue,
    depths: [Depths; 2],
) -> [QueuePair<verbs::Rc, Rts>; 2] {
    let [a, b] = [(); 2].map(|()| fixture.qp::<Buf, Buf>(cq, 8));
    let numbers = [a.qp_num(), b.qp_num()];
    let [of_a, of_b] = depths;
    [
        bring_up(fixture, a, numbers[1], of_a),
        bring_up(fixture, b, numbers[0], of_b),
    ]
}

fn status(cq: &mut CompletionQueue, qp: &mut QueuePair<verbs::Rc, Rts>) -> WcStatus {
    loop {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "nothing has completed");
        for wc in completions {
            let status = wc.status();
            if qp.complete(wc).is_ok() {
                return status;
            }
        }
    }
}

fn is_refusal_with_the_remedy(error: &Error) {
    let text = error.to_string();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
    for part in [
        "max_rd_atomic is 0",
        "initiator_depth",
        "responder_resources",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn read_with_a_depth_of_zero_is_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let [mut a, b] = pair(&fixture, &cq, [(0, 4), (4, 4)]);
    let rights = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let region = fixture.pd.alloc_remote(64, rights).unwrap();
    let token = region.token().slice(0..8).unwrap();
    let buf = || fixture.pd.alloc_buf(8).unwrap();

    is_refusal_with_the_remedy(&a.post(op::Read::new(buf(), token)).unwrap_err().error);
    let swap = op::CompareSwap::new(buf(), token, 0, 1);
    is_refusal_with_the_remedy(&a.post(swap).unwrap_err().error);
    let add = op::FetchAdd::new(buf(), token, 1);
    is_refusal_with_the_remedy(&a.post(add).unwrap_err().error);
    let mut batch = a.batch();
    let refused = batch.push(op::Read::new(buf(), token)).unwrap_err();
    is_refusal_with_the_remedy(&refused.error);
    drop(batch);
    assert_eq!(a.send_queue().in_flight(), 0);

    // A write has no such limit, and after another transition the depth is the new one.
    a.post(op::Write::new(buf(), token)).unwrap();
    assert_eq!(status(&mut cq, &mut a), WcStatus::SUCCESS);
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let ((a, _), (b, _)) = (a.to_reset().unwrap(), b.to_reset().unwrap());
    let mut a = bring_up(&fixture, a, b_num, (1, 4));
    let _b = bring_up(&fixture, b, a_num, (4, 4));
    a.post(op::Read::new(buf(), token)).unwrap();
    assert_eq!(status(&mut cq, &mut a), WcStatus::SUCCESS);
}

#[test]
fn explanation_of_a_read_not_served_has_the_depths() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let [mut a, _b] = pair(&fixture, &cq, [(4, 2), (4, 0)]);
    let region = fixture.pd.alloc_remote(64, RemoteAccess::READ).unwrap();
    a.post(op::Read::new(
        fixture.pd.alloc_buf(64).unwrap(),
        region.token(),
    ))
    .unwrap();
    let completions = cq.wait(TEST_TIMEOUT).unwrap();
    let failed = completions.map(|wc| {
        let failed = wc.ok().unwrap_err();
        drop(a.complete(wc));
        failed
    });
    let failed: Vec<_> = failed.collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].status, WcStatus::REM_INV_REQ_ERR);
    let text = a.explain(&failed[0]).to_string();
    let depths = "reads and atomics at once: 4 of this side (max_rd_atomic), 2 of the peer";
    assert!(text.contains(depths), "{text}");
}
