//! A descriptor that is readable until it is cleared.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};

/// Something that makes a descriptor readable until it is cleared.
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    pub(crate) fn notify(&self) {
        // It can only fail when the count is at its end, and then the descriptor is readable.
        let _: Result<usize, _> = write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn drain(&self) {
        // It fails when nobody has rung.
        let _: Result<usize, _> = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
