//! Raw packets.

use std::io::{ErrorKind, IoSlice};

use ibverbs_sys as ffi;
use softnic::Call;
use verbs::{
    Buf, Init, QueuePair, Reset, Rtr, Rts, WcStatus,
    cq::WcOpcode,
    flow::{FlowRule, FlowTarget},
    op::{self, SendOps},
    qp::{Attributes, QpState, RawPacket},
};

use crate::{
    fixture::{Fixture, error_text},
    unmapped::refusal,
};

const FRAME: &[u8; 18] = b"\x33\x33\0\0\0\x01\x02\0\0\0\0\x01\x88\xb5data";

fn bring_up(qp: QueuePair<RawPacket, Reset>) -> QueuePair<RawPacket, Rts> {
    let qp = qp.to_init(&Attributes::<RawPacket, Init>::new(1)).unwrap();
    let qp = qp.to_rtr(&Attributes::<RawPacket, Rtr>::new()).unwrap();
    qp.to_rts(&Attributes::<RawPacket, Rts>::new().rate_limit(9))
        .unwrap()
}

#[test]
fn create_raw_qp_with_attr() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    let builder = fixture
        .pd
        .qp_builder(&cq, &cq)
        .max_send_wr(2)
        .max_inline_data(64);
    let mut qp = bring_up(builder.create().unwrap());
    // Everything of the first port comes here.
    let _flow = qp.create_flow(&FlowRule::new(1)).unwrap();
    qp.post_recv(fixture.pd.alloc_buf(64).unwrap()).unwrap();
    fixture.fake.complete_receive(qp.qp_num(), FRAME);

    let frame = fixture.pd.register_buf(*FRAME).unwrap();
    qp.post(op::SendFrame::new(frame).ip_checksum()).unwrap();
    let posted = &fixture.fake.sends(qp.qp_num())[0];
    assert_eq!(posted.bytes(), FRAME);
    assert_ne!(posted.flags & ffi::ibv_send_flags::IBV_SEND_IP_CSUM.0, 0);
    fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    let mut work = Vec::new();
    for wc in cq.poll().unwrap() {
        match qp.complete(wc).unwrap() {
            verbs::Completed::Send(done) => work.push(done.work().unwrap().to_vec()),
            verbs::Completed::Receive(done) => work.push(done.received().unwrap().to_vec()),
        }
    }
    assert_eq!(work, [FRAME, FRAME]);

    let buf = fixture.pd.alloc_buf(1).unwrap();
    qp.post(op::SendFrame::new(buf).inline(&FRAME[..])).unwrap();
    assert_eq!(fixture.fake.sends(qp.qp_num())[0].bytes(), FRAME);
}

/// Libraries look at Ethernet's header.
#[test]
fn frame_with_split_header_is_refused() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let builder = fixture.pd.qp_builder(&cq, &cq).max_inline_data(64);
    let mut qp = bring_up(builder.max_send_sge(2).create().unwrap());
    let buf = |len| fixture.pd.alloc_buf(len).unwrap();
    let mut refused = vec![refusal(qp.post(op::SendFrame::new(buf(13))))];
    let mut empty = buf(14);
    empty.set_len(0);
    refused.push(refusal(qp.post(op::SendFrame::new(empty))));
    refused.push(refusal(
        qp.post(op::SendFrame::new(buf(14)).inline(&FRAME[..13])),
    ));
    let pieces = [IoSlice::new(&FRAME[..6]), IoSlice::new(&FRAME[6..])];
    refused.push(refusal(
        qp.post(op::SendFrame::new(buf(14)).inline_list(&pieces)),
    ));
    for refused in refused {
        assert!(refused.contains("must have 14 bytes"), "{refused}");
    }
    qp.post(op::SendFrame::new(buf(14))).unwrap();
}

#[test]
fn query_raw_qp() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let qp = bring_up(fixture.pd.qp_builder(&cq, &cq).create().unwrap());
    let attr = qp.query().unwrap();
    assert_eq!((attr.state, attr.port_num), (QpState::RTS, 1));
    assert_eq!(attr.cap.max_send_wr, 1);
}

#[test]
fn create_raw_qp_with_illegal_caps() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    let builder = || fixture.pd.qp_builder::<RawPacket>(&cq, &cq);
    for builder in [
        builder().max_send_wr(u32::MAX),
        builder().max_recv_wr(u32::MAX),
        builder().max_send_sge(u32::MAX),
        builder().max_recv_sge(u32::MAX),
    ] {
        let shown = format!("{builder:?}");
        assert!(builder.create().is_err(), "{shown}");
    }
}

/// A queue pair for segmentation of frames behind headers of up to 54 bytes.
fn cutting(
    fixture: &Fixture,
    cq: &verbs::cq::CqHandle,
) -> verbs::Result<QueuePair<RawPacket, Reset>> {
    let builder = fixture.pd.qp_builder(cq, cq).max_send_wr(4);
    let ops = SendOps::SEND | SendOps::TSO;
    builder.send_ops(ops).max_tso_header(54).create()
}

