//! Datagrams, and unreliable connections.

use std::{net::IpAddr, time::Duration};

use verbs::{
    Buf, CompletionQueue, Gid, Init, QueuePair, Reset, Rtr, Rts, SharedReceiveQueue, Uc, Ud,
    ah::{Addressed, GRH_LEN},
    op,
    qp::{Attributes, Psn, QpNum},
    work::With,
};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const QKEY: u32 = 0x1111_1111;

type Work = With<Addressed<Buf>, u32>;

fn datagram_qp(fixture: &Fixture, cq: &CompletionQueue) -> QueuePair<Ud, Rts, Work, Buf> {
    let qp = fixture
        .pd
        .qp_builder::<Ud>(cq, cq)
        .max_send_wr(4)
        .max_recv_wr(4);
    let qp = qp.create_for::<Work, Buf>().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
        .unwrap()
}

#[test]
fn datagram_header_has_the_address_for_an_answer() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let (mut a, mut b) = (datagram_qp(&fixture, &cq), datagram_qp(&fixture, &cq));
    let buf = || fixture.pd.alloc_buf(GRH_LEN + 32).unwrap();
    a.post_recv(buf()).unwrap();
    b.post_recv(buf()).unwrap();
    let ah = fixture.pd.create_ah(&fixture.address_vector()).unwrap();
    let question = Addressed::new(fixture.pd.register_buf(*b"question").unwrap(), &ah);
    a.post(op::SendTo::new(With::new(question, 1), b.qp_num(), QKEY).imm_data(5))
        .unwrap();
    // The request in flight keeps the address.
    drop(ah);

    let mut answer = None;
    let mut back = Vec::new();
    while answer.is_none() || back.len() < 2 {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "a datagram was lost");
        for wc in completions {
            wc.ok().unwrap();
            let qp = if wc.qp_id() == a.id() { &mut a } else { &mut b };
            if !wc.is_receive() {
                let Ok(verbs::Completed::Send(done)) = qp.complete(wc) else {
                    unreachable!()
                };
                back.push(done.work().unwrap().context);
                continue;
            }
            let Ok(verbs::Completed::Receive(done)) = qp.complete(wc) else {
                unreachable!()
            };
            assert!(done.has_grh());
            let received = done.received().unwrap();
            match &received[GRH_LEN..] {
                b"question" => {
                    assert_eq!(done.imm_data(), Some(5));
                    assert_eq!(done.src_qp(), Some(a.qp_num()));
                    let vector = fixture.pd.vector_from_wc(&done, received, 1).unwrap();
                    assert_eq!(vector.grh.unwrap().dgid, fixture.gid().1);
                    let ah = fixture.pd.create_ah_from_wc(&done, received, 1).unwrap();
                    let answer = fixture.pd.register_buf(*b"answer").unwrap();
                    let work = With::new(Addressed::new(answer, &ah), 2);
                    let sender = done.src_qp().unwrap();
                    b.post(op::SendTo::new(work, sender, QKEY)).unwrap();
                }
                other => answer = Some(other.to_vec()),
            }
        }
    }
    assert_eq!(answer.unwrap(), b"answer");
    back.sort_unstable();
    assert_eq!(back, [1, 2]);
}

#[test]
fn ah_without_route_names_the_address() {
    let fixture = Fixture::new();
    let err = fixture
        .pd
        .create_ah(&verbs::ah::AddressVector::local(1, 7))
        .unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EINVAL));
    assert!(err.to_string().contains("dlid: 7"), "{err}");
}

/// Connects a queue pair of unreliable connections.
fn bring_up_uc(fixture: &Fixture, qp: QueuePair<Uc, Reset>, peer: QpNum) -> QueuePair<Uc, Rts> {
    let psn = Psn::from_low_bits(77);
    let qp = qp.to_init(&Attributes::<Uc, Init>::new(1)).unwrap();
    let rtr = Attributes::<Uc, Rtr>::new(&fixture.address_vector(), peer, psn);
    let qp = qp.to_rtr(&rtr).unwrap();
    qp.to_rts(&Attributes::<Uc, Rts>::new(psn)).unwrap()
}

/// Exchanges a message between two queue pairs, the second with receives of a shared queue if `is_shared`.
fn exchange_over_uc(is_shared: bool) {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    let mut srq: SharedReceiveQueue = fixture.pd.create_srq(4, 1).unwrap();
    let builder = || fixture.pd.qp_builder::<Uc>(&cq, &cq);
    let a = builder().create().unwrap();
    let b = match is_shared {
        true => builder().srq(&srq).create().unwrap(),
        false => builder().create().unwrap(),
    };
    let (a_num, b_num) = (a.qp_num(), b.qp_num());
    let mut a = bring_up_uc(&fixture, a, b_num);
    let mut b = bring_up_uc(&fixture, b, a_num);
    let buf = fixture.pd.alloc_buf(16).unwrap();
    match is_shared {
        true => srq.post(buf).unwrap(),
        false => b.post_recv(buf).unwrap(),
    }
    let message = fixture.pd.register_buf(*b"unreliable").unwrap();
    a.post(op::Send::new(message)).unwrap();
    let mut received = None;
    while received.is_none() {
        let completions = cq.wait(TEST_TIMEOUT).unwrap();
        assert!(completions.len() > 0, "the message was lost");
        for wc in completions {
            wc.ok().unwrap();
            if wc.qp_id() == srq.id() {
                received = Some(srq.complete(wc).unwrap().received().unwrap().to_vec());
            } else if wc.is_receive() {
                let Ok(verbs::Completed::Receive(done)) = b.complete(wc) else {
                    unreachable!()
                };
                received = Some(done.received().unwrap().to_vec());
            }
        }
    }
    assert_eq!(received.unwrap(), b"unreliable");
}

#[test]
fn uc_messages_arrive() {
    exchange_over_uc(false);
}

#[test]
fn uc_messages_arrive_in_receives_of_a_shared_queue() {
    exchange_over_uc(true);
}

#[test]
fn multicast_attach_twice_and_destroy_succeeds() {
    let fixture = Fixture::new();
    let cq = fixture.ctx.create_cq(8).unwrap();
    let mut qp = datagram_qp(&fixture, &cq);
    // The GID of IPv4's 239.1.2.3 on RoCE.
    let group = Gid::from(IpAddr::from([239, 1, 2, 3]));
    let absent = qp.detach_multicast(group, 0).unwrap_err();
    assert_eq!(absent.raw_os_error(), Some(libc::EINVAL));
    assert!(absent.to_string().contains("239.1.2.3"), "{absent}");
    qp.attach_multicast(group, 0).unwrap();
    qp.attach_multicast(group, 0).unwrap();
    qp.detach_multicast(group, 0).unwrap();
    assert!(qp.detach_multicast(group, 0).is_err());
    qp.attach_multicast(group, 0).unwrap();
    assert!(qp.destroy().is_ok());
}
