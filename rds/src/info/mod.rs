//! What a host tells of its sockets and connections: `RDS_INFO_*`, in the layouts of the kernel.
//!
//! [`Engine::info`](crate::Engine::info) is ours; [`Section::decode`] reads what the kernel's socket
//! options give.
//!
//! ```
//! use rds::info::{Section, Table};
//!
//! let mut element = [0; 40];
//! element[..9].copy_from_slice(b"send_pong");
//! element[32..].copy_from_slice(&7_u64.to_ne_bytes());
//! let Some(Table::Counters(counters)) = Section::Counters.decode(&element) else {
//!     unreachable!("it is one counter");
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

use crate::proto::wire::Reader;

/// Which addresses a section can tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressFamily {
    /// IPv4's, in 4 bytes. What has others is left out.
    V4,
    /// All, in 16 bytes.
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
            // It is left out before.
            (Self::V4, IpAddr::V6(_)) => to.extend([0; 4]),
            // No address has no family.
            (Self::V6, IpAddr::V4(Ipv4Addr::UNSPECIFIED)) => to.extend([0; 16]),
            (Self::V6, IpAddr::V4(ip)) => to.extend(ip.to_ipv6_mapped().octets()),
            (Self::V6, IpAddr::V6(ip)) => to.extend(ip.octets()),
        }
    }
}

/// One row of a table, of which there is one for each thing that it tells of.
trait Element: Sized {
    /// The number of bytes.
    fn size(family: AddressFamily) -> usize;
    /// Whether addresses of the family can say what it is about.
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
            let whole = element.len() == E::size(family);
            whole.then(|| E::read(family, &mut Reader::new(element)))?
        })
        .collect()
}

/// Text that ends where its place does, or at a zero.
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

/// What can be asked for: the socket options of the level `SOL_RDS` that only tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Section {
    /// `RDS_INFO_COUNTERS`.
    Counters,
    /// `RDS_INFO_CONNECTIONS` and `RDS6_INFO_CONNECTIONS`.
    Connections(AddressFamily),
    /// `RDS_INFO_SEND_MESSAGES` and `RDS6_INFO_SEND_MESSAGES`: not sent yet.
    SendMessages(AddressFamily),
    /// `RDS_INFO_RETRANS_MESSAGES` and `RDS6_INFO_RETRANS_MESSAGES`: sent, and not acknowledged.
    RetransMessages(AddressFamily),
    /// `RDS_INFO_RECV_MESSAGES` and `RDS6_INFO_RECV_MESSAGES`: not received by the program yet.
    RecvMessages(AddressFamily),
    /// `RDS_INFO_SOCKETS` and `RDS6_INFO_SOCKETS`.
    Sockets(AddressFamily),
    /// `RDS_INFO_IB_CONNECTIONS` and `RDS6_INFO_IB_CONNECTIONS`.
    DeviceConnections(AddressFamily),
}

impl Section {
    /// The section with the number of a socket option, if it is one that RDS over RDMA has.
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

    /// The number of bytes of one element.
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

    /// Reads what the socket option gives; `None` if the length is not that of whole elements.
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

/// What one section says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Table {
    /// Of [`Section::Counters`].
    Counters(Vec<Counter>),
    /// Of [`Section::Connections`].
    Connections(Vec<ConnectionInfo>),
    /// Of the three sections that are about messages.
    Messages(Vec<MessageInfo>),
    /// Of [`Section::Sockets`].
    Sockets(Vec<SocketInfo>),
    /// Of [`Section::DeviceConnections`].
    DeviceConnections(Vec<DeviceConnectionInfo>),
}

/// Everything that is to be told, at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// What has happened how often.
    pub counters: Vec<Counter>,
    /// The connections to other hosts.
    pub connections: Vec<ConnectionInfo>,
    /// Messages that have not been sent.
    pub sending: Vec<MessageInfo>,
    /// Messages that have been sent, and not acknowledged.
    pub unacknowledged: Vec<MessageInfo>,
    /// Messages that programs have not received.
    pub receiving: Vec<MessageInfo>,
    /// The sockets.
    pub sockets: Vec<SocketInfo>,
    /// What is below the connections.
    pub device_connections: Vec<DeviceConnectionInfo>,
}

impl Info {
    /// The bytes of a section, as the socket option gives them.
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

    /// How often something has happened, by the kernel's name for it.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let counter = self.counters.iter().find(|counter| counter.name == name);
        counter.map(|counter| counter.value)
    }
}

#[cfg(test)]
mod tests;
