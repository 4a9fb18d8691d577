//! Hosts of two networks with a router between them.

use std::net::IpAddr;

use softnic::{Fabric, Host};
use verbs::{
    AddressHandle, Buf, Init, QueuePair, Rtr, Rts, Ud, WcStatus,
    ah::{AddressVector, Addressed, GRH_LEN},
    op,
    qp::{Attributes, Psn},
};

use crate::end::{End, TEST_TIMEOUT};

const FAMILIES: [[&str; 2]; 2] = [["10.9.0.1", "10.9.1.1"], ["fd00:0:0:1::1", "fd00:0:0:2::1"]];

fn hosts(fabric: &Fabric, addrs: [&str; 2]) -> [Host; 2] {
    addrs.map(|addr| fabric.host(addr.parse::<IpAddr>().unwrap()))
}

#[test]
fn default_path_of_a_connection_passes_a_router() {
    for addrs in FAMILIES {
        let fabric = Fabric::new().router();
        let hosts = hosts(&fabric, addrs);
        let [mut a, mut b] = [End::new(&hosts[0]), End::new(&hosts[1])];
        let (qp_a, qp_b) = (a.qp(), b.qp());
        let (num_a, num_b) = (qp_a.qp_num(), qp_b.qp_num());
        let mut qp_a = a.bring_up(qp_a, (&b, num_b));
        let mut qp_b = b.bring_up(qp_b, (&a, num_a));
        qp_b.post_recv(b.filled(&[0; 5])).unwrap();
        qp_a.post(op::Send::new(a.filled(b"hello"))).unwrap();
        assert_eq!(
            a.reap(&mut qp_a, 1)[0].status,
            WcStatus::SUCCESS,
            "{addrs:?}"
        );
        assert_eq!(*b.reap(&mut qp_b, 1)[0].buf, *b"hello");
    }
}

/// A datagram queue pair with a receive posted, and its queue key.
fn datagrams(end: &End) -> QueuePair<Ud, Rts, Addressed<Buf>, Buf> {
    let builder = end.pd.qp_builder::<Ud>(&end.cq, &end.cq);
    let qp = builder.max_send_wr(4).max_recv_wr(4).create_for().unwrap();
    let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY)).unwrap();
    let mut qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
    qp.post_recv(end.filled(&[0; GRH_LEN + 8])).unwrap();
    qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()))
        .unwrap()
}

const QKEY: u32 = 0x1111_1111;

/// Sends a datagram, and waits until it has left.
fn send(
    end: &mut End,
    qp: &mut QueuePair<Ud, Rts, Addressed<Buf>, Buf>,
    to: (&AddressHandle, verbs::qp::QpNum),
) {
    let work = Addressed::new(end.filled(b"datagram"), to.0);
    qp.post(op::SendTo::new(work, to.1, QKEY)).unwrap();
    let completions = end.cq.wait(TEST_TIMEOUT).unwrap();
    assert!(completions.len() > 0, "the datagram has not left");
    for wc in completions {
        wc.ok().unwrap();
        drop(qp.complete(wc).unwrap());
    }
}

#[test]
fn datagram_and_its_answer_pass_a_router_with_one_hop_less() {
    for addrs in FAMILIES {
        let fabric = Fabric::new().router();
        let hosts = hosts(&fabric, addrs);
        let [mut a, mut b] = [End::new(&hosts[0]), End::new(&hosts[1])];
        let (mut qp_a, mut qp_b) = (datagrams(&a), datagrams(&b));
        let ah = a.pd.create_ah(&AddressVector::global(1, 0, b.gid));
        send(&mut a, &mut qp_a, (&ah.unwrap(), qp_b.qp_num()));

        let mut completions = b.cq.wait(TEST_TIMEOUT).unwrap();
        let Ok(verbs::Completed::Receive(done)) = qp_b.complete(completions.next().unwrap()) else {
            unreachable!()
        };
        let vector = b.pd.vector_from_wc(&done, done.received().unwrap(), 1);
        let vector = vector.unwrap();
        drop(done);
        drop(completions);
        assert_eq!(vector.grh.unwrap().hop_limit, 63);
        let back = b.pd.create_ah(&vector).unwrap();
        send(&mut b, &mut qp_b, (&back, qp_a.qp_num()));
        let answers = a.cq.wait(TEST_TIMEOUT).unwrap();
        assert_eq!(answers.len(), 1, "the answer has not come");
    }
}

#[test]
fn frames_without_hops_are_lost_at_the_router_only() {
    let fabric = Fabric::new().router();
    let far = hosts(&fabric, FAMILIES[0]);
    let near = fabric.host([10, 9, 0, 2].into());
    let mut a = End::new(&far[0]);
    let mut qp_a = datagrams(&a);
    for (host, lost, arrived) in [(&near, 0, 1), (&far[1], 1, 0)] {
        let mut b = End::new(host);
        let qp_b = datagrams(&b);
        let mut vector = AddressVector::global(1, 0, b.gid);
        if let Some(grh) = &mut vector.grh {
            grh.hop_limit = 1;
        }
        let ah = a.pd.create_ah(&vector).unwrap();
        let before = fabric.traffic().lost;
        send(&mut a, &mut qp_a, (&ah, qp_b.qp_num()));
        assert_eq!(fabric.traffic().lost - before, lost, "{}", host.addr());
        assert_eq!(b.cq.poll().unwrap().len(), arrived);
    }
}