/// A device may segment for other queue pairs, but not for frames.
fn check_tso_of_other_queue_pairs(fixture: &Fixture, cq: &verbs::cq::CqHandle) {
    fixture.fake.describe(|device| {
        device.attr.tso_caps.max_tso = 100;
        device.attr.tso_caps.supported_qpts = 1 << ffi::ibv_qp_type::IBV_QPT_UD.0;
    });
    let err = cutting(fixture, cq).map(drop).unwrap_err();
    assert_eq!(
        err.to_string(),
        "`ibv_create_qp_ex` failed: the device does not cut the packets of RawPacket"
    );
    assert_eq!(err.kind(), ErrorKind::Unsupported);
    assert_eq!(cq.available(), cq.capacity());
}

#[test]
fn tso_frames_beyond_the_device_limits_are_refused() {
    let fixture = Fixture::new();
    let mut cq = fixture.cq(8);
    check_tso_of_other_queue_pairs(&fixture, &cq);
    fixture.fake.describe(|device| {
        device.attr.tso_caps.supported_qpts |= 1 << ffi::ibv_qp_type::IBV_QPT_RAW_PACKET.0;
    });
    let mut qp = bring_up(cutting(&fixture, &cq).unwrap());
    let stretch = |len: u8| {
        let bytes: Vec<u8> = (0..len).collect();
        fixture.pd.register_buf(bytes).unwrap()
    };
    let header = [1; 55];
    for (header_len, len, mss) in [(55, 100, 9), (54, 101, 9), (54, 100, 0)] {
        let tso = || op::SendFrameTso::new(stretch(len), &header[..header_len], mss);
        let refused = qp.post(tso()).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
        assert_eq!(refused.value.unwrap().into_work().len(), usize::from(len));
        let mut batch = qp.extended_batch().unwrap();
        let refused = batch.push(tso()).unwrap_err();
        assert_eq!(refused.error.kind(), ErrorKind::InvalidInput);
    }
    assert!(fixture.fake.sends(qp.qp_num()).is_empty());
    // Both ways of posting give the device the same request.
    let tso = || op::SendFrameTso::new(stretch(100), &header[..54], 9).ip_checksum();
    qp.post(tso()).unwrap();
    let mut batch = qp.batch();
    batch.push(tso()).unwrap();
    batch.post().unwrap();
    let mut batch = qp.extended_batch().unwrap();
    batch.push(tso().unsignaled()).unwrap();
    batch
        .push(op::SendFrame::new(stretch(14)).ip_checksum())
        .unwrap();
    batch.post().unwrap();
    let sends = fixture.fake.sends(qp.qp_num());
    assert_eq!(sends.len(), 4);
    for (i, send) in sends[..3].iter().enumerate() {
        assert_eq!(send.opcode, ffi::ibv_wr_opcode::IBV_WR_TSO);
        assert_eq!(send.tso, Some((vec![1; 54], 9)));
        assert_eq!(send.bytes(), (0..100).collect::<Vec<u8>>());
        assert_ne!(send.flags & ffi::ibv_send_flags::IBV_SEND_IP_CSUM.0, 0);
        assert_eq!((send.is_signaled(), send.datagram), (i < 2, None));
    }
    assert_eq!(sends[3].opcode, ffi::ibv_wr_opcode::IBV_WR_SEND);
    assert_eq!(
        (sends[3].bytes(), &sends[3].tso),
        ((0..14).collect(), &None)
    );
    let sent = |_| fixture.fake.complete_send(qp.qp_num(), WcStatus::SUCCESS);
    (0..4).for_each(sent);
    let mut done = Vec::new();
    for wc in cq.poll().unwrap() {
        let opcode = wc.opcode();
        let each = |work: Buf| done.push((work.len(), opcode));
        let last = qp.complete_each(wc, each).unwrap();
        done.push((last.work().unwrap().len(), opcode));
    }
    let (tso, send) = (Some(WcOpcode::TSO), Some(WcOpcode::SEND));
    assert_eq!(done, [(100, tso), (100, tso), (100, send), (14, send)]);
}

#[test]
fn raw_packets_without_privilege_name_cap_net_raw() {
    let fixture = Fixture::new();
    let cq = fixture.cq(8);
    fixture.fake.fail(Call::CreateQp, libc::EPERM);
    let refused = fixture
        .pd
        .qp_builder::<RawPacket>(&cq, &cq)
        .create()
        .unwrap_err();
    let text = error_text(&refused);
    assert!(
        text.starts_with("`ibv_create_qp` failed (RawPacket, "),
        "{text}"
    );
    let text = refused.to_string();
    let hint = "; raw packets need the capability CAP_NET_RAW";
    assert!(text.ends_with(hint), "{text}");
}
