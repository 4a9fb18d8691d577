//! Copies of the group's sockets that outlive a killed keeper: descriptors in unread messages between two sockets, which every
//! program has.

use std::{
    collections::{BTreeMap, btree_map},
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::UdpSocket,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process,
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
    },
};

/// Length of a message: the index in the group, and the id of the keeper's process.
const MESSAGE: usize = 1 + 4;

/// A socket in the vault.
struct VaultEntry {
    index: u8,
    /// Whether this keeper has put it there.
    is_local: bool,
    socket: UdpSocket,
}

/// A message for each socket, with its descriptor.
pub(super) struct Vault {
    to: OwnedFd,
    from: OwnedFd,
}

impl Vault {
    pub(super) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (to, from) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { to, from })
    }

    /// The vault of an earlier keeper.
    pub(super) fn of([to, from]: [OwnedFd; 2]) -> Self {
        Self { to, from }
    }

    /// Descriptors for a program.
    pub(super) fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.to.as_fd(), self.from.as_fd()]
    }

    /// Adds a copy of a socket.
    pub(super) fn put(&self, index: u8, socket: BorrowedFd<'_>) -> io::Result<()> {
        let fds = [socket];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&fds));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let [a, b, c, d] = process::id().to_ne_bytes();
        let message = [index, a, b, c, d];
        sendmsg(&self.to, &[IoSlice::new(&message)], &mut rights, flags)?;
        Ok(())
    }

    /// The oldest socket, which stays in the vault with the flag `PEEK`; `None` without one.
    fn oldest(&self, flags: RecvFlags) -> io::Result<Option<VaultEntry>> {
        let mut message = [0; MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut into = [IoSliceMut::new(&mut message)];
        match recvmsg(&self.from, &mut into, &mut rights, flags) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        let socket = rights.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        let [index, process @ ..] = message;
        Ok(socket.map(|socket| VaultEntry {
            index,
            is_local: process == process::id().to_ne_bytes(),
            socket: socket.into(),
        }))
    }

    /// Copies of all sockets that earlier keepers have put into the vault, in the order of their indices.
    ///
    /// # Errors
    /// - [`io::ErrorKind::NotFound`]: a socket is missing.
    pub(super) fn sockets(&self) -> io::Result<Vec<UdpSocket>> {
        let mut sockets = BTreeMap::new();
        // A second copy is in the vault before the first is taken: this keeper may be killed at any point.
        while let Some(entry) = self
            .oldest(RecvFlags::PEEK)?
            .filter(|entry| !entry.is_local)
        {
            // The other copy of a keeper that was killed here is not put back.
            if let btree_map::Entry::Vacant(vacant) = sockets.entry(entry.index) {
                self.put(entry.index, entry.socket.as_fd())?;
                vacant.insert(entry.socket);
            }
            self.oldest(RecvFlags::empty())?;
        }
        let is_complete = sockets
            .keys()
            .copied()
            .eq((0..=u8::MAX).take(sockets.len()));
        if sockets.is_empty() || !is_complete {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(sockets.into_values().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    /// Puts a socket into a vault, as a keeper of another process.
    fn put(vault: &Vault, index: u8, process: u8, socket: &UdpSocket) {
        let fds = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&fds));
        let message = [index, process, 0xff, 0xff, 0xff];
        let bytes = [IoSlice::new(&message)];
        sendmsg(&vault.to, &bytes, &mut rights, SendFlags::NOSIGNAL).unwrap();
    }

    fn ports(sockets: &[UdpSocket]) -> Vec<std::net::SocketAddr> {
        let ports = sockets.iter().map(|of| of.local_addr().unwrap());
        ports.collect()
    }

    /// An earlier keeper was killed after the copy of the first socket, and another one has added the last socket.
    #[test]
    fn vault_has_each_socket_once_after_a_keeper_was_killed_in_between() {
        let vault = Vault::new().unwrap();
        let sockets = [bound(), bound(), bound(), bound()];
        for (index, process) in [(1, 1), (2, 1), (0, 1), (0, 2), (3, 2)] {
            put(&vault, index, process, &sockets[usize::from(index)]);
        }
        let all = ports(&sockets);
        drop(sockets);
        assert_eq!(ports(&vault.sockets().unwrap()), all);
        // Each has stayed, in a message of this keeper.
        for (index, port) in (0..).zip(all) {
            let order = [1, 2, 0, 3];
            let entry = vault.oldest(RecvFlags::empty()).unwrap().unwrap();
            assert!(entry.is_local, "{port}");
            assert_eq!(entry.index, order[index]);
        }
        assert!(vault.oldest(RecvFlags::empty()).unwrap().is_none());
    }

    #[test]
    fn vault_without_a_socket_of_the_group_is_refused() {
        let vault = Vault::new().unwrap();
        assert!(vault.sockets().is_err());
        put(&vault, 1, 1, &bound());
        assert!(vault.sockets().is_err());
    }

    /// The kernel's buffer has space for the sockets of all slots.
    #[test]
    fn vault_has_space_for_all_slots() {
        let vault = Vault::new().unwrap();
        let socket = bound();
        for index in 0..=u8::MAX {
            put(&vault, index, 1, &socket);
        }
        assert_eq!(vault.sockets().unwrap().len(), 256);
    }
}
