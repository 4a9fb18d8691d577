//! `RDS_INFO_*`: sockets, connections and counters of a host, in the layouts of the kernel.
//!
//! [`Node::info`](crate::node::Node::info) returns the tables of a node, and [`Section::decode`]
//! decodes the kernel's socket options. The crate `rds` re-exports this module as `rds::info`; its
//! `Engine::info` returns the tables of an engine.
//!
//! ```
//! use rds_proto::info::{Section, Table};
//!
//! let mut element = [0; 40];
//! element[..9].copy_from_slice(b"send_pong");
//! element[32..].copy_from_slice(&7_u64.to_ne_bytes());
//! let Some(Table::Counters(counters)) = Section::Counters.decode(&element) else {
//!     unreachable!("the section has counters");
//! };
//! assert_eq!((counters[0].name.as_str(), counters[0].value), ("send_pong", 7));
//! ```

mod connection;
mod counter;
mod device;
mod message;
mod socket;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use connection::{ConnectionFlags, ConnectionInfo};
pub use counter::Counter;
pub use device::DeviceConnectionInfo;
pub use message::{MessageFlags, MessageInfo};
pub use socket::SocketInfo;

use crate::wire::Reader;

/// Address layout of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    /// IPv4 addresses in 4 bytes. Entries with other addresses are omitted.
    V4,
    /// All addresses, in 16 bytes.
    V6,
}

impl AddressFamily {
    fn holds(self, ip: IpAddr) -> bool {
        self == Self::V6 || ip.is_ipv4()
    }

    fn read(self, reader: &mut Reader<'_>) -> Option<IpAddr> {
        match self {
            Self::V4 => reader.bytes::<4>().map(|ip| Ipv4Addr::from(ip).into()),
            Self::V6 => {
                let ip = Ipv6Addr::from(reader.bytes::<16>()?);
                Some(match ip.to_ipv4_mapped() {
                    Some(ip) => ip.into(),
                    None => ip.into(),
                })
            }
        }
    }

    fn write(self, ip: IpAddr, to: &mut Vec<u8>) {
        match (self, ip) {
            (Self::V4, IpAddr::V4(ip)) => to.extend(ip.octets()),
            // Filtered by the caller.
            (Self::V4, IpAddr::V6(_)) => to.extend([0; 4]),
            // The unspecified address has no family.
            (Self::V6, IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => to.extend([0; 16]),
            (Self::V6, IpAddr::V4(ip)) => to.extend(ip.to_ipv6_mapped().octets()),
            (Self::V6, IpAddr::V6(ip)) => to.extend(ip.octets()),
        }
    }
}

/// An element of a section's array.
trait Element: Sized {
    /// Size in bytes.
    fn size(family: AddressFamily) -> usize;
    /// Whether the family can represent the addresses.
    fn fits(&self, family: AddressFamily) -> bool;
    fn write(&self, family: AddressFamily, to: &mut Vec<u8>);
    fn read(family: AddressFamily, reader: &mut Reader<'_>) -> Option<Self>;
}

fn encode<E: Element>(family: AddressFamily, elements: &[E]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(elements.len() * E::size(family));
    let elements = elements.iter().filter(|element| element.fits(family));
    elements.for_each(|element| element.write(family, &mut bytes));
    bytes
}

fn decode<E: Element>(family: AddressFamily, bytes: &[u8]) -> Option<Vec<E>> {
    let elements = bytes.chunks(E::size(family));
    elements
        .map(|element| {
            let is_complete = element.len() == E::size(family);
            is_complete.then(|| E::read(family, &mut Reader::new(element)))?
        })
        .collect()
}

/// Text, terminated by a zero or the end of the field.
fn text<const N: usize>(reader: &mut Reader<'_>) -> Option<String> {
    let bytes: [u8; N] = reader.bytes()?;
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(N);
    Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
}

fn write_text<const N: usize>(text: &str, to: &mut Vec<u8>) {
    let mut bytes = [0; N];
    let len = text.len().min(N - 1);
    bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
    to.extend(bytes);
}

/// A section: a read-only socket option of level `SOL_RDS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Section {
    /// `RDS_INFO_COUNTERS`.
    Counters,
    /// `RDS_INFO_CONNECTIONS` and `RDS6_INFO_CONNECTIONS`.
    Connections(AddressFamily),
    /// `RDS_INFO_SEND_MESSAGES` and `RDS6_INFO_SEND_MESSAGES`: unsent messages.
    SendMessages(AddressFamily),
    /// `RDS_INFO_RETRANS_MESSAGES` and `RDS6_INFO_RETRANS_MESSAGES`: unacknowledged messages.
    RetransMessages(AddressFamily),
    /// `RDS_INFO_RECV_MESSAGES` and `RDS6_INFO_RECV_MESSAGES`: messages in receive queues.
    RecvMessages(AddressFamily),
    /// `RDS_INFO_SOCKETS` and `RDS6_INFO_SOCKETS`.
    Sockets(AddressFamily),
    /// `RDS_INFO_IB_CONNECTIONS` and `RDS6_INFO_IB_CONNECTIONS`.
    DeviceConnections(AddressFamily),
}

impl Section {
    /// The section of a socket option, if supported by RDS over RDMA.
    pub fn from_option(option: i32) -> Option<Self> {
        use AddressFamily::{V4, V6};
        Some(match option {
            10000 => Self::Counters,
            10001 => Self::Connections(V4),
            10003 => Self::SendMessages(V4),
            10004 => Self::RetransMessages(V4),
            10005 => Self::RecvMessages(V4),
            10006 => Self::Sockets(V4),
            10008 => Self::DeviceConnections(V4),
            10011 => Self::Connections(V6),
            10012 => Self::SendMessages(V6),
            10013 => Self::RetransMessages(V6),
            10014 => Self::RecvMessages(V6),
            10015 => Self::Sockets(V6),
            10017 => Self::DeviceConnections(V6),
            _ => return None,
        })
    }

