//! Extended reliable connections, from creating everything to a message.

use std::io::ErrorKind;

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Buf, Completed, Gid, Init, QueuePair, RemoteToken, Reset, Rtr, Rts, SharedReceiveQueue,
    WcStatus,
    ah::AddressVector,
    cq::CqHandle,
    op::{self, SendOps},
    qp::{Attributes, Psn, QpNum, QpState, XrcReceiver, XrcRecv, XrcSend},
    srq::SrqNum,
    xrcd::XrcDomain,
};

use crate::fixture::Fixture;

const PSN: Psn = Psn::from_low_bits(7);

fn address_vector() -> AddressVector {
    AddressVector::global(1, 1, Gid([0xfe; 16]))
}

pub(crate) fn sender(fixture: &Fixture, cq: &CqHandle, peer: QpNum) -> QueuePair<XrcSend, Rts> {
    let qp = fixture.pd.qp_builder::<XrcSend>(cq, cq);
    let qp = qp
        .max_send_wr(4)
        .max_inline_data(16)
        .send_ops(SendOps::SEND | SendOps::SEND_WITH_IMM)
        .create()
        .unwrap();
    let qp = qp.to_init(&Attributes::<XrcSend, Init>::new(1)).unwrap();
    let qp = qp
        .to_rtr(&Attributes::<XrcSend, Rtr>::new(
            &address_vector(),
            peer,
            PSN,
        ))
        .unwrap();
    qp.to_rts(&Attributes::<XrcSend, Rts>::new(PSN)).unwrap()
}

pub(crate) fn receiver(xrcd: &XrcDomain, peer: QpNum) -> XrcReceiver<Rts> {
    let qp = xrcd.create_qp().unwrap();
    let qp = qp.to_init(&Attributes::<XrcRecv, Init>::new(1)).unwrap();
    let qp = qp
        .to_rtr(&Attributes::<XrcRecv, Rtr>::new(
            &address_vector(),
            peer,
            PSN,
        ))
        .unwrap();
    qp.to_rts(&Attributes::<XrcRecv, Rts>::new(PSN)).unwrap()
}

/// As pyverbs' `xrc_traffic`: there and back, with immediate data or without.
fn xrc_traffic(imm_data: Option<u32>, extended: bool) {
    let fixture = Fixture::new();
    let (fake, pd) = (&fixture.fake, &fixture.pd);
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let (mut send_cq, mut recv_cq) = (fixture.cq(8), fixture.cq(8));
    let mut srq: SharedReceiveQueue = pd.create_xrc_srq(&xrcd, &recv_cq, 4, 1).unwrap();
    let peer = QpNum::from_low_bits(0x99);
    let receiver = receiver(&xrcd, peer);
    let mut sender = sender(&fixture, &send_cq, receiver.qp_num());

    // There.
    let remote = SrqNum::from_low_bits(0x1234);
    let request = op::Send::new(pd.register_buf(*b"there").unwrap());
    let request = match imm_data {
        Some(imm_data) => request.imm_data(imm_data),
        None => request,
    };
    let request = op::ToSrq::new(request, remote);
    if extended {
        let mut batch = sender.extended_batch().unwrap();
        batch.push(request).unwrap();
        batch.post().unwrap();
    } else {
        sender.post(request).unwrap();
    }
    let posted = &fake.sends(sender.qp_num())[0];
    assert_eq!(
        (posted.remote_srqn, posted.imm_data),
        (Some(0x1234), imm_data)
    );
    assert_eq!(posted.bytes(), b"there");
    fake.complete_send(sender.qp_num(), WcStatus::SUCCESS);
    let wc = send_cq.poll().unwrap().next().unwrap();
    let done = sender.complete(wc).unwrap();
    assert!(matches!(done, Completed::Send(done) if **done.work().unwrap() == *b"there"));

    // And back.
    srq.post(pd.alloc_buf(16).unwrap()).unwrap();
    fake.complete_xrc(receiver.qp_num(), srq.as_raw(), b"back", imm_data);
    let wc = recv_cq.poll().unwrap().next().unwrap();
    assert_eq!((wc.qp_num(), wc.imm_data()), (receiver.qp_num(), imm_data));
    assert_eq!(srq.complete(wc).unwrap().received().unwrap(), b"back");
}

