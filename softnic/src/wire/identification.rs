//! The IPv4 identification and the flag DF of a received datagram, which the ICRC covers and a socket does not report.
//!
//! A CRC is linear: the difference between the ICRC of a packet with identification 0 and DF, and the ICRC in the packet, is
//! the sum of the effects of the 17 bits that differ, and each effect depends on the length of the packet alone. So the
//! bits follow from the difference. The other 15 bits of the ICRC still protect the packet, beside the checks of UDP and
//! Ethernet.

use std::{collections::HashMap, net::Ipv4Addr};

use super::{icrc, ip::IpHeader};

/// Number of unknown bits: those of the identification, and DF.
const BITS: u32 = 17;

/// The bit of DF among the unknown bits; set if the packet has no DF.
const NO_DF: u32 = 1 << 16;

/// Effects of the unknown bits on the ICRC of packets of one length, as a basis in which each first bit occurs once.
#[derive(Debug)]
struct Basis(Vec<(u32, u32)>);

impl Basis {
    /// The basis for IPv4 packets of `len` bytes, the ICRC included.
    fn new(len: usize) -> Self {
        let effect_of = effects(len);
        let mut rows: Vec<(u32, u32)> = Vec::new();
        for bit in 0..BITS {
            let (effect, bits) = reduce(&rows, (effect_of(1 << bit), 1 << bit));
            if effect != 0 {
                rows.push((effect, bits));
            }
        }
        Self(rows)
    }

    /// The unknown bits with an effect; `None` if no bits have the effect.
    fn solve(&self, effect: u32) -> Option<u32> {
        let (rest, bits) = reduce(&self.0, (effect, 0));
        (rest == 0).then_some(bits)
    }
}

/// The effect of unknown bits on the ICRC of IPv4 packets of `len` bytes, the ICRC included.
fn effects(len: usize) -> impl Fn(u32) -> u32 {
    let ip = IpHeader::V4 {
        tos: 0,
        identification: 0,
        dont_fragment: true,
        ttl: 0,
        src: Ipv4Addr::UNSPECIFIED,
        dst: Ipv4Addr::UNSPECIFIED,
    };
    let with = move |bits: u32| {
        let mut packet = vec![0; len.saturating_sub(icrc::LEN)];
        let [_, flags, high, low] = bits.to_be_bytes();
        for (out, byte) in packet.iter_mut().skip(4).zip([high, low, flags << 6]) {
            *out = byte;
        }
        icrc::icrc(&ip, &packet)
    };
    let none = with(0);
    move |bits| with(bits) ^ none
}

/// Changes the ICRC of an IPv4 packet for the identification 0 in place of another one. A corrupted packet stays corrupted.
pub(crate) fn clear_identification(packet: &mut [u8], identification: u16) {
    let effect = effects(packet.len())(identification.into());
    if let Some(icrc) = packet.last_chunk_mut() {
        *icrc = (u32::from_le_bytes(*icrc) ^ effect).to_le_bytes();
    }
}

/// Adds rows to a value as long as its bits are the first ones of rows.
fn reduce(rows: &[(u32, u32)], (mut effect, mut bits): (u32, u32)) -> (u32, u32) {
    for (row, row_bits) in rows {
        let first = 31 - row.leading_zeros();
        if effect >> first & 1 == 1 {
            effect ^= row;
            bits ^= row_bits;
        }
    }
    (effect, bits)
}

/// Bases by length of packets. A packet has at most a few thousand bytes, so there are as many bases at most.
#[derive(Debug, Default)]
pub(crate) struct Identifier(HashMap<usize, Basis>);

impl Identifier {
    /// Identification and DF of an IPv4 packet of `len` bytes, from the ICRC in the packet and the ICRC with identification
    /// 0 and DF. `None` if the packet has been corrupted.
    pub(crate) fn identify(&mut self, len: usize, sent: u32, computed: u32) -> Option<(u16, bool)> {
        let basis = self.0.entry(len).or_insert_with(|| Basis::new(len));
        let bits = basis.solve(sent ^ computed)?;
        let [_, _, high, low] = bits.to_be_bytes();
        Some((u16::from_be_bytes([high, low]), bits & NO_DF == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Bth, Extensions, Frame, Opcode};

    /// A frame with an identification and a flag.
    fn packet(identification: u16, dont_fragment: bool, payload: &[u8]) -> Vec<u8> {
        let frame = Frame {
            ip: IpHeader::V4 {
                tos: 2,
                identification,
                dont_fragment,
                ttl: 64,
                src: Ipv4Addr::new(10, 9, 0, 1),
                dst: Ipv4Addr::new(10, 9, 0, 2),
            },
            src_port: 0xc123,
            udp_checksum: 0,
            bth: Bth::new(Opcode::RC_SEND_ONLY, 17, 1),
            extensions: Extensions::default(),
            payload,
        };
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        bytes
    }

    /// The length and the ICRC of such a frame.
    fn sent(identification: u16, dont_fragment: bool, payload: &[u8]) -> (usize, u32) {
        let bytes = packet(identification, dont_fragment, payload);
        let icrc = bytes.last_chunk().copied().unwrap();
        (bytes.len(), u32::from_le_bytes(icrc))
    }

    #[test]
    fn packet_with_a_cleared_identification_is_as_encoded_without() {
        for payload in [&[][..], &[7; 13], &[9; 4096]] {
            let [mut packet, expected] = [63, 0].map(|of| packet(of, true, payload));
            clear_identification(&mut packet, 63);
            assert_eq!(packet.last_chunk::<4>(), expected.last_chunk::<4>());
        }
    }

    #[test]
    fn identification_and_flag_follow_from_the_icrc() {
        let mut identifier = Identifier::default();
        for payload in [&[][..], &[7; 12], &[9; 1024], &[1; 4096]] {
            let (len, computed) = sent(0, true, payload);
            for identification in [0, 1, 0x8000, 0x1234, 0xffff] {
                for dont_fragment in [true, false] {
                    let (_, icrc) = sent(identification, dont_fragment, payload);
                    let found = identifier.identify(len, icrc, computed);
                    assert_eq!(found, Some((identification, dont_fragment)), "{len}");
                }
            }
        }
    }

    /// 15 bits remain: one of 32,768 other differences passes.
    #[test]
    fn most_corrupted_packets_are_refused() {
        let mut identifier = Identifier::default();
        let (len, computed) = sent(0, true, &[7; 100]);
        let mut rng = fastrand::Rng::with_seed(7);
        let passed = (0..100_000).filter(|_| {
            let found = identifier.identify(len, rng.u32(..), computed);
            found.is_some()
        });
        let passed = passed.count();
        assert!(passed < 20, "{passed}");
    }
}
