//! A descriptor of the kernel's that is ready when a socket is.
//!
//! Programs wait for sockets in ways that no library sees all of: by an `epoll` inside of another, by a
//! duplicate, edge-triggered. So a socket can have a mirror: one end of a pair of sockets of the kernel's,
//! which the program has, and whose readiness this library sets by its own end. Any wait for it is the
//! kernel's, and has all that such a wait has.
//!
//! | of the program's end | set by |
//! |---|---|
//! | readable, and an edge | an empty packet from the other end, and taking it back |
//! | writable, and an edge | the size of its send buffer: a packet that is never read fills a small one |
//! | `EPOLLRDHUP`, `EPOLLHUP` | the other end is shut down |
//! | `EPOLLERR` | the other end is closed, with that packet unread |
//!
//! What somebody writes to the program's end meanwhile, by a call that does not know of the socket, stays
//! where it is; while the socket is not writable, or not driven, such a call fails with `EAGAIN`.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
};

use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send,
        shutdown, socketpair, sockopt,
    },
};

use crate::proto::stream::Readiness;

/// Bytes of the packet that fills a small send buffer. With what the kernel counts beside them it is more
/// than the smallest buffer there is, 4608 bytes.
const FILLER: usize = 4500;

/// Size of a send buffer that the filler leaves writable: more than four times what it takes.
const ROOMY: usize = 100_000;

/// The smallest size that the kernel takes for one; it rounds up.
const NARROW: usize = 1;

/// Empty packets at which one is taken back before the next is sent. More would fill the other end's
/// buffer.
const MAX_PACKETS: u32 = 8;

/// A pair of sockets that shows the readiness of an rsocket.
#[derive(Debug)]
pub(super) struct Mirror {
    /// The end that the program has duplicates of.
    shown: OwnedFd,
    /// The other end; absent once an error is shown.
    own: Option<OwnedFd>,
    now: Readiness,
    /// Empty packets at the program's end.
    packets: u32,
    /// A write was short of room, and nobody has been told of room since.
    pub(super) starved: bool,
}

impl Mirror {
    /// A pair that shows nothing: neither readable nor writable.
    pub(super) fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (shown, own) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        send(&shown, &[0; FILLER], SendFlags::NOSIGNAL)?;
        let mirror = Self {
            shown,
            own: Some(own),
            now: Readiness::default(),
            packets: 0,
            starved: false,
        };
        mirror.set_room(NARROW)?;
        Ok(mirror)
    }

    /// Another descriptor of the program's end.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.shown.as_fd().try_clone_to_owned()
    }

    /// Whether a descriptor is one of the pair's own.
    pub(super) fn has(&self, fd: RawFd) -> bool {
        let own = self.own.as_ref().map(AsRawFd::as_raw_fd);
        self.shown.as_raw_fd() == fd || own == Some(fd)
    }

    /// Whether it shows room for writing.
    pub(super) fn shows_room(&self) -> bool {
        self.now.writable
    }

    /// Takes back the error that is shown, for who has been told of it in another way.
    pub(super) fn clear_error(&self) {
        // Asking for it is all that it takes.
        let _: rustix::io::Result<Result<(), Errno>> = sockopt::socket_error(&self.shown);
    }

    fn set_room(&self, size: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_send_buffer_size(&self.shown, size)?)
    }

    /// Shows what a socket is ready for. `news` is said where something may have come since the last time:
    /// then there is a new edge, though it was readable before.
    pub(super) fn show(&mut self, ready: Readiness, news: bool) -> io::Result<()> {
        if self.own.is_none() {
            return Ok(());
        }
        if ready.failed {
            // It is closed with the filler unread, which is an error at the other end.
            self.own = None;
            self.now = ready;
            return Ok(());
        }
        self.show_ends(ready)?;
        self.show_readable(ready.readable, news)?;
        if ready.writable {
            if !self.now.writable || self.starved {
                self.set_room(ROOMY)?;
            }
            self.starved = false;
        } else if self.now.writable {
            self.set_room(NARROW)?;
        }
        self.now = ready;
        Ok(())
    }

    fn show_ends(&mut self, ready: Readiness) -> io::Result<()> {
        let Some(own) = &self.own else {
            return Ok(());
        };
        if ready.hung_up && !self.now.hung_up {
            shutdown(own, Shutdown::Both)?;
        } else if ready.ended && !self.now.ended {
            shutdown(own, Shutdown::Write)?;
        }
        Ok(())
    }

    fn show_readable(&mut self, readable: bool, news: bool) -> io::Result<()> {
        if !readable {
            while self.packets > 0 {
                self.take_packet();
            }
            return Ok(());
        }
        if self.now.readable && !news {
            return Ok(());
        }
        if self.packets == MAX_PACKETS {
            self.take_packet();
        }
        let Some(own) = &self.own else {
            return Ok(());
        };
        match send(own, &[], SendFlags::NOSIGNAL) {
            Ok(_) => self.packets += 1,
            // It has been shut down, and stays readable.
            Err(Errno::PIPE) => {}
            Err(err) => return Err(err.into()),
        }
        Ok(())
    }

    fn take_packet(&mut self) {
        // If it is gone, a call that does not know of the socket has taken it.
        let _: rustix::io::Result<(usize, usize)> =
            recv(&self.shown, &mut [0_u8; 1], RecvFlags::DONTWAIT);
        self.packets -= 1;
    }
}

impl AsFd for Mirror {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shown.as_fd()
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

    /// An `epoll` that watches the program's end.
    fn watch(mirror: &Mirror, flags: epoll::EventFlags) -> OwnedFd {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::from_bits_retain(ALL) | flags;
        let program = mirror.duplicate().unwrap();
        epoll::add(&set, &program, epoll::EventData::new_u64(7), flags).unwrap();
        // It stays in the set as long as the mirror is there.
        set
    }

    fn events(set: &OwnedFd) -> u32 {
        let mut events = Vec::with_capacity(4);
        let room = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(set, room, Some(&Timespec::default())).unwrap();
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
    fn each_state_is_shown_as_it_comes_and_goes() {
        let mut mirror = Mirror::new().unwrap();
        let set = watch(&mirror, epoll::EventFlags::empty());
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
        let over = Readiness {
            hung_up: true,
            ..half
        };
        mirror.show(over, true).unwrap();
        assert_eq!(events(&set), IN | OUT | RDHUP | HUP);
    }

    #[test]
    fn failure_is_shown_as_an_error_until_it_is_cleared() {
        let mut mirror = Mirror::new().unwrap();
        let set = watch(&mirror, epoll::EventFlags::empty());
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
    fn edges_come_with_news_and_room_only() {
        let mut mirror = Mirror::new().unwrap();
        let set = watch(&mirror, epoll::EventFlags::ET);
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

    /// Calls that know nothing of the socket fail rather than do nothing.
    #[test]
    fn unknown_calls_find_nothing_and_no_room() {
        let mirror = Mirror::new().unwrap();
        let program = mirror.duplicate().unwrap();
        let written = rustix::io::write(&program, b"lost");
        assert_eq!(written, Err(Errno::AGAIN));
        assert_eq!(
            rustix::io::read(&program, &mut [0_u8; 4]),
            Err(Errno::AGAIN)
        );
    }
}
