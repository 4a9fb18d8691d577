//! `RoCEv2` frames over a UDP socket of the system, to other processes and machines, as an ordinary user.
//!
//! A frame without its IP and UDP headers is a datagram from and to port 4791. The kernel writes the headers, some of whose
//! fields are covered by the ICRC: an unconnected socket that forbids fragmentation sends IPv4's identification 0 and the
//! flag DF, as the engine's frames have; the packets of one call have the identifications 0, 1, 2 and so on. The source port
//! is the socket's. Fields that the kernel chooses, such as the time to live, are not covered. Linux's rxe sends other
//! identifications, found by the ICRC.
//!
//! Received bytes are hostile: each datagram has a maximum length, and is a frame only if its ICRC is right. Received
//! datagrams wait in the kernel's buffer of the socket alone, which has a limit in bytes; further ones are lost, as on any
//! network.
#![forbid(unsafe_code)]

mod batch;
mod groups;
mod headers;
mod interface;
mod keeper;
mod socket;

use std::{
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr, UdpSocket},
    ops::Range,
    sync::Arc,
};

use batch::Batch;
use headers::Headers;
pub(crate) use interface::Interface;
pub(crate) use keeper::{KeeperLink, PortSlot};
pub(crate) use socket::{Link, Readiness};
use socket::{Management, Refused};

use crate::{
    abi::Received,
    keeper::Will,
    wire::{Frame, Identifier, IpHeader, PORT, WireError, clear_identification},
};

/// Maximum length of a datagram: a payload of 4096 bytes with the longest headers, an ICRC, and some more.
const MAX_DATAGRAM: usize = 4096 + 256;

/// Maximum length of received datagrams of one sender together, of the kernel.
const MAX_RECEIVED: usize = 1 << 16;

/// The socket of one address, and its buffers.
#[derive(Debug)]
pub(crate) struct Carrier {
    local: IpAddr,
    /// Index of the last interface with the address.
    interface: Option<u32>,
    link: Arc<Link>,
    /// Packets to be sent.
    batch: Batch,
    /// The packets being received: room for headers, followed by datagrams.
    received: Vec<u8>,
    /// The datagrams of `received` not taken yet.
    pending: PendingDatagrams,
    /// Identifications of received packets.
    identifier: Identifier,
    /// The slot of an address shared with other processes, and the connection to the keeper.
    shared: Option<(u8, Arc<KeeperLink>)>,
}

/// Result of a look for a datagram forwarded by the keeper.
#[derive(Debug)]
pub(crate) enum Forward<'a> {
    /// An IP packet.
    Packet(&'a [u8]),
    /// None is pending.
    Nothing,
    /// The keeper has ended: it was killed.
    Ended,
}

impl Carrier {
    /// Binds the port of `RoCEv2` at an address of this machine.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AddrInUse`]: another process, or the kernel's driver `rdma_rxe`, has the port.
    /// - [`io::ErrorKind::AddrNotAvailable`]: the machine does not have the address.
    pub(crate) fn bind(local: IpAddr) -> io::Result<Self> {
        Ok(Self::new(local, Link::bind(local)?, None))
    }

    /// Uses a slot of an address.
    ///
    /// # Errors
    /// - The process has too many descriptors.
    pub(crate) fn of_slot(local: IpAddr, slot: PortSlot) -> io::Result<Self> {
        let link = Link::new(slot.socket, Some(Arc::clone(&slot.keeper.management)))?;
        let shared = (slot.number, Arc::new(slot.keeper));
        Ok(Self::new(local, link, Some(shared)))
    }

    fn new(local: IpAddr, link: Link, shared: Option<(u8, Arc<KeeperLink>)>) -> Self {
        if merges(local, shared.is_some()) {
            link.merge_datagrams();
        }
        Self {
            local,
            interface: None,
            link: Arc::new(link),
            batch: Batch::new(local),
            received: vec![0; Headers::len(local) + MAX_RECEIVED],
            pending: PendingDatagrams {
                bytes: 0..0,
                size: 1,
                headers: Headers::of((local, 0).into(), local),
            },
            identifier: Identifier::default(),
            shared,
        }
    }

