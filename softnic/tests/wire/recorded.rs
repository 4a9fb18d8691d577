//! Frames recorded from Linux's rxe decode, and encode to the same bytes, ICRC included.

use softnic::wire::{
    Aeth, AtomicEth, Deth, Frame, Immediate, Nak, Opcode, Operation, Position, Reth, Syndrome,
    Transport,
};

fn recorded() -> Vec<Vec<u8>> {
    let lines = include_str!("rxe.txt").lines();
    let frames = lines.filter(|line| !line.starts_with('#')).map(|line| {
        let digits = |at: usize| u8::from_str_radix(&line[at..at + 2], 16).unwrap();
        (0..line.len()).step_by(2).map(digits).collect()
    });
    frames.collect()
}

#[test]
fn recorded_frames_encode_to_the_same_bytes() {
    let frames = recorded();
    assert_eq!(frames.len(), 10);
    for bytes in frames {
        let frame = Frame::decode(&bytes).unwrap();
        let mut again = Vec::new();
        frame.encode(&mut again).unwrap();
        assert_eq!(again, bytes, "{frame:?}");
    }
}

fn recorded_as(opcode: Opcode) -> Vec<u8> {
    let found = recorded().into_iter().find(|bytes| {
        let frame = Frame::decode(bytes).unwrap();
        frame.bth.opcode == opcode && frame.ip.encoded_len() == 20
    });
    found.unwrap()
}

#[test]
fn recorded_requests_have_their_fields() {
    let bytes = recorded_as(Opcode::RC_SEND_ONLY);
    let frame = Frame::decode(&bytes).unwrap();
    assert_eq!(frame.ip.src().to_string(), "10.9.0.1");
    assert_eq!(frame.ip.dst().to_string(), "10.9.0.2");
    assert_eq!((frame.src_port, frame.udp_checksum), (0xc190, 0));
    assert_eq!((frame.bth.dest_qp, frame.bth.psn), (0x14, 0x5e_c2d5));
    assert!(frame.bth.ack_request);
    assert_eq!(frame.payload.len(), 5, "three bytes of padding are gone");

    let bytes = recorded_as(Opcode::RC_READ_REQUEST);
    let reth = Reth {
        addr: 0x563d_06c7_2000,
        rkey: 0x32d,
        len: 2500,
    };
    assert_eq!(Frame::decode(&bytes).unwrap().extensions.reth, Some(reth));

    let compare_swap = Opcode::new(Transport::Rc, Operation::CompareSwap).unwrap();
    let bytes = recorded_as(compare_swap);
    let atomic = AtomicEth {
        addr: 0x55ef_73f3_c000,
        rkey: 0x654,
        swap_add: 0,
        compare: 0,
    };
    assert_eq!(
        Frame::decode(&bytes).unwrap().extensions.atomic,
        Some(atomic)
    );

    let only = Operation::Send(Position::Only, Immediate::None);
    let bytes = recorded_as(Opcode::new(Transport::Ud, only).unwrap());
    let deth = Deth {
        qkey: 0x1111_1111,
        src_qp: 0x18,
    };
    assert_eq!(Frame::decode(&bytes).unwrap().extensions.deth, Some(deth));
}

#[test]
fn recorded_acknowledgements_have_their_fields() {
    let bytes = recorded_as(Opcode::RC_ACKNOWLEDGE);
    let aeth = Frame::decode(&bytes).unwrap().extensions.aeth;
    assert_eq!(aeth, Some(Aeth::ack(1)));

    let bytes = recorded_as(Opcode::RC_ATOMIC_ACKNOWLEDGE);
    let extensions = Frame::decode(&bytes).unwrap().extensions;
    assert_eq!(extensions.aeth, Some(Aeth::ack(1)));
    assert_eq!(extensions.atomic_ack, Some(0x930b_6961_d268_bb95));
}

#[test]
fn a_corrupted_recording_is_refused() {
    let mut bytes = recorded_as(Opcode::RC_ACKNOWLEDGE);
    // Turns the syndrome of an acknowledgement into a NAK.
    bytes[40] ^= 0x60;
    assert!(Frame::decode(&bytes).is_err());
    let refusal = Syndrome::Nak(Nak::SequenceError);
    assert_ne!(Aeth::ack(1).syndrome, refusal);
}
