//! The dynamically connected transport on softnic.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod end;
mod failures;

use std::io::ErrorKind;

use mlx5::Request;
use softnic::{Card, Fabric};
use verbs::{attr::Mtu, op::SendOps, qp::QpNum};

use end::{ALL, End, KEY, initiator};

/// A fabric with hosts 1 to `count`, an end on each.
fn ends(fabric: &Fabric, count: u8) -> Vec<End> {
    (1..=count).map(|number| End::new(fabric, number)).collect()
}

fn two_ends(fabric: &Fabric) -> (End, End) {
    (End::new(fabric, 1), End::new(fabric, 2))
}

#[test]
fn one_initiator_sends_to_many_targets() {
    let fabric = Fabric::new();
    let mut all = ends(&fabric, 6);
    let mut sender = all.remove(0);
    let targets: Vec<_> = all.iter().map(|peer| sender.to(peer)).collect();
    for peer in &mut all {
        peer.receive(2, 64);
    }
    let requests: Vec<_> = (0..10)
        .zip(targets.iter().cycle())
        .map(|(number, (ah, to))| {
            let text = format!("message {number}");
            Request::send_imm(sender.work(number, text.as_bytes(), ah), *to, number)
        })
        .collect();
    sender.post(requests);
    let done = sender.reap(0, 10).done;
    let numbers: Vec<_> = done.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>(), "in posting order");
    for (peer, number) in all.iter_mut().zip(0..) {
        let messages = peer.reap(2, 0).messages;
        for (message, number) in messages.iter().zip([number, number + 5]) {
            assert_eq!(message.bytes, format!("message {number}").as_bytes());
            assert_eq!(message.imm, Some(number));
        }
    }
}

#[test]
fn one_target_serves_many_initiators() {
    let fabric = Fabric::new();
    let mut all = ends(&fabric, 5);
    let mut receiver = all.remove(0);
    receiver.receive(40, 64);
    for (sender, index) in all.iter_mut().zip(0_u8..) {
        let to = sender.to(&receiver);
        for number in 0..10 {
            sender.send(number, &[index; 16], &to);
        }
    }
    let messages = receiver.reap(40, 0).messages;
    for index in 0_u8..4 {
        let from = messages
            .iter()
            .filter(|message| message.bytes == [index; 16]);
        let numbers: Vec<_> = from.filter_map(|message| message.imm).collect();
        assert_eq!(
            numbers,
            (0..10).collect::<Vec<_>>(),
            "in order from {index}"
        );
    }
    for sender in &mut all {
        assert!(
            sender
                .reap(0, 10)
                .done
                .iter()
                .all(|(_, result)| result.is_ok())
        );
    }
}

#[test]
fn rdma_and_atomics_of_many_packets_survive_losses() {
    let fabric = Fabric::seeded(5).loss(0.1).duplication(0.1);
    let (mut sender, mut peer) = two_ends(&fabric);
    let bytes: Vec<u8> = (0..100_000_u32)
        .flat_map(u32::to_le_bytes)
        .take(100_001)
        .collect();
    let ((ah, to), token) = (sender.to(&peer), peer.memory.token());
    peer.receive(1, 1);
    let work = sender.work(1, &bytes, &ah);
    sender.post([Request::write_imm(work, token, to, 77)]);
    let message = peer.reap(1, 0).messages.remove(0);
    assert_eq!((message.imm, message.len), (Some(77), bytes.len()));
    let mut found = vec![0; bytes.len()];
    peer.memory.read(0, &mut found);
    assert!(found == bytes, "the number comes after all of the bytes");
    let number = |done: &end::Done| u64::from_ne_bytes(done.1.clone().unwrap().try_into().unwrap());
    let eight = [0; 8];
    let work = sender.work(2, &vec![0; bytes.len()], &ah);
    sender.post([Request::read(work, token, to)]);
    let done = sender.reap(0, 2).done;
    assert!(done[1].1.as_ref().unwrap() == &bytes);
    let requests = [
        Request::write(sender.work(3, &5_u64.to_ne_bytes(), &ah), token, to),
        Request::fetch_add(sender.work(4, &eight, &ah), token, to, 10),
        Request::compare_swap(sender.work(5, &eight, &ah), token, to, [15, 40]),
        Request::compare_swap(sender.work(6, &eight, &ah), token, to, [15, 50]),
    ];
    sender.post(requests);
    let done = sender.reap(0, 4).done;
    assert_eq!([1, 2, 3].map(|at| number(&done[at])), [5, 15, 40]);
}

#[test]
fn messages_arrive_once_and_in_order_on_a_bad_network() {
    let fabric = Fabric::seeded(11).loss(0.1).duplication(0.1);
    let mut all = ends(&fabric, 4);
    let mut sender = all.remove(0);
    let targets: Vec<_> = all.iter().map(|peer| sender.to(peer)).collect();
    for peer in &mut all {
        peer.receive(20, 64);
    }
    for number in 0..60 {
        sender.send(number, &number.to_le_bytes(), &targets[number as usize % 3]);
    }
    let done = sender.reap(0, 60).done;
    assert!(done.iter().all(|(_, result)| result.is_ok()), "{done:?}");
    for (peer, index) in all.iter_mut().zip(0..) {
        let messages = peer.reap(20, 0).messages;
        let numbers = messages.iter().filter_map(|message| message.imm);
        assert!(numbers.eq((0..20).map(|round| round * 3 + index)));
    }
}

