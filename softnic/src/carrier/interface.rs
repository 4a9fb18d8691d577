//! The network interface with an address, as the kernel reports it by netlink (`rtnetlink(7)`).

use std::{
    ffi::CStr,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::OwnedFd,
};

use rustix::{
    io::retry_on_intr,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind,
        netlink::SocketAddrNetlink, recv, send, socket_with,
    },
};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) index: u32,
    pub(crate) name: String,
    /// Maximum length of an IP packet, in bytes.
    pub(crate) mtu: u32,
    /// Whether the interface is up and has a carrier.
    pub(crate) has_link: bool,
}

impl Interface {
    /// The interface with an address, or with the network of a loopback address; `None` without one.
    ///
    /// # Errors
    /// - The system has no netlink, or no descriptors are left.
    pub(crate) fn of(addr: IpAddr) -> io::Result<Option<Self>> {
        let addresses = dump(libc::RTM_GETADDR)?;
        let addresses: Vec<_> = addresses
            .iter()
            .filter_map(|of| Address::decode(of))
            .collect();
        let exact = addresses.iter().find(|of| of.addr == addr);
        let within = || {
            let mut addresses = addresses.iter().filter(|_| addr.is_loopback());
            addresses.find(|of| of.has_in_network(addr))
        };
        let found = exact.or_else(within);
        match found.map(|of| of.interface) {
            Some(index) => Self::at(index),
            None => Ok(None),
        }
    }

    /// The interface with an index, if it still exists.
    ///
    /// # Errors
    /// As for [`of`](Self::of).
    pub(crate) fn at(index: u32) -> io::Result<Option<Self>> {
        let links = dump(libc::RTM_GETLINK)?;
        let mut links = links.iter().filter_map(|link| Self::decode(index, link));
        Ok(links.next())
    }

    /// A socket that is readable after changes of interfaces and addresses.
    pub(super) fn changes() -> io::Result<OwnedFd> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let socket = open(SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrNetlink::new(0, groups.cast_unsigned()))?;
        Ok(socket)
    }

    /// The interface of a message `RTM_NEWLINK`, if it has the index.
    fn decode(index: u32, message: &[u8]) -> Option<Self> {
        let (header, attributes) = message.split_first_chunk::<16>()?;
        if u32_at(header, 4)? != index {
            return None;
        }
        let link = u32::try_from(libc::IFF_LOWER_UP).ok()?;
        let name = attribute(attributes, libc::IFLA_IFNAME)?;
        let name = CStr::from_bytes_until_nul(name).ok()?;
        Some(Self {
            index,
            name: name.to_string_lossy().into_owned(),
            mtu: u32_at(attribute(attributes, libc::IFLA_MTU)?, 0)?,
            has_link: u32_at(header, 8)? & link != 0,
        })
    }
}

/// An address of an interface.
struct Address {
    addr: IpAddr,
    /// Length of the network's prefix, in bits.
    prefix: u32,
    /// Index of the interface.
    interface: u32,
}

impl Address {
    /// The address of a message `RTM_NEWADDR`.
    fn decode(message: &[u8]) -> Option<Self> {
        let (header, attributes) = message.split_first_chunk::<8>()?;
        // Of a point-to-point interface, `IFA_ADDRESS` is the peer's.
        let local = attribute(attributes, libc::IFA_LOCAL);
        let bytes = local.or_else(|| attribute(attributes, libc::IFA_ADDRESS))?;
        let v4 = <[u8; 4]>::try_from(bytes).map(|octets| Ipv4Addr::from(octets).into());
        let v6 = || <[u8; 16]>::try_from(bytes).map(|octets| Ipv6Addr::from(octets).into());
        Some(Self {
            addr: v4.or_else(|_| v6()).ok()?,
            prefix: header.get(1).copied()?.into(),
            interface: u32_at(header, 4)?,
        })
    }