#[test]
fn xrc_message_round_trip() {
    xrc_traffic(None, false);
    xrc_traffic(Some(7), false);
}

#[test]
fn qp_ex_xrc_send() {
    xrc_traffic(None, true);
}

#[test]
fn qp_ex_xrc_send_imm() {
    xrc_traffic(Some(0xabcd), true);
}

#[test]
fn xrc_atomic_fetch_and_add() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp = sender(&fixture, &cq, QpNum::from_low_bits(1));
    let remote = RemoteToken {
        addr: 0x1000,
        len: 8,
        rkey: 5,
    };
    let work = || fixture.pd.alloc_buf(8).unwrap();
    let srq = SrqNum::from_low_bits(3);
    qp.post(op::ToSrq::new(op::FetchAdd::new(work(), remote, 9), srq))
        .unwrap();
    qp.post(op::ToSrq::new(
        op::CompareSwap::new(work(), remote, 1, 2),
        srq,
    ))
    .unwrap();
    let posted = fixture.fake.sends(qp.qp_num());
    assert_eq!(
        (posted[0].compare_add, posted[0].remote_srqn),
        (Some(9), Some(3))
    );
    assert_eq!((posted[1].compare_add, posted[1].swap), (Some(1), Some(2)));
    assert_eq!(posted[1].remote, Some((0x1000, 5)));
}

#[test]
fn xrc_inline_send_reaches_the_shared_queue() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let mut qp = sender(&fixture, &cq, QpNum::from_low_bits(1));
    let buf = || fixture.pd.alloc_buf(1).unwrap();
    let number = SrqNum::from_low_bits(5);
    qp.post(op::ToSrq::new(
        op::Send::new(buf()).unsignaled().inline(b"short"),
        number,
    ))
    .unwrap();
    let posted = &fixture.fake.sends(qp.qp_num())[0];
    assert_eq!(
        (posted.bytes(), posted.remote_srqn),
        (b"short".to_vec(), Some(5))
    );
    let refused = qp
        .post(op::ToSrq::new(
            op::Send::new(buf()).inline(&[0; 17]),
            number,
        ))
        .unwrap_err();
    assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    assert_eq!(
        refused
            .value
            .unwrap()
            .into_request()
            .into_request()
            .into_work()
            .len(),
        1
    );
}

#[test]
fn receiver_is_opened_by_its_number() {
    let fixture = Fixture::new();
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let created = receiver(&xrcd, QpNum::from_low_bits(1));
    let opened = xrcd.open_qp::<Rts>(created.qp_num()).unwrap();
    assert_eq!(opened.qp_num(), created.qp_num());
    let wrong = xrcd.open_qp::<Reset>(created.qp_num()).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::InvalidInput);
    assert!(
        wrong
            .to_string()
            .contains("the queue pair is in RTS, and not in Reset"),
        "{wrong}"
    );
    // The queue pair exists until the drop of its last owner.
    drop(created);
    assert_eq!(opened.query().unwrap().state, QpState::RTS);
    opened.destroy().unwrap();
    let refused = xrcd
        .open_qp::<Rts>(QpNum::from_low_bits(0x777))
        .unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    assert!(refused.to_string().contains("0x000777"), "{refused}");
}

#[test]
fn failed_xrc_receiver_destroy_returns_the_receiver() {
    let fixture = Fixture::new();
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let qp = xrcd.create_qp().unwrap();
    let mut attr = ffi::ibv_qp_attr::zeroed();
    attr.port_num = 1;
    let only_port = ffi::ibv_qp_attr_mask::IBV_QP_STATE | ffi::ibv_qp_attr_mask::IBV_QP_PORT;
    let refused = qp
        .to_init(&Attributes::from_raw(attr, only_port.0))
        .unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("XrcRecv Reset to Init, missing: PKEY_INDEX, ACCESS_FLAGS"),
        "{refused}"
    );
    fixture.fake.fail(Call::DestroyQp, libc::EBUSY);
    let refused = refused.value.destroy().unwrap_err();
    assert_eq!(refused.error.raw_os_error(), Some(libc::EBUSY));
    refused
        .value
        .to_init(&Attributes::<XrcRecv, Init>::new(1))
        .unwrap();
}

