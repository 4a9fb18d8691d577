//! What went over the wire: the frames of RDS among the packets of a run.

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::Ipv4Addr,
    path::Path,
};

use rds::proto::wire::{FRAGMENT, Flags, Header};

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Map,
    Acknowledgement,
    Message,
}

/// A frame, as the receiver's device sees it.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) from: Ipv4Addr,
    pub(super) kind: Kind,
    /// It is the last of its message, or map.
    pub(super) last: bool,
    /// The receiver is to be woken.
    pub(super) solicited: bool,
    /// What it says of itself.
    pub(super) header: Header,
    /// How many of its message have been seen on this connection, with it.
    pub(super) count: u32,
}

/// The messages of so many bytes that were cut off, and sent again from the start: X-F05.
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

/// The port of RoCE.
const ROCE: [u8; 2] = 4791_u16.to_be_bytes();

/// Where the payload of an Ethernet frame begins, and the bytes of the headers of UDP and InfiniBand.
const ETHERNET: usize = 14;
const UDP: usize = 8;
const BTH: usize = 12;

// The packets of sends over a reliable connection.
const SEND_FIRST: u8 = 0;
const SEND_MIDDLE: u8 = 1;
const SEND_LAST: u8 = 2;
const SEND_ONLY: u8 = 4;

/// A queue pair, by who sends to it.
type Queue = (Ipv4Addr, [u8; 3]);

/// The frames in a file of packets.
pub(super) fn frames(file: &Path) -> Vec<Frame> {
    let bytes = fs::read(file).expect("the packets were not recorded");
    let (start, mut rest) = bytes.split_at(24);
    assert_eq!(start[..4], 0xA1B2_C3D4_u32.to_le_bytes());
    let mut found = Vec::new();
    let mut wire = Wire::default();
    while let Some((record, more)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        // The last one may have been cut off.
        let Some((packet, more)) = more.split_at_checked(len as usize) else {
            break;
        };
        rest = more;
        found.extend(wire.packet(packet));
    }
    found
}

/// What is under way.
#[derive(Default)]
struct Wire {
    /// Packets that have been seen; they are sent again where one is lost.
    seen: HashSet<(Queue, [u8; 3])>,
    /// The beginning of the frame that is being sent to a queue pair.
    begun: HashMap<Queue, Header>,
    /// How many frames there were of a message.
    counts: HashMap<(Queue, u64), u32>,
}

impl Wire {
    /// Takes a packet; the frame whose last it is.
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