    /// Whether an address is in the network.
    fn has_in_network(&self, addr: IpAddr) -> bool {
        let differing = match (self.addr, addr) {
            (IpAddr::V4(ours), IpAddr::V4(addr)) => {
                (ours.to_bits() ^ addr.to_bits()).leading_zeros()
            }
            (IpAddr::V6(ours), IpAddr::V6(addr)) => {
                (ours.to_bits() ^ addr.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        differing >= self.prefix
    }
}

/// The messages that answer a request for all objects of a kind, without their headers. The kernel marks a dump during which
/// objects have changed, and which may lack some; it is repeated.
fn dump(kind: u16) -> io::Result<Vec<Vec<u8>>> {
    /// Maximum number of repetitions. A later change is reported by [`Interface::changes`].
    const MAX_REPEATS: u32 = 16;
    let socket = open(SocketFlags::empty())?;
    for _ in 0..MAX_REPEATS {
        let (found, is_interrupted) = dump_once(&socket, kind)?;
        if !is_interrupted {
            return Ok(found);
        }
    }
    Ok(dump_once(&socket, kind)?.0)
}

/// The messages of one dump, and whether the kernel has marked it as interrupted by a change.
fn dump_once(socket: &OwnedFd, kind: u16) -> io::Result<(Vec<Vec<u8>>, bool)> {
    /// Maximum length of a part of the kernel's answer, in bytes.
    const PART: usize = 32 << 10;
    retry_on_intr(|| send(socket, &request(kind), SendFlags::empty()))?;
    let (mut found, mut is_interrupted) = (Vec::new(), false);
    let mut part = vec![0; PART];
    loop {
        let (len, _) = retry_on_intr(|| recv(socket, &mut *part, RecvFlags::empty()))?;
        for message in messages(part.get(..len).unwrap_or_default()) {
            is_interrupted |= message.is_interrupted();
            match message.kind.into() {
                libc::NLMSG_DONE => return Ok((found, is_interrupted)),
                libc::NLMSG_ERROR => {
                    let errno = u32_at(message.content, 0).unwrap_or(0).cast_signed();
                    return Err(io::Error::from_raw_os_error(errno.saturating_neg()));
                }
                _ => found.push(message.content.to_vec()),
            }
        }
    }
}

/// Opens a socket of the default protocol, `NETLINK_ROUTE`.
fn open(flags: SocketFlags) -> io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    Ok(socket)
}

/// A request for all objects of a kind: a message's header, and the 16 zero bytes of the longest header of an object.
fn request(kind: u16) -> [u8; 32] {
    let flags = u16::try_from(libc::NLM_F_REQUEST | libc::NLM_F_DUMP).unwrap_or(0);
    let mut request = [0; 32];
    let [length, kind_and_flags, ..] = request.as_chunks_mut().0 else {
        return request;
    };
    *length = 32_u32.to_ne_bytes();
    let [[a, b], [c, d]] = [kind, flags].map(u16::to_ne_bytes);
    *kind_and_flags = [a, b, c, d];
    request
}

/// A message of netlink.
struct Message<'a> {
    kind: u16,
    flags: u16,
    content: &'a [u8],
}

impl Message<'_> {
    /// Whether the message is of a dump during which the objects have changed.
    fn is_interrupted(&self) -> bool {
        i32::from(self.flags) & libc::NLM_F_DUMP_INTR != 0
    }
}

/// The messages of a part of an answer.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
        let message = Message {
            kind: u16_at(bytes, 4)?,
            flags: u16_at(bytes, 6)?,
            content: bytes.get(16..len)?,
        };
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    })
}

/// The value of an attribute.
fn attribute(mut bytes: &[u8], kind: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(4..len)?;
        if u16_at(bytes, 2)? == kind {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_ne_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(addr: &str) -> Option<Interface> {
        Interface::of(addr.parse().unwrap()).unwrap()
    }

    #[test]
    fn loopback_addresses_are_of_one_interface() {
        let loopback = interface("127.0.0.1").unwrap();
        assert_eq!(loopback.name, "lo");
        let mtu = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(loopback.mtu.to_string(), mtu.trim_end());
        for addr in ["127.5.1.4", "::1"] {
            assert_eq!(interface(addr).as_ref(), Some(&loopback), "{addr}");
        }
        assert_eq!(interface("203.0.113.9"), None);
    }

    #[test]
    fn dump_with_a_marked_message_is_interrupted() {
        let mut message = request(7);
        let is_interrupted = |message: &[u8]| messages(message).any(|of| of.is_interrupted());
        assert!(!is_interrupted(&message));
        message[6] |= 0x10;
        assert!(is_interrupted(&message));
    }

    #[test]
    fn cut_messages_are_skipped() {
        let mut message = request(7).to_vec();
        assert_eq!(messages(&message).count(), 1);
        message.truncate(31);
        assert_eq!(messages(&message).count(), 0);
        // A length shorter than the header.
        assert_eq!(messages(&[4, 0, 0, 0, 1, 0, 0, 0]).count(), 0);
        assert_eq!(attribute(&[8, 0, 1, 0, 7, 7, 7], 1), None);
        assert_eq!(attribute(&[0, 0, 1, 0], 1), None);
        assert_eq!(attribute(&[6, 0, 1, 0, 7, 7, 0, 0], 2), None);
        assert_eq!(attribute(&[6, 0, 1, 0, 7, 7], 1), Some(&[7, 7][..]));
    }
}
