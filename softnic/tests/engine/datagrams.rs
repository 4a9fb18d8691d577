//! Datagrams: header, `Q_Key`s, and multicast groups.

use std::net::IpAddr;

use softnic::engine::{
    Destination, NetworkHeader, Path, QpKind, RecvRequest, SendRequest, State, Status,
};

use crate::{
    pair::{Pair, SEND, attributes, request},
    shadow::BASE,
};

const QKEY: u32 = 0x1111;

fn datagram(pair: &Pair, to: IpAddr, (qp, qkey): (u32, u32), len: u32) -> SendRequest {
    let mut wr = request(1, SEND, &[pair.hosts[0].sge(0, len)]);
    wr.destination = Some(Destination {
        path: Path::new(pair.hosts[0].addr, to),
        qp,
        key: qkey.into(),
    });
    wr
}

fn to_peer(pair: &Pair, qkey: u32, len: u32) -> SendRequest {
    let peer = &pair.hosts[1];
    datagram(pair, peer.addr, (peer.qp.0, qkey), len)
}

#[test]
fn datagram_arrives_behind_its_header() {
    let mut pair = Pair::connected(QpKind::Ud);
    let sge = pair.hosts[1].sge(0, 64);
    pair.post_recv(1, 5, &[sge]);
    pair.hosts[0].memory.at(BASE, 5).copy_from_slice(b"hello");
    pair.post(0, to_peer(&pair, QKEY, 5));
    pair.run();
    let completion = pair.hosts[1].poll()[0];
    assert_eq!(
        (completion.status, completion.byte_len),
        (Status::Success, 45)
    );
    assert_eq!(completion.src_qp, pair.hosts[0].qp.0);
    assert_eq!(completion.header, Some(NetworkHeader::Ipv4));
    let received = pair.hosts[1].memory.at(BASE, 45);
    assert_eq!(received[..20], [0; 20]);
    assert_eq!(
        (received[20], &received[32..40]),
        (0x45, &[10, 9, 0, 1, 10, 9, 0, 2][..])
    );
    assert_eq!(&received[40..], b"hello");
    assert_eq!(pair.hosts[0].poll()[0].status, Status::Success);
}

#[test]
fn datagrams_with_the_wrong_key_or_without_a_receive_are_dropped() {
    let mut pair = Pair::connected(QpKind::Ud);
    pair.post(0, to_peer(&pair, QKEY, 5));
    pair.run();
    let sge = pair.hosts[1].sge(0, 64);
    pair.post_recv(1, 5, &[sge]);
    pair.post(0, to_peer(&pair, QKEY + 1, 5));
    pair.run();
    assert_eq!(pair.hosts[1].poll(), []);
    assert_eq!(pair.state(1), State::Rts);
    pair.post(0, to_peer(&pair, 1 << 31, 5));
    pair.run();
    assert_eq!(
        pair.hosts[1].poll().len(),
        1,
        "the highest bit means the own key"
    );
}

#[test]
fn datagram_of_the_ports_mtu_arrives() {
    let mut pair = Pair::connected(QpKind::Ud);
    let sge = pair.hosts[1].sge(0, 40 + 4096);
    pair.post_recv(1, 5, &[sge]);
    pair.post(0, to_peer(&pair, QKEY, 4096));
    pair.run();
    assert_eq!(pair.hosts[0].poll()[0].status, Status::Success);
    assert_eq!(pair.hosts[1].poll()[0].byte_len, 40 + 4096);
}

#[test]
fn datagrams_longer_than_the_mtu_are_dropped_without_an_error() {
    let mut pair = Pair::connected(QpKind::Ud);
    let sge = pair.hosts[1].sge(0, 40 + 8192);
    pair.post_recv(1, 5, &[sge]);
    for (wr_id, len) in [(1, 4096 + 1), (2, 8192), (3, 5)] {
        let mut wr = to_peer(&pair, QKEY, len);
        wr.wr_id = wr_id;
        pair.post(0, wr);
    }
    pair.run();
    let sent = pair.hosts[0].poll();
    let sent: Vec<_> = sent.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    let success = Status::Success;
    assert_eq!(sent, [(1, success), (2, success), (3, success)]);
    let received = pair.hosts[1].poll();
    assert_eq!(
        received.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(),
        [45]
    );
    assert_eq!(pair.state(0), State::Rts);
}

#[test]
fn datagram_longer_than_its_receive_is_dropped() {
    let mut pair = Pair::connected(QpKind::Ud);
    let sge = pair.hosts[1].sge(0, 44);
    pair.post_recv(1, 5, &[sge]);
    pair.post(0, to_peer(&pair, QKEY, 5));
    pair.run();
    assert_eq!((pair.hosts[1].poll(), pair.state(1)), (vec![], State::Rts));
    assert_eq!(pair.hosts[1].memory.at(BASE, 44), [0; 44]);
    // The receive is that of the next datagram that fits.
    pair.post(0, to_peer(&pair, QKEY, 4));
    pair.run();
    let received = pair.hosts[1].poll();
    assert_eq!(
        (received[0].wr_id, received[0].status),
        (5, Status::Success)
    );
}

#[test]
fn datagram_longer_than_its_shared_receive_fails_the_receive_alone() {
    let mut pair = Pair::new(QpKind::Ud, true);
    pair.connect(&attributes());
    let srq = pair.hosts[1].engine.qp_srq(pair.hosts[1].qp).unwrap();
    for (wr_id, len) in [(5, 44), (6, 64)] {
        let sges = vec![pair.hosts[1].sge(0, len)];
        let receive = RecvRequest { wr_id, sges };
        pair.hosts[1].engine.post_srq_recv(srq, receive).unwrap();
    }
    for _ in 0..2 {
        pair.post(0, to_peer(&pair, QKEY, 5));
    }
    pair.run();
    let received = pair.hosts[1].poll();
    let received: Vec<_> = received.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(received, [(5, Status::LocalLength), (6, Status::Success)]);
    assert_eq!(pair.state(1), State::Rts);
}

#[test]
fn multicast_send_reaches_members_only() {
    let mut pair = Pair::connected(QpKind::Ud);
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let sge = pair.hosts[1].sge(0, 64);
    pair.post_recv(1, 5, &[sge]);
    let send = datagram(&pair, group, (0xff_ffff, QKEY), 5);
    pair.post(0, send.clone());
    pair.run();
    assert_eq!(pair.hosts[1].poll(), [], "no member yet");
    let member = pair.hosts[1].qp;
    pair.hosts[1].engine.attach(member, group).unwrap();
    pair.post(0, send.clone());
    pair.run();
    assert_eq!(pair.hosts[1].poll().len(), 1);
    assert!(
        pair.hosts[1].engine.destroy_qp(member).is_err(),
        "still a member"
    );
    pair.hosts[1].engine.detach(member, group).unwrap();
    pair.post_recv(1, 6, &[sge]);
    pair.post(0, send);
    pair.run();
    assert_eq!(pair.hosts[1].poll(), []);
}
