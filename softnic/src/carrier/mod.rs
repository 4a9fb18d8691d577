//! `RoCEv2` frames over a UDP socket of the system, to other processes and machines, as an ordinary user.
//!
//! A frame without its IP and UDP headers is a datagram from and to port 4791. The kernel writes the headers, some of whose
//! fields are covered by the ICRC: an unconnected socket that forbids fragmentation sends IPv4's identification 0 and the
//! flag DF, as the engine's frames have. The source port is the socket's. Fields that the kernel chooses, such as the time
//! to live, are not covered. Linux's rxe sends other identifications, found by the ICRC.
//!
//! Received bytes are hostile: each datagram has a maximum length, and is a frame only if its ICRC is right. Received
//! datagrams wait in the kernel's buffer of the socket alone, which has a limit in bytes; further ones are lost, as on any
//! network.
#![forbid(unsafe_code)]

mod groups;
mod headers;
mod interface;
mod keeper;
mod socket;

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::Arc,
};

use headers::Headers;
pub(crate) use interface::Interface;
pub(crate) use keeper::{KeeperLink, PortSlot};
use socket::Management;
pub(crate) use socket::{Link, Readiness};

use crate::{
    keeper::Will,
    wire::{Frame, Identifier, PORT, WireError},
};

/// Maximum length of a datagram: a payload of 4096 bytes with the longest headers, an ICRC, and some more.
const MAX_DATAGRAM: usize = 4096 + 256;

/// The socket of one address, and its buffers.
#[derive(Debug)]
pub(crate) struct Carrier {
    local: IpAddr,
    /// Index of the last interface with the address.
    interface: Option<u32>,
    link: Arc<Link>,
    /// The packet being received: the headers, followed by the datagram.
    received: Vec<u8>,
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
        Self {
            local,
            interface: None,
            link: Arc::new(link),
            received: Vec::new(),
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

    /// Headers of a frame as they leave the socket.
    pub(crate) fn outgoing<'a>(frame: &Frame<'a>) -> Frame<'a> {
        Frame {
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

    /// Sends an IP packet. Returns false if the packet is lost: the socket's buffer is full, or the system has no route.
    pub(crate) fn send(&mut self, to: IpAddr, packet: &[u8]) -> bool {
        let Some(datagram) = packet.get(Headers::len(self.local)..) else {
            return false;
        };
        self.link.send(to, datagram)
    }

    /// Takes the next datagram, as an IP packet; `None` if no datagram is pending. Datagrams that are no frames of any peer
    /// are skipped, up to a number, so that a call ends.
    pub(crate) fn receive(&mut self) -> Option<&[u8]> {
        /// Maximum number of skipped datagrams.
        const MAX_SKIPPED: u32 = 64;
        let start = Headers::len(self.local);
        for _ in 0..MAX_SKIPPED {
            self.received.resize(start + MAX_DATAGRAM, 0);
            let (len, from, group) = self.link.receive(self.received.get_mut(start..)?)?;
            let dst = group.map_or(self.local, IpAddr::V4);
            if self.complete(start + len, from, dst) {
                return self.received.get(..start + len);
            }
        }
        None
    }

    /// Takes the next datagram forwarded by the keeper. Datagrams that are no frames are skipped.
    pub(crate) fn receive_forwarded(&mut self) -> Forward<'_> {
        let start = Headers::len(self.local);
        loop {
            self.received.resize(start + MAX_DATAGRAM, 0);
            let datagram = self.received.get_mut(start..).unwrap_or_default();
            let (len, from) = match self.link.receive_management(datagram) {
                Management::Datagram(len, from) => (len, from),
                Management::Nothing => return Forward::Nothing,
                Management::Ended => return Forward::Ended,
            };
            if self.complete(start + len, from, self.local) {
                let packet = self.received.get(..start + len);
                return packet.map_or(Forward::Nothing, Forward::Packet);
            }
        }
    }

    /// Writes the headers in front of a received datagram. Returns false if the packet is no frame, or was longer than the
    /// buffer.
    fn complete(&mut self, len: usize, from: SocketAddr, dst: IpAddr) -> bool {
        let headers = Headers {
            src: from.ip(),
            src_port: from.port(),
            dst,
            identification: 0,
            dont_fragment: true,
        };
        let packet = self.received.get_mut(..len);
        packet.is_some_and(|packet| complete(packet, headers, &mut self.identifier))
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
    let found = found.map(|(identification, dont_fragment)| Headers {
        identification,
        dont_fragment,
        ..headers
    });
    found.is_some_and(|headers| headers.write(packet).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

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
                crate::wire::IpHeader::V4 {
                    identification,
                    dont_fragment,
                    ..
                } => Some((identification, dont_fragment)),
                crate::wire::IpHeader::V6 { .. } => None,
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
