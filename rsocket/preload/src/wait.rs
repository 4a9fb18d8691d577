//! `poll` and `select` with rsockets among the descriptors.

use std::{os::fd::AsRawFd, sync::Arc};

use interpose::{Mask, Polled, Selected};
use libc::{c_int, c_short, fd_set, nfds_t, pollfd, timeval};
use rsocket::{PollEvents, Sleep};
use rsocket_capi as own;

use crate::{
    fork,
    table::{self, Held, SOCKETS},
};

/// Returns a sleep function that sets a signal mask during the sleep; `None` without a mask.
fn sleep_with(mask: Mask) -> Option<Box<Sleep<'static>>> {
    if !mask.is_set() {
        return None;
    }
    Some(Box::new(move |entries, timeout| {
        let mut fds: Vec<pollfd> = entries
            .iter()
            .map(|entry| pollfd {
                fd: entry.fd.as_raw_fd(),
                events: c_short::from_ne_bytes(entry.interest.bits().to_ne_bytes()),
                revents: 0,
            })
            .collect();
        mask.poll(&mut fds, timeout)?;
        for (entry, fd) in entries.iter_mut().zip(&fds) {
            let bits = u16::from_ne_bytes(fd.revents.to_ne_bytes());
            entry.ready = PollEvents::from_bits_retain(bits);
        }
        Ok(())
    }))
}

/// Entries for `rpoll`, with the rsockets kept alive.
struct RpollEntries {
    fds: Vec<pollfd>,
    _held: Vec<Arc<Held>>,
}

impl Polled for RpollEntries {
    fn of(fds: &[pollfd]) -> Option<Self> {
        for entry in fds {
            fork::finish_setup_for_wait(entry.fd);
        }
        // Calls without rsockets pass through unchanged, without an allocation.
        if !fds.iter().any(|entry| SOCKETS.may_have(entry.fd)) {
            return None;
        }
        let mut held = Vec::new();
        let own = fds
            .iter()
            .map(|entry| match table::find(entry.fd) {
                Some(socket) => {
                    let fd = socket.fd();
                    held.push(socket);
                    pollfd { fd, ..*entry }
                }
                None => *entry,
            })
            .collect();
        (!held.is_empty()).then_some(Self {
            fds: own,
            _held: held,
        })
    }

    fn wait(mut self, answers: &mut [pollfd], timeout: c_int, mask: Mask) -> c_int {
        let count = self.fds.len() as nfds_t;
        let mut sleep = sleep_with(mask);
        // SAFETY: `count` is the number of entries.
        let ready =
            unsafe { own::poll_with(self.fds.as_mut_ptr(), count, timeout, sleep.as_deref_mut()) };
        for (answer, own) in answers.iter_mut().zip(&self.fds) {
            answer.revents = own.revents;
        }
        ready
    }
}

/// Returns the rsockets in three sets, by the program's descriptors.
///
/// # Safety
/// The sets are null or valid.
unsafe fn sockets_in(count: c_int, sets: [*mut fd_set; 3]) -> Vec<(c_int, Arc<Held>)> {
    (0..own::select_count(count).unwrap_or(0))
        .filter(|&fd| {
            // SAFETY: null or valid, as the caller promises.
            sets.iter().any(|&set| unsafe { own::is_set(fd, set) })
        })
        .filter_map(|fd| {
            fork::finish_setup_for_wait(fd);
            Some((fd, table::find(fd)?))
        })
        .collect()
}

/// The rsockets in three sets.
struct Selects(Vec<(c_int, Arc<Held>)>);

impl Selected for Selects {
    unsafe fn of(count: c_int, sets: [*mut fd_set; 3]) -> Option<Self> {
        // SAFETY: as the caller promises.
        let held = unsafe { sockets_in(count, sets) };
        (!held.is_empty()).then_some(Self(held))
    }

    unsafe fn wait(
        self,
        count: c_int,
        sets: [*mut fd_set; 3],
        timeout: *mut timeval,
        mask: Mask,
    ) -> c_int {
        let known_as = |fd| {
            let found = self.0.iter().find(|(own, _)| *own == fd);
            found.map_or(fd, |(_, held)| held.fd())
        };
        let mut sleep = sleep_with(mask);
        // SAFETY: as the caller promises.
        unsafe { own::select_by(count, sets, timeout, known_as, sleep.as_deref_mut()) }
    }
}

interpose::waiting!(RpollEntries, Selects);
