//! Programs without a slot, and the start of a keeper: a new group of sockets, or that of a killed keeper.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, accept_with, recvmsg,
        sockopt::socket_peercred,
    },
    process::geteuid,
};
use softnic::keeper::{KeeperRequest, MAX_MESSAGE, open_port};

use super::{group::Group, refuse};

/// Maximum time until the programs of an earlier keeper return, or their sockets are closed.
const RETURNING: Duration = Duration::from_secs(10);

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The first request of a program.
pub(super) enum First {
    Join,
    /// The slot with an earlier keeper, and the vault of its group.
    Return(u8, Option<[OwnedFd; 2]>),
}

/// A program with its first request.
pub(super) type Arrival = (OwnedFd, First);

/// Connected programs whose first request is pending.
pub(super) struct Guests(Vec<OwnedFd>);

impl Guests {
    pub(super) fn new(first: OwnedFd) -> Self {
        Self(vec![first])
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }

    /// Accepts the pending programs of the same user.
    pub(super) fn accept(&mut self, listener: &OwnedFd) {
        while let Ok(control) = accept_with(listener, SocketFlags::CLOEXEC) {
            match socket_peercred(&control).is_ok_and(|peer| peer.uid == geteuid()) {
                true => self.0.push(control),
                false => refuse(&control, libc::EACCES),
            }
        }
    }

    /// Takes the programs whose first request has arrived, and drops ended ones.
    pub(super) fn requests(&mut self) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        for control in std::mem::take(&mut self.0) {
            match first_request(&control) {
                Ok(Some(first)) => arrivals.push((control, first)),
                Err(Errno::AGAIN | Errno::INTR) => self.0.push(control),
                // The end of the program, or no program of softnic.
                Ok(None) | Err(_) => {}
            }
        }
        arrivals
    }

    /// Binds the port of an address, or waits for a program of an earlier keeper, whose group is in use. Returns the programs
    /// whose first request has arrived meanwhile.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AddrInUse`]: another process has the port, or no program of the earlier keeper returns.
    pub(super) fn open_group(
        &mut self,
        addr: IpAddr,
        listener: &OwnedFd,
    ) -> io::Result<(Group, Vec<Arrival>)> {
        let deadline = Instant::now() + RETURNING;
        let mut arrivals = Vec::new();
        loop {
            self.accept(listener);
            for (control, mut first) in self.requests() {
                if let First::Return(_, vault) = &mut first
                    && let Some(vault) = vault.take()
                {
                    match Group::restore(addr, vault) {
                        Ok(group) => {
                            arrivals.push((control, first));
                            return Ok((group, arrivals));
                        }
                        Err(error) => refuse(&control, errno(&error)),
                    }
                } else {
                    arrivals.push((control, first));
                }
            }
            let error = match Group::bind(addr) {
                Ok(group) => return Ok((group, arrivals)),
                Err(error) => error,
            };
            // A group of the same user admits a further socket.
            let is_group =
                error.kind() == io::ErrorKind::AddrInUse && open_port(addr, true).is_ok();
            if !is_group || Instant::now() > deadline {
                let guests = self
                    .0
                    .iter()
                    .chain(arrivals.iter().map(|(control, _)| control));
                guests.for_each(|control| refuse(control, errno(&error)));
                return Err(error);
            }
            thread::sleep(PAUSE);
        }
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Takes the first request of a program; `None` at the end of the program, and for other bytes.
fn first_request(control: &OwnedFd) -> Result<Option<First>, Errno> {
    let mut bytes = [0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let mut into = [IoSliceMut::new(&mut bytes)];
    let received = recvmsg(control, &mut into, &mut rights, flags)?;
    let mut fds = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    let request = bytes.get(..received.bytes).and_then(KeeperRequest::decode);
    Ok(match request {
        Some(KeeperRequest::Join) => Some(First::Join),
        Some(KeeperRequest::Return(slot)) => {
            let vault = <[OwnedFd; 2]>::try_from(fds).ok();
            Some(First::Return(slot, vault))
        }
        _ => None,
    })
}
