//! A kernel descriptor with the readiness of a socket.
//!
//! Programs wait for sockets in ways invisible to a library: nested `epoll` instances, duplicates,
//! edge-triggered waits. A socket can therefore have a mirror: one end of a kernel socket pair is handed to
//! the program, and this library sets its readiness. Any wait for the descriptor is a kernel wait with the
//! usual properties.
//!
//! | of the program's end | set by |
//! |---|---|
//! | readable, and an edge | an empty packet from the other end, and taking it back |
//! | writable, and an edge | the size of its send buffer: a packet that is never read fills a small one |
//! | `EPOLLRDHUP`, `EPOLLHUP` | shutting it down |
//! | `EPOLLERR` | a peer that disconnects from it |
//!
//! The mirror carries no data. Its end has no peer, so each write by a call unaware of the socket, such as
//! `splice` or a direct system call, fails: with `EAGAIN` while the mirror shows no room, with `ENOTCONN`
//! (after the end, `EPIPE`) otherwise. A read by such a call finds nothing (`EAGAIN`) or takes an empty
//! packet and reports an end of stream; [`Mirror::drain_packets`] detects the missing packet.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    io::{Errno, fcntl_dupfd_cloexec},
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
        bind, connect, connect_unspec, getsockname, recv, send, shutdown, socketpair, sockopt,
    },
};

use verbs::fd::{InternalFd, raised};

use crate::proto::stream::Readiness;

/// Size in bytes of the packet filling a small send buffer. With the kernel's overhead, more than the minimum
/// send buffer of 4608 bytes.
const FILLER: usize = 4500;

/// Size of a send buffer still writable with the filler inside: more than four times the filler's cost.
const ROOMY: usize = 100_000;

/// Requested size of a full send buffer; the kernel rounds up to its minimum.
const NARROW: usize = 1;

/// Number of queued empty packets at which one is taken back before the next is sent. The kernel's limit is
/// ten by default (`net.unix.max_dgram_qlen`).
const MAX_PACKETS: u32 = 8;

/// The other end of a socket pair whose first end is the program's alone: a mirror that shows nothing yet.
#[derive(Debug)]
pub(super) struct IdleMirror {
    peer: InternalFd,
    /// Number of the program's end in the kernel (`SO_COOKIE`), which no other socket ever has.
    cookie: u64,
}

impl IdleMirror {
    /// Creates a pair, not readable but writable, so that writes by calls unaware of the socket fail rather
    /// than block. Returns the program's end too.
    pub(super) fn new() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (shown, peer) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let peer = raised(peer);
        send(&shown, &[0; FILLER], SendFlags::NOSIGNAL)?;
        connect_unspec(&shown)?;
        // The disconnect leaves a pending error on the other end, and the error would fail the next call.
        let _: rustix::io::Result<Result<(), Errno>> = sockopt::socket_error(&peer);
        set_room(&shown, ROOMY)?;
        let cookie = sockopt::socket_cookie(&shown)?;
        Ok((Self { peer, cookie }, shown))
    }

    /// Duplicates the program's end, for the updates of its readiness.
    pub(super) fn reach(&self, shown: BorrowedFd<'_>) -> io::Result<InternalFd> {
        let check = |fd: BorrowedFd<'_>| match sockopt::socket_cookie(fd) {
            Ok(cookie) if cookie == self.cookie => Ok(()),
            _ => Err(Errno::INVAL),
        };
        check(shown)?;
        let duplicate = raised(fcntl_dupfd_cloexec(shown, 0)?);
        // The program may have given the number to another file in the meantime.
        check(duplicate.as_fd())?;
        Ok(duplicate)
    }

    /// Whether a descriptor is the other end.
    pub(super) fn has(&self, fd: RawFd) -> bool {
        self.peer.as_raw_fd() == fd
    }
}

fn set_room(shown: impl AsFd, size: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size(shown, size)?)
}

