//! The keeper of an address: shares the address's UDP port among programs.
//!
//! It is started by the first program at the address, and ends with the last one. If it is killed, its programs start another one,
//! and return to their slots there. See [`softnic::keeper`] for the messages.

mod detachment;
mod group;
mod routes;
mod startup;
mod vault;

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use anyhow::{Context, Result};
use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketFlags, SocketType, bind, listen, recv, send, sendmsg, socket_with, socketpair,
    },
};
use softnic::{
    keeper::{Forwarded, KeeperRequest, MAX_MESSAGE, SLOTS, Welcome, Will, name},
    wire::PORT,
};

use crate::device_files::DeviceFiles;
use group::Group;
use routes::{Receivers, Routes};
use startup::{First, Guests};

/// Maximum number of programs that wait to be accepted.
const BACKLOG: i32 = 64;

/// Maximum number of wills of a program; further ones are ignored.
const MAX_WILLS: usize = 1 << 16;

/// Maximum number of datagrams forwarded before the requests of programs are answered.
const BURST: u32 = 64;

/// A program with a slot.
struct Program {
    /// Requests and answers.
    control: OwnedFd,
    /// Forwarded datagrams.
    management: OwnedFd,
    wills: HashMap<u32, Will>,
}

/// The state of a keeper. The sockets are closed before the listener: a later keeper finds the port free.
struct Keeper {
    group: Group,
    programs: BTreeMap<u8, Program>,
    /// Connected programs whose first request is pending.
    guests: Guests,
    routes: Routes,
    /// The slot of the latest program. A slot is used again as late as possible.
    latest: u8,
    /// Removed before the listener is closed, after which a later keeper writes its own; `None` if they cannot be written.
    _files: Option<DeviceFiles>,
    listener: OwnedFd,
}

/// Runs the keeper of an address, in a process without a parent.
///
/// # Errors
/// - A system call fails.
pub(crate) fn start(addr: IpAddr, is_detached: bool) -> Result<()> {
    match is_detached {
        true => run(addr, detachment::connection()?),
        false => detachment::detach(addr),
    }
}

/// Serves programs, from the first one until the last one has ended. Returns at once if the address has another keeper, or if
/// the first program cannot be served.
fn run(addr: IpAddr, first: OwnedFd) -> Result<()> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .context("cannot open a socket for programs")?;
    match bind(&listener, &name(addr)?) {
        // The first program finds the other keeper.
        Err(Errno::ADDRINUSE) => return Ok(()),
        bound => bound.context("cannot bind the name of the keeper")?,
    }
    listen(&listener, BACKLOG).context("cannot accept programs")?;
    let mut guests = Guests::new(first);
    let (group, admitted) = guests
        .open_group(addr, &listener)
        .with_context(|| format!("UDP port {PORT} of {addr}"))?;
    // Before the first program has its slot, after which it may read them.
    let files = DeviceFiles::write(addr).ok();
    let latest = u8::try_from(group.len().saturating_sub(1)).unwrap_or(u8::MAX);
    let mut keeper = Keeper {
        group,
        programs: BTreeMap::new(),
        guests,
        routes: Routes::default(),
        latest,
        _files: files,
        listener,
    };
    for (control, first) in admitted {
        keeper.admit(control, &first);
    }
    while !(keeper.programs.is_empty() && keeper.guests.is_empty()) {
        keeper.wait_and_serve()?;
    }
    Ok(())
}

/// Reports to a program that there is no slot for it. An ended program does not read the message.
fn refuse(control: &OwnedFd, errno: i32) {
    let welcome = Welcome::Refused(errno).encode();
    let _sent = send(control, &welcome, SendFlags::NOSIGNAL);
}

/// The owner of a descriptor.
#[derive(Clone, Copy)]
enum Source {
    Listener,
    Management,
    /// Programs with a first request.
    Guest,
    /// A program with a request.
    Program(u8),
    /// An ended program.
    Ended(u8),
}

impl Keeper {
    /// Waits for a program, a request or a datagram, and serves each pending one.
    fn wait_and_serve(&mut self) -> Result<()> {
        let ready = {
            let management = self.group.socket(0)?;
            let mut sources = vec![
                (Source::Listener, self.listener.as_fd()),
                (Source::Management, management.as_fd()),
            ];
            sources.extend(self.guests.fds().map(|fd| (Source::Guest, fd)));
            let programs = self.programs.iter();
            sources.extend(programs.map(|(slot, of)| (Source::Program(*slot), of.control.as_fd())));
            ready(&sources)?
        };
        for source in ready {
            match source {
                Source::Listener => self.guests.accept(&self.listener),
                Source::Guest => {
                    for (control, first) in self.guests.requests() {
                        self.admit(control, &first);
                    }
                }
                Source::Management => self.forward()?,
                Source::Program(slot) => {
                    self.serve(slot);
                }
                // Before the requests of other programs, which may have seen the end. Its last requests may be pending.
                Source::Ended(slot) => while self.serve(slot) {},
            }
        }
        if self.programs.is_empty() {
            // A program that has connected meanwhile.
            self.guests.accept(&self.listener);
        }
        Ok(())
    }

    /// Gives a program a slot: a free one, or the one that it has had with an earlier keeper.
    fn admit(&mut self, control: OwnedFd, first: &First) {
        let given = match first {
            First::Join => self.free_slot().inspect(|slot| self.group.drain(*slot)),
            First::Return(slot, _) => self.earlier_slot(*slot),
        };
        let slot = match given {
            Some(slot) => slot,
            None => return refuse(&control, libc::EUSERS),
        };
        match self.give_slot(slot, &control) {
            Ok(management) => {
                let program = Program {
                    control,
                    management,
                    wills: HashMap::new(),
                };
                self.programs.insert(slot, program);
                if let First::Join = first {
                    self.latest = slot;
                }
            }
            Err(error) => refuse(&control, error.raw_os_error().unwrap_or(libc::EMFILE)),
        }
    }

