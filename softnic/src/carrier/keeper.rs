//! The connection of this process to the keeper of its address.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    net::{IpAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{DupFlags, Errno, dup3, retry_on_intr},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketFlags, SocketType, connect, recv, recvmsg, send,
        sendmsg, socket_with, socketpair,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
    process::geteuid,
};

use crate::{
    abi::FDS,
    cm::Claims,
    keeper::{KeeperRequest, MAX_MESSAGE, Welcome, Will, name},
};

/// Time-out of an answer of the keeper, which waits for no program.
const ANSWER: Duration = Duration::from_secs(30);

/// Maximum number of attempts to find or to start a keeper. An attempt fails while another keeper starts or ends.
const ATTEMPTS: u32 = 500;

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(5);

/// The connection to the keeper, and to a later one if the keeper is killed.
#[derive(Debug)]
pub(crate) struct KeeperLink {
    addr: IpAddr,
    /// File of the command that runs a keeper.
    command: OsString,
    number: u8,
    /// Datagrams to queue pair 1, forwarded by the keeper.
    pub(super) management: Arc<Mutex<OwnedFd>>,
    /// The sockets of the vault.
    vault: [OwnedFd; 2],
    /// Locked from a request to its answer.
    control: Mutex<Control>,
}

/// The socket of requests, and the state that is repeated to a later keeper.
#[derive(Debug)]
struct Control {
    fd: OwnedFd,
    /// Service ids, and whether other programs may have each.
    claims: HashMap<u64, bool>,
    wills: HashMap<u32, Will>,
}

/// A slot of an address, with its sockets.
#[derive(Debug)]
pub(crate) struct PortSlot {
    pub(crate) keeper: KeeperLink,
    pub(crate) number: u8,
    pub(super) socket: UdpSocket,
}

/// Descriptors of a keeper's welcome, and the connection.
struct Admission {
    number: u8,
    control: OwnedFd,
    socket: OwnedFd,
    management: OwnedFd,
    vault: [OwnedFd; 2],
}

impl PortSlot {
    /// Numbers of the descriptors by which the process has the slot.
    pub(crate) fn fds(&self) -> [RawFd; FDS] {
        let KeeperLink {
            management,
            vault: [to, from],
            control,
            ..
        } = &self.keeper;
        [
            lock(control).fd.as_raw_fd(),
            self.socket.as_raw_fd(),
            lock(management).as_raw_fd(),
            to.as_raw_fd(),
            from.as_raw_fd(),
        ]
    }

