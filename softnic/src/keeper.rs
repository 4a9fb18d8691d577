//! Messages between the programs at an address and the address's keeper, a process of the command `softnic`.
//!
//! The keeper binds a group of sockets to the address's UDP port, one for each slot, and hands each program the socket of a slot.
//! The kernel delivers a frame by the slot in the number of the destination's queue pair. Datagrams to queue pair 1, slot 0,
//! are the keeper's: it forwards each to a program, by service id or communication id. Frames of other queue pairs never pass
//! through the keeper.
//!
//! A program and the keeper are connected by a socket of datagrams in order (`SOCK_SEQPACKET`), which ends with either process.
//!
//! If the keeper is killed, its programs start another one and return to their slots. The sockets of the group are in a *vault*
//! meanwhile, a pair of sockets whose unread messages have a copy of each; every program has the vault. So no socket of the
//! group is closed, after which the kernel would renumber the others, and datagrams to queue pair 1 wait for the next keeper.
#![forbid(unsafe_code)]

use std::{
    io::{self, IoSlice},
    net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket},
    ops::RangeInclusive,
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with,
    sockopt::{
        Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ip_multicast_if,
        set_ipv6_mtu_discover, set_socket_recv_buffer_size, set_socket_reuseport,
        set_socket_send_buffer_size,
    },
};

use crate::{
    Fabric,
    abi::{self, use_frames_of_ipv6},
    wire::PORT,
};

/// Slots of programs. Slot 0 is the keeper's, and slot 255 that of numbers of multicast groups.
pub const SLOTS: RangeInclusive<u8> = 1..=254;

/// Maximum length of a message in bytes: a forwarded datagram with its sender.
pub const MAX_MESSAGE: usize = 512;

/// Requested length of the kernel's buffers, in bytes. The kernel grants up to `net.core.rmem_max` and `wmem_max`.
const BUFFER: usize = 8 << 20;

/// The files below `/sys/class` of the device at an address, each with its text: the values of `ibv_query_device(3)` and
/// similar functions, the network interface of the address, and `node` as the number of the device's node.
#[must_use]
pub fn sysfs_files(addr: IpAddr, node: &str) -> Vec<(String, String)> {
    Fabric::sysfs_files(addr, node)
}

/// Opens a socket at the port of `RoCEv2` of an address. Over IPv4, its frames have identification 0 and the flag DF, as the ICRC
/// covers them. Sockets of a keeper share the port.
///
/// # Errors
/// - [`io::ErrorKind::AddrInUse`]: another process, or the kernel's driver `rdma_rxe`, has the port.
/// - [`io::ErrorKind::AddrNotAvailable`]: the machine does not have the address.
pub fn open_port(addr: IpAddr, is_shared: bool) -> io::Result<UdpSocket> {
    let family = match addr {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = UdpSocket::from(socket_with(family, SocketType::DGRAM, flags, None)?);
    set_socket_reuseport(&socket, is_shared)?;
    bind(&socket, &SocketAddr::new(addr, PORT))?;
    match addr {
        IpAddr::V4(addr) => {
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?;
            set_ip_multicast_if(&socket, &addr)?;
        }
        IpAddr::V6(_) => {
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?;
            use_frames_of_ipv6(&socket)?;
        }
    }
    // With less than requested, more frames are lost and sent again.
    let _granted = set_socket_recv_buffer_size(&socket, BUFFER);
    let _granted = set_socket_send_buffer_size(&socket, BUFFER);
    Ok(socket)
}

/// Whether the kernel sends several frames by one call, from an address. Otherwise, each frame takes a call.
///
/// # Errors
/// - The machine does not have the address.
pub fn sends_batches(addr: IpAddr) -> io::Result<bool> {
    let socket = UdpSocket::bind((addr, 0))?;
    let frames = [IoSlice::new(&[0; 2]), IoSlice::new(&[0; 2])];
    Ok(abi::send_segments(&socket, socket.local_addr()?, &frames, 2).is_ok())
}

/// The name at which the keeper of an address accepts programs, without a file.
///
/// # Errors
/// None for the names of addresses, which are short.
pub fn name(addr: IpAddr) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new_abstract_name(
        format!("softnic {addr}").as_bytes(),
    )?)
}

/// The keeper's first message to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Welcome {
    /// The program has a slot. Four descriptors come with the message: the slot's UDP socket, a socket of datagrams with
    /// [`Forwarded`], and the two sockets of the vault, first the one to which messages are written.
    Slot(u8),
    /// The program has none, for an error number.
    Refused(i32),
}

impl Welcome {
    /// Bytes of the message.
    pub fn encode(self) -> Vec<u8> {
        match self {
            Self::Slot(slot) => vec![0, slot],
            Self::Refused(errno) => [&[1], &errno.to_be_bytes()[..]].concat(),
        }
    }

    /// `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes {
            [0, slot] => Some(Self::Slot(*slot)),
            [1, errno @ ..] => Some(Self::Refused(i32::from_be_bytes(errno.try_into().ok()?))),
            _ => None,
        }
    }
}

