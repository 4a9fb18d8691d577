//! Reliable datagrams on softnic.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod end;
mod failures;

use softnic::{Card, Fabric, Rule};
use verbs::{
    ah::Addressed,
    op::{self, SendOps},
};

use efa::{DeviceCaps, Srd};
use end::{End, QKEY};

/// A fabric with hosts 1 to `count`, an end on each.
fn ends(fabric: &Fabric, count: u8) -> Vec<End> {
    (1..=count).map(|number| End::new(fabric, number)).collect()
}

#[test]
fn one_queue_pair_sends_to_many_peers() {
    let fabric = Fabric::new();
    let mut all = ends(&fabric, 6);
    let mut sender = all.remove(0);
    for (peer, number) in all.iter_mut().zip(0..) {
        peer.receive(1, 64);
        let ah = sender.to(peer);
        let text = format!("for peer {number}");
        sender.send(number, text.as_bytes(), (&ah, peer.qp.qp_num()));
    }
    let mut done = sender.reap(0, all.len()).done;
    done.sort_by_key(|(number, _)| *number);
    let numbers: Vec<_> = done.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 4]);
    for (peer, number) in all.iter_mut().zip(0..) {
        let message = peer.reap(1, 0).messages.remove(0);
        assert_eq!(message.bytes, format!("for peer {number}").as_bytes());
        assert_eq!(message.imm, Some(number));
        assert_eq!(message.from, Some(sender.qp.qp_num()));
    }
}

#[test]
fn peer_without_a_receive_delays_no_other_peer() {
    let fabric = Fabric::new();
    let mut all = ends(&fabric, 3);
    let (mut ready, mut late) = (all.remove(2), all.remove(1));
    let mut sender = all.remove(0);
    ready.receive(1, 64);
    let (first, second) = (sender.to(&late), sender.to(&ready));
    sender.send(1, b"waits", (&first, late.qp.qp_num()));
    sender.send(2, b"overtakes", (&second, ready.qp.qp_num()));
    let done = sender.reap(0, 1).done;
    assert_eq!(done[0].0, 2, "the later request completes first");
    assert_eq!(sender.qp.send_queue().in_flight(), 1);
    assert_eq!(ready.reap(1, 0).messages[0].bytes, b"overtakes");
    late.receive(1, 64);
    assert_eq!(sender.reap(0, 1).done[0].0, 1);
    assert_eq!(late.reap(1, 0).messages[0].bytes, b"waits");
}

#[test]
fn requests_complete_out_of_order_by_a_rule() {
    let mut overtaken = false;
    for seed in 0..8 {
        let fabric = Fabric::seeded(seed).rule(Rule::Unfenced);
        let mut all = ends(&fabric, 2);
        let mut peer = all.remove(1);
        let mut sender = all.remove(0);
        peer.receive(16, 64);
        let ah = sender.to(&peer);
        sender.send_all(16, &[7; 64], (&ah, peer.qp.qp_num()));
        let done = sender.reap(0, 16).done;
        let numbers: Vec<_> = done.iter().map(|(number, _)| *number).collect();
        overtaken |= !numbers.is_sorted();
        let mut sorted = numbers;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..16));
        assert_eq!(peer.reap(16, 0).messages.len(), 16);
    }
    assert!(overtaken);
}

#[test]
fn messages_arrive_once_on_a_network_that_loses_and_repeats() {
    let fabric = Fabric::seeded(11).loss(0.2).duplication(0.2);
    let mut all = ends(&fabric, 4);
    let mut sender = all.remove(0);
    let handles: Vec<_> = all.iter().map(|peer| sender.to(peer)).collect();
    for peer in &mut all {
        peer.receive(60, 64);
    }
    for round in 0..20 {
        for ((peer, ah), index) in all.iter().zip(&handles).zip(0..) {
            let number = round * 3 + index;
            sender.send(number, &number.to_le_bytes(), (ah, peer.qp.qp_num()));
        }
    }
    let done = sender.reap(0, 60).done;
    assert!(done.iter().all(|(_, result)| result.is_ok()), "{done:?}");
    for (peer, index) in all.iter_mut().zip(0..) {
        let mut messages = peer.reap(20, 0).messages;
        messages.sort();
        assert_eq!(messages.len(), 20);
        let mut numbers: Vec<_> = messages.iter().filter_map(|message| message.imm).collect();
        numbers.sort_unstable();
        assert!(
            numbers
                .into_iter()
                .eq((0..20).map(|round| round * 3 + index))
        );
        assert_eq!(peer.qp.receive_queue().in_flight(), 40);
    }
}

