//! Datagrams to groups.

use std::{
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use verbs::{
    Buf, CompletionQueue, Gid, Init, QueuePair, Rtr, Rts, Ud,
    ah::{AddressVector, Addressed, GRH_LEN},
    op,
    qp::{Attributes, Psn, QpNum},
};

use crate::loopback::Fixture;

const TEST_TIMEOUT: Option<Duration> = Some(Duration::from_secs(60));
const QKEY: u32 = 0x1111_1111;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 9, 8, 7);

type Qp = QueuePair<Ud, Rts, Addressed<Buf>, Buf>;

fn datagrams(fixture: &Fixture, cq: &CompletionQueue) -> Qp {
    let builder = fixture.pd.qp_builder::<Ud>(cq, cq).max_recv_wr(2);
    let qp = builder.create_for().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY)).unwrap();
    let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
        .unwrap()
}

fn group() -> Gid {
    Gid(GROUP.to_ipv6_mapped().octets())
}

/// Sends to the group of `members` queue pairs. Returns the receiving queue pairs, after 200 ms without
/// another one.
fn receivers(
    fixture: &Fixture,
    cq: &mut CompletionQueue,
    qps: &mut [Qp],
    members: usize,
) -> Vec<bool> {
    let (index, _) = fixture.gid();
    let ah = fixture
        .pd
        .create_ah(&AddressVector::global(1, index, group()))
        .unwrap();
    for qp in qps.iter_mut() {
        qp.post_recv(fixture.pd.alloc_buf(GRH_LEN + 8).unwrap())
            .unwrap();
    }
    let message = fixture.pd.register_buf(*b"to all").unwrap();
    let to_all = op::SendTo::new(Addressed::new(message, &ah), QpNum::MAX, QKEY);
    qps[0].post(to_all).unwrap();
    let mut received = vec![false; qps.len()];
    let mut sent = false;
    loop {
        let count = received.iter().filter(|received| **received).count();
        let enough = sent && count >= members;
        let timeout = if enough {
            Some(Duration::from_millis(200))
        } else {
            TEST_TIMEOUT
        };
        let completions = cq.wait(timeout).unwrap();
        if completions.len() == 0 {
            assert!(enough, "received by {count} of {members} members");
            return received;
        }
        for wc in completions {
            wc.ok().unwrap();
            let i = qps.iter().position(|qp| qp.id() == wc.qp_id()).unwrap();
            match qps[i].complete(wc).unwrap() {
                verbs::Completed::Send(_) => sent = true,
                verbs::Completed::Receive(done) => {
                    assert_eq!(&done.received().unwrap()[GRH_LEN..], b"to all");
                    received[i] = true;
                }
            }
        }
    }
}

#[test]
fn multicast_members_receive_the_groups_datagrams() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(64);
    // The kernel loops a host's own packets back only if the host is a member as well.
    let (_, gid) = fixture.gid();
    let [.., a, b, c, d] = gid.0;
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket
        .join_multicast_v4(&GROUP, &Ipv4Addr::new(a, b, c, d))
        .unwrap();

    let mut qps = [(); 3].map(|()| datagrams(&fixture, &cq));
    for qp in &mut qps[1..] {
        qp.attach_multicast(group(), 0).unwrap();
    }
    let received = receivers(&fixture, &mut cq, &mut qps, 2);
    assert_eq!(received, [false, true, true]);
    qps[1].detach_multicast(group(), 0).unwrap();
    let received = receivers(&fixture, &mut cq, &mut qps, 1);
    assert_eq!(received, [false, false, true]);
}
