//! Strategies for frames.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use softnic::wire::{
    Aeth, AtomicEth, Bth, Dceth, Deth, Extensions, Feth, Frame, IpHeader, Nak, Opcode, Operation,
    Position, Reth, Syndrome, Transport,
};

/// A frame whose payload is owned.
#[derive(Clone, Debug)]
pub(crate) struct OwnedFrame {
    pub(crate) headers: Frame<'static>,
    pub(crate) payload: Vec<u8>,
}

impl OwnedFrame {
    pub(crate) fn frame(&self) -> Frame<'_> {
        Frame {
            payload: &self.payload,
            ..self.headers
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.frame().encode(&mut bytes).unwrap();
        bytes
    }
}

const BITS_24: u32 = 0xff_ffff;

fn ip() -> impl Strategy<Value = IpHeader> {
    let v4 = (any::<(u8, u16, bool, u8)>(), any::<(u32, u32)>()).prop_map(
        |((tos, identification, dont_fragment, ttl), (src, dst))| IpHeader::V4 {
            tos,
            identification,
            dont_fragment,
            ttl,
            src: Ipv4Addr::from_bits(src),
            dst: Ipv4Addr::from_bits(dst),
        },
    );
    let v6 = (any::<(u8, u8)>(), 0..1_u32 << 20, any::<(u128, u128)>()).prop_map(
        |((traffic_class, hop_limit), flow_label, (src, dst))| IpHeader::V6 {
            traffic_class,
            flow_label,
            hop_limit,
            src: Ipv6Addr::from_bits(src),
            dst: Ipv6Addr::from_bits(dst),
        },
    );
    prop_oneof![v4, v6]
}

fn opcode() -> impl Strategy<Value = Opcode> {
    let opcodes: Vec<_> = (0..=u8::MAX)
        .map(Opcode)
        .filter(|opcode| opcode.parse().is_some())
        .collect();
    proptest::sample::select(opcodes)
}

fn bth() -> impl Strategy<Value = Bth> {
    (
        opcode(),
        any::<(bool, bool, bool, bool, bool, u16)>(),
        0..=BITS_24,
        0..=BITS_24,
    )
        .prop_map(|(opcode, flags, dest_qp, psn)| Bth {
            opcode,
            solicited: flags.0,
            migrated: flags.1,
            fecn: flags.2,
            becn: flags.3,
            ack_request: flags.4,
            pkey: flags.5,
            dest_qp,
            psn,
        })
}

fn syndrome() -> impl Strategy<Value = Syndrome> {
    prop_oneof![
        (0..32_u8).prop_map(Syndrome::Ack),
        (0..32_u8).prop_map(Syndrome::RnrNak),
        Just(Syndrome::Nak(Nak::SequenceError)),
        Just(Syndrome::Nak(Nak::InvalidRequest)),
        Just(Syndrome::Nak(Nak::RemoteAccess)),
        Just(Syndrome::Nak(Nak::RemoteOperation)),
        (4..32_u8).prop_map(|code| Syndrome::Reserved(0x60 | code)),
    ]
}

/// The extension header of an immediate or of an invalidation.
fn immediate(kind: softnic::wire::Immediate, value: u32) -> Extensions {
    let mut headers = Extensions::default();
    match kind {
        softnic::wire::Immediate::None => {}
        softnic::wire::Immediate::Data => headers.imm = Some(value),
        softnic::wire::Immediate::Invalidate => headers.invalidate = Some(value),
    }
    headers
}

/// The extension headers of an opcode, filled from a few random numbers.
fn extensions(opcode: Opcode, fill: [u64; 4], syndrome: Syndrome) -> Extensions {
    let (transport, operation) = opcode.parse().unwrap();
    let low = |at: usize| u32::try_from(fill[at] & 0xffff_ffff).unwrap();
    let reth = Reth {
        addr: fill[0],
        rkey: low(1),
        len: low(2),
    };
    let aeth = Aeth {
        syndrome,
        msn: low(0) & BITS_24,
    };
    let mut headers = match operation {
        Operation::Send(_, with) => immediate(with, low(3)),
        Operation::Write(position, with) => Extensions {
            reth: position.begins().then_some(reth),
            ..immediate(with, low(3))
        },
        Operation::ReadRequest | Operation::AtomicWrite => Extensions {
            reth: Some(reth),
            ..Extensions::default()
        },
        Operation::ReadResponse(position) => Extensions {
            aeth: (position != Position::Middle).then_some(aeth),
            ..Extensions::default()
        },
        Operation::Acknowledge => Extensions {
            aeth: Some(aeth),
            ..Extensions::default()
        },
        Operation::AtomicAcknowledge => Extensions {
            aeth: Some(aeth),
            atomic_ack: Some(fill[1]),
            ..Extensions::default()
        },
        Operation::CompareSwap | Operation::FetchAdd => Extensions {
            atomic: Some(AtomicEth {
                addr: fill[0],
                rkey: low(1),
                swap_add: fill[2],
                compare: fill[3],
            }),
            ..Extensions::default()
        },
        Operation::Flush => Extensions {
            feth: Some(Feth {
                placement: u8::try_from(fill[3] & 0x0f).unwrap(),
                selectivity: u8::try_from(fill[3] >> 4 & 3).unwrap(),
            }),
            reth: Some(reth),
            ..Extensions::default()
        },
    };
    headers.deth = (matches!(transport, Transport::Ud | Transport::Srd)).then(|| Deth {
        qkey: low(0),
        src_qp: low(1) & BITS_24,
    });
    if headers.aeth.is_none() && !is_read_middle(operation) {
        add_connection(&mut headers, transport, fill);
    }
    headers
}

/// Adds the header of a request of an extended or a dynamic connection.
fn add_connection(headers: &mut Extensions, transport: Transport, fill: [u64; 4]) {
    let low = |at: usize, bits: u32| u32::try_from(fill[at] & u64::from(bits)).unwrap();
    headers.xrc_srq = (transport == Transport::Xrc).then(|| low(2, BITS_24));
    headers.dc = (transport == Transport::Dc).then(|| Dceth {
        key: fill[3],
        session: low(0, u32::MAX),
        first: low(1, BITS_24),
        src_qp: low(2, BITS_24),
    });
}

/// Whether a packet is the middle of a read response, without extension headers.
fn is_read_middle(operation: Operation) -> bool {
    operation == Operation::ReadResponse(Position::Middle)
}

/// Any frame with a known opcode.
pub(crate) fn frame() -> impl Strategy<Value = OwnedFrame> {
    let payload = proptest::collection::vec(any::<u8>(), 0..300);
    let ports = any::<(u16, u16)>();
    (ip(), bth(), any::<[u64; 4]>(), syndrome(), payload, ports).prop_map(
        |(ip, bth, fill, syndrome, payload, (src_port, udp_checksum))| OwnedFrame {
            headers: Frame {
                ip,
                src_port,
                udp_checksum,
                bth,
                extensions: extensions(bth.opcode, fill, syndrome),
                payload: &[],
            },
            payload,
        },
    )
}
