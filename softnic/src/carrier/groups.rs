//! Sockets of multicast groups: the kernel delivers a copy of each datagram to each member on the machine, the sender included.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    event::epoll,
    net::{
        AddressFamily, SocketFlags, SocketType, bind, socket_with,
        sockopt::{set_ip_add_membership, set_socket_reuseaddr, set_socket_reuseport},
    },
};

use crate::wire::PORT;

/// The joined groups of an address.
#[derive(Debug)]
pub(super) struct Groups {
    sockets: Mutex<Vec<(Ipv4Addr, UdpSocket)>>,
    /// Whether a group is joined.
    is_member: AtomicBool,
    /// Readable while a datagram is pending at one of the sockets.
    pending: OwnedFd,
}

impl Groups {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            sockets: Mutex::default(),
            is_member: AtomicBool::new(false),
            pending: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Ipv4Addr, UdpSocket)>> {
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Descriptor that is readable while a datagram is pending.
    pub(super) fn pending(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }

    /// Joins and leaves groups, so that those in the list are joined, at the interface with the address.
    ///
    /// # Errors
    /// - A group cannot be joined: too many memberships or descriptors. The others are joined.
    pub(super) fn set(&self, local: Ipv4Addr, groups: &[Ipv4Addr]) -> io::Result<()> {
        let mut sockets = self.lock();
        // A dropped socket leaves its group.
        sockets.retain(|(group, _)| groups.contains(group));
        let mut result = Ok(());
        for group in groups {
            if sockets.iter().all(|(joined, _)| joined != group) {
                match self.join(local, *group) {
                    Ok(socket) => sockets.push((*group, socket)),
                    Err(error) => result = Err(error),
                }
            }
        }
        self.is_member.store(!sockets.is_empty(), Ordering::Relaxed);
        result
    }

    fn join(&self, local: Ipv4Addr, group: Ipv4Addr) -> io::Result<UdpSocket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)?;
        // Other members on the machine have sockets of the same port.
        set_socket_reuseaddr(&socket, true)?;
        set_socket_reuseport(&socket, true)?;
        bind(&socket, &SocketAddr::from((group, PORT)))?;
        set_ip_add_membership(&socket, &group, &local)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.pending, &socket, data, epoll::EventFlags::IN)?;
        Ok(socket.into())
    }

    /// Takes a datagram to a group: the result of `receive` for the first socket with one, and the group.
    pub(super) fn receive<T>(
        &self,
        mut receive: impl FnMut(&UdpSocket) -> Option<T>,
    ) -> Option<(T, Ipv4Addr)> {
        if !self.is_member.load(Ordering::Relaxed) {
            return None;
        }
        let sockets = self.lock();
        let mut received = sockets
            .iter()
            .filter_map(|(group, socket)| Some((receive(socket)?, *group)));
        received.next()
    }
}