/// A program's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperRequest {
    /// Takes a service id, for a port of `rdma_cm`. The keeper answers with a byte: 1, or 0 if another program has the service
    /// id. Programs that all share a service id can have it together.
    Claim {
        /// The service id.
        service: u64,
        /// Whether other programs may have the service id too.
        is_shared: bool,
    },
    /// Gives a service id up. No answer.
    Release(u64),
    /// Sets or removes the datagram that the keeper sends when the program has ended. No answer.
    SetWill(u32, Option<Will>),
    /// The first request of a program, without a slot. The keeper answers with [`Welcome`].
    Join,
    /// The first request of a program to a later keeper, with the slot of the program. The two descriptors of the vault come
    /// with the message. The keeper answers with [`Welcome`].
    Return(u8),
}

/// A datagram to be sent after the end of a program: the message by which its connection ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    /// Address of the receiver.
    pub to: IpAddr,
    /// The frame without its IP and UDP headers.
    pub datagram: Vec<u8>,
}

impl KeeperRequest {
    /// Bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Claim { service, is_shared } => {
                [&[0, u8::from(*is_shared)], &service.to_be_bytes()[..]].concat()
            }
            Self::Release(service) => [&[1], &service.to_be_bytes()[..]].concat(),
            Self::SetWill(id, None) => [&[2], &id.to_be_bytes()[..]].concat(),
            Self::SetWill(id, Some(will)) => [
                &[3],
                &id.to_be_bytes()[..],
                &octets(will.to),
                &will.datagram,
            ]
            .concat(),
            Self::Join => vec![4],
            Self::Return(slot) => vec![5, *slot],
        }
    }

    /// `None` for other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, bytes) = bytes.split_first()?;
        match kind {
            0 => {
                let (shared, service) = bytes.split_first()?;
                Some(Self::Claim {
                    service: u64::from_be_bytes(service.try_into().ok()?),
                    is_shared: *shared != 0,
                })
            }
            1 => Some(Self::Release(u64::from_be_bytes(bytes.try_into().ok()?))),
            2 => Some(Self::SetWill(
                u32::from_be_bytes(bytes.try_into().ok()?),
                None,
            )),
            3 => {
                let (id, bytes) = bytes.split_first_chunk()?;
                let (to, datagram) = bytes.split_first_chunk()?;
                let will = Will {
                    to: addr(*to),
                    datagram: datagram.to_vec(),
                };
                Some(Self::SetWill(u32::from_be_bytes(*id), Some(will)))
            }
            4 => Some(Self::Join),
            5 => Some(Self::Return(*bytes.first()?)),
            _ => None,
        }
    }
}

/// A datagram to queue pair 1, forwarded to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forwarded<'a> {
    /// The sender.
    pub from: SocketAddr,
    /// The frame without its IP and UDP headers.
    pub datagram: &'a [u8],
}

impl<'a> Forwarded<'a> {
    /// Bytes of the message.
    pub fn encode(&self) -> Vec<u8> {
        [
            &octets(self.from.ip())[..],
            &self.from.port().to_be_bytes(),
            self.datagram,
        ]
        .concat()
    }

    /// `None` for other bytes.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (ip, bytes) = bytes.split_first_chunk()?;
        let (port, datagram) = bytes.split_first_chunk()?;
        Some(Self {
            from: SocketAddr::new(addr(*ip), u16::from_be_bytes(*port)),
            datagram,
        })
    }
}

/// An address in 16 bytes.
fn octets(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(addr) => addr.to_ipv6_mapped().octets(),
        IpAddr::V6(addr) => addr.octets(),
    }
}

fn addr(octets: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(octets).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_encoded_and_shorter_ones_refused() {
        let will = Will {
            to: "10.0.0.1".parse().unwrap(),
            datagram: vec![7; 280],
        };
        for request in [
            KeeperRequest::Claim {
                service: 0x0106_1d2f,
                is_shared: true,
            },
            KeeperRequest::Release(u64::MAX),
            KeeperRequest::SetWill(9, None),
            KeeperRequest::SetWill(9, Some(will)),
        ] {
            let bytes = request.encode();
            assert!(bytes.len() <= MAX_MESSAGE);
            assert_eq!(KeeperRequest::decode(&bytes), Some(request));
            assert_eq!(KeeperRequest::decode(&bytes[..4]), None);
        }
        for request in [KeeperRequest::Join, KeeperRequest::Return(254)] {
            assert_eq!(KeeperRequest::decode(&request.encode()), Some(request));
        }
        assert_eq!(KeeperRequest::decode(&[5]), None);
        for welcome in [Welcome::Slot(254), Welcome::Refused(98)] {
            assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
        }
        assert_eq!(Welcome::decode(&[1, 0]), None);
        for from in ["10.0.0.1:4791", "[fd00::1]:9"] {
            let forwarded = Forwarded {
                from: from.parse().unwrap(),
                datagram: &[3; 284],
            };
            let bytes = forwarded.encode();
            assert_eq!(Forwarded::decode(&bytes), Some(forwarded));
            assert_eq!(Forwarded::decode(&bytes[..17]), None);
        }
    }
}
