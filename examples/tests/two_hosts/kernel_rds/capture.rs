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

/// Messages of `len` bytes interrupted and retransmitted from the start.
pub(super) fn cut_off(frames: &[Frame], len: u32) -> HashSet<(Ipv4Addr, u64)> {
    let all = len.div_ceil(FRAGMENT);
    let of_len = || frames.iter().filter(|frame| frame.header.len == len);
    let name = |frame: &Frame| (frame.from, frame.header.sequence);
    let begun: HashSet<_> = of_len()
        .filter(|frame| !frame.header.flags.contains(Flags::RETRANSMITTED))
        .map(name)
        .collect();
    let is_complete: HashSet<_> = of_len()
        .filter(|frame| !frame.header.flags.contains(Flags::RETRANSMITTED))
        .filter(|frame| frame.count == all)
        .map(name)
        .collect();
    let again: HashSet<_> = of_len()
        .filter(|frame| frame.header.flags.contains(Flags::RETRANSMITTED))
        .filter(|frame| frame.count == all)
        .map(name)
        .collect();
    let cut_off = begun.difference(&is_complete).copied();
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

/// Packet sequence number, of 24 bits.
type Psn = u32;

const PSN_MASK: u32 = 0x00FF_FFFF;

/// Last packet of a frame, its header, and whether the frame is solicited.
type Whole = (Psn, Header, bool);

/// The frames in a capture file: the connections in the order of their first frame, and the frames of each in the order of
/// sending. A packet lost before the capture is in the file after its successors, when retransmitted.
pub(super) fn frames(file: &Path) -> Vec<Frame> {
    let bytes = fs::read(file).expect("the packets were not recorded");
    let (start, mut rest) = bytes.split_at(24);
    assert_eq!(start[..4], 0xA1B2_C3D4_u32.to_le_bytes());
    let mut wire = Wire::default();
    while let Some((record, more)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([record[8], record[9], record[10], record[11]]);
        // The last packet may be truncated.
        let Some((packet, more)) = more.split_at_checked(len as usize) else {
            break;
        };
        rest = more;
        wire.packet(packet);
    }
    wire.into_frames()
}

/// State of reassembly.
#[derive(Default)]
struct Wire {
    /// Captured first packets of frames.
    firsts: HashSet<(Queue, Psn)>,
    /// The frames in progress, by their next packet.
    begun: HashMap<(Queue, Psn), Header>,
    /// The complete frames of each connection, in the order of the capture.
    complete: Vec<(Queue, Vec<Whole>)>,
}

impl Wire {
    /// Adds a packet. Does nothing with a duplicate, or without the packets of its frame before it: then all are
    /// retransmitted.
    fn packet(&mut self, packet: &[u8]) -> Option<()> {
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
        let from = Ipv4Addr::from(<[u8; 4]>::try_from(&ip[12..16]).ok()?);
        let queue: Queue = (from, transport[5..8].try_into().ok()?);
        let psn = u32::from_be_bytes(transport[8..12].try_into().ok()?) & PSN_MASK;
        let header = match opcode {
            SEND_FIRST | SEND_ONLY if self.firsts.insert((queue, psn)) => {
                Header::decode(payload, false).expect("a frame is damaged")
            }
            SEND_MIDDLE | SEND_LAST => self.begun.remove(&(queue, psn))?,
            _ => return None,
        };
        if [SEND_FIRST, SEND_MIDDLE].contains(&opcode) {
            self.begun
                .insert((queue, psn.wrapping_add(1) & PSN_MASK), header);
        } else {
            let frame = (psn, header, transport[1] & 0x80 != 0);
            match self.complete.iter_mut().find(|(of, _)| *of == queue) {
                Some((_, frames)) => frames.push(frame),
                None => self.complete.push((queue, vec![frame])),
            }
        }
        Some(())
    }

    fn into_frames(self) -> Vec<Frame> {
        let mut found = Vec::new();
        for (queue, mut frames) in self.complete {
            // The number of the first captured packet is in the middle of the order.
            let start = frames[0].0.wrapping_sub(PSN_MASK / 2);
            frames.sort_by_key(|(psn, ..)| psn.wrapping_sub(start) & PSN_MASK);
            let mut counts = HashMap::new();
            found.extend(
                frames
                    .into_iter()
                    .map(|(_, header, solicited)| frame(queue.0, header, solicited, &mut counts)),
            );
        }
        found
    }
}

/// The next frame of a connection with this number of frames of each message before.
fn frame(from: Ipv4Addr, header: Header, solicited: bool, counts: &mut HashMap<u64, u32>) -> Frame {
    let kind = if (header.flags, header.sequence) == (Flags::CONG_BITMAP, 0) {
        Kind::Map
    } else if (header.from, header.to, header.len) == (0, 0, 0) {
        Kind::Acknowledgement
    } else {
        Kind::Message
    };
    let count = counts.entry(header.sequence).or_default();
    if kind != Kind::Acknowledgement {
        *count += 1;
    }
    let all = header.len.div_ceil(FRAGMENT).max(1);
    Frame {
        from,
        kind,
        last: kind == Kind::Acknowledgement || (*count).is_multiple_of(all),
        solicited,
        header,
        count: *count,
    }
}

/// A packet of a send with this number, between two hosts, and a header in the first.
fn packet(opcode: u8, psn: Psn, solicited: bool, header: Option<&Header>) -> Vec<u8> {
    let mut packet = vec![0; ETHERNET - 2];
    packet.extend([8, 0]);
    let mut ip = [0; 20];
    (ip[0], ip[9]) = (0x45, 17);
    packet.extend(ip);
    packet.extend([0, 0]);
    packet.extend(ROCE);
    packet.extend([0; 4]);
    packet.extend([opcode, if solicited { 0x80 } else { 0 }]);
    packet.extend([0; 6]);
    packet.extend(psn.to_be_bytes());
    packet.extend(header.map(Header::encode).into_iter().flatten());
    packet
}

#[test]
fn captured_frames_are_in_the_order_of_sending() {
    const LEN: u32 = 3 * FRAGMENT;
    let header = Header {
        sequence: 1,
        len: LEN,
        from: 1,
        to: 2,
        ..Header::default()
    };
    let first = |psn| packet(SEND_FIRST, psn, false, Some(&header));
    let last = |psn| packet(SEND_LAST, psn, psn == 3, None);
    let mut wire = Wire::default();
    // Numbers from 0xFFFFFE to 3. Both packets of the second frame, and the first of the third, are lost once.
    for packet in [
        first(PSN_MASK - 1),
        last(PSN_MASK),
        last(3),
        first(0),
        last(1),
        first(2),
        last(3),
        last(3),
        first(2),
    ] {
        wire.packet(&packet);
    }
    let frames = wire.into_frames();
    let found: Vec<_> = frames
        .iter()
        .map(|frame| (frame.count, frame.last, frame.solicited))
        .collect();
    assert_eq!(
        found,
        [(1, false, false), (2, false, false), (3, true, true)]
    );
}