#[test]
fn writes_and_reads_of_many_packets_survive_losses() {
    let fabric = Fabric::seeded(5).loss(0.1).duplication(0.1);
    let mut all = ends(&fabric, 2);
    let mut peer = all.remove(1);
    let mut sender = all.remove(0);
    let bytes: Vec<u8> = (0..100_000_u32)
        .flat_map(|n| n.to_le_bytes())
        .take(100_001)
        .collect();
    let (ah, number, token) = (sender.to(&peer), peer.qp.qp_num(), peer.memory.token());
    peer.receive(1, 1);
    sender.write((1, Some(77)), &bytes, token, (&ah, number));
    let message = peer.reap(1, 0).messages.remove(0);
    assert_eq!((message.imm, message.len), (Some(77), bytes.len()));
    let mut found = vec![0; bytes.len()];
    peer.memory.read(0, &mut found);
    assert!(found == bytes, "the number comes after all of the bytes");
    sender.read(2, bytes.len(), token, (&ah, number));
    let mut done = sender.reap(0, 2).done;
    done.sort_by_key(|(number, _)| *number);
    assert_eq!(done[1].0, 2);
    assert!(done[1].1.as_ref().unwrap() == &bytes);
}

#[test]
fn inline_sends_need_no_memory() {
    let fabric = Fabric::new();
    let mut all = ends(&fabric, 2);
    let mut peer = all.remove(1);
    let mut sender = all.remove(0);
    peer.receive(1, 64);
    let ah = sender.to(&peer);
    let work = verbs::work::With::new(Addressed::new(sender.pd.alloc_buf(1).unwrap(), &ah), 3);
    let send = op::SendTo::new(work, peer.qp.qp_num(), QKEY);
    let mut batch = sender.qp.extended_batch().unwrap();
    batch.push(send.inline(b"short")).unwrap();
    batch.post().unwrap();
    assert_eq!(peer.reap(1, 0).messages[0].bytes, b"short");
    assert_eq!(sender.reap(0, 1).done[0].0, 3);
}

#[test]
fn completion_has_the_address_of_the_sender() {
    let fabric = Fabric::new();
    let mut all = ends(&fabric, 2);
    let receiver = all.remove(1);
    let mut sender = all.remove(0);
    let mut cq = efa::create_cq(receiver.ctx.cq_ex_builder(8).waitable()).unwrap();
    let builder = receiver.pd.qp_builder::<Srd>(&cq, &cq);
    let mut qp = efa::bring_up(builder.create().unwrap(), 1, QKEY).unwrap();
    qp.post_recv(receiver.pd.alloc_buf(64).unwrap()).unwrap();
    let ah = sender.to(&receiver);
    sender.send(1, b"who?", (&ah, qp.qp_num()));
    let timeout = std::time::Duration::from_secs(60);
    let mut polled = cq.wait(Some(timeout)).unwrap().unwrap();
    let wc = polled.next().unwrap().unwrap();
    assert_eq!(wc.source(), Some(sender.gid()));
    assert_eq!(wc.src_qp().unwrap(), sender.qp.qp_num());
    assert!(qp.complete(wc.into_work_completion()).is_ok());
}

#[test]
fn device_has_limits_and_capabilities() {
    let fabric = Fabric::new();
    let end = End::new(&fabric, 1);
    let attr = efa::query_device(&end.ctx).unwrap();
    let caps = DeviceCaps::RDMA_READ | DeviceCaps::RDMA_WRITE | DeviceCaps::CQ_WITH_SGID;
    assert!(attr.device_caps.contains(caps));
    assert_eq!(attr.max_rdma_size, 1 << 20);
}

#[test]
fn device_of_another_maker_has_no_reliable_datagrams() {
    let fabric = Fabric::new().card(Card::ConnectX5);
    let host = fabric.host([10, 0, 0, 1].into());
    let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(8).unwrap());
    let refused = pd.qp_builder::<Srd>(&cq, &cq).create().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert!(
        refused
            .to_string()
            .starts_with("`efadv_create_qp_ex` failed (Srd, ")
    );
    let refused = efa::query_device(&ctx).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EOPNOTSUPP));
    let refused = efa::create_cq(ctx.cq_ex_builder(8)).unwrap_err();
    assert_eq!(refused.call(), "efadv_create_cq");
}

#[test]
fn card_grants_queue_pairs_of_reliable_datagrams() {
    let fabric = Fabric::new().card(Card::Efa);
    let host = fabric.host([10, 0, 0, 1].into());
    let ctx = host.run(|| verbs::devices().unwrap().first().unwrap().open().unwrap());
    let (pd, cq) = (ctx.alloc_pd().unwrap(), ctx.create_cq(64).unwrap());
    let builder = pd.qp_builder::<Srd>(&cq, &cq).send_ops(SendOps::SEND);
    let qp = efa::bring_up(builder.max_send_wr(4).create().unwrap(), 1, QKEY);
    assert!(qp.is_ok());
}
