//! The UDP socket: options, datagrams, and waiting.

use std::{
    io,
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    net::{
        RecvFlags, recvfrom,
        sockopt::{
            Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
            set_socket_recv_buffer_size, set_socket_send_buffer_size,
        },
    },
};

use crate::wire::PORT;

/// Requested length of the kernel's buffers, in bytes. The kernel grants up to `net.core.rmem_max` and `wmem_max`.
const BUFFER: usize = 8 << 20;

/// A bound socket, shared by the calls of the program and the receiving thread.
#[derive(Debug)]
pub(crate) struct Link {
    socket: UdpSocket,
    /// Readable once the link is closed.
    closed: OwnedFd,
    /// Number of calls of the program that have looked for datagrams, modulo 2^32.
    polls: AtomicU32,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    Readable,
    Closed,
}

impl Link {
    /// Binds the port of `RoCEv2` at an address.
    pub(super) fn bind(local: IpAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(local, PORT))?;
        socket.set_nonblocking(true)?;
        // Identification 0 and the flag DF, as the ICRC covers them.
        match local {
            IpAddr::V4(_) => set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO)?,
            IpAddr::V6(_) => set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO)?,
        }
        // With less than requested, more frames are lost and sent again.
        let _granted = set_socket_recv_buffer_size(&socket, BUFFER);
        let _granted = set_socket_send_buffer_size(&socket, BUFFER);
        Ok(Self {
            socket,
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

    /// Takes a datagram: the length, which may exceed the buffer's, and the sender. `None` if no datagram is pending.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> Option<(usize, SocketAddr)> {
        /// Maximum number of errors of earlier datagrams that are skipped.
        const MAX_ERRORS: u32 = 16;
        for _ in 0..MAX_ERRORS {
            let received = recvfrom(&self.socket, &mut *buffer, RecvFlags::TRUNC);
            match received {
                Ok((_, len, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok())?;
                    return Some((len, from));
                }
                Err(rustix::io::Errno::AGAIN) => return None,
                Err(_) => {}
            }
        }
        None
    }

    /// Waits until a datagram is pending or the link is closed.
    pub(crate) fn wait(&self) -> Readiness {
        loop {
            let mut waiting = [
                PollFd::new(&self.closed, PollFlags::IN),
                PollFd::new(&self.socket, PollFlags::IN),
            ];
            // Interrupted by no signal: the thread blocks all of them.
            if poll(&mut waiting, None).is_err() || !waiting[0].revents().is_empty() {
                return Readiness::Closed;
            }
            if !waiting[1].revents().is_empty() {
                return Readiness::Readable;
            }
        }
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
