//! The UDP socket: options, datagrams, and waiting.

use std::{
    io::{self, IoSlice},
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
    net::{RecvFlags, recv, sockopt::socket_recv_buffer_size},
};

use super::{groups::Groups, interface::Interface};
use crate::{
    abi::{self, Received},
    keeper::{Forwarded, MAX_MESSAGE, open_port},
    wire::PORT,
};

/// A bound socket, shared by the calls of the program and the receiving thread.
#[derive(Debug)]
pub(crate) struct Link {
    socket: UdpSocket,
    /// Datagrams to queue pair 1, forwarded by the keeper of the address, if it has one. Locked by the receiving thread, and
    /// while a later keeper's takes its place.
    management: Option<Arc<Mutex<OwnedFd>>>,
    groups: Groups,
    /// Readable after changes of the system's interfaces; `None` if the system reports none.
    changes: Option<OwnedFd>,
    /// Readable once the link is closed.
    closed: OwnedFd,
    /// Number of calls of the program that have looked for datagrams, modulo 2^32.
    polls: AtomicU32,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Datagrams are pending at the socket.
    Readable,
    /// Datagrams from the keeper are pending, or the keeper has ended.
    Management,
    /// An interface or an address of the system has changed.
    Interface,
    Closed,
}

/// The system refuses to send several datagrams by one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused;

/// Result of a look for a datagram from the keeper.
pub(super) enum Management {
    /// Length of the datagram, and the sender.
    Datagram(usize, SocketAddr),
    Nothing,
    /// The keeper has ended.
    Ended,
}

impl Link {
    /// Binds the port of `RoCEv2` at an address.
    pub(super) fn bind(local: IpAddr) -> io::Result<Self> {
        Self::new(open_port(local, false)?, None)
    }

    pub(super) fn new(
        socket: UdpSocket,
        management: Option<Arc<Mutex<OwnedFd>>>,
    ) -> io::Result<Self> {
        Ok(Self {
            socket,
            management,
            groups: Groups::new()?,
            changes: Interface::changes().ok(),
            closed: eventfd(0, EventfdFlags::CLOEXEC)?,
            polls: AtomicU32::new(0),
        })
    }

    /// Sends a datagram to the port of `RoCEv2` of a peer, without waiting. Returns false if the datagram is lost.
    pub(super) fn send(&self, to: IpAddr, datagram: &[u8]) -> bool {
        let to = SocketAddr::new(to, PORT);
        // An earlier datagram's error, such as a closed port of another peer, may be reported by the first call.
        (0..2).any(|_| self.socket.send_to(datagram, to).is_ok())
    }

    /// Sends datagrams by one call, each of `size` bytes but for a shorter last one, as by [`send`](Self::send). Returns false if
    /// all are lost.
    ///
    /// # Errors
    /// - [`Refused`]: the kernel or the interface sends only single datagrams, or none of this size.
    pub(super) fn send_segments(
        &self,
        to: IpAddr,
        datagrams: &[IoSlice<'_>],
        size: u16,
    ) -> Result<bool, Refused> {
        let to = SocketAddr::new(to, PORT);
        for _ in 0..2 {
            let sent = abi::send_segments(&self.socket, to, datagrams, size);
            match sent.map_err(|error| error.raw_os_error()) {
                Ok(()) => return Ok(true),
                Err(Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP)) => {
                    return Err(Refused);
                }
                Err(_) => {}
            }
        }
        Ok(false)
    }

    /// Length of the kernel's buffer for received datagrams, in bytes.
    pub(crate) fn buffer(&self) -> u32 {
        let len = socket_recv_buffer_size(&self.socket).unwrap_or(0);
        u32::try_from(len).unwrap_or(u32::MAX)
    }

    /// Lets the kernel deliver datagrams of one sender together, if it can.
    pub(super) fn merge_datagrams(&self) {
        let _merges = abi::merge_datagrams(&self.socket);
    }

    /// Sends datagrams without a checksum, which the kernel refuses for several by one call.
    #[cfg(test)]
    pub(super) fn disable_checksums(&self) {
        abi::disable_checksums(&self.socket).unwrap();
    }

