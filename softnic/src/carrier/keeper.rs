//! The connection of this process to the keeper of its address.

use std::{
    ffi::OsStr,
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    net::{IpAddr, UdpSocket},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Command, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags,
        SocketFlags, SocketType, connect, recv, recvmsg, send, socket_with, socketpair,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
    process::geteuid,
};

use crate::{
    cm::Claims,
    keeper::{KeeperRequest, MAX_MESSAGE, Welcome, Will, name},
};

/// Time-out of an answer of the keeper, which waits for no program.
const ANSWER: Duration = Duration::from_secs(30);

/// Maximum number of attempts to find or to start a keeper. An attempt fails while another keeper starts or ends.
const ATTEMPTS: u32 = 500;

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The connection to the keeper.
#[derive(Debug)]
pub(crate) struct KeeperLink {
    control: OwnedFd,
    /// Locked from a request to its answer.
    turn: Mutex<()>,
}

/// A slot of an address, with its sockets.
#[derive(Debug)]
pub(crate) struct PortSlot {
    pub(crate) keeper: KeeperLink,
    pub(crate) number: u8,
    pub(super) socket: UdpSocket,
    /// Datagrams to queue pair 1, forwarded by the keeper.
    pub(super) management: OwnedFd,
}

impl PortSlot {
    /// The descriptors by which the process has the slot.
    pub(crate) fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.keeper.control.as_fd(),
            self.socket.as_fd(),
            self.management.as_fd(),
        ]
    }

    /// Gets a slot from the keeper of an address, which is started if the address has none.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AddrInUse`]: a process without a keeper, or the kernel's driver `rdma_rxe`, has the port.
    /// - [`io::ErrorKind::AddrNotAvailable`]: the machine does not have the address.
    /// - [`io::ErrorKind::PermissionDenied`]: the keeper is another user's.
    pub(crate) fn get(addr: IpAddr, command: &OsStr) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let control = match found(addr)? {
                Some(control) => control,
                None => started(addr, command)?,
            };
            if socket_peercred(&control)?.uid != geteuid() {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "programs of another user have the address",
                ));
            }
            if let Some(slot) = welcomed(control)? {
                return Ok(slot);
            }
            thread::sleep(PAUSE);
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the keeper of the address does not start",
        ))
    }
}

/// A connection to the address's keeper; `None` without one.
fn found(addr: IpAddr) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC;
    let control = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let name = name(addr)?;
    match retry_on_intr(|| connect(&control, &name)) {
        Ok(()) => Ok(Some(control)),
        Err(Errno::CONNREFUSED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// A connection to a new keeper, which ends at once if the address has another one.
fn started(addr: IpAddr, command: &OsStr) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let mut keeper = Command::new(command);
    keeper.arg("keeper").arg(addr.to_string());
    keeper.stdin(Stdio::from(theirs)).stdout(Stdio::null());
    let mut child = keeper.spawn().map_err(|error| {
        let command = command.display();
        io::Error::new(
            error.kind(),
            format!("cannot run {command}, the command of SOFTNIC_KEEPER: {error}"),
        )
    })?;
    // The command leaves the keeper in a process without a parent. Fails if the program takes its children's statuses itself.
    let _status = child.wait();
    Ok(ours)
}

/// The slot in the keeper's first message; `None` if the keeper ends.
fn welcomed(control: OwnedFd) -> io::Result<Option<PortSlot>> {
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&control, timeout, Some(ANSWER))?;
    }
    let mut bytes = [0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut into = [IoSliceMut::new(&mut bytes)];
        recvmsg(&control, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC)
    });
    let len = match received {
        Ok(received) => received.bytes,
        Err(Errno::CONNRESET) => 0,
        Err(error) => return Err(error.into()),
    };
    let mut fds = Vec::new();
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    match (
        bytes.get(..len).and_then(Welcome::decode),
        fds.pop(),
        fds.pop(),
    ) {
        (Some(Welcome::Slot(number)), Some(management), Some(socket)) => Ok(Some(PortSlot {
            keeper: KeeperLink {
                control,
                turn: Mutex::new(()),
            },
            number,
            socket: socket.into(),
            management,
        })),
        (Some(Welcome::Refused(errno)), ..) => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(None),
    }
}

impl KeeperLink {
    /// Sends a request. Fails without effect if the keeper has ended: the device is lost then.
    fn send(&self, request: &KeeperRequest) -> Result<(), Errno> {
        let bytes = request.encode();
        retry_on_intr(|| send(&self.control, &bytes, SendFlags::NOSIGNAL)).map(drop)
    }

    /// Sets or removes the datagram that ends a connection after the end of this process.
    pub(crate) fn set_will(&self, id: u32, will: Option<Will>) {
        let _sent = self.send(&KeeperRequest::SetWill(id, will));
    }
}

impl Claims for KeeperLink {
    fn claim(&self, service: u64, is_shared: bool) -> bool {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if self
            .send(&KeeperRequest::Claim { service, is_shared })
            .is_err()
        {
            return false;
        }
        let mut answer = [0];
        let received = retry_on_intr(|| recv(&self.control, &mut answer, RecvFlags::empty()));
        received.is_ok() && answer == [1]
    }

    fn release(&self, service: u64) {
        let _sent = self.send(&KeeperRequest::Release(service));
    }
}