    /// Size of an element in bytes.
    pub fn element_size(self) -> usize {
        match self {
            Self::Counters => Counter::size(AddressFamily::V4),
            Self::Connections(family) => ConnectionInfo::size(family),
            Self::SendMessages(family)
            | Self::RetransMessages(family)
            | Self::RecvMessages(family) => MessageInfo::size(family),
            Self::Sockets(family) => SocketInfo::size(family),
            Self::DeviceConnections(family) => DeviceConnectionInfo::size(family),
        }
    }

    /// Decodes the value of a socket option; `None` for a partial element.
    pub fn decode(self, bytes: &[u8]) -> Option<Table> {
        Some(match self {
            Self::Counters => Table::Counters(decode(AddressFamily::V4, bytes)?),
            Self::Connections(family) => Table::Connections(decode(family, bytes)?),
            Self::SendMessages(family)
            | Self::RetransMessages(family)
            | Self::RecvMessages(family) => Table::Messages(decode(family, bytes)?),
            Self::Sockets(family) => Table::Sockets(decode(family, bytes)?),
            Self::DeviceConnections(family) => Table::DeviceConnections(decode(family, bytes)?),
        })
    }
}

/// Decoded elements of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    /// From [`Section::Counters`].
    Counters(Vec<Counter>),
    /// From [`Section::Connections`].
    Connections(Vec<ConnectionInfo>),
    /// From the three sections of messages.
    Messages(Vec<MessageInfo>),
    /// From [`Section::Sockets`].
    Sockets(Vec<SocketInfo>),
    /// From [`Section::DeviceConnections`].
    DeviceConnections(Vec<DeviceConnectionInfo>),
}

/// A snapshot of all sections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// Statistics counters.
    pub counters: Vec<Counter>,
    /// Connections to other hosts.
    pub connections: Vec<ConnectionInfo>,
    /// Unsent messages.
    pub sending: Vec<MessageInfo>,
    /// Unacknowledged messages.
    pub unacknowledged: Vec<MessageInfo>,
    /// Messages in receive queues.
    pub receiving: Vec<MessageInfo>,
    /// Sockets.
    pub sockets: Vec<SocketInfo>,
    /// Device parts of the connections.
    pub device_connections: Vec<DeviceConnectionInfo>,
}

impl Info {
    /// Encodes a section as the value of its socket option.
    pub fn encode(&self, section: Section) -> Vec<u8> {
        match section {
            Section::Counters => encode(AddressFamily::V4, &self.counters),
            Section::Connections(family) => encode(family, &self.connections),
            Section::SendMessages(family) => encode(family, &self.sending),
            Section::RetransMessages(family) => encode(family, &self.unacknowledged),
            Section::RecvMessages(family) => encode(family, &self.receiving),
            Section::Sockets(family) => encode(family, &self.sockets),
            Section::DeviceConnections(family) => encode(family, &self.device_connections),
        }
    }

    /// The value of a counter, by its kernel name.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let counter = self.counters.iter().find(|counter| counter.name == name);
        counter.map(|counter| counter.value)
    }
}

#[cfg(test)]
mod tests;