    /// Takes a datagram, or several of one sender, and the multicast group, if any. `None` if no datagram is pending.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Option<(Received, Option<Ipv4Addr>)> {
        if let Some(received) = receive(&self.socket, buffer) {
            return Some((received, None));
        }
        let (received, group) = self.groups.receive(|socket| receive(socket, buffer))?;
        Some((received, Some(group)))
    }

    /// Sets the joined multicast groups.
    pub(super) fn set_groups(&self, local: Ipv4Addr, groups: &[Ipv4Addr]) -> io::Result<()> {
        self.groups.set(local, groups)
    }

    /// Takes a datagram that the keeper has forwarded. A datagram longer than the buffer is skipped.
    pub(super) fn receive_management(&self, buffer: &mut [u8]) -> Management {
        let Some(management) = &self.management else {
            return Management::Nothing;
        };
        let management = management.lock().unwrap_or_else(PoisonError::into_inner);
        let mut message = [0; MAX_MESSAGE];
        loop {
            let len = match recv(&*management, &mut message, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Management::Ended,
                Ok((len, _)) => len,
                Err(Errno::AGAIN) => return Management::Nothing,
                Err(Errno::INTR) => continue,
                Err(_) => return Management::Ended,
            };
            let forwarded = message.get(..len).and_then(Forwarded::decode);
            if let Some(Forwarded { from, datagram }) = forwarded
                && let Some(start) = buffer.get_mut(..datagram.len())
            {
                start.copy_from_slice(datagram);
                return Management::Datagram(datagram.len(), from);
            }
        }
    }

    /// Waits until a datagram is pending, an interface has changed or the link is closed.
    pub(crate) fn wait(&self) -> Readiness {
        loop {
            let management = self.management.as_ref();
            let management = management.map(|fd| fd.lock().unwrap_or_else(PoisonError::into_inner));
            let mut sources = vec![(Readiness::Closed, self.closed.as_fd())];
            sources.extend(
                management
                    .iter()
                    .map(|fd| (Readiness::Management, fd.as_fd())),
            );
            let changes = self.changes.iter();
            sources.extend(changes.map(|fd| (Readiness::Interface, fd.as_fd())));
            sources.push((Readiness::Readable, self.socket.as_fd()));
            sources.push((Readiness::Readable, self.groups.pending()));
            let waiting = sources.iter();
            let mut waiting: Vec<_> = waiting
                .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
                .collect();
            // Interrupted by no signal: the thread blocks all of them.
            if poll(&mut waiting, None).is_err() {
                return Readiness::Closed;
            }
            let mut ready = sources.iter().zip(&waiting);
            if let Some(((readiness, _), _)) = ready.find(|(_, fd)| !fd.revents().is_empty()) {
                return *readiness;
            }
        }
    }

    /// Drops the pending reports of changes; the new state is read from the system.
    pub(crate) fn drop_changes(&self) {
        // Lost reports are an error once.
        while let Some(changes) = &self.changes
            && matches!(
                recv(changes, &mut [0], RecvFlags::empty()),
                Ok(_) | Err(Errno::NOBUFS | Errno::INTR)
            )
        {}
    }

    /// Ends the waits of the receiving thread.
    pub(crate) fn close(&self) {
        // Fails for no count below the maximum.
        let _written = rustix::io::write(&self.closed, &1_u64.to_ne_bytes());
    }

    /// Counts a call of the program that looks for datagrams.
    pub(crate) fn count_poll(&self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    /// Number of calls of the program that have looked for datagrams, modulo 2^32.
    pub(crate) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Relaxed)
    }
}

/// Takes a datagram at a socket, or several.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Option<Received> {
    /// Maximum number of errors of earlier datagrams that are skipped.
    const MAX_ERRORS: u32 = 16;
    for _ in 0..MAX_ERRORS {
        match abi::receive(socket, buffer) {
            Ok(received) => return Some(received),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => {}
        }
    }
    None
}