    /// The slot and the keeper of a shared address.
    pub(crate) fn shared(&self) -> Option<&(u8, Arc<KeeperLink>)> {
        self.shared.as_ref()
    }

    /// Whether a queue pair at the address is of another process, or may be: queue pair 1 is the keeper's.
    pub(crate) fn is_elsewhere(&self, qp_num: u32) -> bool {
        let shared = self.shared.as_ref();
        shared.is_some_and(|(slot, _)| qp_num >> 16 != u32::from(*slot))
    }

    /// Sets the packet that the keeper sends after the end of this process, or removes it.
    pub(crate) fn set_will(&self, id: u32, packet: Option<(IpAddr, &[u8])>) {
        let Some((_, keeper)) = &self.shared else {
            return;
        };
        let will = packet.and_then(|(to, packet)| {
            let datagram = packet.get(Headers::len(self.local)..)?.to_vec();
            Some(Will { to, datagram })
        });
        keeper.set_will(id, will);
    }

    /// The socket, for a thread that waits for datagrams.
    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(crate) fn interface(&self) -> Option<u32> {
        self.interface
    }

    pub(crate) fn set_interface(&mut self, index: u32) {
        self.interface = Some(index);
    }

    /// Headers of a frame as they leave the socket, over IPv4 with this identification.
    pub(crate) fn outgoing<'a>(frame: &Frame<'a>, number: u16) -> Frame<'a> {
        let mut ip = frame.ip;
        if let IpHeader::V4 { identification, .. } = &mut ip {
            *identification = number;
        }
        Frame {
            ip,
            src_port: PORT,
            ..*frame
        }
    }

    /// Whether the system has a route from the address to a peer's.
    pub(crate) fn has_route(&self, peer: IpAddr) -> bool {
        let connected = UdpSocket::bind((self.local, 0))
            .and_then(|socket| socket.connect(SocketAddr::new(peer, PORT)));
        connected.is_ok()
    }

    /// Sets the multicast groups whose datagrams are received. Groups of IPv6 stay in the process.
    ///
    /// # Errors
    /// - A group cannot be joined: too many memberships or descriptors.
    pub(crate) fn set_groups(&self, groups: impl Iterator<Item = IpAddr>) -> io::Result<()> {
        let IpAddr::V4(local) = self.local else {
            return Ok(());
        };
        let groups = groups.filter_map(|group| match group {
            IpAddr::V4(group) => Some(group),
            IpAddr::V6(_) => None,
        });
        self.link.set_groups(local, &groups.collect::<Vec<_>>())
    }

    /// Prepares for a packet of `len` bytes to a queue pair, and returns the packet's identification. Packets before which it
    /// cannot follow are sent. Returns the number of lost ones, too.
    pub(crate) fn reserve(&mut self, to: (IpAddr, u32), len: usize) -> (u16, u64) {
        let lost = match self.batch.takes(to, len) {
            true => 0,
            false => self.flush(),
        };
        if lost > 0 || self.batch.count() == 0 {
            self.batch.restart(to, len);
        }
        (u16::try_from(self.batch.count()).unwrap_or(0), lost)
    }

    /// The packets to be sent, to which one may be appended after [`reserve`](Self::reserve).
    pub(crate) fn packets(&mut self) -> &mut Vec<u8> {
        &mut self.batch.packets
    }

    /// Sends the packets. Returns the number of lost ones: the socket's buffer is full, or the system has no route.
    pub(crate) fn flush(&mut self) -> u64 {
        let (to, count) = (self.batch.addr(), self.batch.count());
        if count == 0 {
            return 0;
        }
        let mut packets = std::mem::take(&mut self.batch.packets);
        let sent = match count {
            1 => u64::from(self.send(to, &packets)),
            _ => self.send_all(to, &mut packets),
        };
        // The next packets use the memory.
        packets.clear();
        self.batch.packets = packets;
        count as u64 - sent
    }

    /// Sends packets by one call, and one by one if the system refuses that. Returns the number of sent ones.
    fn send_all(&mut self, to: IpAddr, packets: &mut [u8]) -> u64 {
        let (len, headers) = (self.batch.packet_len(), Headers::len(self.local));
        let datagrams = packets
            .chunks(len)
            .filter_map(|packet| packet.get(headers..));
        let datagrams: Vec<_> = datagrams.map(IoSlice::new).collect();
        let size = u16::try_from(len - headers).unwrap_or(0);
        match self.link.send_segments(to, &datagrams, size) {
            Ok(true) => return datagrams.len() as u64,
            Ok(false) => return 0,
            Err(Refused) => {}
        }
        let mut sent = 0;
        for (number, packet) in (0..).zip(packets.chunks_mut(len)) {
            if to.is_ipv4() {
                clear_identification(packet, number);
            }
            sent += u64::from(self.send(to, packet));
        }
        // Otherwise the packets themselves are refused, as after a change of the MTU.
        if sent > 0 {
            self.batch.refuse_more();
        }
        sent
    }

    /// Sends an IP packet with the identification 0 alone. Returns false if the packet is lost.
    pub(crate) fn send(&self, to: IpAddr, packet: &[u8]) -> bool {
        let datagram = packet.get(Headers::len(self.local)..);
        datagram.is_some_and(|datagram| self.link.send(to, datagram))
    }

    /// Takes the next datagram, as an IP packet; `None` if no datagram is pending. Datagrams that are no frames of any peer
    /// are skipped, up to a number, so that a call ends.
    pub(crate) fn receive(&mut self) -> Option<&[u8]> {
        /// Maximum number of skipped ranges of datagrams, each of at most 128, the kernel's maximum.
        const MAX_SKIPPED: u32 = 64;
        let start = Headers::len(self.local);
        for _ in 0..MAX_SKIPPED {
            while let Some((datagram, headers)) = self.pending.next() {
                // The bytes in front are the room for headers, or a datagram taken before.
                let packet = datagram.start.checked_sub(start)?..datagram.end;
                if self.complete(packet.clone(), headers) {
                    return self.received.get(packet);
                }
            }
            let (received, group) = self.link.receive(self.received.get_mut(start..)?)?;
            let dst = group.map_or(self.local, IpAddr::V4);
            if received.len <= MAX_RECEIVED {
                self.pending = PendingDatagrams::new(start, &received, dst);
            }
        }
        None
    }

    /// Whether datagrams are pending here, and so no more at the socket.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.bytes.is_empty()
    }

    /// Takes the next datagram forwarded by the keeper. Datagrams that are no frames are skipped.
    pub(crate) fn receive_forwarded(&mut self) -> Forward<'_> {
        let start = Headers::len(self.local);
        // None are pending, unless a panic has interrupted their receiver.
        self.pending.bytes = 0..0;
        loop {
            let datagram = self.received.get_mut(start..).unwrap_or_default();
            let (len, from) = match self.link.receive_management(datagram) {
                Management::Datagram(len, from) => (len, from),
                Management::Nothing => return Forward::Nothing,
                Management::Ended => return Forward::Ended,
            };
            if self.complete(0..start + len, Headers::of(from, self.local)) {
                let packet = self.received.get(..start + len);
                return packet.map_or(Forward::Nothing, Forward::Packet);
            }
        }
    }

    /// Writes the headers in front of a received datagram. Returns false if the packet is no frame, or longer than any.
    fn complete(&mut self, packet: Range<usize>, headers: Headers) -> bool {
        let is_short = packet.len() <= Headers::len(self.local) + MAX_DATAGRAM;
        let packet = self.received.get_mut(packet).filter(|_| is_short);
        packet.is_some_and(|packet| complete(packet, headers, &mut self.identifier))
    }
}

