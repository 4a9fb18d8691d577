//! Frames survive encoding and decoding.

use proptest::prelude::*;
use softnic::wire::{Bth, Extensions, Frame, IpHeader, Opcode, WireError};

use crate::arbitrary::frame;

proptest! {
    #[test]
    fn frames_survive_encoding(owned in frame()) {
        let bytes = owned.encode();
        prop_assert_eq!(Frame::decode(&bytes).unwrap(), owned.frame());
    }

    #[test]
    fn padding_of_ethernet_is_ignored(owned in frame(), padding in 0..46_usize) {
        let mut bytes = owned.encode();
        bytes.resize(bytes.len() + padding, 0);
        prop_assert_eq!(Frame::decode(&bytes).unwrap(), owned.frame());
    }

    /// Routers change these fields without knowledge of the ICRC.
    #[test]
    fn fields_that_routers_change_leave_the_icrc_alone(owned in frame(), value: u8) {
        let mut changed = owned.clone();
        match &mut changed.headers.ip {
            IpHeader::V4 { tos, ttl, .. } => {
                *tos = value;
                *ttl = value;
            }
            IpHeader::V6 { traffic_class, flow_label, hop_limit, .. } => {
                *traffic_class = value;
                *flow_label = value.into();
                *hop_limit = value;
            }
        }
        changed.headers.udp_checksum = value.into();
        changed.headers.bth.fecn = value & 1 != 0;
        changed.headers.bth.becn = value & 2 != 0;
        let (before, after) = (owned.encode(), changed.encode());
        prop_assert_eq!(before.last_chunk::<4>(), after.last_chunk::<4>());
    }
}

fn plain(extensions: Extensions) -> Frame<'static> {
    let ip = IpHeader::new("10.9.0.1".parse().unwrap(), "10.9.0.2".parse().unwrap());
    Frame {
        ip: ip.unwrap(),
        src_port: 0xc000,
        udp_checksum: 0,
        bth: Bth::new(Opcode::RC_SEND_ONLY, 17, 1),
        extensions,
        payload: &[],
    }
}

#[test]
fn headers_of_another_opcode_are_refused() {
    let extensions = Extensions {
        imm: Some(7),
        ..Extensions::default()
    };
    let mut bytes = vec![1, 2, 3];
    let refused = plain(extensions).encode(&mut bytes);
    assert_eq!(refused, Err(WireError::Headers(0x04)));
    assert_eq!(bytes, [1, 2, 3], "as before");
}

#[test]
fn payload_beyond_a_datagram_is_refused() {
    let frame = Frame {
        payload: &[0; 65_500],
        ..plain(Extensions::default())
    };
    let mut bytes = Vec::new();
    assert_eq!(frame.encode(&mut bytes), Err(WireError::Payload(65_500)));
    assert!(bytes.is_empty());
}

#[test]
fn addresses_of_different_families_are_refused() {
    let mixed = IpHeader::new("10.9.0.1".parse().unwrap(), "fe80::1".parse().unwrap());
    assert_eq!(mixed, Err(WireError::AddressFamilies));
}