    /// The slot without a program whose last program ended first.
    fn free_slot(&self) -> Option<u8> {
        let after = (self.latest.saturating_add(1)..=*SLOTS.end()).chain(SLOTS);
        let mut free = after.filter(|slot| !self.programs.contains_key(slot));
        free.next()
    }

    /// A slot of an earlier keeper; `None` if another program has it.
    fn earlier_slot(&self, slot: u8) -> Option<u8> {
        let has_socket = SLOTS.contains(&slot) && usize::from(slot) < self.group.len();
        (has_socket && !self.programs.contains_key(&slot)).then_some(slot)
    }

    /// Sends the sockets of a slot. Returns the other end of the socket for forwarded datagrams.
    fn give_slot(&mut self, slot: u8, control: &OwnedFd) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        self.group.open(slot)?;
        let socket = self.group.socket(slot)?;
        let [to, from] = self.group.vault().fds();
        let fds: [BorrowedFd<'_>; 4] = [socket.as_fd(), theirs.as_fd(), to, from];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut rights = SendAncillaryBuffer::new(&mut space);
        rights.push(SendAncillaryMessage::ScmRights(&fds));
        let welcome = Welcome::Slot(slot).encode();
        let bytes = [IoSlice::new(&welcome)];
        sendmsg(control, &bytes, &mut rights, SendFlags::NOSIGNAL)?;
        Ok(ours)
    }

    /// Forwards pending datagrams to queue pair 1. Others are dropped, as are those to programs with full buffers.
    fn forward(&mut self) -> Result<()> {
        let mut buffer = [0; MAX_MESSAGE];
        for _ in 0..BURST {
            let received = self.group.socket(0)?.recv_from(&mut buffer);
            let (len, from) = match received {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An earlier datagram's error, such as a closed port of a peer.
                Err(_) => continue,
            };
            if let Some(datagram) = buffer.get(..len) {
                self.route(from, datagram);
            }
        }
        Ok(())
    }

    fn route(&mut self, from: SocketAddr, datagram: &[u8]) {
        let Some(receivers) = self.routes.receivers(from.ip(), datagram) else {
            return;
        };
        let message = Forwarded { from, datagram }.encode();
        let send_to = |program: &Program| {
            // Lost if the program's buffer is full, as any datagram.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _sent = send(&program.management, &message, flags);
        };
        let named = match receivers {
            Receivers::All => return self.programs.values().for_each(send_to),
            Receivers::Slot(slot) => self.programs.get(&slot),
            Receivers::Any => None,
        };
        if let Some(program) = named.or_else(|| self.programs.values().next()) {
            send_to(program);
        }
    }

    /// Serves the oldest request of a program, or the end of the program. Returns false if none is pending.
    fn serve(&mut self, slot: u8) -> bool {
        let Some(program) = self.programs.get_mut(&slot) else {
            return false;
        };
        let mut buffer = [0; MAX_MESSAGE];
        let received = recv(&program.control, &mut buffer, RecvFlags::DONTWAIT);
        let len = match received {
            Err(Errno::AGAIN) => return false,
            Err(Errno::INTR) => return true,
            Ok((len, _)) => len,
            Err(_) => 0,
        };
        let request = buffer.get(..len).and_then(KeeperRequest::decode);
        match request {
            Some(KeeperRequest::Claim { service, is_shared }) => {
                let is_granted = self.routes.claim(slot, service, is_shared);
                let _sent = send(
                    &program.control,
                    &[u8::from(is_granted)],
                    SendFlags::NOSIGNAL,
                );
            }
            Some(KeeperRequest::Release(service)) => self.routes.release(slot, service),
            Some(KeeperRequest::SetWill(id, None)) => {
                program.wills.remove(&id);
            }
            Some(KeeperRequest::SetWill(id, Some(will))) => {
                if program.wills.len() < MAX_WILLS || program.wills.contains_key(&id) {
                    program.wills.insert(id, will);
                }
            }
            // The end of the program, or no program of softnic.
            Some(KeeperRequest::Join | KeeperRequest::Return(_)) | None => self.bury(slot),
        }
        true
    }

    /// Sends the wills of an ended program, and frees its slot.
    fn bury(&mut self, slot: u8) {
        let Some(program) = self.programs.remove(&slot) else {
            return;
        };
        self.routes.leave(slot);
        let Ok(socket) = self.group.socket(0) else {
            return;
        };
        for will in program.wills.into_values() {
            // As each message of an ended program, sent once.
            let _sent = socket.send_to(&will.datagram, (will.to, PORT));
        }
    }
}

/// Waits, and returns the sources with something pending: first the ended programs.
fn ready(sources: &[(Source, BorrowedFd<'_>)]) -> Result<Vec<Source>> {
    let mut waiting: Vec<_> = sources
        .iter()
        .map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    match poll(&mut waiting, None) {
        Err(Errno::INTR) => return Ok(Vec::new()),
        polled => polled.context("poll")?,
    };
    let pairs = sources.iter().zip(&waiting);
    let ready = pairs.filter(|(_, waiting)| !waiting.revents().is_empty());
    let mut ready: Vec<_> = ready
        .map(|((source, _), waiting)| match *source {
            Source::Program(slot) if waiting.revents().contains(PollFlags::HUP) => {
                Source::Ended(slot)
            }
            source => source,
        })
        .collect();
    ready.sort_by_key(|source| !matches!(source, Source::Ended(_)));
    Ok(ready)
}