/// Whether the socket of an address takes several datagrams at once. A network interface merges those of one sender before
/// the kernel looks for the slot of the first, so the others may be those of another process at a shared address. The loopback
/// interface merges none: there, only the packets of a [`Batch`] come together, which are to one queue pair.
fn merges(local: IpAddr, is_shared: bool) -> bool {
    !is_shared || local.is_loopback()
}

/// Received datagrams of one sender, one after the other.
#[derive(Debug)]
struct PendingDatagrams {
    /// Bytes of the pending datagrams.
    bytes: Range<usize>,
    /// Length of each datagram but the last, at least 1.
    size: usize,
    /// Headers of the next one. The sender's kernel has numbered the datagrams of a call, if they are of one.
    headers: Headers,
}

impl PendingDatagrams {
    /// Datagrams that start at a byte of the buffer.
    fn new(start: usize, received: &Received, dst: IpAddr) -> Self {
        Self {
            bytes: start..start + received.len,
            size: received.size,
            headers: Headers::of(received.from, dst),
        }
    }

    /// Takes a datagram.
    fn next(&mut self) -> Option<(Range<usize>, Headers)> {
        let (start, headers) = (self.bytes.start, self.headers);
        if self.bytes.is_empty() {
            return None;
        }
        let end = start.saturating_add(self.size).min(self.bytes.end);
        self.bytes.start = end;
        self.headers.identification = headers.identification.wrapping_add(1);
        Some((start..end, headers))
    }
}

