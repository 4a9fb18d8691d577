//! The invariant CRC (ICRC): CRC-32 of Ethernet over all bytes not changed by routers.
//!
//! Eight bytes of ones stand for InfiniBand's local route header. Fields that change on the way count as ones: IPv4's
//! type of service, time to live and checksum, IPv6's traffic class, flow label and hop limit, UDP's checksum, and the
//! congestion bits of the base transport header. IPv4's identification is covered.

use super::{bth::Bth, ip::IpHeader, udp};

/// Length of the ICRC in bytes, sent with the lowest byte first.
pub(super) const LEN: usize = 4;

/// The longest masked headers: eight bytes of ones, IPv6, UDP, BTH.
const MAX_HEADERS: usize = 8 + 40 + udp::LEN + Bth::LEN;

/// Computes the ICRC of a frame without the ICRC field; `frame` has at least IP, UDP and BTH.
pub(super) fn icrc(ip: &IpHeader, frame: &[u8]) -> u32 {
    let ip_len = ip.encoded_len();
    let len = (ip_len + udp::LEN + Bth::LEN).min(frame.len());
    let (headers, rest) = frame.split_at(len);
    let mut masked = [0xff; MAX_HEADERS];
    masked[8..8 + len].copy_from_slice(headers);
    let ones: &[usize] = match ip {
        IpHeader::V4 { .. } => &[1, 8, 10, 11],
        IpHeader::V6 { .. } => &[1, 2, 3, 7],
    };
    for &at in ones {
        masked[8 + at] = 0xff;
    }
    if let IpHeader::V6 { .. } = ip {
        // The upper half of the traffic class shares a byte with the version.
        masked[8] |= 0x0f;
    }
    let udp_at = 8 + ip_len;
    masked[udp_at + 6..udp_at + 8].fill(0xff);
    masked[udp_at + udp::LEN + 4] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(&masked[..8 + len]);
    crc.update(rest);
    crc.finalize()
}
