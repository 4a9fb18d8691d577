//! Datagrams from a raw peer, longer than the socket's receives.

use std::net::UdpSocket;

use rsocket::{
    Socket,
    proto::datagram::{Exchange, Operation, QKEY, SLOT},
};
use verbs::{
    Buf, CompletionQueue, Gid, Init, QueuePair, Rtr, Rts, Ud,
    ah::{AddressVector, Addressed},
    op,
    qp::{Attributes, Psn, QpNum},
};

use super::{DEVICE, TEST_TIMEOUT, bound, drain, introduce, introduce_again};
use crate::{local, wrong_keys::with_wrong_keys};

/// A queue pair without an rsocket.
struct RawPeer {
    qp: QueuePair<Ud, Rts, Addressed<Buf>, Buf>,
    cq: CompletionQueue,
    udp: UdpSocket,
}

impl RawPeer {
    fn new() -> Self {
        let devices = verbs::devices().unwrap();
        let ctx = devices.find(DEVICE).unwrap().open().unwrap();
        let pd = ctx.alloc_pd().unwrap();
        let cq = ctx.cq_builder(16).waitable().create().unwrap();
        let qp = pd.qp_builder::<Ud>(&cq, &cq).create_for().unwrap();
        let qp = qp.to_init(&Attributes::<Ud, Init>::new(1, QKEY)).unwrap();
        let qp = qp.to_rtr(&Attributes::<Ud, Rtr>::new()).unwrap();
        let qp = qp.to_rts(&Attributes::<Ud, Rts>::new(Psn::default()));
        let udp = UdpSocket::bind(local()).unwrap();
        udp.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        Self {
            qp: qp.unwrap(),
            cq,
            udp,
        }
    }

    /// Requests a socket's queue pair number.
    fn request_qp_num(&self, socket: &Socket) -> QpNum {
        let header = Exchange {
            operation: Operation::Data,
            qp_num: self.qp.qp_num().get(),
            addr: local().ip(),
        };
        self.udp
            .send_to(&header.encode(), socket.local_addr().unwrap())
            .unwrap();
        let mut answer = [0; 100];
        let (len, _) = self.udp.recv_from(&mut answer).unwrap();
        let (answer, _) = Exchange::decode(&answer[..len], local().ip()).unwrap();
        assert_eq!(answer.operation, Operation::Answer);
        QpNum::new(answer.qp_num).unwrap()
    }

    /// Sends `len` bytes through the device.
    fn send(&mut self, len: usize, to: QpNum) {
        let pd = self.qp.pd().clone();
        let port = pd.context().query_port(1).unwrap();
        assert!(port.active_mtu().bytes().unwrap() as usize >= len);
        let gid = Gid::from(local().ip());
        let table = pd.context().query_gid_table().unwrap();
        let entry = table.iter().find(|entry| entry.gid == gid).unwrap();
        let index = u8::try_from(entry.gid_index).unwrap();
        let ah = pd.create_ah(&AddressVector::global(1, index, gid)).unwrap();
        let buf = pd.alloc_buf(len).unwrap();
        let request = op::SendTo::new(Addressed::new(buf, &ah), to, QKEY);
        self.qp.post(request).unwrap();
        let mut completions = self.cq.wait(Some(TEST_TIMEOUT)).unwrap();
        let wc = completions.next().expect("no completion of the send");
        wc.ok().unwrap();
        drop(self.qp.complete(wc).unwrap());
    }
}

#[test]
fn datagram_longer_than_receives_is_dropped_and_others_arrive() {
    let (a, b) = (bound(local()), bound(local()));
    introduce(&a, &b);
    let mut raw_peer = RawPeer::new();
    let qp_num = raw_peer.request_qp_num(&b);
    // More than the number of receives.
    for round in 0..100 {
        raw_peer.send(if round % 2 == 0 { SLOT + 1 } else { 4096 }, qp_num);
    }
    drain(&b);
    introduce_again(&a, &b);
    assert_eq!(
        raw_peer.request_qp_num(&b),
        qp_num,
        "it is the same queue pair"
    );
}

/// The excess of an overlong datagram is written to memory refused by the device.
#[test]
fn queue_pair_whose_receive_fails_is_replaced() {
    const SPILL: usize = 4096;
    let a = bound(local());
    let b = with_wrong_keys(SPILL, || {
        let b = bound(local());
        introduce(&a, &b);
        b
    });
    let mut raw_peer = RawPeer::new();
    let failing = raw_peer.request_qp_num(&b);
    raw_peer.send(SPILL, failing);
    drain(&b);
    introduce_again(&a, &b);
    let replaced = raw_peer.request_qp_num(&b);
    assert_ne!(replaced, failing);
    // The second queue pair has valid memory.
    raw_peer.send(SPILL, replaced);
    drain(&b);
    introduce_again(&a, &b);
    assert_eq!(raw_peer.request_qp_num(&b), replaced);
}
