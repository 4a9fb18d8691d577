//! The UDP socket behind the address of a datagram socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags,
        SocketAddrAny, SocketFlags, SocketType, bind, connect, connect_unspec, getsockname,
        recvmsg, sendmsg_addr, socket_with, sockopt,
    },
};

use crate::socket::Family;

/// A UDP socket of one address family.
#[derive(Debug)]
pub(super) struct Udp {
    fd: OwnedFd,
    family: Family,
}

fn plain(addr: SocketAddrAny) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(addr)?)
}

fn open(family: AddressFamily) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(family, SocketType::DGRAM, flags, None)?)
}

impl Udp {
    pub(super) fn keeps_fd(&self, fd: RawFd) -> bool {
        self.fd.as_raw_fd() == fd
    }

    pub(super) fn new(family: Family) -> io::Result<Self> {
        let address_family = match family {
            Family::V4 => AddressFamily::INET,
            Family::V6 => AddressFamily::INET6,
        };
        Ok(Self {
            fd: open(address_family)?,
            family,
        })
    }

    /// Converts an address to the socket's family for the kernel.
    fn to_kernel(&self, addr: SocketAddr) -> io::Result<SocketAddr> {
        match (self.family, addr) {
            (Family::V6, SocketAddr::V4(v4)) => {
                let mapped = v4.ip().to_ipv6_mapped();
                Ok(SocketAddrV6::new(mapped, v4.port(), 0, 0).into())
            }
            (Family::V4, SocketAddr::V6(_)) => {
                let reason = format!("{addr} is no address of IPv4, the family of the socket");
                Err(verbs::Error::from_io("connect", Errno::AFNOSUPPORT)
                    .detail(reason)
                    .into())
            }
            _ => Ok(addr),
        }
    }

    /// Whether an address is of a compatible family.
    pub(super) fn check(&self, peer: SocketAddr) -> io::Result<()> {
        self.to_kernel(peer).map(drop)
    }

    pub(super) fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        Ok(bind(&self.fd, &self.to_kernel(addr)?)?)
    }

    pub(super) fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        Ok(connect(&self.fd, &self.to_kernel(peer)?)?)
    }

    /// Clears the peer. The local port does not change.
    pub(super) fn disconnect(&self) -> io::Result<()> {
        let port = self.local_addr()?.port();
        connect_unspec(&self.fd)?;
        let mut addr = self.local_addr()?;
        if addr.port() != port {
            // The kernel unbinds an automatically chosen port.
            addr.set_port(port);
            bind(&self.fd, &addr)?;
        }
        Ok(())
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        plain(getsockname(&self.fd)?)
    }

    /// Duplicates the socket.
    pub(super) fn duplicate(&self) -> io::Result<UdpSocket> {
        Ok(self.fd.try_clone()?.into())
    }

    /// Returns the source address for packets to `peer`, chosen by the kernel's routing.
    pub(super) fn source_for(peer: SocketAddr) -> io::Result<IpAddr> {
        let family = match peer {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let probe = open(family)?;
        // Sends nothing.
        connect(&probe, &peer)?;
        Ok(plain(getsockname(&probe)?)?.ip().to_canonical())
    }

    /// Sends one datagram, without blocking.
    pub(super) fn send(&self, pieces: &[IoSlice<'_>], to: SocketAddr) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut control = SendAncillaryBuffer::default();
        let to = self.to_kernel(to)?;
        Ok(sendmsg_addr(&self.fd, &to, pieces, &mut control, flags)?)
    }

    /// Whether there is room for a datagram.
    pub(super) fn is_writable(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    /// Receives a datagram without blocking. Returns its full length, even if truncated.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let mut control = RecvAncillaryBuffer::default();
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let mut buffers = [IoSliceMut::new(buffer)];
        let received = recvmsg(&self.fd, &mut buffers, &mut control, flags)?;
        let from = received.address.ok_or(Errno::INVAL)?;
        Ok((received.bytes, plain(from)?))
    }

    pub(super) fn set_reuse_addr(&self, reuse: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_reuseaddr(&self.fd, reuse)?)
    }

    pub(super) fn set_v6_only(&self, only: bool) -> io::Result<()> {
        Ok(sockopt::set_ipv6_v6only(&self.fd, only)?)
    }

    pub(super) fn set_tos(&self, tos: u8) -> io::Result<()> {
        match self.family {
            Family::V4 => Ok(sockopt::set_ip_tos(&self.fd, tos)?),
            Family::V6 => Ok(sockopt::set_ipv6_tclass(&self.fd, tos.into())?),
        }
    }

    /// Converts an address to the program's view: an IPv6 socket maps IPv4 addresses.
    pub(super) fn to_program(&self, addr: SocketAddr) -> SocketAddr {
        self.to_kernel(addr).unwrap_or(addr)
    }

    /// Returns the wildcard address of the family.
    pub(super) fn any(&self) -> SocketAddr {
        match self.family {
            Family::V4 => ([0; 4], 0).into(),
            Family::V6 => (Ipv6Addr::UNSPECIFIED, 0).into(),
        }
    }
}

impl AsFd for Udp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