#[test]
fn xrc_queue_serves_only_xrc() {
    let fixture = Fixture::new();
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let cq = fixture.cq(8);
    let xrc: SharedReceiveQueue = fixture.pd.create_xrc_srq(&xrcd, &cq, 2, 1).unwrap();
    let basic: SharedReceiveQueue = fixture.pd.create_srq(2, 1).unwrap();
    assert!(xrc.srq_num().is_ok());
    assert_eq!(
        basic.srq_num().unwrap_err().raw_os_error(),
        Some(libc::EOPNOTSUPP)
    );
    let err = fixture
        .pd
        .qp_builder::<verbs::Rc>(&cq, &cq)
        .srq(&xrc)
        .create()
        .unwrap_err();
    assert!(
        err.to_string()
            .contains("Rc does not receive by this shared queue"),
        "{err}"
    );
    let err = fixture
        .pd
        .qp_builder::<XrcSend>(&cq, &cq)
        .srq(&basic)
        .create()
        .unwrap_err();
    assert!(
        err.to_string()
            .contains("XrcSend does not receive by this shared queue"),
        "{err}"
    );
}

#[test]
fn xrc_queue_reserves_its_own_cq_entries() {
    let fixture = Fixture::new();
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let cq = fixture.cq(8);
    let create = |receives| fixture.pd.create_xrc_srq::<Buf>(&xrcd, &cq, receives, 1);
    let capacity = cq.available();
    let mut srq = create(3).unwrap();
    assert_eq!(cq.available(), capacity - 3);
    assert!(
        create(capacity)
            .unwrap_err()
            .to_string()
            .contains("entries left")
    );
    srq.post(fixture.pd.alloc_buf(8).unwrap()).unwrap();
    // The queue keeps its domain: `ibv_destroy_srq` precedes `ibv_close_xrcd` in either order of drops.
    drop(xrcd);
    drop(srq);
    assert!(
        fixture
            .fake
            .live()
            .iter()
            .all(|kind| *kind != "ibv_srq" && *kind != "ibv_xrcd")
    );
}

#[test]
fn xrc_without_device_support_is_an_error() {
    let fixture = Fixture::new();
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let cq = fixture.cq(8);
    fixture.fake.fail(Call::CreateQpEx, libc::EOPNOTSUPP);
    let err = xrcd.create_qp().unwrap_err();
    assert!(
        err.to_string()
            .contains("`ibv_create_qp_ex` failed (XrcRecv)"),
        "{err}"
    );
    fixture.fake.fail(Call::CreateSrqEx, libc::EOPNOTSUPP);
    let err = fixture
        .pd
        .create_xrc_srq::<Buf>(&xrcd, &cq, 2, 1)
        .unwrap_err();
    assert_eq!(err.raw_os_error(), Some(libc::EOPNOTSUPP));
    assert_eq!(cq.available(), cq.capacity());
}