/// A socket pair with the readiness of an rsocket.
#[derive(Debug)]
pub(super) struct Mirror {
    /// The program's end, without a peer: a duplicate.
    shown: InternalFd,
    /// The other end, connected to the program's; `None` once an error is shown.
    peer: Option<InternalFd>,
    now: Readiness,
    /// Number of empty packets queued at the program's end.
    packets: u32,
    /// A packet was missing when taken back.
    read_by_others: bool,
    /// A write ran out of room, and the mirror has not shown room since.
    pub(super) starved: bool,
}

impl Mirror {
    /// `shown` is the [reached](IdleMirror::reach) end.
    pub(super) fn new(idle: IdleMirror, shown: InternalFd) -> Self {
        Self {
            shown,
            peer: Some(idle.peer),
            now: Readiness {
                writable: true,
                ..Readiness::default()
            },
            packets: 0,
            read_by_others: false,
            starved: false,
        }
    }

    /// Whether a descriptor is one of the pair.
    pub(super) fn has(&self, fd: RawFd) -> bool {
        let peer = self.peer.as_ref().map(AsRawFd::as_raw_fd);
        self.shown.as_raw_fd() == fd || peer == Some(fd)
    }

    /// Clears the shown error, after the program has read the socket's error.
    pub(super) fn clear_error(&self) {
        // Reading the error clears it.
        let _: rustix::io::Result<Result<(), Errno>> = sockopt::socket_error(&self.shown);
    }

    /// Shows the readiness of a socket. `after_event` means possible new data since the last call, and causes a new
    /// edge even if already readable.
    pub(super) fn show(&mut self, ready: Readiness, after_event: bool) -> io::Result<()> {
        if self.peer.is_none() {
            return Ok(());
        }
        if ready.failed {
            self.show_error()?;
            self.now = ready;
            return Ok(());
        }
        self.show_ends(ready)?;
        self.show_readable(ready.readable, after_event)?;
        if ready.writable {
            if !self.now.writable || self.starved {
                set_room(&self.shown, ROOMY)?;
            }
            self.starved = false;
        } else if self.now.writable {
            set_room(&self.shown, NARROW)?;
        }
        self.now = ready;
        Ok(())
    }

    fn show_ends(&self, ready: Readiness) -> io::Result<()> {
        if ready.hung_up && !self.now.hung_up {
            shutdown(&self.shown, Shutdown::Both)?;
        } else if ready.ended && !self.now.ended {
            shutdown(&self.shown, Shutdown::Read)?;
        }
        Ok(())
    }

    /// Shows an error, then the end; a wait in between reports the error. The kernel sees a disconnect by the
    /// peer of the program's end.
    fn show_error(&mut self) -> io::Result<()> {
        self.drain_packets();
        if let Some(peer) = &self.peer {
            // Autobind: the kernel assigns a name.
            bind(peer, &SocketAddrUnix::new_unnamed())?;
            connect(&self.shown, &getsockname(peer)?)?;
            connect_unspec(peer)?;
        }
        self.peer = None;
        shutdown(&self.shown, Shutdown::Both)?;
        Ok(())
    }

    fn show_readable(&mut self, readable: bool, after_event: bool) -> io::Result<()> {
        if !readable {
            self.drain_packets();
            return Ok(());
        }
        if self.now.readable && !after_event {
            return Ok(());
        }
        if self.packets == MAX_PACKETS {
            self.take_packet();
        }
        let sent = match self.send_packet() {
            // The limit of queued packets may be lower than the default.
            Err(Errno::AGAIN) if self.packets > 0 => {
                self.take_packet();
                self.send_packet()
            }
            sent => sent,
        };
        match sent {
            Ok(()) => self.packets += 1,
            // The end has been shut down and stays readable.
            Err(Errno::PIPE) => {}
            Err(err) => return Err(err.into()),
        }
        Ok(())
    }

    fn send_packet(&self) -> rustix::io::Result<()> {
        match &self.peer {
            Some(peer) => send(peer, &[], SendFlags::NOSIGNAL).map(drop),
            None => Err(Errno::PIPE),
        }
    }

    fn take_packet(&mut self) {
        let received = recv(&self.shown, &mut [0_u8; 1], RecvFlags::DONTWAIT);
        self.read_by_others |= received.is_err();
        self.packets -= 1;
    }

