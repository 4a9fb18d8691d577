//! An eventfd for waking a thread in `poll(2)`.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};

/// An eventfd, readable between [`notify`](Self::notify) and [`drain`](Self::drain).
#[derive(Debug)]
pub(crate) struct EventFd(OwnedFd);

impl EventFd {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    pub(crate) fn notify(&self) {
        // Fails only at the maximum of the counter, where the descriptor is readable anyway.
        let _: Result<usize, _> = write(&self.0, &1_u64.to_ne_bytes());
    }

    pub(crate) fn drain(&self) {
        // Fails with `EAGAIN` if the counter is zero.
        let _: Result<usize, _> = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
