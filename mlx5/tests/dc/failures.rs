//! Failures of an initiator, which end no request of another.

use mlx5::{Request, Target};
use softnic::Fabric;
use verbs::{RemoteAccess, RemoteToken, WcStatus, attr::Mtu};

use crate::{
    end::{Done, End, KEY},
    two_ends,
};

/// The statuses of completed requests.
fn statuses(done: &[Done]) -> Vec<WcStatus> {
    let status = |(_, result): &Done| result.as_ref().err().copied();
    let statuses = done.iter().map(status);
    statuses
        .map(|status| status.unwrap_or(WcStatus::SUCCESS))
        .collect()
}

/// The statuses of the next completed requests.
fn next(end: &mut End, count: usize) -> Vec<WcStatus> {
    statuses(&end.reap(0, count).done)
}

/// Checks that an initiator sends after a reset, as another one does.
fn assert_serves(sender: End, peer: &mut End) {
    let (mut sender, _) = sender.restart();
    peer.receive(1, 64);
    let to = sender.to(peer);
    sender.send(99, b"still here", &to);
    assert_eq!(next(&mut sender, 1), [WcStatus::SUCCESS]);
    assert_eq!(peer.reap(1, 0).messages[0].bytes, b"still here");
}

#[test]
fn wrong_key_ends_the_initiator_with_all_of_its_requests() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    peer.receive(2, 64);
    let (ah, to) = sender.to(&peer);
    let wrong = Target { key: !KEY, ..to };
    sender.send(1, b"wrong key", &(ah.clone(), wrong));
    sender.send(2, b"right key", &(ah, to));
    let failed = next(&mut sender, 2);
    assert_eq!(failed, [WcStatus::REM_ACCESS_ERR, WcStatus::WR_FLUSH_ERR]);
    assert_serves(sender, &mut peer);
}

#[test]
fn request_to_a_destroyed_target_fails_after_its_retries() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    let destroyed = End::new(&fabric, 3);
    let to = sender.to(&destroyed);
    let _leftover = destroyed.dct.destroy().unwrap();
    sender.send(1, b"nobody", &to);
    assert_eq!(next(&mut sender, 1), [WcStatus::RETRY_EXC_ERR]);
    assert_serves(sender, &mut peer);
}

#[test]
fn request_to_a_silent_host_fails_after_its_retries() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    let silent = End::new(&fabric, 3);
    let to = sender.to(&silent);
    fabric.cut(sender.host(), silent.host());
    sender.send(1, b"anybody?", &to);
    assert_eq!(next(&mut sender, 1), [WcStatus::RETRY_EXC_ERR]);
    assert_serves(sender, &mut peer);
}

#[test]
fn rdma_beyond_the_rights_of_the_region_fails() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    let (ah, to) = sender.to(&peer);
    let token = peer.memory.token();
    let foreign = RemoteToken {
        rkey: token.rkey ^ 0x5500,
        ..token
    };
    let write = Request::write(sender.work(1, b"not yours", &ah), foreign, to);
    sender.post([write]);
    assert_eq!(next(&mut sender, 1), [WcStatus::REM_ACCESS_ERR]);
    assert_serves(sender, &mut peer);
}

#[test]
fn rdma_beyond_the_rights_of_the_target_fails() {
    let fabric = Fabric::new();
    let mut sender = End::new(&fabric, 1);
    let rights = (Mtu::B1024, RemoteAccess::READ);
    let mut peer = End::of(&fabric, 2, rights, 7);
    let (ah, to) = sender.to(&peer);
    let token = peer.memory.token();
    let read = Request::read(sender.work(1, &[0; 8], &ah), token, to);
    let write = Request::write(sender.work(2, b"no right", &ah), token, to);
    sender.post([read, write]);
    let done = next(&mut sender, 2);
    assert_eq!(done, [WcStatus::SUCCESS, WcStatus::REM_INV_REQ_ERR]);
    assert_serves(sender, &mut peer);
}

#[test]
fn message_longer_than_its_receive_fails_on_both_sides() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    let mut other = End::new(&fabric, 3);
    peer.receive(1, 3);
    let to = sender.to(&peer);
    sender.send(1, b"four", &to);
    assert_eq!(next(&mut sender, 1), [WcStatus::REM_INV_REQ_ERR]);
    assert_eq!(peer.reap(1, 0).messages[0].bytes, b"");
    peer.receive(1, 64);
    let to = other.to(&peer);
    other.send(1, b"another initiator", &to);
    assert_eq!(peer.reap(1, 0).messages[0].bytes, b"another initiator");
    assert_serves(sender, &mut peer);
}

#[test]
fn message_without_a_receive_fails_after_its_retries() {
    let fabric = Fabric::new();
    let mut sender = End::of(&fabric, 1, (Mtu::B1024, RemoteAccess::empty()), 2);
    let mut peer = End::new(&fabric, 2);
    let to = sender.to(&peer);
    sender.send(1, b"too early", &to);
    assert_eq!(next(&mut sender, 1), [WcStatus::RNR_RETRY_EXC_ERR]);
    assert_serves(sender, &mut peer);
}

#[test]
fn reset_and_destruction_return_requests_in_flight() {
    let fabric = Fabric::new();
    let (mut sender, peer) = two_ends(&fabric);
    let to = sender.to(&peer);
    for number in 0..3 {
        sender.send(number, b"waits", &to);
    }
    let (mut sender, returned) = sender.restart();
    assert_eq!(returned, [0, 1, 2]);
    for number in 0..2 {
        sender.send(number, b"waits", &to);
    }
    assert_eq!(sender.dci.destroy().unwrap().send.len(), 2);
}

#[test]
fn requests_of_a_failed_initiator_are_flushed() {
    let fabric = Fabric::new();
    let (mut sender, peer) = two_ends(&fabric);
    let to = sender.to(&peer);
    for number in 0..3 {
        sender.send(number, b"waits", &to);
    }
    sender.dci.to_error().unwrap();
    assert_eq!(next(&mut sender, 3), [WcStatus::WR_FLUSH_ERR; 3]);
}

#[test]
fn target_is_not_failed_by_a_call() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    let refused = peer.dct.to_error().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    peer.receive(1, 64);
    let to = sender.to(&peer);
    sender.send(1, b"works", &to);
    assert_eq!(peer.reap(1, 0).messages[0].bytes, b"works");
}

#[test]
fn target_without_a_shared_queue_is_refused() {
    let fabric = Fabric::new();
    let end = End::new(&fabric, 1);
    let refused = mlx5::create_target(end.pd.qp_builder(&end.cq, &end.cq), KEY).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
}