    /// Takes back all packets. Returns whether a packet was ever missing, read by another call.
    pub(super) fn drain_packets(&mut self) -> bool {
        while self.packets > 0 {
            self.take_packet();
        }
        self.read_by_others
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{Timespec, epoll};

    use super::*;

    const IN: u32 = 1;
    const OUT: u32 = 4;
    const ERR: u32 = 8;
    const HUP: u32 = 0x10;
    const RDHUP: u32 = 0x2000;
    const ALL: u32 = IN | OUT | RDHUP;

    /// A mirror, and the program's end.
    fn driven() -> (Mirror, OwnedFd) {
        let (idle, program) = IdleMirror::new().unwrap();
        let shown = idle.reach(program.as_fd()).unwrap();
        (Mirror::new(idle, shown), program)
    }

    /// Creates an `epoll` instance watching the program's end.
    fn watch(program: &OwnedFd, flags: epoll::EventFlags) -> OwnedFd {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::from_bits_retain(ALL) | flags;
        epoll::add(&set, program, epoll::EventData::new_u64(7), flags).unwrap();
        set
    }

    fn events(set: &OwnedFd) -> u32 {
        let mut events = Vec::with_capacity(4);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(set, buffer, Some(&Timespec::default())).unwrap();
        events.iter().fold(0, |all, event: &epoll::Event| {
            let flags = event.flags;
            all | flags.bits()
        })
    }

    fn ready(readable: bool, writable: bool) -> Readiness {
        Readiness {
            readable,
            writable,
            ..Readiness::default()
        }
    }

    #[test]
    fn mirror_of_each_readiness_is_level_triggered() {
        let (mut mirror, program) = driven();
        let set = watch(&program, epoll::EventFlags::empty());
        mirror.show(ready(false, false), false).unwrap();
        for _ in 0..3 {
            assert_eq!(events(&set), 0);
            for (readable, writable, expected) in [
                (true, false, IN),
                (true, true, IN | OUT),
                (false, true, OUT),
                (true, true, IN | OUT),
                (false, false, 0),
            ] {
                mirror.show(ready(readable, writable), false).unwrap();
                assert_eq!(events(&set), expected);
                assert_eq!(events(&set), expected, "it is shown until it changes");
            }
        }
        mirror.show(ready(true, true), false).unwrap();
        let half = Readiness {
            ended: true,
            ..ready(true, true)
        };
        mirror.show(half, true).unwrap();
        assert_eq!(events(&set), IN | OUT | RDHUP);
        let closed = Readiness {
            hung_up: true,
            ..half
        };
        mirror.show(closed, true).unwrap();
        assert_eq!(events(&set), IN | OUT | RDHUP | HUP);
    }

    #[test]
    fn mirror_of_failed_socket_reports_error_until_cleared() {
        let (mut mirror, program) = driven();
        let set = watch(&program, epoll::EventFlags::empty());
        let failed = Readiness {
            readable: true,
            writable: true,
            ended: true,
            hung_up: true,
            failed: true,
        };
        mirror.show(failed, true).unwrap();
        assert_eq!(events(&set) & (IN | ERR | HUP), IN | ERR | HUP);
        mirror.clear_error();
        assert_eq!(events(&set) & (IN | ERR | HUP), IN | HUP);
        mirror.show(ready(false, false), true).unwrap();
        assert_eq!(events(&set) & HUP, HUP, "it is over");
    }

    #[test]
    fn mirror_is_driven_by_its_own_descriptor_only() {
        let (idle, program) = IdleMirror::new().unwrap();
        let (_other, other_program) = IdleMirror::new().unwrap();
        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        for other in [&other_program, &pipe] {
            let refused = idle.reach(other.as_fd()).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
        }
        idle.reach(program.try_clone().unwrap().as_fd()).unwrap();
    }

    #[test]
    fn mirror_with_edge_trigger_reports_new_data_and_room() {
        let (mut mirror, program) = driven();
        let set = watch(&program, epoll::EventFlags::ET);
        mirror.show(ready(true, true), false).unwrap();
        assert_eq!(events(&set), IN | OUT);
        mirror.show(ready(true, true), false).unwrap();
        assert_eq!(events(&set), 0, "nothing is new");
        for _ in 0..50 {
            mirror.show(ready(true, true), true).unwrap();
            assert_ne!(events(&set) & IN, 0, "more has come");
            assert_eq!(events(&set), 0);
        }
        mirror.starved = true;
        mirror.show(ready(true, true), false).unwrap();
        assert_ne!(events(&set) & OUT, 0, "there is room again");
        mirror.show(ready(false, true), false).unwrap();
        assert_eq!(events(&set) & IN, 0);
        mirror.show(ready(true, true), false).unwrap();
        assert_ne!(events(&set) & IN, 0);
    }

    /// Writes to a descriptor with calls unaware of rsockets and returns their errors.
    fn unknown_writes(fd: &OwnedFd) -> Vec<Errno> {
        let (source, end) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&end, b"lost").unwrap();
        let flags = rustix::pipe::SpliceFlags::NONBLOCK;
        let pieces = [io::IoSlice::new(b"lost")];
        [
            rustix::io::write(fd, b"lost"),
            rustix::io::writev(fd, &pieces),
            send(fd, b"lost", SendFlags::NOSIGNAL),
            send(fd, b"", SendFlags::NOSIGNAL),
            rustix::pipe::splice(&source, None, fd, None, 4, flags),
        ]
        .into_iter()
        .map(|written| written.expect_err("written into the mirror"))
        .collect()
    }