    /// Gets a slot from the keeper of an address, which is started if the address has none.
    ///
    /// # Errors
    /// - [`io::ErrorKind::AddrInUse`]: a process without a keeper, or the kernel's driver `rdma_rxe`, has the port.
    /// - [`io::ErrorKind::AddrNotAvailable`]: the machine does not have the address.
    /// - [`io::ErrorKind::PermissionDenied`]: the keeper is another user's.
    pub(crate) fn get(addr: IpAddr, command: &OsStr) -> io::Result<Self> {
        let admission = admission(addr, command, &KeeperRequest::Join, &[])?;
        Ok(Self {
            number: admission.number,
            socket: admission.socket.into(),
            keeper: KeeperLink {
                addr,
                command: command.to_owned(),
                number: admission.number,
                management: Arc::new(Mutex::new(admission.management)),
                vault: admission.vault,
                control: Mutex::new(Control {
                    fd: admission.control,
                    claims: HashMap::new(),
                    wills: HashMap::new(),
                }),
            },
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connects to the keeper of an address, which is started if the address has none, and sends the first request, with
/// descriptors.
fn admission(
    addr: IpAddr,
    command: &OsStr,
    first: &KeeperRequest,
    fds: &[BorrowedFd<'_>],
) -> io::Result<Admission> {
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
        if let Some(admission) = welcomed(control, first, fds)? {
            return Ok(admission);
        }
        thread::sleep(PAUSE);
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        "the keeper of the address does not start",
    ))
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

/// Sends the first request, and returns the slot in the answer; `None` if the keeper ends.
fn welcomed(
    control: OwnedFd,
    first: &KeeperRequest,
    fds: &[BorrowedFd<'_>],
) -> io::Result<Option<Admission>> {
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&control, timeout, Some(ANSWER))?;
    }
    let first = first.encode();
    let sent = retry_on_intr(|| {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            rights.push(SendAncillaryMessage::ScmRights(fds));
        }
        let bytes = [IoSlice::new(&first)];
        sendmsg(&control, &bytes, &mut rights, SendFlags::NOSIGNAL)
    });
    match sent {
        Ok(_) => {}
        Err(Errno::PIPE | Errno::CONNRESET) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    let mut bytes = [0; MAX_MESSAGE];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
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
    let fds = <[OwnedFd; 4]>::try_from(fds);
    match (bytes.get(..len).and_then(Welcome::decode), fds) {
        (Some(Welcome::Slot(number)), Ok([socket, management, to, from])) => Ok(Some(Admission {
            number,
            control,
            socket,
            management,
            vault: [to, from],
        })),
        (Some(Welcome::Refused(errno)), _) => Err(io::Error::from_raw_os_error(errno)),
        _ => Ok(None),
    }
}

/// Sends a request.
fn request(control: &OwnedFd, request: &KeeperRequest) -> Result<(), Errno> {
    let bytes = request.encode();
    retry_on_intr(|| send(control, &bytes, SendFlags::NOSIGNAL)).map(drop)
}

/// Takes a service id, and returns whether the keeper has granted it.
fn claim(control: &OwnedFd, service: u64, is_shared: bool) -> Result<bool, Errno> {
    request(control, &KeeperRequest::Claim { service, is_shared })?;
    let mut answer = [0];
    let (len, _) = retry_on_intr(|| recv(control, &mut answer, RecvFlags::empty()))?;
    match len {
        0 => Err(Errno::CONNRESET),
        _ => Ok(answer == [1]),
    }
}

impl KeeperLink {
    /// Sets or removes the datagram that ends a connection after the end of this process. If the keeper has ended, the next one
    /// gets the datagram.
    pub(crate) fn set_will(&self, id: u32, will: Option<Will>) {
        let mut control = lock(&self.control);
        match &will {
            Some(will) => control.wills.insert(id, will.clone()),
            None => control.wills.remove(&id),
        };
        let _sent = request(&control.fd, &KeeperRequest::SetWill(id, will));
    }

    /// Returns to the slot at another keeper, if the present one has ended. Returns false if the slot is lost.
    pub(crate) fn return_to_slot(&self) -> bool {
        self.returned(&mut lock(&self.control)).is_ok()
    }

    fn returned(&self, control: &mut Control) -> io::Result<()> {
        let mut state = [PollFd::new(&control.fd, PollFlags::empty())];
        poll(&mut state, Some(&Timespec::default()))?;
        if state[0].revents().is_empty() {
            // Another thread has returned to the slot.
            return Ok(());
        }
        let [to, from] = &self.vault;
        let first = KeeperRequest::Return(self.number);
        let fds = [to.as_fd(), from.as_fd()];
        let admission = admission(self.addr, &self.command, &first, &fds)?;
        // The numbers of the descriptors stay.
        dup3(&admission.control, &mut control.fd, DupFlags::CLOEXEC)?;
        for (service, is_shared) in &control.claims {
            // If this keeper ends, too, the next one is asked. A program without a claim before can have been first: then this
            // one's listener gets no requests.
            let _granted = claim(&control.fd, *service, *is_shared);
        }
        for (id, will) in &control.wills {
            let set = KeeperRequest::SetWill(*id, Some(will.clone()));
            let _sent = request(&control.fd, &set);
        }
        // Last: the end of this keeper ends the datagrams.
        let mut management = lock(&self.management);
        dup3(&admission.management, &mut management, DupFlags::CLOEXEC)?;
        Ok(())
    }
}

impl Claims for KeeperLink {
    fn claim(&self, service: u64, is_shared: bool) -> bool {
        let mut control = lock(&self.control);
        loop {
            match claim(&control.fd, service, is_shared) {
                Ok(true) => {
                    control.claims.insert(service, is_shared);
                    return true;
                }
                // A time-out: the keeper is stopped.
                Ok(false) | Err(Errno::AGAIN) => return false,
                Err(_) if self.returned(&mut control).is_ok() => {}
                Err(_) => return false,
            }
        }
    }

    fn release(&self, service: u64) {
        let mut control = lock(&self.control);
        control.claims.remove(&service);
        let _sent = request(&control.fd, &KeeperRequest::Release(service));
    }
}
