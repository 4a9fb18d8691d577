//! Arbitrary bytes: decoding neither panics nor accepts a corrupted frame.

use proptest::prelude::*;
use softnic::wire::{Frame, IpHeader, WireError};

use crate::arbitrary::frame;

/// Bits of a frame without checksum, by byte: fields changed by routers, and reserved bits.
fn uncovered(ip: &IpHeader, byte: usize) -> bool {
    let udp = ip.encoded_len();
    let masked: &[usize] = match ip {
        // The checksum of the IPv4 header covers the rest.
        IpHeader::V4 { .. } => &[],
        IpHeader::V6 { .. } => &[0, 1, 2, 3, 7],
    };
    masked.contains(&byte) || [udp + 6, udp + 7, udp + 8 + 4].contains(&byte)
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _decoded = Frame::decode(&bytes);
    }

    /// Random bytes seldom pass the IP header, so these start with the headers of a frame.
    #[test]
    fn any_bytes_after_a_header_are_decoded_without_panic(
        owned in frame(),
        keep in 0..100_usize,
        rest in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = owned.encode();
        bytes.truncate(keep);
        bytes.extend(rest);
        let _decoded = Frame::decode(&bytes);
    }

    #[test]
    fn truncated_frames_are_refused(owned in frame(), cut in 1..500_usize) {
        let mut bytes = owned.encode();
        bytes.truncate(bytes.len().saturating_sub(cut));
        prop_assert!(Frame::decode(&bytes).is_err());
    }

    #[test]
    fn a_flipped_bit_is_found(owned in frame(), at: prop::sample::Index, bit in 0..8_u8) {
        let mut bytes = owned.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if !uncovered(&owned.headers.ip, at) {
            prop_assert!(Frame::decode(&bytes).is_err(), "byte {at}, bit {bit}");
        }
    }
}

#[test]
fn reasons_name_what_is_wrong() {
    let bytes = |hex: &str| -> Vec<u8> {
        (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect()
    };
    let reason = |hex: &str| Frame::decode(&bytes(hex)).unwrap_err();
    assert_eq!(reason(""), WireError::Truncated("IP header"));
    assert_eq!(reason("50"), WireError::IpVersion(5));
    assert_eq!(reason("46"), WireError::IpOptions(6));
    assert_eq!(reason("4500"), WireError::Truncated("IP header"));
    let v6 = "6000000000080640fe800000000000000000000000000001fe800000000000000000000000000002";
    assert_eq!(reason(v6), WireError::Protocol(6));
    let v6 = v6.replace("0640fe", "1140fe");
    assert_eq!(reason(&v6), WireError::Length, "shorter than it says");
    assert_eq!(
        reason(&format!("{v6}c00000350008ffff")),
        WireError::Port(53)
    );
    assert_eq!(reason(&format!("{v6}c00012b7000cffff")), WireError::Length);
    let truncated = WireError::Truncated("base transport header");
    assert_eq!(reason(&format!("{v6}c00012b70008ffff")), truncated);
    assert!(truncated.to_string().contains("base transport header"));
}