    #[test]
    fn mirror_written_to_directly_fails_in_each_state() {
        let (mut mirror, program) = driven();
        assert_eq!(unknown_writes(&program), [Errno::NOTCONN; 5], "not driven");
        for (readable, writable) in [(false, true), (true, true), (true, false), (false, false)] {
            mirror.show(ready(readable, writable), true).unwrap();
            let expected = if writable {
                Errno::NOTCONN
            } else {
                Errno::AGAIN
            };
            assert_eq!(unknown_writes(&program), [expected; 5]);
        }
        let half = Readiness {
            ended: true,
            ..ready(true, true)
        };
        mirror.show(half, true).unwrap();
        assert_eq!(unknown_writes(&program), [Errno::NOTCONN; 5]);
        let closed = Readiness {
            hung_up: true,
            ..half
        };
        mirror.show(closed, true).unwrap();
        assert_eq!(unknown_writes(&program), [Errno::PIPE; 5]);
        let failed = Readiness {
            failed: true,
            ..closed
        };
        mirror.show(failed, true).unwrap();
        let errors = unknown_writes(&program);
        assert!(
            errors
                .iter()
                .all(|err| matches!(*err, Errno::PIPE | Errno::CONNRESET)),
            "{errors:?}"
        );
    }

    #[test]
    fn mirror_read_directly_has_no_data_and_is_detected() {
        let (mut mirror, program) = driven();
        let read = || rustix::io::read(&program, &mut [0_u8; 4]);
        assert_eq!(read(), Err(Errno::AGAIN));
        mirror.show(ready(true, true), true).unwrap();
        mirror.show(ready(true, true), true).unwrap();
        mirror.show(ready(false, true), true).unwrap();
        assert!(!mirror.drain_packets(), "nothing was read");
        assert_eq!(read(), Err(Errno::AGAIN));
        mirror.show(ready(true, true), true).unwrap();
        assert_eq!(read(), Ok(0));
        assert!(mirror.drain_packets());
        mirror.show(ready(true, true), true).unwrap();
        assert!(mirror.drain_packets(), "it has happened");
    }

    #[test]
    fn mirror_of_failed_socket_is_not_read_directly() {
        let (mut mirror, _program) = driven();
        mirror.show(ready(true, true), true).unwrap();
        let failed = Readiness {
            failed: true,
            ..ready(true, true)
        };
        mirror.show(failed, true).unwrap();
        assert!(!mirror.drain_packets());
    }
}
