//! RDS frames in a packet capture of a run.

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::Ipv4Addr,
    path::Path,
};

use rds::proto::wire::{FRAGMENT, Flags, Header};

/// Type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Map,
    Acknowledgement,
    Message,
}

/// A frame, as received by the device.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) from: Ipv4Addr,
    pub(super) kind: Kind,
    /// Whether the frame is the last of its message or map.
    pub(super) last: bool,
    /// Whether the frame is solicited.
    pub(super) solicited: bool,
    /// The header.
    pub(super) header: Header,
    /// Number of frames of the message captured on this connection, including this one.
    pub(super) count: u32,
}

/// Messages of `len` bytes interrupted and retransmitted from the start: X-F05.
pub(super) fn cut_off(frames: &[Frame], len: u32) -> HashSet<(Ipv4Addr, u64)> {
    let all = len.div_ceil(FRAGMENT);
    let of_len = || frames.iter().filter(|frame| frame.header.len == len);
    let name = |frame: &Frame| (frame.from, frame.header.sequence);
    let begun: HashSet<_> = of_len()
        .filter(|frame| !frame.header.flags.contains(Flags::RETRANSMITTED))
        .map(name)
        .collect();
    let whole: HashSet<_> = of_len()
        .filter(|frame| !frame.header.flags.contains(Flags::RETRANSMITTED))
        .filter(|frame| frame.count == all)
        .map(name)
        .collect();
    let again: HashSet<_> = of_len()
        .filter(|frame| frame.header.flags.contains(Flags::RETRANSMITTED))
        .filter(|frame| frame.count == all)
        .map(name)
        .collect();
    let cut_off = begun.difference(&whole).copied();
    cut_off.filter(|name| again.contains(name)).collect()
}

/// UDP port of RoCE.
const ROCE: [u8; 2] = 4791_u16.to_be_bytes();

/// Sizes of the Ethernet, UDP and InfiniBand headers.
const ETHERNET: usize = 14;
const UDP: usize = 8;
const BTH: usize = 12;

// Opcodes of sends over a reliable connection.
const SEND_FIRST: u8 = 0;
const SEND_MIDDLE: u8 = 1;
const SEND_LAST: u8 = 2;
const SEND_ONLY: u8 = 4;

/// A queue pair, by address of its sender.
type Queue = (Ipv4Addr, [u8; 3]);

/// The frames in a capture file.
pub(super) fn frames(file: &Path) -> Vec<Frame> {
    let bytes = fs::read(file).expect("the packets were not recorded");
    let (start, mut rest) = bytes.split_at(24);
    assert_eq!(start[..4], 0xA1B2_C3D4_u32.to_le_bytes());
    let mut found = Vec::new();
    let mut wire = Wire::default();
    while let Some((record, more)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        // The last packet may be truncated.
        let Some((packet, more)) = more.split_at_checked(len as usize) else {
            break;
        };
        rest = more;
        found.extend(wire.packet(packet));
    }
    found
}

/// State of reassembly.
#[derive(Default)]
struct Wire {
    /// Captured packets; lost ones are retransmitted.
    seen: HashSet<(Queue, [u8; 3])>,
    /// First part of the frame in progress, by queue pair.
    begun: HashMap<Queue, Header>,
    /// Number of frames by message.
    counts: HashMap<(Queue, u64), u32>,
}

impl Wire {
    /// Adds a packet; returns the frame completed by it.
    fn packet(&mut self, packet: &[u8]) -> Option<Frame> {
        let ip = packet.get(ETHERNET..)?;
        if packet[12..ETHERNET] != [8, 0] {
            return None;
        }
        let udp = ip.get(usize::from(ip[0] & 15) * 4..)?;
        if ip[9] != 17 || udp[2..4] != ROCE {
            return None;
        }
        let (transport, payload) = udp[UDP..].split_at(BTH);
        let opcode = transport[0];
        if ![SEND_FIRST, SEND_MIDDLE, SEND_LAST, SEND_ONLY].contains(&opcode) {
            return None;
        }
        let from = Ipv4Addr::from(<[u8; 4]>::try_from(&ip[12..16]).ok()?);
        let queue = (from, transport[5..8].try_into().ok()?);
        if !self.seen.insert((queue, transport[9..12].try_into().ok()?)) {
            return None;
        }
        if [SEND_FIRST, SEND_ONLY].contains(&opcode) {
            let header = Header::decode(payload, false).expect("a frame is damaged");
            self.begun.insert(queue, header);
        }
        if ![SEND_LAST, SEND_ONLY].contains(&opcode) {
            return None;
        }
        let header = self.begun.remove(&queue)?;
        let kind = if (header.flags, header.sequence) == (Flags::CONG_BITMAP, 0) {
            Kind::Map
        } else if (header.from, header.to, header.len) == (0, 0, 0) {
            Kind::Acknowledgement
        } else {
            Kind::Message
        };
        let count = self.counts.entry((queue, header.sequence)).or_default();
        if kind != Kind::Acknowledgement {
            *count += 1;
        }
        let all = header.len.div_ceil(FRAGMENT).max(1);
        Some(Frame {
            from,
            kind,
            last: kind == Kind::Acknowledgement || (*count).is_multiple_of(all),
            solicited: transport[1] & 0x80 != 0,
            header,
            count: *count,
        })
    }
}
