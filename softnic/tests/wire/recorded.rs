//! Frames recorded from Linux's rxe decode, and encode to the same bytes, ICRC included.
//!
//! The recording is `examples/tests/two_hosts/frames`, with its messages and fields.

use std::net::IpAddr;

use softnic::{
    cm::Message,
    wire::{
        Aeth, AtomicEth, Deth, Frame, Immediate, Nak, Opcode, Operation, Position, Syndrome,
        Transport,
    },
};

use crate::{kind::kind, vectors::recorded};

/// Immediate data of the recording.
const IMM: u32 = 0x0102_0304;

#[test]
fn recorded_frames_encode_to_the_same_bytes() {
    for (name, bytes) in recorded() {
        let frame = Frame::decode(&bytes).unwrap();
        assert_eq!(kind(&frame), name);
        let mut again = Vec::new();
        frame.encode(&mut again).unwrap();
        assert_eq!(again, bytes, "{frame:?}");
    }
}

#[test]
fn recorded_frames_have_all_opcodes_of_soft_roce() {
    let recorded = recorded();
    for opcode in (0..=u8::MAX).map(Opcode) {
        let Some((transport, operation)) = opcode.parse() else {
            continue;
        };
        // Soft-RoCE has no XRC and no transports of softnic's own, and its provider of rdma-core flushes since version 45.
        let is_recorded = !matches!(transport, Transport::Xrc | Transport::Srd | Transport::Dc);
        if is_recorded && operation != Operation::Flush {
            let name = format!("IPv4, {opcode}");
            assert!(recorded.contains_key(&*name), "{name}");
        }
    }
    let naks = ["SequenceError", "InvalidRequest", "RemoteAccess"];
    let naks = naks.map(|nak| format!("RC Acknowledge, NAK {nak}"));
    let messages = [
        "REQ", "REP", "RTU", "REJ", "DREQ", "DREP", "SIDR REQ", "SIDR REP",
    ];
    let messages = messages.map(|message| format!("UD SEND Only, {message}"));
    let rnr_nak = "RC Acknowledge, RNR NAK".to_owned();
    for name in naks.iter().chain(&messages).chain([&rnr_nak]) {
        let name = format!("IPv4, {name}");
        assert!(recorded.contains_key(&*name), "{name}");
    }
}

/// Calls `check` with the recorded frame of an operation, over both IP versions.
fn with(transport: Transport, operation: Operation, check: impl Fn(&Frame<'_>)) {
    let recorded = recorded();
    let opcode = Opcode::new(transport, operation).unwrap();
    for version in [4, 6] {
        let bytes = &recorded[&*format!("IPv{version}, {opcode}")];
        check(&Frame::decode(bytes).unwrap());
    }
}

const ONLY: Operation = Operation::Send(Position::Only, Immediate::None);

#[test]
fn recorded_requests_have_their_fields() {
    with(Transport::Rc, ONLY, |frame| {
        if let IpAddr::V4(src) = frame.ip.src() {
            assert_eq!(src.to_string(), "10.9.0.1");
            assert_eq!(frame.ip.dst().to_string(), "10.9.0.2");
        }
        assert!(frame.src_port >= 0xc000);
        assert!(frame.bth.ack_request);
        assert_eq!(frame.payload, [0, 1, 2, 3, 4], "without padding");
    });
    let with_imm = Operation::Send(Position::Only, Immediate::Data);
    with(Transport::Rc, with_imm, |frame| {
        assert_eq!(frame.extensions.imm, Some(IMM));
        assert!(frame.bth.solicited);
    });
    let write = Operation::Write(Position::Only, Immediate::Data);
    with(Transport::Uc, write, |frame| {
        assert_eq!(frame.extensions.imm, Some(IMM));
        assert_eq!(frame.extensions.reth.map(|reth| reth.len), Some(5));
    });
    with(Transport::Rc, Operation::ReadRequest, |frame| {
        assert_eq!(frame.extensions.reth.map(|reth| reth.len), Some(600));
    });
    with(Transport::Rc, Operation::CompareSwap, |frame| {
        let operands = frame.extensions.atomic.map(|atomic| {
            let AtomicEth {
                swap_add, compare, ..
            } = atomic;
            (compare, swap_add)
        });
        assert_eq!(operands, Some((1, 2)));
    });
    with(Transport::Rc, Operation::AtomicWrite, |frame| {
        assert_eq!(frame.payload, b"at once!");
    });
    with(Transport::Ud, ONLY, |frame| {
        let Some(Deth { qkey, src_qp }) = frame.extensions.deth else {
            unreachable!()
        };
        assert_eq!((qkey, frame.bth.dest_qp > 1), (0x1111_1111, src_qp > 1));
    });
}

#[test]
fn recorded_answers_have_their_fields() {
    with(Transport::Rc, Operation::Acknowledge, |frame| {
        assert_eq!(frame.extensions.aeth, Some(Aeth::ack(1)));
    });
    let first = Operation::ReadResponse(Position::First);
    let middle = Operation::ReadResponse(Position::Middle);
    let bytes = &recorded()[&*format!("IPv4, {}", Opcode::new(Transport::Rc, first).unwrap())];
    let frame = Frame::decode(bytes).unwrap();
    let has_aeth = frame.extensions.aeth.is_some();
    assert_eq!((frame.payload.len(), has_aeth), (256, true));
    let bytes = &recorded()[&*format!("IPv4, {}", Opcode::new(Transport::Rc, middle).unwrap())];
    assert_eq!(Frame::decode(bytes).unwrap().extensions.aeth, None);
    with(Transport::Rc, Operation::AtomicAcknowledge, |frame| {
        // The first bytes of the memory, written before: they count.
        let original = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(frame.extensions.atomic_ack, Some(original));
    });
}

#[test]
fn recorded_messages_of_the_connection_manager_encode_to_the_same_bytes() {
    for (name, bytes) in recorded() {
        let frame = Frame::decode(&bytes).unwrap();
        if frame.bth.dest_qp != 1 {
            continue;
        }
        let (tid, message) = Message::decode(frame.payload).unwrap();
        assert_eq!(message.encode(tid), frame.payload, "{name}");
        let qkey = frame.extensions.deth.map(|deth| deth.qkey);
        assert_eq!(qkey, Some(0x8001_0000), "{name}");
        let (src, dst) = (frame.ip.src(), frame.ip.dst());
        match message {
            Message::Request(request) => {
                assert_eq!((request.local_addr, request.remote_addr), (src, dst));
                assert_eq!(request.service_id, 0x0106_0000 + 7471, "port 7471");
            }
            Message::ServiceRequest(request) => {
                assert_eq!(request.service_id, 0x0111_0000 + 7471);
                assert!(request.private_data.as_slice()[36..].starts_with(b"request\0"));
            }
            Message::ServiceReply(reply) => {
                assert!(reply.private_data.as_slice().starts_with(b"accepted\0"));
            }
            Message::Reject(reject) => {
                assert!(reject.private_data.as_slice().starts_with(b"rejected\0"));
            }
            _ => {}
        }
    }
}

#[test]
fn corrupted_recording_is_refused() {
    let mut bytes = recorded()["IPv4, RC Acknowledge"].clone();
    // Turns the syndrome of an acknowledgement into a NAK.
    bytes[40] ^= 0x60;
    assert!(Frame::decode(&bytes).is_err());
    let refusal = Syndrome::Nak(Nak::SequenceError);
    assert_ne!(Aeth::ack(1).syndrome, refusal);
}
