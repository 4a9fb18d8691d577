//! Failures of requests, each of its own request only.

use std::io::ErrorKind;

use efa::{ReadFrom, Srd, WriteTo};
use softnic::Fabric;
use verbs::{
    Buf, RemoteToken, WcStatus,
    ah::Addressed,
    op::{self, SendOps, VendorDestination, VendorOperation, VendorRequest},
    work::SgeList,
};

use crate::end::{End, QKEY, Work};

/// A sender and its peer, on hosts 1 and 2.
fn two_ends() -> (Fabric, End, End) {
    let fabric = Fabric::new();
    let [sender, peer] = [1, 2].map(|number| End::new(&fabric, number));
    (fabric, sender, peer)
}

/// The status of the only request that has completed.
fn status(end: &mut End) -> WcStatus {
    let done = end.reap(0, 1).done;
    assert_eq!(done.len(), 1);
    done[0]
        .1
        .as_ref()
        .err()
        .copied()
        .unwrap_or(WcStatus::SUCCESS)
}

/// Checks that the queue pair still sends.
fn assert_sends(sender: &mut End, peer: &mut End) {
    peer.receive(1, 64);
    let ah = sender.to(peer);
    sender.send(99, b"still here", (&ah, peer.qp.qp_num()));
    assert_eq!(status(sender), WcStatus::SUCCESS);
    let messages = peer.reap(1, 0).messages;
    assert_eq!(messages[0].bytes, b"still here");
}

#[test]
fn request_to_a_destroyed_peer_fails_alone() {
    let (fabric, mut sender, mut peer) = two_ends();
    let destroyed = End::new(&fabric, 3);
    let (ah, number) = (sender.to(&destroyed), destroyed.qp.qp_num());
    let _leftover = destroyed.qp.destroy().unwrap();
    sender.send(1, b"nobody", (&ah, number));
    assert_eq!(status(&mut sender), WcStatus::REM_INV_RD_REQ_ERR);
    assert_sends(&mut sender, &mut peer);
}

#[test]
fn request_to_a_peer_in_the_error_state_fails_alone() {
    let (fabric, mut sender, mut peer) = two_ends();
    let mut failed = End::new(&fabric, 3);
    failed.receive(1, 64);
    failed.qp.to_error().unwrap();
    let ah = sender.to(&failed);
    sender.send(1, b"nobody", (&ah, failed.qp.qp_num()));
    assert_eq!(status(&mut sender), WcStatus::REM_INV_RD_REQ_ERR);
    assert_sends(&mut sender, &mut peer);
}

#[test]
fn request_to_a_silent_host_fails_alone() {
    let (fabric, mut sender, mut peer) = two_ends();
    let silent = End::new(&fabric, 3);
    let ah = sender.to(&silent);
    fabric.cut(sender.host(), silent.host());
    sender.send(1, b"anybody?", (&ah, silent.qp.qp_num()));
    assert_eq!(status(&mut sender), WcStatus::RESP_TIMEOUT_ERR);
    assert_sends(&mut sender, &mut peer);
}

#[test]
fn rdma_beyond_the_rights_of_the_region_fails_alone() {
    let (_fabric, mut sender, mut peer) = two_ends();
    let (ah, number, token) = (sender.to(&peer), peer.qp.qp_num(), peer.memory.token());
    let foreign = RemoteToken {
        rkey: token.rkey ^ 0x5500,
        ..token
    };
    sender.write((1, None), b"not yours", foreign, (&ah, number));
    assert_eq!(status(&mut sender), WcStatus::REM_ACCESS_ERR);
    sender.read(2, 8, foreign, (&ah, number));
    assert_eq!(status(&mut sender), WcStatus::REM_ACCESS_ERR);
    assert_sends(&mut sender, &mut peer);
}

#[test]
fn message_longer_than_its_receive_fails_on_both_sides() {
    let (_fabric, mut sender, mut peer) = two_ends();
    peer.receive(1, 3);
    let ah = sender.to(&peer);
    sender.send(1, b"four", (&ah, peer.qp.qp_num()));
    assert_eq!(status(&mut sender), WcStatus::REM_INV_REQ_ERR);
    assert_eq!(peer.reap(1, 0).messages[0].bytes, b"");
    assert_sends(&mut sender, &mut peer);
}

#[test]
fn message_longer_than_a_packet_fails_alone() {
    let (_fabric, mut sender, mut peer) = two_ends();
    let ah = sender.to(&peer);
    sender.send(1, &[0; 5000], (&ah, peer.qp.qp_num()));
    assert_eq!(status(&mut sender), WcStatus::LOC_LEN_ERR);
    assert_sends(&mut sender, &mut peer);
}