/// Writes the headers in front of a datagram. Returns false if the packet is no frame: of another family, or corrupted.
fn complete(packet: &mut [u8], headers: Headers, identifier: &mut Identifier) -> bool {
    if headers.write(packet).is_none() {
        return false;
    }
    let computed = match Frame::decode(packet) {
        Ok(_) => return true,
        Err(WireError::Icrc(computed)) if headers.dst.is_ipv4() => computed,
        Err(_) => return false,
    };
    let sent = packet.last_chunk().copied().map_or(0, u32::from_le_bytes);
    let found = identifier.identify(packet.len(), sent, computed);
    let found = found.map(|(difference, dont_fragment)| Headers {
        identification: headers.identification ^ difference,
        dont_fragment,
        ..headers
    });
    found.is_some_and(|headers| headers.write(packet).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Bth, Extensions, Opcode};

    /// Two addresses of the loopback interface, other than those of a run of another process.
    fn bind(test: u8) -> [Carrier; 2] {
        let [.., run] = std::process::id().to_be_bytes();
        [1, 2].map(|host| Carrier::bind([127, 64 | run & 0x3f, test, host].into()).unwrap())
    }

    /// Appends frames to queue pair 7 of a carrier, with these lengths of payloads, and sends them.
    fn send(from: &mut Carrier, to: &Carrier, lengths: &[usize]) -> Vec<u16> {
        let numbers = lengths.iter().map(|len| {
            let payload = vec![0x5a; *len];
            let mut frame = Frame {
                ip: IpHeader::new(from.local, to.local).unwrap(),
                src_port: 1,
                udp_checksum: 0,
                bth: Bth::new(Opcode::RC_SEND_ONLY, 7, 0),
                extensions: Extensions::default(),
                payload: &payload,
            };
            let (number, lost) = from.reserve((to.local, 7), frame.len_with(*len));
            assert_eq!(lost, 0);
            frame = Carrier::outgoing(&frame, number);
            frame.encode(from.packets()).unwrap();
            number
        });
        let numbers = numbers.collect();
        assert_eq!(from.flush(), 0);
        numbers
    }

    /// Takes a frame: the identification, the length of the payload, and whether more came together with it.
    fn receive(carrier: &mut Carrier) -> Option<(u16, usize, bool)> {
        let packet = carrier.receive()?.to_vec();
        let frame = Frame::decode(&packet).unwrap();
        let IpHeader::V4 { identification, .. } = frame.ip else {
            panic!("{frame:?}");
        };
        Some((identification, frame.payload.len(), carrier.has_pending()))
    }

    #[test]
    fn packets_of_one_length_come_together_with_successive_identifications() {
        let [mut a, mut b] = bind(246);
        let numbers = send(&mut a, &b, &[4096, 4096, 4096, 1000, 4096]);
        // No packet follows a shorter one.
        assert_eq!(numbers, [0, 1, 2, 3, 0]);
        let expected = [
            (0, 4096, true),
            (1, 4096, true),
            (2, 4096, true),
            (3, 1000, false),
            (0, 4096, false),
        ];
        for expected in expected {
            assert_eq!(receive(&mut b), Some(expected));
        }
        assert_eq!(receive(&mut b), None);
    }

    #[test]
    fn corrupted_packet_of_several_is_skipped() {
        let [mut a, mut b] = bind(247);
        let [first, second] = [0, 1].map(|number| {
            let (found, _) = a.reserve((b.local, 7), 144);
            assert_eq!(found, number);
            let frame = Frame {
                ip: IpHeader::new(a.local, b.local).unwrap(),
                src_port: PORT,
                udp_checksum: 0,
                bth: Bth::new(Opcode::RC_SEND_ONLY, 7, 0),
                extensions: Extensions::default(),
                payload: &[7; 100],
            };
            let start = a.packets().len();
            Carrier::outgoing(&frame, number)
                .encode(a.packets())
                .unwrap();
            start
        });
        assert_eq!(second - first, 144);
        a.packets()[first + 100] ^= 1;
        assert_eq!(a.flush(), 0);
        assert_eq!(receive(&mut b), Some((1, 100, false)));
        assert_eq!(receive(&mut b), None);
    }

    #[test]
    fn packets_are_sent_one_by_one_once_the_kernel_refuses_several() {
        let [mut a, mut b] = bind(248);
        // The kernel computes the checksums of several datagrams, or sends one.
        a.link.disable_checksums();
        for numbers in [[0, 1, 2], [0, 0, 0]] {
            assert_eq!(send(&mut a, &b, &[1024, 1024, 80]), numbers);
            for len in [1024, 1024, 80] {
                assert_eq!(receive(&mut b), Some((0, len, false)));
            }
        }
    }

    #[test]
    fn processes_of_a_shared_address_take_several_datagrams_on_loopback_alone() {
        let [loopback, other] = ["127.0.0.2", "10.0.0.2"].map(|addr| addr.parse().unwrap());
        assert!(merges(loopback, true) && merges(other, false));
        assert!(!merges(other, true));
    }

    /// Frames of Linux's rxe, whole IP packets.
    fn recorded() -> impl Iterator<Item = Vec<u8>> {
        let lines = include_str!("../../tests/wire/rxe.txt").lines();
        lines.filter(|line| !line.starts_with('#')).map(|line| {
            let digits = line.as_bytes().chunks(2);
            let bytes = digits.map(|digits| {
                let digits = str::from_utf8(digits).unwrap();
                u8::from_str_radix(digits, 16).unwrap()
            });
            bytes.collect()
        })
    }

    #[test]
    fn frames_of_rxe_have_their_identification_again() {
        let mut identifier = Identifier::default();
        let mut with_identification = 0;
        for packet in recorded() {
            let frame = Frame::decode(&packet).unwrap();
            let headers = Headers {
                src: frame.ip.src(),
                src_port: frame.src_port,
                dst: frame.ip.dst(),
                identification: 0,
                dont_fragment: true,
            };
            let mut received = packet.clone();
            received[..Headers::len(headers.dst)].fill(0);
            assert!(complete(&mut received, headers, &mut identifier));
            let ip = |packet: &[u8]| match Frame::decode(packet).unwrap().ip {
                IpHeader::V4 {
                    identification,
                    dont_fragment,
                    ..
                } => Some((identification, dont_fragment)),
                IpHeader::V6 { .. } => None,
            };
            assert_eq!(ip(&received), ip(&packet));
            with_identification += usize::from(ip(&packet).is_some_and(|(id, _)| id != 0));
            // A flipped bit of the payload or of the headers behind UDP's.
            let last = received.len() - 5;
            received[last] ^= 4;
            assert!(!complete(&mut received, headers, &mut identifier));
        }
        assert!(with_identification > 20, "{with_identification}");
    }
}