/// The role of `xsrq_pingpong`'s server for two clients on one host: it answers each through the
/// connections of both in turn, with the client's queue number, and requests a completion of the
/// last answer.
#[test]
fn xrc_server_reaches_each_queue_through_each_connection() {
    const TESTS: usize = 2;
    let fixture = Fixture::new();
    let (fake, pd) = (&fixture.fake, &fixture.pd);
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let (mut send_cq, mut recv_cq) = (fixture.cq(8), fixture.cq(8));
    let mut srq: SharedReceiveQueue = pd.create_xrc_srq(&xrcd, &recv_cq, 2, 1).unwrap();
    let peers = [0x98, 0x99].map(QpNum::from_low_bits);
    let queues = [0x51, 0x52].map(SrqNum::from_low_bits);
    let receivers = peers.map(|peer| receiver(&xrcd, peer));
    let mut senders = peers.map(|peer| sender(&fixture, &send_cq, peer));
    for _ in peers {
        srq.post(pd.alloc_buf(8).unwrap()).unwrap();
    }
    let mut sent = [0; 2];
    let mut send = |client: usize| {
        let through = (client + sent[client]) % peers.len();
        sent[client] += 1;
        let message = op::Send::new(pd.alloc_buf(8).unwrap());
        let message = match sent[client] == TESTS {
            true => message,
            false => message.unsignaled(),
        };
        senders[through]
            .post(op::ToSrq::new(message, queues[client]))
            .unwrap();
    };
    send(0);
    send(1);
    // Each client answers every message.
    for round in 0..TESTS {
        for (client, receiver) in receivers.iter().enumerate() {
            fake.complete_xrc(receiver.qp_num(), srq.as_raw(), b"answer", None);
            let wc = recv_cq.poll().unwrap().next().unwrap();
            assert_eq!(wc.qp_num(), receivers[client].qp_num());
            let done = srq.complete(wc).unwrap();
            assert_eq!(done.received().unwrap(), b"answer");
            let buf = done.into_work().unwrap();
            srq.post(buf).unwrap();
            if round + 1 < TESTS {
                send(client);
            }
        }
    }
    for (connection, sender) in senders.iter_mut().enumerate() {
        let posted = fake.sends(sender.qp_num());
        let named: Vec<_> = posted
            .iter()
            .map(|send| (send.remote_srqn, send.is_signaled()))
            .collect();
        let [named_srq, other] =
            [queues[connection], queues[1 - connection]].map(|srq| Some(srq.get()));
        assert_eq!(named, [(named_srq, false), (other, true)]);
        for _ in posted {
            fake.complete_send(sender.qp_num(), WcStatus::SUCCESS);
        }
        let wc = send_cq.poll().unwrap().next().unwrap();
        assert!(sender.complete(wc).is_ok());
        assert_eq!(sender.send_queue().in_flight(), 0);
    }
}

/// The role of `rdma_xclient`: it sends to the queue with the number received from `rdma_xserver`.
#[test]
fn xrc_client_sends_to_the_servers_queue_number() {
    let fixture = Fixture::new();
    let (fake, pd) = (&fixture.fake, &fixture.pd);
    let xrcd = fixture.ctx.open_xrcd().unwrap();
    let (mut send_cq, mut recv_cq) = (fixture.cq(1), fixture.cq(1));
    let mut srq: SharedReceiveQueue = pd.create_xrc_srq(&xrcd, &recv_cq, 1, 1).unwrap();
    srq.post(pd.alloc_buf(16).unwrap()).unwrap();
    let peer = QpNum::from_low_bits(0x99);
    let receiver = receiver(&xrcd, peer);
    let srq_num = srq.srq_num().unwrap().get().to_be_bytes();
    let queue = SrqNum::new(u32::from_be_bytes(srq_num)).unwrap();
    let qp = pd.qp_builder::<XrcSend>(&send_cq, &send_cq).max_send_wr(1);
    let qp = qp.max_inline_data(16).create_for::<Option<Buf>, Buf>();
    let qp = qp.unwrap().to_init(&Attributes::<XrcSend, Init>::new(1));
    let to_rtr = Attributes::<XrcSend, Rtr>::new(&address_vector(), receiver.qp_num(), PSN);
    let qp = qp.unwrap().to_rtr(&to_rtr).unwrap();
    let mut qp = qp.to_rts(&Attributes::<XrcSend, Rts>::new(PSN)).unwrap();
    qp.post(op::ToSrq::new(op::Send::new(None).inline(&[0; 16]), queue))
        .unwrap();
    let posted = &fake.sends(qp.qp_num())[0];
    assert_eq!(posted.remote_srqn, Some(queue.get()));
    assert_eq!(posted.bytes(), [0; 16]);
    fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let wc = send_cq.poll().unwrap().next().unwrap();
    assert!(matches!(qp.complete(wc), Ok(Completed::Send(done)) if done.ok().is_ok()));
    fake.complete_xrc(receiver.qp_num(), srq.as_raw(), &[0; 16], None);
    let wc = recv_cq.poll().unwrap().next().unwrap();
    assert_eq!(srq.complete(wc).unwrap().byte_len(), 16);
}