#[test]
fn messages_of_all_lengths_around_a_packet_arrive() {
    for mtu in [Mtu::B256, Mtu::B4096] {
        let fabric = Fabric::new();
        let [mut sender, mut peer] = [1, 2].map(|host| End::of(&fabric, host, (mtu, ALL), 7));
        let size = mtu.bytes().unwrap() as usize;
        let lengths = [1, size - 1, size, size + 1, 3 * size];
        peer.receive(lengths.len(), 3 * size);
        let to = sender.to(&peer);
        for (len, number) in lengths.into_iter().zip(0..) {
            sender.send(number, &vec![7; len], &to);
        }
        let messages = peer.reap(lengths.len(), 0).messages;
        let found: Vec<_> = messages.iter().map(|message| message.bytes.len()).collect();
        assert_eq!(found, lengths);
        sender.reap(0, lengths.len());
    }
}

#[test]
fn unsignaled_requests_complete_with_a_later_one() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    peer.receive(3, 64);
    let (ah, to) = sender.to(&peer);
    let work = [0, 1, 2].map(|number| sender.work(number, b"quiet", &ah));
    let [first, second, third] = work.map(|work| Request::send(work, to));
    sender.post([first.unsignaled(), second.unsignaled(), third]);
    let done = sender.reap(0, 1).done;
    assert_eq!((done.len(), done[0].0), (1, 2));
    assert_eq!(sender.dci.send_queue().in_flight(), 0);
    peer.reap(3, 0);
}

#[test]
fn target_has_its_number_once_it_is_up() {
    let fabric = Fabric::new();
    let end = End::new(&fabric, 1);
    let builder = || end.pd.qp_builder(&end.cq, &end.cq).srq(&end.srq);
    let [first, second] = [0, 1].map(|_| mlx5::create_target(builder(), KEY).unwrap());
    assert_eq!(first.qp_num(), QpNum::from_low_bits(0));
    let gid = end.ctx.query_gid(1, 0).unwrap().unwrap();
    let vector = verbs::ah::AddressVector::global(1, 0, gid);
    let [first, second] =
        [first, second].map(|dct| mlx5::bring_up_target(dct, &vector, Mtu::B1024, ALL).unwrap());
    let numbers = [first.qp_num(), second.qp_num(), end.dct.qp_num()];
    assert!(numbers.iter().all(|number| number.get() > 1), "{numbers:?}");
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2]);
}

#[test]
fn objects_are_destroyed_in_any_order() {
    let fabric = Fabric::new();
    let (mut sender, mut peer) = two_ends(&fabric);
    peer.receive(2, 64);
    let to = sender.to(&peer);
    sender.send(1, b"hello", &to);
    peer.reap(1, 0);
    sender.reap(0, 1);
    let End {
        dci, dct, srq, cq, ..
    } = peer;
    drop(cq);
    drop(srq);
    assert!(dct.destroy().is_ok());
    assert!(dci.destroy().is_ok());
}

#[test]
fn device_of_another_maker_has_no_dynamic_connections() {
    let fabric = Fabric::new().card(Card::E810);
    let host = fabric.host([10, 0, 0, 1].into());
    let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
    assert!(!mlx5::is_supported(&ctx));
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let refused = pd.qp_builder::<mlx5::Dci>(&cq, &cq).create().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert!(
        refused
            .to_string()
            .starts_with("`mlx5dv_create_qp` failed (Dci, ")
    );
}

#[test]
fn card_grants_both_ends() {
    let fabric = Fabric::new().card(Card::ConnectX5);
    let host = fabric.host([10, 0, 0, 1].into());
    let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
    assert!(mlx5::is_supported(&ctx));
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(256).unwrap());
    let srq = pd.create_srq::<verbs::Buf>(4, 1).unwrap();
    let dct = mlx5::create_target(pd.qp_builder(&cq, &cq).srq(&srq), KEY);
    assert!(dct.is_ok());
    let dci = initiator(&pd, &cq);
    assert!(dci.send_queue().capacity() >= 64);
}

#[test]
fn requests_without_their_operation_are_refused() {
    let fabric = Fabric::new();
    let end = End::new(&fabric, 1);
    let (ah, to) = end.to(&end);
    let builder = end.pd.qp_builder::<mlx5::Dci>(&end.cq, &end.cq);
    let dci = builder.send_ops(SendOps::SEND).create_for::<_, ()>();
    let mut dci = mlx5::bring_up_initiator(dci.unwrap(), 1, Mtu::B1024, &end::timers(7)).unwrap();
    let mut batch = dci.extended_batch().unwrap();
    let write = Request::write(end.work(1, b"bytes", &ah), end.memory.token(), to);
    let refused = batch.push_vendor(write).unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::Unsupported);
}

#[test]
fn atomics_on_other_than_one_number_are_refused() {
    let fabric = Fabric::new();
    let mut end = End::new(&fabric, 1);
    let (ah, to) = end.to(&end);
    let token = end.memory.token();
    let requests = [
        Request::fetch_add(end.work(1, b"7 bytes", &ah), token, to, 1),
        Request::compare_swap(end.work(1, b"two numbers here", &ah), token, to, [0, 1]),
    ];
    let mut batch = end.dci.extended_batch().unwrap();
    for request in requests {
        let refused = batch.push_vendor(request).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    }
}