#[test]
fn message_without_a_receive_fails_after_its_retries() {
    let fabric = Fabric::new();
    let mut sender = End::with_retries(&fabric, 1, 2);
    let mut peer = End::new(&fabric, 2);
    let ah = sender.to(&peer);
    sender.send(1, b"too early", (&ah, peer.qp.qp_num()));
    assert_eq!(status(&mut sender), WcStatus::RNR_RETRY_EXC_ERR);
    assert_sends(&mut sender, &mut peer);
}

#[test]
fn full_queue_refuses_until_its_oldest_request_completes() {
    let (fabric, mut sender, mut peer) = two_ends();
    let mut late = End::new(&fabric, 3);
    peer.receive(64, 8);
    let (first, second) = (sender.to(&late), sender.to(&peer));
    sender.send(0, b"waits", (&first, late.qp.qp_num()));
    for number in 1..64 {
        sender.send(number, b"passes", (&second, peer.qp.qp_num()));
    }
    assert_eq!(sender.reap(0, 63).done.len(), 63);
    let buf = sender.pd.register_buf(*b"one more").unwrap();
    let work = Work::new(Addressed::new(buf, &second), 64);
    let send = op::SendTo::new(work, peer.qp.qp_num(), QKEY);
    let refused = sender.qp.post(send).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::WouldBlock);
    late.receive(1, 8);
    assert_eq!(status(&mut sender), WcStatus::SUCCESS);
    sender.qp.post(refused.value.unwrap()).unwrap();
    assert_eq!(status(&mut sender), WcStatus::SUCCESS);
}

#[test]
fn destruction_returns_requests_in_flight() {
    let (_fabric, mut sender, peer) = two_ends();
    let ah = sender.to(&peer);
    for number in 0..3 {
        sender.send(number, b"waits", (&ah, peer.qp.qp_num()));
    }
    let leftover = sender.qp.destroy().unwrap();
    assert_eq!(leftover.send.len(), 3);
}

#[test]
fn requests_of_a_failed_queue_pair_are_flushed() {
    let (_fabric, mut sender, peer) = two_ends();
    let ah = sender.to(&peer);
    for number in 0..3 {
        sender.send(number, b"waits", (&ah, peer.qp.qp_num()));
    }
    sender.qp.to_error().unwrap();
    let done = sender.reap(0, 3).done;
    assert!(
        done.iter()
            .all(|(_, result)| *result == Err(WcStatus::WR_FLUSH_ERR))
    );
}

/// Work of two elements.
type Pair = Addressed<(Buf, Buf)>;

/// A write without libefa's limit of elements.
struct Unlimited(WriteTo<Pair>);

// SAFETY: as for the write, but for the number of elements, which softnic checks.
unsafe impl VendorRequest for Unlimited {
    type Transport = Srd;
    type Work = Pair;

    fn operation(&self) -> VendorOperation {
        self.0.operation()
    }

    fn destination(&self) -> VendorDestination<'_> {
        self.0.destination()
    }

    fn gather(&self, list: &mut SgeList) {
        self.0.gather(list);
    }

    fn into_work(self) -> Pair {
        self.0.into_work()
    }
}

/// A batch with such a request would fail as a whole, with the requests before it.
#[test]
fn rdma_with_several_elements_is_refused_before_it_is_posted() {
    let (_fabric, sender, peer) = two_ends();
    let (ah, number, token) = (sender.to(&peer), peer.qp.qp_num(), peer.memory.token());
    let ops = SendOps::SEND | SendOps::RDMA_READ | SendOps::RDMA_WRITE;
    let builder = sender.pd.qp_builder::<Srd>(&sender.cq, &sender.cq);
    let builder = builder.send_ops(ops).max_send_sge(2).max_send_wr(4);
    let qp = builder.create_for::<Pair, Buf>().unwrap();
    let mut qp = efa::bring_up(qp, 1, QKEY).unwrap();
    let buf = || sender.pd.register_buf(*b"half").unwrap();
    let pair = || Addressed::new((buf(), buf()), &ah);

    let mut batch = qp.extended_batch().unwrap();
    let write = WriteTo::new(pair(), token, number, QKEY);
    let refused = batch.push_vendor(write).unwrap_err();
    let text = "2 elements, and the device allows 1 for this operation; post more requests";
    assert!(
        refused.error.to_string().contains(text),
        "{}",
        refused.error
    );
    let read = ReadFrom::new(refused.value.into_work(), token, number, QKEY);
    let refused = batch.push_vendor(read).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    let send = op::SendTo::new(refused.value.into_work(), number, QKEY);
    batch.push(send).unwrap();
    batch.post().unwrap();

    let mut batch = qp.extended_batch().unwrap();
    let write = WriteTo::new(pair(), token, number, QKEY);
    batch.push_vendor(Unlimited(write)).unwrap();
    let refused = batch.post().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EINVAL));
}
